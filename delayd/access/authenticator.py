"""Authenticates the clients of both front ends.

    accepted         identify(socket, certificate)   a principal, or None: a token is needed
    a token sent     login(token, peer, now_ms)      a principal, or None: wrong
                     delay_ms(peer, now_ms)          how late to say so
    later            renewed(principal)              None: the token was revoked or expired

Who needs a token:

    tokens   lists of unix users   a TCP connection   a unix socket
    no       no                    everybody          everybody (its mode decides)
    yes      no                    by token           by token
    no       yes                   everybody          users on a list only
    yes      yes                   by token           users on a list; others by token

Where client certificates are required, TLS has checked them before. Then a connection without a
token has the certificate's name and may do everything; with tokens it needs both. Failures count
for both front ends together. Only a wrong token is answered late: a valid one from the same address
is not, or others behind the same router could slow it down.
"""

import socket
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from delayd.access.errors import TokensInvalid
from delayd.access.principal import EVERYBODY, Principal
from delayd.access.token_usage import TokenUsage, days_of
from delayd.access.wrong_tokens import WrongTokens, network
from delayd.clock import system_wall_ms
from delayd.moments import time_text
from delayd.net.peers import UnixPeer, certificate_name, unix_peer

if TYPE_CHECKING:
    from delayd.access.tokens import Tokens


def _ignore(*_arguments: object) -> None:
    """Do nothing."""


class Authenticator:
    """One per daemon. `wall_ms` reads the wall clock, by which tokens expire."""

    def __init__(
        self,
        tokens: "Tokens | None" = None,
        *,
        unix_uids: Collection[int] | None = None,
        unix_gids: Collection[int] | None = None,
        wall_ms: Callable[[], int] = system_wall_ms,
    ) -> None:
        """Require these tokens; None: require none."""
        self.tokens = tokens
        self._has_lists = unix_uids is not None or unix_gids is not None
        self._uids = frozenset(unix_uids or ())
        self._gids = frozenset(unix_gids or ())
        self._wall_ms = wall_ms
        self._wrong_tokens = WrongTokens()
        self.on_guessing: Callable[[str], object] = _ignore
        """Called with each address whose wrong tokens are answered late from now on."""
        self.on_unlisted: Callable[[UnixPeer], object] = _ignore
        """Called with each user of a unix socket who is on no list, where there are no tokens."""
        self.on_failed_handshake: Callable[[str, Exception], object] = _ignore
        """Called by the front ends for each failed TLS handshake, with address and reason."""
        self._can_keep_days = True
        path = "" if tokens is None else tokens.path
        self.usage = TokenUsage(days_of(path) if path else None)

    @property
    def needs_token(self) -> bool:
        """Whether any client needs authentication; False: all are EVERYBODY."""
        return self.tokens is not None or self._has_lists

    def identify(
        self, connection: socket.socket | None, certificate: Mapping[str, Any] | None = None
    ) -> Principal | None:
        """Return the principal of a new connection; None: a token is needed.

        `certificate` is the client's, if TLS has required and checked one.
        """
        if not self.needs_token and not certificate:
            return EVERYBODY
        if connection is not None and connection.family == socket.AF_UNIX and self._has_lists:
            peer = unix_peer(connection)
            if peer.uid in self._uids or peer.gids & self._gids:
                return Principal(f"uid {peer.uid}")
            if self.tokens is None:
                self.on_unlisted(peer)
            return None
        if self.tokens is not None:
            return None
        if certificate:
            return Principal(f"certificate {certificate_name(certificate)}")
        return EVERYBODY

    def login(self, token: str, peer: str, now_ms: int) -> Principal | None:
        """Return the token's principal; None: it is invalid, and counted for that address.

        `peer` is the address without the port; `now_ms` any clock that never goes back.
        """
        if not self.needs_token:
            return EVERYBODY
        wall_ms = self._wall_ms()
        principal = None
        if self.tokens is not None:
            principal = self.tokens.find(token, wall_ms / 1_000)
        if principal is None:
            if self._wrong_tokens.note(peer, now_ms):
                self.on_guessing(network(peer))
            return None
        self.usage.note(principal.token_id, wall_ms)
        return principal

    def expiry(self, token: str) -> str:
        """Return when this token expired, in a sentence; empty if it has not, or is unknown."""
        wall_s = self._wall_ms() / 1_000
        ended_s = None if self.tokens is None else self.tokens.ended_s(token, wall_s)
        return "" if ended_s is None else f"the token expired at {time_text(ended_s)}"

    def delay_ms(self, peer: str, now_ms: int) -> int:
        """Return how long the answer to a wrong token has to wait."""
        return self._wrong_tokens.delay_ms(peer, now_ms)

    def renewed(self, principal: Principal) -> Principal | None:
        """Return the principal as it is now; None: the token was revoked or expired.

        For long connections. A client that needed no token stays admitted.
        """
        if not principal.token_id:
            return principal
        if self.tokens is None:
            return None
        return self.tokens.renewed(principal, self._wall_ms() / 1_000)

    def reload(self) -> tuple[str, ...]:
        """Read the tokens again; a bad file keeps the old ones. Return what is wrong with it."""
        if self.tokens is None or not self.tokens.path:
            return ()
        from delayd.access.tokens import Tokens  # noqa: PLC0415 - where there are any it is loaded

        try:
            self.tokens = Tokens.load(self.tokens.path)
        except TokensInvalid as error:
            return error.errors
        return ()

    def write_usage(self) -> str:
        """Write the days on which tokens were used, if there is a new one; for once a minute.

        Return why it cannot be done, the first time; empty otherwise.
        """
        if self.tokens is None or not self.tokens.path:
            return ""
        try:
            self.usage.write(self.tokens.path, {entry.id for entry in self.tokens.entries})
        except OSError as error:
            is_known, self._can_keep_days = not self._can_keep_days, False
            return "" if is_known else error.strerror or str(error)
        self._can_keep_days = True
        return ""
