"""What a full database has space for; `test_real_two_machines` has one on a small disk."""

import io
from collections import deque
from collections.abc import Callable, Iterator
from threading import Event
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

import pytest

from delayd.core.errors import OutOfSpace
from delayd.core.log_space import LogSpace
from delayd.journal.snapshot import SnapshotHeader, SnapshotKind
from delayd.limits import (
    DATABASE_CLEAR_TRIES,
    DATABASE_FULL_SNAPSHOT_BYTES_MAX,
    DATABASE_RESERVE_RETRY_MS,
)
from delayd.log_lines import Log
from delayd.postgres import snapshots, space
from delayd.postgres.errors import FULL, DatabaseLost, SnapshotGivenUp, StatementFailed
from delayd.postgres.snapshots import PartsWriter
from delayd.postgres.space import DatabaseSpace, Reserve
from delayd.postgres.statements import Statements

if TYPE_CHECKING:
    from delayd.postgres.connection import Connection
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


class ReserveRig:
    """A database with a reserve, and its connection; the thread of the reserve is the test's own.

    Each time that it pauses, the test goes on to its next `yield`, and ends the reserve at its end.
    """

    def __init__(self, course: Callable[["ReserveRig"], Iterator[None]]) -> None:
        self.refusal: Exception | None = None
        self.may_connect = True
        self.connects = self.emptied = self.closed = 0
        self.said = io.StringIO()
        self._course = course(self)
        with mock.patch.object(space, "threading") as threading:
            threading.Event.side_effect = self._event
            statements, news = Statements("jobs"), Log(self.said, int)
            self.reserve = Reserve(self._connect, statements, (1, bytes(16)), lambda: None, news)
            self.reserve.keep()
            threading.Thread.call_args.kwargs["target"]()

    def _event(self) -> Any:  # noqa: ANN401 - what the test waits for is its own
        event: Any = Event()
        event.wait = lambda pause_s: event.is_set() or self._is_over(pause_s)
        return event

    def _is_over(self, pause_s: float) -> bool:
        assert pause_s == DATABASE_RESERVE_RETRY_MS / 1_000
        if next(self._course, self) is self:
            self.reserve.close()
        return False

    def _connect(self) -> "Connection":
        self.connects += 1
        assert self.connects < 10, "it connects again without a pause"
        if not self.may_connect:
            raise DatabaseLost("could not write init file")
        return cast("Connection", self)

    # --- The connection --------------------------------------------------------------------------

    def ask(self, *_words: object, within_ms: int) -> list[tuple[bytes]]:
        return [((1).to_bytes(8),)]

    def run(self, sql: str, within_ms: int) -> None:
        assert "TRUNCATE" in sql
        if self.refusal is not None:
            raise self.refusal
        self.emptied += 1

    def close(self) -> None:
        self.closed += 1


def test_a_reserve_is_released_where_no_new_connection_can_be_made() -> None:
    def course(rig: ReserveRig) -> Iterator[None]:
        rig.may_connect = False
        rig.refusal = full()
        for refused in range(3):  # to empty a table may take a page itself
            rig.reserve.release()
            yield
            assert (rig.emptied, rig.reserve.is_released) == (0, False), refused
        rig.refusal = None
        rig.reserve.release()
        yield
        assert (rig.emptied, rig.reserve.is_released) == (1, True)

    rig = ReserveRig(course)
    assert (rig.connects, rig.closed) == (1, 1)
    told = rig.said.getvalue().splitlines()
    assert len(told) == 2
    assert "no space can be kept in the database for removals" in told[0]
    assert told[1].endswith("space for removals can be kept in the database again")


def test_a_reserve_whose_connection_is_lost_pauses_before_each_new_one() -> None:
    def course(rig: ReserveRig) -> Iterator[None]:
        rig.may_connect = False
        rig.refusal = DatabaseLost("cut off")
        for connects in (1, 2, 3):
            rig.reserve.release()
            yield
            assert rig.connects == connects
        rig.may_connect, rig.refusal = True, None
        rig.reserve.release()
        yield
        assert (rig.connects, rig.emptied, rig.reserve.is_released) == (4, 1, True)

    assert ReserveRig(course).closed == 2
