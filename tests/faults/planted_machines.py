"""Logs in a database that are broken on purpose: what the simulation of machines must find."""

from collections.abc import Callable, Iterator
from typing import Any, Final
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


def patched(name: str, function: Callable[..., object]) -> Patch:
    return mock.patch.object(PostgresLog, name, function)


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


def taking_over_early() -> Patch:
    return mock.patch.object(OthersLease, "is_over", return_value=True)


def answering_reserves_at_once() -> Patch:
    return mock.patch.object(PostgresLog, "is_shared", new=False)


def taking_over_unread() -> Patch:
    read = PostgresLog._read_news

    def read_while_owned(self: PostgresLog, row: LogRow) -> Iterator[Any]:
        if row.lease_us <= row.now_us:
            self.appended_sequence, self._checksum = row.head, row.checksum
        else:
            yield from read(self, row)

    return patched("_read_news", read_while_owned)


def taking_time_from_the_machine() -> Patch:
    return mock.patch.object(PostgresLog, "wall_ns", new=None)


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


def counting_by_the_database() -> Patch:
    return mock.patch.object(OthersLease, "is_over", lambda _self, row: row.lease_us <= row.now_us)


def full_for_ever() -> Patch:
    note = DatabaseSpace.note

    def note_full(self: DatabaseSpace, *, is_full: bool) -> None:
        note(self, is_full=is_full or self.is_full)

    return mock.patch.object(DatabaseSpace, "note", note_full)


def following_every_clock() -> Patch:
    return mock.patch.object(database_time, "_LEAP_NS", 1 << 62)


CLOCKS: Final = MachinesPlan(2, 4, frozenset({"failover", "clock", "kill"}))
PLANS: Final[dict[str, MachinesPlan]] = {
    "a statement of a snapshot is carried out for the next one": MachinesPlan(
        2, 4, frozenset({"ghost", "lost", "kill"}), 250
    ),
    "a standby follows a clock that was set forward": CLOCKS,
    "a standby counts a lease by the database's clock": CLOCKS,
}
"""What makes a fault likely that few seeds would meet."""

RULES: Final[dict[str, type[Rules]]] = {
    "an append does not compare the epoch": ComparingNoOwner,
    "an append does not compare the head": ComparingNoHead,
    "a takeover does not raise the epoch": RaisingNoEpoch,
    "a statement of a snapshot is carried out for the next one": ComparingNoRound,
}
PATCHES: Final[dict[str, Callable[[], Patch]]] = {
    "a lease counts from the answer": trusting_from_the_answer,
    "an unknown outcome is taken for a success": believing_what_is_unknown,
    "an unknown outcome is acknowledged before the next append": answering_what_was_found,
    "an unknown outcome is sent again without a look": sending_again_without_looking,
    "a standby takes over before the lease is over": taking_over_early,
    "a reserve does not wait for its record": answering_reserves_at_once,
    "a standby takes over before it has read all frames": taking_over_unread,
    "delayd time goes on by the machine's clock": taking_time_from_the_machine,
    "a snapshot ends in the middle of a row": refusing_rows_that_begin_earlier,
    "a frame that was found is never sent again": believing_what_was_found,
    "an append is sure though the standby was not waited for": hearing_no_warning,
    "a database that was full is full for ever": full_for_ever,
    "a standby follows a clock that was set forward": following_every_clock,
    "a standby counts a lease by the database's clock": counting_by_the_database,
}
