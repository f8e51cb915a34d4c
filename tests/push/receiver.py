"""A receiver of webhooks that answers what the test says, byte by byte, and notes what it got."""

import asyncio
import ipaddress
import socket
import ssl
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from delayd.access.signing_secrets import Secrets
from delayd.core.targets import Target
from delayd.push.egress import EgressRules
from delayd.push.sinks import DueJob
from delayd.push.webhook import Webhook

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from delayd.push.connections import LookUp
    from delayd.push.sinks import AttemptEnd, Sink

    Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

HOST = "hook.example"
WALL_MS = 1_795_256_100_000  # 2026-11-21T10:15:00Z
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Got(NamedTuple):
    """A request."""

    connection: int
    line: str
    headers: dict[str, str]
    """With their names in small letters."""
    body: bytes


class Receiver:
    """Listens on a port of its own; `answers` are sent one after the other, the last for ever.

    An empty answer closes the connection, and so does one that says so. Or `serve` does all that.
    """

    def __init__(
        self, *answers: bytes, tls: ssl.SSLContext | None = None, serve: "Serve | None" = None
    ) -> None:
        self._answers = list(answers or [OK])
        self._tls = tls
        self._serve = serve or self._answer
        self.got: list[Got] = []
        self.connections = 0
        self.port = 0
        self.on_request: Callable[[], Awaitable[None]] | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                line, *lines = head[:-4].split("\r\n")
                pairs = (each.partition(": ") for each in lines)
                headers = {name.lower(): value for name, _, value in pairs}
                assert len(headers) == len(lines)
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.got.append(Got(number, line, headers, body))
                if self.on_request is not None:
                    await self.on_request()
                answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
                if not answer:
                    break
                writer.write(answer)
                await writer.drain()
                if b"Connection: close" in answer:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def url(self, tail: str = "/", scheme: str = "http") -> str:
        return f"{scheme}://{HOST}:{self.port}{tail}"


class FakeDns:
    """Answers from a table, and notes what it was asked; a test may change the table."""

    def __init__(self, **hosts: list[str]) -> None:
        self.hosts = {HOST: ["127.0.0.1"], **{k.replace("_", "."): v for k, v in hosts.items()}}
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> list[tuple[Any, ...]]:
        self.asked.append(host)
        if host not in self.hosts:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [row(address, port) for address in self.hosts[host]]


def row(address: str, port: int) -> tuple[Any, ...]:
    """As `socket.getaddrinfo` says it."""
    if ":" in address:
        base, _, zone = address.partition("%")
        where: tuple[Any, ...] = (base, port, 0, int(zone or 0))
        return (socket.AF_INET6, socket.SOCK_STREAM, 6, "", where)
    return (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))


def rules(receiver: Receiver, *networks: str, hosts: tuple[str, ...] = ("*",)) -> EgressRules:
    return EgressRules(
        hosts=hosts,
        private_networks=[ipaddress.ip_network(each) for each in networks or ("127.0.0.0/8",)],
        allow_http=True,
        ports=[443, receiver.port],
    )


def webhook(
    receiver: Receiver,
    dns: "LookUp | None" = None,
    *,
    secrets: Secrets | None = None,
    sign_with: tuple[str, ...] = (),
    connect_timeout_ms: int = 60_000,
    wall_ms: int = WALL_MS,
    tls: ssl.SSLContext | None = None,
    egress: EgressRules | None = None,
) -> Webhook:
    return Webhook(
        egress or rules(receiver),
        secrets=secrets,
        sign_with=sign_with,
        connect_timeout_ms=connect_timeout_ms,
        wall_ms=lambda: wall_ms,
        look_up=dns or FakeDns(),
        ssl_context=tls,
    )


def job(url: str, **changes: Any) -> DueJob:  # noqa: ANN401
    """A job for that url; the changes are fields of it or of its target."""
    names = changes.keys() & set(Target._fields) - set(DueJob._fields)
    of_target = {name: changes.pop(name) for name in names}
    fields: dict[str, Any] = {
        "id": 7,
        "message_id": "00c0ffee00c0ffee_7",
        "topic": "mail",
        "key": b"",
        "body": b'{"hello": "world"}',
        "content_type": "application/json",
        "attempt": 2,
        "due_ms": WALL_MS - 40,
        "lateness_ms": 40,
        "timeout_ms": 15_000,
        "target": Target(url, **of_target),
    }
    return DueJob(**fields | changes)


async def delivered(
    serve: "Serve",
    sink_to: "Callable[[int], Sink]",
    due: DueJob,
    tls: ssl.SSLContext | None = None,
) -> "AttemptEnd":
    """What becomes of an attempt at a server, whose port the sink is made with."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    sink = sink_to(server.sockets[0].getsockname()[1])
    end = await sink.deliver(due)
    await sink.close()
    server.close()
    return end
