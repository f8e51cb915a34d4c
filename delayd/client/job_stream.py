"""Jobs without waiting for them: one connection, for a program with an event loop of its own.

    stream = client.stream()
    stream.reserve({"mail", "orders"}, limit=10)
    loop.add_reader(stream.fileno(), readable)

    def readable():
        for job in stream.receive():
            print(job.topic, job.body)
            job.ack()
        stream.reserve({"mail", "orders"}, limit=10)

The daemon hands out jobs as soon as they are ready, and nothing polls: a reserve is under way all
the time, and whatever else is sent over the connection ends its wait (`until=input` of
docs/protocol.md). What is said of a job is sent with the next call of `reserve` or `flush`, and its
answer is not waited for; `on_lost` is told when it came too late. Jobs in hand are touched by a
thread until they are finished. What arrives while the program does not look for half a ttr is
touched before it is returned: another worker may have it. Several threads may use a stream at once.
It needs the line.

    reserve ─► commands so far, the topics to watch, one reserve ─► daemon
    receive ◄─ the answers in the order of the commands ◄───────────┘
"""

import contextlib
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from delayd.client.beanstalk import Commands, Reply, line, refusal_of, seconds_word, topic_word
from delayd.client.connection import Connection, Connections
from delayd.client.errors import (
    ClientClosed,
    ConnectionLost,
    DelaydError,
    NotUnderstood,
    Refused,
    reservation_lost,
)
from delayd.client.jobs import Reserved
from delayd.client.limits import BATCH_JOBS_MAX
from delayd.client.line_calls import reservation_of
from delayd.client.results import Reservation
from delayd.client.touching import Toucher
from delayd.client.values import Duration

WAIT_S: Final = 60
"""How long one reserve waits. Its answer shows that the daemon is there; then comes the next."""
CLOSE_S: Final = 5.0
"""How long a close waits for what the daemon says to the last commands."""

_RESERVE: Final = "reserve-batch"
_END_WAIT: Final = line("list-tube-used")
"""Changes nothing, and ends the wait as any command does."""


class StreamedJob(Reserved["JobStream"]):
    """A job in hand; each of these is sent with the next `reserve` or `flush` of its stream.

    They raise NotReserved if the stream has lost its connection, and with it the job.
    """

    def ack(self) -> None:
        """Acknowledge it: it is done and deleted."""
        self.client.finish(self, "delete", self.id)

    def nack(self, *, delay: Duration | None = None, counts: bool = True) -> None:
        """Report a failed attempt; with `counts=False` give it back, and no attempt is counted."""
        words = [] if counts else ["counts=0"]
        words += [] if delay is None else [f"delay={seconds_word(delay, 'delay')}"]
        self.client.finish(self, "nack", self.id, *words)

    def bury(self, priority: int) -> None:
        """Set it aside until it is kicked."""
        self.client.finish(self, "bury", self.id, priority)


class _Sent(NamedTuple):
    """A command that was sent, and not answered yet."""

    command: bytes
    done: str
    """The word that says that it was done."""
    due_s: float
    """When there has to be an answer, on the monotonic clock."""
    job: StreamedJob | None = None
    """The job that it is about."""


_DONE: Final = {"delete": "DELETED", "nack": "NACKED", "bury": "BURIED", "touch": "TOUCHED"}


class JobStream:
    """See above; made by `Client.stream`.

    The connection is there, and the token was shown, when the constructor returns.
    """

    def __init__(self, connections: Connections) -> None:
        self.on_lost: Callable[[StreamedJob], object] = str
        """Called with a job whose ttr ran out before it was acknowledged or touched."""
        self._connection: Connection = connections.borrow(Commands(()))
        self._connection.exchange(Commands((_END_WAIT,)))
        self._replies = self._connection.place.wire.stream()  # type: ignore[attr-defined]
        self._timeout_s = connections.way.timeout_s
        self._lock = threading.RLock()
        self._toucher = Toucher()
        self._held: dict[int, StreamedJob] = {}
        self._unsent: list[tuple[bytes, str, StreamedJob | None]] = []
        self._sent: deque[_Sent] = deque()
        self._arrived: list[StreamedJob] = []
        self._unproven: set[StreamedJob] = set()
        """Jobs that may have arrived long ago, until it is known that their ttr has not run out."""
        self._looked_s = time.monotonic()
        """When it was last looked for what has arrived."""
        self._batch_left = 0
        """Jobs of a batch that are still to come."""
        self._wanted: tuple[frozenset[str], int] | None = None
        """What is to be reserved, until there is some."""
        self._asked: tuple[frozenset[str], int] | None = None
        """What the reserve under way asks for."""
        self._is_ending = False
        """Something was sent behind the reserve under way, so that its wait ends."""
        self._is_warned = False
        """A job in hand runs out of time: no reserve before it is touched, or finished."""

    # --- Reserving -------------------------------------------------------------------------------

    def fileno(self) -> int:
        """Return the descriptor of its socket, which is readable when there is an answer."""
        return self._connection.descriptor

    @property
    def is_closed(self) -> bool:
        """Whether its connection is gone, and the jobs in hand with it."""
        return self._connection.is_closed

    def reserve(self, topics: Collection[str], limit: int) -> None:
        """Reserve up to `limit` jobs of these topics as soon as one is ready; 0: none.

        This takes the place of what was to be reserved before, and ends when jobs arrive: then
        call it again. Raises TopicNameInvalid, ConnectionLost.
        """
        names = frozenset(map(topic_word, topics))
        with self._lock:
            self._wanted = (names, min(limit, BATCH_JOBS_MAX)) if names and limit > 0 else None
            self.flush()

    def receive(self) -> list[StreamedJob]:
        """Return the jobs that have arrived, without waiting.

        Raises ConnectionLost when the daemon has closed the connection or does not answer, and what
        a reserve was refused with.
        """
        with self._lock:
            refusals: list[Refused] = []
            try:
                while data := self._take():
                    noted = map(self._note, self._replies.feed(data))
                    refusals += [refusal for refusal in noted if refusal is not None]
            except ConnectionLost:
                if not refusals:
                    raise
            if refusals:
                raise refusals[0]
            self._looked_s = now_s = time.monotonic()
            if any(sent.due_s < now_s for sent in self._sent):
                with self._connection.closing():
                    raise TimeoutError
            self.flush()
            jobs, self._arrived = self._arrived, []
            return jobs

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until there is an answer; tell whether there is one. None: for ever."""
        if self.is_closed:
            raise ClientClosed
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        return bool(poll.poll(None if timeout_s is None else max(0.0, timeout_s) * 1_000))

    # --- What is said of jobs --------------------------------------------------------------------

    def finish(self, job: StreamedJob, verb: str, *words: object) -> None:
        """Have a command about a job sent that ends its reservation."""
        with self._lock:
            if self.is_closed or self._held.get(job.id) is not job:
                raise reservation_lost()
            del self._held[job.id]
            job.is_finished = True
            self._toucher.discard(job)
            self._unsent.append((line(verb, *words), _DONE[verb], job))

    def touch(self, job: StreamedJob) -> None:
        """Extend a reservation by a full ttr from now. Raises ClientClosed, ConnectionLost."""
        with self._lock:
            if self.is_closed:
                raise ClientClosed
            if job.id in self._held:
                self._unsent.append((line("touch", job.id), _DONE["touch"], job))
                self.flush()

    def flush(self) -> None:
        """Send what is to be sent. Raises ConnectionLost."""
        with self._lock:
            self._is_warned = self._is_warned and not self._unsent
            if self._asked is not None and not self._is_ending and not self._unsent:
                topics, limit = self._wanted or (None, 0)
                if topics != self._asked[0] or limit < self._asked[1]:
                    self._unsent.append((_END_WAIT, "USING", None))
            self._is_ending = self._is_ending or (self._asked is not None and bool(self._unsent))
            if self._asked is None and self._wanted is not None and not self._is_warned:
                self._ask(self._wanted)
            if not self._unsent:
                return
            due_s = time.monotonic() + self._timeout_s
            data = b"".join([command for command, _done, _job in self._unsent])
            self._sent += [
                _Sent(command, done, due_s + WAIT_S * (not done), job)
                for command, done, job in self._unsent
            ]
            self._unsent.clear()
            self._connection.send(data)

    # --- The end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Give back the jobs in hand, without counting an attempt, and close the connection."""
        with self._lock:
            self._toucher.close()
            with contextlib.suppress(DelaydError):  # they are back too if the connection is lost
                for job in list(self._held.values()):
                    job.nack(counts=False)
                self._give_back()
            self.forget()

    def forget(self) -> None:
        """Close the connection and say nothing: in a process that was forked it is the parent's."""
        self._connection.close()
        self._held.clear()  # the thread that touches finds it closed; its lock may be the parent's

    def _give_back(self) -> None:
        """Send what is to be sent, give back what arrives meanwhile, and wait for the answers."""
        ends_s = time.monotonic() + CLOSE_S
        self.reserve((), 0)
        while self._sent and time.monotonic() < ends_s:
            if self.wait(ends_s - time.monotonic()):
                for job in self.receive():
                    job.nack(counts=False)
                self.flush()

    # --- Commands and replies --------------------------------------------------------------------

    def _take(self) -> bytes:
        if self.is_closed:
            raise ClientClosed
        return self._connection.take()

    def _ask(self, wanted: tuple[frozenset[str], int]) -> None:
        """Have a reserve sent, and before it what changes the topics that are watched."""
        topics, limit = wanted
        link = self._connection
        self._unsent += [
            (line(verb, name), "WATCHING", None)
            for verb, names in (("watch", topics - link.watched), ("ignore", link.watched - topics))
            for name in sorted(names)
        ]
        link.watched = topics
        command = line(_RESERVE, limit, WAIT_S, "with=ttr,attempt,key,tube", "until=input")
        self._unsent.append((command, "", None))
        self._asked, self._is_ending = wanted, False

    def _note(self, reply: Reply) -> Refused | None:
        """Note the next reply, or the next job of a batch; return what it refuses."""
        if self._batch_left:
            self._batch_left -= 1
            self._hold(reservation_of(reply, "", None))
            return None
        if not self._sent:
            raise self._misunderstood(NotUnderstood("more was answered than was asked"))
        sent = self._sent.popleft()
        if not sent.done:
            return self._note_reserve(reply, sent)
        if reply.word == "NOT_FOUND" and sent.job is not None:
            self._lose(sent.job)
        elif reply.word != sent.done:
            return refusal_of(reply, sent.command, "nothing was done")
        elif sent.job in self._unproven:
            self._unproven.discard(sent.job)
            self._arrived.append(sent.job)
        return None

    def _note_reserve(self, reply: Reply, sent: _Sent) -> Refused | None:
        asked, self._asked, self._is_ending = self._asked, None, False
        if reply.word == "RESERVED_BATCH":
            limit = 0 if asked is None else asked[1]
            if not 0 < reply.number <= limit:
                mistake = f"{reply.number} jobs, and {limit} were asked for"
                raise self._misunderstood(NotUnderstood(mistake))
            self._batch_left = reply.number
            self._wanted = None
        elif reply.word == "DEADLINE_SOON":
            self._is_warned = True
        elif reply.word == "BAD_FORMAT":
            mistake = "it does not know `until=input`, so the daemon is older than its client"
            raise self._misunderstood(NotUnderstood(mistake))
        elif reply.word != "TIMED_OUT":
            self._wanted = None
            return refusal_of(reply, sent.command, "nothing was reserved")
        return None

    def _hold(self, reservation: Reservation) -> None:
        job = StreamedJob(self, reservation)
        self._held[job.id] = job
        ttr_s = reservation.ttr or 0.0
        self._toucher.add(job, ttr_s)
        if time.monotonic() - self._looked_s < ttr_s / 2:
            self._arrived.append(job)
        else:
            self._unproven.add(job)
            self._unsent.append((line("touch", job.id), _DONE["touch"], job))

    def _lose(self, job: StreamedJob) -> None:
        """Note that the reservation had ended before it was touched or finished."""
        if job.is_lost:
            return
        job.is_lost = True
        self._toucher.discard(job)
        if self._held.get(job.id) is job:
            del self._held[job.id]
        if job not in self._unproven:
            self.on_lost(job)
        self._unproven.discard(job)

    def _misunderstood(self, error: NotUnderstood) -> NotUnderstood:
        self._connection.misunderstood(error)
        return error
