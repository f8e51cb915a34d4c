"""What clients of HTTP may take together, in numbers, bytes and time."""

from dataclasses import dataclass, fields

from delayd import limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Bounds of a server; `limits.py` gives the reasons."""

    connections_max: int = limits.CONNECTIONS_DEFAULT
    connections_per_ip_max: int = limits.HTTP_CONNECTIONS_PER_IP_DEFAULT
    unauthenticated_per_ip_max: int = limits.HTTP_UNAUTHENTICATED_PER_IP_DEFAULT
    header_ms: int = limits.HTTP_HEADER_MS_DEFAULT
    body_ms: int = limits.HTTP_BODY_MS_DEFAULT
    idle_ms: int = limits.HTTP_IDLE_MS_DEFAULT
    body_bytes_max: int = limits.HTTP_BODY_BYTES_DEFAULT
    held_bytes_max: int = limits.HTTP_HELD_BYTES_DEFAULT
    write_buffer_bytes_max: int = limits.WRITE_BUFFER_BYTES_DEFAULT


def bounds_of(config: object) -> Bounds:
    """Return the bounds of a configuration: `connections_max` is its `http_connections_max`, etc.

    It is not typed, since HTTP does not know the configuration of the whole daemon.
    """
    names = (field.name for field in fields(Bounds))
    return Bounds(**{name: getattr(config, f"http_{name}") for name in names})
