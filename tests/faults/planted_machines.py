"""Logs in a database that are broken on purpose: what the simulation of machines must find."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple
from unittest import mock

from delayd.journal.format import FrameKind, pack_frame
from delayd.postgres import database_time, lease
from delayd.postgres import postgres_log as log_module
from delayd.postgres.connection import Connection
from delayd.postgres.lease import OthersLease, OwnLease
from delayd.postgres.postgres_log import PostgresLog, Waiting
from delayd.postgres.rows import LogRow, frames_in
from delayd.postgres.space import DatabaseSpace
from tests.faults.database import Rules, SimulatedConnection
from tests.faults.planted import Patch
from tests.faults.two_machines import MachinesPlan


class ComparingNoOwner(Rules):
    """An append compares neither epoch nor owner."""

    def _append(self, *what: Any) -> Any:  # noqa: ANN401
        self.compares_owner = False
        outcome = super()._append(*what)
        self.compares_owner = True
        return outcome


class ComparingNoHead(Rules):
    """An append does not compare the head."""

    compares_head = False


class RaisingNoEpoch(Rules):
    """A takeover does not raise the epoch, by which alone owners are told apart."""

    raises_epoch = False

    def _is_mine(self, store: Any, epoch: int, _owner: bytes) -> bool:  # noqa: ANN401
        return bool(store.row.epoch == epoch)


def patched(name: str, new: object) -> Patch:
    return mock.patch.object(PostgresLog, name, new)


def trusting_from_the_answer() -> Patch:
    prolong = OwnLease.prolong

    def prolong_from_now(self: OwnLease, _began_ns: int) -> None:
        prolong(self, vars(lease)["boot_ns"]())

    return mock.patch.object(OwnLease, "prolong", prolong_from_now)


def believing_what_is_unknown() -> Patch:
    lose = PostgresLog._lose

    def lose_and_believe(self: PostgresLog, error: Any) -> None:  # noqa: ANN401
        flight = self._flight
        lose(self, error)
        if flight is not None and flight.last and self._user is not None:
            self._landed(flight)
            self._sure = self._head, self._checksum
            self.is_settling = False
            self._user.settled(flight.last, 0)

    return patched("_lose", lose_and_believe)


def answering_what_was_found() -> Patch:
    judge = PostgresLog._judge

    def judge_and_answer(self: PostgresLog, row: LogRow) -> None:
        judge(self, row)
        if self._failure is None and self._user is not None and row.head > self._sure[0]:
            self._sure = self._head, self._checksum
            self._user.settled(row.head, 0)

    return patched("_judge", judge_and_answer)


def sending_again_without_looking() -> Patch:
    """What was lost is sent again, behind whatever the head is by now."""

    def connected(self: PostgresLog, connection: Connection, row: LogRow) -> None:
        self._connection = connection
        self._watch(connection)
        waiting = [*self._waiting]
        self._waiting.clear()
        self.appended_sequence = row.head
        self._head, self._checksum = self._sure = row.head, row.checksum
        for frame in waiting:
            for each in frames_in(frame.data, self._mark, frame.sequence):
                self.appended_sequence += 1
                what = (self.appended_sequence, row.head, each.time_ms, each.wall_ms, each.payload)
                data = pack_frame(self._mark, FrameKind.RECORDS, *what)
                self._waiting.append(Waiting(self.appended_sequence, data))
        self._launch()

    return patched("_connected", connected)


def taking_over_unread() -> Patch:
    read = PostgresLog._read_news

    def read_while_owned(self: PostgresLog, row: LogRow) -> Iterator[Any]:
        if row.lease_us <= row.now_us:
            self.appended_sequence, self._checksum = row.head, row.checksum
        else:
            yield from read(self, row)

    return patched("_read_news", read_while_owned)


# --- What was wrong once -------------------------------------------------------------------------


class ComparingNoRound(Rules):
    """Statements of a snapshot do not know which one they are of."""

    compares_round = False


def refusing_rows_that_begin_earlier() -> Patch:
    def frames_from(data: bytes, mark: int, first: int) -> Iterator[Any]:
        for frame in frames_in(data, mark, first):
            if frame.sequence < first:
                raise ValueError(f"frame {frame.sequence} is where frame {first} should be")
            yield frame

    return mock.patch.object(log_module, "frames_in", frames_from)


def believing_what_was_found() -> Patch:
    """What is there is there for good."""
    judge = PostgresLog._judge

    def judge_for_good(self: PostgresLog, row: LogRow) -> None:
        judge(self, row)
        if self._failure is None:
            self._kept.clear()
            self._sure = self._head, self._checksum

    return patched("_judge", judge_for_good)


def hearing_no_warning() -> Patch:
    silent = property(lambda _self: False, lambda _self, _value: None)
    return mock.patch.object(SimulatedConnection, "was_warned", silent, create=True)


def full_for_ever() -> Patch:
    note = DatabaseSpace.note

    def note_full(self: DatabaseSpace, *, is_full: bool) -> None:
        note(self, is_full=is_full or self.is_full)

    return mock.patch.object(DatabaseSpace, "note", note_full)


def by_the_database(_self: OthersLease, row: LogRow) -> bool:
    return row.lease_us <= row.now_us


class Planted(NamedTuple):
    """A fault, and what makes it likely that few seeds would meet."""

    patch: Callable[[], Patch] = contextlib.nullcontext
    rules: type[Rules] = Rules
    plan: MachinesPlan | None = None
    found_at: int = 0
    """The seed that finds it, where it is not among the first; that changes with runs."""


CLOCKS: Final = MachinesPlan(2, 4, frozenset({"failover", "clock", "kill"}))
GHOSTS: Final = MachinesPlan(2, 4, frozenset({"ghost", "lost", "kill"}), 250)
FAULTS: Final = {
    "an append does not compare the epoch": Planted(rules=ComparingNoOwner, found_at=10),
    "an append does not compare the head": Planted(rules=ComparingNoHead, found_at=11),
    "a takeover does not raise the epoch": Planted(rules=RaisingNoEpoch),
    "a statement of a snapshot is carried out for the next one": Planted(
        rules=ComparingNoRound, plan=GHOSTS, found_at=15
    ),
    "a lease counts from the answer": Planted(trusting_from_the_answer),
    "an unknown outcome is taken for a success": Planted(believing_what_is_unknown),
    "an unknown outcome is acknowledged before the next append": Planted(
        answering_what_was_found, found_at=52
    ),
    "an unknown outcome is sent again without a look": Planted(sending_again_without_looking),
    "a standby takes over before the lease is over": Planted(
        partial(mock.patch.object, OthersLease, "is_over", return_value=True)
    ),
    "a reserve does not wait for its record": Planted(partial(patched, "is_shared", False)),
    "a standby takes over before it has read all frames": Planted(taking_over_unread),
    "delayd time goes on by the machine's clock": Planted(
        partial(patched, "wall_ns", None), found_at=24
    ),
    "a snapshot ends in the middle of a row": Planted(
        refusing_rows_that_begin_earlier, found_at=14
    ),
    "a frame that was found is never sent again": Planted(believing_what_was_found, found_at=400),
    "an append is sure though the standby was not waited for": Planted(
        hearing_no_warning, found_at=9
    ),
    "a database that was full is full for ever": Planted(full_for_ever),
    "a standby follows a clock that was set forward": Planted(
        partial(mock.patch.object, database_time, "_LEAP_NS", 1 << 62), plan=CLOCKS, found_at=22
    ),
    "a standby counts a lease by the database's clock": Planted(
        partial(mock.patch.object, OthersLease, "is_over", by_the_database), plan=CLOCKS
    ),
}
