"""What goes over the wire is HTTP, read here by nobody who could be lenient."""

import re
from typing import Final

import pytest

from delayd import __version__
from delayd.core.errors import OutOfSpace
from delayd.http.answer_forms import NamedAnswer
from delayd.http.responses import HTTP_1_0, HTTP_1_1, NO_CONTENT, Reply, refused, reply

DATE: Final = re.compile(rb"Date: [A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT\r\n")
SERVER: Final = f"Server: delayd/{__version__}\r\n".encode()


def sent(answer: Reply, *, version: tuple[int, int] = HTTP_1_1, closes: bool = False) -> bytes:
    """All that is sent but for the time of day; `closes`: the connection ends."""
    without, dates = DATE.subn(b"", answer.head(closes=closes, version=version) + answer.body)
    assert dates == 1
    assert SERVER in without
    return without.replace(SERVER, b"")


def test_an_answer_is_a_head_and_a_body() -> None:
    answer = reply(201, NamedAnswer(id=7), {"Location": "/v1/jobs/7"})
    assert sent(answer) == (
        b"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nLocation: /v1/jobs/7\r\n"
        b'Content-Length: 8\r\n\r\n{"id":7}'
    )


def test_an_answer_that_says_nothing_has_neither_type_nor_length() -> None:
    assert sent(Reply(NO_CONTENT)) == b"HTTP/1.1 204 No Content\r\n\r\n"


def test_a_refusal_is_a_problem_with_its_headers() -> None:
    head, _, body = sent(refused(OutOfSpace(), rescheduled=3)).partition(b"\r\n\r\n")
    assert head.startswith(
        b"HTTP/1.1 507 Insufficient Storage\r\nContent-Type: application/problem+"
    )
    assert b"\r\nRetry-After: " in head
    assert b'"rescheduled":3' in body
    assert b"\r\nContent-Length: %d" % len(body) in head


@pytest.mark.parametrize(
    ("version", "closes", "is_chunked", "told"),
    [
        (HTTP_1_1, False, True, b"HTTP/1.1 Transfer-Encoding: chunked"),
        (HTTP_1_1, True, True, b"HTTP/1.1 Transfer-Encoding: chunked, Connection: close"),
        (HTTP_1_1, False, False, b"HTTP/1.1 "),
        (HTTP_1_0, True, False, b"HTTP/1.0 "),
        (HTTP_1_0, False, False, b"HTTP/1.0 Connection: keep-alive"),
    ],
)
def test_an_answer_in_pieces_says_how_it_ends_where_its_version_does_not_imply_it(
    version: tuple[int, int], closes: bool, is_chunked: bool, told: bytes
) -> None:
    answer = Reply(200, media_type="text/plain", pieces=())
    head = answer.head_of_pieces(closes=closes, version=version, is_chunked=is_chunked)
    first, *headers = DATE.sub(b"", head).split(b"\r\n")
    assert headers[:2] == [b"Content-Type: text/plain", SERVER.strip()]
    assert first.removesuffix(b"200 OK") + b", ".join(headers[2:-2]) == told
