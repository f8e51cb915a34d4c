"""T-R6 and T-M1: what is no request, and memory.

T-R7 is in `tests/http/test_connection.py`, T-R8 in `tests/integration/test_http_crash.py`.
"""

import random
import select
import socket
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from delayd import limits
from delayd.testing.daemon import Daemon
from tests.faults.conftest import Runs
from tests.faults.real_daemon import need, started
from tests.http_client import HTTP, Answer, HttpClient, memory_bytes, request, sockets
from tests.line_client import LineClient
from tests.rigs.waiting import until

MIB: Final = 1 << 20
PUT: Final = "/v1/topics/mail/jobs"
SMALL: Final = b'{"body":1}'
END: Final = b"\r\n0\r\n\r\n"


def raw(body: bytes, *headers: str, coding: str = "") -> bytes:
    """A put with any body at all; `coding`: in chunks, which the body holds already."""
    length = f"Transfer-Encoding: {coding}" if coding else f"Content-Length: {len(body)}"
    lines = (f"POST {PUT} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", length)
    return "\r\n".join((*lines, *headers, "", "")).encode() + body


# --- T-R6: what is not a request -----------------------------------------------------------------


chunked: Final = partial(raw, coding="chunked")
ODD: Final[Mapping[str, tuple[bytes, int]]] = {
    "a body that is too long": (raw(b'{"body":"' + b"x" * 5 * MIB + b'"}'), 413),
    "a million jobs": (raw(b'{"jobs":[' + b",".join([SMALL] * 10**6) + b"]}"), 413),
    "a deep body": (raw(b'{"body":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), 400),
    "a number of 5,000 digits": (raw(b'{"body":1,"delay":' + b"9" * 5_000 + b"}"), 400),
    "a packed body": (raw(SMALL, "Content-Encoding: gzip"), 415),
    "chunks of one byte": (chunked(b"1\r\n \r\n" * 20_000 + b"a\r\n" + SMALL + END), 201),
    "a chunk with a tail": (chunked(b"a;" + b"e" * 100_000 + b"\r\n" + SMALL + END), 201),
    "a path that is too long": (request("GET", "/" + "a" * 9_000), 414),
    "a header that is too long": (request("GET", "/v1/jobs/1", None, "X: " + "a" * 9_000), 431),
    "too many headers": (request("GET", "/v1/jobs/1", None, *["X: y"] * 200), 431),
    "trailers without end": (chunked(b"0\r\n" + b"X: y\r\n" * 200 + b"\r\n"), 431),
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 3, 400),
}
"""What a daemon may choke on. The answers to all other mistakes are in `tests/http`; what is odd on
the line, and takes no memory, in `tests/line`."""


def test_r6_what_is_not_a_request_is_refused_and_harms_nobody(tmp_path: Path, runs: Runs) -> None:
    """T-R6: malformed and oversized requests: a good answer, bounded memory, others go on."""
    with (
        started(tmp_path, *HTTP, segment_bytes="256MiB") as daemon,
        HttpClient(daemon.http_address) as other,
    ):
        assert other.ask("POST", PUT, {"body": 0}).status == 201
        for what, (data, status) in ODD.items():
            with HttpClient(daemon.http_address) as client:
                client.send_what_it_takes(data)
                answer = client.answer()
                assert answer.status == status, (what, answer)
                if b"json" not in data[:200] or status == 431:
                    assert client.is_closed(), what
                else:
                    assert client.ask("GET", "/v1/jobs/1").status == 200, what
            assert other.ask("GET", "/v1/jobs/1").status == 200, what
            runs.count("T-R6")
        assert memory_bytes(daemon, "VmHWM") < 250 * MIB
        assert "a fault" not in daemon.log()


WORDS: Final = (
    *(b"GET ", b"POST ", b"PUT ", b"HEAD ", b"DELETE ", b"PATCH ", b" HTTP/1.1", b" HTTP/1.0"),
    *(b"/v1/topics/mail/jobs", b"/v1/topics/mail/reserve", b"/v1/jobs/1", b"/v1/ack", b"/healthz"),
    *(b"\r\n", b"\r\n\r\n", b"\n", b"\r", b"\0", b"\xff", b": ", b"%00", b"%"),
    *(b"?", b"{", b"[", b'"'),
    *(b"Host: 127.0.0.1\r\n", b"Content-Length: 10\r\n", b"Content-Length: 99999\r\n"),
    *(b"Transfer-Encoding: chunked\r\n", b"Content-Type: application/json\r\n", b"5\r\n", b"0\r\n"),
    *(b"Expect: 100-continue\r\n", b"Connection: close\r\n", b"Upgrade: websocket\r\n"),
    *(b"Connection: Upgrade\r\n", b"Content-Encoding: gzip\r\n", b"Idempotency-Key: k\r\n"),
)
"""What mutations put in."""


def requests_of(rng: random.Random) -> bytes:
    """Some good requests in a row, some of which are spoilt."""
    good = (
        raw(b'{"body":"' + b"x" * rng.choice((1, 100, 70_000, 400_000)) + b'"}'),
        raw(b'{"jobs":[' + b",".join([SMALL] * rng.randrange(1, 30)) + b"]}"),
        chunked(b"5\r\n" + SMALL[:5] + b"\r\n5\r\n" + SMALL[5:] + END),
        raw(SMALL, "Expect: 100-continue"),
        raw(SMALL, f"Idempotency-Key: {rng.randrange(5)}"),
        request("POST", "/v1/topics/mail/reserve", {"max": 5, "wait": rng.choice(("0s", "1s"))}),
        request("GET", f"/v1/jobs/{rng.randrange(50)}"),
        request("PUT", f"/v1/topics/mail/keys/{rng.randrange(5)}", {"body": 1, "delay": "1h"}),
        request("POST", "/v1/ack", {"tokens": ["1-1-1"]}),
    )
    data = bytearray(b"".join(rng.choices(good, k=rng.randrange(1, 5))))
    for _ in range(rng.choice((0, 0, 1, 1, 3, 10))):
        at = rng.randrange(len(data))
        match rng.randrange(4):
            case 0:
                data[at] = rng.randrange(256)
            case 1:
                del data[at : at + rng.choice((1, 2, 10, 1_000))]
            case 2:
                data[at:at] = rng.choice(WORDS)
            case _:
                data[at:at] = data[rng.randrange(len(data)) :][: rng.randrange(200)]
        if not data:
            break
    return bytes(data)


def attack(daemon: Daemon, rng: random.Random) -> None:
    """Send that in pieces, and go at some moment in some way."""
    data = requests_of(rng)
    client = HttpClient(daemon.http_address, receive_bytes=rng.choice((0, 0, 0, 4_096)))
    client.socket.setblocking(False)
    ends_at = rng.choice((len(data), rng.randrange(len(data) + 1)))
    at = 0
    with suppress(OSError):  # it may be closed at any moment
        while at < ends_at:
            piece = data[at : min(ends_at, at + rng.choice((1, 7, 100, 5_000, 1 << 20)))]
            with suppress(BlockingIOError):
                at += client.socket.send(piece)
            if rng.random() < 0.3:
                select.select([], [client.socket], [], 0.0005)
            if rng.random() < 0.01:
                break
        if rng.random() < 0.5:
            select.select([client.socket], [], [], 0.002)
            with suppress(BlockingIOError):
                client.socket.recv(1 << rng.randrange(16))
        if rng.random() < 0.3:
            client.socket.shutdown(rng.choice((socket.SHUT_WR, socket.SHUT_RD, socket.SHUT_RDWR)))
    if rng.random() < 0.5:
        client.die()
    else:
        client.close()


def ask_once(daemon: Daemon, content: object) -> Answer:
    with HttpClient(daemon.http_address) as client:
        return client.ask("POST", PUT, content)


def test_r6_no_bytes_harm_the_daemon(quick_path: Path, runs: Runs) -> None:
    """T-R6: spoilt requests, in pieces, from clients that go at any moment."""
    few = {"DELAYD_HTTP_HELD_BYTES_MAX": str(MIB), "DELAYD_HTTP_HEADER_TIMEOUT": "1s"}
    with started(quick_path, *HTTP, environment=few) as daemon:
        listening = sockets(daemon)
        for rng in runs.rng("T-R6", 5, 300):
            for _ in range(60):
                attack(daemon, rng)
            # Whoever needs a second to ask is answered 408: then once more.
            until(lambda: ask_once(daemon, {"body": 0}).status == 201)
        assert "a fault" not in daemon.log()
        until(lambda: sockets(daemon) == listening)


# --- T-M1: memory --------------------------------------------------------------------------------


def test_m1_puts_are_refused_before_memory_is_short(tmp_path: Path, runs: Runs) -> None:
    """T-M1: a bound on the bytes of jobs, and one on all memory, which is never reached."""
    bytes_max = runs.times(16, 128) * MIB
    # Beside its jobs the daemon may have what Python and the libraries map, and the log's buffers.
    memory_max = 600 * MIB + 2 * bytes_max
    bounded = [need("prlimit"), f"--as={memory_max}", "--"]
    flags = (*HTTP, "--sync", "never")
    with (
        started(
            tmp_path,
            *flags,
            before=bounded,
            segment_bytes="256MiB",
            environment={"DELAYD_JOBS_BYTES_MAX": str(bytes_max)},
        ) as daemon,
        HttpClient(daemon.http_address) as client,
        LineClient(daemon.address) as worker,
    ):
        batch = {"jobs": [{"body": "x" * 30_000, "ttr": "1h"}] * 100}
        put = 0
        while (answer := client.ask("POST", PUT, batch)).status != 507:
            assert answer.status in {200, 201, 207}, answer
            put += sum(result["status"] == 201 for result in answer.json["results"])
            assert put * 30_000 <= bytes_max
            if any(result["status"] == 507 for result in answer.json["results"]):
                break
        assert worker.ask("put 0 0 60", b"x" * 60_000) == "OUT_OF_MEMORY"
        assert put * 31_000 > bytes_max * 9 // 10, "nearly all of it could be used"
        taken = 0
        while (answer := client.ask("POST", "/v1/topics/mail/reserve", {"max": 50})).status == 200:
            tokens = [job["token"] for job in answer.json["jobs"]]
            assert client.ask("POST", "/v1/ack", {"tokens": tokens}).status == 200
            taken += len(tokens)
        assert taken == put, "whatever was accepted is there"
        assert worker.ask("put 0 0 60", b"x" * 60_000).startswith("INSERTED")
        runs.count("T-M1")


def test_m1_bodies_in_flight_are_bounded(tmp_path: Path, runs: Runs) -> None:
    """T-M1: clients that send long bodies at once and never end them: most are refused."""
    held = {"DELAYD_HTTP_HELD_BYTES_MAX": str(8 * MIB), "DELAYD_HTTP_BODY_TIMEOUT": "1h"}
    clients = []
    with (
        started(tmp_path, *HTTP, environment=held) as daemon,
        HttpClient(daemon.http_address) as other,
    ):
        assert other.ask("POST", PUT, {"body": 0}).status == 201
        before_bytes = memory_bytes(daemon, "VmHWM")
        body = raw(b'{"body":"' + b"x" * (limits.HTTP_BODY_BYTES_DEFAULT - 20) + b'"}')[:-1_000]
        for _ in range(runs.times(20, 200)):
            client = HttpClient(daemon.http_address)
            clients.append(client)
            client.send_what_it_takes(body)
            assert other.ask("GET", "/v1/jobs/1").status == 200, daemon.log()
        grown_bytes = memory_bytes(daemon, "VmHWM") - before_bytes
        assert grown_bytes < 8 * MIB + limits.HTTP_BODY_BYTES_DEFAULT * 6, grown_bytes
        everybody = [client.socket for client in clients]
        until(lambda: len(select.select(everybody, [], [], 0)[0]) >= len(clients) - 2)
        refused = set(select.select(everybody, [], [], 0)[0])
        assert len(refused) < len(clients), "who fits in may go on"
        for client in clients:
            if client.socket in refused:
                assert client.answer().status in {0, 503}
        for client in clients:
            client.close()
        until(lambda: ask_once(daemon, {"body": "x" * 60_000}).status == 201)
        runs.count("T-M1")
