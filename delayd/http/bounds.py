"""How much one client may have and how long it may take, and what is said to those who want more.

The module refuses to know how that is counted.
"""

import enum
from dataclasses import dataclass, fields

from delayd import limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much and how long; `limits.py` says why."""

    connections_max: int = limits.CONNECTIONS_DEFAULT
    connections_per_ip_max: int = limits.HTTP_CONNECTIONS_PER_IP_DEFAULT
    strangers_per_ip_max: int = limits.HTTP_STRANGERS_PER_IP_DEFAULT
    header_ms: int = limits.HTTP_HEADER_MS_DEFAULT
    body_ms: int = limits.HTTP_BODY_MS_DEFAULT
    idle_ms: int = limits.HTTP_IDLE_MS_DEFAULT
    body_bytes_max: int = limits.HTTP_BODY_BYTES_DEFAULT
    held_bytes_max: int = limits.HTTP_HELD_BYTES_DEFAULT
    write_buffer_bytes_max: int = limits.WRITE_BUFFER_BYTES_DEFAULT


def bounds_of(config: object) -> Bounds:
    """Return what a configuration says: of `connections_max` its `http_connections_max`, and so on.

    It is not typed, since HTTP refuses to know the configuration of the whole daemon.
    """
    names = (field.name for field in fields(Bounds))
    return Bounds(**{name: getattr(config, f"http_{name}") for name in names})


class Deadline(enum.StrEnum):
    """What somebody took too long for."""

    HEADER = "header"
    BODY = "body"
    IDLE = "idle"
    ANSWER = "answer"
