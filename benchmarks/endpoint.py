"""An endpoint of pushes in a process of its own, and how a daemon is told to push to it.

It reads requests as far as it must to find the next one, and measures itself: the rate from its
first request to its last, and lateness by the header that says when a job was due, which is exact
to a millisecond. The path says what is answered, and how soon (`RULES`).
"""

import asyncio
import json
import multiprocessing
import re
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from multiprocessing.connection import Connection
from types import MappingProxyType
from typing import Final, NamedTuple

from benchmarks.line import HOST, Line, UnexpectedReplyError, ask
from benchmarks.processes import spent_seconds

LENGTH: Final = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
DUE: Final = re.compile(rb"delayd-due: *(\S+)\r", re.IGNORECASE)
BODY: Final = json.dumps({"order": 1_000_017, "kind": "reminder", "to": "x" * 60}).encode()
TTR_S: Final = 600
LOOK_S: Final = 0.02
PATIENCE_S: Final = 120.0


class Rule(NamedTuple):
    """What a request is answered."""

    answer: bytes = b"HTTP/1.1 204 No Content\r\n\r\n"
    after_s: float = 0.0
    is_counted: bool = True


RULES: Final[Mapping[bytes, Rule]] = MappingProxyType(
    {
        b"/jobs": Rule(),
        b"/quick": Rule(after_s=0.01),
        b"/slow": Rule(after_s=0.5, is_counted=False),
        b"/never": Rule(b""),
        b"/failing": Rule(
            b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n", is_counted=False
        ),
    }
)


class Report(NamedTuple):
    """What an endpoint has answered since it was asked the last time."""

    requests: int
    seconds: float
    """From the first to the last."""
    last_s: float
    """When the last was, by `time.monotonic`."""
    lateness_ms: list[float]

    @property
    def per_second(self) -> float:
        """Requests a second."""
        return (self.requests - 1) / self.seconds if self.seconds else 0.0

    @property
    def early(self) -> int:
        """How many came before their time."""
        return sum(ms < 0 for ms in self.lateness_ms)


class _Connection(asyncio.Protocol):
    """One connection; `seen` is shared by all."""

    def __init__(self, seen: list[tuple[float, float]]) -> None:
        self._seen = seen
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = self._received[: end + 2]
            length = LENGTH.search(head)
            end += 4 + (int(length[1]) if length else 0)
            if len(self._received) < end:
                return
            self._received = self._received[end:]
            rule = RULES[head.split(b" ", 2)[1]]
            late_ms = lateness_ms(head)
            if rule.after_s:
                asyncio.get_running_loop().call_later(rule.after_s, self._answer, rule, late_ms)
            else:
                self._answer(rule, late_ms)

    def _answer(self, rule: Rule, late_ms: float) -> None:
        if rule.is_counted:
            self._seen.append((time.monotonic(), late_ms))
        if rule.answer:
            self._transport.write(rule.answer)


def lateness_ms(head: bytes) -> float:
    """Return how long ago a job was due; 0 if the request does not say it."""
    due = DUE.search(head)
    if due is None:
        return 0.0
    return (time.time() - datetime.fromisoformat(due[1].decode()).timestamp()) * 1_000


def _serve(pipe: Connection) -> None:
    """Answer requests, and what is asked through the pipe: how many have come, or a report."""
    seen: list[tuple[float, float]] = []

    def tell() -> None:
        if pipe.recv() == "count":
            pipe.send(len(seen))
            return
        times = [at_s for at_s, _ in seen]
        first_s, last_s = (times[0], times[-1]) if times else (0.0, 0.0)
        pipe.send(Report(len(seen), last_s - first_s, last_s, [late_ms for _, late_ms in seen]))
        seen.clear()

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Connection(seen), HOST, 0)
        loop.add_reader(pipe.fileno(), tell)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())


class Endpoint:
    """One that runs."""

    def __init__(self) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        self.port: int = self._pipe.recv()

    def url(self, path: str = "/jobs") -> str:
        """Return where requests go that are answered by the rule of this path."""
        return f"http://{HOST}:{self.port}{path}"

    def count(self) -> int:
        """Return how many requests have come since the last report."""
        self._pipe.send("count")
        return int(self._pipe.recv())

    def report(self, requests: int = 0, patience_s: float = PATIENCE_S) -> Report:
        """Wait for so many requests, but not longer than that; tell what came."""
        until_s = time.monotonic() + patience_s
        while self.count() < requests and time.monotonic() < until_s:
            time.sleep(LOOK_S)
        self._pipe.send("report")
        report: Report = self._pipe.recv()
        return report

    def spent_seconds(self) -> float:
        """Return the processor time that it has taken so far."""
        assert self._process.pid is not None
        return spent_seconds([self._process.pid])

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.join()


def push_settings(ports: Sequence[int]) -> str:
    """Return the settings of a daemon that may call these ports of this machine."""
    return f'[push]\nallow_http = true\nports = {list(ports)}\nprivate_networks = ["127.0.0.0/8"]\n'


def set_policy(port: int, tube: str, policy: object) -> None:
    """Give a tube of the daemon at this port its policy."""
    text = json.dumps(policy).encode()
    answer = ask(port, b"set-policy %b %d\r\n%b\r\n" % (tube.encode(), len(text), text))
    if answer != b"POLICY_SET\r\n":
        raise UnexpectedReplyError(f"a policy was answered {answer!r}")


def send_to(port: int, tube: str, url: str, **push: object) -> None:
    """Have the jobs of a tube delivered to a url."""
    set_policy(port, tube, {"retry": "30s", "push": {"url": url, **push}})


def put_each(port: int, tube: str, delays_s: Sequence[float]) -> None:
    """Put a job for each of these delays."""
    line = Line(port, tube)
    head = b"put 0 %.3f %d %d\r\n%b\r\n"
    line.put_all([head % (delay_s, TTR_S, len(BODY), BODY) for delay_s in delays_s])
    line.close()
