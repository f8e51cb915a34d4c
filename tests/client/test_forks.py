"""Processes that were forked, and a second event loop: none gets the answers of another.

A fork is played by another process id: what the client sees of one.
"""

import asyncio
import contextlib
import gc
import os
import socketserver
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from delayd.client import AsyncClient, Client, NotReserved
from delayd.client.aio import AsyncToucher
from delayd.client.touching import Toucher
from delayd.testing.fake import FakeDelayd
from tests.client.made import Made
from tests.client.peer import Hold, Read, ScriptedPeer, Send, Step

ALIVE = b'HTTP/1.1 200 OK\r\nContent-Length: 18\r\n\r\n{"status":"ready"}'


class Lives(socketserver.ThreadingTCPServer):
    """A server that says on each connection, as often as it is asked, that it lives."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), socketserver.BaseRequestHandler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.requests: list[int] = []
        """How many came on each connection."""

    def finish_request(self, request: Any, client_address: object) -> None:  # noqa: ANN401
        number = len(self.requests)
        self.requests.append(0)
        with contextlib.suppress(OSError):
            while request.recv(65536):
                self.requests[number] += 1
                request.sendall(ALIVE)


@pytest.fixture
def lives() -> Iterator[Lives]:
    with Lives() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join(60)


def fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on this is the child."""
    child = os.getpid() + 1
    monkeypatch.setattr("os.getpid", lambda: child)


def test_a_forked_process_makes_connections_of_its_own(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client(lives.url) as client:
        client.health()
        client.health()
        fork(monkeypatch)
        client.health()
        client.health()
    assert lives.requests == [2, 2]


def test_a_forked_process_does_not_wait_for_a_lock_of_its_parent(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client(lives.url) as client:
        client.health()
        with client._connections._pool._lock:  # type: ignore[attr-defined]  # as a thread that puts
            fork(monkeypatch)
            client.health()


def test_a_forked_process_does_not_acknowledge_over_its_parents_connection(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserved = b"RESERVED_BATCH 1\r\nRESERVED 7 1 60 1 key=\r\nx\r\n"
    script: list[Step] = [
        *(Read(b"ignore default\r\n"), Send(b"WATCHING 2\r\nWATCHING 1\r\n")),
        *(Read(b"\r\n"), Send(reserved), Hold()),
    ]
    with ScriptedPeer([script]) as peer:
        job = made.client(f"beanstalk://127.0.0.1:{peer.port}").reserve("mail", timeout=0)
        with monkeypatch.context() as child:
            fork(child)
            with pytest.raises(NotReserved):
                job.ack()
        assert b"delete" not in peer.received[0]


def test_a_forked_process_touches_its_jobs_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeDelayd().client()
    client.put("mail", "x", ttr=0.03)
    was_touched = threading.Event()
    monkeypatch.setattr(client, "touch", lambda _job: was_touched.set())
    job = client.reserve("mail", timeout=0)
    toucher = Toucher()
    toucher._wakes_s = 1e12  # of a thread that only the parent has
    fork(monkeypatch)
    toucher.add(job, ttr_s=0.03)
    assert was_touched.wait(60)
    toucher.discard(job)
    toucher.close()


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # asyncio's own, of ended loops
def test_a_second_event_loop_makes_connections_of_its_own(lives: Lives) -> None:
    async def ask(client: AsyncClient) -> None:
        await asyncio.gather(client.health(), client.health())

    client = AsyncClient(lives.url)
    for _ in range(3):
        asyncio.run(ask(client))
    assert lives.requests == [1] * 6
    asyncio.run(client.close())
    del client
    gc.collect()


def test_a_second_event_loop_touches_its_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeDelayd() as fake, fake.client() as plain:
        plain.put("mail", "x")
        toucher = AsyncToucher()

        async def held(ttr_s: float) -> bool:
            client = fake.async_client()
            was_touched = asyncio.Event()

            async def touch(_job: object) -> None:
                was_touched.set()

            monkeypatch.setattr(client, "touch", touch)
            job = await client.reserve("mail", timeout=0)
            toucher.add(job, ttr_s)
            if ttr_s < 1:
                async with asyncio.timeout(60):
                    await was_touched.wait()
            toucher.discard(job)
            await client.nack(job, counts=False)
            return was_touched.is_set()

        assert not asyncio.run(held(1e6))
        assert asyncio.run(held(0.03))
