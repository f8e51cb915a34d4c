"""Clients of the line protocol and one engine, without sockets and with a clock that stands still.

    >>> client = LineRig().client()
    >>> client.says(b"put 0 0 60 2\\r\\nhi\\r\\n", b"reserve\\r\\n")
    b'INSERTED 1\\r\\nRESERVED 1 2\\r\\nhi\\r\\n'

Each piece that a client says comes in a turn of its own. As in the server, a client that waits for
a job is not read from, and one whose replies pile up goes on when they have been taken.

Where clients have to authenticate:

    rig = LineRig(needs_token=True)
    worker = rig.user(Scope.RESERVE, Scope.DELETE, topics=("mail.*",))   # has shown its token
    rig.unauthenticated()                                                # has not

`line_sockets` has real sockets and a server.
"""

import random
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from delayd.access.authenticator import Authenticator
from delayd.access.connection_limits import ConnectionLimits, Peer
from delayd.access.principal import ALL_TOPICS
from delayd.access.scopes import Scope
from delayd.access.tokens import Tokens
from delayd.compat import Compat
from delayd.core.background_tasks import BackgroundTasks
from delayd.core.engine import Engine
from delayd.core.operations.tick import advance
from delayd.core.ready_queue import job_id_of
from delayd.core.replay import Replay
from delayd.core.session import Handed, WaitEnd
from delayd.core.stats.refusals import Refusals
from delayd.core.times import PlayedMs, RequestMs
from delayd.core.topic import Topic
from delayd.limits import BODY_BYTES_DEFAULT
from delayd.line.commands import carry_out
from delayd.line.connection import LineConnection, LineContext
from delayd.line.stats import Stats
from delayd.schedules.opening import ScheduleOpener
from tests.access.samples import made
from tests.core.check import check

if TYPE_CHECKING:
    from delayd.access.token_entries import Entry

EPOCH_MS: Final = 1_800_000_000_000
ALL: Final = tuple(Scope)
WRONG: Final = b"dlyd_00000000_" + b"x" * 43
START_MS: Final = 1_000_000
OUT_BYTES_MAX: Final = 1 << 20


class Client:
    """One connection, and what came out of it so far."""

    def __init__(self, rig: "LineRig", address: str, *, one_by_one: bool) -> None:
        self._rig = rig
        self._one_by_one = one_by_one
        self._rest = b""
        self._unread: deque[bytes] = deque()
        self._replies = b""
        self.in_full = b""
        admitted = rig.admission.admit((address, 50_000), 10)
        assert isinstance(admitted, Peer), admitted
        self.peer = admitted
        self.connection = LineConnection(rig.context, self, self.peer)
        self.gathered_bytes_max = 0

    def deliver(self, outcome: Handed | WaitEnd, now_ms: RequestMs) -> None:
        self.connection.deliver(outcome, now_ms)
        self._feed_bytes()

    def postpone(self, by_ms: int, answer: Callable[[int], object]) -> None:
        self._rig.late.append((self._rig.now_ms + by_ms, self, answer))

    def listen_again(self) -> None:
        """It is read from in each turn in which it listens."""

    def go_on_later(self) -> None:
        """It goes on in the next turn, when it has yielded."""

    def says(self, *pieces: bytes) -> bytes:
        """Send the pieces, one in a turn, and return what has been answered since the last call."""
        for piece in pieces:
            self._unread.append(piece)
            self._rig.turn()
        return self.replies()

    def replies(self) -> bytes:
        """What has been answered; why something is forbidden is left out, for people."""
        replies, self._replies = self._replies, b""
        self.in_full = replies
        return re.sub(rb"\b(FORBIDDEN|UNAUTHORIZED) [^\r]*\r\n", rb"\1\r\n", replies)

    def half_closes(self) -> bytes:
        """Say that nothing will follow; what was sent before is still answered."""
        self.connection.half_close(self._rig.now_ms)
        self._feed_bytes()
        self._rig.turn()
        return self.replies()

    def closes(self) -> None:
        self.connection.close(self._rig.now_ms)
        self._rig.admission.leave(self.peer)
        self._rig.clients.remove(self)
        self._rig.turn()

    def goes_on(self) -> bool:
        """Take its replies and read its next piece; whether there was anything to do."""
        connection = self.connection
        gathered = connection.take_out()
        self.gathered_bytes_max = max(self.gathered_bytes_max, len(gathered))
        self._replies += gathered
        if connection.is_choked or connection.has_yielded:
            connection.is_choked = connection.has_yielded = False
            connection.resume(self._rig.now_ms)
        elif self._unread and connection.is_listening:
            data = self._unread.popleft()
            if self._one_by_one:
                self._rest += data
                self._feed_bytes()
            else:
                connection.receive(data, self._rig.now_ms)
        elif self._rest and connection.is_listening:
            self._feed_bytes()
        else:
            return bool(gathered)
        return True

    def _feed_bytes(self) -> None:
        """Give it a byte at a time what it has left, so that it never sees two commands at once."""
        at = 0
        while at < len(self._rest) and self.connection.is_listening:
            self.connection.receive(self._rest[at : at + 1], self._rig.now_ms)
            at += 1
        self._rest = self._rest[at:]


class Time:
    """The time of a rig, for clients to advance."""

    def __init__(self, rig: "LineRig") -> None:
        self._rig = rig

    def now_ms(self) -> PlayedMs:
        return PlayedMs(self._rig.now_ms)

    def go_on_to(self, time_ms: int) -> None:
        assert time_ms >= self._rig.now_ms
        self._rig.now_ms = RequestMs(time_ms)


class LineRig:
    """The engine, its clients, and what went into the journal."""

    def __init__(
        self,
        body_bytes_max: int = BODY_BYTES_DEFAULT,
        *,
        is_virtual: bool = False,
        needs_token: bool = False,
        compat: Compat = Compat.V1_13,
        after: "LineRig | None" = None,
    ) -> None:
        """Begin; `after`: with what the log of another one keeps, at its time."""
        self.engine = Engine(start_ms=START_MS, body_bytes_max=body_bytes_max)
        self.now_ms = RequestMs(START_MS)
        self.log = b""
        if after is not None:
            self.now_ms, self.log = after.now_ms, after.log
            replay = Replay(self.engine)
            replay.play(self.log)
            replay.finish(PlayedMs(self.now_ms))
        self.refusals = Refusals()
        self.stats = Stats(self.engine, START_MS, refusals=self.refusals, compat=compat)
        self.wall_ms = EPOCH_MS
        self.entries: list[Entry] = []
        self.authenticator = Authenticator(
            Tokens([]) if needs_token else None, wall_ms=lambda: self.wall_ms
        )
        self.admission = ConnectionLimits(self.authenticator)
        self.tasks = BackgroundTasks(self.engine)
        self.context = LineContext(
            engine=self.engine,
            stats=self.stats,
            tasks=self.tasks,
            admission=self.admission,
            carry_out=carry_out,
            elapsed_ms=lambda: self.now_ms,
            out_bytes_max=OUT_BYTES_MAX,
            clock=Time(self) if is_virtual else None,
            schedules=ScheduleOpener(self.engine, self.tasks, lambda: None, print),
        )
        self.clients: list[Client] = []
        self.late: list[tuple[int, Client, Callable[[int], object]]] = []
        """What was postponed: until when, by whom, and whom to call then."""

    # --- Clients ---------------------------------------------------------------------------------

    def client(
        self,
        *,
        one_by_one: bool = False,
        address: str = "192.0.2.7",
        out_bytes_max: int = OUT_BYTES_MAX,
    ) -> Client:
        """A client that was admitted; the limit of its replies becomes that of all.

        `one_by_one`: its connection never sees two commands at once, and so makes no runs of them.
        """
        self.context.out_bytes_max = out_bytes_max
        client = Client(self, address, one_by_one=one_by_one)
        self.clients.append(client)
        return client

    def unauthenticated(self, address: str = "192.0.2.7") -> Client:
        assert self.admission.has_tokens, "nobody has to authenticate"
        return self.client(address=address)

    def user(self, *scopes: Scope, topics: Sequence[str] = ALL_TOPICS) -> Client:
        """A client that has shown a token which is good for this."""
        user = self.unauthenticated()
        assert user.says(b"auth %b\r\n" % self.token(*scopes, topics=topics)) == b"OK\r\n"
        return user

    def token(
        self, *scopes: Scope, topics: Sequence[str] = ALL_TOPICS, not_after_s: int | None = None
    ) -> bytes:
        """A new token, good for this."""
        text, entry = made(len(self.entries) + 1, scopes, tuple(topics), not_after_s)
        self.entries.append(entry)
        self.reload()
        return text.encode()

    def reload(self) -> None:
        """Have the authenticator know the tokens that there are now."""
        self.authenticator.tokens = Tokens(self.entries)

    # --- Time and turns --------------------------------------------------------------------------

    def pass_ms(self, ms: int) -> None:
        """Let time pass and happen what is due."""
        self.now_ms = RequestMs(self.now_ms + ms)
        while advance(self.engine, PlayedMs(self.now_ms)):
            pass
        late, self.late = self.late, []
        for due_ms, client, answer in late:
            if due_ms > self.now_ms:
                self.late.append((due_ms, client, answer))
            elif client in self.clients:
                answer(self.now_ms)
        self.turn()

    def step_task(self) -> LineConnection | None:
        """Take a step of what takes long; return the connection that it answers, if it does."""
        task = self.tasks.step(self.now_ms)
        if task is None:
            return None
        before = {client.connection: len(client.connection.out) for client in self.clients}
        task.conclude(self.now_ms)
        return next((asked for asked, said in before.items() if len(asked.out) > said), None)

    def steps_beside(self, waiting: Client, other: Client) -> int:
        """Take all steps of what takes long for the one, and serve the other before each; count."""
        steps = 0
        while self.tasks.has_more:
            assert not waiting.connection.out
            other.connection.receive(b"list-tube-used\r\n", self.now_ms)
            assert other.connection.take_out() == b"USING default\r\n"
            self.step_task()
            steps += 1
        return steps

    def turn(self) -> None:
        """Let everybody go on until nobody has anything to do."""
        while True:
            went_on = [client.goes_on() for client in list(self.clients)]
            deliveries = self.engine.take_deliveries()
            for session, outcome in deliveries:
                assert session.owner is not None
                session.owner.deliver(outcome, self.now_ms)
            if self.tasks.has_more and not deliveries:
                self.step_task()
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
        topic.queues.ready.urgent,
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
