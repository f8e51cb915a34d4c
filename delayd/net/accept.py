"""Accepting connections: both front ends take them off their listening sockets with this.

    readable ─► accept ─► on_connection(socket, address), a bounded number of times
                  └─ no descriptor: close the client by giving up a spare one; none even so: pause

A client for which there is no descriptor would wake the loop for ever if it were left in the
backlog. A connection that would use up the last descriptors is not kept either: the journal needs
some for its next files, and a daemon that cannot open them cannot acknowledge anything.
"""

import contextlib
import errno
import resource
import socket
from collections.abc import Callable, Iterable
from typing import Final, final

from delayd.limits import (
    ACCEPT_PAUSE_MS,
    DESCRIPTORS_MIN,
    DESCRIPTORS_RESERVED,
    DESCRIPTORS_RESERVED_SHARE,
    KEEPALIVE_S,
    TCP_USER_TIMEOUT_MS,
)

NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})


@final
class Acceptor:
    """Accepts from listening, non-blocking sockets, which their owner closes.

    `on_connection` gets each connection with its address, `per_turn` of them at once at most.
    `watch` has `accept` called when the descriptor is readable, and `unwatch` ends that.
    `call_later` calls a function after that many milliseconds, and `on_no_descriptor` is called for
    each lack of one.
    """

    def __init__(
        self,
        listeners: Iterable[socket.socket],
        on_connection: Callable[[socket.socket, object], object],
        per_turn: int,
        watch: Callable[[int], object],
        unwatch: Callable[[int], object],
        call_later: Callable[[int, Callable[[], object]], object],
        on_no_descriptor: Callable[[], object],
    ) -> None:
        self.on_connection = on_connection
        self.per_turn = per_turn
        self.watch = watch
        self.unwatch = unwatch
        self.call_later = call_later
        self.on_no_descriptor = on_no_descriptor
        self._listeners = {listener.fileno(): listener for listener in listeners}
        self._paused: set[int] = set()
        self._spare: socket.socket | None = socket.socket() if self._listeners else None
        """A spare descriptor, closed when there are no others; without listeners none is needed."""

    def open(self) -> None:
        """Accept from now on."""
        for descriptor in self._listeners:
            self.watch(descriptor)

    def accept(self, descriptor: int) -> bool:
        """Accept what waits at this descriptor; tell whether it is a listening one of ours."""
        listener = self._listeners.get(descriptor)
        if listener is None:
            return False
        for _ in range(self.per_turn):
            try:
                connection, address = listener.accept()
            except BlockingIOError:
                break
            except OSError as error:
                # Other errors of accept(2) concern one client that has disconnected again.
                if error.errno in NO_DESCRIPTORS:
                    self._close_one(descriptor, listener)
                break
            self.on_connection(connection, address)
        return True

    def _close_one(self, descriptor: int, listener: socket.socket) -> None:
        """Close a client for which there is no descriptor; if that fails too, pause."""
        self.on_no_descriptor()
        if self._spare is not None:
            self._spare.close()
            self._spare = None
        try:
            listener.accept()[0].close()
        except BlockingIOError:
            pass  # it has disconnected
        except OSError:
            self.unwatch(descriptor)
            self._paused.add(descriptor)
            self.call_later(ACCEPT_PAUSE_MS, lambda: self._resume(descriptor))
        with contextlib.suppress(OSError):
            self._spare = socket.socket()

    def _resume(self, descriptor: int) -> None:
        if descriptor in self._paused:
            self._paused.remove(descriptor)
            self.watch(descriptor)

    def close(self) -> None:
        """Accept no more; the listening sockets stay open. A second call does nothing."""
        for descriptor in self._listeners.keys() - self._paused:
            self.unwatch(descriptor)
        self._listeners.clear()
        self._paused.clear()
        if self._spare is not None:
            self._spare.close()


def prepare(sock: socket.socket) -> None:
    """Set what every connection needs: non-blocking, no delay, and detection of a dead peer."""
    sock.setblocking(False)
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, TCP_USER_TIMEOUT_MS)


def may_keep(descriptor: int) -> bool:
    """Tell whether a connection with this descriptor leaves enough of them for the journal.

    The lowest free one is always given, so a high one means that nearly all are in use. The limit
    is read each time (0.3 µs), since prlimit(1) can change it while we run.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return True
    return descriptor < limit - min(DESCRIPTORS_RESERVED, limit // DESCRIPTORS_RESERVED_SHARE)


def lack_of_descriptors() -> str:
    """Raise the limit of descriptors; say what is wrong with it, empty if it will do."""
    limit = raise_descriptor_limit()
    if limit == resource.RLIM_INFINITY or limit >= DESCRIPTORS_MIN:
        return ""
    return (
        f"the process may open only {limit} files and connections, and needs at least "
        f"{DESCRIPTORS_MIN}: raise the limit (ulimit -n, LimitNOFILE= of systemd)"
    )


def raise_descriptor_limit() -> int:
    """Raise the limit of descriptors as far as allowed; return it.

    The default is 1,024, for programs that use select(2) on any of them.
    """
    limit, limit_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != limit_max:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit_max, limit_max))
    return limit_max
