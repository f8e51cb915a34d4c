"""Whatever a server answers, a program gets a result of the promised types or a DelaydError.

Every call is made once of a real daemon, over both protocols. Then each of its answers is spoilt in
every way that the tables below say, and the same operation, a generator without a socket, is fed
with it.
"""

import contextlib
import datetime as dt
import json
import re
import types
from collections.abc import Callable, Iterator
from functools import cache
from random import Random
from typing import Any, Final, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import pytest

from delayd.client import (
    Client,
    DelaydError,
    NotUnderstood,
    PutResult,
    Refused,
    Reservation,
    limits,
)
from delayd.client.addresses import read_address
from delayd.client.answers import read_json
from delayd.client.batches import PutReplies
from delayd.client.beanstalk import Replies, Reply, ReplyReader
from delayd.client.connection import Connection, Connections
from delayd.client.http1 import Response, ResponseReader
from delayd.client.http_calls import HttpCalls
from delayd.client.line_calls import LineCalls
from delayd.testing.daemon import Daemon, running_daemon
from tests.client.worlds import http_url, line_url

AT: Final = read_address("http://127.0.0.1:11301")
DEEP: Final = "[" * 200_000
VALUES: Final = (
    *("null", "true", "0", "-1", "1.5", "1e999", "NaN", "-Infinity", "1" + "0" * 30, "9" * 5_000),
    *('""', '"x"', '"\\ud800"', '"-0001-01-01"', '"2030-01-01"', '"%s"' % ("y" * 10_000)),
    *("[]", "[1]", "[[]]", "[null]", "{}", '{"a":1}', '{"word":1}', "[" * 1_100 + "]" * 1_100),
)
"""What stands in place of each value of an answer, as text."""
PAST: Final = "2020-01-01T00:00:00Z"
WORDS: Final = ("", "x", "-1", "9" * 30, "9" * 5_000, "1_0", "\u0663", "\u00b2", "1e9", "nan")
"""What stands in place of each word of a reply, and of each value of its YAML."""
BODIES: Final = (
    *(b"", b"\xff\xfe", b"---", b"---\n", b"---\nx\ny\nz\n", b'---\n"\n', b"{}", b"[]"),
    DEEP.encode(),
)


class Call(NamedTuple):
    """One operation, and what was answered."""

    name: str
    ask: Callable[[Any], Any]
    """Begins it."""
    answers: list[Any]


class Recorded(Connections):
    """Connections that keep what was answered."""

    def __init__(self, inner: Connections) -> None:
        super().__init__(inner.way)
        self.answers: list[Any] = []

    def exchange(self, ask: Any) -> tuple[Connection, Any]:  # noqa: ANN401 - either kind
        found = super().exchange(ask)
        self.answers.append(found[1])
        return found


def operations(topic: str, job: Reservation) -> dict[str, Callable[[Any], Any]]:
    """All operations, in an order in which a daemon carries them out."""
    put = {"key": "k", "delay": 60}
    return {
        "put": lambda calls: calls.put(topic, {"a": [1]}, **put),
        "put_many": lambda calls: calls.put_many(topic, [{"body": 1}, {"body": 2, "key": "k"}]),
        "get": lambda calls: calls.get(job.id),
        "find": lambda calls: calls.find(topic, "k"),
        "page": lambda calls: calls.page(topic, {}, limit=None, after=None, bodies=True),
        "next page": lambda calls: calls.page(topic, {}, limit=1, after=None, bodies=False),
        "change": lambda calls: calls.change(topic, "k", delay=70, body="b"),
        "kick": lambda calls: calls.kick(topic, "k"),
        "reserve": lambda calls: calls.reserve(topic, limit=2, timeout=0),
        "reserve of two": lambda calls: calls.reserve([topic, "default"], limit=2, timeout=0),
        "no job": lambda calls: calls.reserve("none", limit=2, timeout=0),
        "touch": lambda calls: calls.touch(job),
        "nack": lambda calls: calls.nack(job, delay=0),
        "ack": lambda calls: calls.ack(job),
        "release": lambda calls: calls.release(job, priority=1),
        "bury": lambda calls: calls.bury(job),
        "ack_many": lambda calls: calls.ack_many([job, job]),
        "redrive": lambda calls: calls.redrive(topic),
        "kick_many": lambda calls: calls.kick_many(topic, {"state": "buried"}),
        "cancel_many": lambda calls: calls.cancel_many(topic, {"key_prefix": "z"}, dry_run=True),
        "reschedule_many": lambda calls: calls.reschedule_many(topic, {}, {"delay": 5}),
        "calendar": lambda calls: calls.calendar([topic], due_from=0, horizon=60, bins=3),
        "calendar of all": lambda calls: calls.calendar([], due_from=0, horizon=60, bins=3),
        "topics": lambda calls: calls.topics(),
        "topic": lambda calls: calls.topic(topic),
        "set_policy": lambda calls: calls.set_policy(topic, {"jobs_max": 100}, ""),
        "policy": lambda calls: calls.policy(topic),
        "clear_policy": lambda calls: calls.clear_policy(topic, ""),
        "pause": lambda calls: calls.pause(topic, 1),
        "resume": lambda calls: calls.resume(topic),
        "pause_group": lambda calls: calls.pause_group(topic, "a", 60),
        "groups": lambda calls: calls.groups(topic, "name", 9, ""),
        "group": lambda calls: calls.group(topic, "a"),
        "resume_group": lambda calls: calls.resume_group(topic, "a"),
        "put_schedule": lambda calls: calls.put_schedule("h", topic, {"a": [1]}, {"every": 60}),
        "run_schedule": lambda calls: calls.run_schedule("h"),
        "schedule": lambda calls: calls.schedule("h"),
        "page_of_schedules": lambda calls: calls.page_of_schedules(topic, "h", after=None),
        "preview_schedule": lambda calls: calls.preview_schedule("h", 3),
        "pause_schedule": lambda calls: calls.pause_schedule("h", "why"),
        "resume_schedule": lambda calls: calls.resume_schedule("h"),
        "backfill_schedule": lambda calls: calls.backfill_schedule("h", PAST, PAST),
        "remove_schedule": lambda calls: calls.remove_schedule("h"),
        "cancel": lambda calls: calls.cancel(topic, "k"),
        "clear": lambda calls: calls.clear(topic),
        "stats": lambda calls: calls.stats(),
        "health": lambda calls: calls.health(),
        "advance_clock": lambda calls: calls.advance_clock(1),
    }


def recorded(url: str) -> list[Call]:
    """Make every call of a daemon."""
    topic = "hostile-" + url.partition(":")[0]
    with Client(url) as client:
        client.put(topic, "held")
        (held,) = client.reserve_many(topic, limit=1, timeout=1)
        connections = Recorded(client._connections)  # type: ignore[arg-type]
        calls = []
        for name, ask in operations(topic, held.reservation).items():
            connections.answers.clear()
            with contextlib.suppress(Refused):  # a refusal is an answer as well
                connections.run(ask(client._calls))
            calls.append(Call(name, ask, [*connections.answers]))
        connections.close()
    return calls


@pytest.fixture(scope="module")
def quiet_daemon() -> Iterator[Daemon]:
    """A daemon without the topics of other tests, which would be in the answers."""
    with running_daemon("--http", "127.0.0.1:0", clock="virtual") as daemon:
        yield daemon


@pytest.fixture(scope="module")
def http_answers(quiet_daemon: Daemon) -> list[Call]:
    return recorded(http_url(quiet_daemon))


@pytest.fixture(scope="module")
def line_answers(quiet_daemon: Daemon) -> list[Call]:
    return recorded(line_url(quiet_daemon))


def played(steps: Any, answers: list[Any]) -> None:  # noqa: ANN401 - of either protocol
    """Feed an operation; whatever it returns is of the promised types."""
    try:
        ask = next(steps)
        for answer in answers:
            if isinstance(answer, Replies) and not is_answer_to(ask, answer):
                return  # another question than was recorded
            ask = steps.send(answer)
    except StopIteration as done:
        check_types(done.value)
    except DelaydError as error:
        assert len(str(error)) < 2 * limits.DETAIL_CHARACTERS_MAX  # noqa: PT017 - whatever it is
        str(error).encode()


def is_answer_to(ask: Any, answer: Replies) -> bool:  # noqa: ANN401 - a `Commands`
    """Tell whether these are as many replies as the reader takes for an answer."""
    is_batch = answer.replies[0].word == "RESERVED_BATCH"
    return len(ask.lines) == (1 if is_batch else len(answer.replies))


def check_types(value: Any, hint: Any = Any) -> None:  # noqa: ANN401 - whatever it is
    """Check a result and what is in it."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in {Union, types.UnionType}:
        kinds = tuple(get_origin(each) or each for each in inner)
        kinds = tuple(str if each is Literal else each for each in kinds)
        assert isinstance(value, tuple(map(_kind, kinds))), (value, hint)
    elif origin is Literal:
        assert isinstance(value, str)
    elif hint is not Any:
        assert isinstance(value, _kind(origin or hint)), (value, hint)
    if isinstance(value, str):
        value.encode()
    if isinstance(value, dt.datetime):
        assert value.tzinfo is not None
    if hasattr(type(value), "_fields"):
        hints = hints_of(type(value))  # type: ignore[arg-type]  # a class is hashable
        for name, each in zip(value._fields, value, strict=True):
            check_types(each, hints[name])
    elif isinstance(value, list | tuple):
        for each in value:
            check_types(each)


@cache
def hints_of(kind: type) -> dict[str, Any]:
    """Return what the fields of a named tuple are; finding that out takes long."""
    return get_type_hints(kind)


def _kind(hint: Any) -> Any:  # noqa: ANN401 - a type, or what stands for any
    return (int, float) if hint is float else object if hint is Any else hint


# --- HTTP ----------------------------------------------------------------------------------------


def spoilt_json(body: bytes) -> Iterator[bytes]:
    """Yield the JSON of an answer with each of its values replaced, or without it."""
    text = json.loads(body)
    for path in paths(text):
        for value in VALUES:
            yield json.dumps(replaced(text, path, "@")).replace('"@"', value).encode()
        if path:
            yield json.dumps(replaced(text, path, None, remove=True)).encode()
    yield from (body[:-1], body + b"}", b"", b"\xff" + body, DEEP.encode(), b"\xef\xbb\xbf" + body)
    if body.startswith(b"{"):
        yield b'{"id":[],"jobs":1,"after":{},"results":0,' + body[1:]  # names that occur twice
        yield body[:-1] + b',"id":[],"jobs":1,"after":{},"results":0,"topics":{}}'
        yield body.replace(b'"body":', b'"body" :').replace(b'":', b'":  ')


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:  # noqa: ANN401 - JSON
    yield path
    if isinstance(value, dict):
        for name, each in value.items():
            yield from paths(each, (*path, name))
    elif isinstance(value, list):
        for index, each in enumerate(value[:3]):
            yield from paths(each, (*path, index))


def replaced(value: Any, path: tuple[Any, ...], by: Any, *, remove: bool = False) -> Any:  # noqa: ANN401 - JSON
    if not path:
        return by
    copy = value.copy()
    if remove and len(path) == 1:
        del copy[path[0]]
    else:
        copy[path[0]] = replaced(value[path[0]], path[1:], by, remove=remove)
    return copy


LARGE: Final = frozenset(("stats", "topic", "topics"))
"""What is a table of figures: of these the client reads few, and the first ones are enough."""


@pytest.mark.thorough
def test_any_json_in_an_answer_of_http_is_a_result_or_an_error_of_delayd(
    http_answers: list[Call],
) -> None:
    count = 0
    for call in http_answers:
        for index, answer in enumerate(call.answers):
            before, after = call.answers[:index], call.answers[index + 1 :]
            for number, body in enumerate(spoilt_json(answer.body or b"{}")):
                if call.name in LARGE and number > 500:
                    break
                for status in (answer.status, 400) if number % 7 == 0 else (answer.status,):
                    spoilt = Response(status, answer.headers, body)
                    played(call.ask(HttpCalls()), [*before, spoilt, *after])
                    count += 1
    assert count > 2_000


STATUSES: Final = (200, 201, 204, 206, 301, 304, 400, 401, 404, 409, 429, 500, 502, 503, 599)


def test_any_status_of_http_is_a_result_or_an_error_of_delayd(http_answers: list[Call]) -> None:
    problem = b'{"word":"NOT_FOUND","title":"","detail":"-"}'
    after = {"retry-after": "\u00b2"}
    for call in http_answers:
        for status in STATUSES:
            for body in (b"", b"<html>", b"[]", b"{}", problem, *(a.body for a in call.answers)):
                played(call.ask(HttpCalls()), [Response(status, after, body)] * 3)


RESPONSE: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 8\r\n"
    b'Connection: close\r\n\r\n{"id":1}'
)
CHUNKED: Final = (
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'3;a=b\r\n{"i\r\n5\r\nd":1}\r\n0\r\nX: y\r\n\r\n'
)


def fed(reader: Any, data: bytes, size: int) -> Any:  # noqa: ANN401 - of either protocol
    """Feed a reader in pieces, and then the end; return what it reads."""
    for at in range(0, len(data), size):
        if (found := reader.feed(data[at : at + size])) is not None:
            return found
    return reader.feed(b"")


def changed(data: bytes, rng: Random) -> bytes:
    """Return data with some bytes replaced, doubled, removed, or other digits."""
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(data))
        piece = rng.choice(
            [b"", b"\xb2", b"\r\n", b"-", b"9" * 30, b":", b"\x00", data[at : at + 9]]
        )
        data = data[:at] + piece + data[at + rng.randint(0, 4) :]
        if not data:
            return b"\r\n"
    return data


FED: Final[dict[bytes, Callable[[], Any]]] = {
    RESPONSE: lambda: ResponseReader(AT),
    CHUNKED: lambda: ResponseReader(AT),
    b"RESERVED_BATCH 2\r\nRESERVED 1 1\r\na\r\nRESERVED 2 0\r\n\r\n": lambda: ReplyReader(1, AT),
}


@pytest.mark.thorough
@pytest.mark.parametrize(("data", "reader"), FED.items())
def test_any_bytes_are_an_answer_or_an_error_of_delayd(
    data: bytes, reader: Callable[[], Any], rng: Random
) -> None:
    for _ in range(3_000):
        with contextlib.suppress(DelaydError):
            found = fed(reader(), changed(data, rng), rng.choice([1, 7, 1_000]))
            assert found is None or isinstance(found, Response | Replies)


def test_a_response_behind_interim_answers_and_before_trailers_is_read() -> None:
    for size in (1, 5, 1_000):
        found = fed(ResponseReader(AT), CHUNKED, size)
        assert (found.status, found.body, found.is_last) == (200, b'{"id":1}', False)


def test_who_says_more_than_was_asked_for_is_not_asked_again() -> None:
    for data in (RESPONSE.replace(b"Connection: close\r\n", b""), CHUNKED):
        assert not fed(ResponseReader(AT), data, 1_000).is_last
        assert fed(ResponseReader(AT), data + b"HTTP", 1_000).is_last


HEAD: Final = b"HTTP/1.1 200 OK\r\n"
CHUNKS: Final = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "data",
    [
        *(b"SSH-2.0-OpenSSH", b"HTTP/1.1 two\r\n\r\n", b"x" * 70_000),
        HEAD + b"X: " + b"y" * limits.HEAD_BYTES_MAX + b"\r\n\r\n",
        HEAD + b"X: y\r\n" * limits.HEADERS_MAX + b"\r\n",
        HEAD + b"X\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * (limits.INTERIM_ANSWERS_MAX + 1),
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 \xb200 OK\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        HEAD + b"Content-Length: \xb2\r\n\r\n",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Length: 1001\r\n\r\n",
        HEAD + b"Content-Length: " + b"9" * 5_000 + b"\r\n\r\n",
        HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
        HEAD + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        HEAD + b"Transfer-Encoding: gzip\r\n\r\n",
        HEAD + b"\r\n" + b"x" * 1_001,
        CHUNKS + b"-5\r\n",
        CHUNKS + b"1_0\r\n",
        CHUNKS + b"0x5\r\n",
        CHUNKS + b"3e9\r\n",
        CHUNKS + b"1\r\nabc",
        CHUNKS + b"1;" + b"a" * limits.CHUNK_HEAD_BYTES_MAX,
        CHUNKS + b"64\r\n%b\r\n" % (b"x" * 100) * 11,
        CHUNKS + b"0\r\n" + b"X: y\r\n" * limits.TRAILER_BYTES_MAX,
        CHUNKS + b"1;aaaaaaaaaaaaaaaaaaaaa\r\nx\r\n" * 3_000,
    ],
)
def test_what_is_too_long_or_no_http_is_not_understood(data: bytes) -> None:
    with pytest.raises(NotUnderstood):
        fed(ResponseReader(AT, 1_000), data, 100_000)


# --- The line ------------------------------------------------------------------------------------


def spoilt_lines(replies: list[Reply]) -> Iterator[bytes]:
    """Yield replies as bytes, each word and each value of the YAML of the first ones replaced."""
    for index, reply in enumerate(replies[:3]):
        before, after = map(written, (replies[:index], replies[index + 1 :]))
        for at in range(len(reply.words)):
            for word in WORDS:
                words = [*reply.words[:at], word, *reply.words[at + 1 :]]
                yield before + written([Reply(words, reply.body)]) + after
            yield before + written([Reply(reply.words[:at], reply.body)]) + after
        for word in ("BANANA", "deleted", "INSERTED 7", "FOUND 1 1\r\nx", "OK", "RESERVED_BATCH 9"):
            yield before + word.encode() + b"\r\n" + after
        for body in (*BODIES, *spoilt_yaml(reply.body or b"")):
            words = [*reply.words[:-1], str(len(body))]
            yield before + written([Reply(words, body)]) + after


def spoilt_yaml(body: bytes) -> Iterator[bytes]:
    lines = body.split(b"\n")
    for at, line in enumerate(lines[:12]):
        yield b"\n".join(lines[:at] + lines[at + 1 :])
        name, colon, _value = line.partition(b": ")
        for word in (*WORDS, '"', '"\\ud800"', '"a\\r\\nquit"', "[]", "2e308"):
            yield b"\n".join([*lines[:at], name + colon + word.encode(), *lines[at + 1 :]])
            yield b"\n".join([*lines[:at], b"- " + word.encode(), *lines[at + 1 :]])


def written(replies: list[Reply]) -> bytes:
    """Return replies as they came."""
    return b"".join(
        " ".join(reply.words).encode()
        + b"\r\n"
        + (b"" if reply.body is None else reply.body + b"\r\n")
        for reply in replies
    )


@pytest.mark.thorough
def test_any_reply_on_the_line_is_a_result_or_an_error_of_delayd(line_answers: list[Call]) -> None:
    count = 0
    for call in line_answers:
        for index, answer in enumerate(call.answers):
            before, after = call.answers[:index], call.answers[index + 1 :]
            expected = 1 if answer.replies[0].word == "RESERVED_BATCH" else len(answer.replies)
            for data in spoilt_lines(answer.replies):
                count += 1
                with contextlib.suppress(DelaydError):
                    if (spoilt := ReplyReader(expected, AT).feed(data)) is not None:
                        played(call.ask(LineCalls("")), [*before, spoilt, *after])
    assert count > 2_000


@pytest.mark.thorough
def test_any_replies_to_a_batch_are_results_or_an_error_of_delayd(rng: Random) -> None:
    stream = b"INSERTED 1\r\nINSERTED 2\r\nJOB_TOO_BIG\r\nBURIED 3\r\nKEPT 4\r\n"
    for _ in range(3_000):
        replies, data = PutReplies(), changed(stream, rng)
        replies.sent(5)
        with contextlib.suppress(DelaydError):
            replies.feed(data)
        check_types(replies.results)


@pytest.mark.parametrize(
    "data",
    [
        *(b"\r\n", b"DELETED\r\nDELETED\r\n", b"x" * (limits.LINE_BYTES_MAX + 1)),
        b"x" * (limits.LINE_BYTES_MAX + 1) + b"\r\n",
        b"RESERVED_BATCH\r\n",
        b"RESERVED_BATCH 1001\r\n",
        b"RESERVED_BATCH 2\r\nRESERVED_BATCH 2\r\n",
        b"RESERVED_BATCH %b\r\n" % (b"1" * (limits.NUMBER_DIGITS_MAX + 1)),
        b"RESERVED 1\r\n",
        b"RESERVED 1 -5\r\n",
        b"FOUND 1 1001\r\n",
        b"OK 1001\r\n",
        b"OK 1\r\nabc",
    ],
)
def test_what_is_too_long_or_no_reply_is_not_understood(data: bytes) -> None:
    with pytest.raises(NotUnderstood):
        ReplyReader(1, AT, None, 1_000).feed(data)


def test_a_line_without_end_in_a_batch_is_not_understood() -> None:
    replies = PutReplies()
    replies.sent(2)
    replies.feed(b"INSERTED 1\r\nINSER")
    with pytest.raises(NotUnderstood, match="longer than"):
        replies.feed(b"x" * limits.LINE_BYTES_MAX)
    assert replies.results == [PutResult(1, "created")]


# --- Bounds --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (DEEP, "nested more than"),
        (
            '["]",' * (limits.JSON_DEPTH_MAX + 1) + "]" * (limits.JSON_DEPTH_MAX + 1),
            "nested more than",
        ),
        ("[" + "[]," * limits.JSON_CONTAINERS_MAX + "[]]", "arrays and objects"),
        ("[" + "1," * limits.JSON_VALUES_MAX + "11,1]", "values"),
        ("[" * 4_002 + '""' * (limits.JSON_VALUES_MAX + 1), "texts"),
        ("9" * (limits.JSON_DIGITS_MAX + 1), "is not JSON"),
        ("NaN", "is not JSON"),
        ("[" * 990 + "]" * 990, "stack has room"),
    ],
)
def test_json_is_read_up_to_its_bounds(text: str, why: str) -> None:
    with pytest.raises(NotUnderstood, match=why):
        read_json(text.encode())


def test_json_within_the_bounds_is_read() -> None:
    assert read_json(b"9" * limits.JSON_DIGITS_MAX) == int("9" * limits.JSON_DIGITS_MAX)
    many = ['[[["\\"]"]]]'] * limits.JSON_DEPTH_MAX
    assert len(read_json(f"[{','.join(many)}]".encode())) == limits.JSON_DEPTH_MAX
    assert read_json(b'["\\ud800","\\ud83d\\ude00"]') == ["?", "\U0001f600"]


def test_pages_without_end_are_not_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    def ends_with(page: Callable[[int], bytes]) -> int:
        steps, asked = HttpCalls().topics(), 0
        next(steps)
        with contextlib.suppress(NotUnderstood):
            while True:
                asked += 1
                steps.send(Response(200, {}, page(asked)))
        return asked

    def of(number: int) -> bytes:
        return b'{"topics":[],"after":"%08d"}' % number

    assert ends_with(lambda _: b'{"topics":[],"after":"a"}') == 2
    assert ends_with(of) == limits.PAGES_MAX
    monkeypatch.setattr("delayd.client.http_calls.PAGES_BYTES_MAX", 8_000)
    assert ends_with(lambda number: of(number).ljust(1_000)) == 8


def answered(steps: Any, answer: Any) -> Any:  # noqa: ANN401 - of either protocol
    """Ask, and be answered once."""
    next(steps)
    return steps.send(answer)


def told(body: bytes) -> Response:
    return Response(200, {}, body)


def said(*words: str, body: bytes | None = None) -> Replies:
    return Replies([Reply([*words], body)], None)


def page(calls: Any, limit: int | None, after: str | None) -> Any:  # noqa: ANN401 - its steps
    return calls.page("mail", {}, limit=limit, after=after, bodies=False)


TWO: Final = b'{"id":1,"state":"ready"},{"id":1,"state":"ready"}'
TOPICS: Final = b'---\n- "a\\r\\nclear-tube mail"\n'
UNKNOWN: Final = "may or may not have been done"  # a refusal says that nothing has changed


@pytest.mark.parametrize(
    ("steps", "answer", "why"),
    [
        (page(HttpCalls(), None, "7-1"), told(b'{"jobs":[],"after":"7-1"}'), "a page of 0 jobs"),
        (page(HttpCalls(), 1, None), told(b'{"jobs":[%b],"after":null}' % TWO), "page of 2 jobs"),
        (HttpCalls().reserve("m", limit=1), told(b'{"jobs":[%b]}' % TWO), "2 jobs, and 1 were"),
        (LineCalls("").put("mail", "x", key="k"), said("DELETED"), UNKNOWN),
        (LineCalls("").put("mail", "x", key="k"), said("banana"), UNKNOWN),
        (LineCalls("").put("mail", "x", key="k"), said("OK", "0"), UNKNOWN),
        (LineCalls("").cancel(7), said("INSERTED", "7"), UNKNOWN),
        (LineCalls("").topics(), said("OK", str(len(TOPICS)), body=TOPICS), "no topic"),
    ],
)
def test_what_no_daemon_answers_to_this_call_is_not_understood(
    steps: Any,  # noqa: ANN401 - of either protocol
    answer: Response | Replies,
    why: str,
) -> None:
    with pytest.raises(NotUnderstood, match=why):
        answered(steps, answer)


@pytest.mark.parametrize(
    "line",
    [
        *("RESERVED 1 1", "RESERVED 1 1 60", "RESERVED 1 1 60 1", "RESERVED 1 1 60 1 k"),
        *("RESERVED 1 1 60 1 key= mail", "FOUND 1 1 60 1 key=", "RESERVED 1 1 -1 1 key="),
        *("RESERVED 1 1 1e9 1 key=", "RESERVED 1 1 . 1 key=", "RESERVED 1 1 60 x key="),
        *("RESERVED 1 1 nan 1 key=", "RESERVED 1 1 999999999999999 1 key="),
        "RESERVED 1 1 \u0661 1 key=",
    ],
)
def test_a_reserved_job_has_the_details_that_were_asked_for(line: str) -> None:
    replies = [Reply(["RESERVED_BATCH", "1"]), Reply(line.split(), b"x")]
    with pytest.raises(NotUnderstood):
        answered(LineCalls("").reserve("mail", timeout=0), Replies(replies, None))


def test_a_long_detail_is_cut_short() -> None:
    body = json.dumps({"word": "NOT_FOUND", "detail": "x" * 10**6}).encode()
    with pytest.raises(Refused, match=re.escape("xxx...")) as caught:
        answered(HttpCalls().cancel(7), Response(404, {}, body))
    assert len(str(caught.value)) == limits.DETAIL_CHARACTERS_MAX + 3


@pytest.mark.parametrize(
    ("ttr_s", "every_s"), [(0.0, limits.TOUCH_S_MIN), (1e11, limits.TOUCH_S_MAX), (60, 20)]
)
def test_no_ttr_of_a_server_makes_a_client_touch_without_a_pause(
    ttr_s: float, every_s: float
) -> None:
    from delayd.client.touching import Touches

    touches = Touches[str]()
    touches.add("a", ttr_s, 100.0)
    assert touches.next_s() == 100 + every_s


@pytest.mark.thorough
def test_a_job_comes_with_its_own_text_or_is_not_understood() -> None:
    answer = b'{"id":7,"topic":"a","state":"ready","body":  {"x": 1}}'
    with pytest.raises(StopIteration) as done:
        answered(HttpCalls().get(7), Response(200, {}, answer))
    assert done.value.value.body == b'{"x": 1}'
    answer = answer.replace(b'"body":', b'"body" :')
    with pytest.raises(NotUnderstood, match="the body of a job"):
        answered(HttpCalls().get(7), Response(200, {}, answer))
