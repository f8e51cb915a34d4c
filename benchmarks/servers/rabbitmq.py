"""RabbitMQ with ttl and dead letters, by the book, and the same with its quorum queues.

RabbitMQ has no delay of its own. The way its documents show: a job is published to a queue that
nobody consumes and whose messages live as long as the delay; dead ones are routed to the work
queue.

    publish, confirmed          after 1,000 ms, as a dead letter          qos 20, consume, ack
    ------------------>  wait.1000  ------------------------------>  work  ------------------>

Messages are persistent and queues durable: a message is confirmed when it is on disk. One node
serves a whole chapter; each reading has queues of its own in it.

What is not possible:

- a delay of its own for each job: only the head of a queue dies. With one queue and a ttl for each
  message (`PER_MESSAGE`) a job waits for all before it, however long their delays are. So there is
  a queue for each delay, and `DELAYS_MAX` of them here.
- a key: a second publish is a second message.
- a queue that is there after a kill -9 at once: see `NAMES_S`.
- a safe way from a classic queue to the work queue: it is not confirmed, and a node that is killed
  meanwhile may lose what was acknowledged. Quorum queues confirm it (`at-least-once`).
- an answer to an acknowledgement: what was not yet carried out is delivered again.

Documents: rabbitmq.com, "Time-To-Live and Expiration", "Dead Letter Exchanges", "Quorum Queues",
"Consumer Prefetch".
"""

import contextlib
import functools
import itertools
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pamqp import commands

from benchmarks.processes import (
    START_SECONDS_MAX,
    descendants,
    program,
    resident_bytes,
    written_bytes,
)
from benchmarks.registry import Bench, Durability, NotMeasuredError
from benchmarks.servers.amqp import AmqpDialect, ask, connect
from tests.brokers import NEEDED, Broker, rabbitmq

DELAYS_MAX: Final = 16
DELAY_UNIT_MS: Final = 100
"""So that delays of up to a second need few queues."""
NAMES_S: Final = 1.0
"""The names of new quorum queues are on disk half a second later: seen when a node was killed."""
CLOSING_S_MAX: Final = 5.0
POLL_S: Final = 0.002
GROWN_BYTES: Final = 64 << 20
CLASSIC: Final[Mapping[str, Any]] = MappingProxyType({})
QUORUM: Final[Mapping[str, Any]] = MappingProxyType({"x-queue-type": "quorum"})
SAFE_DEAD_LETTERS: Final[Mapping[str, Any]] = MappingProxyType(
    {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
)
_numbers: Final = itertools.count(1)


@dataclass(slots=True)
class RabbitNode:
    """The node of a chapter."""

    broker: Broker
    directory: Path
    resident_bytes: int = field(init=False)
    """What it held when it had started."""

    def __post_init__(self) -> None:
        self.resident_bytes = resident_bytes(self.processes())

    def processes(self) -> Sequence[int]:
        """Return the node, its helpers and the daemon that knows its port."""
        pid = self.broker.server.process.pid
        return (pid, *descendants(pid), *self.broker.beside)

    def refresh(self) -> None:
        """Start it again if it has grown: what it took for the last reading, it does not return."""
        if resident_bytes(self.processes()) > self.resident_bytes + GROWN_BYTES:
            self.broker.server.stop()
            self.broker.start()
            connect(self.broker.port).close()
            self.resident_bytes = resident_bytes(self.processes())

    def file_bytes(self) -> Mapping[Path, int]:
        """Return the bytes of each of its files, of which some may vanish meanwhile."""
        paths = (Path(top, name) for top, _, names in os.walk(self.directory) for name in names)
        return {path: written_bytes(path) for path in paths}


@contextmanager
def node(directory: Path) -> Iterator[RabbitNode]:
    """Run a node with the settings that it comes with, on all processors."""
    directory.mkdir()
    with rabbitmq(directory, erlang="") as broker:
        yield RabbitNode(broker, directory)


@dataclass(slots=True)
class RabbitQueues:
    """The queues of one reading: the work queue, and one that waits for each delay."""

    node: RabbitNode
    arguments: Mapping[str, Any]
    """Of each queue."""
    dead_letters: Mapping[str, Any]
    per_message: bool
    number: int = field(default_factory=lambda: next(_numbers))
    _waiting: dict[int, str] = field(default_factory=dict)
    _control: socket.socket = field(init=False)
    _bytes_before: Mapping[Path, int] = field(init=False)

    def __post_init__(self) -> None:
        self._bytes_before = self.node.file_bytes()
        self._control = connect(self.port)
        self._declare(self.work, self.arguments)

    @property
    def port(self) -> int:
        """Where the node listens."""
        return self.node.broker.port

    @property
    def work(self) -> str:
        """The name of the work queue."""
        return f"work.{self.number}"

    def dialect(self, body_bytes: int) -> AmqpDialect:
        """Return the way of speaking of a new connection."""
        return AmqpDialect(body_bytes, self.work, self.waiting)

    def waiting(self, delay_ms: int) -> tuple[str, Mapping[str, Any]]:
        """Return the queue for this delay, which is made if there is none, and the properties.

        Raises `NotMeasuredError` if there are too many delays.
        """
        properties = {"expiration": str(delay_ms)} if self.per_message else {}
        kind = 0 if self.per_message else delay_ms
        if kind not in self._waiting:
            if len(self._waiting) == DELAYS_MAX:
                raise NotMeasuredError(
                    f"a queue for each delay: {DELAYS_MAX} here, and there are more delays"
                )
            name = f"wait.{self.number}.{kind}"
            ttl = {} if self.per_message else {"x-message-ttl": delay_ms}
            routed = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": self.work}
            self._declare(name, {**self.arguments, **self.dead_letters, **ttl, **routed})
            self._waiting[kind] = name
        return self._waiting[kind], properties

    def _declare(self, name: str, arguments: Mapping[str, Any]) -> None:
        declared = commands.Queue.Declare(queue=name, durable=True, arguments=dict(arguments))
        ask(self._control, declared, commands.Queue.DeclareOk)

    def processes(self) -> Sequence[int]:
        """Return those of the node."""
        return self.node.processes()

    def standing(self) -> int:
        """Return how many messages there are, without those that a connection holds.

        Those of a connection that was closed come back with the end of its consumer: it is waited
        for.
        """
        patience = time.monotonic() + CLOSING_S_MAX
        while self._look(self.work).consumer_count and time.monotonic() < patience:
            time.sleep(POLL_S)
        return sum(self._look(name).message_count for name in (self.work, *self._waiting.values()))

    def _look(self, name: str) -> Any:  # noqa: ANN401 - what pamqp makes of it
        declare = commands.Queue.Declare(queue=name, passive=True)
        return ask(self._control, declare, commands.Queue.DeclareOk)

    def log_bytes(self) -> int:
        """Return by how much the files of the node have grown, those that are gone left out."""
        before = self._bytes_before
        now = self.node.file_bytes()
        return sum(max(0, size - before.get(path, 0)) for path, size in now.items())

    def restart(self) -> float:
        """Kill the node and start it; return the seconds until all messages are there again."""
        before = self.standing()
        time.sleep(NAMES_S)
        self._control.close()
        self.node.broker.kill()
        began = time.perf_counter()
        self.node.broker.start()
        self._control = connect(self.port)
        while time.perf_counter() < began + START_SECONDS_MAX and self.standing() < before:
            time.sleep(POLL_S)
        return time.perf_counter() - began

    def close(self) -> None:
        """Delete the queues, so that the next reading finds an empty node."""
        with contextlib.closing(self._control):
            for name in (*self._waiting.values(), self.work):
                ask(self._control, commands.Queue.Delete(queue=name), commands.Queue.DeleteOk)


@dataclass(frozen=True, slots=True)
class RabbitMq:
    """RabbitMQ with one kind of queue."""

    subject: str
    settings: str
    arguments: Mapping[str, Any]
    dead_letters: Mapping[str, Any] = field(default_factory=dict)
    per_message: bool = False
    policy: Durability = Durability.BEFORE_ANSWER
    delay_unit_ms: int = DELAY_UNIT_MS
    poll_pause_s: float = 0.0

    @contextmanager
    def serve(self, bench: Bench, directory: Path) -> Iterator[RabbitQueues]:
        """Give new queues in the node of the chapter, which is started for the first."""
        del directory  # the node is that of other readings too
        for name in NEEDED["amqp"]:
            program(name)
        kept = bench.kept("rabbitmq", functools.partial(node, bench.directory / "rabbitmq"))
        kept.refresh()
        queues = RabbitQueues(kept, self.arguments, self.dead_letters, self.per_message)
        with contextlib.closing(queues):
            yield queues


BY_THE_BOOK: Final = (
    "durable {} queues, a queue with x-message-ttl for each delay, dead letters to the work queue"
    "{}; persistent messages, publisher confirms; consumers with prefetch = in flight"
)
PER_MESSAGE: Final = RabbitMq(
    "RabbitMQ, ttl of each message",
    "durable classic queues, one queue whose messages have an expiration each, dead letters to"
    " the work queue; persistent messages, publisher confirms; consumers with prefetch = in flight",
    CLASSIC,
    per_message=True,
)


def peers() -> Sequence[RabbitMq]:
    """Return it with classic queues, and with quorum queues."""
    safely = ", x-dead-letter-strategy at-least-once"
    return [
        RabbitMq("RabbitMQ, ttl and dead letters", BY_THE_BOOK.format("classic", ""), CLASSIC),
        RabbitMq(
            "RabbitMQ, quorum queues",
            BY_THE_BOOK.format("quorum", safely),
            QUORUM,
            SAFE_DEAD_LETTERS,
        ),
    ]
