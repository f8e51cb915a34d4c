"""The parsers are fed whole and byte by byte; what is written is one command or one request."""

import math
import re
from collections.abc import Callable
from typing import Any, cast

import pytest

from delayd.client import (
    AsyncClient,
    Client,
    Invalid,
    KeyInvalid,
    NotOnThisProtocol,
    NotReserved,
    TopicNameInvalid,
    WrongProtocol,
    values,
)
from delayd.client.addresses import read_address
from delayd.client.beanstalk import (
    LABEL,
    Replies,
    Reply,
    ReplyReader,
    read_map,
    read_names,
    seconds_word,
)
from delayd.client.connection_pool import IDLE_CONNECTIONS_MAX, Link, Pool
from delayd.client.http1 import Request, Response, ResponseReader, request_bytes
from delayd.client.http_calls import HttpCalls
from delayd.client.line_calls import LineCalls
from delayd.client.protocols import way_to
from delayd.client.results import Reservation
from delayd.core.names import KEY
from delayd.durations import DURATION_RULE

HTTP_URL = "http://127.0.0.1:11301"
AT = read_address(HTTP_URL)

READ: dict[bytes, Callable[[], Any]] = {
    b'HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{"id":1}': lambda: ResponseReader(AT),
    b"HTTP/1.1 204 No Content\r\nServer: x\r\n\r\n": lambda: ResponseReader(AT),
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'3\r\n{"i\r\n5\r\nd":1}\r\n0\r\n\r\n': lambda: ResponseReader(AT),
    b"INSERTED 7\r\n": lambda: ReplyReader(1, AT),
    b"RESERVED 7 4\r\n\r\n\r\n\r\n": lambda: ReplyReader(1, AT),
    b"RESERVED_BATCH 2\r\nRESERVED 1 1\r\na\r\nRESERVED 2 0\r\n\r\n": lambda: ReplyReader(1, AT),
    b"OK 4\r\n---\n\r\nNOT_FOUND\r\nOK\r\n": lambda: ReplyReader(3, AT),
}


@pytest.mark.parametrize(("data", "reader"), READ.items())
def test_an_answer_is_read_whole_and_byte_by_byte(
    data: bytes, reader: Callable[[], ResponseReader | ReplyReader]
) -> None:
    whole = reader().feed(data)
    assert whole is not None
    if isinstance(whole, Response):
        assert whole.body in {b'{"id":1}', b""}
    slow = reader()
    pieces = [slow.feed(data[at : at + 1]) for at in range(len(data))]
    assert pieces[:-1] == [None] * (len(data) - 1)
    assert pieces[-1] == whole


def test_a_response_without_a_length_ends_with_the_connection() -> None:
    reader = ResponseReader(AT)
    assert reader.feed(b"HTTP/1.1 200 OK\r\n\r\nab") is None
    response = reader.feed(b"")
    assert response is not None
    assert response.body == b"ab"


def test_the_replies_of_a_beanstalkd_are_known_for_the_line_protocol() -> None:
    for data in (b"UNKNOWN_COMMAND\r\nUNKNOWN_COMMAND\r\n", b"BAD_FORMAT\r\n"):
        with pytest.raises(WrongProtocol, match=r"use beanstalk://127\.0\.0\.1:11301"):
            ResponseReader(AT).feed(data)


class Kept(Link):
    """A connection without a socket."""

    descriptor = -1
    asked: Callable[[], object] = bool
    """Called when somebody asks whether it is usable."""

    @property
    def is_usable(self) -> bool:
        self.asked()
        return not self.is_closed

    def close(self) -> None:
        self.is_closed = True


def link() -> Kept:
    _calls, way = way_to("beanstalk://127.0.0.1", "", None, 1, 1)
    return Kept(way)


def test_a_connection_that_holds_jobs_is_used_for_them_alone() -> None:
    kept, pool = link(), Pool[Kept]()
    ReplyReader(1, AT, kept).feed(b"RESERVED_BATCH 2\r\nRESERVED 1 1\r\na\r\nRESERVED 2 0\r\n\r\n")
    assert kept.held == {1, 2}
    pool.give_back(kept)
    assert pool.take(kept.place) is None
    kept.held.clear()
    assert pool.take(kept.place) is kept


def test_no_call_uses_a_connection_to_an_address_that_was_left() -> None:
    urls = ["http://127.0.0.1:1", "http://127.0.0.1:2", "http://127.0.0.1:3"]
    _calls, way = way_to(urls, "", None, 1, 1)
    left, pool = Kept(way), Pool[Kept]()
    pool.give_back(left)
    way.leave(left.place)
    way.leave(way.place)
    way.leave(left.place)  # by another call, which failed there as well
    assert way.place.address.port == 3
    assert pool.take(way.place) is None
    assert left.is_closed


@pytest.mark.parametrize("verb", ["ack", "touch"])
def test_a_job_that_has_ended_is_held_no_more_however_often_that_is_said(verb: str) -> None:
    kept = link()
    kept.held |= {7, 8}
    job = Reservation(7, "mail", "", b"x", link=kept)
    for _ in range(2):
        steps = getattr(LineCalls(HTTP_URL), verb)(job)
        next(steps)
        with pytest.raises(NotReserved):
            steps.send(Replies([Reply(["NOT_FOUND"])], kept))
    assert kept.held == {8}


def test_a_connection_that_was_lost_with_its_jobs_is_not_kept() -> None:
    lost, pool = link(), Pool[Kept]()
    lost.held.add(7)
    pool.give_back(lost)
    lost.close()
    assert pool.take(lost.place) is None
    assert pool._idle == []


def test_no_thread_waits_for_a_lock_while_a_connection_is_asked_whether_it_is_usable() -> None:
    kept, pool = link(), Pool[Kept]()
    pool.give_back(kept)
    is_locked: list[bool] = []
    kept.asked = lambda: is_locked.append(pool._lock.locked())
    assert pool.take(kept.place) is kept
    assert is_locked == [False]


def test_so_many_connections_are_kept_and_those_that_hold_jobs() -> None:
    pool = Pool[Kept]()
    links = [link() for _ in range(IDLE_CONNECTIONS_MAX + 2)]
    links[-1].held.add(7)
    for each in links:
        pool.give_back(each)
    assert [each.is_closed for each in links] == [*[False] * IDLE_CONNECTIONS_MAX, True, False]
    pool.close()
    assert all(each.is_closed for each in links)
    late = link()
    pool.give_back(late)
    assert late.is_closed


def test_a_header_cannot_bring_another_one() -> None:
    with pytest.raises(ValueError, match="one line"):
        request_bytes(Request("GET", "/", headers={"X": "a\r\nY: b"}), "localhost")


def test_the_client_takes_the_characters_in_keys_that_the_daemon_takes() -> None:
    pattern = KEY.schema["pattern"]
    for code in range(0x3100):
        assert bool(re.fullmatch(LABEL, chr(code))) == bool(re.search(pattern, chr(code))), code
    assert all(
        re.fullmatch(LABEL, text) and re.search(pattern, text) for text in "\ue000\U0001f600"
    )
    assert not any(re.fullmatch(LABEL, text) for text in "\ud800\udfff")


@pytest.mark.parametrize("key", ["a b", "a\r\nquit", "", "x" * 201, "a\x00"])
def test_a_key_cannot_bring_a_command(key: str) -> None:
    with pytest.raises(KeyInvalid):
        next(LineCalls(HTTP_URL).find("mail", key))


@pytest.mark.parametrize("topic", ["a b", "a\r\nquit", "", "x" * 201, "-a", "a\n", 5, None])
def test_a_topic_cannot_bring_a_command(topic: object) -> None:
    with pytest.raises(TopicNameInvalid):
        next(LineCalls(HTTP_URL).put(cast("str", topic), "x"))
    if not isinstance(topic, str):  # the daemon judges names over HTTP
        with pytest.raises(TopicNameInvalid):
            next(HttpCalls().put(cast("str", topic), "x"))


JOB = Reservation(7, "mail", "", b"x")


@pytest.mark.parametrize(
    "asked",
    [
        lambda calls: calls.put("mail", "x", at="2030-01-01T00:00:00Z"),
        lambda calls: calls.put("mail", "x", url="https://example.com", headers={"X": "y"}),
        lambda calls: calls.change(7, url="https://example.com", headers={"X": "y"}),
        lambda calls: calls.put("mail", "x", idempotency_key="17"),
        lambda calls: calls.change(7, at="2030-01-01T00:00:00Z"),
        lambda calls: calls.reschedule_many("mail", {}, {"at": "2030-01-01T00:00:00Z"}),
        lambda calls: calls.cancel_many("mail", {"due_to": "2030-01-01T00:00:00Z"}),
        lambda calls: calls.ack("7-1-1"),
        lambda calls: calls.nack(JOB, priority=5),
        lambda calls: calls.bury(7),
        lambda calls: calls.bury("orders", "order-17"),
        lambda calls: calls.metrics(),
    ],
)
def test_what_the_line_cannot_do_names_the_url_that_can(asked: Any) -> None:  # noqa: ANN401 - a function
    with pytest.raises(NotOnThisProtocol, match=HTTP_URL):
        next(asked(LineCalls(HTTP_URL)))


def test_seconds_are_rounded_up_to_the_millisecond() -> None:
    assert [seconds_word(each, "delay") for each in (0, 1, 0.25, 0.0001, 1.0000001, 3600)] == [
        *("0", "1", "0.25", "0.001", "1.001", "3600")
    ]
    with pytest.raises(Invalid, match="delay: must be from 0"):
        seconds_word(-1, "delay")


def test_yaml_is_read_as_the_daemon_writes_it() -> None:
    assert read_map(b'---\nid: 7\nerror: "a: \\"b\\""\n') == {"id": 7, "error": 'a: "b"'}
    assert read_names(b'---\n- default\n- "mail"\n') == ["default", "mail"]


@pytest.mark.parametrize(
    ("url", "again"),
    [
        ("http://127.0.0.1", "http://127.0.0.1:11301"),
        ("https://queue.example/", "https://queue.example:443"),
        ("beanstalk://[::1]", "beanstalk://[::1]:11300"),
        ("beanstalks://queue.example:5", "beanstalks://queue.example:5"),
        ("unix:/run/line.sock", "unix:/run/line.sock"),
        ("http+unix:///run/http.sock", "http+unix:/run/http.sock"),
    ],
)
def test_an_address_is_read(url: str, again: str) -> None:
    assert read_address(url).url == again
    assert read_address(again) == read_address(url)


@pytest.mark.parametrize(
    "url", ["unix:line.sock", "ftp://a", "http://", "http://a:0", "http://a:99999", "http://a/b"]
)
def test_another_address_is_refused_with_the_rule(url: str) -> None:
    with pytest.raises(ValueError, match="must be http://"):
        read_address(url)


@pytest.mark.parametrize("scheme", ["http", "beanstalk"])
@pytest.mark.parametrize("make", [Client, AsyncClient])
def test_a_client_takes_no_timeout_patience_or_tls_that_cannot_be(
    make: type[Client | AsyncClient], scheme: str
) -> None:
    url = f"{scheme}://127.0.0.1:1"
    for timeout in (0, -1, math.nan, math.inf, 1e10):
        with pytest.raises(Invalid, match=r"^timeout: must be more than 0, up to 4294967295 s$"):
            make(url, timeout=timeout)
    for patience in (-1, math.nan, math.inf):
        with pytest.raises(Invalid, match=r"^patience: must be from 0 to 4294967295 s$"):
            make(url, patience=patience)
    with pytest.raises(Invalid, match=r"^timeout: must be seconds"):
        make(url, timeout="soon")
    with pytest.raises(Invalid, match=r"^tls: must be an ssl.SSLContext$"):
        make(url, tls=cast("Any", "ca.pem"))


def test_the_client_says_of_durations_what_the_daemon_says() -> None:
    assert values._DURATION_RULE == DURATION_RULE
