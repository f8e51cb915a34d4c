"""The table as the relay uses it: what is waiting, what was decided, what is done.

    take      settle what is done, and read the next rows, in one transaction
    bind      write down with which permit each row is put, once and for all
    settle    delete the rows that were put, and note why others cannot be

The statements are the same for each `Database`, but for a few words of its dialect. Lists go as one
value, of JSON.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from hashlib import sha256
from typing import Any, Final, NamedTuple, Protocol

from delayd.outbox.schema import TABLE
from delayd.outbox.stop import StopSignal

ROWS_MAX: Final = 1_000
"""So many rows are read at once: as many jobs as one request may put."""
BATCH_BYTES: Final = 1 << 20
"""About so much of bodies and options is read at once, or one row, so that memory stays fixed."""
BODY_BYTES_MAX: Final = 64 << 20
"""A longer body is not read, and its row has an error instead."""
OPTIONS_BYTES_MAX: Final = 128 << 10
"""The same for options; the daemon takes no more beside a body."""
ERROR_CHARACTERS_MAX: Final = 500
FAILED_MAX: Final = 1_000
"""So many failed rows are listed at once."""

Run = Callable[..., list[tuple[Any, ...]]]
"""Carries out a statement with its values, within a transaction; returns the rows."""


class TableAway(Exception):
    """The database does not answer now."""


class TableUnfit(Exception):
    """The database or its table cannot be used as it is; trying again changes nothing."""


class OutboxRow(NamedTuple):
    """A row that waits."""

    id: int
    uid: str
    topic: str
    body: bytes | None
    """None: it is too long, and was not read."""
    body_bytes: int
    options: str | None
    """JSON; None: as for the body."""
    permit: str | None
    """None: nothing is decided."""
    age_ms: float
    """How long it has waited, by the clock of the database."""

    @property
    def key(self) -> str:
        """Its name for ever, also where the database was copied."""
        return key_of(self.id, self.uid)


def key_of(row_id: int, uid: str) -> str:
    """Return the key of a row, which any `uid` makes a good one.

    >>> key_of(17, "0a1b"), len(key_of(17, "white space"))
    ('17.0a1b', 67)
    """
    is_plain = re.fullmatch("[!-~]{1,100}", uid) is not None
    return f"{row_id}.{uid if is_plain else sha256(uid.encode(errors='replace')).hexdigest()}"


class Settled(NamedTuple):
    """What has become of rows that were taken, and is still to be written down."""

    done: Collection[int] = ()
    failed: Mapping[int, str] = {}
    """Why these cannot be put."""
    undecided: Collection[int] = ()
    """Those of the failed ones that are put with another permit if they are tried again."""


class FailedRow(NamedTuple):
    """A row that cannot be put."""

    id: int
    topic: str
    put_at: str
    error: str


class Dialect(NamedTuple):
    """Where databases differ."""

    mark: str
    texts: str
    """The values of a JSON array, as texts."""
    pairs: str
    """The members of a JSON object, as `given.key` and `given.value`."""
    age_ms: str
    put_at: str
    notify: str = ""
    """Wakes the relay; empty where it finds out by itself."""
    wakes: str = ""
    """Tells whether a put does so, in one row; empty too where the relay finds out by itself."""


class Database(Protocol):
    """A connection that is made anew when it was lost."""

    @property
    def dialect(self) -> Dialect:
        """Where it differs."""

    def transaction(self) -> AbstractContextManager[Run]:
        """Commit what is done within; durable when it has ended. TableAway, TableUnfit."""

    def leads(self) -> bool:
        """Tell whether no other relay is at work on the table. TableAway."""

    def wait(self, stop: StopSignal, seconds: float) -> None:
        """Wait until rows may have come, or so long. TableAway."""

    def close(self) -> None:
        """Give back the connection."""


class Table:
    """The table in a database."""

    def __init__(self, database: Database) -> None:
        self.database = database
        dialect = database.dialect
        self._mark, self._dialect = dialect.mark, dialect
        self._of_ids = f"{TABLE}.id IN (SELECT CAST(value AS bigint) FROM {dialect.texts})"

    def check(self) -> None:
        """See that the table is there and as this version knows it. TableUnfit, TableAway."""
        with self.database.transaction() as run:
            run(f"SELECT id, uid, topic, body, options, put_at, permit, error FROM {TABLE} LIMIT 0")

    def is_woken(self) -> bool:
        """Tell whether a put wakes the relay, or it finds out by itself. TableUnfit, TableAway."""
        if not self._dialect.wakes:
            return True
        with self.database.transaction() as run:
            return bool(run(self._dialect.wakes)[0][0])

    def take(self, settled: Settled, resting: Collection[str]) -> list[OutboxRow]:
        """Settle, and return the next rows, in their order; none of the topics that rest."""
        waiting = f"""
            SELECT id, uid, topic, CASE WHEN body_bytes <= {BODY_BYTES_MAX} THEN body END,
                   body_bytes, CASE WHEN length(options) <= {OPTIONS_BYTES_MAX} THEN options END,
                   permit, {self._dialect.age_ms}
            FROM (SELECT *, length(body) AS body_bytes,
                         sum(length(body) + length(options)) OVER (ORDER BY id) AS total
                  FROM (SELECT * FROM {TABLE}
                        WHERE error IS NULL
                              AND topic NOT IN (SELECT value FROM {self._dialect.texts})
                        ORDER BY id LIMIT {ROWS_MAX}) AS first) AS waiting
            WHERE total - body_bytes - length(options) < {BATCH_BYTES}
            ORDER BY id"""
        with self.database.transaction() as run:
            self._settle(run, settled)
            return [_row(*values) for values in run(waiting, json.dumps([*resting]))]

    def bind(self, permits: Mapping[int, str]) -> dict[int, str]:
        """Decide with which permit each row is put; return what is decided, of rows still there.

        The first decision stands, whichever relay has made it.
        """
        sql = f"""
            UPDATE {TABLE} SET permit = coalesce(permit, given.value) FROM {self._dialect.pairs}
            WHERE {TABLE}.id = CAST(given.key AS bigint)
            RETURNING {TABLE}.id, {TABLE}.permit"""
        with self.database.transaction() as run:
            return {row_id: str(permit) for row_id, permit in run(sql, json.dumps(permits))}

    def settle(self, settled: Settled) -> None:
        """Delete what was put, and note what cannot be."""
        with self.database.transaction() as run:
            self._settle(run, settled)

    def _settle(self, run: Run, settled: Settled) -> None:
        if settled.done:
            run(f"DELETE FROM {TABLE} WHERE {self._of_ids}", json.dumps([*settled.done]))
        if settled.failed:
            errors = {row_id: _shown(error) for row_id, error in settled.failed.items()}
            sql = f"""
                UPDATE {TABLE} SET error = given.value FROM {self._dialect.pairs}
                WHERE {TABLE}.id = CAST(given.key AS bigint)"""
            run(sql, json.dumps(errors))
        if settled.undecided:
            sql = f"UPDATE {TABLE} SET permit = NULL WHERE {self._of_ids}"
            run(sql, json.dumps([*settled.undecided]))

    # --- Rows that failed ------------------------------------------------------------------------

    def failed(self) -> list[FailedRow]:
        """Return the rows that cannot be put, the oldest first, FAILED_MAX and one more."""
        sql = f"""SELECT id, topic, {self._dialect.put_at}, error FROM {TABLE}
                  WHERE error IS NOT NULL ORDER BY id LIMIT {FAILED_MAX + 1}"""
        with self.database.transaction() as run:
            return [FailedRow(*values) for values in run(sql)]

    def retry(self, row_id: int | None) -> int:
        """Have a failed row tried again, or all of them; return how many."""
        which, values = self._failed(row_id)
        sql = f"UPDATE {TABLE} SET error = NULL {which} RETURNING id"
        with self.database.transaction() as run:
            rows = run(sql, *values)
            if self._dialect.notify:
                run(self._dialect.notify)
        return len(rows)

    def drop(self, row_id: int) -> str | None:
        """Delete a failed row; return its key in the relay's topic, None without such a row."""
        which, values = self._failed(row_id)
        with self.database.transaction() as run:
            rows = run(f"DELETE FROM {TABLE} {which} RETURNING id, uid", *values)
        return key_of(int(rows[0][0]), str(rows[0][1])) if rows else None

    def _failed(self, row_id: int | None) -> tuple[str, tuple[int, ...]]:
        which = "WHERE error IS NOT NULL"
        return (which, ()) if row_id is None else (f"{which} AND id = {self._mark}", (row_id,))


def _row(
    row_id: int,
    uid: object,
    topic: object,
    body: object,
    body_bytes: int,
    options: object,
    permit: str | None,
    age_ms: float,
) -> OutboxRow:
    """Return a row; SQLite may have text where bytes were meant, and numbers for texts."""
    if isinstance(body, str):
        body = body.encode()
    return OutboxRow(
        row_id,
        str(uid),
        str(topic),
        None if body is None else bytes(body),  # type: ignore[call-overload]
        body_bytes,
        None if options is None else str(options),
        permit,
        float(age_ms or 0),
    )


def _shown(error: str) -> str:
    """Return an error as every database keeps it."""
    return error.replace("\0", "")[:ERROR_CHARACTERS_MAX]


def batches(values: list[OutboxRow]) -> Iterator[tuple[str, list[OutboxRow]]]:
    """Yield the rows of each topic, in their order."""
    by_topic: dict[str, list[OutboxRow]] = {}
    for row in values:
        by_topic.setdefault(row.topic, []).append(row)
    yield from by_topic.items()
