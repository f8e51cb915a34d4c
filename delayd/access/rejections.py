"""Logs clients that were refused before the protocol began.

A front end that refuses a client closes the connection, and the client learns nothing: a worker
under another user, or without its certificate, just cannot connect. So the log has a line, with
what is needed to identify the client and nothing that could be a secret. Of each kind there is one
line a minute, so that no client can fill the log; `delayd_refusals_total` counts all. An address
that guesses tokens is logged too, once while it does.

A peer that disconnects during a handshake is not logged: probes that check whether a port is open
do that.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from delayd.log_lines import Log
from delayd.net.peers import RateLimited

if TYPE_CHECKING:
    from delayd.access.authenticator import Authenticator
    from delayd.net.peers import UnixPeer


class Rejections:
    """Writes the lines. `now_ms` is a clock that never stops."""

    def __init__(self, log: Log, now_ms: Callable[[], int]) -> None:
        self._log = log
        self._sparingly = RateLimited(now_ms)

    def listen_to(self, authenticator: "Authenticator") -> None:
        """Log what this authenticator reports."""
        authenticator.on_guessing = self.guessing
        authenticator.on_unlisted = self.unlisted
        authenticator.on_failed_handshake = self.failed_handshake

    def guessing(self, address: str) -> None:
        """Log an address that has begun to show too many wrong tokens; this is rare anyway."""
        self._log.warning(
            "wrong tokens come from an address: more of them are answered late", address=address
        )

    def unlisted(self, peer: "UnixPeer") -> None:
        """Log a user of a unix socket who is on no list, where there are no tokens."""
        if self._sparingly.may_log("unlisted"):
            self._log.warning(
                "a user of a unix socket was turned away: no list of auth has this user",
                uid=peer.uid,
                gid=peer.gid,
            )

    def failed_handshake(self, address: str, error: Exception) -> None:
        """Log a failed handshake."""
        has_left = isinstance(error, ConnectionError)
        if (has_left and not isinstance(error, ConnectionAbortedError)) or not str(error):
            return
        if self._sparingly.may_log("handshake"):
            self._log.warning("a TLS handshake failed", address=address, reason=reason_of(error))


def reason_of(error: Exception) -> str:
    """Return why a handshake failed, in OpenSSL's words if TLS failed.

    >>> reason_of(ConnectionAbortedError("it took too long"))
    'it took too long'
    """
    reason = str(getattr(error, "reason", None) or "").lower().replace("_", " ")
    detail = getattr(error, "verify_message", "")
    return ": ".join(filter(None, (reason, detail))) or str(error)
