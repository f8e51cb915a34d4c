"""An AMQP exchange, such as RabbitMQ's, as the target of due jobs.

    [sinks.orders]
    kind = "amqp"
    url = "amqp://delayd@127.0.0.1:5672/"
    exchange = "orders"
    routing_key = "due.{topic}"

A job is delivered when the broker has confirmed it (publisher confirms); it is marked as persistent
and as mandatory, so a message that no queue takes comes back and is a failed attempt. There is one
connection with one channel for all attempts. When it is lost, the attempts under way have failed,
and the next one opens another; attempts that find one being opened wait for it.

A broker may send as many bytes as it was sent, and a little for its answers; after more the
connection is closed (`push.transports`), since the library would read without bound. The module
knows nothing of the daemon but the interface of sinks.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, cast, final

import aio_pika
from aio_pika import exceptions
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractExchange, DeliveryMode
from aiormq.connection import TransportFactory
from yarl import URL

from delayd import limits
from delayd.fields import FLAG, Field, text_of
from delayd.push.options import ServerOptions, server_url
from delayd.push.sinks import DELIVERED, AttemptEnd, DueJob, Result
from delayd.push.transports import BoundedTransport, Tls, open_stream, stream_transports


class _Opened(NamedTuple):
    connection: AbstractConnection
    channel: AbstractChannel
    exchange: AbstractExchange


_KEY: Final = text_of("must be a routing key; {topic} in it is the job's topic")


def _read_routing_key(value: object) -> str:
    key: str = _KEY.read(value)
    longest = key.replace("{topic}", "x" * limits.TOPIC_NAME_BYTES_MAX)
    if len(longest.encode()) > limits.AMQP_TEXT_BYTES_MAX:
        raise ValueError(f"must have at most {limits.AMQP_TEXT_BYTES_MAX} bytes with any topic")
    return key


AMQP_FIELDS: Final = (
    server_url(
        {"amqp": 5672, "amqps": 5671},
        "must be amqp://[USER@]HOST[:PORT][/VHOST], or amqps:// for TLS",
    ),
    Field("exchange", "exchange", text_of("must be the name of an exchange")),
    Field("routing_key", "routing_key", _KEY._replace(read=_read_routing_key)),
    Field("mandatory", "mandatory", FLAG),
)
_PROPERTIES: Final = frozenset(("message_id", "content_type"))
"""Fields of a job that are properties of a message."""


def amqp_sink(name: str, options: Mapping[str, object]) -> "AmqpSink":
    """Make the sink of these options. Raises `Invalid`, a `ValueError`, with all mistakes."""
    server = ServerOptions(options, AMQP_FIELDS, tls_scheme="amqps")
    streams = _Streams(server)

    def make(url: URL, **more: Any) -> aio_pika.Connection:  # noqa: ANN401 - aio-pika's
        connection = aio_pika.Connection(url, **more)
        connection.kwargs["transport_factory"] = streams
        return connection

    async def connect() -> AbstractConnection:
        url = server.url
        return await aio_pika.connect(
            host=url.host,
            port=url.port,
            login=url.user or "guest",
            password=server.password() or ("" if url.user else "guest"),
            virtualhost=url.path or "/",
            ssl=server.tls is not None,
            ssl_context=server.tls,
            timeout=server.connect_s,
            client_properties={"connection_name": f"delayd:{name}"},
            heartbeat=limits.AMQP_HEARTBEAT_S,
            connection_class=cast("type[aio_pika.Connection]", make),
        )

    return AmqpSink(server, connect, streams)


@final
class _Streams(TransportFactory):
    """Connects, and bounds the bytes received on the last connection."""

    def __init__(self, server: ServerOptions) -> None:
        self._server = server
        self._transports = stream_transports()
        self._transport: BoundedTransport | None = None

    async def create(
        self,
        url: URL,  # noqa: ARG002 - the options have it
        **_: object,
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return the two streams that the library reads and writes."""
        where = self._server.url
        tls = None if self._server.tls is None else Tls(self._server.tls, where.host)
        try:
            streams = await open_stream(self._transports, (where.host, where.port), tls)
        except OSError as error:
            raise exceptions.AMQPConnectionError(*error.args) from error
        self.abort()  # there is one at a time
        reader, writer, self._transport = streams
        self.allow(0)
        return reader, writer

    def abort(self) -> None:
        """Close a connection that the library may have left open."""
        if self._transport is not None:
            self._transport.abort()

    def allow(self, sent: int) -> None:
        """Allow the return of the sent bytes, and answers."""
        if self._transport is not None:
            self._transport.allow(sent + limits.SINK_REPLY_BYTES_MAX)


@final
class AmqpSink:
    """Publishes each job to an exchange."""

    def __init__(
        self,
        server: ServerOptions,
        connect: Callable[[], Awaitable[AbstractConnection]],
        streams: _Streams,
    ) -> None:
        """Call `connect`, which uses the `streams`, at the first job and after each loss."""
        self._server: Final = server
        self._connect: Final = connect
        self._exchange: Final[str] = server.values.get("exchange", "")
        self._routing_key: Final[str] = server.values.get("routing_key", "{topic}")
        self._is_mandatory: Final[bool] = server.values.get("mandatory", True)
        self._streams: Final = streams
        self._under_way_bytes = 0
        """Size of the unconfirmed messages, which the broker may return."""
        self._opening: asyncio.Task[_Opened] | None = None
        """The task that opens the exchange, or has opened it."""

    async def deliver(self, job: DueJob) -> AttemptEnd:
        """Publish the job; the attempt has failed unless the broker confirms it."""
        routing_key = self._routing_key.replace("{topic}", job.topic)
        try:
            exchange = await self._opened()
            with self._under_way(job):
                await exchange.publish(_message(job), routing_key, mandatory=self._is_mandatory)
        except exceptions.PublishError:
            reason = f"no queue is bound to exchange {self._exchange!r} for {routing_key!r}"
            # With a routing key for each topic, there may be queues for the others.
            return self._failed(reason, is_outage="{topic}" not in self._routing_key)
        except exceptions.DeliveryError:
            return self._failed("it did not store the message: a queue may be full")
        except exceptions.ChannelPreconditionFailed as error:
            return self._failed(str(error), is_outage=False)  # such as a body that is too long
        except exceptions.ChannelInvalidStateError:
            return self._failed("the connection was lost")
        except exceptions.InvalidFrameError:
            vhost = self._server.url.path or "/"
            return self._failed(f"it has no virtual host {vhost!r} for this user")
        except (*exceptions.CONNECTION_EXCEPTIONS, ValueError) as error:
            return self._failed(" ".join(str(error).split()) or type(error).__name__)
        return DELIVERED

    async def close(self) -> None:
        """Close the connection."""
        if self._opening is not None:
            await _end(self._opening)
        self._streams.abort()

    @contextlib.contextmanager
    def _under_way(self, job: DueJob) -> Iterator[None]:
        """Allow the broker to answer, and to return the message with its headers."""
        count = len(job.body) + limits.SINK_MESSAGE_BYTES
        self._note_under_way(count)
        try:
            yield
        finally:
            self._note_under_way(-count)

    def _note_under_way(self, more_bytes: int) -> None:
        self._under_way_bytes += more_bytes
        self._streams.allow(self._under_way_bytes)

    def _failed(self, reason: str, *, is_outage: bool = True) -> AttemptEnd:
        error = f"AMQP at {self._server.url}: {reason}"
        return AttemptEnd(Result.FAILED, error, is_outage=is_outage)

    async def _opened(self) -> AbstractExchange:
        """Return the exchange on an open channel; one task opens it for all attempts."""
        opening = self._opening
        if opening is None or (opening.done() and not _works(opening)):
            opening = self._opening = asyncio.create_task(self._open(former=opening))
        # An attempt may be cancelled here; the others go on waiting.
        return (await asyncio.shield(opening)).exchange

    async def _open(self, *, former: "asyncio.Task[_Opened] | None") -> _Opened:
        """Open a connection and a channel, in place of those of the former task."""
        if former is not None:
            await _end(former)
        connection = await self._connect()
        try:
            async with asyncio.timeout(self._server.connect_s):
                channel = connection.channel(publisher_confirms=True, on_return_raises=True)
                await channel.initialize()
                # Ask for it: a publish to a missing one closes the channel for all attempts.
                exchange = await channel.get_exchange(self._exchange, ensure=bool(self._exchange))
        except BaseException:
            await _close(connection)
            raise
        return _Opened(connection, channel, exchange)


def _works(opening: asyncio.Task[_Opened]) -> bool:
    """Tell whether the task has opened a channel that is still open."""
    if opening.cancelled() or opening.exception() is not None:
        return False
    return not opening.result().channel.is_closed


async def _end(opening: asyncio.Task[_Opened]) -> None:
    """Cancel the task, or close its connection."""
    opening.cancel()
    await asyncio.wait((opening,))
    if not opening.cancelled() and opening.exception() is None:
        await _close(opening.result().connection)


async def _close(connection: AbstractConnection) -> None:
    """Close a connection; its broker may be gone, or not answer."""
    with contextlib.suppress(*exceptions.CONNECTION_EXCEPTIONS):  # a TimeoutError among them
        async with asyncio.timeout(limits.SINK_CLOSE_MS / 1_000):
            await connection.close()


def _message(job: DueJob) -> aio_pika.Message:
    return aio_pika.Message(
        job.body,
        message_id=job.message_id,
        content_type=job.content_type,
        delivery_mode=DeliveryMode.PERSISTENT,
        app_id="delayd",
        headers={
            f"delayd-{name.replace('_', '-')}": value
            for name, value in job.fields().items()
            if name not in _PROPERTIES
        },
    )
