"""Answers of HTTP, read whole and byte by byte; what is whole, and what ends the reading."""

import pytest

from delayd import limits
from delayd.push.answer_reader import AnswerReader, NotHttp

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
HINT = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"


def read(data: bytes, step: int = 1 << 30) -> AnswerReader:
    reader = AnswerReader()
    for first in range(0, len(data), step):
        reader.feed(data[first : first + step])
    return reader


def told(reader: AnswerReader) -> tuple[int, bytes, bool, bool]:
    return reader.status, reader.beginning, reader.is_over, reader.is_whole


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1 << 30])
@pytest.mark.parametrize(
    ("data", "what"),
    [
        (OK + b"Content-Length: 2\r\n\r\nok", (200, b"ok", True, True)),
        (OK + b"content-length:2\r\n\r\no", (200, b"o", False, False)),
        (b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", (200, b"", True, True)),
        (b"HTTP/1.1 204 \xff\r\n\r\n", (204, b"", True, True)),
        (b"HTTP/1.1 304 x\r\nContent-Length: 9\r\n\r\n", (304, b"", True, True)),
        (b"HTTP/1.1 101 x\r\nUpgrade: a\r\n\r\n", (101, b"", True, False)),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", (200, b"ok", True, False)),
        (OK + b"Connection: Close\r\nContent-Length: 2\r\n\r\nok", (200, b"ok", True, False)),
        (OK + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\nok", (200, b"ok", True, True)),
        (OK + b"\r\nuntil the end", (200, b"until the end", False, False)),
        (OK + b"Transfer-Encoding: gzip\r\n\r\nx", (200, b"x", False, False)),
        (OK + b"X: a\r\n folded\r\nContent-Length: 0\r\n\r\n", (200, b"", True, True)),
        (b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok", (200, b"ok", True, True)),
        (HINT * 3 + OK + b"Content-Length: 2\r\n\r\nok", (200, b"ok", True, True)),
        (
            CHUNKED + b"3\r\nabc\r\n00a;x=y\r\n0123456789\r\n0\r\n\r\n",
            (200, b"abc0123456789", True, True),
        ),
        (CHUNKED + b"3\nabc\n0\n\n", (200, b"abc", True, True)),
        (CHUNKED + b"3\r\nabc\r\n", (200, b"abc", False, False)),
        (CHUNKED + b"0\r\nTrailer: x\r\n\r\n", (200, b"", True, False)),
        (CHUNKED + b"3\r\nabcd\r\n", (200, b"abc", True, False)),
        (CHUNKED + b"-3\r\nabc", (200, b"", True, False)),
        (CHUNKED + b"\r\n", (200, b"", True, False)),
        (CHUNKED[:-2] + b"Content-Length: 3\r\n\r\n1\r\nx\r\n0\r\n\r\n", (200, b"x", True, False)),
    ],
)
def test_an_answer_is_read_alike_in_whatever_pieces_it_comes(
    data: bytes, what: tuple[int, bytes, bool, bool], step: int
) -> None:
    assert told(read(data, step)) == what


@pytest.mark.parametrize("step", [1, 1 << 30])
@pytest.mark.parametrize(
    "data",
    [
        b"220 mail.example ESMTP\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 20 x\r\n\r\n",
        b"HTTP/1.1 2000 x\r\n\r\n",
        OK + b"Content-Length: x\r\n\r\n",
        OK + b"Content-Length: -1\r\n\r\n",
        OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
        OK + b"Content-Length : 1\r\n\r\n",
        OK + b"no header\r\n\r\n",
        OK + b"a: \0\r\n\r\n",
        OK + b"a" * limits.PUSH_HEAD_BYTES_MAX,
        b"HTTP/1.1 200 " + b"x" * limits.PUSH_HEAD_BYTES_MAX,
        OK + b"a: b\r\n" * (limits.PUSH_HEAD_BYTES_MAX // 6),
        OK + b"a:" + b" " * limits.PUSH_HEAD_BYTES_MAX + b"\r\n\r\n",
        HINT * (limits.PUSH_HINTS_MAX + 1),
        (b"HTTP/1.1 103 x\r\nX: " + b"x" * 1_000 + b"\r\n\r\n")
        * (limits.PUSH_HEAD_BYTES_MAX // 1_000 + 1),
    ],
)
def test_what_is_no_answer_or_begins_for_too_long_is_refused(data: bytes, step: int) -> None:
    with pytest.raises(NotHttp):
        read(data, step)


def test_so_many_hints_and_so_long_a_head_are_still_read() -> None:
    assert read(HINT * limits.PUSH_HINTS_MAX + OK + b"Content-Length: 0\r\n\r\n").is_whole
    head = OK + b"Content-Length: 0\r\nX: "
    head += b"x" * (limits.PUSH_HEAD_BYTES_MAX - len(head) - 4) + b"\r\n\r\n"
    assert read(head).is_whole


@pytest.mark.parametrize(
    "whole",
    [
        OK + b"Content-Length: 2\r\n\r\nok",
        CHUNKED + b"1\r\nx\r\n0\r\n\r\n",
        b"HTTP/1.1 204 x\r\n\r\n",
    ],
)
def test_an_answer_with_anything_behind_it_is_not_whole(whole: bytes) -> None:
    assert read(whole).is_whole
    for surplus in (b"H", b"\r\n", OK):
        assert told(read(whole + surplus))[2:] == (True, False)
        reader = read(whole)
        reader.feed(surplus)
        assert told(reader)[2:] == (True, False)


def test_of_an_answer_without_end_no_more_is_read_than_the_limit() -> None:
    fits = OK + b"Content-Length: %d\r\n\r\n" % limits.PUSH_ANSWER_READ_BYTES_MAX
    reader = read(fits + b"x" * limits.PUSH_ANSWER_READ_BYTES_MAX, 4_096)
    assert reader.is_whole
    assert reader.beginning == b"x" * limits.PUSH_ANSWER_BYTES_MAX
    # Of one whose connection is given up, only the beginning is of interest.
    longer = OK + b"Content-Length: %d\r\n\r\n" % (limits.PUSH_ANSWER_READ_BYTES_MAX + 1)
    for head in (longer, OK + b"\r\n"):
        reader = read(head + b"x" * (limits.PUSH_ANSWER_BYTES_MAX - 1))
        assert not reader.is_over
        reader.feed(b"x")
        assert told(reader) == (200, b"x" * limits.PUSH_ANSWER_BYTES_MAX, True, False)
    reader = read(CHUNKED + b"fffff\r\n" + b"x" * limits.PUSH_ANSWER_READ_BYTES_MAX)
    assert not reader.is_over
    reader.feed(b"x")
    assert reader.is_over


def test_chunks_without_end_are_given_up() -> None:
    chunk = b"1\r\nx\r\n"
    assert read(CHUNKED + chunk * (limits.PUSH_CHUNKS_MAX - 1) + b"0\r\n\r\n").is_whole
    reader = read(CHUNKED + chunk * limits.PUSH_CHUNKS_MAX + b"0\r\n\r\n")
    assert told(reader) == (200, b"x" * limits.PUSH_CHUNKS_MAX, True, False)
    long_line = b"1;" + b"x" * (limits.PUSH_CHUNK_LINE_BYTES_MAX - 2)
    assert told(read(CHUNKED + long_line)) == (200, b"", True, False)
    assert not read(CHUNKED + long_line[:-1]).is_over


def test_retry_after_is_told_as_it_was_said() -> None:
    assert read(OK + b"RETRY-AFTER:  30 \r\n\r\n").retry_after == "30"
    assert read(OK + b"Retry-After: \xff\r\n\r\n").retry_after == "\xff"
    assert read(OK + b"\r\n").retry_after == ""
