"""delayd as a broker of Celery, by way of kombu.

    app.conf.broker_url = "delayd://127.0.0.1:11300"
    app.conf.broker_transport = "delayd.kombu:Transport"

A queue is a topic, a message a job. A task with `eta` or `countdown` waits in delayd, on disk, and
reaches a worker when it is due; the id of the task is the key of the job. docs/celery.md is for
users; here is how it is made.

    publish ─► exchange ─► queues ─► Client.put                         any thread, any process
    worker  ─► Transport ─► JobStream: one connection, one reserve over the queues of all channels
                  ▲  hub of Celery: the socket is readable; or `drain_events` waits for it

Exchanges: kombu asks which queues are bound to one, and other processes may have bound them. So a
binding is a job too, of the topic `kombu.bindings`, with a delay that never ends. A queue that is
`auto_delete` or `exclusive` is temporary: AMQP removes it with its last consumer, and here it is
removed when its consumer ends, or when it was killed, by who looks at the exchange next.

Once this module is imported, kombu knows `delayd://` and `delayds://` (TLS) without
`broker_transport`.
"""

import datetime as dt
import hashlib
import itertools
import logging
import os
import select
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from delayd import __version__
from delayd.client import (
    BodyTooBig,
    Client,
    ClientClosed,
    ConnectionLost,
    DelaydError,
    Job,
    JobNotFound,
    NoRoom,
    NotNow,
    NotReserved,
    Refused,
    TimedOut,
    TopicNotFound,
    Unreachable,
    WrongProtocol,
)
from delayd.client.addresses import LINE_PORT, read_addresses
from delayd.client.beanstalk import topic_word
from delayd.client.connection import verified_tls
from delayd.client.job_stream import JobStream, StreamedJob

try:
    from kombu.exceptions import ChannelError
    from kombu.transport import TRANSPORT_ALIASES, virtual
    from kombu.utils.compat import register_after_fork
    from kombu.utils.json import dumps, loads
except ModuleNotFoundError as error:
    raise ImportError("there is no kombu here: pip install 'delayd[celery]'") from error

TTR_S: Final = 60.0
TTR_S_MIN: Final = 3.0
"""Less leaves no time to extend it: a job is touched three times in its ttr."""
PRIORITY: Final = 65_536
"""Of a job whose message has none; the most urgent one, of priority 9, has 9 less."""
PRIORITY_MAX: Final = 9
ROOM_MAX: Final = 1_000
"""So many messages are reserved at once where a channel has no prefetch count. Temporary queues are
read although it is reached, so that it shows that they are in use, up to this many more."""
BINDINGS: Final = "kombu.bindings"
FOR_EVER_S: Final = (1 << 32) - 1
UNUSED_S: Final = 60.0
"""A temporary queue that nobody reads may be bound this long before it is removed."""
TABLE_S: Final = 1.0
"""How long the bindings of a topic exchange are remembered: events of workers come all the time."""
LONG_AGO: Final = "1970-01-01T00:00:00+00:00"
CHECK_S: Final = 1.0
"""How often a worker looks whether the daemon is late with an answer, without asking it anything. A
loop of Celery without a timer wakes up as often, and sees a signal to stop then."""

UNREADABLE: Final = (
    *(ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError),
)
"""What a body that Celery has not written may be answered with, by kombu and by Celery itself: an
`expires` that is an object is an AttributeError, which ends the worker, and the next one."""

_SCHEMES: Final = {"delayd": "beanstalk", "delayds": "beanstalks"}
_TEXTS: Final = frozenset(("utf-8", "utf8", "us-ascii"))

logger: Final = logging.getLogger(__name__)


class Binding(NamedTuple):
    """A queue that gets what is published to an exchange with a routing key."""

    exchange: str
    routing_key: str
    queue: str
    is_temporary: bool


class QoS:
    """The messages of a channel that are not acknowledged, and how many there may be."""

    def __init__(self) -> None:
        self.prefetch_count = 0
        """0: any number."""
        self._jobs: dict[str, tuple[Job | StreamedJob, int]] = {}

    @property
    def free(self) -> int:
        """How many more may be delivered; less than 0 where there are more than there should be."""
        return (self.prefetch_count or ROOM_MAX) - len(self._jobs)

    def can_consume(self) -> bool:
        """Tell whether another one may be delivered."""
        return self.free > 0

    def append(self, tag: str, job: Job | StreamedJob, priority: int) -> None:
        """Keep the job of a message, and its priority of a job, until it is acknowledged."""
        self._jobs[tag] = (job, priority)

    def take(self, tag: str) -> tuple[Job | StreamedJob, int] | None:
        """Return the job of a message, which is acknowledged or given back now."""
        return self._jobs.pop(tag, None)

    def take_all(self) -> Iterator[Job | StreamedJob]:
        """Return all jobs, which are given back now."""
        while self._jobs:
            yield self._jobs.popitem()[1][0]

    def restore_unacked_once(self) -> None:
        """Do nothing: `Channel.close` has given all back, where the base class puts them again."""


class DelaydChannel(virtual.Channel):
    """A channel: what is published, bound and consumed over it."""

    supports_fanout = True
    connection: "DelaydTransport"

    def __init__(self, connection: "DelaydTransport", **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._qos = QoS()
        self._consumed: dict[str, Consumption] = {}
        """By consumer tag."""
        self._deliveries = itertools.count(1)

    # --- Publishing ------------------------------------------------------------------------------

    def _inplace_augment_message(
        self, message: dict[str, Any], exchange: str, routing_key: str
    ) -> None:
        """Make a text of the body where it is one, which people and other programs can read."""
        encoding = str(message.get("content-encoding") or "").lower()
        is_text = encoding in _TEXTS and not message["headers"].get("compression")
        body, properties = message["body"], message["properties"]
        if is_text and isinstance(body, bytes):
            message["body"] = body.decode(encoding)
        properties["body_encoding"] = "utf-8"
        if not is_text:
            message["body"], properties["body_encoding"] = self.encode_body(body, "base64")
        properties["delivery_info"].update(exchange=exchange, routing_key=routing_key)

    def _put(self, queue: str, message: dict[str, Any], **_how: Any) -> None:
        """Put a message into a queue; when this returns it is on the daemon's disk.

        A task that waits there under the same id is replaced, so that a publish that is repeated
        does nothing twice, and a retry takes the place of the one before.
        """
        headers = message["headers"]
        options: dict[str, Any] = {
            "priority": self._priority(message),
            "ttr": self.connection.ttr_s,
        }
        if (wait_s := seconds_until(headers.get("eta"))) > 0:
            options["delay"] = wait_s
        if headers.get("task") and headers.get("id"):
            options.update(key=headers["id"], on_conflict="replace")
        body, topic = dumps(message, ensure_ascii=False), topic_of(queue)
        try:
            self.connection.daemon.put(topic, body, **options)
        except BodyTooBig as error:
            raise BodyTooBig(
                f"a message of {len(body.encode()):,} bytes is longer than `body_bytes_max` of the"
                f" daemon, or of the policy of topic {topic!r}, allows",
                error.word,
            ) from error

    def _put_fanout(
        self, exchange: str, message: dict[str, Any], _routing_key: str, **_how: Any
    ) -> None:
        for task_id in revoked_by(message):
            self.connection.expire(task_id)
        for queue in {queue for _key, _pattern, queue in self.get_table(exchange)}:
            self._put(queue, message)

    def _priority(self, message: dict[str, Any]) -> int:
        try:
            priority = int(message["properties"].get("priority") or 0)
        except UNREADABLE:
            priority = 0
        return PRIORITY - min(max(priority, 0), PRIORITY_MAX)

    # --- Queues and bindings ---------------------------------------------------------------------

    def _new_queue(self, queue: str, **how: Any) -> None:
        topic_of(queue)
        if how.get("auto_delete") or how.get("exclusive"):
            self.connection.temporary.add(queue)

    def queue_declare(
        self,
        queue: str | None = None,
        passive: bool = False,
        **how: Any,
    ) -> Any:
        declared = super().queue_declare(queue, passive=passive, **how)
        if not passive:
            return declared
        return declared._replace(message_count=self._count(declared.queue))

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **how: Any
    ) -> None:
        """Delete a queue: its bindings, and what waits in it."""
        info = self._topic(queue)
        if info is not None:
            if if_unused and info.details["current-watching"]:
                return
            if if_empty and (info.delayed or info.ready or info.reserved or info.buried):
                return
        super().queue_delete(queue, **how)
        self._purge(queue)

    def _has_queue(self, queue: str, **_how: Any) -> bool:
        return self._topic(queue) is not None

    def _count(self, queue: str) -> int:
        info = self._topic(queue)
        return 0 if info is None else info.ready

    def _topic(self, queue: str) -> Any:
        try:
            return self.connection.daemon.topic(topic_of(queue))
        except TopicNotFound:
            return None

    def _queue_bind(
        self, exchange: str, routing_key: str, _pattern: str | None, queue: str
    ) -> None:
        is_temporary = queue in self.connection.temporary
        self.connection.bind(Binding(exchange, routing_key or "", queue, is_temporary))

    def get_table(self, exchange: str) -> list[tuple[str, str | None, str]]:
        """Return the bindings of an exchange, of all processes."""
        kind = self.typeof(exchange)
        max_age_s = TABLE_S if kind.type == "topic" else 0.0
        return [
            kind.prepare_bind(each.queue, exchange, each.routing_key, {})
            for each in self.connection.bindings(exchange, max_age_s)
        ]

    def queue_unbind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", *how: Any, **more: Any
    ) -> None:
        super().queue_unbind(queue, exchange, routing_key, *how, **more)
        self.connection.unbind(Binding(exchange or "", routing_key, queue, is_temporary=False))

    def _delete(
        self, queue: str, exchange: str, routing_key: str, *_meta: Any, **_how: Any
    ) -> None:
        self.connection.unbind(Binding(exchange, routing_key or "", queue, is_temporary=False))

    def _purge(self, queue: str) -> int:
        """Delete what waits in a queue, also what is due later; buried jobs stay."""
        try:
            return self.connection.daemon.cancel_many(topic_of(queue), state=["ready", "delayed"])
        except TopicNotFound:
            return 0

    def _size(self, _queue: str) -> int:
        """Return nothing: a producer declares its queues, and its token may only put."""
        return 0

    # --- Consuming -------------------------------------------------------------------------------

    @property
    def qos(self) -> QoS:
        return self._qos

    def basic_qos(
        self, prefetch_size: int = 0, prefetch_count: int = 0, *_how: Any, **_more: Any
    ) -> None:
        self.qos.prefetch_count = prefetch_count
        self.connection.refresh()

    def basic_consume(
        self,
        queue: str,
        no_ack: bool,
        callback: Callable[[Any], object],
        consumer_tag: str,
        **_how: Any,
    ) -> None:
        consumption = Consumption(self, queue, bool(no_ack), callback)
        self._consumed[consumer_tag] = consumption
        self.connection.consume(consumption)

    def basic_cancel(self, consumer_tag: str) -> None:
        consumption = self._consumed.pop(consumer_tag, None)
        if consumption is not None:
            self.connection.cancel(consumption)

    def basic_get(self, queue: str, no_ack: bool = False, **_how: Any) -> Any:
        """Return a message that is ready; None if there is none."""
        while True:
            try:
                job = self.connection.daemon.reserve(topic_of(queue), timeout=0)
            except TimedOut:
                return None
            if (message := self.delivered(job, no_ack=no_ack)) is not None:
                job.client.keep(job)
                return message

    def delivered(self, job: Job | StreamedJob, *, no_ack: bool) -> Any:
        """Return the message of a job; None if it is none, and the job is buried."""
        message = self._message(job)
        if message is not None and no_ack and self.qos.take(message.delivery_tag):
            job.ack()
        return message

    def _message(self, job: Job | StreamedJob) -> Any:
        try:
            payload = envelope_of(job.body)
            properties = payload["properties"]
            properties["delivery_tag"] = tag = f"{job.id}.{next(self._deliveries)}"
            properties["delivery_info"]["redelivered"] = (job.attempt or 1) > 1
            message = self.Message(payload, channel=self)
        except UNREADABLE as error:
            _bury(job, error)
            return None
        self.qos.append(tag, job, self._priority(payload))
        return message

    def hand_over(self, message: Any, callback: Callable[[Any], object]) -> None:
        """Give a message to its consumer; one that Celery cannot read would end every worker."""
        try:
            callback(message)
        except UNREADABLE as error:
            if (taken := self.qos.take(message.delivery_tag)) is None:
                raise  # it was acknowledged, so this is about something else
            _bury(taken[0], error)

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        if multiple:
            raise NotImplementedError("each message is acknowledged by itself")
        if (taken := self.qos.take(delivery_tag)) is not None:
            self._finish(taken[0].ack)

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Give a message back, as a failed attempt; or bury it, so that it is not lost."""
        if (taken := self.qos.take(delivery_tag)) is not None:
            job, priority = taken
            self._finish(job.nack if requeue else partial(job.bury, priority=priority))

    def basic_recover(self, requeue: bool = False) -> None:
        if not requeue:
            raise NotImplementedError("messages can only be recovered by requeueing them")
        for job in self.qos.take_all():
            self._finish(partial(job.nack, counts=False))

    def _finish(self, say: Callable[[], object]) -> None:
        """Say what became of a job. Raises ConnectionLost if it went with its connection."""
        try:
            say()
        except (NotReserved, ClientClosed) as error:
            raise ConnectionResetError(str(error)) from error
        if self.connection is not None:
            self.connection.refresh()

    def close(self) -> None:
        """Cancel its consumers, and give back its messages: no attempt is counted."""
        if not self.closed:
            for tag in list(self._consumed):
                self.basic_cancel(tag)
            for job in self.qos.take_all():
                try:
                    job.nack(counts=False)
                except DelaydError:
                    continue  # it is back since the connection was lost
            if self.connection is not None:
                self.connection.refresh(is_closing=True)
            super().close()


class Consumption(NamedTuple):
    """A queue that a channel consumes."""

    channel: DelaydChannel
    queue: str
    no_ack: bool
    callback: Callable[[Any], object]


class DelaydTransport(virtual.Transport):
    """A connection to the daemon, and what consumes over it."""

    Channel = DelaydChannel
    can_parse_url = True
    default_port = LINE_PORT
    driver_type = "delayd"
    driver_name = "delayd"
    polling_interval = None
    connection_errors = (
        *virtual.Transport.connection_errors,
        *(OSError, Unreachable, ConnectionLost, ClientClosed, NotNow, NoRoom),
    )
    channel_errors = (ChannelError, NotReserved, JobNotFound)
    implements = virtual.Transport.implements.extend(
        asynchronous=True,
        exchange_type=frozenset(("direct", "topic", "fanout")),
        heartbeats=False,
    )

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self.temporary: set[str] = set()
        """The queues declared here that nobody needs when nobody reads them."""
        self.ttr_s = ttr_of(client.transport_options)
        self._daemon: Client | None = None
        self._stream: JobStream | None = None
        self._pid = os.getpid()
        self._consumed: dict[str, Consumption] = {}
        """Topic → who consumes it."""
        self._arrived: deque[StreamedJob] = deque()
        self._tables: dict[str, tuple[float, list[Binding]]] = {}
        self._hub: Any = None
        self._lock = threading.RLock()
        register_after_fork(self, DelaydTransport._forget)

    # --- The connection --------------------------------------------------------------------------

    @property
    def daemon(self) -> Client:
        """The client with which messages are put; a process that was forked gets its own."""
        if self._pid != os.getpid():
            self._forget()
        if self._daemon is None:
            url, token, tls = place_of(self.client)
            self._daemon = Client(url, token=token, tls=tls, patience=0)
        return self._daemon

    def _forget(self) -> None:
        """In a process that was forked: leave the connections to the parent."""
        self._pid, self._daemon, self._hub = os.getpid(), None, None
        self._consumed, self._arrived, self._lock = {}, deque(), threading.RLock()
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.forget()

    def _collect(self, _connection: object) -> None:
        """Let go of everything at once, as kombu does after an error and in a forked process."""
        if self._pid == os.getpid():
            self._stop_reading()
            if self._daemon is not None:
                self._daemon.close()
        self._forget()

    def _stop_reading(self) -> None:
        """Have Celery's loop look at the connection no longer."""
        if self._hub is not None and self._stream is not None and not self._stream.is_closed:
            self._hub.remove_reader(self._stream.fileno())
        self._hub = None

    def establish_connection(self) -> "DelaydTransport":
        if not hasattr(select, "poll"):
            raise ValueError(
                "eventlet has taken `select.poll` away, which connections to delayd wait with:"
                " use `--pool gevent`, `threads`, `prefork` or `solo`"
            )
        try:
            self.daemon.stream().close()
        except WrongProtocol as error:
            shown = without_token(self.client.as_uri())
            raise ValueError(
                f"at the broker url {shown!r} is HTTP: Celery speaks the line protocol,"
                f" whose port is {LINE_PORT} unless the daemon was told another"
            ) from error
        super().establish_connection()
        return self

    def close_connection(self, connection: object) -> None:
        super().close_connection(connection)
        if self._pid != os.getpid():
            self._forget()
            return
        self._stop_reading()
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
        if self._daemon is not None:
            self._daemon.close()
            self._daemon = None

    def driver_version(self) -> str:
        return __version__

    def verify_connection(self, connection: object) -> bool:
        return connection is self

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """Return the url, without the token."""
        return uri if include_password else without_token(uri, mask)

    # --- Consuming -------------------------------------------------------------------------------

    @property
    def stream(self) -> JobStream:
        """The connection that jobs come over."""
        daemon = self.daemon
        with self._lock:
            if self._stream is None:
                self._stream = daemon.stream()
                self._stream.on_lost = _warn_of_loss
            return self._stream

    def consume(self, consumption: Consumption) -> None:
        """Consume a queue from now on."""
        with self._lock:
            self._consumed[topic_of(consumption.queue)] = consumption
        self.stream  # noqa: B018 - it is connected to
        self.refresh()

    def cancel(self, consumption: Consumption) -> None:
        """Consume a queue no longer; a temporary one is removed."""
        queue = consumption.queue
        with self._lock:
            if self._consumed.get(topic_of(queue)) is not consumption:
                return
            del self._consumed[topic_of(queue)]
        if queue in self.temporary and self._stream is not None and not self._stream.is_closed:
            try:
                consumption.channel.queue_delete(queue)
            except DelaydError as error:
                logger.debug("queue %r is left to be removed later: %s", queue, error)
        self.refresh()

    def refresh(self, *, is_closing: bool = False) -> None:
        """Reserve as many messages as the channels have room for, of all their queues at once.

        What was said of jobs is sent with it. Any thread may call this.
        """
        stream = self._stream
        if stream is None or self._pid != os.getpid():
            return
        topics, limit = set(), ROOM_MAX
        try:
            with self._lock:
                for topic, each in self._consumed.items():
                    free = each.channel.qos.free - len(self._arrived)
                    if free > 0 or (each.queue in self.temporary and free > -ROOM_MAX):
                        topics.add(topic)
                        limit = min(limit, free) if free > 0 else limit
                stream.reserve(topics, limit)
        except (ConnectionLost, ClientClosed):
            if not is_closing:
                raise

    def pump(self) -> int:
        """Deliver the messages that have arrived; return how many they were."""
        delivered = 0
        with self._lock:
            self._arrived += self.stream.receive()
        try:
            while self._arrived:
                self._deliver_next()
                delivered += 1
        finally:
            if self._arrived and self._hub is not None:
                self._hub.call_soon(self._look)
            self.refresh()
        return delivered

    def _look(self) -> None:
        """Deliver what has arrived, unless the connection is closed: timers of Celery stay."""
        if self._hub is not None:
            self.pump()

    def _deliver_next(self) -> None:
        with self._lock:  # so that an acknowledgement by another thread counts it once
            job = self._arrived.popleft()
            consumption = self._consumed.get(job.topic)
            if consumption is None:
                job.nack(counts=False)
                return
            message = consumption.channel.delivered(job, no_ack=consumption.no_ack)
        if message is not None:
            consumption.channel.hand_over(message, consumption.callback)

    def drain_events(self, connection: object, timeout: float | None = None) -> None:
        """Deliver what arrives, at least one message. Raises TimeoutError after so many seconds."""
        ends_s = float("inf") if timeout is None else time.monotonic() + timeout
        while not self.pump():
            left_s = ends_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            self.stream.wait(min(left_s, CHECK_S))

    def register_with_event_loop(self, connection: object, loop: Any) -> None:
        """Have Celery's loop deliver messages as soon as they arrive."""
        self._hub = loop
        loop.add_reader(self.stream.fileno(), self.pump)
        loop.call_repeatedly(CHECK_S, self._look)

    def unregister_from_event_loop(self, connection: object, loop: Any) -> None:
        """Have it no longer do so."""
        self._stop_reading()

    def expire(self, task_id: str) -> None:
        """Have a task that waits handed out now, as one that expired in 1970.

        So the next worker marks it as revoked, and does not run it; and no restart of a worker, all
        of which keep in memory what was revoked, brings it back. One in hand is left to its worker.
        """
        try:
            for job in self.daemon.find_key(task_id):
                self._expire_job(job.id)
        except Refused as error:
            logger.warning("task %s is revoked by the workers of now alone: %s", task_id, error)

    def _expire_job(self, job_id: int) -> None:
        try:
            message = loads(self.daemon.get(job_id).body)
            message["headers"]["expires"] = LONG_AGO
            self.daemon.change(job_id, body=dumps(message, ensure_ascii=False), delay=0)
        except (JobNotFound, *UNREADABLE):
            return  # it was handed out meanwhile, or is no message

    # --- Bindings --------------------------------------------------------------------------------

    def bind(self, binding: Binding) -> None:
        """Remember a binding, for all processes."""
        self.daemon.put(
            BINDINGS,
            dumps(binding._asdict()),
            key=_binding_key(binding),
            on_conflict="keep",
            delay=FOR_EVER_S,
        )
        self._tables.pop(binding.exchange, None)

    def unbind(self, binding: Binding) -> None:
        """Forget a binding, if it is there."""
        self._tables.pop(binding.exchange, None)
        try:
            self.daemon.cancel(BINDINGS, _binding_key(binding))
        except (JobNotFound, TopicNotFound):
            return

    def bindings(self, exchange: str, max_age_s: float) -> list[Binding]:
        """Return the bindings of an exchange, as they were at most so long ago."""
        now_s = time.monotonic()
        read_s, found = self._tables.get(exchange, (float("-inf"), []))
        if now_s - read_s > max_age_s:
            found = list(self._read_bindings(exchange))
            self._tables[exchange] = (now_s, found)
        return found

    def _read_bindings(self, exchange: str) -> Iterator[Binding]:
        jobs = self.daemon.jobs(BINDINGS, bodies=True, key_prefix=_exchange_key(exchange))
        try:
            for job in jobs:
                binding = binding_of(job.body or b"")
                if binding is None or binding.exchange != exchange:
                    continue  # a name may begin with the same hundred bytes
                if binding.is_temporary and self._is_unused(binding, float(job.details["age"])):
                    self._remove(binding)
                else:
                    yield binding
        except TopicNotFound:
            return

    def _is_unused(self, binding: Binding, age_s: float) -> bool:
        """Tell whether nobody reads a temporary queue: its worker was killed, say."""
        if age_s < UNUSED_S:
            return False
        try:
            return not self.daemon.topic(topic_of(binding.queue)).details["current-watching"]
        except TopicNotFound:
            return True

    def _remove(self, binding: Binding) -> None:
        self.unbind(binding)
        try:
            self.daemon.cancel_many(topic_of(binding.queue))
        except TopicNotFound:
            return


# --- Names, urls and messages --------------------------------------------------------------------


def topic_of(queue: str) -> str:
    """Return the topic of a queue: what a topic's name cannot have is written as its bytes.

    Raises TopicNameInvalid for an empty one, and one that is too long.

    >>> topic_of("celery"), topic_of("celery@host.celery.pidbox"), topic_of("-x")
    ('celery', 'celery+40host.celery.pidbox', '+2Dx')
    """
    text = quote(queue, safe="/;.$_()-").replace("~", "%7E").replace("%", "+")
    return topic_word(f"+2D{text[1:]}" if text.startswith("-") else text)


def _exchange_key(exchange: str) -> str:
    return f"{quote(exchange, safe='')[:100]}:"


def _binding_key(binding: Binding) -> str:
    """Return the key of a binding: the exchange, by which they are looked for, and a digest."""
    names = dumps([binding.exchange, binding.routing_key, binding.queue])
    return _exchange_key(binding.exchange) + hashlib.sha256(names.encode()).hexdigest()[:40]


def _bury(job: Job | StreamedJob, error: Exception) -> None:
    """Bury a job whose body is not what Celery writes."""
    logger.error(
        "job %d of topic %r is buried, since its body is no message of Celery: %s",
        *(job.id, job.topic, error),
    )
    job.bury(priority=PRIORITY)


def binding_of(body: bytes) -> Binding | None:
    """Return the binding of a job; None if it is none.

    >>> binding_of(b'{"exchange": "e", "routing_key": "", "queue": "q", "is_temporary": true}')
    Binding(exchange='e', routing_key='', queue='q', is_temporary=True)
    >>> binding_of(b"[]"), binding_of(b'{"exchange": 1}')
    (None, None)
    >>> binding_of(b'{"exchange": "e", "routing_key": "", "queue": "", "is_temporary": true}')
    """
    try:
        binding = Binding(**loads(body))
        topic_of(binding.queue)
    except UNREADABLE:
        return None
    return binding if all(isinstance(name, str) for name in binding[:3]) else None


def seconds_until(eta: object) -> float:
    """Return how long it is to a moment; 0 if it is none, as a worker finds out.

    >>> seconds_until("1970-01-01T00:00:00"), seconds_until(None), seconds_until("soon")
    (0.0, 0.0, 0.0)
    """
    if isinstance(eta, str):
        try:
            eta = dt.datetime.fromisoformat(eta)
        except ValueError:
            return 0.0
    if not isinstance(eta, dt.datetime):
        return 0.0
    at_s = eta.timestamp()
    if eta.tzinfo is None:  # of UTC by default, else of the app's time zone: a worker may hold it
        at_s = min(at_s, eta.replace(tzinfo=dt.UTC).timestamp())
    return max(0.0, at_s - time.time())


def envelope_of(body: bytes) -> dict[str, Any]:
    """Return a message as kombu has it; what a program of another language left out is added.

    Raises ValueError or TypeError for what is no message.

    >>> envelope_of(b'{"headers": {"task": "add", "id": "1"}, "body": [[1, 2], {}, {}]}')["body"]
    '[[1, 2], {}, {}]'
    """
    payload = loads(body)
    if not isinstance(payload, dict) or "body" not in payload:
        raise TypeError("an object with the member `body` is needed, and headers as of Celery")
    payload.setdefault("content-type", "application/json")
    payload.setdefault("content-encoding", "utf-8")
    payload["headers"] = dict(payload.get("headers") or {})
    payload["properties"] = properties = dict(payload.get("properties") or {})
    properties["delivery_info"] = dict(properties.get("delivery_info") or {})
    if not isinstance(payload["body"], str | bytes):
        payload["body"] = dumps(payload["body"])
    return payload


def revoked_by(message: Mapping[str, Any]) -> list[str]:
    """Return the ids of the tasks that a broadcast revokes.

    >>> body = '{"method": "revoke", "arguments": {"task_id": ["1", "2"], "terminate": false}}'
    >>> revoked_by({"body": body}), revoked_by({"body": "{}"})
    (['1', '2'], [])
    """
    body = message["body"]
    if not isinstance(body, str) or '"revoke"' not in body:
        return []
    try:
        call = loads(body)
        ids = call["arguments"]["task_id"] if call["method"] == "revoke" else []
    except UNREADABLE:
        return []
    return [ids] if isinstance(ids, str) else [each for each in ids if isinstance(each, str)]


def ttr_of(options: Mapping[str, Any]) -> float:
    """Return the ttr of messages. Raises ValueError.

    >>> ttr_of({}), ttr_of({"ttr": 600})
    (60.0, 600.0)
    """
    ttr_s = options.get("ttr", TTR_S)
    is_number = isinstance(ttr_s, int | float) and not isinstance(ttr_s, bool)
    if not is_number or not TTR_S_MIN <= ttr_s <= FOR_EVER_S:
        rule = f"must be a number of seconds from {TTR_S_MIN:g} to {FOR_EVER_S}"
        raise ValueError(f"broker_transport_options: ttr = {ttr_s!r} {rule}")
    return float(ttr_s)


def place_of(connection: Any) -> tuple[str, str, ssl.SSLContext | None]:
    """Return where the daemon of a connection of kombu is, the token for it, and its TLS.

    Raises ValueError for a url that names no daemon with the line protocol.
    """
    text = connection.hostname or "localhost"
    if "://" not in text:  # kombu has taken the url of another of several to pieces
        text = f"delayd://{text}:{connection.port or LINE_PORT}"
    scheme, token, place = parts_of(text)
    credential = unquote(token) or connection.transport_options.get("token") or connection.password
    scheme = _SCHEMES.get(scheme, scheme)
    if connection.ssl and scheme == "beanstalk":
        scheme = "beanstalks"
    url = f"{scheme}://{place.rstrip('/') or 'localhost'}"
    try:
        addresses = read_addresses(url)
    except ValueError as error:
        rule = "must be delayd://HOST:PORT, delayd://:TOKEN@HOST:PORT, delayds://HOST (TLS) or"
        rule += " unix:///PATH, without options"
        raise ValueError(f"the broker url {without_token(text)!r} {rule}") from error
    if addresses[0].speaks != "line":
        raise ValueError(
            f"the broker url {url!r} is that of HTTP: Celery speaks the line protocol, so name"
            f" delayd://{addresses[0].host or 'HOST'}:{LINE_PORT}"
        )
    return url, str(credential or ""), tls_of(connection.ssl) if addresses[0].is_tls else None


def parts_of(url: str) -> tuple[str, str, str]:
    """Return the scheme of a broker url, the token in it as it is written, and the place.

    >>> parts_of("delayd://:t0k@host:11300"), parts_of("unix:///run/line.sock")
    (('delayd', 't0k', 'host:11300'), ('unix', '', '/run/line.sock'))
    """
    scheme, _, rest = url.partition("://")
    if scheme == "unix":
        return scheme, "", rest
    user, _, place = rest.rpartition("@")
    return scheme, user.partition(":")[2] if ":" in user else user, place


def without_token(url: str, mask: str = "**") -> str:
    """Return a broker url for people."""
    token = parts_of(url)[1]
    return url.replace(f"{token}@", f"{mask}@", 1) if token else url


def tls_of(options: object) -> ssl.SSLContext:
    """Return the TLS of `broker_use_ssl`: True, or a dict as other transports of kombu take it."""
    context = verified_tls()
    if isinstance(options, Mapping):
        named = {str(name).removeprefix("ssl_"): value for name, value in options.items()}
        if named.get("ca_certs"):
            context.load_verify_locations(named["ca_certs"])
        if named.get("certfile"):
            context.load_cert_chain(named["certfile"], named.get("keyfile"))
        if named.get("check_hostname") is False or named.get("cert_reqs") == ssl.CERT_NONE:
            context.check_hostname = False
        if "cert_reqs" in named:
            context.verify_mode = named["cert_reqs"]
    return context


def _warn_of_loss(job: StreamedJob) -> None:
    logger.warning(
        "task %s (job %d of topic %r): its ttr ran out, so it is handed out again",
        *(job.key or "without an id", job.id, job.topic),
    )


Transport = DelaydTransport
TRANSPORT_ALIASES.update(
    {name: "delayd.kombu:Transport" for name in _SCHEMES if name not in TRANSPORT_ALIASES}
)
