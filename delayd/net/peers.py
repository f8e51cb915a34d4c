"""The other end of a connection, as the kernel or a certificate names it.

Peers are counted by where they come from, and an IPv6 network counts as one: its owner has 2^64
addresses in it. A unix socket reports user and groups of the process that connected
(`SO_PEERCRED`), which cannot be forged. A certificate was checked by TLS before its name is read
here.

>>> origin_of(("192.0.2.7", 50_000)), origin_of(("::ffff:192.0.2.7", 50_000, 0, 0))
('192.0.2.7', '192.0.2.7')
>>> origin_of(("2001:db8:0:1::7", 50_000, 0, 0)), origin_of(("2001:db8:0:1:ffff::", 50_000, 0, 0))
('2001:db8:0:1::', '2001:db8:0:1::')
>>> origin_of(("127.0.0.5", 50_000)), origin_of(("::1", 50_000, 0, 0)), origin_of("")
(None, None, None)
"""

import errno
import select
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from delayd.limits import TROUBLE_LOG_MS, UNIX_GROUPS_MAX
from delayd.net.accept import NO_DESCRIPTORS
from delayd.net.addresses import ip_address_of

OUT_OF_RESOURCES: Final = NO_DESCRIPTORS | {errno.ENOBUFS, errno.ENOMEM}
"""What accept(2) fails with when the system has no space for one more connection."""

UNIX_PEER: Final = "unix"
"""The name of peers of unix sockets, which have no address."""

NETWORK_BITS: Final = 64
"""The length of the prefix of an IPv6 network, which has one owner."""

_CREDENTIALS: Final = struct.Struct("iII")
"""struct ucred: process, user, group."""
_SO_PEERGROUPS: Final = 59
"""Of Linux 4.13 and newer; Python does not name it."""
_GROUP_BYTES: Final = 4

NAME_KINDS: Final = ("DNS", "URI", "email", "IP Address")
"""The kinds of a certificate's other names, in the order in which one is taken for its name."""


def hears_nothing(connection: socket.socket) -> bool:
    """Tell whether nothing that is sent reaches the peer: it has closed, and not to send alone.

    Of TCP that is known when something was sent to it after it had closed.

    >>> here, there = socket.socketpair()
    >>> there.shutdown(socket.SHUT_WR)
    >>> hears_nothing(here), there.close(), hears_nothing(here), here.close()
    (False, None, True, None)
    """
    descriptor = connection.fileno()
    if descriptor < 0:
        return True
    poll = select.poll()
    poll.register(descriptor, 0)  # the two that are always reported, and nothing else
    return bool(poll.poll(0))


# --- Addresses -----------------------------------------------------------------------------------


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
    if host == "127.0.0.1":  # nearly all of them, for which nothing has to be imported
        return None
    address = ip_address_of(host)
    if address is None:
        return host
    if address.is_loopback:
        return None
    if address.version == 4:
        return str(address)
    import ipaddress  # noqa: PLC0415

    network = ipaddress.IPv6Network((int(address), NETWORK_BITS), strict=False)
    return str(network.network_address)


# --- Processes and certificates ------------------------------------------------------------------


class UnixPeer(NamedTuple):
    """The process that connected to a unix socket, as it was then."""

    uid: int
    gid: int
    gids: frozenset[int]
    """Its group, and those it is in besides."""


def unix_peer(connection: socket.socket) -> UnixPeer:
    """Return the process that connected to the unix socket. Raises `OSError` when it is none."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, gid = _CREDENTIALS.unpack(raw)
    return UnixPeer(uid, gid, frozenset({gid, *_more_groups(connection)}))


def _more_groups(connection: socket.socket) -> tuple[int, ...]:
    """Return the further groups; none where the kernel does not report them."""
    try:
        raw = connection.getsockopt(
            socket.SOL_SOCKET, _SO_PEERGROUPS, UNIX_GROUPS_MAX * _GROUP_BYTES
        )
    except OSError:
        return ()
    return struct.unpack(f"{len(raw) // _GROUP_BYTES}I", raw)


def certificate_name(certificate: Mapping[str, Any]) -> str:
    """Return the name in a certificate, as `SSLSocket.getpeercert` shows it.

    >>> subject = ((("organizationName", "Example"),), (("commonName", "worker 7"),))
    >>> certificate_name({"subject": subject})
    'worker 7'
    >>> certificate_name({"subject": subject, "subjectAltName": (("DNS", "w7.example.net"),)})
    'w7.example.net'
    """
    others = certificate.get("subjectAltName", ())
    for kind in NAME_KINDS:
        for name_kind, name in others:
            if name_kind == kind:
                return str(name)
    for part in certificate.get("subject", ()):
        for key, value in part:
            if key == "commonName":
                return str(value)
    return "without a name"


# --- Trouble with peers --------------------------------------------------------------------------


def is_peer_error(context: Mapping[str, object]) -> bool:
    """Tell whether an error of an event loop concerns one connection, or the system's limits.

    `context` is the argument of asyncio's exception handler. Everything else is a fault of ours.

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


def is_own_fault(context: Mapping[str, object]) -> bool:
    """Tell whether code of delayd took part in an error of an event loop.

    Sinks may be code of others, which leaves tasks and connections behind. `context` is the
    argument of asyncio's exception handler.

    >>> is_own_fault({"message": "Unclosed connection"})
    False
    """
    fault = context.get("exception")
    trace = fault.__traceback__ if isinstance(fault, BaseException) else None
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__", "").startswith("delayd."):
            return True
        trace = trace.tb_next
    return False


class RateLimited:
    """Allows one message of each kind in a minute, so that clients cannot fill the log.

    `now_ms` is a clock that never stops.

    >>> sparingly = RateLimited(iter([0, 1, 70_000]).__next__)
    >>> sparingly.may_log("reset"), sparingly.may_log("reset"), sparingly.may_log("reset")
    (True, False, True)
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._logged_ms: dict[str, int] = {}

    def may_log(self, kind: str) -> bool:
        """Tell whether it is time again for this kind; there must be few kinds."""
        now_ms = self._now_ms()
        if now_ms - self._logged_ms.get(kind, -TROUBLE_LOG_MS) < TROUBLE_LOG_MS:
            return False
        self._logged_ms[kind] = now_ms
        return True
