"""One connection to PostgreSQL, which is waited for no longer than its user says.

    ask      a statement and its rows; blocks, within a deadline
    stream   the same, row by row, where there may be many
    begin    send a statement that was prepared ─► readable ─► pump ─► its rows

A server may be paused and a network may swallow what is sent, and then `statement_timeout` does not
help: it is the server's. So the deadline is ours, and ends by closing the socket. A statement is
never cancelled: PostgreSQL ends the wait for a synchronous standby then, and commits all the same.

Values go both ways as bytes (whole numbers with eight, big-endian), and never as text of SQL.
"""

import contextlib
import re
import select
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, final

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from delayd.clock import NS_PER_MS, monotonic_ns
from delayd.limits import DATABASE_ANSWER_MS, DATABASE_SAID_CHARACTERS_MAX
from delayd.postgres.errors import DatabaseLost, DatabaseUnfit, StatementFailed
from delayd.text import visible

Value = int | bytes | str
Row = tuple[bytes, ...]
Send = Callable[[], object]

_WHOLE: Final = struct.Struct(">q")
_TYPES: Final = {int: 20, bytes: 17, str: 25}
"""Of int8, bytea and text, as every PostgreSQL numbers them."""
_ENDS: Final = ".,:;?!"
_BINARY: Final = pq.Format.BINARY

_NOT_BY_TRYING: Final = re.compile(
    r"^invalid |^could not match |^definition of service |invalid integer value "
    r"|no password supplied|authentication failed for user|pg_hba\.conf (entry|rejects) "
    r"|(role|database) \"[^\"]*\" does not exist|is not permitted to log in|permission denied for "
    r"|root certificate file|could not load .*(certificate|private key) file"
)
"""What libpq and a server say of a wrong url, role, password or certificate. libpq does not tell
the SQLSTATE (28, 3D, 42501) of a refused connection; a server that says it in another language is
tried again, as one that is away."""


class Prepared(NamedTuple):
    """A statement that is prepared in each connection; `$1` is its first value."""

    name: str
    sql: str
    types: tuple[type[Value], ...]


def whole(value: bytes) -> int:
    """Return the number that a column has. Raises ValueError."""
    if len(value) != _WHOLE.size:
        raise ValueError("a number does not have eight bytes")
    number: int = _WHOLE.unpack(value)[0]
    return number


def _packed(value: Value) -> bytes:
    if isinstance(value, int):
        return _WHOLE.pack(value)
    return value.encode() if isinstance(value, str) else value


@final
class Connection:
    """A connection; `close` it, also after an error."""

    def __init__(self, conninfo: bytes, shown: str) -> None:
        """Connect, blocking for as long as `connect_timeout` says at each address.

        `PGconn.connect` waits without letting other threads run, the loop among them, so it is not
        used. Raises DatabaseLost, and DatabaseUnfit if each host says that the url is wrong.
        """
        self._shown = shown
        failures = []
        unfit: dict[str, bool] = {}  # by host, of which another address may say more
        for way in _ways(conninfo.decode()):
            server = pq.PGconn.connect_start(make_conninfo("", **way).encode())
            failure = _failure_of(server, way.get("connect_timeout", ""))
            if not failure:
                break
            failures.append(failure)
            host = f"{way.get('host')}:{way.get('port')}"
            unfit[host] = unfit.get(host, False) or _NOT_BY_TRYING.search(failure) is not None
            server.finish()
        else:
            why = "; ".join(failures)
            if all(unfit.values()):
                raise DatabaseUnfit(f"{shown} cannot be used: {why}")
            raise DatabaseLost(f"{shown} cannot be reached: {why}")
        self._server = server
        server.nonblocking = 1
        server.notice_handler = self._note
        self.was_warned = False
        """The server has warned of something, such as a wait for the standby that was ended."""

    def _note(self, notice: pq.abc.PGresult) -> None:
        severity = notice.error_field(pq.DiagnosticField.SEVERITY_NONLOCALIZED)
        self.was_warned |= severity == b"WARNING"

    # --- In the loop -----------------------------------------------------------------------------

    def fileno(self) -> int:
        """Return the descriptor that is readable when `pump` has something to do."""
        return self._server.socket

    @property
    def version(self) -> int:
        """The server's: 150018 for 15.18."""
        return self._server.server_version

    @property
    def is_encrypted(self) -> bool:
        """Whether nobody on the way can read along."""
        return bool(self._server.ssl_in_use) or self._server.host.startswith(b"/")

    @property
    def is_far(self) -> bool:
        """Whether the server may be on another machine."""
        return self._server.hostaddr not in {b"", b"127.0.0.1", b"::1"}

    def begin(self, statement: Prepared, *values: Value) -> bool:
        """Send it; tell whether there is more to send when the socket takes more.

        Raises DatabaseLost.
        """
        packed = [*map(_packed, values)]
        formats = [_BINARY] * len(packed)
        self.was_warned = False
        try:
            self._server.send_query_prepared(
                statement.name.encode(), packed, formats, result_format=_BINARY
            )
            return self._server.flush() != 0
        except psycopg.Error as error:
            raise self._lost(str(error).encode()) from None

    def flush(self) -> bool:
        """Send more; tell whether there is still more. Raises DatabaseLost."""
        try:
            return self._server.flush() != 0
        except psycopg.Error as error:
            raise self._lost(str(error).encode()) from None

    def pump(self) -> list[Row] | None:
        """Return the rows of the statement, None before they have come.

        Raises DatabaseLost and StatementFailed.
        """
        self._receive()
        if self._server.is_busy():
            return None
        rows: list[Row] = []
        failed = None
        while (result := self._server.get_result()) is not None:
            failed = failed or self._error_of(result)
            rows += _rows(result)
        if failed is not None:
            raise failed
        return rows

    def _receive(self) -> None:
        try:
            self._server.consume_input()
        except psycopg.Error as error:
            raise self._lost(str(error).encode()) from None

    # --- Blocking --------------------------------------------------------------------------------

    def prepare(self, statement: Prepared, within_ms: int) -> None:
        """Have the statement ready for `begin`. Raises DatabaseLost and StatementFailed."""
        types = [_TYPES[each] for each in statement.types]
        name, sql = _text(statement.name), _text(statement.sql)
        self._send(lambda: self._server.send_prepare(name, sql, types))
        self._wait(within_ms)

    def run(self, sql: str, within_ms: int) -> None:
        """Have statements carried out that are all or nothing, and have no values."""
        self._send(lambda: self._server.send_query(_text(sql)))
        self._wait(within_ms)

    def ask(self, sql: str, *values: Value, within_ms: int) -> list[Row]:
        """Return the rows of a statement. Raises DatabaseLost and StatementFailed."""
        self._send(lambda: self._send_values(sql, values))
        return self._wait(within_ms)

    def stream(self, sql: str, *values: Value, within_ms: int) -> Iterator[Row]:
        """Yield the rows of a statement; the deadline is for each. Read it to its end."""
        self._send(lambda: self._send_values(sql, values))
        self._server.set_single_row_mode()
        while True:
            self._await(within_ms)
            result = self._server.get_result()
            if result is None:
                return
            if (failed := self._error_of(result)) is not None:
                raise failed
            yield from _rows(result)

    def _send_values(self, sql: str, values: tuple[Value, ...]) -> None:
        types = [_TYPES[type(value)] for value in values]
        packed = [*map(_packed, values)]
        formats = [_BINARY] * len(packed)
        self._server.send_query_params(_text(sql), packed, types, formats, _BINARY)

    def _send(self, send: Send) -> None:
        self.was_warned = False
        try:
            send()
        except psycopg.Error as error:
            raise self._lost(str(error).encode()) from None

    def _wait(self, within_ms: int) -> list[Row]:
        while True:
            self._await(within_ms)
            rows = self.pump()
            if rows is not None:
                return rows

    def _await(self, within_ms: int) -> None:
        """Wait until a result is there. Raises DatabaseLost."""
        until_ns = monotonic_ns() + within_ms * NS_PER_MS
        poll = select.poll()
        poll.register(self._server.socket, select.POLLIN)
        while True:
            has_more = self.flush()
            if not has_more and not self._server.is_busy():
                return
            poll.modify(self._server.socket, select.POLLIN | select.POLLOUT * has_more)
            left_ms = (until_ns - monotonic_ns()) // NS_PER_MS
            if left_ms <= 0 or not poll.poll(left_ms):
                self.close()
                raise DatabaseLost(f"{self._shown} did not answer within {within_ms} ms")
            self._receive()

    # --- The end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the socket, whatever is under way. Does nothing twice."""
        self._server.finish()

    def _lost(self, message: bytes) -> DatabaseLost:
        self.close()
        return DatabaseLost(f"the connection to {self._shown} was lost: {_text_of(message)}")

    def _error_of(self, result: pq.abc.PGresult) -> StatementFailed | DatabaseLost | None:
        if result.status != pq.ExecStatus.FATAL_ERROR:
            return None
        state = result.error_field(pq.DiagnosticField.SQLSTATE)
        if not state:  # not the server's: the socket was closed
            return self._lost(result.error_message)
        message = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b""
        return StatementFailed(self._shown, _text_of(state), _text_of(message))


def _ways(conninfo: str) -> list[dict[str, str]]:
    """Return how to connect to each address of each host, in their order."""
    parameters = {name: str(value) for name, value in conninfo_to_dict(conninfo).items()}
    hosts = parameters.get("host", "").split(",")
    ports = parameters.get("port", "").split(",")
    ways = []
    for number, host in enumerate(hosts):
        port = ports[number % len(ports)]
        way = parameters | {"host": host, "port": port}
        if not host or host.startswith("/") or "hostaddr" in parameters:
            ways.append(parameters if len(hosts) == 1 else way)
            continue
        with contextlib.suppress(OSError):  # else libpq says that it does not know the host
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            addresses = dict.fromkeys(str(address[0]) for *_, address in found)
            ways += [way | {"hostaddr": address} for address in addresses]
            continue
        ways.append(way)
    return ways


def _failure_of(server: pq.abc.PGconn, timeout_s: str) -> str:
    """Wait until it is connected, and return nothing then, or why it is not."""
    within_ms = int(timeout_s) * 1_000 if timeout_s.isdecimal() else 0
    until_ns = monotonic_ns() + (within_ms or DATABASE_ANSWER_MS) * NS_PER_MS
    poll, wanted = select.poll(), select.POLLOUT
    while server.status != pq.ConnStatus.BAD:
        descriptor = server.socket
        poll.register(descriptor, wanted)
        left_ms = (until_ns - monotonic_ns()) // NS_PER_MS
        if left_ms <= 0 or not poll.poll(left_ms):
            return f"{_text_of(server.error_message)} timeout expired".strip()
        poll.unregister(descriptor)
        status = server.connect_poll()
        if status == pq.PollingStatus.OK:
            return ""
        wanted = select.POLLIN if status == pq.PollingStatus.READING else select.POLLOUT
    return _text_of(server.error_message) or "unknown error"


def _rows(result: pq.abc.PGresult) -> list[Row]:
    columns = range(result.nfields)
    return [
        tuple(result.get_value(row, column) or b"" for column in columns)
        for row in range(result.ntuples)
    ]


def _text(sql: str) -> bytes:
    return sql.encode()


def _text_of(message: bytes) -> str:
    r"""Return what a server said, as one line of a length that people read.

    >>> _text_of(b"connection to db-1 failed: Connection refused\n\tIs the server running?\n")
    'connection to db-1 failed: Connection refused. Is the server running?'
    """
    lines = [" ".join(each.split()) for each in message.decode(errors="replace").splitlines()]
    whole = [line if line[-1] in _ENDS else f"{line}." for line in lines if line]
    words = " ".join(whole)
    return visible(words.removesuffix(".")[:DATABASE_SAID_CHARACTERS_MAX])
