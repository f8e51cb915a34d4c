"""Facts for `delayd doctor`: this machine, its limits and files.

Nothing is judged here, and nothing is changed: the disk is measured with a file that has no name.
`delayd/cli/diagnosis.py` makes findings of the facts.
"""

import contextlib
import errno
import os
import platform
import resource
import socket
import ssl
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from delayd.clock import monotonic_ns
from delayd.net.addresses import Address, TcpAddress

if TYPE_CHECKING:
    from delayd.config import Config

SYNCS: Final = 20
SYNC_BYTES: Final = 4_096
PROBE_S: Final = 1.0
ANSWER_BYTES_MAX: Final = 4_096
CLOCK_SOURCE: Final = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
UNIT_PATHS: Final = tuple(
    f"{directory}/delayd.service"
    for directory in ("/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
)

PING: Final = b"GET /healthz HTTP/1.0\r\n\r\n"
LINE_PING: Final = b"get-policy default\r\n"

FREE: Final = "free"
DELAYD: Final = "delayd"
ANOTHER: Final = "another program"
SILENT: Final = "silent"


class FileFacts(NamedTuple):
    """A file or a directory that the configuration names."""

    name: str
    """The setting that names it, or `the configuration`."""
    path: str
    mode: int | None = None
    """None: it does not exist, or cannot be read."""
    uid: int = 0
    is_readable: bool = True


class DirectoryFacts(NamedTuple):
    """The data directory, or the nearest directory above it that exists."""

    path: str
    wanted: str
    """The path in the configuration."""
    is_directory: bool = True
    mode: int = 0o700
    uid: int = 0
    is_writable: bool = True
    holder: str = ""
    """The process that has locked it; empty: none."""
    file_system: str = ""
    free_bytes: int = 0
    sync_us: tuple[int, ...] = ()
    """How long each sync took."""
    sync_error: str = ""

    @property
    def is_there(self) -> bool:
        """Whether it is the data directory itself."""
        return self.path == self.wanted


class PortFacts(NamedTuple):
    """An address that the daemon is to listen on."""

    name: str
    """`line.listen` or `http.listen`."""
    address: str
    state: str
    """FREE, DELAYD, ANOTHER, SILENT, or the reason why it cannot be used."""


class Machine(NamedTuple):
    """All facts."""

    python: str
    uid: int
    files_max: int
    """Files and connections that a process may have open."""
    file_bytes_max: int
    """The longest that a file may get."""
    core_bytes_max: int
    clock_source: str
    has_kernel_sync: bool
    directory: DirectoryFacts
    files: tuple[FileFacts, ...]
    ports: tuple[PortFacts, ...]
    has_systemd: bool = False
    unit: str = ""
    """The file of the unit; empty: none is installed."""
    unit_state: str = ""
    """By systemd: active, inactive, failed."""


def machine(config: "Config", config_path: str | None) -> Machine:
    """Return the facts about this machine."""
    from delayd.journal.aio import open_kernel_sync

    kernel_sync = open_kernel_sync()
    if kernel_sync is not None:
        kernel_sync.close()
    has_systemd = os.path.isdir("/run/systemd/system")
    return Machine(
        python=platform.python_version(),
        uid=os.geteuid(),
        files_max=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        file_bytes_max=resource.getrlimit(resource.RLIMIT_FSIZE)[0],
        core_bytes_max=resource.getrlimit(resource.RLIMIT_CORE)[0],
        clock_source=first_line(CLOCK_SOURCE),
        has_kernel_sync=kernel_sync is not None,
        directory=directory_facts(str(config.data_dir)),
        files=tuple(named_files(config, config_path)),
        ports=tuple(ports(config)),
        has_systemd=has_systemd,
        unit=next(filter(os.path.exists, UNIT_PATHS), ""),
        unit_state=unit_state() if has_systemd else "",
    )


def first_line(path: str) -> str:
    """Return the first line of a file of the kernel's, empty if there is none."""
    with contextlib.suppress(OSError), open(path, encoding="utf-8") as file:
        return file.readline().strip()
    return ""


def file_facts(name: str, path: str) -> FileFacts:
    """Return the facts about a file."""
    try:
        found = os.stat(path)
    except OSError:
        return FileFacts(name, path)
    is_readable = os.access(path, os.R_OK)
    return FileFacts(name, path, stat.S_IMODE(found.st_mode), found.st_uid, is_readable)


def named_files(config: "Config", config_path: str | None) -> Iterator[FileFacts]:
    """Yield the facts about the configuration's file, and the files that it names."""
    for name, path in (
        ("the configuration", config_path),
        ("auth.tokens", config.auth_tokens),
        ("tls.certificate", config.tls_certificate),
        ("tls.key", config.tls_key),
        ("tls.client_ca", config.tls_client_ca),
        ("postgres.password_file", config.postgres_password_file),
    ):
        if path is not None:
            yield file_facts(name, path)


def directory_facts(data_dir: str) -> DirectoryFacts:
    """Return the facts about the data directory, or about the one that it would be made in."""
    from delayd.journal.directory import holder
    from delayd.journal.disk import RealDisk

    wanted = os.path.abspath(data_dir)
    path = wanted
    while not os.path.exists(path):
        path = os.path.dirname(path)
    found = os.stat(path)
    if not stat.S_ISDIR(found.st_mode):
        return DirectoryFacts(path, wanted, is_directory=False)
    disk = RealDisk()
    sync_us, sync_error = measure_syncs(path)
    return DirectoryFacts(
        path,
        wanted,
        mode=stat.S_IMODE(found.st_mode),
        uid=found.st_uid,
        is_writable=os.access(path, os.W_OK | os.X_OK),
        holder=holder(disk, path) if path == wanted else "",
        file_system=file_system_of(path),
        free_bytes=disk.free_bytes(path),
        sync_us=sync_us,
        sync_error=sync_error,
    )


def measure_syncs(directory: str) -> tuple[tuple[int, ...], str]:
    """Return how long some syncs take there, in microseconds; or why that cannot be measured."""
    taken = []
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            for _ in range(SYNCS):
                os.write(file.fileno(), bytes(SYNC_BYTES))
                begun_ns = monotonic_ns()
                os.fdatasync(file.fileno())
                taken.append((monotonic_ns() - begun_ns) // 1_000)
    except OSError as error:
        return (), str(error.strerror)
    return tuple(taken), ""


def file_system_of(path: str, mounts: str = "/proc/mounts") -> str:
    """Return the kind of the file system: `ext4`, `tmpfs`; empty if it is not known."""
    path = os.path.realpath(path)
    best, kind = "", ""
    with contextlib.suppress(OSError), open(mounts, encoding="utf-8") as file:
        for line in file:
            _device, point, found, *_rest = line.split(" ")
            is_above = point in {"/", path} or path.startswith(f"{point}/")
            if is_above and len(point) >= len(best):
                best, kind = point, found
    return kind


def ports(config: "Config") -> Iterator[PortFacts]:
    """Yield the facts about the addresses on which the daemon is to listen."""
    for name, address, has_tls, question, marks in (
        # beanstalkd has no policies, nor a reply that says that a token is needed.
        ("line.listen", config.line_listen, config.line_tls, LINE_PING, (b"OK ", b"UNAUTHORIZED")),
        ("http.listen", config.http_listen, config.http_tls, PING, (b"Server: delayd",)),
    ):
        if address is not None:
            state = port_state(address, question, marks, has_tls=has_tls)
            yield PortFacts(name, str(address), state)


def port_state(
    address: Address, question: bytes, marks: Sequence[bytes], *, has_tls: bool = False
) -> str:
    """Return FREE, DELAYD, ANOTHER (another program listens); or why it cannot be used.

    SILENT is who listens and says nothing: a delayd does so that wants a certificate or another
    user, has too many connections, or is busy.
    """
    if isinstance(address, TcpAddress):
        try:
            info = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
            with socket.socket(info[0], info[1]) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind(info[4])
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                return str(error.strerror)
        else:
            return FREE
    elif not os.path.exists(address.path):
        above = os.path.dirname(os.path.abspath(address.path))
        return FREE if os.access(above, os.W_OK) else f"nothing can be made in {above}"
    try:
        answer = answer_of(address, question, has_tls=has_tls)
    except ConnectionRefusedError:  # a unix socket that was left behind
        return FREE
    except ssl.SSLError:
        return ANOTHER
    except OSError:
        return SILENT
    if any(mark in answer for mark in marks):
        return DELAYD
    return ANOTHER if answer else SILENT


def answer_of(address: Address, question: bytes, *, has_tls: bool) -> bytes:
    """Send a request and return the beginning of the answer. Raises OSError.

    Over TLS whatever certificate there is will do: nothing secret is sent. Who wants one of us
    closes the connection after the handshake, or says so.
    """
    if isinstance(address, TcpAddress):
        connection = socket.create_connection((address.host, address.port), PROBE_S)
    else:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(PROBE_S)
    with connection:
        if not isinstance(address, TcpAddress):
            connection.connect(address.path)
        if not has_tls:
            connection.sendall(question)
            return connection.recv(ANSWER_BYTES_MAX)
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        with context.wrap_socket(connection) as wrapped, contextlib.suppress(ssl.SSLError):
            wrapped.sendall(question)
            return wrapped.recv(ANSWER_BYTES_MAX)
        return b""


def unit_state() -> str:
    """Return the state of the unit by systemd."""
    command = ("systemctl", "is-active", "delayd")
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        ran = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)  # noqa: S603
        return ran.stdout.strip()
    return ""
