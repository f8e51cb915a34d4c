"""How clients arrive: they are accepted, let in or turned away, and shake hands where there is TLS.

    listener ─► accept ─► Door.let_in ─┬─────────────────► welcome
                             │         └─► SecureSocket ─► shake … ─► welcome
                             └─ no room, too many of them: closed at once

Whoever shakes hands is no client yet: it costs no session, and what it can do is to be too slow.
Handshakes are the most expensive thing that a stranger can ask for, so a turn does a few of them.
"""

import contextlib
import select
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from delayd.limits import ACCEPT_PAUSE_MS, ACCEPTS_PER_TURN, HANDSHAKES_PER_TURN
from delayd.line.admission import Door, LinePeer, TurnedAway
from delayd.line.client import Wire
from delayd.line.read_timeouts import ReadTimeouts, Speaker
from delayd.line.stats import Stats
from delayd.net.peers import NO_DESCRIPTORS, may_keep, prepare

if TYPE_CHECKING:
    from delayd.net.tls_socket import SecureSocket

IN: Final = select.EPOLLIN
OUT: Final = select.EPOLLOUT
HANG_UP: Final = select.EPOLLRDHUP

NO_HANDSHAKE: Final = "TLS_HANDSHAKE"
"""Why they are turned away who speak no TLS, or none that is good enough."""

Welcome = Callable[[Wire, LinePeer, int | None], object]
"""Takes somebody in, whose events IN and HANG_UP are watched for; a time if it has been heard."""


class Handshake:
    """Somebody who was let in and does not speak TLS yet."""

    __slots__ = ("caller", "mask", "sock")

    def __init__(self, sock: "SecureSocket", caller: LinePeer) -> None:
        """Begin it."""
        self.sock = sock
        self.caller = caller
        self.mask = IN

    @property
    def incomplete_bytes(self) -> int:
        """It is in the middle of something, and nothing is known of its length."""
        return 0

    @property
    def is_heard(self) -> bool:
        """It is read from always."""
        return True


class LineAcceptor:
    """Those who are on their way in."""

    __slots__ = (
        "_door",
        "_epoll",
        "_has_room",
        "_listeners",
        "_patience",
        "_shakes_left",
        "_shaking",
        "_spare",
        "_stats",
        "_welcome",
    )

    def __init__(
        self,
        listeners: list[socket.socket],
        epoll: select.epoll,
        door: Door,
        patience: ReadTimeouts,
        stats: Stats,
        welcome: Welcome,
        *,
        has_room: Callable[[int], bool],
    ) -> None:
        """Accept from these sockets; `has_room` is asked whether beside so many one more may come.

        Descriptors are watched for with the `epoll`, whose owner calls `handle`.
        """
        self._listeners = {listener.fileno(): listener for listener in listeners}
        self._epoll = epoll
        self._door = door
        self._patience = patience
        self._stats = stats
        self._welcome = welcome
        self._has_room = has_room
        self._shaking: dict[int, Handshake] = {}
        self._shakes_left = HANDSHAKES_PER_TURN
        self._spare: socket.socket | None = socket.socket()
        """A descriptor to give up when there are no more; see `_turn_away`."""
        for fd in self._listeners:
            epoll.register(fd, IN)

    def begin_turn(self) -> None:
        """Let a turn's number of handshakes go on."""
        self._shakes_left = HANDSHAKES_PER_TURN

    def handle(self, fd: int, now_ms: int) -> None:
        """Deal with an event of a descriptor that may be ours."""
        listener = self._listeners.get(fd)
        if listener is not None:
            self._accept(listener)
        elif (handshake := self._shaking.get(fd)) is not None and self._shakes_left:
            self._shakes_left -= 1
            self._shake(handshake, now_ms)

    def stop(self) -> None:
        """Accept nobody any more, and close who has not come in yet."""
        for fd in self._listeners:
            self._epoll.unregister(fd)
        self._listeners.clear()
        for handshake in list(self._shaking.values()):
            self._drop(handshake)
        if self._spare is not None:
            self._spare.close()

    # --- Accepting -------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, address = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in NO_DESCRIPTORS:
                    self._turn_away(listener)
                return
            try:
                caller = self._let_in(sock, address)
            except (TurnedAway, OSError) as error:
                # OSError: it has gone already, and the kernel can say nothing of it any more.
                if isinstance(error, TurnedAway):
                    self._stats.note_refusal(error.reason)
                sock.close()
                continue
            if self._door.context is None or sock.family == socket.AF_UNIX:
                self._epoll.register(sock.fileno(), IN | HANG_UP)
                self._welcome(sock, caller, None)
            else:
                self._begin_handshake(sock, caller)

    def _let_in(self, sock: socket.socket, address: object) -> LinePeer:
        if not self._has_room(len(self._shaking)):
            raise TurnedAway("TOO_MANY_CONNECTIONS")
        if not may_keep(sock.fileno()):
            raise TurnedAway("NO_DESCRIPTORS")
        prepare(sock)
        return self._door.let_in(sock, address)

    def _turn_away(self, listener: socket.socket) -> None:
        """Close a connection for which there is no descriptor, by giving up a spare one for it.

        Left in the backlog it would wake the loop for ever; so if even that does not help, nobody
        is listened to for a while.
        """
        self._stats.note_refusal("NO_DESCRIPTORS")
        if self._spare is not None:
            self._spare.close()
            self._spare = None
        try:
            listener.accept()[0].close()
        except BlockingIOError:
            pass  # it has gone by itself
        except OSError:
            self._epoll.unregister(listener.fileno())
            self._patience.postpone(ACCEPT_PAUSE_MS, lambda: self._listen_again(listener))
        with contextlib.suppress(OSError):
            self._spare = socket.socket()

    def _listen_again(self, listener: socket.socket) -> None:
        if listener.fileno() in self._listeners:
            self._epoll.register(listener.fileno(), IN)

    # --- Handshakes ------------------------------------------------------------------------------

    def _begin_handshake(self, sock: socket.socket, caller: LinePeer) -> None:
        from delayd.net.tls_socket import SecureSocket  # noqa: PLC0415 (ssl takes 15 ms to load)

        assert self._door.context is not None
        handshake = Handshake(SecureSocket(sock, self._door.context), caller)
        self._shaking[sock.fileno()] = handshake
        self._epoll.register(sock.fileno(), handshake.mask)
        self._patience.note(handshake)

    def _shake(self, handshake: Handshake, now_ms: int) -> None:
        sock = handshake.sock
        try:
            if not sock.shake():
                self._wait_for(handshake, OUT if sock.has_pending else IN)
                return
            if certificate := sock.certificate:
                self._door.recognise(handshake.caller, sock.plain, certificate)
        except OSError as error:
            self._give_up(handshake, error)
            return
        except ValueError:  # ssl's word for a peer that was never there
            self._give_up(handshake, ConnectionError())
            return
        self._forget(handshake)
        self._epoll.modify(sock.fileno(), IN | HANG_UP)
        self._welcome(sock, handshake.caller, now_ms)

    def _wait_for(self, handshake: Handshake, mask: int) -> None:
        if mask != handshake.mask:
            handshake.mask = mask
            self._epoll.modify(handshake.sock.fileno(), mask)

    def lose_patience(self, speaker: Speaker) -> None:
        """Close somebody whose handshake takes too long."""
        assert isinstance(speaker, Handshake), "clients are their server's"
        self._give_up(speaker, ConnectionAbortedError("the handshake took too long"))

    def _give_up(self, handshake: Handshake, error: Exception) -> None:
        self._stats.note_refusal(NO_HANDSHAKE)
        self._door.note_failed_handshake(handshake.caller, error)
        self._drop(handshake)

    def _drop(self, handshake: Handshake) -> None:
        self._forget(handshake)
        self._epoll.unregister(handshake.sock.fileno())
        self._door.leave(handshake.caller)
        handshake.sock.close()

    def _forget(self, handshake: Handshake) -> None:
        del self._shaking[handshake.sock.fileno()]
        self._patience.forget(handshake)
