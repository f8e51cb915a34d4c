"""Who is at the other end of a connection, as the kernel or a certificate says it.

A unix socket tells user and groups of the process that connected (`SO_PEERCRED`), and nobody can
pretend to be another. A certificate was checked by TLS before its name is read here.
"""

import socket
import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol

from delayd.limits import UNIX_GROUPS_MAX

_CREDENTIALS: Final = struct.Struct("iII")
"""struct ucred: process, user, group."""
_SO_PEERGROUPS: Final = 59
"""Of Linux 4.13 and newer; Python does not name it."""
_GROUP_BYTES: Final = 4

NAME_KINDS: Final = ("DNS", "URI", "email", "IP Address")
"""The kinds of a certificate's other names, in the order in which one is taken for its name."""


class Socket(Protocol):
    """A socket, or what asyncio shows of one."""

    @property
    def family(self) -> int:
        """AF_UNIX or another."""
        ...

    def getsockopt(self, level: int, option: int, length: int, /) -> bytes:
        """Return what the kernel says."""
        ...


class UnixPeer(NamedTuple):
    """The process that connected to a unix socket, as it was then."""

    uid: int
    gid: int
    gids: frozenset[int]
    """Its group, and those it is in besides."""


def unix_peer(connection: Socket) -> UnixPeer:
    """Return who connected to the unix socket. Raises `OSError` when it is none."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, gid = _CREDENTIALS.unpack(raw)
    return UnixPeer(uid, gid, frozenset({gid, *_more_groups(connection)}))


def _more_groups(connection: Socket) -> tuple[int, ...]:
    """Return the groups beyond the first; none where the kernel does not tell them."""
    try:
        raw = connection.getsockopt(
            socket.SOL_SOCKET, _SO_PEERGROUPS, UNIX_GROUPS_MAX * _GROUP_BYTES
        )
    except OSError:
        return ()
    return struct.unpack(f"{len(raw) // _GROUP_BYTES}I", raw)


def certificate_name(certificate: Mapping[str, Any]) -> str:
    """Return a name for whom a certificate was made out to, as `SSLSocket.getpeercert` shows it.

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
