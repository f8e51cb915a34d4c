"""Two servers given the same steps at the same moment; whatever they answer must be the same.

A step goes to the same connection of both sides. Before the next one, both have dealt with it, so
that both see one order of events across all connections. That a command waits, and is not merely
slow, the server says itself: its `stats` count as many waiting connections as there are without an
answer. That a closed connection is gone shows there too. The first side, the reference, decides
what is due; then the other must deliver it.

Example: connection 0 sends `reserve` and waits; connection 1 puts a job: both must now answer
connection 1 with the same id and wake connection 0 with the same job.

Steps hold job numbers as `{3}`, counted from the stream's first, so that a stream means the same on
servers that have served others before.
"""

import enum
import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Self

from tests.compat.masks import comparable
from tests.line_client import REPLY_S_MAX, Address, LineClient

# Refused by every server, without a trace in any counter.
PROBE: Final = b"kick-job 18446744073709551615\r\n"
PROBE_REPLY: Final = b"NOT_FOUND\r\n"
PATIENCE_S: Final = 60.0
SILENCE: Final = b"<nothing>"
CONTROL: Final = -1  # the connection number under which transcripts show it
TRANSCRIPT_LINES: Final = 24
SHOWN_BYTES: Final = 160
POURED_BYTES_SHOWN: Final = 4000

JOB_NUMBER: Final = re.compile(rb"\{(\d+)\}")
COUNTED: Final = re.compile(rb"\n(?:current|total)-connections: \d+")
CONNECTIONS: Final = re.compile(rb"\ncurrent-connections: (\d+)\n")
WAITING: Final = re.compile(rb"\ncurrent-waiting: (\d+)\n")
TIMED_RESERVE: Final = re.compile(rb"reserve-with-timeout\s*([+-]?\d+)")
# beanstalkd leaves what comes behind a wait in the socket, and cannot see the end of the connection
# behind a full one.
BEHIND_A_WAIT_BYTES_MAX: Final = 1000
# Not behind a command that may wait either: what changes whom it waits for, and `stats`, which
# would tell how often we have looked meanwhile.
NOT_BEHIND_A_WAIT: Final = (b"watch", b"ignore", b"reserve", b"quit", b"stats\r\n")

Distortion = Callable[[bytes], bytes]


class Act(enum.Enum):
    SEND = "sends"
    CLOSE = "closes"
    HALF_CLOSE = "half-closes"
    POUR = "sends, whatever that may be, and half-closes"


@dataclass(frozen=True, slots=True)
class Step:
    """What one connection does; cuts split the sum of its units among sends.

    Each unit has exactly one reply, except in a pour, which is a connection's whole life.
    """

    connection: int
    act: Act = Act.SEND
    units: tuple[bytes, ...] = ()
    cuts: tuple[int, ...] = ()


class Difference(AssertionError):
    """The two sides disagree; `transcript` ends with where."""

    def __init__(self, what: str, expected: bytes, got: bytes, transcript: str) -> None:
        self.is_of_connections = COUNTED.sub(b"", expected) == COUNTED.sub(b"", got)
        """Whether they agree but for how many have connected."""
        super().__init__(f"{what}\n{contrast(expected, got)}\n{transcript}")


def shown(data: bytes) -> str:
    text = repr(data)[1:]
    return text if len(text) <= SHOWN_BYTES else f"{text[:SHOWN_BYTES]}… ({len(data)} bytes)"


def contrast(expected: bytes, got: bytes) -> str:
    """Both replies, or of two long ones the lines in which they differ."""
    old, new = expected.split(b"\n"), got.split(b"\n")
    if len(old) == len(new) > 3:
        pairs = [pair for pair in zip(old, new, strict=True) if pair[0] != pair[1]]
        expected, got = (b"\n".join(side) for side in zip(*pairs, strict=True))
    return f"  reference: {shown(expected)}\n  candidate: {shown(got)}"


def waits(unit: bytes) -> bool:
    """Whether the command may wait for a job."""
    if unit == b"reserve\r\n":
        return True
    found = TIMED_RESERVE.match(unit)
    return found is not None and int(found[1]) % 2**32 != 0


class Side:
    """One server: its control connection and those that the steps speak of."""

    def __init__(self, address: Address, distortion: Distortion | None) -> None:
        self.address = address
        self.control = LineClient(address)
        self.connections: dict[int, LineClient] = {}
        self.looks = 0
        self._distortion = distortion

    def control_reply(self, unit: bytes) -> bytes:
        self.control.send(unit)
        return self.control.reply()

    def reply(self, connection: int) -> bytes:
        client = self.control if connection == CONTROL else self.connections[connection]
        try:
            reply = client.reply()
        except TimeoutError:
            return SILENCE
        except (OSError, EOFError, ValueError) as failure:
            return f"<{type(failure).__name__}: {failure}>".encode()
        reply = comparable(reply)
        return self._distortion(reply) if self._distortion else reply

    def stats(self) -> bytes:
        """The server's statistics, asked for only on this side, which `looks` counts."""
        self.looks += 1
        return self.control_reply(b"stats\r\n")

    def look(self) -> tuple[int, int]:
        """How many connections the server has, and how many of them wait."""
        stats = self.stats()
        connections, waiting = CONNECTIONS.search(stats), WAITING.search(stats)
        assert connections is not None, stats
        assert waiting is not None, stats
        return int(connections[1]), int(waiting[1])

    def close(self) -> None:
        for client in (self.control, *self.connections.values()):
            client.close()
        self.connections.clear()


@dataclass(slots=True)
class Twin:
    """What is known of a connection, which both sides have: unanswered units and watched tubes."""

    pending: deque[bytes] = field(default_factory=deque)
    watched: set[bytes] = field(default_factory=lambda: {b"default"})
    held: set[int] = field(default_factory=set)


class Lockstep:
    """The two sides, from one stream to the next.

    `distortion` changes the candidate's replies before they are compared: it proves that a lying
    server is caught.
    """

    def __init__(
        self,
        reference: Address,
        candidate: Address,
        distortion: Distortion | None = None,
    ) -> None:
        self.reference = Side(reference, None)
        self.candidate = Side(candidate, distortion)
        self.in_vain_s = 0.0
        """How long has been waited for what did not come."""
        self.twins: dict[int, Twin] = {}
        self.first_job = 0
        self.last_job = 0
        self._closed = False
        self._log: deque[str] = deque(maxlen=TRANSCRIPT_LINES)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        for side in self._sides:
            side.close()

    @property
    def _sides(self) -> tuple[Side, Side]:
        return self.reference, self.candidate

    @property
    def jobs(self) -> int:
        """How many job numbers the stream has used so far, as far as replies told."""
        return self.last_job - self.first_job

    def jobs_of(self, connection: int) -> tuple[int, ...]:
        """The numbers of the jobs that the connection has reserved, as far as replies told."""
        twin = self.twins.get(connection)
        return tuple(job - self.first_job for job in sorted(twin.held)) if twin else ()

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Bracket a stream: job numbers start from here, and nothing of it stays behind."""
        self._log.clear()
        self._ask_control(b"put 0 0 60 0\r\n\r\n")
        self.first_job = self.last_job
        self._ask_control(b"delete {0}\r\n")
        yield
        self.inspect()
        for connection in tuple(self.twins):
            self._close(connection)
            self.settle()
        for job in range(self.jobs + 3):
            self._ask_control(b"delete {%d}\r\n" % job)
        self._ask_control(b"pause-tube default 0\r\n")
        self.inspect()

    def take(self, step: Step) -> None:
        """Carry out a step on both sides and compare everything that it brings about.

        A step whose outcome no document fixes is left out: a second waiter in a tube.
        """
        self.settle()
        if step.act is Act.SEND and not self._is_determined(step):
            return
        if step.act in {Act.CLOSE, Act.HALF_CLOSE} and step.connection not in self.twins:
            return
        match step.act:
            case Act.SEND:
                self._send(step)
            case Act.CLOSE:
                self._note(step.connection, "closes")
                self._close(step.connection)
            case Act.HALF_CLOSE:
                self._note(step.connection, "half-closes")
                self._half_close(step.connection)
            case Act.POUR:
                self._pour(step)
        self.settle()

    def inspect(self) -> None:
        """Compare all that the servers tell of their state."""
        for job in range(self.jobs + 3):
            self._ask_control(b"stats-job {%d}\r\n" % job)
        names = self.reference.control_reply(b"list-tubes\r\n").split(b"\n")
        self.candidate.control_reply(b"list-tubes\r\n")
        for name in names:
            if name.startswith(b"- "):
                self._ask_control(b"stats-tube %b\r\n" % name[2:])
        self._ask_control(b"list-tubes\r\n")
        self._ask_control(b"stats\r\n")

    def settle(self) -> None:
        """Collect and compare what has come, until every unanswered command is one that waits."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            self._collect()
            if all(map(self._has_settled, self._sides)) and not self._reference_spoke():
                break
            if time.monotonic() > deadline:
                self.in_vain_s += PATIENCE_S
                self._refuse_unasked_replies()
                counts = b"connections %d, waiting %d"
                expected, got = (counts % side.look() for side in self._sides)
                self._differ(CONTROL, "counted", expected, got)
        self._closed = False
        most = max(side.looks for side in self._sides)
        for side in self._sides:
            while side.looks < most:
                side.look()  # so that cmd-stats agree
        self._refuse_unasked_replies()

    def transcript(self) -> str:
        return "\n".join(("transcript (its end):", *self._log))

    def _is_determined(self, step: Step) -> bool:
        twin = self.twins.get(step.connection, Twin())
        others = [other for other in self.twins.values() if other is not twin]
        if any(len(other.pending) > 1 for other in others) and (
            len(step.units) > 1 or twin.pending
        ):
            # Two pipelines at work at once take turns as each server likes.
            return False
        behind_a_wait = bool(twin.pending)
        for unit in step.units:
            if behind_a_wait and (
                unit.startswith(NOT_BEHIND_A_WAIT) or len(unit) > BEHIND_A_WAIT_BYTES_MAX
            ):
                return False
            if waits(unit):
                behind_a_wait = True
        if any(map(waits, step.units)):
            if any(unit.startswith((b"watch", b"ignore")) for unit in step.units):
                return False
            return not any(other.pending and other.watched & twin.watched for other in others)
        return True

    def _open(self, connection: int) -> None:
        for side in self._sides:
            side.connections[connection] = LineClient(side.address)
        self.twins[connection] = Twin()
        # Both servers have accepted it once it is answered.
        for side in self._sides:
            side.connections[connection].send(PROBE)
        for side in self._sides:
            assert side.connections[connection].reply() == PROBE_REPLY

    def _send(self, step: Step) -> None:
        connection = step.connection
        if connection not in self.twins:
            self._open(connection)
        units = tuple(map(self._with_job_numbers, step.units))
        data = b"".join(units)
        self.twins[connection].pending.extend(units)
        self._send_pieces(connection, data, step.cuts)

    def _pour(self, step: Step) -> None:
        data = self._with_job_numbers(b"".join(step.units))
        self._note(step.connection, f"pours {data[:POURED_BYTES_SHOWN]!r}")
        self._open(step.connection)
        self._send_pieces(step.connection, data, step.cuts)
        self._half_close(step.connection)

    def _send_pieces(self, connection: int, data: bytes, cuts: tuple[int, ...]) -> None:
        ends = sorted({0, *(cut % len(data) for cut in cuts), len(data)})
        for start, end in pairwise(ends):
            for side in self._sides:
                side.connections[connection].send(data[start:end])
            if end < len(data):
                self._probe()

    def _close(self, connection: int) -> None:
        if len(self.twins[connection].pending) > 1:
            # How many of the commands behind a wait a server still carries out for a client that
            # is gone depends on when its first reply bounces; so this one listens to the end.
            self._half_close(connection)
        else:
            self._hang_up(connection)

    def _half_close(self, connection: int) -> None:
        for side in self._sides:
            side.connections[connection].half_close()
        while connection in self.twins:
            self._compare_next(connection)

    def _hang_up(self, connection: int) -> None:
        for side in self._sides:
            side.connections.pop(connection).close()
        del self.twins[connection]
        self._closed = True

    def _with_job_numbers(self, unit: bytes) -> bytes:
        return JOB_NUMBER.sub(lambda found: b"%d" % (self.first_job + int(found[1])), unit)

    def _probe(self) -> None:
        for side in self._sides:
            side.control.send(PROBE)
        for side in self._sides:
            assert side.control.reply() == PROBE_REPLY

    def _collect(self) -> None:
        """Compare the reply to everything that does not wait, and whatever else has come."""
        for connection in tuple(self.twins):
            while (twin := self.twins.get(connection)) is not None:
                due = bool(twin.pending) and not waits(twin.pending[0])
                if not (due or self.reference.connections[connection].something_came()):
                    break
                self._compare_next(connection)

    def _refuse_unasked_replies(self) -> None:
        for connection, twin in self.twins.items():
            if self.candidate.connections[connection].something_came():
                unit = twin.pending[0] if twin.pending else b""
                got = self.candidate.reply(connection)
                self._differ(connection, f"to {shown(unit)}, too early", b"(waits)", got)

    def _reference_spoke(self) -> bool:
        return any(
            self.reference.connections[connection].something_came() for connection in self.twins
        )

    def _has_settled(self, side: Side) -> bool:
        """Whether the server has noticed all that was closed, and waits wherever no reply came."""
        waiting = sum(bool(twin.pending) for twin in self.twins.values())
        if not (waiting or self._closed):
            return True
        return side.look() == (len(self.twins) + 1, waiting)

    def _compare_next(self, connection: int) -> None:
        twin = self.twins[connection]
        unit = twin.pending.popleft() if twin.pending else b""
        expected = self.reference.reply(connection)
        got = self.candidate.reply(connection)
        self._note(connection, f"{shown(unit)} -> {shown(expected)}")
        if expected != got:
            self._differ(connection, f"to {shown(unit)}", expected, got)
        if not expected:
            self._hang_up(connection)
            return
        self._learn(twin, unit, expected)

    def _ask_control(self, unit: bytes) -> None:
        unit = self._with_job_numbers(unit)
        for side in self._sides:
            side.control.send(unit)
        expected, got = (side.reply(CONTROL) for side in self._sides)
        if expected != got:
            self._differ(CONTROL, f"to {shown(unit)}", expected, got)
        self._learn(Twin(), unit, expected)

    def _learn(self, twin: Twin, unit: bytes, reply: bytes) -> None:
        """Note what the reply says about jobs and watched tubes."""
        word, *values = reply.split(b"\r\n", 1)[0].split(b" ")
        match word:
            case b"INSERTED":
                self.last_job = int(values[0])
            case b"RESERVED":
                twin.held.add(int(values[0]))
            case b"WATCHING" if unit.startswith(b"watch "):
                twin.watched.add(unit[6:-2])
            case b"WATCHING":
                twin.watched.discard(unit[7:-2])
            case b"DELETED" | b"RELEASED" | b"BURIED" if unit:
                twin.held.discard(int(unit.split()[1]))

    def _note(self, connection: int, what: str) -> None:
        self._log.append(f"  {connection}: {what}")

    def _differ(self, connection: int, what: str, expected: bytes, got: bytes) -> None:
        self.in_vain_s += REPLY_S_MAX * (expected, got).count(SILENCE)
        who = "control" if connection == CONTROL else f"connection {connection}"
        raise Difference(f"{who}, {what}", expected, got, self.transcript())
