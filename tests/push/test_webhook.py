import asyncio
import contextlib
import datetime as dt
import socket
import ssl
import threading
from dataclasses import replace
from email.utils import format_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import pytest
from standardwebhooks.webhooks import Webhook as Verifier

from benchmarks.receivers import KINDS
from delayd import __version__, limits
from delayd.access.signing_secrets import Secrets
from delayd.clock import system_wall_ms
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
from tests.push.receiver import HOST, OK, WALL_MS, FakeDns, Receiver, job, row, rules, webhook
from tests.servers import free_port

if TYPE_CHECKING:
    from tests.push.receiver import Serve

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


class Hook(Receiver):
    """A receiver, and a webhook that calls it."""

    sink: Webhook

    def __init__(
        self,
        *answers: bytes,
        dns: LookUp | None = None,
        server_tls: ssl.SSLContext | None = None,
        serve: "Serve | None" = None,
        **changes: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(*answers, tls=server_tls, serve=serve)
        self._made_with = (dns, changes)

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        dns, changes = self._made_with
        self.sink = webhook(self, dns, **changes)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.sink.close()
        await super().__aexit__()

    async def call(
        self,
        tail: str = "/",
        scheme: str = "http",
        **fields: Any,  # noqa: ANN401
    ) -> AttemptEnd:
        return await self.sink.deliver(job(self.url(tail, scheme), **fields))

    async def delivers(self, times: int = 1, **fields: Any) -> None:  # noqa: ANN401
        for _ in range(times):
            assert (await self.call(**fields)).result is Result.DELIVERED


def failed(error: str) -> AttemptEnd:
    return AttemptEnd(Result.FAILED, error)


def outage(error: str) -> AttemptEnd:
    return AttemptEnd(Result.FAILED, error, is_outage=True)


def is_outage(end: AttemptEnd, error: str) -> bool:
    """See how the error of an outage ends."""
    return end == outage(end.error) and end.error.endswith(error)


# --- What is sent --------------------------------------------------------------------------------


async def test_a_call_says_what_delayd_knows_of_the_job() -> None:
    async with Hook() as hook:
        end = await hook.call("/a/b?c=d%20e", key=b"order 4/\xff")
    assert end == DELIVERED._replace(answer=b"ok")
    (got,) = hook.got
    assert got.line == "POST /a/b?c=d%20e HTTP/1.1"
    assert got.body == b'{"hello": "world"}'
    trace = got.headers.pop("traceparent")
    assert got.headers == {
        "host": f"{HOST}:{hook.port}",
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
    async with Hook() as hook:
        for attempt in (1, 2):
            await hook.sink.close()
            hook.sink = webhook(hook, wall_ms=WALL_MS + attempt * 60_000)
            await hook.call(attempt=attempt)
    one, two = (got.headers for got in hook.got)
    assert one["webhook-id"] == two["webhook-id"]
    assert int(two["webhook-timestamp"]) - int(one["webhook-timestamp"]) == 60
    traces = [got.headers["traceparent"].split("-") for got in hook.got]
    assert traces[0][1] == traces[1][1]
    assert traces[0][2] != traces[1][2]


@pytest.mark.parametrize(
    ("method", "body", "length"),
    [
        ("PUT", b"x", "1"),
        ("GET", b"", None),
        ("GET", b"x", "1"),
        ("DELETE", b"", "0"),
        ("POST", b"\0\xff" * 1_000_000, "2000000"),
    ],
)
async def test_method_and_body_are_the_targets_and_the_jobs(
    method: str, body: bytes, length: str | None
) -> None:
    async with Hook() as hook:
        await hook.delivers(method=method, body=body, content_type="a/b")
    (got,) = hook.got
    assert got.line == f"{method} / HTTP/1.1"
    assert got.body == body
    assert got.headers.get("content-length") == length
    assert "delayd-key" not in got.headers
    assert got.headers["content-type"] == "a/b"


async def test_headers_of_the_target_are_sent_but_for_those_that_are_delayds() -> None:
    taken = (
        *("WEBHOOK-ID", "Webhook-Signature", "delayd-key", "Delayd-Id", "user-agent"),
        *("Delayd_Topic", "Webhook_Id", "Content_Length", "Transfer_Encoding", "Content_Type"),
        "Proxy",
    )
    own = {"Authorization": "Bearer x", "X-Team": "mail", "content-type": "x/y", "ACCEPT": "a/b"}
    async with Hook() as hook:
        headers = (*own.items(), *((name, "forged") for name in taken))
        await hook.call(headers=headers, content_type="a/b")
    (got,) = hook.got
    sent = {name.lower(): value for name, value in own.items()} | {"content-type": "a/b"}
    assert sent.items() <= got.headers.items()
    assert "forged" not in got.headers.values()


@pytest.mark.parametrize("value", ["a\r\nX-Forged: b", "a\nb", "a\rb", "a\0b"])
async def test_a_header_of_more_than_a_line_is_never_sent(value: str) -> None:
    async with Hook() as hook:
        with pytest.raises(AssertionError):
            await hook.call(headers=(("X-Team", value),))
    assert hook.connections == 0


async def test_a_job_of_a_topic_that_a_secret_is_not_for_is_not_called() -> None:
    """It was moved there, or its target was set before the secret had topics."""
    secrets = Secrets([replace(named("b", 1), topics=("b*",))])
    async with Hook(secrets=secrets, sign_with=("b",)) as hook:
        for names, said in ((("b",), ""), ((), " of push.sign_with")):
            error = f"secret 'b'{said} is for the topics b*, and not for 'a'"
            assert await hook.call(topic="a", secrets=names) == failed(error)._replace(is_ours=True)
            await hook.delivers(topic="b1", secrets=names)
    assert [got.headers["delayd-topic"] for got in hook.got] == ["b1", "b1"]


async def test_a_call_is_signed_so_that_the_library_of_the_standard_accepts_it() -> None:
    secrets = Secrets([named("a", 1, 2), named("b", 3)])
    async with Hook(secrets=secrets, sign_with=("b",), wall_ms=system_wall_ms()) as hook:
        await hook.call()
        await hook.call(secrets=("a",))
    by_default, by_name = hook.got
    assert Verifier(text(3)).verify(by_default.body, by_default.headers) == {"hello": "world"}
    for number in (1, 2):
        assert Verifier(text(number)).verify(by_name.body, by_name.headers)
    with pytest.raises(Exception, match="No matching signature"):
        Verifier(text(3)).verify(by_name.body, by_name.headers)


async def test_a_secret_that_is_there_no_more_fails_the_attempt_before_anything_is_sent() -> None:
    async with Hook(secrets=Secrets([named("a", 1)])) as hook:
        end = await hook.call(secrets=("a", "gone"))
    assert end == failed("there is no secret gone to sign with")._replace(is_ours=True)
    assert hook.connections == 0


# --- What is answered ----------------------------------------------------------------------------

LONG: Final = bytes(range(256)) * 10
NO_HTTP: Final = outage(f"{HOST}:PORT does not answer in HTTP")
BROKEN_OFF: Final = b"HTTP/1.1 500 x\r\nConnection: close\r\nContent-Length: 9999\r\n\r\n"


def http_date(after_s: int) -> str:
    moment = dt.datetime.fromtimestamp(WALL_MS / 1_000 + after_s, dt.UTC)
    return format_datetime(moment, usegmt=True)


SUCCESSES: Final = ("200 OK", "201 Created", "202 Hm", "204 No Content", "299 x")
FAILURES: Final = {
    "400 Nope": "400 Bad Request",
    "401 x": "401 Unauthorized",
    "404 x": "404 Not Found",
    "409 x": "409 Conflict",
    "499 x": "499",
    "301 x": "301 Moved Permanently: redirects are not followed",
    "302 x": "302 Found: redirects are not followed",
    "304 x": "304 Not Modified: redirects are not followed",
    "308 x": "308 Permanent Redirect: redirects are not followed",
}
OUTAGES: Final = {
    "429 x": "429 Too Many Requests",
    "500 x": "500 Internal Server Error",
    "502 x": "502 Bad Gateway",
    "503 \x80": "503 Service Unavailable",
    "599 x": "599",
}
ERROR: Final = outage("500 Internal Server Error")
ENDS: Final = {
    **{status: (answer(status), DELIVERED) for status in SUCCESSES},
    **{
        status: (answer(status, "Location: http://127.0.0.1:22/"), failed(error))
        for status, error in FAILURES.items()
    },
    **{status: (answer(status), outage(error)) for status, error in OUTAGES.items()},
    "gone exhausts at once": (
        answer("410 Gone", body=b"no more"),
        AttemptEnd(Result.EXHAUSTED, "410 Gone", b"no more"),
    ),
    "the beginning is kept": (
        answer("500 x", body=LONG),
        ERROR._replace(answer=LONG[: limits.PUSH_ANSWER_BYTES_MAX]),
    ),
    "the beginning is kept, broken off": (
        BROKEN_OFF + LONG,
        ERROR._replace(answer=LONG[: limits.PUSH_ANSWER_BYTES_MAX]),
    ),
    "broken off soon": (BROKEN_OFF + b"begun", ERROR._replace(answer=b"begun")),
    # What is said before the answer is not the answer, and is not heard for ever.
    "continue": (
        b"HTTP/1.1 100 Continue\r\n\r\n" * 2 + answer("410 Gone"),
        AttemptEnd(Result.EXHAUSTED, "410 Gone"),
    ),
    "another protocol is not switched to": (
        b"HTTP/1.1 101 x\r\nUpgrade: a\r\nConnection: upgrade\r\n\r\n",
        failed("101 Switching Protocols"),
    ),
    "closed": (b"", outage(f"{HOST}:PORT closed the connection before it answered")),
    "no HTTP": (b"220 mail.example ESMTP\r\n\r\n", NO_HTTP),
    # Retry-After of a failure is handed on.
    "after seconds": (
        answer("503 x", "Retry-After: 30"),
        outage("503 Service Unavailable")._replace(retry_after_ms=30_000),
    ),
    "after a date": (
        answer("404 x", f"Retry-After: {http_date(5)}"),
        failed("404 Not Found")._replace(retry_after_ms=5_000),
    ),
    "after a success": (answer("200 x", "Retry-After: 30"), DELIVERED),
}


@pytest.mark.parametrize("name", ENDS)
async def test_what_an_answer_comes_to(name: str) -> None:
    answered, expected = ENDS[name]
    async with Hook(answered) as hook:
        end = await hook.call()
    assert end._replace(error=end.error.replace(str(hook.port), "PORT")) == expected
    assert len(hook.got) == 1


async def test_an_answer_that_never_ends_does_not_change_what_its_status_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections_module, "PUSH_ANSWER_MS", 1)
    async with Hook(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegun") as hook:
        assert await hook.call() == DELIVERED._replace(answer=b"begun")


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
    async with Hook(serve=refuse) as hook:
        end = await hook.call(body=bytes(16 << 20))
        assert (end.error, end.answer) == ("403 Forbidden", b"too long")
        assert not (await hook.sink.opened())._idle
        gone.set()
        await ended.get()  # the connection was closed, in the middle of the body


# --- Retry-After ---------------------------------------------------------------------------------


AFTER_MS: Final = {
    0: ("0", "", "-5", "1.5", "1e3", "soon", "\u0663\u0660", "GMT", http_date(-90)),
    30_000: ("30", " 30 ", "Saturday, 21-Nov-26 10:15:30 GMT"),
    90_000: (http_date(90),),
    limits.DURATION_MS_MAX: ("9" * 20, "9" * 23, "9" * 5_000, "Fri, 31 Dec 9999 23:59:59 GMT"),
}
NO_DATES: Final = ("Sat, 31 Feb 2026 10:15:30 GMT", "Sat, 21 Nov 2026 10:15:30")


def test_retry_after_is_seconds_or_a_date() -> None:
    for after_ms, values in (*AFTER_MS.items(), (0, NO_DATES)):
        assert {retry_after_ms(value, WALL_MS) for value in values} == {after_ms}, values


# --- No answer -----------------------------------------------------------------------------------


async def test_a_refused_connection_is_told_with_host_and_port_and_no_query() -> None:
    async with Hook() as hook:
        with free_port() as hook.port:
            hook.sink = webhook(hook)
            end = await hook.call("/path?token=canary")
    assert end == outage(f"no connection to {HOST}:{hook.port}: connection refused")


async def test_a_host_that_nobody_knows_is_told() -> None:
    dns = FakeDns(empty_example=[])
    async with Hook(dns=dns) as hook:
        end = await hook.sink.deliver(job(f"http://nobody.example:{hook.port}/"))
        said = "its name cannot be looked up: name or service not known"
        assert end == outage(f"no connection to nobody.example:{hook.port}: {said}")
        end = await hook.sink.deliver(job(f"http://empty.example:{hook.port}/"))
        assert is_outage(end, "cannot be looked up: empty.example has no address")
    assert dns.asked == ["nobody.example", "empty.example"]


async def test_a_look_up_that_hangs_ends_with_the_time_for_the_connection() -> None:
    async def hang(_host: str, _port: int) -> list[tuple[Any, ...]]:
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    async with Hook(dns=hang, connect_timeout_ms=20) as hook:
        end = await hook.call()
    assert end == outage(f"no connection to {HOST}:{hook.port} within 20ms")


async def test_a_call_that_is_cancelled_leaves_no_connection() -> None:
    arrived = asyncio.Event()
    never = asyncio.Event()  # kept, or the collector takes it with all that waits for it

    async def hang() -> None:
        arrived.set()
        await never.wait()

    async with Hook() as hook:
        hook.on_request = hang
        call = asyncio.create_task(hook.call())
        await arrived.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        hook.on_request = None
        await hook.delivers()
    assert hook.connections == 2
    never.set()


# --- Connections ---------------------------------------------------------------------------------


CLOSED: Final = " closed the connection before it answered"
FULL: Final = answer("200 OK", body=bytes(limits.PUSH_ANSWER_READ_BYTES_MAX))
MORE: Final = answer("200 OK", body=bytes(limits.PUSH_ANSWER_READ_BYTES_MAX * 20))
REUSES: Final[dict[str, tuple[tuple[bytes, ...], list[str], list[int]]]] = {
    "one the server closes is replaced within the attempt": ((OK, b"", OK), [""] * 2, [1, 1, 2]),
    "a server that closes again": ((OK, b""), ["", CLOSED], [1, 1, 2]),
    "one with a surplus": ((OK + b"\r\n", OK + OK, OK), [""] * 4, [1, 2, 3, 3]),
    "no more is read than the limit": ((FULL,), [""] * 2, [1, 1]),
    "given up with the rest of an answer": ((MORE,), [""] * 2, [1, 2]),
}


@pytest.mark.parametrize("name", REUSES)
async def test_when_a_connection_is_used_again(name: str) -> None:
    answers, errors, connections = REUSES[name]
    async with Hook(*answers) as hook:
        for error in errors:
            end = await hook.call()
            assert is_outage(end, error) if error else end.result is Result.DELIVERED
    assert [got.connection for got in hook.got] == connections


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
        assert (await sink.deliver(job(receiver.url()))).error.startswith("no connection")
        await sink.close()


@pytest.mark.parametrize("kind", ["answers", "hints", "chunks", "headers", "line", "body"])
async def test_an_answer_without_end_ends_the_call_and_its_connection(kind: str) -> None:
    first, again, _ = KINDS[kind]
    answered = first + again * ((1 << 20) // len(again))
    async with Hook(answered) as hook:
        for _ in range(2):
            end = await hook.call()
            if kind in {"answers", "chunks", "body"}:
                assert end.result is Result.DELIVERED
            else:
                assert end.error.endswith("does not answer in HTTP")
        connections = await hook.sink.opened()
        assert not connections._idle
        assert not connections._transports._transports
    assert hook.connections == 2


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
    loop = asyncio.get_running_loop()
    async with Receiver() as receiver:
        connections = Connections(rules(receiver), 1_000, VERIFIED, FakeDns())
        assert all(connections._keeps(f"https://{n}") for n in range(limits.PUSH_ORIGINS_KEPT_MAX))
        assert connections._keeps("https://0")
        for _ in range(2):
            await connections.ask(receiver.url(""), HEAD, b"")
        assert [got.headers.get("connection") for got in receiver.got] == ["close", "close"]
        assert receiver.connections == 2
        later = loop.time() + 3_600
        loop.time = lambda: later  # type: ignore[method-assign]
        assert connections._keeps("https://one.more")
        assert connections._keeps("https://1")
        assert len(connections._kept) == limits.PUSH_ORIGINS_KEPT_MAX
        del loop.time
        await connections.close()


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
    async with Hook() as hook:
        for tail in "aabbacca":
            end = await hook.call(f"/{tail}")
            assert end.result is Result.DELIVERED
            assert len(hook.sink._vetted) <= 2
    assert "".join(vetted) == "abca"
    assert [got.line[6] for got in hook.got] == list("aabbacca")


# --- TLS -----------------------------------------------------------------------------------------


BAD_CERTIFICATE: Final = "its certificate is not accepted: "


@pytest.mark.parametrize(
    ("name", "is_trusted", "error"),
    [
        (HOST, True, ""),
        ("other.example", True, f"{BAD_CERTIFICATE}Hostname mismatch"),
        (HOST, False, BAD_CERTIFICATE),
    ],
)
async def test_tls_is_verified(tmp_path: Path, name: str, error: str, *, is_trusted: bool) -> None:
    authority = Authority(tmp_path)
    server = tls.server_context(authority.files(name))
    client = authority.client() if is_trusted else None
    async with Hook(server_tls=server, tls=client) as hook:
        end = await hook.call(scheme="https")
    assert end == (outage(end.error) if error else DELIVERED._replace(answer=b"ok"))
    assert error in end.error


async def test_a_port_that_speaks_no_tls_is_told() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n")
        await reader.read()
        writer.close()

    async with Hook(serve=talk) as hook:
        end = await hook.call(scheme="https")
    assert is_outage(end, "TLS failed: wrong version number")


# --- The second gate: what is connected to -------------------------------------------------------


def refused(end: AttemptEnd) -> str:
    assert end.result is Result.FAILED
    assert not end.is_outage
    return end.error


async def test_a_url_that_may_no_longer_be_called_is_not_called() -> None:
    dns = FakeDns()
    async with Hook() as hook:
        hook.sink = webhook(hook, dns, egress=rules(hook, hosts=("other.example",)))
        rule = f"must have a host that [push] hosts allows: {HOST} is not there"
        assert refused(await hook.call()) == f"the url may not be called: {rule}"
    assert dns.asked == []


@pytest.mark.parametrize("address", ["10.0.0.7", "169.254.169.254", "::1", "fe80::1%2"])
async def test_a_name_that_means_a_private_address_is_not_connected_to(address: str) -> None:
    async with Hook(dns=FakeDns(x_example=[address])) as hook:
        end = await hook.sink.deliver(job(f"http://x.example:{hook.port}/"))
    assert refused(end).startswith(f"the address {address} of x.example ")
    assert hook.connections == 0


async def test_of_several_addresses_only_those_that_may_be_called_are_connected_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[tuple[Any, ...]] = []
    make = Connections._socket

    def note(self: Connections, place: tuple[Any, ...]) -> socket.socket:
        made.append(place[4][:2])
        return make(self, place)

    monkeypatch.setattr(Connections, "_socket", note)
    many = ["10.0.0.7", "::1", "169.254.169.254", "127.0.0.1", "192.168.0.1", "::ffff:10.0.0.8"]
    for order in (many, many[::-1]):
        made.clear()
        async with Hook(dns=FakeDns(x_example=order)) as hook:
            end = await hook.sink.deliver(job(f"http://x.example:{hook.port}/"))
        assert end.result is Result.DELIVERED
        assert set(made) == {("127.0.0.1", hook.port)}


async def test_a_name_that_means_another_address_a_second_later_is_looked_at_again() -> None:
    dns = FakeDns()
    async with Hook(answer("200 OK", "Connection: close"), dns=dns) as hook:
        for address in ("127.0.0.1", "10.0.0.7", "127.0.0.1"):
            dns.hosts[HOST] = [address]
            result = Result.DELIVERED if address == "127.0.0.1" else Result.FAILED
            assert (await hook.call()).result is result
            await hook.sink.close()


async def test_the_address_that_is_connected_to_is_vetted_whatever_was_looked_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The look-up is trusted for nothing: what it lets pass is vetted when the socket is made."""
    async with Hook() as hook:
        vetted: list[str] = []
        egress = hook.sink._rules
        vet = EgressRules.vet_address

        def first_passes(self: EgressRules, address: str, port: int, host: str = "") -> None:
            vetted.append(address)
            if len(vetted) == 1:
                return  # between check and use the name begins to mean this
            vet(self, address, port, host)

        monkeypatch.setattr(EgressRules, "vet_address", first_passes)
        for address in ("10.0.0.7", "169.254.169.254", "::1"):
            vetted.clear()
            hook.sink._look_up = FakeDns(hook_example=[address])
            end = await hook.call()
            assert refused(end).startswith(f"the address {address} is ")
            assert vetted == [address, address]
            await hook.sink.close()
        assert egress is hook.sink._rules
    assert hook.connections == 0


async def test_an_address_in_place_of_a_name_is_vetted_when_it_is_connected_to() -> None:
    async with Receiver() as receiver:
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


# --- Look-ups ------------------------------------------------------------------------------------


async def test_names_are_looked_up_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, threading.Thread]] = []

    def found(host: bytes, port: int, *, type: int) -> list[tuple[Any, ...]]:  # noqa: A002
        asked.append((host, threading.current_thread()))
        if host == b"nobody.example":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [row("127.0.0.1", port)]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    assert await look_up("a.example", 443) == [row("127.0.0.1", 443)]
    with pytest.raises(socket.gaierror):
        await look_up("nobody.example", 443)
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
    under_way = 0
    go_on = asyncio.Event()
    go_on.set()

    async def slow(_host: str, port: int) -> list[tuple[Any, ...]]:
        nonlocal under_way
        under_way += 1
        await go_on.wait()
        under_way -= 1
        return [row("127.0.0.1", port)]

    async with Hook(dns=slow) as hook:
        await hook.call()
        go_on.clear()
        calls = asyncio.gather(
            *(
                hook.sink.deliver(job(f"http://{number}.example:{hook.port}/"))
                for number in range(limits.PUSH_LOOKUPS_MAX + 5)
            )
        )
        for _ in range(100):
            await asyncio.sleep(0)
        assert under_way == limits.PUSH_LOOKUPS_MAX
        go_on.set()
        assert {end.result for end in await calls} == {Result.DELIVERED}


async def test_the_default_context_verifies_certificates_and_hosts() -> None:
    async with Hook() as hook:
        context = (await hook.sink.opened())._verified
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.check_hostname
        assert context.minimum_version >= ssl.TLSVersion.TLSv1_2
        assert context.options & ssl.OP_NO_RENEGOTIATION


async def test_what_calls_need_is_made_ready_once_and_in_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[threading.Thread] = []

    def verified() -> ssl.SSLContext:
        threads.append(threading.current_thread())
        return client_context()

    monkeypatch.setattr(webhook_module, "client_context", verified)
    async with Hook() as hook:
        await asyncio.gather(*(hook.call() for _ in range(5)))
    (thread,) = threads
    assert thread is not threading.main_thread()
