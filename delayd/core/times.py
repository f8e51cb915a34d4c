"""The two roundings of one instant, as two types, so that they cannot be mixed up.

A clock counts whole milliseconds, and an instant lies within one. *Played* time is rounded down:
what is due by it is due, and nothing fires early. *Request* time is rounded up: a delay, ttr or
wait that counts from it lasts at least as long as was asked for. On a virtual clock both are the
same.

They are read from the clock together, once: per turn for what is due, per command read or request
admitted for clients. Nothing else adds a millisecond.
"""

from typing import Final, NewType

PlayedMs = NewType("PlayedMs", int)
"""Delayd time, rounded down."""

RequestMs = NewType("RequestMs", int)
"""Delayd time, rounded up."""

ROUNDING_MS: Final = 1
"""By how much the two differ at most."""
