"""A log in PostgreSQL as the source or the target of a copied log (`delayd.log_copy`).

A target is made in one transaction: its tables, the snapshot, and the row that names it. So there
is no half copy, whenever and however the copy ends.
"""

import contextlib
from collections.abc import Callable, Iterator

from delayd.clock import system_wall_ns
from delayd.journal.format import Frame
from delayd.journal.snapshot import Damage, SnapshotHeader
from delayd.limits import DATABASE_ANSWER_MS, JOURNAL_SEGMENT_BYTES_MIN
from delayd.log_lines import Log
from delayd.postgres.connection import Connection, Row, Value, whole
from delayd.postgres.errors import DatabaseCorrupt, DatabaseLost, DatabaseUnfit
from delayd.postgres.place import DatabasePlace, closed_after_error
from delayd.postgres.postgres_log import PostgresLog
from delayd.postgres.rows import LogRow
from delayd.postgres.snapshots import PartsWriter, payloads_of
from delayd.postgres.statements import Statements

_NOBODY = (0, b"")
"""Epoch and owner of a log that no daemon has owned yet."""


class DatabaseSource:
    """A log in a database, which is only read."""

    def __init__(self, place: DatabasePlace, news: Log, *, may_be_owned: bool = False) -> None:
        """`may_be_owned`: what is there at this moment is read, although a daemon goes on."""
        self.shown, self.name = place.shown, place.name
        self._may_be_owned = may_be_owned
        statements = Statements(place.name)
        connection = place.connected()
        with closed_after_error(connection):
            if not _has_tables(connection, statements):
                raise DatabaseUnfit(f"there is no log called {place.name} in {place.shown}")
            self.wall_ahead_ns = _wall_ahead_ns(connection, statements)
            self._log = PostgresLog(
                place, statements, connection, news, segment_bytes=JOURNAL_SEGMENT_BYTES_MIN
            )
        self.identity = self._log.identity
        self._place = place
        self._statements = statements

    def frames(self) -> Iterator[Frame]:
        for frame in self._log.follow():
            if frame is None and self._may_be_owned:
                return
            if frame is None:
                rule = "stop it before its log is copied"
                raise DatabaseUnfit(f"{self._log.owner} owns the log in {self.shown}: {rule}")
            yield frame

    def confirm(self) -> None:
        if self._may_be_owned:
            return
        with contextlib.closing(self._place.connected()) as connection:
            rows = connection.ask(self._statements.epoch, within_ms=DATABASE_ANSWER_MS)
        if whole(rows[0][0]) != self.row.epoch:
            raise DatabaseUnfit(f"a daemon has owned the log in {self.shown} meanwhile")

    @property
    def row(self) -> LogRow:
        """The row of the log; when its frames have been read, of that moment or later."""
        return self._log.row

    def close(self) -> None:
        self._log.close()


class DatabaseTarget:
    """A database without a log of this name."""

    def __init__(self, place: DatabasePlace) -> None:
        self.shown = place.shown
        self._place = place
        self._statements = Statements(place.name)
        self._connection = place.connected()
        with closed_after_error(self._connection):
            self.wall_ahead_ns = _wall_ahead_ns(self._connection, self._statements)

    @contextlib.contextmanager
    def filled(
        self, header: SnapshotHeader, payloads: Iterator[bytes], jobs: Callable[[], int]
    ) -> Iterator[Iterator[Frame]]:
        connection = self._connection
        with contextlib.closing(connection):
            self._place.begin(connection)
            if _has_tables(connection, self._statements):
                rule = "copy to another name, or drop its schema"
                raise DatabaseUnfit(f"{self.shown} has a log called {self._place.name}: {rule}")
            self._place.create(connection, self._statements, header.identity, header.sequence)
            writer = self._writer(header)
            for payload in payloads:
                writer.write(payload)
            writer.finish(jobs())
            yield self._read_again(header, writer)
            try:
                connection.run("COMMIT", DATABASE_ANSWER_MS)
            except DatabaseLost as error:
                rule = "the copy may be there, and whole: look with `delayd journal check`"
                raise DatabaseLost(f"{error}; {rule}") from None

    def _writer(self, header: SnapshotHeader) -> PartsWriter:
        return PartsWriter(
            _Whole(header.sequence),
            lambda: _Kept(self._connection),
            self._statements,
            proof=_NOBODY,
            header=header,
            where=f"{self.shown}: the copy",
        )

    def _read_again(self, header: SnapshotHeader, writer: PartsWriter) -> Iterator[Frame]:
        parts = self._connection.stream(
            self._statements.parts(writer.table), header.sequence, within_ms=DATABASE_ANSWER_MS
        )
        try:
            header, payloads = payloads_of(parts, writer.stored_bytes, f"{self.shown}: the copy")
            for payload in payloads:
                yield Frame(header.sequence, header.time_ms, header.wall_ms, payload)
        except Damage as error:
            raise DatabaseCorrupt(str(error)) from None


class _Whole:
    """What a snapshot asks of its log, where all frames are durable."""

    is_over = is_full = False

    def __init__(self, sequence: int) -> None:
        self.durable_sequence = sequence

    def covered(self, connection: object, sequence: int) -> None:
        """There are no frames that it covers."""


class _Kept:
    """A connection for a snapshot that is part of a transaction: it does not end with it."""

    def __init__(self, connection: Connection) -> None:
        self.run = connection.run
        self._ask = connection.ask

    def ask(self, sql: str, *values: Value, within_ms: int) -> list[Row]:
        return self._ask(sql, *values, within_ms=within_ms)

    def close(self) -> None:
        """Stay open."""


def _has_tables(connection: Connection, statements: Statements) -> bool:
    return bool(whole(connection.ask(statements.has_tables, within_ms=DATABASE_ANSWER_MS)[0][0]))


def _wall_ahead_ns(connection: Connection, statements: Statements) -> tuple[int, int]:
    before_ns = system_wall_ns()
    rows = connection.ask(statements.now, within_ms=DATABASE_ANSWER_MS)
    after_ns, now_us = system_wall_ns(), whole(rows[0][0])
    return now_us * 1_000 - after_ns, (now_us + 1) * 1_000 - before_ns
