"""Clients of the line protocol and one engine, without sockets and with a clock that stands still.

    >>> client = Talk().client()
    >>> client.says(b"put 0 0 60 2\\r\\nhi\\r\\n", b"reserve\\r\\n")
    b'INSERTED 1\\r\\nRESERVED 1 2\\r\\nhi\\r\\n'

Each piece that a client says comes in a turn of its own. As in the server, a client that waits for
a job is not read from, and one whose replies pile up goes on when they have been taken.
"""

import random
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from delayd.access.admission import Peer
from delayd.core.background import BackgroundTask, BackgroundTasks
from delayd.core.check import check
from delayd.core.engine import Engine
from delayd.core.queues import job_id_of
from delayd.core.session import Handed, WaitEnd
from delayd.core.stats.refusals import Refusals
from delayd.core.topic import (
    Topic,
)
from delayd.limits import BODY_BYTES_DEFAULT
from delayd.line.connection import Connection
from delayd.line.stats import Stats
from delayd.line.tasks import LineTask, LineTasks

Kind = Callable[..., Connection]
"""Makes the connection of a client; takes what `Connection` takes."""

START_MS: Final = 1_000_000
OUT_BYTES_MAX: Final = 1 << 20


class Client:
    """One connection, and what came out of it so far."""

    def __init__(
        self, talk: "Talk", out_bytes_max: int, kind: Kind, peer: Peer | None = None
    ) -> None:
        self._talk = talk
        self._unread: deque[bytes] = deque()
        self._replies = b""
        self.peer = peer or Peer("192.0.2.7", "192.0.2.7")
        self.connection = kind(talk.engine, talk.stats, out_bytes_max, self, talk.commands)
        self.gathered_bytes_max = 0

    def deliver(self, outcome: Handed | WaitEnd, now_ms: int) -> None:
        self.connection.deliver(outcome, now_ms)

    def postpone(self, by_ms: int, answer: Callable[[int], object]) -> None:
        self._talk.late.append((self._talk.now_ms + by_ms, self, answer))

    def says(self, *pieces: bytes) -> bytes:
        """Send the pieces, one in a turn, and return what has been answered since the last call."""
        for piece in pieces:
            self._unread.append(piece)
            self._talk.turn()
        return self.replies()

    def replies(self) -> bytes:
        replies, self._replies = self._replies, b""
        return replies

    def half_closes(self) -> bytes:
        """Say that nothing will follow; what was sent before is still answered."""
        self.connection.half_close(self._talk.now_ms)
        self._talk.turn()
        return self.replies()

    def closes(self) -> None:
        self.connection.close(self._talk.now_ms)
        self._talk.clients.remove(self)
        self._talk.turn()

    def goes_on(self) -> bool:
        """Take its replies and read its next piece; whether there was anything to do."""
        connection = self.connection
        gathered = connection.take_out()
        self.gathered_bytes_max = max(self.gathered_bytes_max, len(gathered))
        self._replies += gathered
        if connection.is_choked:
            connection.is_choked = False
            connection.resume(self._talk.now_ms)
        elif self._unread and connection.is_listening:
            connection.receive(self._unread.popleft(), self._talk.now_ms)
        else:
            return bool(gathered)
        return True


class Time:
    """The time of a talk, for clients to advance."""

    def __init__(self, talk: "Talk") -> None:
        self._talk = talk

    def now_ms(self) -> int:
        return self._talk.now_ms

    def go_on_to(self, time_ms: int) -> None:
        assert time_ms >= self._talk.now_ms
        self._talk.now_ms = time_ms


class Talk:
    """The engine, its clients, and what went into the journal."""

    def __init__(
        self, body_bytes_max: int = BODY_BYTES_DEFAULT, *, is_virtual: bool = False
    ) -> None:
        self.engine = Engine(start_ms=START_MS, body_bytes_max=body_bytes_max)
        self.errands: BackgroundTasks[BackgroundTask] = BackgroundTasks(self.engine.state)
        self.commands = LineTasks(self.errands, Time(self) if is_virtual else None)
        self.refusals = Refusals()
        self.stats = Stats(self.engine, START_MS, refusals=self.refusals)
        self.now_ms = START_MS
        self.clients: list[Client] = []
        self.log = b""
        self.late: list[tuple[int, Client, Callable[[int], object]]] = []
        """What was postponed: until when, by whom, and whom to call then."""

    def client(
        self,
        out_bytes_max: int = OUT_BYTES_MAX,
        kind: Kind = Connection,
        peer: Peer | None = None,
    ) -> Client:
        client = Client(self, out_bytes_max, kind, peer)
        self.clients.append(client)
        return client

    def passes(self, ms: int) -> None:
        """Let time pass and happen what is due."""
        self.now_ms += ms
        while self.engine.advance(self.now_ms):
            pass
        late, self.late = self.late, []
        for due_ms, client, answer in late:
            if due_ms > self.now_ms:
                self.late.append((due_ms, client, answer))
            elif client in self.clients:
                answer(self.now_ms)
        self.turn()

    def step_pass(self) -> Connection | None:
        """Take a step of what takes long; return the connection that it answers, if it does."""
        errand = self.errands.step(self.now_ms)
        if errand is None:
            return None
        assert isinstance(errand, LineTask)
        errand.conclude(self.now_ms)
        return errand.connection

    def turn(self) -> None:
        """Let everybody go on until nobody has anything to do."""
        while True:
            went_on = [client.goes_on() for client in list(self.clients)]
            deliveries = self.engine.take_deliveries()
            for session, outcome in deliveries:
                assert session.owner is not None
                session.owner.deliver(outcome, self.now_ms)
            if self.errands.has_more and not deliveries:
                self.step_pass()
            elif not deliveries and not any(went_on):
                break
        self.log += b"".join(self.engine.take_log()[0])

    def state(self) -> dict[str, object]:
        """Everything that the engine and the statistics know, in values that can be compared."""
        check(self.engine)
        store = self.engine.store
        return {
            "jobs": sorted(store.jobs),
            "held": sorted((job, at.deadlines[job]) for job, at in store.leases.sessions.items()),
            "topics": [topic_state(topic) for topic in store.topics.listing],
            "last id": store.last_id,
            "counts": dict(self.stats.counts),
            "clients": (self.stats.producers, self.stats.workers, self.stats.connections),
        }


def topic_state(topic: Topic) -> tuple[object, ...]:
    return (
        topic.name,
        list(topic.queues.ready),
        [job_id_of(key) for key in topic.queues.buried],
        topic.queues.delays.wheel.soonest(1 << 30),
        topic.queues.urgent,
        topic.reserved,
        topic.users,
        topic.watchers,
        len(topic.waiters),
        topic.paused_until_ms,
        topic.jobs_put,
        topic.deletes,
        topic.pauses,
    )


def bytewise(data: bytes) -> Iterator[bytes]:
    """The data, one byte at a time."""
    return (data[at : at + 1] for at in range(len(data)))


def in_pieces(data: bytes, rng: random.Random) -> Iterator[bytes]:
    """The data in pieces of chance length, most of them short."""
    at = 0
    while at < len(data):
        size = rng.choice((1, 2, 3, 7, 20, 100, 224, 500))
        yield data[at : at + size]
        at += size
