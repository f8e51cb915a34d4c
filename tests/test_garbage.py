"""Nothing that comes and goes is left to the collector of all: what a long one has left is never
traversed again (`Turns.note_collection`), so a cycle that became garbage then would stay for ever.
"""

import asyncio
import contextlib
import gc
import socket
import ssl
import threading
from collections.abc import Iterator

import pytest

from delayd.limits import PUSH_PIECE_BYTES
from delayd.net import tls
from tests.access.handshakes import Authority
from tests.push.receiver import HOST, OK, Receiver, job, webhook
from tests.rigs.commit import CommitRig, set_watch
from tests.rigs.http import JOBS, RESERVE, HttpRig
from tests.rigs.line_sockets import ServerRig


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.freeze()  # what there was before is not looked at by each collection
    gc.disable()
    yield
    gc.enable()


@pytest.mark.thorough
def test_a_connection_of_the_line_that_has_closed_leaves_nothing_to_collect() -> None:
    with ServerRig() as rig:
        clients = [rig.client() for _ in range(8)]
        for client in clients:
            client.sendall(
                b"put 0 0 9 1\r\nx\r\nreserve\r\nput 0 1 1 0 key=a retry=1s\r\n\r\n"
                b'schedule-put a 37\r\n{"topic":"a","every":"1h","body":"x"}\r\nschedules\r\n'
                b"list-jobs default\r\nwatch a\r\nreserve-with-timeout 100\r\n"
            )
        for client in clients[4:]:
            client.sendall(b"put 0 0 9 100\r\nhalf a body")
        for _ in range(30):
            rig.turn()
        gc.collect()
        for client in clients:
            client.close()
        rig.turn_until_quiet(some=True)
        assert not rig.clients
        assert gc.collect() == 0


def test_requests_and_connections_of_http_leave_nothing_to_collect() -> None:
    with HttpRig(is_checked=False) as rig:
        asked = (
            ("POST", JOBS, {"body": 1}),
            ("POST", RESERVE, {"max": 2}),
            ("POST", RESERVE, {"wait": "60s"}),
            ("GET", JOBS, None),
            ("GET", "/v1/topics", None),
        )
        for is_answered in (True, False):
            clients = [rig.send(*each, is_settled=is_answered) for each in asked]
            rig.settle()
            if is_answered:
                gc.collect()  # what the first calls have imported and compiled
            for client in clients:
                client.hang_up()
            rig.settle()
            clients.clear()
            del client
            rig._clients.clear()
            assert gc.collect() == 0


def test_topics_that_are_not_wanted_any_more_leave_nothing_to_collect() -> None:
    with ServerRig() as rig:
        client = rig.client()
        client.sendall(b"".join(b"use t%d\r\nput 0 0 9 0\r\n\r\n" % number for number in range(50)))
        rig.turn_until_quiet()
        gc.collect()
        client.sendall(b"use default\r\n")
        client.sendall(b"".join(b"delete %d\r\n" % number for number in range(1, 51)))
        rig.turn_until_quiet()
        assert len(rig.engine.store.topics.listing) == 1
        assert gc.collect() == 0


BODY = bytes(2 * PUSH_PIECE_BYTES)
HANGS = b"HTTP/1.1 200"


@contextlib.contextmanager
def answering(answer: bytes, secure: ssl.SSLContext | None) -> Iterator[int]:
    """Answer every connection so, on this port, in a thread that leaves nothing either."""

    def serve(server: socket.socket) -> None:
        while not is_over.is_set():
            with contextlib.suppress(OSError), server.accept()[0] as plain:
                plain.settimeout(60)
                sock = secure.wrap_socket(plain, server_side=True) if secure else plain
                with sock:
                    data = sock.recv(1 << 16)
                    while data[:4] == b"POST" and not data.endswith(BODY):
                        data += sock.recv(1 << 16)
                    sock.sendall(answer)
                    if answer == HANGS:
                        sock.recv(1)

    is_over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        yield server.getsockname()[1]
        is_over.set()
        socket.create_connection(server.getsockname()).close()
        thread.join()


ANSWERS = {
    "delivered": OK,
    "failed": b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n",
    "no HTTP": b"no HTTP at all",
    "nothing": b"",
    "hints": b"HTTP/1.1 103 Early Hints\r\n\r\n" * 4_000,
    "hangs": HANGS,
    "more than an answer": OK + b"x" * (1 << 20),
    "no name": OK,
    "refused": OK,
    "other scheme": OK,
}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("fault", ANSWERS)
def test_calls_of_urls_leave_nothing_to_collect(
    scheme: str, fault: str, authority: Authority
) -> None:
    answer = ANSWERS[fault]
    secure = tls.server_context(authority.files(HOST)) if scheme == "https" else None
    if fault == "other scheme":
        scheme = {"http": "https", "https": "http"}[scheme]

    async def scene(port: int) -> int:
        receiver = Receiver()
        receiver.port = 1 if fault == "refused" else port
        sink = webhook(receiver, tls=authority.client())
        host = "unknown.example" if fault == "no name" else HOST

        async def call() -> None:
            calls = asyncio.create_task(
                sink.deliver(job(f"{scheme}://{host}:{receiver.port}/", body=BODY))
            )
            await asyncio.wait([calls], timeout=0.2 if answer == HANGS else 60)
            calls.cancel()
            await asyncio.wait([calls])

        await call()
        gc.collect()  # what the first call has imported and compiled
        for _ in range(3):
            await call()
        found = gc.collect()
        await sink.close()
        return found

    with answering(answer, secure) as port:
        assert asyncio.run(scene(port)) == 0


@pytest.mark.thorough
def test_what_a_long_collection_of_all_has_left_is_not_traversed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch = set_watch(monkeypatch)
    note = CommitRig(watch=watch).turns.note_collection
    before = gc.get_freeze_count()
    for generation, ms in ((2, 4), (1, 50)):
        note("start", {"generation": generation})
        watch.pass_ms(ms)
        note("stop", {"generation": generation})
        assert gc.get_freeze_count() <= before, "less where what was frozen has gone"
    note("start", {"generation": 2})
    watch.pass_ms(5)
    note("stop", {"generation": 2})
    assert gc.get_freeze_count() > before
    assert not gc.get_objects(2)
