"""`delayd bench`: the speed for one client on this machine, in a few seconds.

It speaks the line protocol over plain sockets to a daemon that is thrown away, so that the figures
are the daemon's and not a library's. `make bench-line` measures more, and against beanstalkd.
"""

import signal
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import click

from delayd.cli.parameters import command
from delayd.cli.tables import JSON_OPTION, Column, print_found
from delayd.cli.terminal import CommandFailed, complain
from delayd.client.signals import handled
from delayd.clock import NS_PER_S, monotonic_ns
from delayd.exits import Exit

if TYPE_CHECKING:
    from delayd.testing.daemon import Daemon

BODY: Final = b"x" * 100
IN_FLIGHT: Final = 100
COLUMNS: Final = (
    Column("measure", text_least=12),
    *(Column("per second"), Column("p50 ms", 2), Column("p99 ms", 1)),
)
JOBS_MAX: Final = 100_000
"""A measurement ends then, too, so that a fast machine does not fill its memory."""
RECEIVE_BYTES: Final = 1 << 16


class Measured(NamedTuple):
    """The figures of one row."""

    measure: str
    per_second: int
    p50_ms: float
    """How long one exchange took, which is one command, or as many as were in flight."""
    p99_ms: float


@command(
    "delayd bench",
    "delayd bench --within /var/lib/delayd --sync always    # the disk that matters",
    "delayd bench --seconds 5 --json",
)
@click.option(
    "--seconds", type=click.FloatRange(0.01, 60), default=1.0, help="How long each row takes: 1."
)
@click.option(
    "--sync",
    type=click.Choice(["always", "interval", "never"]),
    default="always",
    help="The sync policy: always.",
)
@click.option(
    "--within",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False),
    help="Where the directory of the jobs is made; by default where temporary files are.",
)
@JSON_OPTION
def bench(*, seconds: float, sync: str, within: str | None, as_json: bool) -> None:
    """Measure puts, and reserves with deletes, on a daemon that is thrown away.

    One connection on this machine, bodies of 100 bytes. With --sync always, each answer means that
    the job is on disk; --within chooses the disk.
    """
    from delayd.cli.machine import file_system_of
    from delayd.testing.daemon import DaemonNotStarted, running_daemon

    interrupts = handled(signal.default_int_handler, signal.SIGTERM)  # its daemon would go on
    try:
        with interrupts, running_daemon("--sync", sync, within=within) as daemon:
            where = data_dir_of(daemon)
            complain(f"sync {sync}, in {where} ({file_system_of(where) or 'unknown'})")
            rows = list(measurements(daemon, round(seconds * NS_PER_S)))
    except DaemonNotStarted as error:
        raise CommandFailed(Exit.OUR_FAULT, str(error)) from error
    print_found(rows, COLUMNS, Measured._asdict, as_json=as_json)


def data_dir_of(daemon: "Daemon") -> str:
    """Return where the daemon keeps its jobs."""
    words = list(map(str, daemon.process.args))  # type: ignore[arg-type]
    return words[words.index("--data-dir") + 1]


def measurements(daemon: "Daemon", ns: int) -> Iterator[Measured]:
    """Measure each row for so long."""
    put = b"put 65536 3600 60 %d\r\n%s\r\n" % (len(BODY), BODY)
    ready = put.replace(b" 3600 ", b" 0 ")
    with Line(daemon.address) as line:
        yield measured("put, one in flight", ns, lambda: line.ask(put, 1))
        yield measured(
            f"put, {IN_FLIGHT} in flight", ns, lambda: line.ask(put * IN_FLIGHT, IN_FLIGHT)
        )
        stock = 0
        while stock < JOBS_MAX // 10:
            stock += line.ask(ready * IN_FLIGHT, IN_FLIGHT)
        yield measured("reserve + delete", ns, line.consume, most=stock)


def measured(name: str, ns: int, exchange: Callable[[], int], most: int = JOBS_MAX) -> Measured:
    """Repeat an exchange, which returns how many operations it was."""
    taken_ns = []
    count = 0
    begun_ns = now_ns = monotonic_ns()
    while now_ns < begun_ns + ns and count < most:
        count += exchange()
        before_ns, now_ns = now_ns, monotonic_ns()
        taken_ns.append(now_ns - before_ns)
    taken_ns.sort()
    p50, p99 = (taken_ns[len(taken_ns) * share // 100] / 1e6 for share in (50, 99))
    return Measured(
        name, round(count * NS_PER_S / (now_ns - begun_ns)), round(p50, 2), round(p99, 2)
    )


class Line:
    """One connection of the line protocol."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._socket.close()

    def ask(self, commands: bytes, count: int) -> int:
        """Send commands with replies of one line each; return how many they were."""
        self._socket.sendall(commands)
        replies = self._receive(count)
        if replies.count(b"INSERTED") + replies.count(b"DELETED") != count:
            raise CommandFailed(Exit.OUR_FAULT, f"the daemon answered {replies[:80]!r}")
        return count

    def consume(self) -> int:
        """Reserve a job and delete it."""
        self._socket.sendall(b"reserve\r\n")
        head = self._receive(2)
        return self.ask(b"delete %s\r\n" % head.split(None, 2)[1], 1)

    def _receive(self, lines: int) -> bytes:
        received = b""
        while received.count(b"\r\n") < lines:
            data = self._socket.recv(RECEIVE_BYTES)
            if not data:
                raise CommandFailed(Exit.OUR_FAULT, "the daemon closed the connection")
            received += data
        return received
