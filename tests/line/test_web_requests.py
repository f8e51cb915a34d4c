"""What a web page makes a browser send to the line's port does nothing."""

import random

import pytest

from delayd.line import replies
from tests.rigs.line import LineRig, bytewise, in_pieces

METHODS = (
    *("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "QUERY", "PROPFIND"),
    *("put", "delete"),
)
PUT = b"put 0 0 60 2\r\nhi\r\n"
COMMANDS = b"\r\n" + PUT * 3 + b"kick 100\r\nclear-tube default\r\nset-policy default 0\r\n\r\n"


def browser_post(path: bytes, body: bytes, method: bytes = b"POST") -> bytes:
    """What `fetch(url, {method: "POST", mode: "no-cors", body})` sends, which nobody is asked."""
    return (
        b"%b %b HTTP/1.1\r\n"
        b"Host: 127.0.0.1:11300\r\n"
        b"User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0\r\n"
        b"Accept: */*\r\n"
        b"Accept-Language: en-US,en;q=0.5\r\n"
        b"Accept-Encoding: gzip, deflate, br, zstd\r\n"
        b"Referer: https://example.net/\r\n"
        b"Content-Type: text/plain;charset=UTF-8\r\n"
        b"Content-Length: %d\r\n"
        b"Origin: https://example.net\r\n"
        b"Connection: keep-alive\r\n"
        b"\r\n%b" % (method, path, len(body), body)
    )


@pytest.mark.parametrize(
    ("method", "path_bytes"),
    [
        *((method, 1) for method in METHODS),
        *(("POST", count) for count in (300, 1_000, 8_000, *range(201, 227))),
    ],
)
def test_nothing_that_a_page_posts_is_carried_out(
    method: str, path_bytes: int, rng: random.Random
) -> None:
    said = browser_post(b"/".ljust(path_bytes, b"a"), COMMANDS, method.encode())
    for pieces in ((said,), bytewise(said), in_pieces(said, rng)):
        rig = LineRig()
        client = rig.client()
        assert client.says(*pieces).endswith(replies.NOT_HTTP)
        assert client.connection.is_closing
        assert not rig.log
        assert rig.state()["last id"] == 0
