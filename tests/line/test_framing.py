"""Where a command ends, against a model that reads like beanstalkd: one window of 224 bytes."""

import random
from collections.abc import Iterator

import pytest

from delayd.core.times import RequestMs
from delayd.limits import LINE_BYTES_MAX
from tests.line.corpus import BODY_BYTES_MAX, EXCHANGES, Exchange
from tests.rigs.line import LineRig, bytewise, in_pieces

USED = b"list-tube-used"
USING = b"USING default\r\n"
BAD = b"BAD_FORMAT\r\n"
UNKNOWN = b"UNKNOWN_COMMAND\r\n"


def model(stream: bytes) -> Iterator[bytes]:
    """The replies to a stream of nothing but `list-tube-used` and nonsense."""
    window, at, is_skipping = b"", 0, False
    while True:
        filled = stream[at : at + LINE_BYTES_MAX - len(window)]
        window, at = window + filled, at + len(filled)
        first = window[:-1].find(b"\r")
        if first >= 0 and window[first + 1 : first + 2] == b"\n":
            line, window = window[:first], window[first + 2 :]
            yield BAD if is_skipping else model_reply(line)
            is_skipping = False
        elif len(window) == LINE_BYTES_MAX:
            window, is_skipping = b"", True
        else:
            return


def model_reply(line: bytes) -> bytes:
    if line == USED:
        return USING
    return BAD if b"\0" in line or line.startswith(USED) else UNKNOWN


@pytest.mark.parametrize(
    ("stream", "replies"),
    [
        (b"x" * 222 + b"\r\n" + USED + b"\r\n", UNKNOWN + USING),
        (b"x" * 223 + b"\r\n" + USED + b"\r\n" + USED + b"\r\n", BAD + USING),
        (b"x" * 10_000 + b"\r\n" + USED + b"\r\n", BAD + USING),
        (b"x" * 10_000, b""),
        (USED + b"\r", b""),
        (USED + b"\r\r\n", b""),
        (USED + b"\r\r\n" + b"x" * 208 + b"\r\n", BAD),
        (USED + b"\r\r\n" + b"x" * 206 + b"\r\n", b""),
        (b"list\rtube\r\n" + USED + b"\r\n", b""),
        (b"q" * 300 + b" \r\r\n" + USED + b"\r\n", b""),
        (b"\r\n" * 3, UNKNOWN * 3),
        (b"\r" * 224 + b"\r\n", BAD),
        (b"\n" * 224 + b"\r\n", BAD),
        (b"put 0 0 0 0\r" + b"x" * 212 + b"\r\n" + USED + b"\r\n", BAD + USING),
    ],
)
def test_long_lines_end_where_beanstalkd_ends_them(stream: bytes, replies: bytes) -> None:
    if not stream.startswith(b"put"):
        assert b"".join(model(stream)) == replies
    assert LineRig().client().says(stream) == replies
    assert LineRig().client().says(*bytewise(stream)) == replies


def test_every_length_around_the_window_ends_as_in_the_model() -> None:
    for count in (*range(200, 250), *range(430, 460)):
        for end in (b"\r\n", b"\r", b"\n", b"\rx\r\n", b"\r\r\n", b"\n\r\n"):
            stream = b"x" * count + end + (USED + b"\r\n") * 2
            assert LineRig().client().says(stream) == b"".join(model(stream)), (count, end)


@pytest.mark.thorough
def test_random_streams_end_as_in_the_model(rng: random.Random) -> None:
    for _ in range(300):
        stream = b"".join(random_bit(rng) for _ in range(rng.randrange(1, 25)))
        expected = b"".join(model(stream))
        assert LineRig().client().says(stream) == expected, stream
        assert LineRig().client().says(*in_pieces(stream, rng)) == expected, stream


def random_bit(rng: random.Random) -> bytes:
    whole = USED + b"\r\n"
    bits = (whole, whole, USED, b"\r\n", b"\r\n", b"\r", b"\n", b"\0", b"x" * rng.randrange(300))
    return rng.choice((*bits, b"y" * rng.choice((207, 208, 221, 222, 223, 224))))


def test_an_endless_line_takes_no_memory() -> None:
    client = LineRig().client()
    for _ in range(1_000):
        assert client.says(b"x" * 1_000) == b""
        assert len(client.connection._framing._rest) < LINE_BYTES_MAX
    assert client.says(b"\r\n") in {BAD, b""}


def test_a_body_that_is_too_big_takes_no_memory() -> None:
    rig = LineRig(body_bytes_max=10)
    client = rig.client()
    assert client.says(b"put 0 0 60 1000000\r\n") == b""
    for _ in range(1_000):
        assert client.says(b"x" * 1_000) == b""
        assert not client.connection._framing._rest
        assert not client.connection._framing._body
    assert client.says(b"\r") == b""
    assert client.says(b"\n" + USED + b"\r\n") == b"JOB_TOO_BIG\r\n" + USING
    assert rig.engine.store.last_id == 0


@pytest.mark.parametrize("exchange", EXCHANGES, ids=str)
def test_after_each_piece_it_is_known_whether_something_is_half_said(
    exchange: Exchange, rng: random.Random
) -> None:
    for pieces in (bytewise(exchange.request), in_pieces(exchange.request, rng)):
        rig = LineRig(BODY_BYTES_MAX)
        connection = rig.client().connection
        for piece in pieces:
            is_half_said = connection.receive(piece, rig.now_ms)
            if connection.is_listening:
                assert is_half_said == (connection.incomplete_bytes is not None)
            else:
                assert connection.incomplete_bytes is None
                break
        else:
            assert connection.incomplete_bytes is None


@pytest.mark.parametrize(
    ("said", "missing_bytes"),
    [
        (b"", None),
        (b"list-tube-used\r\n", None),
        (b"list-tube-used\r\nl", 0),
        (b"put 0 0 60 5", 0),
        (b"put 0 0 60 5\r", 0),
        (b"put 0 0 60 5\r\n", 7),
        (b"put 0 0 60 5\r\nhel", 4),
        (b"put 0 0 60 5\r\nhello\r", 1),
        (b"put 0 0 60 5\r\nhello\r\n", None),
        (b"put 0 0 60 21\r\n", 23),
        (b"put 0 0 60 21\r\n" + b"x" * 22, 1),
        (b"put 0 0 60 21\r\n" + b"x" * 23, None),
        (b"x" * 224, 0),
        (b"x" * 448, 0),
        (b"x" * 448 + b"\r\n", None),
        (b"put-in-tube " + b"x" * 2_000, 0),
        (b"put-in-tube " + b"x" * 2_000 + b" 0 0 60 9\r\n", None),
        (b"reserve\r\nlist", None),
    ],
)
def test_what_is_missing_is_known(said: bytes, missing_bytes: int | None) -> None:
    connection = LineRig(BODY_BYTES_MAX).client().connection
    connection.receive(said, RequestMs(0))
    assert connection.incomplete_bytes == missing_bytes
