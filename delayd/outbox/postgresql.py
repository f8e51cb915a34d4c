"""The outbox in PostgreSQL: woken by NOTIFY, and one relay at a time, by an advisory lock.

The lock keeps the order of rows, and nothing else hangs on it: where it is lost with its session
and another relay begins, both are right (`permits`).
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict

from delayd.outbox.schema import CHANNEL, TABLE
from delayd.outbox.stop import StopSignal
from delayd.outbox.table import Dialect, Run, TableAway, TableUnfit

OLDEST: Final = 130000
"""PostgreSQL 13, the first that has gen_random_uuid()."""
SETTINGS: Final = {
    "application_name": "delayd relay",
    "client_encoding": "utf8",
    "connect_timeout": "10",
    "target_session_attrs": "read-write",  # of several hosts the one that is no standby
    # A server that is gone without a word is noticed within half a minute.
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
"""Where the url says nothing else."""
ON_INSERT: Final = 4
"""The bit of a trigger for INSERT: TRIGGER_TYPE_INSERT of PostgreSQL's pg_trigger.h."""
_TRY_LOCK: Final = f"""SELECT pg_try_advisory_lock(
    {0x64656C61}, mod('{TABLE}'::regclass::oid::bigint, {1 << 31})::int)"""
"""The first number of the lock is ours, and the second the table's."""
_UNFIT: Final = (
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedColumn,
    psycopg.errors.UndefinedFunction,
    psycopg.errors.InsufficientPrivilege,
)
_NOT_BY_TRYING: Final = re.compile(
    r"authentication failed|no password supplied|does not exist|invalid (connection|integer|port)"
    r"|not permitted to log in|permission denied for database"
)


class PostgresqlOutbox:
    """A connection to a server."""

    dialect: Final = Dialect(
        mark="%s",
        texts="json_array_elements_text(%s::json) AS given(value)",
        pairs="json_each_text(%s::json) AS given(key, value)",
        age_ms="extract(epoch FROM clock_timestamp() - put_at)::float8 * 1000",
        put_at="to_char(put_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"')",
        notify=f"SELECT pg_notify('{CHANNEL}', '')",
        wakes=f"""SELECT EXISTS (
            SELECT FROM pg_trigger WHERE tgrelid = '{TABLE}'::regclass AND NOT tgisinternal
                AND tgtype & {ON_INSERT} <> 0 AND tgenabled IN ('O', 'A'))""",
    )

    def __init__(self, url: str) -> None:
        try:
            parameters = conninfo_to_dict(url)
        except psycopg.Error:  # which shows parts of it, maybe of a password
            raise TableUnfit(
                "PostgreSQL cannot read the url of the database: see its %-escapes, and the names"
                " of settings behind the ?"
            ) from None
        self._settings: dict[str, Any] = {**SETTINGS, **parameters}
        self._connection: psycopg.Connection[Any] | None = None
        self._leads = False
        self._was_notified = False

    def _connected(self) -> psycopg.Connection[Any]:
        if self._connection is None:
            connection = psycopg.connect(**self._settings, autocommit=True)
            self._connection = connection
            self._was_notified = True  # whatever was committed before it listens
            if connection.info.server_version < OLDEST:
                raise TableUnfit("the server is too old: PostgreSQL 13 is needed")
            connection.add_notify_handler(self._notified)
            connection.execute(f"LISTEN {CHANNEL}")
            # A decision has to be on the disk before the job is put.
            (how,) = connection.execute("SHOW synchronous_commit").fetchone() or ("",)
            if how == "off":
                connection.execute("SET synchronous_commit = on")
        return self._connection

    def _notified(self, _notify: psycopg.Notify) -> None:
        self._was_notified = True

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            self.close()
            if isinstance(error, _UNFIT):
                raise TableUnfit(
                    f"the table {TABLE} is not there as this version knows it: {_line(error)};"
                    " delayd relay --schema postgresql prints it"
                ) from error
            if _NOT_BY_TRYING.search(str(error)):
                raise TableUnfit(_line(error)) from error
            raise TableAway(_line(error)) from error

    @contextmanager
    def transaction(self) -> Iterator[Run]:
        """Commit what is done within."""
        with self._errors():
            connection = self._connected()
            with connection.transaction():
                yield lambda sql, *values: self._run(connection, sql, values)

    @staticmethod
    def _run(
        connection: psycopg.Connection[Any], sql: str, values: tuple[Any, ...]
    ) -> list[tuple[Any, ...]]:
        cursor = connection.execute(sql, values or None, binary=True)
        return cursor.fetchall() if cursor.description else []

    def leads(self) -> bool:
        """Tell whether this relay has the lock; it is tried for again at each call."""
        with self._errors():
            connection = self._connected()
            if not self._leads:
                (self._leads,) = connection.execute(_TRY_LOCK).fetchone() or (False,)
            return self._leads

    def wait(self, stop: StopSignal, seconds: float) -> None:
        """Wait until somebody has committed a row, or so long; then see that the server answers."""
        with self._errors():
            connection = self._connected()
            if not self._was_notified:
                if stop.wait(seconds, connection):
                    connection.pgconn.consume_input()
                    while connection.pgconn.notifies() is not None:
                        pass
                elif not stop.is_wanted:
                    connection.execute("SELECT 1")
            self._was_notified = False

    def close(self) -> None:
        """Close the connection, which gives the lock back."""
        connection, self._connection = self._connection, None
        self._leads = False
        if connection is not None:
            connection.close()


def _line(error: Exception) -> str:
    """Return the first line of what the server or libpq says."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
