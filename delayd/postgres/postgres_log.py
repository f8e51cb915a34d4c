"""The log in PostgreSQL, while this daemon owns it; see `delayd.log.DurableLog`.

    append ─► waits ─► settle ─► one statement: compare owner and head, insert ─► settled
              (the next frames wait meanwhile)  └─ no row: look who owns the log ─► fenced

One statement is under way at a time, on a connection that the loop itself reads (its descriptor and
that of a lost connection's successor are in one epoll, which is what `fileno` returns). It carries
all frames that wait. So a database that is slow has larger group commits, and nothing else.

**Unknown.** A connection that is lost, or closed by our own deadline, leaves open whether its
append was committed. A thread connects again and reads the row of the log. If its head is the frame
that was sent, it is there, and *the next* statement that commits is waited for: a server may show a
frame that its standby does not have yet, and what is committed later is replicated later. If its
head is the frame before, the frames are sent again.

**Lease.** Each statement prolongs the lease by the database's clock. When it may be over
(`lease.py`), `is_whole` is false, and what is found to be settled is told after another statement.

Frames are packed when they are appended, so that what is sent again is the same.
"""

import contextlib
import os
import queue
import select
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, final

from delayd.clock import NS_PER_MS, boot_ns, monotonic_ns
from delayd.journal.format import CHECKSUM, IDENTITY_BYTES, Frame, FrameKind, frame_mark, pack_frame
from delayd.journal.snapshot import Damage, SnapshotHeader
from delayd.limits import (
    DATABASE_ANSWER_MS,
    DATABASE_APPEND_BYTES_MAX,
    DATABASE_LEASE_TICKS,
    DATABASE_ODD_ANSWERS_MAX,
    DATABASE_PATIENCE_DOUBLINGS,
    DATABASE_RELEASE_MS,
    DATABASE_RETRY_MS,
    DATABASE_WAITING_BYTES_MAX,
)
from delayd.log import (
    LogError,
    LogFinding,
    LogOwnership,
    LogSize,
    LogStandby,
    LogUser,
    Loop,
)
from delayd.log_lines import Log
from delayd.postgres.connection import Connection, Prepared, Row, Value, whole
from delayd.postgres.database_time import DatabaseTime
from delayd.postgres.errors import (
    FULL,
    DatabaseCorrupt,
    DatabaseError,
    DatabaseLost,
    DatabaseUnfit,
    Fenced,
    LeftBehind,
    StatementFailed,
)
from delayd.postgres.lease import OthersLease, OwnLease
from delayd.postgres.place import DatabasePlace, closed_after_error
from delayd.postgres.rows import LogRow, checksum_of, frames_in
from delayd.postgres.snapshots import PartsConnection, PartsWriter, payloads_of
from delayd.postgres.space import BOUNDLESS_BYTES, DatabaseSpace, Reserve
from delayd.postgres.standbys import Announcer, StandbyWatch
from delayd.postgres.statements import FORMAT, FRAME_TABLES, Statements

_VOID: Final = Frame(0, 0, 0, b"")
_SNAPSHOTS_PER_SEGMENT: Final = 8
"""As with files: a snapshot for every 32 MiB of log, if less than that lives."""
_STEPS_PER_SNAPSHOT: Final = 8
_PASSING: Final = ("53", "40", "55P03", "57014")
"""What begins the SQLSTATE of a refusal that may not be there the next time."""
_LOSING: Final = ("57P", "08", "25006")
"""The same, where another connection is needed: a stop, a failover, a server that is read-only."""


def open_log(place: DatabasePlace, news: Log, *, segment_bytes: int) -> "PostgresLog":
    """Open the log at this place, making its tables if there are none. Raises DatabaseError."""
    statements = Statements(place.name)
    connection = place.connected()
    with closed_after_error(connection):
        findings = place.findings(connection, news)
        place.prepare(connection, statements, os.urandom(IDENTITY_BYTES))
        log = PostgresLog(place, statements, connection, news, segment_bytes=segment_bytes)
    log.findings = findings
    return log


class Flight(NamedTuple):
    """A statement that is under way."""

    statement: Prepared
    last: int = 0  # of the frames that it appends; 0: it appends none
    checksum: int = 0
    frames: int = 0
    table: int = 0
    began_ns: int = 0  # before it was sent, by the boot clock


class Waiting(NamedTuple):
    """A frame that was appended here, and is not in the database for certain."""

    sequence: int
    data: bytes


@final
class PostgresLog:
    """A log in a database; see `delayd.log.DurableLog` for what each method promises."""

    is_shared: Final = True
    keeper: Final = "database"
    last_in_turn_ns: Final = (0, 0)
    free_bytes: Final = BOUNDLESS_BYTES

    def __init__(
        self,
        place: DatabasePlace,
        statements: Statements,
        connection: Connection,
        news: Log,
        *,
        segment_bytes: int,
    ) -> None:
        """Use `open_log`."""
        self._place = place
        self._statements = statements
        self._news = news
        self._due_bytes = segment_bytes // _SNAPSHOTS_PER_SEGMENT
        self.step_bytes = self._due_bytes // _STEPS_PER_SNAPSHOT
        self._connection: Connection | None = connection
        self.findings: Sequence[LogFinding] = ()
        self.space = DatabaseSpace(place.shown)
        self._time = DatabaseTime()
        self._user: LogUser | None = None
        self._loop: Loop | None = None
        self.row = self._read_row(connection)
        self.identity = self.row.identity
        # As standby.
        self.owner = ""
        self._is_loaded = self._is_closed = False
        self._read_bytes = 0
        self._trouble = ""  # why the database could not be used the last time
        self._owners_lease = OthersLease()
        self._looked_ns = self._level_ns = boot_ns()  # the last look; the last that was all read
        self._compared = b""  # the owner whose settings were compared
        # As owner.
        self._self = os.urandom(IDENTITY_BYTES)
        self._announcer = Announcer(place, statements, self._self, news)
        self._standbys = StandbyWatch(place, statements, self._self, news)
        self._epoch = self._mark = 0
        self._lease = OwnLease(place.lease_ms)
        self.appended_sequence = self._head = self._checksum = 0
        self._waiting: deque[Waiting] = deque()
        self._waiting_bytes = 0
        self._kept: deque[Waiting] = deque()  # before those; there, but perhaps not for good
        self._sure = (0, 0)  # the last frame before those, and its checksum
        self._flight: Flight | None = None
        self._doubted: set[int] = set()  # tables of appends whose outcome is not known
        self._is_doubtful = self._has_lapsed = False  # perhaps was not replicated; lease was over
        self._odd_answers = self._given_up = self._table = self._covered_to = 0
        self._ends = [0] * FRAME_TABLES  # the last frame in each table; 0: it is empty
        self._failure: LogError | None = None
        self._ended = threading.Event()
        self._epoll = select.epoll()
        self._woken = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._woken, select.EPOLLIN)
        self._found: queue.SimpleQueue[tuple[Connection, LogRow]] = queue.SimpleQueue()
        self.is_settling = False
        self._begun_ns = self.wall_offset_ms = 0
        self.appended_bytes = self.grown_bytes = 0
        self._covered_bytes = 0  # how much log the snapshot in the making covers
        self._writer: PartsWriter | None = None
        self._reserve: Reserve | None = None
        self.snapshot_ms: int | None = None

    # --- A start ---------------------------------------------------------------------------------

    def _read_row(self, connection: Connection) -> LogRow:
        """Return the row of the log, and note the time. Raises DatabaseError."""
        before_ns = boot_ns()
        rows = connection.ask(self._statements.row, within_ms=DATABASE_ANSWER_MS)
        return self._noted(rows, before_ns)

    def _noted(self, rows: list[Row], before_ns: int) -> LogRow:
        where = f"{self._place.shown}: {self._statements.schema}.log"
        if len(rows) != 1:
            raise DatabaseCorrupt(f"{where} has {len(rows)} rows, and must have one")
        try:
            row = LogRow.read(rows[0])
        except ValueError as error:
            raise DatabaseCorrupt(f"{where} cannot be read: {error}") from None
        if row.format != FORMAT:
            raise DatabaseCorrupt(f"{where} is of format {row.format}; this delayd reads {FORMAT}")
        may_leap = self._user is not None
        self._time.note(row.now_us, before_ns=before_ns, after_ns=boot_ns(), may_leap=may_leap)
        return row

    def follow(self) -> Iterator[Frame | None]:
        """Yield what is there, and then what the owner appends, until nobody owns the log.

        A standby that the owner has left behind begins again with the snapshot.
        """
        if not self._is_loaded:
            yield from self._load()
        pause = threading.Event()
        while True:
            try:
                yield from self._followed(pause)
            except LeftBehind as error:
                self._note_trouble(error)
            else:
                return
            self._is_loaded = False
            while not self._is_loaded:
                yield _VOID
                try:
                    self._connection = self._reached()
                    yield from self._load()
                except (DatabaseLost, DatabaseUnfit, StatementFailed) as error:
                    self._note_trouble(error)
                    yield None
                    pause.wait(DATABASE_RETRY_MS / 1_000)

    def _followed(self, pause: threading.Event) -> Iterator[Frame | None]:
        """Yield what is appended after what was read. Raises LeftBehind."""
        while True:
            row = self.row
            # Frames that are appended from here on say nothing of that.
            is_free = self._owners_lease.is_over(row)
            try:
                yield from self._read_news(row)
            except (DatabaseLost, DatabaseUnfit, StatementFailed) as error:
                self._note_trouble(error)
            else:
                self._level_ns = self._looked_ns
                if is_free and self._connection is not None:
                    return
                self.owner = row.address or "another daemon"
                self._compare_settings(row)
            yield None
            pause.wait(DATABASE_RETRY_MS / 1_000)
            while not self._has_looked():
                yield None
                pause.wait(DATABASE_RETRY_MS / 1_000)

    def _compare_settings(self, row: LogRow) -> None:
        """Log which settings differ, once for each owner: after a takeover those of this count."""
        if row.owner == self._compared:
            return
        self._compared = row.owner
        if differing := self._place.differences(row.settings):
            reason = "some settings of this daemon are not those of the owner"
            self._news.warning(reason, settings=", ".join(differing), owner=self.owner)

    def _has_looked(self) -> bool:
        """Read the row again, over another connection if this one is lost; tell if it could."""
        try:
            if self._connection is None:
                self._connection = self._reached()
            looked_ns = boot_ns()
            row = self._read_row(self._connection)
            if row.epoch != self.row.epoch:
                self._require_same(self._connection, row)
            self._announcer.announce(
                *(self._connection, self.appended_sequence),
                lag_frames=self._lag_frames(row),
                lag_ms=self._lag_ms(),
            )
        except (DatabaseLost, DatabaseUnfit, StatementFailed) as error:
            self._note_trouble(error)
            return False
        if row.identity != self.identity:
            rule = "start again to follow it"
            raise DatabaseError(f"{self._place.shown} has another log by now: {rule}")
        if row.head < self.appended_sequence:
            gone = f"has gone back to frame {row.head} from {self.appended_sequence}"
            raise LeftBehind(f"{self._place.shown} {gone}")
        self.row, self._looked_ns = row, looked_ns
        if self._trouble:
            self._end_trouble()
        return True

    def _require_same(self, connection: Connection, row: LogRow) -> None:
        """See that another owner goes on after the last frame that was read. Raises LeftBehind.

        A failover may have dropped that frame, which nobody was told of, and the new owner appended
        another one in its place.
        """
        if row.head == self.appended_sequence:
            found = row.checksum
        else:
            last = self.appended_sequence
            values = (last - 1, last)
            rows = connection.ask(self._statements.frames, *values, within_ms=DATABASE_ANSWER_MS)
            found = checksum_of(rows[0][2]) if rows and len(rows[0][2]) >= CHECKSUM.size else -1
        if found != self._checksum:
            raise LeftBehind(f"{self._place.shown} has another owner, who goes on elsewhere")

    def _reached(self) -> Connection:
        """Connect anew to a server that may have other settings by now. Raises DatabaseError."""
        connection = self._place.connected()
        with closed_after_error(connection):
            self._place.losses(connection)
        return connection

    def _note_trouble(self, error: DatabaseError) -> None:
        """Give the connection up; log why, once for each reason in a row."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        if str(error) != self._trouble:
            self._trouble = str(error)
            self._news.warning("the database cannot be used, trying again", reason=self._trouble)

    def _end_trouble(self) -> None:
        self._trouble = ""
        self._news.info("the database can be used again")

    def _load(self) -> Iterator[Frame]:
        """Yield the snapshot and the frames after it, all of one moment."""
        connection = self._linked()
        connection.run(self._statements.hold, DATABASE_ANSWER_MS)
        self.row = row = self._read_row(connection)
        self.appended_sequence, self.grown_bytes = row.snapshot, 0
        if row.snapshot:
            yield from self._read_snapshot(connection, row)
        yield from self._read_frames(row.head)
        connection.run("COMMIT", DATABASE_ANSWER_MS)
        self._is_loaded, self._checksum = True, row.checksum
        self.row = self._read_row(connection)

    def _read_snapshot(self, connection: Connection, row: LogRow) -> Iterator[Frame]:
        where = f"{self._place.shown}: the snapshot of frame {row.snapshot}"
        parts = connection.stream(
            self._statements.parts(row.snapshot_table), row.snapshot, within_ms=DATABASE_ANSWER_MS
        )
        try:
            header, payloads = payloads_of(parts, row.snapshot_bytes, where)
            if (header.identity, header.sequence) != (row.identity, row.snapshot):
                raise DatabaseCorrupt(f"{where} is of another log, or of frame {header.sequence}")
            self.snapshot_ms = header.time_ms
            self.wall_offset_ms = header.wall_ms - header.time_ms
            for payload in payloads:
                self._read_bytes += len(payload)
                yield Frame(row.snapshot, header.time_ms, header.wall_ms, payload)
        except Damage as error:
            raise DatabaseCorrupt(str(error)) from None

    def _read_news(self, row: LogRow) -> Iterator[Frame]:
        """Yield the frames that the owner has appended since. Raises LeftBehind."""
        if row.head == self.appended_sequence:
            return
        waits_ns = self._place.lease_ms * NS_PER_MS  # in the owner, until they are appended
        try:
            for frame in self._read_frames(row.head):
                self._time.note_frame(frame.wall_ms, boot_ns() - self._level_ns + waits_ns)
                yield frame
        except DatabaseCorrupt:
            with contextlib.closing(self._reached()) as other:  # not all has come over this one
                row = self._read_row(other)
            if row.snapshot <= self.appended_sequence:
                raise
            gone = f"has the frames behind {self.appended_sequence} in a snapshot alone by now"
            raise LeftBehind(f"{self._place.shown} {gone}") from None

    def _read_frames(self, last: int) -> Iterator[Frame]:
        """Yield the frames up to this one. Raises DatabaseCorrupt if one is missing or damaged."""
        where = f"{self._place.shown}: {self._statements.schema}"
        rows = self._linked().stream(
            self._statements.frames, self.appended_sequence, last, within_ms=DATABASE_ANSWER_MS
        )
        for sequence, epoch, payload in rows:
            mark = frame_mark(self.identity, whole(epoch))
            try:
                for frame in frames_in(payload, mark, self.appended_sequence + 1):
                    if frame.sequence <= self.appended_sequence:
                        continue  # in the snapshot, which was begun in the middle of the row
                    self.appended_sequence = frame.sequence
                    self.wall_offset_ms = frame.wall_ms - frame.time_ms
                    self._read_bytes += len(frame.payload)
                    self.grown_bytes += len(frame.payload)
                    yield frame
            except ValueError as error:
                raise DatabaseCorrupt(f"{where}: {error}") from None
            if self.appended_sequence != whole(sequence):
                raise DatabaseCorrupt(f"{where}: the row of frame {whole(sequence)} is cut off")
            self._checksum = checksum_of(payload)
        if self.appended_sequence != last:
            raise DatabaseCorrupt(f"{where}: frame {self.appended_sequence + 1} is missing")

    def _linked(self) -> Connection:
        connection = self._connection
        if connection is None:
            raise DatabaseLost(f"the connection to {self._place.shown} was lost")
        return connection

    @property
    def ownership(self) -> LogOwnership:
        """Who owns the log, by what was read last."""
        row, place = self.row, self._place
        trouble = self._trouble
        if self._epoch:
            left_ms = self._lease.left_ns // NS_PER_MS
            if not trouble and self._connection is None:
                trouble = f"the connection to {place.shown} was lost"
            who = True, place.address, self._epoch
            standbys = self._standbys.known
        else:
            left_ms = (row.lease_us - self._time.wall_ns() // 1_000) // 1_000
            who = False, self.owner, row.epoch
            standbys = (LogStandby(place.address, self._lag_frames(row), self._lag_ms()),)
        return LogOwnership(*who, max(0, left_ms), place.shown, trouble, standbys)

    def _lag_frames(self, row: LogRow) -> int:
        """How many of its frames this daemon has not read."""
        return max(0, row.head - self.appended_sequence)

    def _lag_ms(self) -> int:
        """How long ago this daemon had read all frames that there were."""
        return (boot_ns() - self._level_ns) // NS_PER_MS

    @property
    def followed_percent(self) -> int:
        """About how much was yielded, if frames take as long as the snapshot."""
        head = max(1, self.row.head)
        return min(99, 100 * self.appended_sequence // head)

    def unreadable(self, why: str) -> LogError:
        return DatabaseCorrupt(f"{self._place.shown}: {why}")

    def take_over(self) -> bool:
        """Raise the epoch, if the log is still as it was followed and nobody owns it.

        After a lost answer the log goes on to be followed; if it is ours, it is taken over again.
        """
        try:
            return self._takes_over(self.row, self._linked())
        except (DatabaseLost, StatementFailed) as error:
            self._note_trouble(error)
            return False

    def _takes_over(self, row: LogRow, connection: Connection) -> bool:
        claim, lease_ms = self._place.claim, self._place.lease_ms
        values = (row.epoch, self._self, lease_ms, self.appended_sequence, row.lease_us, claim)
        began_ns = boot_ns()
        rows = connection.ask(self._statements.take_over, *values, within_ms=DATABASE_ANSWER_MS)
        if not rows:
            self._has_looked()
            return False
        self._epoch = whole(rows[0][0])
        self._is_doubtful = connection.was_warned
        if not self._is_doubtful:
            self._lease.prolong(began_ns)
        after_ns, now_us = boot_ns(), whole(rows[0][1])
        self._time.note(now_us, before_ns=began_ns, after_ns=after_ns, may_leap=False)
        self._mark = frame_mark(self.identity, self._epoch)
        self._head, self._checksum = self._sure = row.head, row.checksum
        ends = connection.ask(self._statements.ends, within_ms=DATABASE_ANSWER_MS)
        self._ends = [*map(whole, ends[0])]
        self._table = self._ends.index(max(self._ends))
        self._covered_to = row.snapshot
        self._prepare(connection)
        self._watch(connection)
        return True

    def _prepare(self, connection: Connection) -> None:
        for statement in (self._statements.renew, self._statements.look, *self._statements.appends):
            connection.prepare(statement, DATABASE_ANSWER_MS)

    @property
    def wall_ns(self) -> Callable[[], int]:
        return self._time.wall_ns

    def watch_standbys(self) -> None:
        self._standbys.start()

    def serve(self, loop: Loop, user: LogUser) -> None:
        self._loop, self._user = loop, user
        proof = (self._epoch, self._self)
        self._reserve = Reserve(
            *(self._place.connected, self._statements, proof, self._wake, self._news)
        )
        self._reserve.keep()
        self._tick()

    # --- Appends ---------------------------------------------------------------------------------

    def append(self, records: Sequence[bytes], time_ms: int, wall_ms: int) -> int:
        """Pack the records as frames, several where one statement would take long."""
        if self._failure is not None:
            raise self._failure
        latest_ms = wall_ms + self._time.doubt_ms
        for payload in _pieces(records):
            self.appended_sequence += 1
            frame = (self.appended_sequence, self._head, time_ms, latest_ms, payload)
            data = pack_frame(self._mark, FrameKind.RECORDS, *frame)
            self._waiting.append(Waiting(self.appended_sequence, data))
            self._waiting_bytes += len(data)
            self.appended_bytes += len(payload)
            self.grown_bytes += len(payload)
        self.wall_offset_ms = wall_ms - time_ms
        return self.appended_sequence

    def settle(self, *, in_turn: bool) -> None:
        """Send what waits, unless a statement is under way already."""
        del in_turn
        self.is_settling = True
        self._begun_ns = monotonic_ns()
        self._launch()

    @property
    def settling_ms(self) -> int:
        return (monotonic_ns() - self._begun_ns) // NS_PER_MS if self.is_settling else 0

    @property
    def is_behind(self) -> bool:
        """More waits than the reserve has space for, should the database be full."""
        return self._waiting_bytes > DATABASE_WAITING_BYTES_MAX

    @property
    def is_whole(self) -> bool:
        """Whether the lease goes on for certain."""
        return self._lease.left_ns > 0

    @property
    def durable_sequence(self) -> int:
        """The last frame that is in the database."""
        return self._head

    @property
    def is_over(self) -> bool:
        """Whether nothing becomes durable any more."""
        return self._ended.is_set()

    @property
    def is_full(self) -> bool:
        """Whether the database has no space but that of the reserve, for removals."""
        return self.space.is_full

    def in_turn_ns(self, now_ns: int) -> int:
        del now_ns
        return 0

    def _launch(self) -> None:
        """Send the next statement, if none is under way and there is a connection."""
        connection = self._connection
        if self._flight is not None or connection is None or self._failure is not None:
            return
        proof = (self._epoch, self._self, self._place.lease_ms)
        statements, began_ns = self._statements, boot_ns()
        if not self._waiting or self._is_doubtful:
            self._send(connection, Flight(statements.renew, began_ns=began_ns), *proof)
            return
        frames: list[bytes] = []
        sent_bytes = 0
        for frame in self._waiting:
            sent_bytes += len(frame.data)
            if frames and sent_bytes > DATABASE_APPEND_BYTES_MAX:
                break
            frames.append(frame.data)
        table, last = self._table, self._waiting[len(frames) - 1].sequence
        checksum = checksum_of(frames[-1])
        append = statements.appends[table]
        flight = Flight(append, last, checksum, len(frames), table, began_ns)
        self._doubted.add(table)
        values = (self._head, last, checksum, b"".join(frames))
        self._send(connection, flight, *proof, *values)

    def _send(self, connection: Connection, flight: Flight, *values: Value) -> None:
        self._flight = flight
        try:
            has_more = connection.begin(flight.statement, *values)
        except DatabaseLost as error:
            self._lose(error)
        else:
            self._listen(connection, has_more=has_more)

    # --- Answers ---------------------------------------------------------------------------------

    def fileno(self) -> int | None:
        return self._epoll.fileno()

    def reap(self) -> None:
        """Read what has come, and take a connection that was made anew."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._woken)
            self._note_space()
        while not self._found.empty():
            self._connected(*self._found.get())
        connection, flight = self._connection, self._flight
        if connection is None:
            return
        try:
            if flight is not None:
                self._listen(connection, has_more=connection.flush())
            rows = connection.pump()
        except DatabaseLost as error:
            self._lose(error)
        except StatementFailed as error:
            self._refused(error)
        else:
            if rows is not None and flight is not None:
                self._flight = None
                self._answered(connection, flight, rows)

    def _answered(self, connection: Connection, flight: Flight, rows: list[Row]) -> None:
        """Go on after a statement that was carried out."""
        if flight.statement is self._statements.look:
            self._judge(self._noted(rows, flight.began_ns))
        elif not rows:
            self._odd_answers += 1
            self._send(connection, Flight(self._statements.look, began_ns=boot_ns()))
        else:
            self._odd_answers = self._given_up = 0
            self._time.note(whole(rows[0][0]), before_ns=flight.began_ns, after_ns=boot_ns())
            self._look_at_lease()
            if flight.last or not self._waiting:  # else nothing shows that there is space again
                self._note_space()
            if flight.last:
                self._landed(flight)
            self._is_doubtful = connection.was_warned
            if not self._is_doubtful:  # what the standby does not have may be taken back
                self._lease.prolong(flight.began_ns)
                self._sure = self._head, self._checksum
                self._kept.clear()
            self._go_on(has_landed=bool(flight.last))

    def _note_space(self) -> None:
        """Take note whether there is space: none of the reserve's may be left to puts."""
        reserve = self._reserve
        self.space.note(is_full=reserve is not None and reserve.is_released)

    def _look_at_lease(self) -> None:
        """Take note when it is over."""
        if not (self.is_whole or self._has_lapsed):
            self._has_lapsed = True
            self._news.error("the lease of the log is over: nothing is answered until it goes on")

    def _landed(self, flight: Flight) -> None:
        """Take note that its frames are in the database."""
        self._head, self._checksum = flight.last, flight.checksum
        self._ends[flight.table] = flight.last
        self._doubted.clear()  # whatever was to come after another frame comes no more
        for _ in range(flight.frames):
            frame = self._waiting.popleft()
            self._waiting_bytes -= len(frame.data)
            self._kept.append(frame)

    def _go_on(self, *, has_landed: bool) -> None:
        """Tell what is settled, if that is certain; else send the next statement."""
        is_asked = self.is_settling
        if (
            self._is_doubtful
            or not self.is_whole
            or (is_asked and self._waiting and not has_landed)
        ):
            self._launch()
            return
        user = self._user
        if is_asked:
            self.is_settling = False
            if user is not None:
                user.settled(self._head, monotonic_ns() - self._begun_ns)
        if self._has_lapsed:
            self._has_lapsed = False
            self._news.info("the lease of the log goes on")
            if user is not None:
                user.restored()

    def _refused(self, error: StatementFailed) -> None:
        """See what a statement means that was not carried out."""
        if error.state.startswith(_LOSING):
            self._lose(error)  # ended while it waited for the standby, it is committed all the same
            return
        flight, self._flight = self._flight, None
        if error.state.startswith(_PASSING):
            if flight is not None and flight.last:
                self.space.note(is_full=error.state == FULL)  # the next tick sends it again
                if error.state == FULL:
                    self._make_space()
            self._news.warning("the database refused a statement, trying again", reason=str(error))
        else:
            self._fail(error)

    def _make_space(self) -> None:
        """Let what waits, and removals, have the space of the reserve, and no snapshot."""
        if self._writer is not None:
            self._writer.is_wanted = False
        if self._reserve is not None:
            self._reserve.release()

    def _judge(self, row: LogRow) -> None:
        """Find out what came of statements, from the row of the log.

        Any of those that were lost may have come, also one that was sent long ago; and what was
        there without being replicated may be lost with a failover, and is sent again.
        """
        shown, place = self._place.shown, self._place_of(row)
        if (row.epoch, row.owner) != (self._epoch, self._self):
            who = row.address or "another daemon"
            self._fail(Fenced(f"{shown}: {who} owns the log by now (epoch {row.epoch})"))
        elif place < 0:
            why = f"ends with frame {row.head}, and frame {self._sure[0]} was durable"
            rule = "it was restored, or failed over to a server that had not got everything"
            self._fail(DatabaseError(f"{shown} {why}: {rule}"))
        elif self._odd_answers > DATABASE_ODD_ANSWERS_MAX:
            self._fail(DatabaseError(f"{shown} does not change the row of the log"))
        else:
            frames = [*self._kept, *self._waiting]
            self._kept, self._waiting = deque(frames[:place]), deque(frames[place:])
            self._waiting_bytes = sum(len(frame.data) for frame in self._waiting)
            self._head, self._checksum = row.head, row.checksum
            for table in self._doubted:
                self._ends[table] = row.head
            self._is_doubtful = True
            self._launch()

    def _place_of(self, row: LogRow) -> int:
        """Return how many frames after the sure ones are in the database; -1: not all of those."""
        found = row.head, row.checksum
        if found == self._sure:
            return 0
        for number, frame in enumerate((*self._kept, *self._waiting), 1):
            if found == (frame.sequence, checksum_of(frame.data)):
                return number
        return -1

    def _fail(self, error: LogError) -> None:
        self._failure = error
        self._lease.drop()
        self._ended.set()
        if self._user is not None:
            self._user.failed(error)

    # --- The connection --------------------------------------------------------------------------

    def _watch(self, connection: Connection) -> None:
        self._epoll.register(connection.fileno(), select.EPOLLIN)

    def _listen(self, connection: Connection, *, has_more: bool) -> None:
        """Be woken when an answer comes, and when more can be sent, if there is more."""
        self._epoll.modify(connection.fileno(), select.EPOLLIN | select.EPOLLOUT * has_more)

    def _lose(self, error: DatabaseError) -> None:
        """Give the connection up, and have another one made; what was under way is unknown."""
        self._news.warning("the connection to the database is lost", reason=str(error))
        self._flight = None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        threading.Thread(target=self._connect, name="database", daemon=True).start()

    def _connect(self) -> None:
        """Connect again, in a thread, until it succeeds; then wake the loop."""
        while not self._ended.is_set():
            try:
                connection = self._reached()
                with closed_after_error(connection):
                    self._prepare(connection)
                    found = connection, self._read_row(connection)
            except DatabaseError as error:
                self._note_trouble(error)
                self._ended.wait(DATABASE_RETRY_MS / 1_000)
            else:
                self._end_trouble()
                self._found.put(found)
                self._wake()
                return

    def _wake(self) -> None:
        """Have the loop call `reap`; from any thread."""
        with contextlib.suppress(OSError):  # the log was closed meanwhile
            os.eventfd_write(self._woken, 1)

    def _connected(self, connection: Connection, row: LogRow) -> None:
        self._connection = connection
        self._watch(connection)
        self._judge(row)

    def _tick(self) -> None:
        """Renew the lease, send again what was refused, and give up what is not answered."""
        if self._ended.is_set():
            return
        lease_ms, now_ns = self._place.lease_ms, boot_ns()
        self._look_at_lease()
        flight = self._flight
        if flight is not None:
            # Each time it is left waiting for longer: a server whose synchronous standby is away
            # keeps a connection for each statement that was given up, and has only so many.
            patience_ms = lease_ms << min(self._given_up, DATABASE_PATIENCE_DOUBLINGS)
            if now_ns - flight.began_ns > patience_ms * NS_PER_MS:
                self._given_up += 1
                shown = self._place.shown
                self._lose(DatabaseLost(f"{shown} did not answer within {patience_ms} ms"))
        elif self.is_settling or self._lease.is_due:
            self._launch()
        if self._loop is not None:
            self._loop.call_later(lease_ms / DATABASE_LEASE_TICKS / 1_000, self._tick)

    def find_lost(self) -> str:
        return ""

    # --- Snapshots -------------------------------------------------------------------------------

    def snapshot_is_due(self, live_bytes: int) -> bool:
        """Whether there is more log than what lives, and not just a little."""
        is_free = self._writer is None or self._writer.is_over
        # In a full database one makes space as soon as removals have left less than there is.
        due_bytes = 0 if self.is_full else self._due_bytes
        return is_free and self.grown_bytes > max(live_bytes, due_bytes)

    def is_mostly_garbage(self, live_bytes: int) -> bool:
        del live_bytes
        return False

    def shrink(self, free_bytes: int, time_ms: int, wall_ms: int) -> bool:
        del free_bytes, time_ms, wall_ms
        return True

    def begin_snapshot(self, time_ms: int, wall_ms: int) -> PartsWriter:
        """Begin one, and append to another table from now on, if one is empty."""
        if self._failure is not None:
            raise self._failure
        free = [number for number in range(FRAME_TABLES) if not self._ends[number]]
        if free and self._ends[self._table]:
            self._table = free[0]
        self._covered_bytes = self.grown_bytes
        wall_ms += self._time.doubt_ms
        header = SnapshotHeader(self.identity, self.appended_sequence, time_ms, wall_ms)
        self._writer = PartsWriter(
            self,
            self._place.connected,
            self._statements,
            proof=(self._epoch, self._self),
            header=header,
            where=f"{self._place.shown}: snapshot",
        )
        return self._writer

    def covered(self, connection: PartsConnection, sequence: int) -> None:
        """Empty the tables of frames that it and the one before it replace.

        A standby that looks now and then finds the frames after the one before; in a full database
        it has to read the snapshot. Tables that are read now are emptied some other time.
        """
        before, self._covered_to = self._covered_to, sequence
        if self.is_full:
            before = sequence
        for number, end in enumerate(self._ends):
            if number == self._table or not 0 < end <= before:
                continue
            proof = (self._epoch, self._self)
            empty = self._statements.empty_frames(number, *proof, covered=before)
            try:
                connection.run(empty, DATABASE_ANSWER_MS)
            except StatementFailed as error:
                reason = "frames that a snapshot covers are kept for now"
                self._news.warning(reason, reason=str(error))
            else:
                self._ends[number] = 0

    def end_snapshot(self) -> None:
        writer = self._writer
        assert writer is not None, "`begin_snapshot` comes before `end_snapshot`"
        self.row = self.row._replace(
            snapshot_round=writer.accepted_round, snapshot_bytes=writer.stored_bytes
        )
        self.snapshot_ms = writer.time_ms
        self.grown_bytes -= self._covered_bytes

    def size(self) -> LogSize:
        return LogSize(self.grown_bytes + self.row.snapshot_bytes)

    # --- The end ---------------------------------------------------------------------------------

    def stop(self) -> None:
        """Tell its user nothing any more."""
        self._user = None
        self.is_settling = False

    def settle_all(self) -> bool:
        """Append what waits, for as long as a lease; tell whether replies may leave."""
        until_ns = boot_ns() + self._place.lease_ms * NS_PER_MS
        while self._waiting or self._flight or self._is_doubtful:
            if self._failure is not None:
                raise self._failure
            if boot_ns() > until_ns:
                raise DatabaseLost(f"{self._place.shown} did not take the last frames in time")
            self._launch()
            self._epoll.poll(DATABASE_RETRY_MS / 1_000)
            self.reap()
        return self.is_whole

    def close(self) -> None:
        """Give the lease up, so that another daemon takes over at once; close the connection."""
        if self._is_closed:
            return
        self._is_closed = True
        self._ended.set()
        if self._reserve is not None:
            self._reserve.close()
        self._standbys.stop()
        connection, self._connection = self._connection, None
        if connection is not None:
            if not self._epoch:
                with contextlib.suppress(DatabaseError):
                    self._announcer.withdraw(connection)
            if self._epoch and self._failure is None and self._flight is None:
                with contextlib.suppress(DatabaseError):
                    values = (self._epoch, self._self)
                    connection.ask(self._statements.release, *values, within_ms=DATABASE_RELEASE_MS)
            connection.close()
        self._epoll.close()
        os.close(self._woken)


def _pieces(records: Iterable[bytes]) -> Iterator[bytes]:
    """Join records to payloads of a length that one statement takes; none is divided."""
    piece: list[bytes] = []
    piece_bytes = 0
    for record in records:
        if piece and piece_bytes + len(record) > DATABASE_APPEND_BYTES_MAX:
            yield b"".join(piece)
            piece, piece_bytes = [], 0
        piece.append(record)
        piece_bytes += len(record)
    if piece:
        yield b"".join(piece)
