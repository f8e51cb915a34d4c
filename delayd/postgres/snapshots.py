"""Snapshots in the database: the bytes of a snapshot file, cut into parts of a MiB.

    begin ─► the other table emptied ─► parts ─► the row of the log names it ─► frame tables emptied

Until the row names it, it does not exist, and the one before is whole. All of it happens in a
thread with a connection of its own, in statements that only the owner of the log succeeds with.
"""

import threading
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Protocol, final
from zlib import crc32

from delayd.journal.snapshot import (
    SNAPSHOT_HEADER_BYTES,
    SUMMARY,
    Damage,
    SnapshotHeader,
    SnapshotKind,
    deflated,
    pack_snapshot_frame,
    pack_snapshot_header,
    payloads_in,
    snapshot_mark,
    unpack_snapshot_header,
)
from delayd.limits import (
    DATABASE_ANSWER_MS,
    DATABASE_CLEAR_MS,
    DATABASE_CLEAR_TRIES,
    DATABASE_FULL_SNAPSHOT_BYTES_MAX,
    DATABASE_PART_BYTES,
    DATABASE_TRUNCATE_MS,
)
from delayd.postgres.connection import Row, Value, whole
from delayd.postgres.errors import (
    FULL,
    DatabaseError,
    Fenced,
    SnapshotGivenUp,
    StatementFailed,
)
from delayd.postgres.statements import SNAPSHOT_TABLES, Statements
from delayd.text import counted

_WAIT_S: Final = 0.01


class PostgresSnapshot(NamedTuple):
    """A finished snapshot."""

    where: str
    sequence: int
    jobs: int
    stored_bytes: int

    def __str__(self) -> str:
        """Say it as the log does."""
        jobs = counted(self.jobs, "job")
        return f"{self.where}: {jobs} up to frame {self.sequence}, {self.stored_bytes} bytes"


class PartsConnection(Protocol):
    """What a snapshot asks of its connection; see `Connection`."""

    def run(self, sql: str, within_ms: int) -> None:
        """Have statements carried out. Raises DatabaseLost and StatementFailed."""

    def ask(self, sql: str, *values: Value, within_ms: int) -> list[Row]:
        """Return the rows of a statement. Raises DatabaseLost and StatementFailed."""

    def close(self) -> None:
        """Give it back."""


class SnapshotOwner(Protocol):
    """The log that a snapshot is of."""

    @property
    def durable_sequence(self) -> int:
        """The last frame that is durable."""

    @property
    def is_over(self) -> bool:
        """Whether nothing becomes durable any more."""

    @property
    def is_full(self) -> bool:
        """Whether the database has no space but that of the reserve, for removals."""

    def covered(self, connection: PartsConnection, sequence: int) -> None:
        """Empty the tables of frames up to this one; in the thread. Raises DatabaseError."""


@final
class PartsWriter:
    """One snapshot in the making; see `delayd.log.SnapshotSink`."""

    def __init__(
        self,
        owner: SnapshotOwner,
        connect: Callable[[], PartsConnection],
        statements: Statements,
        *,
        proof: tuple[int, bytes],
        header: SnapshotHeader,
        where: str,
    ) -> None:
        """`proof` is epoch and owner. Nothing is touched before `write`."""
        self._owner = owner
        self._connect = connect
        self._statements = statements
        self._proof = proof
        self._round = 0  # as the log counts those that were begun
        self._header = header
        self._where = where
        self._mark = snapshot_mark(header.identity, header.sequence)
        self._connection: PartsConnection | None = None
        self._gathered = bytearray()
        self._parts = self._frames = self._payload_bytes = self._running = 0
        self.stored_bytes = 0
        self.is_wanted = True
        self.is_over = False

    @property
    def accepted_round(self) -> int:
        """What the row of the log has when it names this one."""
        return self._round + 1

    @property
    def table(self) -> int:
        """The table that it is written into; the snapshot before is in the other one."""
        return self.accepted_round % SNAPSHOT_TABLES

    @property
    def time_ms(self) -> int:
        """Delayd time of the state that it holds."""
        return self._header.time_ms

    def write(self, payload: bytes) -> None:
        """Add records; they come back in this order."""
        try:
            if not self.is_wanted:
                raise SnapshotGivenUp(f"{self._where}: it is not wanted any more")
            if self._owner.is_full and self.stored_bytes > DATABASE_FULL_SNAPSHOT_BYTES_MAX:
                raise SnapshotGivenUp(f"{self._where}: the database has no space for it")
            connection = self._begun()
            kind, stored = deflated(payload)
            self._add(self._packed(kind, stored, len(payload)))
            self._payload_bytes += len(payload)
            while len(self._gathered) >= DATABASE_PART_BYTES:
                self._write_part(connection)
        except DatabaseError as error:
            raise self._given_up(error) from error

    def finish(self, jobs: int) -> PostgresSnapshot:
        """Have the row of the log name it, once the log is durable up to its frame."""
        try:
            connection = self._begun()
            summary = SUMMARY.pack(jobs, self._payload_bytes, self._running)
            self._add(self._packed(SnapshotKind.CLOSING, summary, 0))
            while self._gathered:
                self._write_part(connection)
            self._wait_for_log()
            sequence = self._header.sequence
            self._changed(connection, self._statements.accept, sequence, self.stored_bytes)
            self._owner.covered(connection, sequence)
        except DatabaseError as error:
            raise self._given_up(error) from error
        self.abandon()
        return PostgresSnapshot(self._where, sequence, jobs, self.stored_bytes)

    def abandon(self) -> None:
        """Give it up: what was written is overwritten by the next one."""
        self.is_over = True
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _begun(self) -> PartsConnection:
        """Return the connection; the first time the table is emptied and the header is written."""
        if self._connection is None:
            self._connection = connection = self._connect()
            connection.run(f"SET lock_timeout = {DATABASE_TRUNCATE_MS}", DATABASE_ANSWER_MS)
            begin = self._statements.begin_snapshot
            rows = connection.ask(begin, *self._proof, within_ms=DATABASE_ANSWER_MS)
            if not rows:
                raise self._fenced()
            self._round = whole(rows[0][0])
            self._empty(connection)
            self._add(pack_snapshot_header(self._header))
        return self._connection

    def _empty(self, connection: PartsConnection) -> None:
        empty = self._statements.empty_snapshot(self.table, *self._proof, self._round)
        connection.run(empty, DATABASE_ANSWER_MS)

    def _packed(self, kind: SnapshotKind, stored: bytes, payload_bytes: int) -> bytes:
        self._frames += 1
        return pack_snapshot_frame(self._mark, kind, self._frames, stored, payload_bytes)

    def _add(self, data: bytes) -> None:
        self._gathered += data
        self._running = crc32(data, self._running)
        self.stored_bytes += len(data)

    def _write_part(self, connection: PartsConnection) -> None:
        part = bytes(self._gathered[:DATABASE_PART_BYTES])
        del self._gathered[:DATABASE_PART_BYTES]
        write = self._statements.write_part(self.table)
        self._changed(connection, write, self._parts, self._header.sequence, part)
        self._parts += 1

    def _changed(self, connection: PartsConnection, sql: str, *values: Value) -> None:
        """Have something changed that is this snapshot's. Raises DatabaseError."""
        proof = (*self._proof, self._round)
        if not connection.ask(sql, *proof, *values, within_ms=DATABASE_ANSWER_MS):
            raise self._fenced()

    def _fenced(self) -> Fenced:
        return Fenced(f"{self._where}: another daemon owns the log, or has begun another one")

    def _wait_for_log(self) -> None:
        """Wait until the frames that it covers are durable."""
        pause = threading.Event()
        while self._owner.durable_sequence < self._header.sequence:
            if self._owner.is_over or not self.is_wanted:
                raise SnapshotGivenUp(f"{self._where}: the log has ended")
            pause.wait(_WAIT_S)

    def _given_up(self, error: DatabaseError) -> DatabaseError:
        """Return what to raise: the log itself finds out what else is wrong, and what to do."""
        connection = self._connection
        if connection is not None and self._is_for_space(error):
            self._clear(connection)
        self.abandon()
        return SnapshotGivenUp(f"the snapshot was given up: {error}")

    def _is_for_space(self, error: DatabaseError) -> bool:
        """Tell whether it was given up because the database is full."""
        return self._owner.is_full or (isinstance(error, StatementFailed) and error.state == FULL)

    def _clear(self, connection: PartsConnection) -> None:
        """Give back the space of what was written, which removals need.

        To empty a table with an index takes a few pages itself: the reserve's, once it is released.
        """
        pause = threading.Event()
        for _ in range(DATABASE_CLEAR_TRIES):
            try:
                self._empty(connection)
            except StatementFailed as error:
                if error.state != FULL:
                    return
            except DatabaseError:
                return
            else:
                return
            pause.wait(DATABASE_CLEAR_MS / 1_000)


def payloads_of(
    parts: Iterator[Row], size_bytes: int, where: str
) -> tuple[SnapshotHeader, Iterator[bytes]]:
    """Return the header and the payloads of a snapshot that is read part by part. Raises Damage."""
    buffer = bytearray(next(parts, (b"",))[0])
    header = unpack_snapshot_header(bytes(buffer[:SNAPSHOT_HEADER_BYTES]))
    if header is None:
        raise Damage(where, 0, "the header is missing or damaged")
    return header, _payloads(parts, buffer, size_bytes, where)


def _payloads(
    parts: Iterator[Row], buffer: bytearray, size_bytes: int, where: str
) -> Iterator[bytes]:

    def read(length: int, _offset: int) -> bytes:
        while len(buffer) < length:
            row = next(parts, None)
            if row is None:
                break
            buffer.extend(row[0])
        data = bytes(buffer[:length])
        del buffer[:length]
        return data

    yield from payloads_in(read, size_bytes, where)
    if buffer or next(parts, None) is not None:
        raise Damage(where, size_bytes, "more follows the closing frame")
