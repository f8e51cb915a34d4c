"""A broker for Dramatiq: its messages are jobs of delayd, durable and delayed by the daemon.

    import dramatiq
    from delayd.dramatiq import DelaydBroker

    dramatiq.set_broker(DelaydBroker("http://127.0.0.1:11301"))

A queue is a topic, and a message is a job whose key is the message's id. A message with a delay
waits in the daemon: there are no delay queues, and nothing is held in a worker's memory until it is
due. Workers wait for messages and do not poll. While a message is in a worker, its reservation is
extended; if the worker dies, it comes again when the ttr ends, over the line protocol at once.

A retry is the same message, enqueued while it is still in hand. Its job takes over the key, and the
job in hand has none any more. If the worker dies before it acknowledges that one, it comes again
without a key, and is dropped while another job has it. If its reservation has ended, the daemon has
handed the message out again, and no retry is put:

    message   job 1, key = id, in hand ──► enqueue: job 2, key = id ──► ack: job 1 is gone
                        │                             └─► killed: job 1 comes without a key: dropped
                        └─► killed: job 1 comes again, with its key: it runs

It knows nothing of results, of the ages and limits of messages, and of when to retry: these are
Dramatiq's middleware.
"""

import contextlib
import functools
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from delayd.client import (
    Client,
    ConnectionLost,
    Job,
    NotFound,
    NotNow,
    NotReserved,
    Refused,
    TopicNotFound,
    Unreachable,
)
from delayd.client.addresses import DEFAULT_URL
from delayd.client.jobs import described
from delayd.client.limits import BATCH_JOBS_MAX
from delayd.client.values import SECONDS_MAX, Duration, PutOptions

try:
    import dramatiq
    from dramatiq.broker import Broker, MessageProxy
    from dramatiq.broker import Consumer as DramatiqConsumer
    from dramatiq.errors import (
        ConnectionClosed,
        ConnectionFailed,
        DecodeError,
        QueueJoinTimeout,
        QueueNotFound,
    )
    from dramatiq.logging import get_logger
    from dramatiq.message import Message
    from dramatiq.middleware import Middleware
except ModuleNotFoundError as error:
    raise ImportError("there is no Dramatiq here: pip install 'delayd[dramatiq]'") from error

if TYPE_CHECKING:
    import ssl

OLDEST: Final = (1, 17)
"""The first version of Dramatiq that this was tried with."""
if tuple(map(int, re.findall("[0-9]+", dramatiq.__version__)[:2])) < OLDEST:
    raise ImportError(
        f"Dramatiq {dramatiq.__version__} is too old: pip install 'delayd[dramatiq]' for 1.17"
    )

PRIORITY: Final = 65_536
"""Of a message whose actor has the priority 0."""
PRIORITY_MAX: Final = 2**32 - 1
ENDED: Final = (NotReserved, NotFound)
"""The reservation has ended, and the daemon hands the message out again."""
PASSING: Final = (Unreachable, ConnectionLost, NotNow)
"""What ends when the daemon is back."""
FIELDS: Final = MappingProxyType(
    {
        **dict.fromkeys(("queue_name", "actor_name", "message_id"), str),
        **dict.fromkeys(("kwargs", "options"), dict),
        "message_timestamp": int,
    }
)
"""Of a message, and the type of each."""


class DelaydBroker(Broker):
    """A broker whose messages are kept by a daemon.

    `url`, `token`, `tls`, `timeout` and `patience` are those of a `Client`; a url of HTTP is the
    better one, since reservations survive a restart of the daemon there. Raises ValueError for a
    url that is none. Nothing is connected before the first message.
    """

    def __init__(
        self,
        url: str | Sequence[str] = DEFAULT_URL,
        *,
        middleware: list[Middleware] | None = None,
        token: str = "",
        tls: "ssl.SSLContext | None" = None,
        timeout: Duration = 30.0,
        patience: Duration = 30.0,
    ) -> None:
        super().__init__(middleware)
        self.queues: set[str] = set()
        how: dict[str, Any] = {"token": token, "tls": tls, "timeout": timeout, "patience": patience}
        self._new_client = functools.partial(Client, url, **how)
        self._connect()

    def _connect(self) -> None:
        self._client, self._pid = self._new_client(), os.getpid()
        self.in_hand: dict[str, DelaydMessage] = {}
        """The messages in this process, by their ids."""

    @property
    def client(self) -> Client:
        """The client of this process: a connection that two processes share would mix answers."""
        if self._pid != os.getpid():
            self._connect()
        return self._client

    def close(self) -> None:
        """Close the connections."""
        self.client.close()

    def emit_before(self, signal: str, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - theirs
        """Tell the middleware; a worker that could not work ends with a sentence at its start."""
        if signal == "worker_boot":
            self._check_daemon(args[0].consumer_whitelist or self.queues)
        super().emit_before(signal, *args, **kwargs)

    def _check_daemon(self, queues: Iterable[str]) -> None:
        """Reserve as the worker will, and give it back. Raises ConnectionFailed, and refusals."""
        try:
            for queue_name in sorted(queues):
                for job in self.client.reserve_many(queue_name, limit=1, timeout=0):
                    self.client.nack(job, counts=False)
        except NotNow as error:
            self.logger.warning("The daemon is not ready yet: %s", error)
        except PASSING as error:
            raise ConnectionFailed(str(error)) from error

    # --- Queues ----------------------------------------------------------------------------------

    def declare_queue(self, queue_name: str) -> None:
        """Declare a queue; the daemon makes its topic when there is something to keep."""
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues.add(queue_name)
            self.emit_after("declare_queue", queue_name)

    def get_declared_queues(self) -> set[str]:
        """Return the names of the queues."""
        return self.queues.copy()

    def _declared(self, queue_name: str) -> str:
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)
        return queue_name

    def flush(self, queue_name: str) -> None:
        """Delete all messages of a queue that no worker has, its dead letters too."""
        with _as_theirs(), contextlib.suppress(TopicNotFound):
            self.client.clear(self._declared(queue_name))

    def flush_all(self) -> None:
        """Do so in all declared queues."""
        for queue_name in self.get_declared_queues():
            self.flush(queue_name)

    def join(self, queue_name: str, *, interval: int = 100, timeout: int | None = None) -> None:
        """Wait until every message of a queue is done or dead; for tests.

        It looks every `interval` milliseconds. Raises QueueNotFound, and QueueJoinTimeout after
        `timeout` milliseconds.
        """
        ends_s = None if timeout is None else time.monotonic() + timeout / 1_000
        while count := self._count(self._declared(queue_name)):
            if ends_s is not None and time.monotonic() >= ends_s:
                raise QueueJoinTimeout(
                    f"{count} messages of queue {queue_name!r} are not done after {timeout} ms"
                )
            time.sleep(interval / 1_000)

    def _count(self, queue_name: str) -> int:
        """Return how many messages are neither done nor dead."""
        try:
            with _as_theirs():
                topic = self.client.topic(queue_name)
        except TopicNotFound:
            return 0
        return topic.delayed + topic.ready + topic.reserved

    # --- Messages --------------------------------------------------------------------------------

    def enqueue(self, message: Message[Any], *, delay: int | None = None) -> Message[Any]:
        """Put a message, due at once or after so many milliseconds; return it.

        One with the same id that waits is replaced. When this returns, it is on the daemon's disk.
        Raises BrokerConnectionError, and the refusals of the daemon.
        """
        former = self.in_hand.get(message.message_id)
        try:
            if former is not None and not self._is_held(former):
                return message
            self.emit_before("enqueue", message, delay)
            self._put(message, delay)
        except Exception as error:
            if former is not None:
                former.not_enqueued, former.delay_ms = error, max(0, delay or 0)
            raise
        if former is not None:
            former.not_enqueued = None
        self.emit_after("enqueue", message, delay)
        return message

    def _put(self, message: Message[Any], delay_ms: int | None) -> None:
        options: PutOptions = {"key": message.message_id, "on_conflict": "replace"}
        options["priority"] = self._priority(message)
        if delay_ms is not None:  # else the policy of the topic decides
            options["delay"] = max(0, delay_ms) / 1_000
        with _as_theirs():
            self.client.put(message.queue_name, message.encode(), **options)

    def has(self, message: Message[Any]) -> bool:
        """Tell whether a job of its queue has its id as the key, as far as the token may look."""
        try:
            with _as_theirs():
                self.client.find(message.queue_name, message.message_id)
        except Refused:
            return False
        return True

    def _is_held(self, former: "DelaydMessage") -> bool:
        """Extend the reservation of a message that is enqueued again, and tell whether it lasts."""
        try:
            with _as_theirs():
                self.client.touch(former.job)
        except ENDED as error:
            former.not_enqueued = error  # the line deletes a job that is ready, too
            self.logger.warning(
                "Message %s is not enqueued again: its reservation has ended, and it comes again.",
                former.message_id,
            )
            return False
        return True

    def _priority(self, message: Message[Any]) -> int:
        """Return the priority of a job: the lower, the sooner it is handed out.

        `broker_priority` is as with RabbitMQ, the larger the sooner. Without it the actor's
        priority counts, the lower the sooner, if this process knows the actor.
        """
        wanted = message.options.get("broker_priority")
        if wanted is None:
            actor = self.actors.get(message.actor_name)
            wanted = -actor.priority if actor is not None else 0
        if not isinstance(wanted, int) or isinstance(wanted, bool):
            raise TypeError(f"broker_priority must be a whole number, and not {wanted!r:.80}")
        return min(max(PRIORITY - wanted, 0), PRIORITY_MAX)

    def consume(
        self, queue_name: str, prefetch: int = 1, timeout: int = 30_000
    ) -> DramatiqConsumer:
        """Return a consumer, which holds up to `prefetch` messages.

        It waits for a message for up to `timeout` milliseconds. Raises QueueNotFound.
        """
        return DelaydConsumer(self, self._declared(queue_name), prefetch, timeout)


class DelaydMessage(MessageProxy):
    """A message in hand, and its job."""

    def __init__(self, message: Message[Any], job: Job) -> None:
        super().__init__(message)
        self.job = job
        self.reason = "rejected"
        """Why it is a dead letter, if it is to be one."""
        self.not_enqueued: Exception | None = None
        """Why it could not be enqueued again: then it is given back instead of acknowledged."""
        self.delay_ms = 0

    def stuff_exception(self, exception: BaseException) -> None:
        """Note why it failed."""
        super().stuff_exception(exception)
        self.reason = described(exception)


class DelaydConsumer(DramatiqConsumer):
    """The messages of one queue in one worker process.

    `__next__` and `close` are called by one thread, the others by those of the worker.
    """

    def __init__(self, broker: DelaydBroker, queue_name: str, prefetch: int, timeout: int) -> None:
        self.logger = get_logger(__name__, type(self))
        self._broker = broker
        self._queue_name = queue_name
        self._prefetch = min(prefetch, BATCH_JOBS_MAX)
        self._wait_s = timeout / 1_000
        self._has_ended = threading.Condition()
        self._held: set[int] = set()
        """The numbers of jobs whose messages are not done."""
        self._jobs: deque[Job] = deque()
        """Those that the worker does not have yet."""

    def __next__(self) -> DelaydMessage | None:
        """Return the next message; None if there was none within the timeout."""
        while self._jobs or self._reserve():
            message = self._message(self._jobs[0])
            self._jobs.popleft()  # not before: if the daemon is away, `close` gives it back
            if message is not None:
                self._broker.in_hand[message.message_id] = message
                return message
        return None

    def _reserve(self) -> bool:
        """Reserve as many jobs as there is space for; tell whether there are some."""
        with self._has_ended:
            if not self._has_ended.wait_for(lambda: len(self._held) < self._prefetch, self._wait_s):
                return False
            free = self._prefetch - len(self._held)
        client = self._broker.client
        with _as_theirs():
            jobs = client.reserve_many(self._queue_name, limit=free, timeout=self._wait_s)
        with self._has_ended:
            self._held |= {job.id for job in jobs}
        for job in jobs:
            client.keep(job)
        self._jobs += jobs
        return bool(jobs)

    def _message(self, job: Job) -> DelaydMessage | None:
        """Return the message of a job; None if it is not to run now."""
        if job.is_lost:  # it was not extended in time: the process was suspended, for example
            self._end(job, bool)
            return None
        try:
            message = _decoded(job.body)
        except ValueError as error:
            self.logger.error("Job %d of queue %r is dead: %s", job.id, job.topic, error)  # noqa: TRY400 - it says all
            self._end(job, functools.partial(job.nack, error=str(error), dead=True))
            return None
        # A policy may have moved the job, and the worker finds the consumer by the queue. The runs
        # of a schedule have the same body, and keys of their own.
        about = {"queue_name": self._queue_name, "message_id": job.key or message.message_id}
        message = message.copy(**about)
        if not job.key and self._broker.has(message):
            self.logger.info("Message %s was enqueued again before.", message.message_id)
            self._end(job, job.ack)
            return None
        eta_ms = message.options.pop("eta", None)  # another broker's workers would hold it so long
        if isinstance(eta_ms, int | float) and (delay_s := eta_ms / 1_000 - time.time()) > 0:
            delay_s = min(delay_s, SECONDS_MAX)  # else it would be refused, and come again at once
            self._end(job, functools.partial(job.nack, delay=delay_s, counts=False))
            return None
        return DelaydMessage(message, job)

    def ack(self, message: DelaydMessage) -> None:  # type: ignore[override]  # of `__next__`
        """Acknowledge a message: it is done. One that was to come again and could not, does."""
        job, error = message.job, message.not_enqueued
        if error is None:
            self._end(job, job.ack, message)
        else:
            again = functools.partial(job.nack, error=described(error), counts=False)
            self._end(job, functools.partial(again, delay=message.delay_ms / 1_000), message)

    def nack(self, message: DelaydMessage) -> None:  # type: ignore[override]  # the same
        """Make a message a dead letter, with the reason: buried, or as the topic's policy says."""
        job = message.job
        self._end(job, functools.partial(job.nack, error=message.reason, dead=True), message)

    def requeue(self, messages: Iterable[DelaydMessage]) -> None:  # type: ignore[override]  # the same
        """Give messages back that nobody has worked on; no attempt is counted."""
        for message in messages:
            self._end(message.job, functools.partial(message.job.nack, counts=False), message)

    def close(self) -> None:
        """Give back what the worker does not have; if the daemon is away, the ttr does so."""
        jobs, self._jobs = list(self._jobs), deque()
        for job in jobs:
            job.client.keep_no_more(job)
        for job in jobs:
            self._end(job, functools.partial(job.nack, counts=False))

    def _end(
        self, job: Job, act: Callable[[], object], message: DelaydMessage | None = None
    ) -> None:
        """End a job. Raises BrokerConnectionError, and then it is still in hand."""
        try:
            with _as_theirs():
                try:
                    act()
                except ConnectionLost:  # perhaps it was done; Dramatiq would wait for 5 s
                    act()
        except ENDED as error:
            self.logger.warning(
                "Job %d of queue %r may come again: %s", job.id, self._queue_name, error
            )
        job.client.keep_no_more(job)
        if message is not None and self._broker.in_hand.get(message.message_id) is message:
            del self._broker.in_hand[message.message_id]
        with self._has_ended:
            self._held.discard(job.id)
            self._has_ended.notify()


@contextlib.contextmanager
def _as_theirs() -> Iterator[None]:
    """Raise errors that end when the daemon is back as those that Dramatiq waits after."""
    try:
        yield
    except Unreachable as error:
        raise ConnectionFailed(str(error)) from error
    except PASSING as error:
        raise ConnectionClosed(str(error)) from error


def _decoded(body: bytes) -> Message[Any]:
    """Read a message. Raises ValueError for what would stop a thread of the worker."""
    try:
        message = Message.decode(body)
    except DecodeError as error:
        raise ValueError(f"this is no message of Dramatiq: {error.error}") from error
    for name, kind in FIELDS.items():
        if not isinstance(getattr(message, name), kind):
            value = getattr(message, name)
            raise ValueError(  # noqa: TRY004 - as for all that is wrong
                f"this is no message of Dramatiq: {name} is {value!r:.80}, and no {kind.__name__}"
            )
    return message
