"""Who comes in by the line's sockets: as whom, and how many from one address.

    accept ─► let_in ─► (handshake ─► recognise) ─► Caller ─► … ─► leave
                                                      └─ auth ─► introduce

Where nobody has to say who they are a caller is everybody at once. Otherwise it is a stranger until
it has shown a token, and an address that is not of this machine may have only so many of those.
"""

import socket
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from delayd.access.principal import EVERYBODY, Principal
from delayd.limits import (
    LINE_CONNECTIONS_PER_ADDRESS_MAX,
    LINE_STRANGERS_PER_ADDRESS_MAX,
)
from delayd.net.peers import name_of, origin_of

if TYPE_CHECKING:
    import ssl

    from delayd.access.authenticator import Authenticator


class TurnedAway(Exception):
    """Somebody is not let in; `reason` is what is counted."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class LinePeer:
    """Somebody at the other end of a connection."""

    __slots__ = ("is_stranger", "origin", "peer", "principal")

    def __init__(self, peer: str, origin: str | None) -> None:
        """Come from the address `peer`, which counts as `origin`; None: it is this machine."""
        self.peer = peer
        self.origin = origin
        self.is_stranger = False
        """It is counted as well among those of its origin that have shown no good token."""
        self.principal: Principal | None = EVERYBODY
        """Who it is; None while it has not said."""


class Door:
    """Lets callers in. One for a server."""

    def __init__(
        self, doorkeeper: "Authenticator | None" = None, context: "ssl.SSLContext | None" = None
    ) -> None:
        """Ask the doorkeeper who they are; None: nobody has to say.

        With a context everybody who does not come by a unix socket has to speak TLS.
        """
        self._doorkeeper = doorkeeper
        self.context = context
        self._callers: Counter[str] = Counter()
        self._strangers: Counter[str] = Counter()

    @property
    def asks(self) -> bool:
        """Whether there are tokens that somebody could show."""
        return self._doorkeeper is not None and self._doorkeeper.tokens is not None

    # --- Coming and going ------------------------------------------------------------------------

    def let_in(self, sock: socket.socket, address: object) -> LinePeer:
        """Let somebody in whose connection was accepted; `address` is what `accept` has said.

        Raises `TurnedAway`. Everybody let in must `leave`.
        """
        caller = LinePeer(name_of(address), origin_of(address))
        if self._doorkeeper is not None:
            caller.principal = self._doorkeeper.greet(sock)
            if caller.principal is None and not self.asks:
                raise TurnedAway("PEER_NOT_ALLOWED")
        if caller.origin is not None:
            self._count(caller, caller.origin)
        return caller

    def _count(self, caller: LinePeer, origin: str) -> None:
        if self._callers[origin] >= LINE_CONNECTIONS_PER_ADDRESS_MAX:
            raise TurnedAway("TOO_MANY_OF_ADDRESS")
        if caller.principal is None:
            if self._strangers[origin] >= LINE_STRANGERS_PER_ADDRESS_MAX:
                raise TurnedAway("TOO_MANY_STRANGERS")
            self._strangers[origin] += 1
            caller.is_stranger = True
        self._callers[origin] += 1

    def recognise(
        self, caller: LinePeer, sock: socket.socket, certificate: Mapping[str, Any]
    ) -> None:
        """Note who has come, now that TLS has checked a certificate of his."""
        if self._doorkeeper is not None:
            caller.principal = self._doorkeeper.greet(sock, certificate)
            if caller.principal is not None:
                self._is_known(caller)

    def note_failed_handshake(self, caller: LinePeer, error: Exception) -> None:
        """Tell the doorkeeper of somebody whose handshake came to nothing."""
        if self._doorkeeper is not None:
            self._doorkeeper.on_unshaken(caller.peer, error)

    def leave(self, caller: LinePeer) -> None:
        """Forget somebody who was let in."""
        self._is_known(caller)
        if caller.origin is not None:
            _count_down(self._callers, caller.origin)

    def _is_known(self, caller: LinePeer) -> None:
        if caller.is_stranger and caller.origin is not None:
            caller.is_stranger = False
            _count_down(self._strangers, caller.origin)

    # --- Tokens ----------------------------------------------------------------------------------

    def login(self, caller: LinePeer, token: str, elapsed_ms: int) -> int | None:
        """Take the caller for whom the token says it is; return None.

        If it is nobody's, return how many milliseconds later that is to be said; whoever the caller
        was it is still.
        """
        assert self._doorkeeper is not None
        principal = self._doorkeeper.admit(token, caller.peer, elapsed_ms)
        if principal is None:
            return self._doorkeeper.delay_ms(caller.peer, elapsed_ms)
        caller.principal = principal
        self._is_known(caller)
        return None

    def still_knows(self, caller: LinePeer) -> bool:
        """Look whether the caller's token is still good; tell if so. It may be good for less."""
        if self._doorkeeper is None or caller.principal is None:
            return True
        principal = self._doorkeeper.renewed(caller.principal)
        if principal is None:
            return False
        caller.principal = principal
        return True


def _count_down(counts: Counter[str], origin: str) -> None:
    """Forget one, and the origin with its last one."""
    counts[origin] -= 1
    if not counts[origin]:
        del counts[origin]
