"""Processes of delayd that are forked from one that has imported it.

    process = start([sys.executable, "-m", "delayd", "serve", ...], stdin=..., stdout=..., ...)

The tests start six hundred daemons. One that is forked takes 20 ms of a processor until it is
ready, and 40 with HTTP, where it would take 80 and 450; it is the real one from `delayd.__main__`
on, with its own descriptors, variables and directory. `start` is `subprocess.Popen` for what cannot
be forked: another command, an interpreter with flags or variables of its own, a tracer before the
command. So what only a start from nothing does is proved where one of these is used, as in
`test_stopping.py`, `test_optimized.py`, `test_packaging.py` and `test_guides.py` of `integration`.

Each process has a parent of its own, which waits for it and tells how it ended:

    worker of pytest ── socket ── fork server ── one supervisor for each ── delayd
           └──────────────── socket: its pid, then its exit status ───┘
"""

import fcntl
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, NoReturn

from delayd import __main__ as delayd_main

ROOT: Final = Path(__file__).parents[2]
SCRIPTS: Final = Path(sysconfig.get_path("scripts"))
ENTRIES: Final[Mapping[tuple[str, ...], str]] = {
    (sys.executable, "-m", "delayd"): "main",
    (str(SCRIPTS / "delayd"),): "main",
    (str(SCRIPTS / "delayd-beanstalkd"),): "beanstalkd",
}
"""How a command begins, and what it calls in `delayd.__main__`."""
IMPORTED: Final = (
    *("delayd.cli.daemon", "delayd.service", "delayd.journal.file_log", "delayd.commit"),
    *("delayd.snapshots", "delayd.push.opening", "delayd.push.webhook", "delayd.metrics"),
    *("delayd.http.server", "delayd.http.api", "delayd.cli.main", "delayd.cli.beanstalkd"),
    *("delayd.standby", "delayd.postgres.postgres_log"),
)
AT_START: Final = ("PYTHON", "LD_", "LC_", "LANG", "MALLOC_", "FAKETIME", "SSL_", "OPENSSL_")
"""Variables that an interpreter or the system's libraries read once begin so."""
MESSAGE_BYTES_MAX: Final = 1 << 17
STANDARD: Final = (0, 1, 2)
SPARE_FD: Final = 512
"""Where descriptors are put aside while they get their numbers."""
NUMBER: Final = struct.Struct("=i")
ENDED: Final = b"."
"""What a supervisor says when the process has ended, and is answered when somebody waits for it.
Until then it keeps its pid, like any child."""


class ForkedProcess(subprocess.Popen[bytes]):
    """A process whose parent is its supervisor, which waits for it when this does."""

    def __init__(
        self, args: Sequence[str], supervisor: socket.socket, stdout: IO[bytes] | None
    ) -> None:
        self.args = args
        self.stdin = self.stderr = None
        self.stdout = stdout
        self.returncode: int | None = None
        self._supervisor = supervisor
        self._reading = threading.Lock()
        (self.pid,) = NUMBER.unpack(supervisor.recv(NUMBER.size))

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, and return its exit code. Raises subprocess.TimeoutExpired."""
        # Another thread may send it a signal meanwhile, and so look whether it has ended.
        if self.returncode is None and not select.select([self._supervisor], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        with self._reading:
            if self.returncode is None:
                assert self._supervisor.recv(1) == ENDED
                self._supervisor.sendall(ENDED)
                (status,) = NUMBER.unpack(self._supervisor.recv(NUMBER.size))
                self._supervisor.close()
                self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode

    def poll(self) -> int | None:
        """Return its exit code if it has ended."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, sig: int) -> None:
        """Send it a signal if it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, sig)


class _Server:
    """The fork server of this process, started when it is first used."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.variables = variables_at_start(os.environ)
        with theirs:
            command = [sys.executable, "-m", "tests.rigs.fork_server", str(theirs.fileno())]
            # It ends with the channel, and so with this process, however that ends.
            nothing = subprocess.DEVNULL
            self._process = subprocess.Popen(
                command, cwd=ROOT, pass_fds=[theirs.fileno()], stdin=nothing, stdout=nothing
            )

    def fork(self, request: Mapping[str, object], fds: Sequence[int]) -> socket.socket:
        """Have a process forked; return what its supervisor says."""
        ours, theirs = socket.socketpair()
        with theirs:
            message = json.dumps(request).encode()
            socket.send_fds(self._channel, [message], [theirs.fileno(), *fds])
        return ours

    def stop(self) -> None:
        """End it; processes that it has forked go on."""
        self._channel.close()
        self._process.wait()


_servers: dict[int, _Server] = {}
"""By the number of the process: a fork of a test has none."""


def own_server() -> _Server:
    """Return the fork server of this process, started if there is none yet."""
    pid = os.getpid()
    if pid not in _servers:
        _servers[pid] = _Server()
    return _servers[pid]


def stop() -> None:
    """End the fork server of this process, if it has one."""
    server = _servers.pop(os.getpid(), None)
    if server is not None:
        server.stop()


def variables_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    """Return those of the variables that only a start can heed."""
    return {name: environment[name] for name in environment if name.startswith(AT_START)}


def start(
    command: Sequence[str],
    *,
    stdin: int,
    stdout: int | IO[bytes],
    stderr: int | IO[bytes],
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a process like `subprocess.Popen`, or fork it where that is the same."""
    environment = dict(os.environ if env is None else env)
    begins = next((words for words in ENTRIES if tuple(command[: len(words)]) == words), None)
    server = None if begins is None else own_server()
    if begins is None or server is None or variables_at_start(environment) != server.variables:
        return subprocess.Popen(
            command, stdin=stdin, stdout=stdout, stderr=stderr, cwd=cwd, env=env, pass_fds=pass_fds
        )
    assert stdin == subprocess.DEVNULL
    request = {
        "entry": ENTRIES[begins],
        "argv": [begins[-1], *command[len(begins) :]],
        "cwd": os.fspath(cwd or os.getcwd()),
        "environment": environment,
        "fds": [*STANDARD, *pass_fds],
    }
    ours, theirs = os.pipe() if stdout == subprocess.PIPE else (None, None)
    with open(os.devnull, "rb") as nothing:
        output = theirs if theirs is not None else fileno_of(stdout)
        errors = output if stderr == subprocess.STDOUT else fileno_of(stderr)
        supervisor = server.fork(request, [nothing.fileno(), output, errors, *pass_fds])
    if theirs is not None:
        os.close(theirs)
    return ForkedProcess(command, supervisor, None if ours is None else os.fdopen(ours, "rb"))


def fileno_of(file: int | IO[bytes]) -> int:
    """Return the descriptor."""
    return file if isinstance(file, int) else file.fileno()


# --- In the fork server --------------------------------------------------------------------------


def next_request(channel: socket.socket) -> dict[str, Any] | None:
    """Serve; return once in each process that is to be delayd, and in the end with None."""
    while True:
        message, fds, _, _ = socket.recv_fds(channel, MESSAGE_BYTES_MAX, SPARE_FD)
        if not message:
            return None
        if os.fork() == 0:
            told_fd, *own_fds = fds
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            child = os.fork()
            if child:
                channel.close()
                for fd in own_fds:
                    os.close(fd)
                supervise(child, socket.socket(fileno=told_fd))
            channel.detach()
            request: dict[str, Any] = json.loads(message)
            give_numbers(dict(zip(request["fds"], own_fds, strict=True)))
            return request
        for fd in fds:
            os.close(fd)


def supervise(child: int, told: socket.socket) -> NoReturn:
    """Tell its pid, wait for it as the other side does, tell its status, and end."""
    try:
        told.sendall(NUMBER.pack(child))
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        told.sendall(ENDED)
        told.recv(1)
        told.sendall(NUMBER.pack(os.waitpid(child, 0)[1]))
    finally:
        os._exit(0)  # nothing of the server is taken down here


def give_numbers(fds: Mapping[int, int]) -> None:
    """Give each descriptor its number, and close all others."""
    aside = {number: fcntl.fcntl(fd, fcntl.F_DUPFD, SPARE_FD) for number, fd in fds.items()}
    os.closerange(3, SPARE_FD)
    for number, fd in aside.items():
        os.dup2(fd, number)
    os.closerange(SPARE_FD, 2 * SPARE_FD)


def main() -> None:
    """Be a fork server, and in each of its children delayd."""
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who stops the tests ends what they started
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the supervisors
    request = next_request(socket.socket(fileno=int(sys.argv[1])))
    if request is None:
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    os.chdir(request["cwd"])
    sys.argv = request["argv"]
    try:
        getattr(delayd_main, request["entry"])()
    except SystemExit as end:
        if isinstance(end.code, int):
            leave(end.code)
        raise


def leave(code: int) -> NoReturn:
    """End as an interpreter does that has nothing to take down: that takes longer than a start."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
