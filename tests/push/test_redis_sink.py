"""The Redis sink over a double of its client: what it sends, and what it makes of the answers."""

import asyncio
import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

import pytest
from redis import exceptions

from benchmarks.receivers import KINDS
from delayd.fields import Invalid
from delayd.net import tls
from delayd.push.redis_sink import RedisSink, redis_sink
from delayd.push.sinks import DELIVERED, AttemptEnd, Result, Sink
from tests.access.handshakes import Authority
from tests.push.receiver import delivered
from tests.push.test_sinks import JOB


class Client:
    """Takes one command and answers it, or raises the error that it is given."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.command: tuple[object, ...] = ()
        self.connection_pool = self
        self.disconnects = 0

    async def execute_command(self, *command: object) -> int:
        self.command = command
        if self.error is not None:
            raise self.error
        return 1

    async def disconnect(self, *, inuse_connections: bool) -> None:
        assert not inuse_connections
        self.disconnects += 1


def deliver(
    error: Exception | None = None, *, body: bytes = b"hi", **options: object
) -> tuple[tuple[object, ...], AttemptEnd]:
    """What is sent, and what becomes of the attempt."""
    sink = redis_sink("orders", {"url": "redis://h:1", **options})
    client = sink._client = Client(error)  # type: ignore[misc, assignment]
    end = asyncio.run(sink.deliver(JOB._replace(body=body)))
    return client.command, end


def errors_of(**options: object) -> list[str]:
    with pytest.raises(Invalid) as caught:
        redis_sink("orders", {"url": "redis://h:1", **options})
    return [*map(str, caught.value.errors)]


def test_a_body_is_pushed_to_the_end_of_a_list_as_it_is() -> None:
    assert deliver(list="due", body=b"\0\xff") == (("RPUSH", "due", b"\0\xff"), DELIVERED)


def test_a_key_may_have_the_topic_in_it() -> None:
    assert deliver(list="due:{topic}:{x}")[0][1] == "due:mail:{x}"
    assert deliver(stream="{topic}")[0][1] == "mail"


def test_an_envelope_is_json_with_all_fields_of_the_job() -> None:
    (_, _, text), _ = deliver(list="due", format="envelope")
    assert json.loads(cast("bytes", text)) == {"body": "hi", **JOB.fields()}


def test_an_envelope_has_a_body_that_is_not_utf_8_in_base64() -> None:
    (_, _, text), _ = deliver(list="due", format="envelope", body=b"\xff")
    assert json.loads(cast("bytes", text)) == {"body_base64": "/w==", **JOB.fields()}


def test_an_entry_of_a_stream_has_the_body_and_all_fields_of_the_job() -> None:
    (verb, key, at, *rest), end = deliver(stream="due", body=b"\xff")
    assert (verb, key, at, end) == ("XADD", "due", "*", DELIVERED)
    fields = dict(zip(rest[::2], rest[1::2], strict=True))
    assert fields == {"body": b"\xff", **JOB.fields()}


def test_a_stream_may_have_a_length_that_redis_keeps_about() -> None:
    assert deliver(stream="due", maxlen=7)[0][:6] == ("XADD", "due", "MAXLEN", "~", 7, "*")


ANSWERS: Final[dict[str, tuple[type[exceptions.RedisError], str]]] = {
    "OOM": (exceptions.OutOfMemoryError, "it has reac"),
    "READONLY": (exceptions.ReadOnlyError, "it is a replica"),
    "NOAUTH": (exceptions.AuthenticationError, "it wants a password"),
    "WRONGPASS": (exceptions.AuthenticationError, "it does not kno"),
    "LOADING": (exceptions.BusyLoadingError, "it is still rea"),
    "NOPERM": (exceptions.NoPermissionError, "its user may no"),
    "MISCONF": (exceptions.ResponseError, "it cannot write to"),
    "WRONGTYPE": (exceptions.ResponseError, "the key holds"),
}
"""The library takes the code from the text of those that it has a class for."""


@pytest.mark.parametrize("code", ANSWERS)
def test_an_answer_that_is_the_servers_fault_is_an_outage_and_says_what_to_do(code: str) -> None:
    kind, said = ANSWERS[code]
    is_known = kind is not exceptions.ResponseError
    error = kind("You can't", status_code=code) if is_known else kind(f"{code} You can't")
    end = deliver(error, list="due")[1]
    assert (end.result, end.is_outage, end.answer) == (Result.FAILED, True, str(error).encode())
    assert end.error.startswith(f"Redis at h:1 answered {code}: {said}")


def test_connections_to_a_replica_are_dropped_so_that_the_next_attempt_looks_for_the_primary() -> (
    None
):
    for error, disconnects in (
        (exceptions.ReadOnlyError("You can't write"), 1),
        (exceptions.OutOfMemoryError("command not allowed"), 0),
        (None, 0),
    ):
        sink = redis_sink("orders", {"url": "redis://h:1", "list": "due"})
        client = sink._client = Client(error)  # type: ignore[misc, assignment]
        asyncio.run(sink.deliver(JOB))
        assert client.disconnects == disconnects


def test_a_key_of_another_type_is_no_outage_where_topics_have_keys_of_their_own() -> None:
    error = exceptions.ResponseError("WRONGTYPE Operation against a key")
    assert not deliver(error, list="due:{topic}")[1].is_outage


def test_an_answer_of_another_kind_is_no_outage() -> None:
    end = deliver(exceptions.ResponseError("ERR odd"), list="due")[1]
    assert end == AttemptEnd(Result.FAILED, "Redis at h:1: ERR odd")


@pytest.mark.parametrize(
    "error",
    [
        exceptions.ConnectionError("Error 111 connecting to h:1."),
        exceptions.TimeoutError("Timeout connecting"),
        OSError("no route"),
        FileNotFoundError("the password's file"),
        ValueError("must be UTF-8"),
    ],
)
def test_a_server_that_cannot_be_reached_is_an_outage(error: Exception) -> None:
    end = deliver(error, list="due")[1]
    assert end == AttemptEnd(Result.FAILED, f"Redis at h:1: {error}", is_outage=True)


def test_a_fault_of_our_own_is_not_hidden() -> None:
    with pytest.raises(KeyError):
        deliver(KeyError("x"), list="due")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, "must have either a list or a stream"),
        ({"list": "a", "stream": "b"}, "must have either a list or a stream"),
        ({"stream": "b", "format": "body"}, "format: is for a list: a stream has fields"),
        ({"list": "a", "maxlen": 5}, "maxlen: is for a stream"),
        ({"list": "a", "format": "x"}, 'format = "x": must be one of body, envelope'),
        (
            {"url": "redis://h/x", "list": "a"},
            "url: must end with the number of a database, if with anything",
        ),
        (
            {"url": "redis://h/1", "database": 2, "list": "a"},
            "database: is for a unix socket: the url ends with it",
        ),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    options: dict[str, object], error: str
) -> None:
    assert errors_of(**options) == [error]


def pool_of(options: Mapping[str, object]) -> dict[str, Any]:
    sink = redis_sink("orders", options)
    assert isinstance(sink, RedisSink)
    return sink._client.connection_pool.connection_kwargs


def test_the_url_says_where_to_connect_and_how() -> None:
    given = pool_of({"url": "redis://h/3", "list": "a", "connect_timeout": "2s"})
    assert (str(given["server"].url), given["db"]) == ("h:6379", 3)
    assert given["socket_connect_timeout"] == 2
    assert given["server"].tls is None
    assert "credential_provider" not in given

    given = pool_of({"url": "unix:///run/redis.sock", "database": 2, "list": "a"})
    assert (str(given["server"].url), given["db"]) == ("/run/redis.sock", 2)

    assert pool_of({"url": "rediss://h", "list": "a"})["server"].tls is not None


def test_user_and_password_are_asked_for_at_each_connection() -> None:
    for url, credentials in (("redis://:p@h", ("p",)), ("redis://ada:p@h", ("ada", "p"))):
        provider = pool_of({"url": url, "list": "a"})["credential_provider"]
        assert provider.get_credentials() == credentials
        assert asyncio.run(provider.get_credentials_async()) == credentials


# --- Replies that confirm nothing -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("greeting", "reply", "options", "is_delivered"),
    [
        (b"", b":1", {"list": "due"}, True),
        (b"", b"+OK", {"list": "due"}, False),
        (b"", b"$-1", {"list": "due"}, False),
        (b"", b":0", {"list": "due"}, False),
        (b"", b":-1", {"list": "due"}, False),
        (b"+OK POP3 mail.example ready\r\n", b"-ERR", {"list": "due"}, False),
        (b"", b"$3\r\n7-0", {"stream": "due"}, True),
        (b"", b"+OK", {"stream": "due"}, False),
        (b"", b"$-1", {"stream": "due"}, False),
        (b"", b":1", {"stream": "due"}, False),
    ],
)
async def test_a_job_is_delivered_only_by_the_reply_that_redis_gives_to_its_command(
    greeting: bytes, reply: bytes, options: dict[str, object], is_delivered: bool
) -> None:
    ended = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        while await reader.read(10_000):
            writer.write(reply + b"\r\n")
        ended.append(writer)
        writer.close()

    def sink_at(port: int) -> Sink:
        return redis_sink("orders", {"url": f"redis://127.0.0.1:{port}", **options})

    end = await delivered(serve, sink_at, JOB)
    if is_delivered:
        assert end == DELIVERED
    else:
        assert (end.result, end.is_outage) == (Result.FAILED, True)
        assert ended  # one connection at least is closed: it was tried once more


# --- A server that means harm --------------------------------------------------------------------


ENDLESS: Final = {
    "bulk": "it sends more than an answer may have",
    "array": "its reply cannot be read: it is a list",
    "nested": "its reply cannot be read: it is a list",
    "line": "",  # the library has a bound of its own
    "replies": None,
}


@pytest.mark.parametrize("kind", ENDLESS)
async def test_a_server_that_sends_without_end_is_cut_off(tmp_path: Path, kind: str) -> None:
    authority, is_secure = Authority(tmp_path), kind == "bulk"  # one of them over TLS
    first, again, _ = KINDS[kind]
    sent: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        with contextlib.suppress(OSError):
            writer.write(b"+" if kind == "line" else first)
            for _ in range(1_000):
                writer.write(again * (10_000 // len(again)))
                sent.append(10_000)
                await writer.drain()
        writer.transport.abort()

    def sink_at(port: int) -> Sink:
        where: dict[str, object] = {"url": f"redis{'s' * is_secure}://localhost:{port}"}
        if is_secure:
            where["ca"] = authority.path
        return redis_sink("orders", {**where, "list": "due"})

    server_tls = tls.server_context(authority.files()) if is_secure else None
    end = await delivered(serve, sink_at, JOB, server_tls)
    assert sum(sent) < 10_000_000  # of twenty: the rest nobody has taken
    error = ENDLESS[kind]
    if error is None:
        assert end == DELIVERED
    else:
        assert (end.result, end.is_outage) == (Result.FAILED, True)
        assert error in end.error
