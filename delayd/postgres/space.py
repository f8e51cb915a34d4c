"""Space in the database: how much can be appended, and what is kept for removals when it is full.

    taken     the table of the reserve holds rows that mean nothing, as many as removals need
    released  an append was refused, the database is full: the table is emptied, and appends go on;
              puts are refused, so that what removals leave of the log is a snapshot that is smaller
    taken     there is space again: it is filled again, and only then puts are accepted

Its table has neither an index nor long values: to empty it takes no space. A thread of its own does
it over a connection of its own, since it may take as long as the disk. That connection stays open:
a session that begins in a full database may be refused, since PostgreSQL has to write a file for it
(`pg_internal.init`) after a VACUUM of its catalogues.
"""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

from delayd.limits import (
    DATABASE_ANSWER_MS,
    DATABASE_RESERVE_BYTES,
    DATABASE_RESERVE_RETRY_MS,
    EMERGENCY_BYTES,
)
from delayd.log_lines import Log
from delayd.postgres.connection import Connection, whole
from delayd.postgres.errors import FULL, DatabaseError, StatementFailed
from delayd.postgres.statements import Statements

if TYPE_CHECKING:
    from delayd.log import OnSpaceChange

_PAGE_BYTES: Final = 8_192
_ROWS: Final = DATABASE_RESERVE_BYTES // _PAGE_BYTES * 22
"""Of 36 bytes, in the tenth of a page that its table's fillfactor says."""
_FAILURES_TOLD: Final = 3


BOUNDLESS_BYTES: Final = 1 << 62


@final
class DatabaseSpace:
    """How much can be appended: all that is wanted, until the database says that it is full.

    Then puts are refused, and each turn may write the little that they leave to all others: the
    space that was kept for removals is for handing jobs out and deleting them.
    """

    def __init__(self, shown: str) -> None:
        self._shown = shown
        self.on_change: OnSpaceChange = bool
        self.is_full = False
        self.is_stale = False
        self.trouble = ""

    def beyond(self, set_aside_bytes: int) -> int:
        self.is_stale = False
        return EMERGENCY_BYTES if self.is_full else BOUNDLESS_BYTES - set_aside_bytes

    def more(self, missing_bytes: int, body_bytes: int, places: int) -> int:
        del missing_bytes, body_bytes, places
        return -1 if self.is_full else BOUNDLESS_BYTES

    def figures(self) -> dict[str, str | int]:
        """Return where it is."""
        return {"log": self._shown}

    def note(self, *, is_full: bool) -> None:
        """Tell when it is the other way round than before."""
        if is_full is not self.is_full:
            self.is_full, self.is_stale = is_full, True
            self.on_change(is_full)


@final
class Reserve:
    """The reserve of a log that this daemon owns."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        statements: Statements,
        proof: tuple[int, bytes],
        on_change: Callable[[], object],
        news: Log,
    ) -> None:
        """`on_change` is called in a thread when `is_released` has changed."""
        self._connect = connect
        self._statements = statements
        self._proof = proof
        self._on_change = on_change
        self._news = news
        self._failures = 0
        self._over = threading.Event()
        self._wanted = threading.Event()
        """Set when it is to be released, and at the end."""
        self.is_released = False
        """The database was full, and has no space for it yet."""

    def keep(self) -> None:
        """Take it, if it is not there from before, and go on in a thread."""
        threading.Thread(target=self._keep, name="reserve", daemon=True).start()

    def release(self) -> None:
        """Let appends have its space. Does nothing if they have it already."""
        self._wanted.set()

    def close(self) -> None:
        """Leave it as it is."""
        self._over.set()
        self._wanted.set()

    def _keep(self) -> None:
        connection: Connection | None = None
        pause_s = DATABASE_RESERVE_RETRY_MS / 1_000
        while not self._over.is_set():
            why, paused = "", self._wanted
            try:
                connection = connection or self._connect()
                self._settle(connection)
            except StatementFailed as error:
                why = str(error)
            except DatabaseError as error:
                why, paused = str(error), self._over
                if connection is not None:
                    connection.close()
                    connection = None
            self._note(why)
            paused.wait(pause_s)
        if connection is not None:
            connection.close()

    def _note(self, why: str) -> None:
        """Log that it fails again and again; of a database that is away the log itself tells."""
        if why:
            self._failures += 1
            if self._failures == _FAILURES_TOLD:
                what = "no space can be kept in the database for removals, trying again"
                self._news.warning(what, reason=why)
            return
        if self._failures >= _FAILURES_TOLD:
            self._news.info("space for removals can be kept in the database again")
        self._failures = 0

    def _settle(self, connection: Connection) -> None:
        """Release it if that is wanted, and else take it, as far as there is space."""
        statements, proof = self._statements, self._proof
        if self._wanted.is_set():
            self._wanted.clear()
            self._empty(connection)
            return
        there = connection.ask(statements.has_reserve, within_ms=DATABASE_ANSWER_MS)
        try:
            if not whole(there[0][0]):
                values = (*proof, _ROWS)
                connection.ask(statements.fill_reserve, *values, within_ms=DATABASE_ANSWER_MS)
        except StatementFailed as error:
            if error.state != FULL:
                raise
            self._empty(connection)  # what was written before it failed takes space, too
        else:
            self._tell(is_released=False)

    def _empty(self, connection: Connection) -> None:
        connection.run(self._statements.empty_reserve(*self._proof), DATABASE_ANSWER_MS)
        self._tell(is_released=True)

    def _tell(self, *, is_released: bool) -> None:
        if is_released is not self.is_released:
            self.is_released = is_released
            self._on_change()
