"""A Redis list or stream as the target of due jobs.

    [sinks.orders]
    kind = "redis"
    url = "redis://127.0.0.1:6379/0"
    list = "orders:due"                # RPUSH orders:due BODY
    # stream = "orders:due"            # or XADD orders:due * body BODY id 7 topic orders ...

A job is delivered when Redis has answered as it answers that command: an RPUSH with the length of
the list, an XADD with the id of the entry. How durable that is depends on Redis: it survives the
end of its process with `appendonly yes`, a power cut with `appendfsync always`. After any other
reply, such as the greeting of another protocol, the connection is closed. A connection that
turns out to be closed is opened again once within the attempt, so a job may come twice: after a
server that ended between carrying the command out and answering it.

Errors that are the server's fault and not the job's count as an outage, with advice. After more
bytes than a reply has the connection is closed (`push.transports`), since the library would read
without bound. The module knows nothing of the daemon but the interface of sinks.
"""

import asyncio
import base64
import re
import socket
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, final

import orjson
from redis.asyncio import Redis, connection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.exceptions import ConnectionError as NoConnection
from redis.exceptions import ReadOnlyError, RedisError
from redis.exceptions import TimeoutError as NoAnswer

from delayd import limits
from delayd.fields import Field, invalid, one_of, text_of, whole
from delayd.push.options import ServerOptions, server_url
from delayd.push.sinks import DELIVERED, AttemptEnd, DueJob, Result
from delayd.push.transports import BoundedTransport, Tls, Transports, open_stream, stream_transports

_KEY: Final = text_of("must be a key of Redis; {topic} in it is the job's topic")
REDIS_FIELDS: Final = (
    server_url(
        {"redis": 6379, "rediss": 6379, "unix": 0},
        "must be redis://[USER@]HOST[:PORT][/DATABASE], rediss:// for TLS, or unix:///PATH",
    ),
    Field("database", "database", whole(0, 2**31 - 1)),
    Field("list", "list", _KEY),
    Field("stream", "stream", _KEY),
    Field("format", "format", one_of({"body": "body", "envelope": "envelope"})),
    Field("maxlen", "maxlen", whole(1, limits.STREAM_LENGTH_MAX)),
    Field("connections_max", "connections_max", whole(1, limits.SINK_CONNECTIONS_MAX)),
)

_ADVICE: Final = MappingProxyType(
    {
        "OOM": "it has reached maxmemory and evicts nothing: raise it, or take more out",
        "READONLY": "it is a replica: the url must name the primary",
        "NOAUTH": "it wants a password: set password_file",
        "WRONGPASS": "it does not know this user with this password",
        "NOPERM": "its user may not write this key: see ACL SETUSER",
        "WRONGTYPE": "the key holds something of another type",
        "MISCONF": "it cannot write to its disk and takes no more: see its log",
        "LOADING": "it is still reading its data",
        "MOVED": "it is a node of a cluster, which delayd does not follow: use a proxy",
        "CLUSTERDOWN": "its cluster is down",
        "NOREPLICAS": "it has fewer replicas than min-replicas-to-write",
        "BUSY": "it is busy with a script",
    }
)
"""The advice for an error that is not the job's fault, by its first word."""


def redis_sink(_name: str, options: Mapping[str, object]) -> "RedisSink":
    """Make the sink of these options. Raises `Invalid`, a `ValueError`, with all mistakes."""
    server = ServerOptions(options, REDIS_FIELDS, tls_scheme="rediss")
    values = server.values
    if ("list" in values) is ("stream" in values):
        raise invalid("", "must have either a list or a stream")
    if "format" in values and "stream" in values:
        raise invalid("format", "is for a list: a stream has fields")
    if "maxlen" in values and "list" in values:
        raise invalid("maxlen", "is for a stream")
    if server.url.scheme != "unix" and not (server.url.path or "0").isdecimal():
        raise invalid("url", "must end with the number of a database, if with anything")
    if server.url.host and "database" in values:
        raise invalid("database", "is for a unix socket: the url ends with it")
    client = Redis(connection_pool=_pool(server))
    client.set_response_callback("RPUSH", _checked_length)
    client.set_response_callback("XADD", _checked_entry_id)
    return RedisSink(server, client)


@final
class RedisSink:
    """Appends each job to a list or a stream."""

    def __init__(self, server: ServerOptions, client: Redis) -> None:
        """Use this client, whose pool of connections is the sink's to close."""
        values = server.values
        self._server: Final = server
        self._key: Final[str] = values.get("list") or values["stream"]
        self._shape: Final = _Shape(values)
        self._client: Final = client

    async def deliver(self, job: DueJob) -> AttemptEnd:
        """Append the job; the attempt has failed unless Redis confirms it."""
        key = self._key.replace("{topic}", job.topic)
        command = self._shape.command(key, job)
        try:
            await self._client.execute_command(*command)  # type: ignore[no-untyped-call]
        except (RedisError, OSError, ValueError) as error:  # ValueError: of a password's file
            if isinstance(error, ReadOnlyError):  # by now another one may have the host's name
                await self._client.connection_pool.disconnect(inuse_connections=False)
            return self._failure(error)
        return DELIVERED

    async def close(self) -> None:
        """Close the connections."""
        await self._client.connection_pool.aclose()

    def _failure(self, error: Exception) -> AttemptEnd:
        """Return the end of a failed attempt, and whether other jobs would fail too."""
        text = " ".join(str(error).split())
        code = (getattr(error, "status_code", None) or text.partition(" ")[0]).upper()
        advice = _ADVICE.get(code, "")
        if advice:
            return AttemptEnd(
                Result.FAILED,
                f"Redis at {self._server.url} answered {code}: {advice}",
                text.encode(),
                # With a key for each topic, the others may be of the right type.
                is_outage=code not in {"WRONGTYPE", "NOPERM"} or "{topic}" not in self._key,
            )
        is_outage = isinstance(error, NoConnection | NoAnswer | OSError | ValueError)
        return AttemptEnd(
            Result.FAILED, f"Redis at {self._server.url}: {text}", is_outage=is_outage
        )


class _Shape:
    """Writes the command for a job."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._is_list = "list" in values
        self._is_envelope = values.get("format") == "envelope"
        # Redis removes whole nodes of about a hundred entries, which is cheap.
        self._maxlen = ("MAXLEN", "~", values["maxlen"]) if "maxlen" in values else ()

    def command(self, key: str, job: DueJob) -> tuple[str | int | bytes, ...]:
        """Return the command that appends the job."""
        if self._is_list:
            return "RPUSH", key, envelope(job) if self._is_envelope else job.body
        fields = [part for item in job.fields().items() for part in item]
        return "XADD", key, *self._maxlen, "*", "body", job.body, *fields


def envelope(job: DueJob) -> bytes:
    """Return the job as JSON: `body` is a text, or `body_base64` has what is not UTF-8.

    >>> job = DueJob(7, "0a_7", "mail", b"a", b"hi", "text/plain", 1, 1_000, 3, 0)
    >>> envelope(job).decode()[-61:]
    '"attempt":1,"due":"1970-01-01T00:00:01.000Z","lateness_ms":3}'
    """
    body: dict[str, str]
    try:
        body = {"body": job.body.decode()}
    except UnicodeDecodeError:
        body = {"body_base64": base64.b64encode(job.body).decode()}
    return orjson.dumps(body | job.fields())


def _checked_length(response: object, **_: object) -> int:
    """Return the length of the list. Raises `NoConnection`, which has the connection closed."""
    if isinstance(response, int) and response > 0:
        return response
    raise NoConnection(f"its reply to RPUSH is not the length of a list: {response!r:.80}")


def _checked_entry_id(response: object, **_: object) -> bytes:
    """Return the id of the entry. Raises `NoConnection`, which has the connection closed."""
    if isinstance(response, bytes) and re.fullmatch(rb"[0-9]+-[0-9]+", response):
        return response
    raise NoConnection(f"its reply to XADD is not the id of an entry: {response!r:.80}")


class _Credentials(CredentialProvider):
    """User and password, read again for each connection."""

    def __init__(self, server: ServerOptions) -> None:
        self._server = server

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        password, user = self._server.password(), self._server.url.user
        return (user, password) if user else (password,)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        return self.get_credentials()


@final
class _ReplyReader(asyncio.StreamReader):
    """Returns the lines of replies, and refuses lists, which are no reply to our commands.

    The library reads a list item by item, and recurses for a list in a list: a thousand deep that
    blocked all clients for most of a second, and took 35 MB at a hundred connections.
    """

    async def readline(self) -> bytes:
        """Return the next line. Raises `NoConnection` where a list begins."""
        line = await super().readline()
        if line.startswith(b"*"):
            raise NoConnection("its reply cannot be read: it is a list")
        return line


class _BoundedConnection(connection.AbstractConnection):
    """A connection that accepts no more bytes than replies need."""

    def __init__(self, *, server: ServerOptions, transports: Transports, **options: Any) -> None:  # noqa: ANN401 - redis's
        self._server = server
        self._transports = transports
        self._transport: BoundedTransport | None = None
        super().__init__(**options)

    async def _connect(self) -> None:
        """Open the two streams that the library reads and writes."""
        url = self._server.url
        place = (url.host, url.port) if url.host else f"/{url.path}"
        tls = None if self._server.tls is None else Tls(self._server.tls, url.host)
        async with asyncio.timeout(self.socket_connect_timeout):
            streams = await open_stream(self._transports, place, tls, _ReplyReader)
        self._reader, self._writer, self._transport = streams
        if url.host:
            sock = self._writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, limits.SINK_KEEPALIVE_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, limits.SINK_KEEPALIVE_S)

    async def send_packed_command(self, *command: Any, **options: Any) -> None:  # noqa: ANN401 - redis's
        """Send a command, to which there is one reply."""
        if not self.is_connected:
            await self.connect_check_health(check_health=False)
        if self._transport is not None:
            self._transport.allow(limits.SINK_REPLY_BYTES_MAX)
        await super().send_packed_command(*command, **options)

    def repr_pieces(self) -> list[tuple[str, str | int]]:
        return [("server", str(self._server.url)), ("db", self.db)]

    def _host_error(self) -> str:
        return str(self._server.url)


def _pool(server: ServerOptions) -> connection.BlockingConnectionPool:
    """Make the pool of connections; an attempt waits for one as long as it may take.

    A connection sends no name and no other facts about itself, so that a user with no right but to
    append is enough.
    """
    url = server.url
    database = server.values.get("database", 0)  # of a unix socket
    if url.host:
        database = int(url.path or "0")
    more: dict[str, Any] = {}
    if server.has_password:
        more["credential_provider"] = _Credentials(server)
    return connection.BlockingConnectionPool(
        max_connections=server.values.get("connections_max", limits.SINK_CONNECTIONS_DEFAULT),
        timeout=None,
        connection_class=_BoundedConnection,
        server=server,
        transports=stream_transports(),
        db=database,
        protocol=2,  # every Redis and its kin speak it, and nothing of the other is needed
        driver_info=None,
        socket_timeout=None,  # the attempt has its own
        socket_connect_timeout=server.connect_s,
        retry=Retry(NoBackoff(), 1),
        **more,
    )
