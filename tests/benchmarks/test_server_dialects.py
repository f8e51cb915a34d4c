"""AMQP and PostgreSQL's protocol as the generator speaks them, against bytes of real servers."""

import struct
from collections.abc import Mapping
from typing import Any

import pytest
from pamqp import commands, frame, header
from pamqp.body import ContentBody
from pamqp.frame import FrameTypes

from benchmarks.line import UnexpectedReplyError
from benchmarks.registry import NotMeasuredError
from benchmarks.servers.amqp import AmqpDialect
from benchmarks.servers.peer import Heard
from benchmarks.servers.postgres import SQL, statements
from benchmarks.servers.postgres_wire import PostgresDialect, message
from tests.benchmarks.test_servers import assert_cut_anywhere

BODY_BYTES = 12
STATEMENTS = statements(SQL.read_text(encoding="utf-8"))


# AMQP


def queue_of(delay_ms: int) -> tuple[str, Mapping[str, Any]]:
    return f"wait.{delay_ms}", {"expiration": "37%"}


def amqp(wanted: int = 0) -> AmqpDialect:
    dialect = AmqpDialect(BODY_BYTES, "work", queue_of)
    dialect.takes(wanted)
    return dialect


def marshalled(*frames: FrameTypes) -> bytes:
    return b"".join(frame.marshal(each, 1) for each in frames)


def delivery(number: int, tag: int) -> bytes:
    death: list[Any] = [{"queue": "wait.1", "reason": "expired", "count": 1}]
    return marshalled(
        commands.Basic.Deliver(consumer_tag="ctag", delivery_tag=tag, routing_key="work"),
        header.ContentHeader(
            body_size=BODY_BYTES, properties=commands.Basic.Properties(headers={"x-death": death})
        ),
        ContentBody(b"%010dxx" % number),
    )


def frames_of(data: bytes) -> list[Any]:
    found = []
    while data:
        size, _, each = frame.unmarshal(data)
        found.append(each)
        data = data[size:]
    return found


def tag_of(number: int) -> bytes:
    return struct.pack(">Q", number)


def test_frames_of_rabbitmq_are_the_same_whole_and_cut_anywhere() -> None:
    said = marshalled(commands.Basic.QosOk(), commands.Basic.ConsumeOk("ctag"))
    said += delivery(3, 1) + marshalled(commands.Basic.Ack(1)) + delivery(4, 2)
    expected = Heard(put=1, taken=[(3, tag_of(1)), (4, tag_of(2))])
    assert_cut_anywhere(lambda: amqp(wanted=2), said, expected)


def test_confirms_count_each_publish_once_in_whatever_order_they_come() -> None:
    dialect = amqp()
    confirms = [(2, False), (1, False), (5, False), (6, True), (9, False), (8, True), (10, True)]
    puts = [dialect.hear(marshalled(commands.Basic.Ack(*each))).put for each in confirms]
    assert puts == [1, 1, 1, 3, 1, 2, 1]


def test_a_message_that_no_take_waits_for_goes_back_and_its_consumer_is_cancelled() -> None:
    dialect = amqp(wanted=2)
    dialect.hear(delivery(3, 1) + delivery(4, 2))
    assert dialect.acknowledgements([tag_of(1)]) == marshalled(commands.Basic.Ack(1))
    heard = dialect.hear(delivery(5, 3) + delivery(6, 4))
    assert not heard.taken
    cancel, *rejects = frames_of(heard.follow)
    assert cancel.consumer_tag == "worker1"
    assert [(each.delivery_tag, each.requeue) for each in rejects] == [(3, True), (4, True)]
    # What is in hand of the cancelled consumer makes no room at the next one.
    dialect.hear(marshalled(commands.Basic.CancelOk("worker1")))
    dialect.acknowledgements([tag_of(2)])
    qos, _ = frames_of(dialect.takes(1))
    assert qos.prefetch_count == 1
    assert dialect.hear(delivery(5, 5)).taken == [(5, tag_of(5))]
    dialect.acknowledgements([tag_of(5)])
    assert dialect.takes(1) == b""


def test_only_takes_beyond_what_is_acknowledged_consume() -> None:
    dialect = amqp()
    qos, consume = frames_of(dialect.takes(3))
    assert (qos.prefetch_count, consume.queue, consume.no_ack) == (3, "work", False)
    dialect.acknowledgements([tag_of(1), tag_of(2)])
    assert dialect.takes(1) == b""
    qos, _ = frames_of(dialect.takes(3))
    assert qos.prefetch_count == 2


def test_a_publish_is_persistent_and_goes_to_the_queue_of_its_delay() -> None:
    sent = frames_of(amqp().puts(9, 2, 50) + amqp().puts(11, 1, 0))
    assert [each.routing_key for each in sent[::3]] == ["wait.50", "wait.50", "work"]
    assert [each.properties.delivery_mode for each in sent[1::3]] == [2, 2, 2]
    assert [each.properties.expiration for each in sent[1::3]] == ["37%", "37%", None]
    assert [each.value for each in sent[2::3]] == [
        b"0000000009xx",
        b"0000000010xx",
        b"0000000011xx",
    ]
    with pytest.raises(NotMeasuredError, match="key"):
        amqp().keyed_puts(1, 1, 0)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (commands.Basic.Nack(1), "Basic.Nack"),
        (commands.Channel.Close(404, "NOT_FOUND - no queue", 0, 0), "no queue"),
        (commands.Basic.Cancel("ctag"), "Basic.Cancel"),
    ],
)
def test_any_other_frame_fails_the_reading(said: FrameTypes, words: str) -> None:
    with pytest.raises(UnexpectedReplyError, match=words):
        amqp().hear(marshalled(said))


# PostgreSQL


def row(*values: bytes) -> bytes:
    content = b"".join(struct.pack(">I", len(value)) + value for value in values)
    return message(b"D", struct.pack(">H", len(values)) + content)


def done(tag: bytes) -> bytes:
    return message(b"C", tag + b"\0") + message(b"Z", b"I")


def postgres_dialect(*, is_prepared: bool = False) -> PostgresDialect:
    return PostgresDialect(BODY_BYTES, STATEMENTS, b"", is_prepared=is_prepared)


@pytest.mark.parametrize("is_prepared", [False, True])
def test_messages_of_postgres_are_the_same_whole_and_cut_anywhere(is_prepared: bool) -> None:
    handle, body = b"17", b"\\x" + b"0000000003xx".hex().encode()
    if is_prepared:
        handle, body = struct.pack(">Q", 17), b"0000000003xx"
    said = message(b"2", b"") + done(b"INSERT 0 1") + done(b"INSERT 0 1")
    said += message(b"T", b"\0\2") + row(handle, body) + done(b"UPDATE 1")
    said += done(b"DELETE 1") + done(b"UPDATE 0")
    expected = Heard(put=2, taken=[(3, handle)], acknowledged=1, empty=1)
    assert_cut_anywhere(lambda: postgres_dialect(is_prepared=is_prepared), said, expected)


def test_a_transaction_counts_when_it_is_over() -> None:
    dialect = postgres_dialect()
    assert dialect.hear(message(b"C", b"INSERT 0 1\0")).put == 0
    assert dialect.hear(message(b"Z", b"I")).put == 1


@pytest.mark.parametrize("said", [done(b"DELETE 0"), message(b"E", b"SFATAL\0Mgone\0\0")])
def test_any_other_message_fails_the_reading(said: bytes) -> None:
    with pytest.raises(UnexpectedReplyError):
        postgres_dialect().hear(said)


def test_statements_are_sent_as_text_with_their_values() -> None:
    dialect = postgres_dialect()
    sent = dialect.puts(9, 2, 50)
    (length,) = struct.unpack(">I", sent[1:5])
    assert sent[:1] == sent[1 + length : 2 + length] == b"Q"
    assert sent.count(b"now() + 50 * interval") == 2
    assert b"'0000000009xx'" in sent
    assert b"'0000000010xx'" in sent
    keyed = dialect.keyed_puts(9, 2, 50)
    assert b"'0000000010xx', 'order-0000000010'" in keyed
    assert dialect.acknowledgements([b"17"]).endswith(b"WHERE id = 17;\0")


def test_prepared_statements_get_binary_values() -> None:
    dialect = postgres_dialect(is_prepared=True)
    values = struct.pack(">II", 4, 50) + struct.pack(">I", 12) + b"0000000009xx"
    assert values in dialect.puts(9, 1, 50)
    assert values + struct.pack(">I", 16) + b"order-0000000009" in dialect.keyed_puts(9, 1, 50)
    assert struct.pack(">IQ", 8, 17) in dialect.acknowledgements([struct.pack(">Q", 17)])
    assert dialect.takes(3) == 3 * dialect.takes(1)
