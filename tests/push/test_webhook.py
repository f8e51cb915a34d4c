import asyncio
import contextlib
import datetime as dt
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook as Verifier

from benchmarks.receivers import KINDS
from delayd import __version__
from delayd.access.signing_secrets import Secrets
from delayd.clock import system_wall_ms
from delayd.limits import (
    DURATION_MS_MAX,
    PUSH_ANSWER_BYTES_MAX,
    PUSH_ANSWER_READ_BYTES_MAX,
    PUSH_HINTS_MAX,
    PUSH_LOOKUPS_MAX,
    PUSH_ORIGINS_KEPT_MAX,
)
from delayd.net import tls
from delayd.net.addresses import TcpAddress
from delayd.net.tls import client_context
from delayd.push import connections as connections_module
from delayd.push import webhook as webhook_module
from delayd.push.connections import Connections, LookUp, NoConnection, look_up
from delayd.push.egress import EgressRules
from delayd.push.sinks import DELIVERED, AttemptEnd, Result
from delayd.push.webhook import Webhook, retry_after_ms
from tests.access.handshakes import Authority
from tests.access.secret_samples import named, text
from tests.conftest import play
from tests.push.receiver import HOST, OK, WALL_MS, FakeDns, Receiver, job, row, rules, webhook
from tests.servers import free_port

VERIFIED = ssl.create_default_context()
HEAD = f"POST / HTTP/1.1\r\nHost: {HOST}\r\n".encode()


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine may stop for longer, between two calls or the parts of an answer."""
    monkeypatch.setattr(connections_module, "PUSH_IDLE_MS", 60_000)
    monkeypatch.setattr(connections_module, "PUSH_ANSWER_MS", 60_000)


def answer(status: str, *headers: str, body: bytes = b"") -> bytes:
    lines = (f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}", "", "")
    return "\r\n".join(lines).encode() + body


@contextlib.asynccontextmanager
async def calling(
    receiver: Receiver,
    dns: LookUp | None = None,
    **changes: Any,  # noqa: ANN401
) -> AsyncIterator[Webhook]:
    async with receiver:
        sink = webhook(receiver, dns, **changes)
        try:
            yield sink
        finally:
            await sink.close()


def end_of(answered: bytes) -> AttemptEnd:
    """What one call comes to that is answered like this."""
    ends = []

    async def scene() -> None:
        receiver = Receiver(answered)
        async with calling(receiver) as sink:
            ends.append(await sink.deliver(job(receiver.url())))
        assert len(receiver.got) == 1

    play(scene())
    return ends[0]


# --- What is sent --------------------------------------------------------------------------------


async def test_a_call_says_what_delayd_knows_of_the_job() -> None:
    receiver = Receiver()
    async with calling(receiver) as sink:
        end = await sink.deliver(job(receiver.url("/a/b?c=d%20e"), key=b"order 4/\xff"))
    assert end == DELIVERED._replace(answer=b"ok")
    (got,) = receiver.got
    assert got.line == "POST /a/b?c=d%20e HTTP/1.1"
    assert got.body == b'{"hello": "world"}'
    trace = got.headers.pop("traceparent")
    assert got.headers == {
        "host": f"{HOST}:{receiver.port}",
        "accept": "*/*",
        "content-length": "18",
        "content-type": "application/json",
        "user-agent": f"delayd/{__version__}",
        "webhook-id": "00c0ffee00c0ffee_7",
        "webhook-timestamp": "1795256100",
        "idempotency-key": "00c0ffee00c0ffee_7",
        "delayd-id": "7",
        "delayd-topic": "mail",
        "delayd-key": "order%204%2F%FF",
        "delayd-attempt": "2",
        "delayd-due": "2026-11-21T10:14:59.960Z",
        "delayd-lateness-ms": "40",
    }
    version, trace_id, span_id, flags = trace.split("-")
    assert (version, len(trace_id), len(span_id), flags) == ("00", 32, 16, "01")


async def test_attempts_of_a_job_share_their_id_and_trace_and_differ_in_span_and_time() -> None:
    receiver = Receiver()
    async with receiver:
        for attempt in (1, 2):
            sink = webhook(receiver, wall_ms=WALL_MS + attempt * 60_000)
            await sink.deliver(job(receiver.url(), attempt=attempt))
            await sink.close()
    one, two = (got.headers for got in receiver.got)
    assert one["webhook-id"] == two["webhook-id"]
    assert int(two["webhook-timestamp"]) - int(one["webhook-timestamp"]) == 60
    assert one["traceparent"].split("-")[1] == two["traceparent"].split("-")[1]
    assert one["traceparent"].split("-")[2] != two["traceparent"].split("-")[2]


@pytest.mark.parametrize(
    ("method", "body", "length"),
    [
        ("POST", b"", "0"),
        ("PUT", b"x", "1"),
        ("PATCH", b"x", "1"),
        ("GET", b"", None),
        ("GET", b"x", "1"),
        ("DELETE", b"", "0"),
        ("POST", b"\0\xff" * 1_000_000, "2000000"),
    ],
)
async def test_method_and_body_are_the_targets_and_the_jobs(
    method: str, body: bytes, length: str | None
) -> None:
    receiver = Receiver()
    async with calling(receiver) as sink:
        call = job(receiver.url(), method=method, body=body, content_type="a/b")
        assert (await sink.deliver(call)).result is Result.DELIVERED
    (got,) = receiver.got
    assert got.line == f"{method} / HTTP/1.1"
    assert got.body == body
    assert got.headers.get("content-length") == length
    assert "delayd-key" not in got.headers
    assert got.headers["content-type"] == "a/b"


async def test_headers_of_the_target_are_sent_but_for_those_that_are_delayds() -> None:
    receiver = Receiver()
    taken = (
        *("WEBHOOK-ID", "Webhook-Signature", "delayd-key", "Delayd-Id", "user-agent"),
        *("Delayd_Topic", "Webhook_Id", "Content_Length", "Transfer_Encoding", "Content_Type"),
        "Proxy",
    )
    own = (
        ("Authorization", "Bearer x"),
        ("X-Team", "mail"),
        ("content-type", "x/y"),
        ("ACCEPT", "a/b"),
    )
    async with calling(receiver) as sink:
        headers = (*own, *((name, "forged") for name in taken))
        await sink.deliver(job(receiver.url(), headers=headers, content_type="a/b"))
    (got,) = receiver.got
    assert got.headers["authorization"] == "Bearer x"
    assert got.headers["x-team"] == "mail"
    assert got.headers["content-type"] == "a/b"
    assert got.headers["accept"] == "a/b"
    assert "forged" not in got.headers.values()


@pytest.mark.parametrize("value", ["a\r\nX-Forged: b", "a\nb", "a\rb", "a\0b"])
async def test_a_header_of_more_than_a_line_is_never_sent(value: str) -> None:
    receiver = Receiver()
    async with calling(receiver) as sink:
        with pytest.raises(AssertionError):
            await sink.deliver(job(receiver.url(), headers=(("X-Team", value),)))
    assert receiver.connections == 0


async def test_a_job_of_a_topic_that_a_secret_is_not_for_is_not_called() -> None:
    """It was moved there, or its target was set before the secret had topics."""
    receiver = Receiver()
    secrets = Secrets([replace(named("b", 1), topics=("b*",))])
    async with calling(receiver, secrets=secrets, sign_with=("b",)) as sink:
        for names, said in ((("b",), ""), ((), " of push.sign_with")):
            end = await sink.deliver(job(receiver.url(), topic="a", secrets=names))
            error = f"secret 'b'{said} is for the topics b*, and not for 'a'"
            assert end == AttemptEnd(Result.FAILED, error, is_ours=True)
            end = await sink.deliver(job(receiver.url(), topic="b1", secrets=names))
            assert end.result is Result.DELIVERED
    assert [got.headers["delayd-topic"] for got in receiver.got] == ["b1", "b1"]


async def test_a_call_is_signed_so_that_the_library_of_the_standard_accepts_it() -> None:
    receiver = Receiver()
    secrets = Secrets([named("a", 1, 2), named("b", 3)])
    changes: dict[str, Any] = {
        "secrets": secrets,
        "sign_with": ("b",),
        "wall_ms": system_wall_ms(),
    }
    async with calling(receiver, **changes) as sink:
        await sink.deliver(job(receiver.url()))
        await sink.deliver(job(receiver.url(), secrets=("a",)))
    by_default, by_name = receiver.got
    assert Verifier(text(3)).verify(by_default.body, by_default.headers) == {"hello": "world"}
    for number in (1, 2):
        assert Verifier(text(number)).verify(by_name.body, by_name.headers)
    with pytest.raises(Exception, match="No matching signature"):
        Verifier(text(3)).verify(by_name.body, by_name.headers)


async def test_a_secret_that_is_there_no_more_fails_the_attempt_before_anything_is_sent() -> None:
    receiver = Receiver()
    async with calling(receiver, secrets=Secrets([named("a", 1)])) as sink:
        end = await sink.deliver(job(receiver.url(), secrets=("a", "gone")))
    assert end == AttemptEnd(Result.FAILED, "there is no secret gone to sign with", is_ours=True)
    assert receiver.connections == 0


# --- What is answered ----------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["200 OK", "201 Created", "202 Hm", "204 No Content", "299 x"])
def test_a_success_is_delivered(status: str) -> None:
    assert end_of(answer(status)) == DELIVERED


@pytest.mark.parametrize(
    ("status", "error", "is_outage"),
    [
        ("400 Nope", "400 Bad Request", False),
        ("401 x", "401 Unauthorized", False),
        ("404 x", "404 Not Found", False),
        ("409 x", "409 Conflict", False),
        ("429 x", "429 Too Many Requests", True),
        ("499 x", "499", False),
        ("500 x", "500 Internal Server Error", True),
        ("502 x", "502 Bad Gateway", True),
        ("503 \x80", "503 Service Unavailable", True),
        ("599 x", "599", True),
        ("301 x", "301 Moved Permanently: redirects are not followed", False),
        ("302 x", "302 Found: redirects are not followed", False),
        ("304 x", "304 Not Modified: redirects are not followed", False),
        ("308 x", "308 Permanent Redirect: redirects are not followed", False),
    ],
)
def test_anything_else_is_a_failure_in_words_that_everybody_knows(
    status: str, error: str, is_outage: bool
) -> None:
    end = end_of(answer(status))
    assert end == AttemptEnd(Result.FAILED, error, is_outage=is_outage)


def test_gone_exhausts_at_once() -> None:
    assert end_of(answer("410 Gone", body=b"no more")) == AttemptEnd(
        Result.EXHAUSTED, "410 Gone", b"no more"
    )


@pytest.mark.parametrize(
    "where", ["http://127.0.0.1:22/", "http://169.254.169.254/", "https://b.example/", "/b", "//b"]
)
async def test_a_redirect_is_never_followed(where: str) -> None:
    dns = FakeDns(b_example=["127.0.0.1"])
    receiver = Receiver(answer("307 Temporary Redirect", f"Location: {where}"))
    async with calling(receiver, dns) as sink:
        end = await sink.deliver(job(receiver.url()))
    assert end.result is Result.FAILED
    assert len(receiver.got) == 1
    assert dns.asked == [HOST]


def test_of_an_answer_the_beginning_is_kept() -> None:
    body = bytes(range(256)) * 10
    end = end_of(answer("500 x", body=body))
    assert end.answer == body[:PUSH_ANSWER_BYTES_MAX]
    broken_off = b"HTTP/1.1 500 x\r\nConnection: close\r\nContent-Length: 9999\r\n\r\n" + body
    assert end_of(broken_off).answer == body[:PUSH_ANSWER_BYTES_MAX]
    assert end_of(answer("500 x", body=b"short")).answer == b"short"
    assert end_of(answer("200 x", body=b"fine")).answer == b"fine"


def test_a_compressed_answer_is_not_unpacked() -> None:
    end = end_of(answer("500 x", "Content-Encoding: gzip", body=b"\x1f\x8b bomb"))
    assert end.answer == b"\x1f\x8b bomb"


async def test_no_compression_is_asked_for_and_no_cookie_is_sent_back() -> None:
    receiver = Receiver(answer("200 OK", "Set-Cookie: a=b; Path=/"))
    async with calling(receiver) as sink:
        for _ in range(2):
            await sink.deliver(job(receiver.url()))
    for got in receiver.got:
        assert not {"cookie", "accept-encoding"} & set(got.headers)


@pytest.mark.parametrize(
    ("body_bytes", "is_reused"),
    [(PUSH_ANSWER_READ_BYTES_MAX, True), (PUSH_ANSWER_READ_BYTES_MAX * 20, False)],
)
async def test_no_more_of_an_answer_is_read_than_the_limit_and_its_connection_is_given_up(
    body_bytes: int, is_reused: bool
) -> None:
    receiver = Receiver(answer("200 OK", body=bytes(body_bytes)))
    async with calling(receiver) as sink:
        for _ in range(2):
            assert (await sink.deliver(job(receiver.url()))).result is Result.DELIVERED
    assert receiver.connections == (1 if is_reused else 2)


def test_an_answer_that_never_ends_or_breaks_off_does_not_change_what_its_status_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("delayd.push.connections.PUSH_ANSWER_MS", 1)
    begun = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegun"
    assert end_of(begun) == DELIVERED._replace(answer=b"begun")
    monkeypatch.undo()
    broken = b"HTTP/1.1 500 x\r\nConnection: close\r\nContent-Length: 100\r\n\r\nbegun"
    end = end_of(broken)
    assert (end.error, end.answer) == ("500 Internal Server Error", b"begun")


@pytest.mark.parametrize("hint", ["100 Continue", "103 Early Hints"])
def test_what_is_said_before_the_answer_is_not_the_answer(hint: str) -> None:
    hinted = f"HTTP/1.1 {hint}\r\nLink: </a>\r\n\r\n".encode()
    assert end_of(hinted * 2 + answer("410 Gone")).error == "410 Gone"


def test_what_is_said_before_the_answer_is_not_heard_for_ever() -> None:
    hint = b"HTTP/1.1 103 x\r\n\r\n"
    assert end_of(hint * PUSH_HINTS_MAX + OK).result is Result.DELIVERED
    end = end_of(hint * (PUSH_HINTS_MAX + 1) + OK)
    assert (end.result, end.is_outage) == (Result.FAILED, True)
    assert "does not answer in HTTP" in end.error


def test_another_protocol_is_not_switched_to() -> None:
    switched = b"HTTP/1.1 101 x\r\nUpgrade: a\r\nConnection: upgrade\r\n\r\n"
    assert end_of(switched) == AttemptEnd(Result.FAILED, "101 Switching Protocols")


async def test_an_answer_may_come_before_all_of_a_long_body_is_sent() -> None:
    ended: asyncio.Queue[bool] = asyncio.Queue()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer("403 x", body=b"too long"))
        await gone.wait()
        with contextlib.suppress(ConnectionError):
            await reader.read()
        await ended.put(True)
        writer.close()

    gone = asyncio.Event()
    receiver = Receiver()
    server = await asyncio.start_server(refuse, "127.0.0.1", 0, limit=1 << 10)
    receiver.port = server.sockets[0].getsockname()[1]
    sink = webhook(receiver)
    body = bytes(16 << 20)
    end = await sink.deliver(job(receiver.url(), body=body))
    assert (end.error, end.answer) == ("403 Forbidden", b"too long")
    assert not (await sink.opened())._idle
    gone.set()
    await ended.get()  # the connection was closed, in the middle of the body
    server.close()
    await sink.close()


# --- Retry-After ---------------------------------------------------------------------------------


def http_date(after_s: int) -> str:
    moment = dt.datetime.fromtimestamp(WALL_MS / 1_000 + after_s, dt.UTC)
    return format_datetime(moment, usegmt=True)


@pytest.mark.parametrize(
    ("value", "after_ms"),
    [
        ("0", 0),
        ("30", 30_000),
        (" 30 ", 30_000),
        ("99999999999999999999", DURATION_MS_MAX),
        (http_date(90), 90_000),
        (http_date(-90), 0),
        ("Saturday, 21-Nov-26 10:15:30 GMT", 30_000),
        ("Fri, 31 Dec 9999 23:59:59 GMT", DURATION_MS_MAX),
        ("", 0),
        ("-5", 0),
        ("1.5", 0),
        ("1e3", 0),
        ("soon", 0),
        ("٣٠", 0),
        ("Sat, 31 Feb 2026 10:15:30 GMT", 0),
        ("Sat, 21 Nov 2026 10:15:30", 0),
        ("GMT", 0),
    ],
)
def test_retry_after_is_seconds_or_a_date(value: str, after_ms: int) -> None:
    assert retry_after_ms(value, WALL_MS) == after_ms


def test_retry_after_of_a_failure_is_handed_on() -> None:
    assert end_of(answer("503 x", "Retry-After: 30")).retry_after_ms == 30_000
    assert end_of(answer("404 x", f"Retry-After: {http_date(5)}")).retry_after_ms == 5_000
    assert end_of(answer("200 x", "Retry-After: 30")).retry_after_ms == 0
    assert end_of(answer("410 x", "Retry-After: 30")).retry_after_ms == 0


# --- No answer -----------------------------------------------------------------------------------


def failure(end: AttemptEnd) -> str:
    assert end.result is Result.FAILED
    assert end.is_outage
    assert (end.answer, end.retry_after_ms) == (b"", 0)
    return end.error


async def test_a_refused_connection_is_told_with_host_and_port_and_no_query() -> None:
    receiver = Receiver()
    with free_port() as receiver.port:
        sink = webhook(receiver)
        end = await sink.deliver(job(receiver.url("/path?token=canary")))
        await sink.close()
    assert failure(end) == f"no connection to {HOST}:{receiver.port}: connection refused"


async def test_a_host_that_nobody_knows_is_told() -> None:
    receiver, dns = Receiver(), FakeDns(empty_example=[])
    async with calling(receiver, dns) as sink:
        end = await sink.deliver(job(f"http://nobody.example:{receiver.port}/"))
        said = "its name cannot be looked up: name or service not known"
        assert failure(end) == f"no connection to nobody.example:{receiver.port}: {said}"
        end = await sink.deliver(job(f"http://empty.example:{receiver.port}/"))
        assert failure(end).endswith("cannot be looked up: empty.example has no address")
    assert dns.asked == ["nobody.example", "empty.example"]


async def test_a_look_up_that_hangs_ends_with_the_time_for_the_connection() -> None:
    async def hang(_host: str, _port: int) -> list[tuple[Any, ...]]:
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    receiver = Receiver()
    async with calling(receiver, hang, connect_timeout_ms=20) as sink:
        end = await sink.deliver(job(receiver.url()))
    assert failure(end) == f"no connection to {HOST}:{receiver.port} within 20ms"


async def test_a_connection_that_is_closed_without_an_answer_is_told() -> None:
    receiver = Receiver(b"")
    async with calling(receiver) as sink:
        end = await sink.deliver(job(receiver.url()))
    said = f"{HOST}:{receiver.port} closed the connection before it answered"
    assert failure(end) == said
    assert len(receiver.got) == 1


@pytest.mark.parametrize(
    "answered",
    [
        b"220 mail.example ESMTP\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 20_000 + b"\r\n\r\n",
    ],
)
async def test_what_does_not_speak_http_is_told(answered: bytes) -> None:
    receiver = Receiver(answered)
    async with calling(receiver) as sink:
        end = await sink.deliver(job(receiver.url()))
    assert failure(end) == f"{HOST}:{receiver.port} does not answer in HTTP"


async def test_a_call_that_is_cancelled_leaves_no_connection() -> None:
    receiver = Receiver()
    arrived = asyncio.Event()
    never = asyncio.Event()  # kept, or the collector takes it with all that waits for it

    async def hang() -> None:
        arrived.set()
        await never.wait()

    receiver.on_request = hang
    async with calling(receiver) as sink:
        call = asyncio.create_task(sink.deliver(job(receiver.url())))
        await arrived.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        receiver.on_request = None
        assert (await sink.deliver(job(receiver.url()))).result is Result.DELIVERED
    assert receiver.connections == 2
    never.set()


# --- Connections ---------------------------------------------------------------------------------


async def test_a_kept_connection_that_the_server_closes_is_replaced_within_the_attempt() -> None:
    receiver = Receiver(OK, b"", OK)
    async with calling(receiver) as sink:
        for _ in range(2):
            assert (await sink.deliver(job(receiver.url()))).result is Result.DELIVERED
    assert [got.connection for got in receiver.got] == [1, 1, 2]


async def test_a_server_that_closes_again_has_failed_the_attempt() -> None:
    receiver = Receiver(OK, b"")
    async with calling(receiver) as sink:
        assert (await sink.deliver(job(receiver.url()))).result is Result.DELIVERED
        assert "closed the connection" in failure(await sink.deliver(job(receiver.url())))
    assert [got.connection for got in receiver.got] == [1, 1, 2]


async def test_an_answer_that_came_to_nothing_is_not_taken_for_that_of_the_next_call() -> None:
    async def answer_twice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b'"world"}')
        writer.write(OK)
        await once.wait()
        writer.write(OK)
        with contextlib.suppress(ConnectionError):
            while await reader.read(1 << 10):
                writer.write(answer("500 x"))
        writer.close()

    once = asyncio.Event()
    receiver = Receiver()
    with free_port() as receiver.port:
        server = await asyncio.start_server(answer_twice, "127.0.0.1", receiver.port)
        sink = webhook(receiver)
        assert (await sink.deliver(job(receiver.url()))).result is Result.DELIVERED
        ((_since_s, kept),) = (await sink.opened())._idle[receiver.url("")]
        once.set()
        while kept.is_open:  # noqa: ASYNC110 - it is closed as soon as anything comes
            await asyncio.sleep(0)
        server.close()  # new connections are refused
        assert "no connection" in failure(await sink.deliver(job(receiver.url())))
        await sink.close()


@pytest.mark.parametrize("is_secure", [False, True])
@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("answers", ""),
        ("hints", "does not answer in HTTP"),
        ("chunks", ""),
        ("headers", "does not answer in HTTP"),
        ("line", "does not answer in HTTP"),
        ("body", ""),
    ],
)
async def test_an_answer_without_end_ends_the_call_and_its_connection(
    tmp_path: Path, kind: str, error: str, *, is_secure: bool
) -> None:
    authority = Authority(tmp_path)
    server = tls.server_context(authority.files(HOST)) if is_secure else None
    first, again, _ = KINDS[kind]
    receiver = Receiver(first + again * ((1 << 20) // len(again)), tls=server)
    async with calling(receiver, tls=authority.client()) as sink:
        for _ in range(2):
            end = await sink.deliver(job(receiver.url(scheme="https" if is_secure else "http")))
            assert (end.result is Result.DELIVERED) is (not error)
            assert end.error.endswith(error)
        connections = await sink.opened()
        assert not connections._idle
        assert not connections._transports._transports
    assert receiver.connections == 2


async def test_a_connection_with_a_surplus_is_not_used_again() -> None:
    receiver = Receiver(OK + b"\r\n", OK + OK, OK)
    async with calling(receiver) as sink:
        for _ in range(4):
            assert (await sink.deliver(job(receiver.url()))).result is Result.DELIVERED
    assert [got.connection for got in receiver.got] == [1, 2, 3, 3]


@pytest.mark.parametrize("is_answered", [False, True])
async def test_a_connection_whose_peer_never_reads_ends_soon_after_its_call(
    monkeypatch: pytest.MonkeyPatch, *, is_answered: bool
) -> None:
    monkeypatch.setattr(connections_module, "PUSH_CLOSE_MS", 10)
    sockets: list[socket.socket] = []

    def noted(connections: Connections, place: tuple[Any, ...]) -> socket.socket:
        sockets.append(make(connections, place))
        return sockets[-1]

    make = Connections._socket
    monkeypatch.setattr(Connections, "_socket", noted)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        receiver = Receiver()
        receiver.port = server.getsockname()[1]
        sink = webhook(receiver)
        call = asyncio.create_task(sink.deliver(job(receiver.url(), body=bytes(16 << 20))))
        peer, _ = await asyncio.get_running_loop().sock_accept(server)
        with peer:
            if is_answered:
                peer.send(OK)
            else:
                await asyncio.get_running_loop().sock_recv(peer, 1)
                call.cancel()
            await asyncio.wait([call])
            (ours,) = sockets
            while ours.fileno() >= 0:  # noqa: ASYNC110 - asyncio tells nobody
                await asyncio.sleep(0)
        await sink.close()


async def test_connections_are_kept_for_a_bounded_number_of_origins() -> None:
    connections = Connections(EgressRules(), 1_000, VERIFIED)
    loop = asyncio.get_running_loop()
    assert all(connections._keeps(f"https://{n}") for n in range(PUSH_ORIGINS_KEPT_MAX))
    assert not connections._keeps("https://one.more")
    assert connections._keeps("https://0")
    later = loop.time() + 3_600
    loop.time = lambda: later  # type: ignore[method-assign]
    assert connections._keeps("https://one.more")
    assert connections._keeps("https://1")
    assert len(connections._kept) == PUSH_ORIGINS_KEPT_MAX
    del loop.time
    await connections.close()


async def test_a_connection_that_is_not_kept_is_closed_after_its_call() -> None:
    receiver = Receiver()
    async with receiver:
        connections = Connections(rules(receiver), 1_000, VERIFIED, FakeDns())
        for number in range(PUSH_ORIGINS_KEPT_MAX):
            connections._keeps(f"https://{number}")
        for _ in range(2):
            await connections.ask(receiver.url(""), HEAD, b"")
        await connections.close()
    assert [got.headers.get("connection") for got in receiver.got] == ["close", "close"]
    assert receiver.connections == 2


async def test_a_webhook_that_is_closed_opens_again() -> None:
    receiver = Receiver()
    async with calling(receiver) as sink:
        for _ in range(2):
            assert (await sink.deliver(job(receiver.url()))).result is Result.DELIVERED
            await sink.close()


async def test_urls_are_vetted_once_and_a_bounded_number_is_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("delayd.push.webhook.PUSH_URLS_KNOWN_MAX", 2)
    vetted: list[str] = []
    vet = EgressRules.vet_url

    def note(self: EgressRules, url: str) -> str:
        vetted.append(url[-1])
        return vet(self, url)

    monkeypatch.setattr(EgressRules, "vet_url", note)
    receiver = Receiver()
    async with calling(receiver) as sink:
        for tail in "aabbacca":
            end = await sink.deliver(job(receiver.url(f"/{tail}")))
            assert end.result is Result.DELIVERED
            assert len(sink._vetted) <= 2
    assert "".join(vetted) == "abca"
    assert [got.line[6] for got in receiver.got] == list("aabbacca")


def test_calls_do_without_the_framework_of_the_front_end() -> None:
    script = "import sys, delayd.push.webhook; print('aiohttp' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


# --- TLS -----------------------------------------------------------------------------------------


def https_end(tmp_path: Path, name: str, client: str) -> AttemptEnd:
    """What a call to a server with a certificate of this name comes to."""
    ends = []

    async def scene() -> None:
        authority = Authority(tmp_path)
        server = tls.server_context(authority.files(name))
        contexts = {"trusts": authority.client(), "default": None}
        receiver = Receiver(tls=server)
        async with calling(receiver, tls=contexts[client]) as sink:
            ends.append(await sink.deliver(job(receiver.url(scheme="https"))))

    play(scene())
    return ends[0]


def test_tls_is_verified(tmp_path: Path) -> None:
    assert https_end(tmp_path, HOST, "trusts").result is Result.DELIVERED


def test_a_certificate_of_another_host_is_not_accepted(tmp_path: Path) -> None:
    said = failure(https_end(tmp_path, "other.example", "trusts"))
    assert "its certificate is not accepted: Hostname mismatch" in said


def test_a_certificate_of_an_authority_that_nobody_trusts_is_not_accepted(tmp_path: Path) -> None:
    said = failure(https_end(tmp_path, HOST, "default"))
    assert "its certificate is not accepted: " in said


async def test_a_port_that_speaks_no_tls_is_told() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n")
        await reader.read()
        writer.close()

    receiver = Receiver()
    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    receiver.port = server.sockets[0].getsockname()[1]
    sink = webhook(receiver)
    end = await sink.deliver(job(receiver.url(scheme="https")))
    assert failure(end).endswith("TLS failed: wrong version number")
    await sink.close()
    server.close()


# --- The second gate: what is connected to -------------------------------------------------------


def refused(end: AttemptEnd) -> str:
    assert end.result is Result.FAILED
    assert not end.is_outage
    return end.error


async def test_a_url_that_may_no_longer_be_called_is_not_called() -> None:
    receiver, dns = Receiver(), FakeDns()
    async with receiver:
        egress = rules(receiver, hosts=("other.example",))
        sink = webhook(receiver, dns, egress=egress)
        rule = f"must have a host that [push] hosts allows: {HOST} is not there"
        end = await sink.deliver(job(receiver.url()))
        assert refused(end) == f"the url may not be called: {rule}"
    assert dns.asked == []


@pytest.mark.parametrize(
    "address",
    ["10.0.0.7", "169.254.169.254", "::1", "::ffff:10.0.0.7", "64:ff9b::7f00:1", "fe80::1%2", "::"],
)
async def test_a_name_that_means_a_private_address_is_not_connected_to(address: str) -> None:
    receiver = Receiver()
    async with calling(receiver, FakeDns(x_example=[address])) as sink:
        end = await sink.deliver(job(f"http://x.example:{receiver.port}/"))
    assert refused(end).startswith(f"the address {address} of x.example ")
    if address == "10.0.0.7":
        assert end.error == (
            "the address 10.0.0.7 of x.example is private: [push] private_networks would have "
            "to allow it"
        )
    assert receiver.connections == 0


async def test_of_several_addresses_only_those_that_may_be_called_are_connected_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[tuple[Any, ...]] = []
    make = Connections._socket

    def note(self: Connections, place: tuple[Any, ...]) -> socket.socket:
        made.append(place[4][:2])
        return make(self, place)

    monkeypatch.setattr(Connections, "_socket", note)
    receiver = Receiver()
    many = ["10.0.0.7", "::1", "169.254.169.254", "127.0.0.1", "192.168.0.1", "::ffff:10.0.0.8"]
    for order in (many, many[::-1]):
        made.clear()
        async with calling(receiver, FakeDns(x_example=order)) as sink:
            end = await sink.deliver(job(f"http://x.example:{receiver.port}/"))
        assert end.result is Result.DELIVERED
        assert set(made) == {("127.0.0.1", receiver.port)}


async def test_a_name_that_means_another_address_a_second_later_is_looked_at_again() -> None:
    receiver = Receiver(answer("200 OK", "Connection: close"))
    dns = FakeDns()
    async with receiver:
        for addresses, result in (
            (["127.0.0.1"], Result.DELIVERED),
            (["10.0.0.7"], Result.FAILED),
            (["127.0.0.1"], Result.DELIVERED),
        ):
            dns.hosts[HOST] = addresses
            sink = webhook(receiver, dns)
            assert (await sink.deliver(job(receiver.url()))).result is result
            await sink.close()


async def test_the_address_that_is_connected_to_is_vetted_whatever_was_looked_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The look-up is trusted for nothing: what it lets pass is vetted when the socket is made."""
    receiver = Receiver()
    async with calling(receiver) as sink:
        vetted: list[str] = []
        egress = sink._rules
        vet = EgressRules.vet_address

        def first_passes(self: EgressRules, address: str, port: int, host: str = "") -> None:
            vetted.append(address)
            if len(vetted) == 1:
                return  # between check and use the name begins to mean this
            vet(self, address, port, host)

        monkeypatch.setattr(EgressRules, "vet_address", first_passes)
        for address in ("10.0.0.7", "169.254.169.254", "::1"):
            vetted.clear()
            sink._look_up = FakeDns(hook_example=[address])
            end = await sink.deliver(job(receiver.url()))
            assert refused(end).startswith(f"the address {address} is ")
            assert vetted == [address, address]
            await sink.close()
        assert egress is sink._rules
    assert receiver.connections == 0


async def test_an_address_in_place_of_a_name_is_vetted_when_it_is_connected_to() -> None:
    receiver = Receiver()
    async with receiver:
        own = EgressRules(
            private_networks=rules(receiver)._networks,
            allow_http=True,
            ports=[receiver.port],
            own=[TcpAddress("127.0.0.1", receiver.port)],
        )
        connections = Connections(own, 1_000, VERIFIED, FakeDns())
        with pytest.raises(NoConnection) as caught:
            await connections.ask(f"http://127.0.0.1:{receiver.port}", HEAD, b"")
        assert "where this daemon listens" in str(caught.value.error)
        await connections.close()
    assert receiver.connections == 0


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"])
async def test_no_proxy_of_the_environment_is_used(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    proxy, receiver = Receiver(), Receiver()
    async with proxy, calling(receiver) as sink:
        monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert (await sink.deliver(job(receiver.url()))).result is Result.DELIVERED
    assert (proxy.connections, receiver.connections) == (0, 1)


async def test_no_password_of_the_environment_is_sent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text(f"machine {HOST} login me password canary\n")
    monkeypatch.setenv("NETRC", str(netrc))
    receiver = Receiver()
    async with calling(receiver) as sink:
        await sink.deliver(job(receiver.url()))
    assert "authorization" not in receiver.got[0].headers


# --- Look-ups ------------------------------------------------------------------------------------


def test_names_are_looked_up_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, threading.Thread]] = []

    def found(host: bytes, port: int, *, type: int) -> list[tuple[Any, ...]]:  # noqa: A002
        asked.append((host, threading.current_thread()))
        if host == b"nobody.example":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [row("127.0.0.1", port)]

    monkeypatch.setattr(socket, "getaddrinfo", found)

    async def scene() -> None:
        assert await look_up("a.example", 443) == [row("127.0.0.1", 443)]
        with pytest.raises(socket.gaierror):
            await look_up("nobody.example", 443)

    play(scene())
    assert [host for host, _ in asked] == [b"a.example", b"nobody.example"]
    assert all(thread is not threading.main_thread() for _, thread in asked)


@pytest.mark.parametrize("ends", ["while the loop runs", "after it"])
def test_a_look_up_that_nobody_waits_for_any_more_is_forgotten(
    monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    begun, may_end = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []
    faults: list[object] = []

    def slow(*_args: object, **_options: object) -> list[tuple[Any, ...]]:
        threads.append(threading.current_thread())
        begun.set()
        may_end.wait()
        return [row("127.0.0.1", 443)]

    monkeypatch.setattr(socket, "getaddrinfo", slow)

    async def scene() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
        looking = asyncio.create_task(look_up("x.example", 443))
        await asyncio.to_thread(begun.wait)
        looking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await looking
        if ends == "while the loop runs":
            may_end.set()
            await asyncio.to_thread(threads[0].join)
            await asyncio.sleep(0)

    asyncio.run(scene())
    assert threads[0].daemon
    may_end.set()
    threads[0].join()
    assert faults == []


async def test_so_many_names_are_looked_up_at_once_and_no_more() -> None:
    receiver = Receiver()
    under_way = 0
    go_on = asyncio.Event()
    go_on.set()

    async def slow(_host: str, port: int) -> list[tuple[Any, ...]]:
        nonlocal under_way
        under_way += 1
        await go_on.wait()
        under_way -= 1
        return [row("127.0.0.1", port)]

    async with calling(receiver, slow) as sink:
        await sink.deliver(job(receiver.url()))
        go_on.clear()
        calls = asyncio.gather(
            *(
                sink.deliver(job(f"http://{number}.example:{receiver.port}/"))
                for number in range(PUSH_LOOKUPS_MAX + 5)
            )
        )
        for _ in range(100):
            await asyncio.sleep(0)
        assert under_way == PUSH_LOOKUPS_MAX
        go_on.set()
        assert {end.result for end in await calls} == {Result.DELIVERED}


async def test_the_default_context_verifies_certificates_and_hosts() -> None:
    receiver = Receiver()
    async with calling(receiver) as sink:
        context = (await sink.opened())._verified
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.check_hostname
        assert context.minimum_version >= ssl.TLSVersion.TLSv1_2
        assert context.options & ssl.OP_NO_RENEGOTIATION


def test_what_calls_need_is_made_ready_once_and_in_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[threading.Thread] = []

    def verified() -> ssl.SSLContext:
        threads.append(threading.current_thread())
        return client_context()

    monkeypatch.setattr(webhook_module, "client_context", verified)

    async def scene() -> None:
        receiver = Receiver()
        async with calling(receiver) as sink:
            await asyncio.gather(*(sink.deliver(job(receiver.url())) for _ in range(5)))

    play(scene())
    (thread,) = threads
    assert thread is not threading.main_thread()
