"""The outbox in SQLite. It notifies nobody, so it is asked every POLL_S whether it has changed.

Several relays on one file do each other's work twice and no harm: `permits`.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from delayd.outbox.schema import TABLE
from delayd.outbox.stop import StopSignal
from delayd.outbox.table import Dialect, Run, TableAway, TableUnfit

POLL_S: Final = 0.1
"""How often `PRAGMA data_version` is asked, which reads no page."""
BUSY_S: Final = 5.0
"""How long others may hold the file."""
OLDEST: Final = (3, 35, 0)
"""The first that has RETURNING."""


class SqliteOutbox:
    """A connection to a file."""

    dialect: Final = Dialect(
        mark="?",
        texts="json_each(?)",
        pairs="json_each(?) AS given",
        age_ms="(julianday('now') - julianday(put_at)) * 86400000",
        put_at="put_at",
    )

    def __init__(self, path: str) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._version = -1
        if sqlite3.sqlite_version_info < OLDEST:
            newer = ".".join(map(str, OLDEST))
            raise TableUnfit(f"SQLite {sqlite3.sqlite_version} is too old: {newer} is needed")

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            if not Path(self._path).is_file():
                raise TableUnfit(f"there is no file {self._path!r}")
            connection = sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None)
            # Text that is no UTF-8 fails its row, and not all of them.
            connection.text_factory = lambda text: text.decode(errors="replace")
            # A decision has to be on the disk before the job is put.
            connection.execute("PRAGMA synchronous = FULL")
            self._connection = connection
        return self._connection

    @contextmanager
    def transaction(self) -> Iterator[Run]:
        """Commit what is done within."""
        try:
            connection = self._connected()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield lambda sql, *values: self._run(connection, sql, values)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            self.close()
            if "no such" in str(error):
                raise TableUnfit(
                    f"{self._path} has no table {TABLE} as this version knows it: {error};"
                    " delayd relay --schema sqlite prints it"
                ) from error
            if isinstance(error, sqlite3.OperationalError):
                raise TableAway(f"{self._path}: {error}") from error
            raise TableUnfit(f"{self._path} cannot be used: {error}") from error

    @staticmethod
    def _run(
        connection: sqlite3.Connection, sql: str, values: tuple[Any, ...]
    ) -> list[tuple[Any, ...]]:
        return connection.execute(sql, values).fetchall()

    def leads(self) -> bool:
        """Return True: nothing keeps others away."""
        return True

    def wait(self, stop: StopSignal, seconds: float) -> None:
        """Wait until another connection has committed something."""
        try:
            (version,) = self._connected().execute("PRAGMA data_version").fetchone()
        except sqlite3.Error as error:
            self.close()
            raise TableAway(f"{self._path}: {error}") from error
        if version == self._version:
            stop.wait(min(POLL_S, seconds))
        self._version = version

    def close(self) -> None:
        """Close the file."""
        connection, self._connection = self._connection, None
        self._version = -1
        if connection is not None:
            connection.close()
