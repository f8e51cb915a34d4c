"""What both front ends owe the connections of their peers, whatever is spoken on them.

A connection gets its socket options here, so that news of a peer that has died comes in time. One
that would use up the last descriptors is not kept: the journal needs some for its next files, and a
daemon that cannot open them cannot acknowledge anything. Peers are counted by where they come from,
and an IPv6 network counts as one: its owner has 2^64 addresses in it.

>>> origin_of(("192.0.2.7", 50_000)), origin_of(("::ffff:192.0.2.7", 50_000, 0, 0))
('192.0.2.7', '192.0.2.7')
>>> origin_of(("2001:db8:0:1::7", 50_000, 0, 0)), origin_of(("2001:db8:0:1:ffff::", 50_000, 0, 0))
('2001:db8:0:1::', '2001:db8:0:1::')
>>> origin_of(("127.0.0.5", 50_000)), origin_of(("::1", 50_000, 0, 0)), origin_of("")
(None, None, None)

The module refuses to know any protocol.
"""

import errno
import resource
import socket
from collections.abc import Callable, Mapping
from typing import Final

from delayd.limits import (
    DESCRIPTORS_RESERVED,
    DESCRIPTORS_RESERVED_SHARE,
    KEEPALIVE_S,
    TCP_USER_TIMEOUT_MS,
    TROUBLE_LOG_MS,
)

NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})
OUT_OF_RESOURCES: Final = NO_DESCRIPTORS | {errno.ENOBUFS, errno.ENOMEM}
"""What accept(2) fails with when the system has no room for one more connection."""

UNIX_PEER: Final = "unix"
"""What peers of unix sockets are called: they have no address."""
_MAPPED: Final = b"\0" * 10 + b"\xff\xff"
"""How an IPv4 address begins in IPv6 clothes."""


def prepare(sock: socket.socket) -> None:
    """Set what every connection needs: no waiting, no delay, and news of a peer that has died."""
    sock.setblocking(False)
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, TCP_USER_TIMEOUT_MS)


def may_keep(descriptor: int) -> bool:
    """Tell whether a connection with this descriptor leaves enough of them to the journal.

    The lowest free one is always given, so a high one means that nearly all are in use. The limit
    is read each time (0.3 µs), since prlimit(1) can change it while we run.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return True
    return descriptor < limit - min(DESCRIPTORS_RESERVED, limit // DESCRIPTORS_RESERVED_SHARE)


def raise_descriptor_limit() -> int:
    """Let this process have as many descriptors as it may ask for; return how many that is.

    Shells give 1,024 by default, for the sake of programs that use select(2) on any of them.
    """
    limit, limit_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != limit_max:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit_max, limit_max))
    return limit_max


def name_of(peer: object) -> str:
    """Return the address of a peer, for messages and where failures are counted; "unix" has none.

    `peer` is what accept(2) says, as for `origin_of`.
    """
    return str(peer[0]) if isinstance(peer, tuple) else UNIX_PEER


def origin_of(peer: object) -> str | None:
    """Return where a peer comes from, as far as it is counted; None for those of this machine.

    `peer` is what accept(2) says: a host and a port, or anything else for a unix socket.
    """
    if not isinstance(peer, tuple) or len(peer) < 2:
        return None
    host = str(peer[0])
    if ":" not in host:
        return None if host.startswith("127.") else host
    packed = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
    if packed.startswith(_MAPPED):
        return origin_of((socket.inet_ntop(socket.AF_INET, packed[12:]), 0))
    if packed == b"\0" * 15 + b"\x01":
        return None
    return socket.inet_ntop(socket.AF_INET6, packed[:8] + b"\0" * 8)


def is_peer_error(context: Mapping[str, object]) -> bool:
    """Tell whether what an event loop complains of concerns one connection, or the system's limits.

    `context` is what asyncio hands to its exception handler. Everything else is a fault of ours.

    >>> is_peer_error({"message": "...", "exception": ConnectionResetError()})
    True
    >>> is_peer_error({"message": "...", "exception": KeyError("job")})
    False
    """
    fault = context.get("exception")
    if not isinstance(fault, OSError):
        return False
    if isinstance(fault, ConnectionError) or type(fault).__module__ == "ssl":
        return True
    return "transport" in context or ("socket" in context and fault.errno in OUT_OF_RESOURCES)


class RateLimited:
    """Lets one thing of each kind through in a minute, so that nobody fills the log from outside.

    >>> sparingly = RateLimited(iter([0, 1, 70_000]).__next__)
    >>> sparingly.may_log("reset"), sparingly.may_log("reset"), sparingly.may_log("reset")
    (True, False, True)
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        """Begin with nothing said; `now_ms` is a clock that never stands."""
        self._now_ms = now_ms
        self._said_ms: dict[str, int] = {}

    def may_log(self, kind: str) -> bool:
        """Tell whether it is time again for this kind; there must be few kinds."""
        now_ms = self._now_ms()
        if now_ms - self._said_ms.get(kind, -TROUBLE_LOG_MS) < TROUBLE_LOG_MS:
            return False
        self._said_ms[kind] = now_ms
        return True
