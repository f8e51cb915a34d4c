"""The daemons that follow a log: each tells of itself, and the owner reads of them.

    standby   reads the row ─► announce: its row in `standby`, once a second at most
    owner     a thread with a connection of its own ─► known, once a second

The table is unlogged: what is in it goes with a crash of the server, costs no WAL, and waits for no
synchronous standby. A row is changed in place, those of daemons that are gone are deleted by the
others, and there are no more than limits.DATABASE_STANDBYS_MAX. Nothing of it is in the way of an
append, and nothing depends on it but what people see, and whether they may hand the log over.
"""

import signal
import threading
from typing import Final, final

from delayd.clock import NS_PER_MS, boot_ns
from delayd.limits import DATABASE_ANNOUNCE_MS, DATABASE_STANDBYS_MAX
from delayd.log import LogStandby
from delayd.log_lines import Log
from delayd.postgres.connection import Connection, Row, whole
from delayd.postgres.errors import DatabaseError, StatementFailed
from delayd.postgres.place import DatabasePlace
from delayd.postgres.rows import shown_address
from delayd.postgres.statements import Statements

_NEVER_NS: Final = -(1 << 62)


@final
class Announcer:
    """Tells of a standby in the database."""

    def __init__(self, place: DatabasePlace, statements: Statements, own: bytes, news: Log) -> None:
        """`own` is the number that this daemon has as an owner."""
        self._address = place.address
        self._within_ms = place.lease_ms
        self._statements = statements
        self._own = own
        self._news = news
        self._last_ns = _NEVER_NS
        self._is_refused = False

    def announce(self, connection: Connection, frame: int, *, lag_frames: int, lag_ms: int) -> None:
        """Tell how far this daemon is, unless it has just done so. Raises DatabaseLost."""
        now_ns = boot_ns()
        if now_ns - self._last_ns < DATABASE_ANNOUNCE_MS * NS_PER_MS:
            return
        self._last_ns = now_ns
        values = (self._own, self._address, frame, lag_frames, lag_ms)
        self._ask(connection, self._statements.announce, *values)

    def withdraw(self, connection: Connection) -> None:
        """Tell that it follows no more. Raises DatabaseLost."""
        if self._last_ns != _NEVER_NS:
            self._ask(connection, self._statements.withdraw, self._own)

    def _ask(self, connection: Connection, sql: str, *values: bytes | str | int) -> None:
        try:
            connection.ask(sql, *values, within_ms=self._within_ms)
        except StatementFailed as error:
            if not self._is_refused:
                self._is_refused = True
                self._news.warning("the owner cannot be told of this standby", reason=str(error))


@final
class StandbyWatch:
    """What the owner of a log knows of its standbys."""

    def __init__(self, place: DatabasePlace, statements: Statements, own: bytes, news: Log) -> None:
        self._place = place
        self._statements = statements
        self._own = own
        self._news = news
        self._seen: tuple[tuple[LogStandby, ...], int] = ((), 0)  # and when, by the boot clock
        self._ended = threading.Event()

    def start(self) -> None:
        """Read from now on, in a thread."""
        threading.Thread(target=self._watch, name="standbys", daemon=True).start()

    def stop(self) -> None:
        """Read no more."""
        self._ended.set()

    @property
    def known(self) -> tuple[LogStandby, ...]:
        """The standbys; the longer ago they were read, the longer may they be behind."""
        seen, seen_ns = self._seen
        since_ms = (boot_ns() - seen_ns) // NS_PER_MS
        return tuple(each._replace(lag_ms=each.lag_ms + since_ms) for each in seen)

    def _watch(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are the loop's
        connection: Connection | None = None
        trouble = ""
        while not self._ended.is_set():
            try:
                connection = connection or self._place.connected()
                self._read(connection)
                trouble = ""
            except (DatabaseError, ValueError) as error:
                if connection is not None:
                    connection.close()
                    connection = None
                if str(error) != trouble:
                    trouble = str(error)
                    self._news.warning("the standbys cannot be read", reason=trouble)
            self._ended.wait(DATABASE_ANNOUNCE_MS / 1_000)
        if connection is not None:
            connection.close()

    def _read(self, connection: Connection) -> None:
        now_ns = boot_ns()
        within_ms = self._place.lease_ms
        rows = connection.ask(self._statements.standbys, self._own, within_ms=within_ms)
        self._seen = tuple(map(_standby, rows[:DATABASE_STANDBYS_MAX])), now_ns


def _standby(row: Row) -> LogStandby:
    """Return what a row says; whatever it is, there are no negative lags. Raises ValueError."""
    address, *numbers = row
    lag_frames, lag_ms, since_ms = (max(0, whole(number)) for number in numbers)
    return LogStandby(
        shown_address(address.decode(errors="replace")), lag_frames, lag_ms + since_ms
    )
