"""Addresses to listen on, and the sockets that listen on them.

An address is parsed once, at the edge, from the form in which people write it: `HOST:PORT`,
`[HOST]:PORT` or `unix:PATH`. From then on it is a `TcpAddress` or a `UnixAddress`, which `str()`
writes in the same form. A `Listener` is a socket opened here, opened on a unix path, or passed by
systemd (`LISTEN_FDS`).

A unix path may be left behind by a daemon that was killed. It is replaced only when no process
answers on it, so a second daemon never takes the path away from a running one.

>>> parse_address("127.0.0.1:11300")
TcpAddress(host='127.0.0.1', port=11300)
>>> str(parse_address("[::1]:0"))
'[::1]:0'
>>> str(parse_address("unix:/run/delayd/line.sock"))
'unix:/run/delayd/line.sock'

The module imports little: a process that must listen soon after exec imports it before all else.
"""

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from delayd.limits import LISTEN_BACKLOG, UNIX_PATH_BYTES_MAX
from delayd.text import parse_whole

if TYPE_CHECKING:
    from ipaddress import IPv4Address, IPv6Address

UNIX_PREFIX: Final = "unix:"
FIRST_INHERITED_FD: Final = 3
"""The first socket that systemd passes (sd_listen_fds(3))."""

UNIX_MODE_DEFAULT: Final = 0o660
"""Owner and group may connect: who can write to the socket can use the daemon."""


class AddressInvalid(ValueError):
    """The text is not an address that can be listened on."""


class CannotListen(Exception):
    """An address cannot be listened on; the message names it and says why."""

    def __init__(self, address: object, reason: str) -> None:
        super().__init__(f"cannot listen on {address}: {reason}")


class TcpAddress(NamedTuple):
    """A host, by name or number and without brackets, and a port; port 0 lets the system choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class UnixAddress(NamedTuple):
    """The path of a unix socket."""

    path: str

    def __str__(self) -> str:
        return UNIX_PREFIX + self.path


Address = TcpAddress | UnixAddress

LINE_LISTEN_DEFAULT: Final = TcpAddress("127.0.0.1", 11300)
HTTP_LISTEN_DEFAULT: Final = TcpAddress("127.0.0.1", 11301)


class Listener:
    """A non-blocking socket and the real address it listens on, or will."""

    def __init__(
        self,
        listening: socket.socket,
        address: Address,
        *,
        made: tuple[int, int] | None = None,
    ) -> None:
        """`made`: the device and inode of the socket file, if it was made here."""
        self.socket = listening
        self.address = address
        self._made = made

    def listen(self) -> None:
        """Let clients connect, if it was opened without. Raises `CannotListen`."""
        try:
            self.socket.listen(LISTEN_BACKLOG)
        except OSError as error:
            raise CannotListen(self.address, _reason(error)) from error

    def close(self) -> None:
        """Stop listening and remove a unix path that was created here. May be called twice."""
        if self._made and isinstance(self.address, UnixAddress):
            # Before the close: while we still answer no other process takes the path, unless our
            # file was removed. Then it may be another's, but no other has the number of ours.
            with contextlib.suppress(OSError):
                if _file_at(self.address.path) == self._made:
                    os.unlink(self.address.path)
        self._made = None
        self.socket.close()


class Listeners(NamedTuple):
    """Everything the service accepts connections on, by what is spoken there."""

    line: tuple[Listener, ...] = ()
    http: tuple[Listener, ...] = ()

    def close(self) -> None:
        """Close them all."""
        for listener in (*self.line, *self.http):
            listener.close()


def parse_address(text: str) -> Address:
    """Read `HOST:PORT`, `[HOST]:PORT` or `unix:PATH`.

    Raises `AddressInvalid`, whose message is the rule that was broken.
    """
    if text.startswith(UNIX_PREFIX):
        return _parse_unix(text.removeprefix(UNIX_PREFIX))
    host, colon, port_text = text.rpartition(":")
    if not colon:
        raise AddressInvalid("must be HOST:PORT or unix:PATH")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise AddressInvalid("must have an IPv6 host in brackets, as in [::1]:11300")
    return tcp_address(host, port_text)


def tcp_address(host: str, port_text: str) -> TcpAddress:
    """Put an address together from its parts. Raises `AddressInvalid`."""
    if not host or not host.isascii() or any(not c.isprintable() or c in " []/" for c in host):
        raise AddressInvalid("must have a host before the port, by name or number")
    port = parse_whole(port_text, 5)
    if port is None or port > 65_535:
        raise AddressInvalid("must have a port from 0 to 65535")
    return TcpAddress(host, port)


def _parse_unix(path: str) -> UnixAddress:
    if not path or "\0" in path:
        raise AddressInvalid("must have a path after unix:")
    if len(os.fsencode(path)) > UNIX_PATH_BYTES_MAX:
        raise AddressInvalid(f"must have a path of at most {UNIX_PATH_BYTES_MAX} bytes")
    return UnixAddress(path)


def ip_address_of(host: str) -> "IPv4Address | IPv6Address | None":
    """Return the address that a host is; None for a name. An IPv4 one in IPv6 form is IPv4.

    >>> ip_address_of("::ffff:127.0.0.1"), ip_address_of("localhost")
    (IPv4Address('127.0.0.1'), None)
    """
    import ipaddress  # noqa: PLC0415 - delayd-beanstalkd listens before it is needed

    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def is_local(address: Address) -> bool:
    """Whether only this machine can reach the address.

    A name other than localhost counts as reachable from outside: what it means can change.
    """
    if isinstance(address, UnixAddress) or address.host in {"localhost", "127.0.0.1"}:
        return True
    ip_address = ip_address_of(address.host)
    return ip_address is not None and ip_address.is_loopback


def open_listener(
    address: Address, *, unix_mode: int = UNIX_MODE_DEFAULT, listens: bool = True
) -> Listener:
    """Listen on the address. Raises `CannotListen`, which names it.

    Unless it `listens` the address is only taken: clients are refused until `Listener.listen`.
    """
    if isinstance(address, UnixAddress):
        opened = _open_unix(address, unix_mode)
    else:
        opened = _open_tcp(address)
    if listens:
        try:
            opened.listen()
        except CannotListen:
            opened.close()
            raise
    return opened


def _open_tcp(address: TcpAddress) -> Listener:
    reason = "the host has no address"
    for family, where in _resolve(address):
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            # Without it a restart has to wait until the kernel has dropped the old connections.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(where)
            return _bound(listening)
        except OSError as error:
            listening.close()
            reason = _reason(error)
    raise CannotListen(address, reason)


def _resolve(address: TcpAddress) -> list[tuple[int, Any]]:
    """List the places to try, best first."""
    try:
        # As bytes: for a text Python would import its codec of international names.
        host = address.host.encode()
        found = socket.getaddrinfo(
            host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise CannotListen(address, f"the host cannot be found: {_reason(error)}") from error
    return [(family, where) for family, _, _, _, where in found]


def _open_unix(address: UnixAddress, mode: int) -> Listener:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            _bind_unix(listening, address.path, mode)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            _remove_stale(address)
            _bind_unix(listening, address.path, mode)
        return _bound(listening, made=_file_at(address.path))
    except OSError as error:
        listening.close()
        raise CannotListen(address, _reason(error)) from error
    except CannotListen:
        listening.close()
        raise


def _bind_unix(listening: socket.socket, path: str, mode: int) -> None:
    # By the umask, not by chmod afterwards: others could connect in between.
    before = os.umask(0o777 & ~mode)
    try:
        listening.bind(path)
    finally:
        os.umask(before)


def _remove_stale(address: UnixAddress) -> None:
    """Remove the socket file of a daemon that is gone. Raises `CannotListen` when it is not."""
    if not stat.S_ISSOCK(os.lstat(address.path).st_mode):
        raise CannotListen(address, "the path exists and is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        # Without waiting: a daemon with a full backlog answers EAGAIN, and that is an answer.
        probe.setblocking(False)
        if probe.connect_ex(address.path) != errno.ECONNREFUSED:
            raise CannotListen(address, _reason(OSError(errno.EADDRINUSE, "")))
    os.unlink(address.path)


def _file_at(path: str) -> tuple[int, int]:
    """Return the device and inode of what is at the path. Raises OSError."""
    status = os.lstat(path)
    return status.st_dev, status.st_ino


def _bound(bound: socket.socket, *, made: tuple[int, int] | None = None) -> Listener:
    bound.setblocking(False)
    return Listener(bound, address_of(bound), made=made)


def address_of(bound: socket.socket) -> Address:
    """The real address of a bound socket: its port is never 0."""
    name = bound.getsockname()
    if bound.family == socket.AF_UNIX:
        return UnixAddress(os.fsdecode(name))
    return TcpAddress(name[0], name[1])


def _reason(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "the address is in use"
    return error.strerror or str(error)


def inherited_listeners(environment: Mapping[str, str], pid: int) -> Listeners:
    """Return the sockets that systemd opened for this process; usually there are none.

    A socket named `http` (`FileDescriptorName=`) speaks HTTP, any other the line protocol. Raises
    `CannotListen` for a descriptor that is not a listening stream socket.
    """
    if environment.get("LISTEN_PID") != str(pid):
        return Listeners()  # meant for a parent of ours, which did not clean up
    count_text = environment.get("LISTEN_FDS", "0")
    count = parse_whole(count_text)
    if count is None:
        raise CannotListen("LISTEN_FDS", f"{count_text!r} is not a number of sockets")
    names = environment.get("LISTEN_FDNAMES", "").split(":")
    line: list[Listener] = []
    http: list[Listener] = []
    for index in range(count):
        listener = _inherit(FIRST_INHERITED_FD + index)
        is_http = index < len(names) and names[index] == "http"
        (http if is_http else line).append(listener)
    return Listeners(tuple(line), tuple(http))


def _inherit(fd: int) -> Listener:
    name = f"inherited descriptor {fd}"
    try:
        os.set_inheritable(fd, False)
        inherited = socket.socket(fileno=fd)
    except OSError as error:
        raise CannotListen(name, _reason(error)) from error
    if inherited.type != socket.SOCK_STREAM or not inherited.getsockopt(
        socket.SOL_SOCKET, socket.SO_ACCEPTCONN
    ):
        inherited.detach()
        raise CannotListen(name, "it is not a listening stream socket")
    inherited.setblocking(False)
    return Listener(inherited, address_of(inherited))
