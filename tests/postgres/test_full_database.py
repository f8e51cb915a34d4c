"""What a full database has space for; `test_real_two_machines` has one on a small disk."""

from collections import deque
from typing import TYPE_CHECKING, cast
from unittest import mock

import pytest

from delayd.core.errors import OutOfSpace
from delayd.core.log_space import LogSpace
from delayd.journal.snapshot import SnapshotHeader, SnapshotKind
from delayd.limits import DATABASE_CLEAR_TRIES, DATABASE_FULL_SNAPSHOT_BYTES_MAX
from delayd.postgres import snapshots
from delayd.postgres.errors import FULL, SnapshotGivenUp, StatementFailed
from delayd.postgres.snapshots import PartsWriter
from delayd.postgres.space import DatabaseSpace
from delayd.postgres.statements import Statements

if TYPE_CHECKING:
    from delayd.postgres.snapshots import PartsConnection

HEADER = SnapshotHeader(bytes(16), 7, 0, 0)
PAYLOAD_BYTES = 1 << 20


def full() -> StatementFailed:
    return StatementFailed("postgresql://db/jobs", FULL, "no space left")


def test_a_full_database_has_space_for_all_but_puts() -> None:
    told: list[bool] = []
    space, engines = DatabaseSpace("postgresql://db/jobs"), LogSpace()
    space.on_change = told.append

    def limit() -> None:
        engines.limit(space.beyond(engines.set_aside_bytes(held=0)), space.more)

    limit()
    engines.take_for_puts(1, 1_000)
    space.note(is_full=True)
    limit()
    assert engines.has_for_reserve()
    engines.take(1_000)
    with pytest.raises(OutOfSpace):
        engines.take_for_puts(1, 0)
    space.note(is_full=False)
    limit()
    engines.take_for_puts(1, 1_000)
    assert told == [True, False]


class FullConnection:
    """A connection to a database whose first parts find space, and which can be cleared later."""

    def __init__(self, parts: int, refusals: int) -> None:
        self._parts = parts
        self._refusals = refusals
        self.cleared = self.written = 0
        self.is_closed = False

    def run(self, sql: str, within_ms: int) -> None:
        if "TRUNCATE" not in sql or not self.written:
            return
        if self._refusals:
            self._refusals -= 1
            raise full()
        self.cleared += 1

    def ask(self, sql: str, *_values: object, within_ms: int) -> list[tuple[bytes]]:
        if "INSERT" in sql:
            if self.written == self._parts:
                raise full()
            self.written += 1
        return [(bytes(8),)]

    def close(self) -> None:
        self.is_closed = True


def given_up(connection: FullConnection, *, is_full: bool) -> tuple[str, int]:
    """Write until the snapshot is given up; return why, and how often it paused."""
    owner = mock.Mock(is_full=is_full, is_over=False, durable_sequence=7)
    proof = (1, bytes(16))
    statements = Statements("jobs")
    with (
        mock.patch.object(snapshots, "threading") as threading,
        mock.patch.object(snapshots, "deflated", lambda payload: (SnapshotKind.RECORDS, payload)),
    ):
        writer = PartsWriter(
            owner,
            lambda: cast("PartsConnection", connection),
            statements,
            proof=proof,
            header=HEADER,
            where="snapshot",
        )
        payloads = [bytes(PAYLOAD_BYTES)] * 100
        with pytest.raises(SnapshotGivenUp) as caught:
            deque(map(writer.write, payloads), maxlen=0)
    assert connection.is_closed
    return str(caught.value), threading.Event.return_value.wait.call_count


def test_a_snapshot_that_finds_no_space_gives_back_what_it_has_taken() -> None:
    connection = FullConnection(parts=3, refusals=2)
    why, pauses = given_up(connection, is_full=False)
    assert "no space left" in why
    assert (connection.cleared, pauses) == (1, 2)  # to clear it took a little space itself
    connection = FullConnection(parts=3, refusals=1_000)
    _why, pauses = given_up(connection, is_full=False)
    assert (connection.cleared, pauses) == (0, DATABASE_CLEAR_TRIES)


def test_a_snapshot_in_a_full_database_leaves_most_of_the_reserve_to_removals() -> None:
    connection = FullConnection(parts=100, refusals=0)
    why, _pauses = given_up(connection, is_full=True)
    assert "the database has no space for it" in why
    assert connection.written == DATABASE_FULL_SNAPSHOT_BYTES_MAX // PAYLOAD_BYTES
    assert connection.cleared == 1
