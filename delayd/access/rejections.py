"""Who was turned away before anything could be said, told to whoever reads the log.

A front end that turns somebody away closes the connection, and its peer learns nothing: a worker
under another user, or without its certificate, just does not get in. So the log has a line, with
what is needed to find out who that is and nothing that could be a secret. Of each kind there is one
line a minute, since strangers must not fill the log; `delayd_refusals_total` counts them all. Who
guesses tokens is told of too, each address once while it does.

A peer that leaves in the middle of a handshake is not told of: that is how something looks whether
a port is open.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from delayd.logs import Log
from delayd.net.peers import RateLimited

if TYPE_CHECKING:
    from delayd.access.authenticator import Authenticator
    from delayd.net.peers import UnixPeer


class Rejections:
    """Writes the lines. `now_ms` is a clock that never stands."""

    def __init__(self, log: Log, now_ms: Callable[[], int]) -> None:
        """Begin with nothing told."""
        self._log = log
        self._sparingly = RateLimited(now_ms)

    def listen_to(self, authenticator: "Authenticator") -> None:
        """Be told by this authenticator."""
        authenticator.on_guessing = self.guessing
        authenticator.on_unlisted = self.unlisted
        authenticator.on_failed_handshake = self.failed_handshake

    def guessing(self, address: str) -> None:
        """Tell of an address that has begun to show too many wrong tokens: seldom by itself."""
        self._log.warning("wrong tokens come from an address: it is answered late", address=address)

    def unlisted(self, peer: "UnixPeer") -> None:
        """Tell of a user of a unix socket who is on no list, where there are no tokens."""
        if self._sparingly.may_log("unlisted"):
            self._log.warning(
                "a user of a unix socket was turned away, who is on none of the lists of auth",
                uid=peer.uid,
                gid=peer.gid,
            )

    def failed_handshake(self, address: str, error: Exception) -> None:
        """Tell of a handshake that came to nothing."""
        has_left = isinstance(error, ConnectionError)
        if (has_left and not isinstance(error, ConnectionAbortedError)) or not str(error):
            return
        if self._sparingly.may_log("unshaken"):
            self._log.warning("a TLS handshake failed", address=address, reason=reason_of(error))


def reason_of(error: Exception) -> str:
    """Return why a handshake failed, as OpenSSL calls it where it was TLS that failed.

    >>> reason_of(ConnectionAbortedError("it took too long"))
    'it took too long'
    """
    reason = str(getattr(error, "reason", None) or "").lower().replace("_", " ")
    detail = getattr(error, "verify_message", "")
    return ": ".join(filter(None, (reason, detail))) or str(error)
