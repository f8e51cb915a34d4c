"""A receiver of deliveries in a process of its own, which can be killed and started again.

    with Receiver(directory, fails_percent=10) as receiver:
        ... a daemon delivers to receiver.url ...
        receiver.kill(), receiver.start()          # the same port and the same book
        receiver.arrivals()                        # everything that ever arrived

What arrives is in the book before it is answered: a line for each request, with the time of the
clock of all histories, and when the daemon began the call, in whole seconds of the wall clock. Run
as a program it is that process.
"""

import contextlib
import os
import random
import sys
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple, Self

from tests.faults.real_daemon import now_ms
from tests.servers import HOST, Server, free_port, launch


class Arrival(NamedTuple):
    message_id: str
    job_id: int
    attempt: int
    at_ms: float
    begun_s: int
    body: str


class Receiver:
    def __init__(self, directory: Path, *, fails_percent: int = 0) -> None:
        self._book = directory / "arrivals"
        self._fails_percent = fails_percent
        self._stack = contextlib.ExitStack()
        # Nobody else is given it while the receiver is dead.
        self.port: int = self._stack.enter_context(free_port())
        self._server: Server | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.kill()
        self._stack.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/jobs"

    @property
    def settings(self) -> Mapping[str, str]:
        """The environment of a daemon that may call it."""
        return {
            "DELAYD_PUSH_ALLOW_HTTP": "true",
            "DELAYD_PUSH_PORTS": str(self.port),
            "DELAYD_PUSH_PRIVATE_NETWORKS": "127.0.0.0/8",
        }

    def start(self) -> None:
        words = (str(self.port), str(self._book), str(self._fails_percent))
        server = launch("receiver", (sys.executable, "-m", "tests.faults.receiver", *words))
        server.address = (HOST, self.port)
        server.wait_until(ready=None)
        self._server = server

    def kill(self) -> None:
        if self._server is not None:
            self._server.kill()
            self._server.stop()
            self._server = None

    def arrivals(self) -> list[Arrival]:
        if not self._book.exists():
            return []
        lines = self._book.read_text().splitlines()
        rows = (line.split(" ", 5) for line in lines)
        return [Arrival(a, int(b), int(c), float(d), int(e), f) for a, b, c, d, e, f in rows]


def _serve(port: int, path: str, fails_percent: int) -> None:
    book = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            at_ms = now_ms()
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            which = [self.headers[name] for name in ("webhook-id", "Delayd-Id", "Delayd-Attempt")]
            begun_s = self.headers["webhook-timestamp"]
            os.write(book, f"{' '.join(which)} {at_ms:.3f} {begun_s} {body}\n".encode())
            fails = random.Random(" ".join(which[1:])).randrange(100) < fails_percent
            self.send_response(500 if fails else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_args: object) -> None:
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        allow_reuse_address = True
        daemon_threads = True

    Server(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    _serve(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
