"""A receiver in a thread, for commands that call one, and a configuration that lets them."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final, Self

from tests.access.secret_samples import named, written

CONFIG: Final = """
[push]
private_networks = ["127.0.0.0/8"]
allow_http = true
ports = [{port}]
secrets = "{secrets}"
sign_with = ["mail"]
# This machine may stop for longer than delayd waits.
timeout = "1m"
connect_timeout = "1m"
"""


class Hook:
    """A test says what it answers."""

    def __init__(self) -> None:
        hook = self
        self.status = 200
        self.headers: dict[str, str] = {}
        self.body = b"thanks"
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.may_answer = threading.Event()
        self.may_answer.set()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                hook.got.append((dict(self.headers.items()), self.rfile.read(length)))
                hook.may_answer.wait()
                self.send_response(hook.status)
                for name, value in hook.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(hook.body)

            def log_message(self, *_: object) -> None:
                pass

        self._handler = Handler

    def __enter__(self) -> Self:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}/hook?token=canary"
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.may_answer.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def configure(self, directory: Path) -> Path:
        """Write a configuration with which it may be called, and secrets to sign with."""
        secrets = written(directory / "secrets.json", named("orders", 1, 2), named("mail", 3))
        path = directory / "delayd.toml"
        path.write_text(CONFIG.format(port=self.port, secrets=secrets))
        return path
