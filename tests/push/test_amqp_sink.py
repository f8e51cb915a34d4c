"""The AMQP sink over a double of its library: what it publishes, when it connects, what fails.

`Broker` stands for the server and says how often it was connected to. A connection may wait, fail,
or be lost; an exchange takes messages or answers with an error.
"""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, Final, cast

import aio_pika
import pytest
from aio_pika import exceptions
from aio_pika.abc import AbstractConnection, DeliveryMode
from pamqp.base import Frame
from pamqp.body import ContentBody
from pamqp.commands import Basic, Channel, Confirm, Connection
from pamqp.frame import marshal, unmarshal
from pamqp.header import ContentHeader
from pamqp.heartbeat import Heartbeat

from delayd.fields import Invalid
from delayd.push.amqp_sink import AmqpSink, amqp_sink
from delayd.push.sinks import DELIVERED, AttemptEnd, DueJob, Result, Sink
from tests.push.receiver import delivered
from tests.push.test_sinks import JOB

NOT_PUT: Final = exceptions.DeliveryError(None, Basic.Nack(1))


class Returned(exceptions.PublishError):
    """A message that no queue takes."""

    def __init__(self) -> None:
        Exception.__init__(self)


class Broker:
    """Everything from the connection to the exchange, for one connection at a time."""

    def __init__(self) -> None:
        self.connects = 0
        self.closes = 0
        self.published: list[tuple[aio_pika.Message, str, bool]] = []
        self.asked_for: list[tuple[str, bool]] = []
        self.connect_error: Exception | None = None
        self.exchange_error: Exception | None = None
        self.publish_error: Exception | None = None
        self.may_connect = asyncio.Event()
        self.may_connect.set()
        self.is_connecting = asyncio.Event()
        self.is_closed = False

    async def connect(self) -> AbstractConnection:
        self.connects += 1
        self.is_connecting.set()
        await self.may_connect.wait()
        if self.connect_error is not None:
            raise self.connect_error
        self.is_closed = False
        return cast("AbstractConnection", self)

    def channel(self, *, publisher_confirms: bool, on_return_raises: bool) -> "Broker":
        assert publisher_confirms
        assert on_return_raises
        return self

    async def initialize(self) -> None:
        pass

    async def get_exchange(self, name: str, *, ensure: bool) -> "Broker":
        self.asked_for.append((name, ensure))
        if self.exchange_error is not None:
            raise self.exchange_error
        return self

    async def publish(self, message: aio_pika.Message, key: str, *, mandatory: bool) -> None:
        if self.publish_error is not None:
            raise self.publish_error
        self.published.append((message, key, mandatory))

    async def close(self) -> None:
        self.closes += 1
        self.is_closed = True


def sink_to(broker: Broker, **options: object) -> AmqpSink:
    sink = amqp_sink("orders", {"url": "amqp://h:1", **options})
    assert isinstance(sink, AmqpSink)
    sink._connect = broker.connect  # type: ignore[misc]
    return sink


async def one(error: Exception, job: DueJob = JOB, **options: object) -> AttemptEnd:
    """What becomes of an attempt whose publish ends with the error."""
    broker = Broker()
    broker.publish_error = error
    return await sink_to(broker, **options).deliver(job)


async def test_a_message_is_persistent_and_has_what_a_receiver_wants_to_know() -> None:
    broker = Broker()
    assert await sink_to(broker).deliver(JOB) == DELIVERED
    ((message, key, is_mandatory),) = broker.published
    assert (message.body, message.message_id, message.content_type) == (b"hi", "0a_7", "text/plain")
    assert message.delivery_mode is DeliveryMode.PERSISTENT
    assert message.headers == {
        "delayd-id": 7,
        "delayd-topic": "mail",
        "delayd-key": "order-17",
        "delayd-attempt": 1,
        "delayd-due": "1970-01-01T00:00:01.000Z",
        "delayd-lateness-ms": 3,
    }
    assert (key, is_mandatory, broker.asked_for) == ("mail", True, [("", False)])


async def test_a_message_goes_where_the_options_say_and_need_not_find_a_queue() -> None:
    broker = Broker()
    options = {"exchange": "orders", "routing_key": "due.{topic}.x", "mandatory": False}
    assert await sink_to(broker, **options).deliver(JOB) == DELIVERED
    ((_, key, is_mandatory),) = broker.published
    assert (key, is_mandatory, broker.asked_for) == ("due.mail.x", False, [("orders", True)])


async def test_a_message_that_comes_back_has_failed_because_no_queue_is_bound() -> None:
    end = await one(Returned(), exchange="orders")
    said = "AMQP at h:1: no queue is bound to exchange 'orders' for 'mail'"
    assert end == AttemptEnd(Result.FAILED, said)
    assert (await one(Returned(), routing_key="due")).is_outage


@pytest.mark.parametrize(
    ("error", "said", "is_outage"),
    [
        (NOT_PUT, "it did not store the message: a queue may be full", True),
        (exceptions.ChannelPreconditionFailed("too large"), "too large", False),
        (exceptions.ChannelInvalidStateError("<Channel 0x>"), "the connection was lost", True),
        (exceptions.AMQPConnectionError("Server  reset"), "Server reset", True),
        (exceptions.ConnectionClosed(), "ConnectionClosed", True),
        (exceptions.InvalidFrameError("odd"), "it has no virtual host '/' for this user", True),
        (OSError("no route"), "no route", True),
        (ValueError("routing key too long"), "routing key too long", True),
    ],
)
async def test_what_goes_wrong_is_said_and_whether_others_would_fare_better(
    error: Exception, said: str, is_outage: bool
) -> None:
    assert await one(error) == AttemptEnd(
        Result.FAILED, f"AMQP at h:1: {said}", is_outage=is_outage
    )


def test_a_routing_key_that_would_be_too_long_with_some_topic_is_refused() -> None:
    fits = "x" * 55 + "{topic}"
    for key, rule in (
        (f"x{fits}", "must have at most 255 bytes with any topic"),
        (5, "must be a routing key; {topic} in it is the job's topic"),
    ):
        with pytest.raises(Invalid) as caught:
            amqp_sink("orders", {"url": "amqp://h", "routing_key": key})
        assert caught.value.errors[0].rule == rule
    amqp_sink("orders", {"url": "amqp://h", "routing_key": fits})


async def test_a_fault_of_our_own_is_not_hidden() -> None:
    with pytest.raises(KeyError):
        await one(KeyError("x"))


async def test_all_attempts_share_one_connection_also_while_it_is_being_opened() -> None:
    broker = Broker()
    sink = sink_to(broker)
    ends = await asyncio.gather(*(sink.deliver(JOB) for _ in range(50)))
    ends.append(await sink.deliver(JOB))
    assert ends == [DELIVERED] * 51
    assert broker.connects == 1


async def test_an_attempt_that_is_cancelled_leaves_the_opening_to_the_others() -> None:
    broker = Broker()
    broker.may_connect.clear()
    sink = sink_to(broker)
    first, second = (asyncio.create_task(sink.deliver(JOB)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    broker.may_connect.set()
    assert await second == DELIVERED
    assert first.cancelled()
    assert broker.connects == 1


async def test_a_connection_that_fails_is_tried_again_by_the_next_attempt() -> None:
    broker = Broker()
    sink = sink_to(broker)
    broker.connect_error = OSError("refused")
    ends = await asyncio.gather(*(sink.deliver(JOB) for _ in range(3)))
    assert {end.error for end in ends} == {"AMQP at h:1: refused"}
    assert broker.connects == 1
    broker.connect_error = None
    assert await sink.deliver(JOB) == DELIVERED
    assert broker.connects == 2


async def test_a_failure_to_connect_that_no_attempt_waits_for_is_not_reported_as_lost() -> None:
    """The loop of a test has nothing to complain of."""
    broker = Broker()
    broker.may_connect.clear()
    broker.connect_error = OSError("refused")
    attempt = asyncio.create_task(sink_to(broker).deliver(JOB))
    await asyncio.sleep(0)
    attempt.cancel()
    broker.may_connect.set()
    await asyncio.wait((attempt,))


async def test_a_lost_channel_is_opened_again_with_a_connection_of_its_own() -> None:
    broker = Broker()
    sink = sink_to(broker)
    await sink.deliver(JOB)
    broker.is_closed = True
    assert await sink.deliver(JOB) == DELIVERED
    assert (broker.connects, broker.closes) == (2, 1)


async def test_a_connection_without_its_exchange_is_closed() -> None:
    broker = Broker()
    broker.exchange_error = exceptions.ChannelNotFoundEntity("NOT_FOUND - no exchange 'x'")
    end = await sink_to(broker, exchange="x").deliver(JOB)
    assert end.error == "AMQP at h:1: NOT_FOUND - no exchange 'x'"
    assert end.is_outage
    assert broker.closes == 1


async def test_closing_a_sink_closes_what_is_open_and_ends_what_is_being_opened() -> None:
    broker = Broker()
    await sink_to(broker).close()
    assert broker.connects == 0

    sink = sink_to(broker)
    await sink.deliver(JOB)
    await sink.close()
    assert broker.closes == 1

    broker.may_connect.clear()
    broker.is_connecting.clear()
    sink = sink_to(broker)
    attempt = asyncio.create_task(sink.deliver(JOB))
    await broker.is_connecting.wait()
    await sink.close()
    await asyncio.wait((attempt,))
    assert (attempt.cancelled(), broker.connects, broker.closes) == (True, 2, 1)


async def test_a_broker_that_does_not_answer_does_not_keep_a_sink_from_closing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Frozen(Broker):
        async def close(self) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr("delayd.limits.SINK_CLOSE_MS", 0)
    sink = sink_to(Frozen())
    await sink.deliver(JOB)
    await sink.close()


def test_url_and_options_say_how_to_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, object]] = []

    def connect(**how: object) -> Coroutine[None, None, AbstractConnection]:
        calls.append(how)
        return Broker().connect()

    monkeypatch.setattr("aio_pika.connect", connect)
    for options in (
        {"url": "amqp://h"},
        {"url": "amqps://ada@h:7/orders", "password": "p", "connect_timeout": "2s"},
        {"url": "amqp://ada@h"},
    ):
        asyncio.run(amqp_sink("orders", options).deliver(JOB))
    plain, tls, without = calls
    assert [plain[part] for part in ("host", "port", "virtualhost")] == ["h", 5672, "/"]
    assert [plain[part] for part in ("login", "password", "ssl")] == ["guest", "guest", False]
    assert [tls[part] for part in ("host", "port", "virtualhost")] == ["h", 7, "orders"]
    assert [tls[part] for part in ("login", "password", "ssl")] == ["ada", "p", True]
    assert (tls["timeout"], tls["client_properties"]) == (2, {"connection_name": "delayd:orders"})
    assert [without[part] for part in ("login", "password")] == ["ada", ""]


# --- A broker that means harm --------------------------------------------------------------------


class Frames:
    """A broker that opens whatever it is asked to, and then answers a message with these bytes."""

    OPENING: Final[dict[str, Frame]] = {
        "Connection.StartOk": Connection.Tune(10, 128 << 10, 0),
        "Connection.Open": Connection.OpenOk(),
        "Channel.Open": Channel.OpenOk(),
        "Confirm.Select": Confirm.SelectOk(),
    }

    def __init__(self, first: bytes, again: bytes = b"") -> None:
        self._first, self._again = first, again
        self.sent_bytes = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        able: dict[str, Any] = {"capabilities": {"publisher_confirms": True}}
        writer.write(marshal(Connection.Start(server_properties=able), 0))
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readexactly(7)
                data = head + await reader.readexactly(int.from_bytes(head[3:]) + 1)
                _, channel, frame = unmarshal(data)
                if frame.name in self.OPENING:
                    writer.write(marshal(self.OPENING[frame.name], channel))
                elif frame.name == "Basic.Publish":
                    await self._answer(writer)
        writer.transport.abort()

    async def _answer(self, writer: asyncio.StreamWriter) -> None:
        writer.write(self._first)
        for _ in range(1_000 if self._again else 0):
            writer.write(self._again * (10_000 // len(self._again)))
            self.sent_bytes += 10_000
            await writer.drain()


def sink_at(port: int) -> Sink:
    return amqp_sink("orders", {"url": f"amqp://127.0.0.1:{port}"})


@pytest.mark.parametrize(
    ("first", "again"), [(b"", marshal(Heartbeat(), 0)), (b"\1\0\1\xff\xff\xff\xff", b"x")]
)
async def test_a_broker_that_sends_without_end_is_cut_off(first: bytes, again: bytes) -> None:
    broker = Frames(first, again)
    end = await delivered(broker, sink_at, JOB)
    assert (end.result, end.is_outage) == (Result.FAILED, True)
    assert broker.sent_bytes < 10_000_000


async def test_a_broker_that_begins_like_none_is_cut_off() -> None:
    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            for _ in range(1_000):
                writer.write(b"\0" * 10_000)
                await writer.drain()
        writer.transport.abort()

    end = await delivered(serve, sink_at, JOB)
    assert (end.result, end.is_outage) == (Result.FAILED, True)


async def test_a_long_message_that_no_queue_takes_may_come_back_whole() -> None:
    body = bytes(1 << 20)
    returned = marshal(Basic.Return(312, "NO_ROUTE", "", "mail"), 1)
    returned += marshal(ContentHeader(0, len(body), Basic.Properties(message_id=JOB.message_id)), 1)
    for first in range(0, len(body), 100_000):
        returned += marshal(ContentBody(body[first : first + 100_000]), 1)
    broker = Frames(returned + marshal(Basic.Ack(1), 1))
    end = await delivered(broker, sink_at, JOB._replace(body=body))
    assert "no queue is bound" in end.error
