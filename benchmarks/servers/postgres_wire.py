r"""PostgreSQL's protocol as the generator speaks it: messages that are built once.

Each request is a transaction, and counts when the server is ready for the next one: what it says
before (`INSERT 0 1`) is not yet on disk.

    generator        dialect                                  server
    put 7       -->  Query "INSERT … '0000000007…'"       -->
                <--  Heard(put=1)                        <--  CommandComplete, ReadyForQuery
    take 1      -->  Query "UPDATE … RETURNING id, body"  -->
                <--  Heard(taken=[(7, b"7")])            <--  DataRow, CommandComplete, Ready…
                <--  Heard(empty=1)                      <--  "UPDATE 0", ReadyForQuery

Requests are texts (`is_prepared` false), which the server parses and plans each time, or statements
that it has prepared, with binary values. Source: PostgreSQL's documentation, "Frontend/Backend
Protocol", version 3.0.
"""

import socket
import struct
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from benchmarks.line import UnexpectedReplyError
from benchmarks.servers.peer import NUMBER_DIGITS, Heard, filler

VERSION: Final = 196_608
RECEIVE_BYTES: Final = 65_536
HEAD: Final = struct.Struct(">cI")
ROW: Final = struct.Struct(">HI")
LENGTH: Final = struct.Struct(">I")
TEXT, BINARY = 0, 1
TYPES: Final = {"$1": 23, "$2": 17, "$3": 25}
"""int4, bytea and text, by their numbers in pg_type."""
ID_TYPE: Final = 20
EXAMPLES: Final[Mapping[str, Sequence[str]]] = MappingProxyType(
    {
        "put": ("0", "''"),
        "keyed_put": ("0", "''", "''"),
        "take": (),
        "acknowledge": ("0",),
    }
)
"""Statements with values, which a new connection plans and does not carry out: a process of the
server first has to read catalogues, for some ms, which one that a pool keeps has done long ago."""
DIGITS: Final = b"#" * NUMBER_DIGITS
"""Stands where the number of a job is filled in."""
SILENT: Final = frozenset(b"12nTSNK")
"""What says nothing about a job: parsed, bound, no data, the form of rows, settings, notices."""


def message(kind: bytes, content: bytes) -> bytes:
    """Return a message; its length counts itself."""
    return HEAD.pack(kind, len(content) + LENGTH.size) + content


SYNC: Final = message(b"S", b"")
EXECUTE: Final = message(b"E", b"\0" + LENGTH.pack(0))


def start_up(user: str, options: str) -> bytes:
    """Return the first message of a connection; `options` are flags of the server process."""
    words = ("user", user, "database", user, "options", options, "")
    content = LENGTH.pack(VERSION) + b"".join(word.encode() + b"\0" for word in words)
    return LENGTH.pack(len(content) + LENGTH.size) + content


def prepare(name: str, sql: str) -> bytes:
    """Return what has a statement parsed, under a name."""
    numbers = [number for place, number in TYPES.items() if place in sql]
    if name == "acknowledge":
        numbers = [ID_TYPE]
    types = struct.pack(f">H{len(numbers)}I", len(numbers), *numbers)
    return message(b"P", f"{name}\0{sql}\0".encode() + types)


def execute(name: str, *values: bytes) -> bytes:
    """Return what carries out a prepared statement with binary values, in a transaction."""
    content = [b"\0", name.encode(), b"\0", struct.pack(">HHH", 1, BINARY, len(values))]
    for value in values:
        content += LENGTH.pack(len(value)), value
    content.append(struct.pack(">HH", 1, BINARY))
    return message(b"B", b"".join(content)) + EXECUTE + SYNC


def with_values(sql: str, *values: str) -> str:
    """Return a statement with its values written into it."""
    for place, value in enumerate(values, 1):
        sql = sql.replace(f"${place}", value)
    return sql


def query(sql: str, *values: str) -> bytes:
    """Return what carries out a statement with its values written into it."""
    return message(b"Q", with_values(sql, *values).encode() + b"\0")


def template(request: bytes) -> bytes:
    """Return it with `%010d` where `DIGITS` stood."""
    return request.replace(b"%", b"%%").replace(DIGITS, b"%010d")


class PostgresDialect:
    """One connection; `statements` are those of postgres.sql."""

    answers_acknowledgements = True

    def __init__(
        self, body_bytes: int, statements: Mapping[str, str], start: bytes, *, is_prepared: bool
    ) -> None:
        self._statements = statements
        self._start = start
        self._is_prepared = is_prepared
        self._body = DIGITS + filler(body_bytes - NUMBER_DIGITS)
        self._templates: dict[tuple[str, int], bytes] = {}
        take = statements["take"]
        self._take = execute("take") if is_prepared else query(take)
        self._tail = b""
        self._said = b""
        """What the transaction that is not over yet has done."""
        self._row = (0, b"")

    def greet(self, sock: socket.socket) -> None:
        """Log in, and have the statements planned or prepared."""
        sock.sendall(self._start)
        self._wait_until_ready(sock)
        for name, values in EXAMPLES.items():
            sock.sendall(query("EXPLAIN " + self._statements[name], *values))
            self._wait_until_ready(sock)
        if self._is_prepared:
            parsed = (prepare(name, self._statements[name]) for name in EXAMPLES)
            sock.sendall(b"".join(parsed) + SYNC)
            self._wait_until_ready(sock)

    def _wait_until_ready(self, sock: socket.socket) -> None:
        received = b""
        while not received.endswith(message(b"Z", b"I")):
            more = sock.recv(RECEIVE_BYTES)
            if not more:
                raise ConnectionError(f"closed; before it said {received[-200:]!r}")
            received += more
        if b"FATAL" in received or b"ERROR" in received:
            raise UnexpectedReplyError(f"{received[-200:]!r}")

    def puts(self, first: int, count: int, delay_ms: int) -> bytes:
        """Return so many inserts."""
        numbers = range(first, first + count)
        return self._insert("put", delay_ms) * count % tuple(numbers)

    def keyed_puts(self, first: int, count: int, delay_ms: int) -> bytes:
        """Return so many inserts under a key each, which a second one would update."""
        twice = tuple(number for number in range(first, first + count) for _ in range(2))
        return self._insert("keyed_put", delay_ms) * count % twice

    def _insert(self, name: str, delay_ms: int) -> bytes:
        found = self._templates.get((name, delay_ms))
        if found is None:
            key = (b"order-" + DIGITS,) if name == "keyed_put" else ()
            if self._is_prepared:
                request = execute(name, LENGTH.pack(delay_ms), self._body, *key)
            else:
                texts = (f"'{value.decode()}'" for value in (self._body, *key))
                request = query(self._statements[name], str(delay_ms), *texts)
            found = self._templates[name, delay_ms] = template(request)
        return found

    def takes(self, count: int) -> bytes:
        """Return so many updates, each of one job."""
        return self._take * count

    def acknowledgements(self, handles: Sequence[bytes]) -> bytes:
        """Return a delete for each."""
        if self._is_prepared:
            return b"".join([execute("acknowledge", handle) for handle in handles])
        sql = self._statements["acknowledge"]
        return b"".join([query(sql, handle.decode()) for handle in handles])

    def hear(self, data: bytes) -> Heard:
        """Return what arrived says; raise `UnexpectedReplyError` if it is an error."""
        if self._tail:
            data = self._tail + data
        heard = Heard()
        at, whole = 0, len(data)
        while whole - at >= HEAD.size:
            kind, length = HEAD.unpack_from(data, at)
            end = at + 1 + length
            if end > whole:
                break
            if kind == b"C":
                self._said = data[at + HEAD.size : end - 1]
            elif kind == b"D":
                self._row = self._read_row(data[at + HEAD.size : end])
            elif kind == b"Z":
                self._count(heard)
            elif kind[0] not in SILENT:
                raise UnexpectedReplyError(f"{data[at:end][:200]!r}")
            at = end
        self._tail = data[at:]
        return heard

    def _read_row(self, row: bytes) -> tuple[int, bytes]:
        """Return the number of a job and its id, of a row with its id and its body."""
        _, id_bytes = ROW.unpack_from(row)
        id_end = ROW.size + id_bytes
        body = row[id_end + LENGTH.size :]
        if self._is_prepared:
            number = body[:NUMBER_DIGITS]
        else:  # "\x30303030…"
            number = bytes.fromhex(body[2 : 2 + 2 * NUMBER_DIGITS].decode())
        return int(number), row[ROW.size : id_end]

    def _count(self, heard: Heard) -> None:
        """Count what the transaction that is over has done."""
        said = self._said
        if said == b"INSERT 0 1":
            heard.put += 1
        elif said == b"UPDATE 1":
            heard.taken.append(self._row)
        elif said == b"DELETE 1":
            heard.acknowledged += 1
        elif said == b"UPDATE 0":
            heard.empty += 1
        else:
            raise UnexpectedReplyError(f"a transaction did {said!r}")
        self._said = b""
