"""What goes over the wire is HTTP, read here by nobody who could be lenient."""

import asyncio
import re
from typing import Final

import pytest
from aiohttp import HttpVersion, HttpVersion10, HttpVersion11
from aiohttp.test_utils import make_mocked_request

from delayd import __version__
from delayd.core.errors import OutOfSpace
from delayd.http.responses import Reply, nothing, refused, reply

DATE: Final = re.compile(rb"Date: [A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT\r\n")
SERVER: Final = f"Server: delayd/{__version__}\r\n".encode()


class Writer:
    """What aiohttp sends by."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    async def write_eof(self, chunk: bytes) -> None:
        self.sent.append(chunk)


def sent(
    answer: Reply,
    *,
    method: str = "GET",
    version: HttpVersion = HttpVersion11,
    closes: bool = False,
) -> bytes:
    """Return all that is sent, at once, but for the time of day; `closes`: the client wants to."""
    writer = Writer()

    async def answered() -> None:
        request = make_mocked_request(method, "/", version=version, writer=writer)
        request._message = request._message._replace(should_close=closes)
        await answer.prepare(request)
        await answer.write_eof()

    asyncio.run(answered())
    (whole,) = writer.sent
    without, dates = DATE.subn(b"", whole)
    assert dates == 1
    assert SERVER in without
    return without.replace(SERVER, b"")


def test_an_answer_is_a_head_and_a_body() -> None:
    answer = reply(201, {"id": 7}, {"Location": "/v1/jobs/7"})
    assert sent(answer) == (
        b"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nLocation: /v1/jobs/7\r\n"
        b'Content-Length: 8\r\n\r\n{"id":7}'
    )
    assert answer.keep_alive
    assert answer.body == b"", "it is not kept until the next one"


def test_an_answer_that_says_nothing_has_neither_type_nor_length() -> None:
    assert sent(nothing()) == b"HTTP/1.1 204 No Content\r\n\r\n"


def test_who_asks_for_the_head_gets_that_alone() -> None:
    assert sent(reply(200, [1]), method="HEAD") == (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 3\r\n\r\n"
    )


def test_a_refusal_is_a_problem_with_its_headers() -> None:
    head, _, body = sent(refused(OutOfSpace(), rescheduled=3)).partition(b"\r\n\r\n")
    assert head.startswith(
        b"HTTP/1.1 507 Insufficient Storage\r\nContent-Type: application/problem+"
    )
    assert b"\r\nRetry-After: " in head
    assert b'"rescheduled":3' in body
    assert b"\r\nContent-Length: %d" % len(body) in head


@pytest.mark.parametrize(
    ("version", "closes", "told"),
    [
        (HttpVersion11, False, b""),
        (HttpVersion11, True, b"close"),
        (HttpVersion10, False, b"keep-alive"),
        (HttpVersion10, True, b"close"),
    ],
)
def test_the_connection_is_kept_as_its_client_wants(
    version: HttpVersion, closes: bool, told: bytes
) -> None:
    answer = Reply(200)
    whole = sent(answer, version=version, closes=closes)
    assert re.findall(rb"\r\nConnection: (.*)\r\n", whole) == ([told] if told else [])
    assert answer.keep_alive == (not closes)


def test_who_is_to_say_no_more_is_told_so() -> None:
    answer = Reply(400)
    answer.force_close()
    assert b"\r\nConnection: close\r\n" in sent(answer)
    assert not answer.keep_alive
