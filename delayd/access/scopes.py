"""What a token can allow, by the words that `delayd token create --scope` takes.

A scope is a kind of operation. Which operation needs which is a column of `line.commands` and of
`http.routes`; `Principal.may` puts scope and topic together.
"""

import enum


class Scope(enum.StrEnum):
    """A kind of operation; the values are the words."""

    PUT = "put"
    """Put jobs, and change those that are there: due time, priority, ttr, body."""

    RESERVE = "reserve"
    """Reserve jobs, bodies included."""

    DELETE = "delete"
    """Acknowledge, delete and cancel."""

    RELEASE = "release"
    """Give a reserved job back, or ask for more time."""

    BURY = "bury"
    """Bury a job: a reserved one with its token, or one that waits."""

    KICK = "kick"
    """Make buried and delayed jobs ready."""

    PEEK = "peek"
    """Read jobs, bodies included; a client without it cannot see that a job exists."""

    PAUSE = "pause"
    """Stop and resume the handing out of a topic's jobs."""

    STATS = "stats"
    """See figures: topics, counts, metrics."""

    ADMIN = "admin"
    """Set policies, clear topics, set a virtual clock."""

    WEBHOOK = "webhook"
    """Have jobs sent somewhere: to their own url besides `put`, by a policy besides `admin`."""
