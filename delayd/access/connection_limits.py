"""Limits on connections: how many in all, from one address, and unauthenticated.

    accept ─► admit ─► (TLS ─►) identify ─► … login … ─► leave
               └─► Rejection

Each front end has one of these. Where no authentication is needed a peer is EVERYBODY at once.
Otherwise it is unauthenticated until it has shown a token, and an address may have only a limited
number of such connections. Local peers count only in all.
"""

import enum
import socket
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, final

from delayd.access.authenticator import Authenticator
from delayd.access.principal import EVERYBODY, Principal
from delayd.limits import (
    CONNECTIONS_DEFAULT,
    LINE_CONNECTIONS_PER_ADDRESS_MAX,
    LINE_UNAUTHENTICATED_PER_ADDRESS_MAX,
)
from delayd.net.accept import may_keep
from delayd.net.peers import name_of, origin_of


class Rejection(enum.StrEnum):
    """Why a connection was refused, or closed because it used too much of a shared resource."""

    CONNECTIONS = "connections"
    CONNECTIONS_PER_IP = "connections_per_ip"
    UNAUTHENTICATED_PER_IP = "unauthenticated_per_ip"
    DESCRIPTORS = "descriptors"
    HELD_BYTES = "held_bytes"
    PEER_NOT_ALLOWED = "peer_not_allowed"
    DATABASE_AWAY = "database_away"


def who_at(address: str, principal: Principal | None) -> str:
    """Return a client's name, if it has one, and its address.

    >>> who_at("10.0.0.7", Principal("mailer")), who_at("unix", EVERYBODY)
    ('mailer 10.0.0.7', 'unix')
    """
    if principal is None or principal is EVERYBODY:
        return address
    return f"{principal.name} {address}"


@final
class Peer:
    """The other end of a connection that was admitted."""

    __slots__ = ("address", "is_unauthenticated", "origin", "principal")

    def __init__(self, address: str, origin: str | None) -> None:
        self.address = address
        self.origin = origin
        """What its address counts as; None: a local one."""
        self.is_unauthenticated = False
        """It is counted among those of its origin without a valid token."""
        self.principal: Principal | None = EVERYBODY
        """None while it has not authenticated."""

    @property
    def who(self) -> str:
        """Its name, if it has shown one, and its address: for the history of attempts."""
        return who_at(self.address, self.principal)


@final
class ConnectionLimits:
    """Admits the connections of one front end, and counts them.

    The authenticator knows who peers are; by default no authentication is needed.
    """

    def __init__(
        self,
        authenticator: Authenticator | None = None,
        connections_max: int = CONNECTIONS_DEFAULT,
        per_address_max: int = LINE_CONNECTIONS_PER_ADDRESS_MAX,
        unauthenticated_per_address_max: int = LINE_UNAUTHENTICATED_PER_ADDRESS_MAX,
    ) -> None:
        self.authenticator = Authenticator() if authenticator is None else authenticator
        self.connections_max = connections_max
        self.per_address_max = per_address_max
        self.unauthenticated_per_address_max = unauthenticated_per_address_max
        self.count = 0
        """Connections that were admitted and have not left."""
        self._by_origin: Counter[str] = Counter()
        self._unauthenticated: Counter[str] = Counter()

    @property
    def has_tokens(self) -> bool:
        """Whether there are tokens that a client could show."""
        return self.authenticator.tokens is not None

    # --- Coming and going ------------------------------------------------------------------------

    def admit(self, address: object, descriptor: int) -> Peer | Rejection:
        """Admit an accepted connection; `address` is what accept(2) returned.

        A peer that was admitted must `leave`.
        """
        if self.count >= self.connections_max:
            return Rejection.CONNECTIONS
        if not may_keep(descriptor):
            return Rejection.DESCRIPTORS
        peer = Peer(name_of(address), origin_of(address))
        has_tokens = self.has_tokens
        if has_tokens:
            peer.principal = None
        if (origin := peer.origin) is not None:
            if self._by_origin[origin] >= self.per_address_max:
                return Rejection.CONNECTIONS_PER_IP
            if has_tokens:
                if self._unauthenticated[origin] >= self.unauthenticated_per_address_max:
                    return Rejection.UNAUTHENTICATED_PER_IP
                self._unauthenticated[origin] += 1
                peer.is_unauthenticated = True
            self._by_origin[origin] += 1
        self.count += 1
        return peer

    def identify(
        self, peer: Peer, sock: socket.socket, certificate: Mapping[str, Any] | None = None
    ) -> bool:
        """Note who the peer is by its socket, or a certificate that TLS has checked.

        Returns False for a peer that is on no list of unix users when there are no tokens.
        """
        peer.principal = self.authenticator.identify(sock, certificate)
        if peer.principal is None:
            return self.has_tokens
        self.authenticated(peer)
        return True

    def authenticated(self, peer: Peer) -> None:
        """Stop counting the peer as unauthenticated; a second call does nothing."""
        if peer.is_unauthenticated and peer.origin is not None:
            peer.is_unauthenticated = False
            _count_down(self._unauthenticated, peer.origin)

    def leave(self, peer: Peer) -> None:
        """Stop counting a peer that was admitted."""
        self.authenticated(peer)
        if peer.origin is not None:
            _count_down(self._by_origin, peer.origin)
        self.count -= 1

    def note_failed_handshake(self, peer: Peer, error: Exception) -> None:
        """Tell the authenticator of a TLS handshake that failed."""
        self.authenticator.on_failed_handshake(peer.address, error)

    def check(self, peers: Iterable[Peer]) -> None:
        """Raise `AssertionError` unless the counts are those of these peers."""
        of_all = list(peers)
        assert self.count == len(of_all)
        assert +self._by_origin == Counter(each.origin for each in of_all if each.origin)
        assert +self._unauthenticated == Counter(
            each.origin for each in of_all if each.is_unauthenticated
        )

    # --- Tokens ----------------------------------------------------------------------------------

    def login(self, peer: Peer, token: str, now_ms: int) -> int | None:
        """Authenticate the peer by the token; return None.

        If the token is wrong, return by how many milliseconds to delay the answer; the peer stays
        who it was before.
        """
        principal = self.authenticator.login(token, peer.address, now_ms)
        if principal is None:
            return self.authenticator.delay_ms(peer.address, now_ms)
        peer.principal = principal
        self.authenticated(peer)
        return None

    def is_valid(self, peer: Peer) -> bool:
        """Tell whether the peer's token is still valid; it may allow less than before."""
        if peer.principal is None:
            return True
        principal = self.authenticator.renewed(peer.principal)
        if principal is None:
            return False
        peer.principal = principal
        return True


def _count_down(counts: Counter[str], origin: str) -> None:
    """Count one less, and drop the origin with its last one."""
    counts[origin] -= 1
    if not counts[origin]:
        del counts[origin]
