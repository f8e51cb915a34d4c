"""The relay: takes what was committed, puts it, deletes it; `permits` says why each is put once.

    relay = Relay(Table(connected(url)), Permits(client, "outbox"), stop, log)
    relay.start()     # TableUnfit, DaemonUnfit, WrongProtocol: a sentence, and nothing was touched
    relay.run()       # until `stop`; whatever is away is tried again

One step takes a batch and puts it; the next step deletes it, in the transaction that takes the
next one. So a batch costs two transactions and two requests. A topic that takes nothing now rests
and keeps no other topic waiting; a row that no daemon would take gets its error, and is left out.
"""

import contextlib
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from delayd.client.errors import DelaydError, WrongProtocol
from delayd.outbox.permits import Permits
from delayd.outbox.stop import StopSignal
from delayd.outbox.table import OutboxRow, Settled, Table, TableAway

BACKOFF_S: Final = 0.1
BACKOFF_S_MAX: Final = 5.0
"""Between attempts to reach what is away, and for a topic that takes nothing now."""
IDLE_S: Final = 60.0
"""How long it waits for a row at most before it sees that the database still answers."""
STAND_BY_S: Final = 1.0
"""How often a relay asks whether the one that is at work has gone."""
REPORT_S: Final = 60.0
"""How often it says what it has done, if it has done something."""
RESTING_MAX: Final = 1_000
"""So many topics rest at once at most; with more of them the oldest are tried again sooner."""

Clock = Callable[[], float]


class EventLog(Protocol):
    """What the relay tells: an event, which is a fixed sentence, and fields."""

    def info(self, event: str, **fields: Any) -> None:  # noqa: ANN401 - as lines of a log
        """Tell a normal event."""

    def warning(self, event: str, **fields: Any) -> None:  # noqa: ANN401 - the same
        """Tell an event that needs attention."""


class Backoff:
    """How long to wait before the next attempt: twice as long after each."""

    def __init__(self) -> None:
        self._next_s = BACKOFF_S

    def next_s(self) -> float:
        """Return how long to wait now."""
        wait_s, self._next_s = self._next_s, min(2 * self._next_s, BACKOFF_S_MAX)
        return wait_s


class Report:
    """What was done since the last line about it."""

    def __init__(self, now: Clock) -> None:
        self._now = now
        self._since = now()
        self.rows = self.failed = 0
        self.lag_s = 0.0
        """The longest between a put into the table and its job."""

    def note(self, rows: list[OutboxRow], done: int, failed: int, took_s: float) -> None:
        """Count what one step has done."""
        self.rows += done
        self.failed += failed
        self.lag_s = max([self.lag_s, *(row.age_ms / 1_000 + took_s for row in rows)])

    def tell(self, log: EventLog, *, is_last: bool = False) -> None:
        """Tell it, if it is time to and anything was done."""
        passed_s = self._now() - self._since
        if not (is_last or passed_s >= REPORT_S):
            return
        if self.rows or self.failed:
            fields = {"seconds": round(passed_s), "lag_s": round(self.lag_s, 3)}
            log.info("relayed", rows=self.rows, failed=self.failed, **fields)
        self.rows = self.failed = 0
        self.lag_s, self._since = 0.0, self._now()


class Relay:
    """Empties a table into a daemon."""

    def __init__(
        self,
        table: Table,
        permits: Permits,
        stop: StopSignal,
        log: EventLog,
        now: Clock = time.monotonic,
    ) -> None:
        self._table = table
        self._permits = permits
        self._stop = stop
        self._log = log
        self._now = now
        self._settled = Settled()
        """What was put and is still in the table."""
        self._resting: dict[str, tuple[float, Backoff]] = {}
        """Topics that take nothing now, each with the end of its rest."""
        self._away: dict[str, float] = {}
        """What is away, and since when; it was told."""
        self._backoff = Backoff()
        self._stands_by = self._is_draining = False
        self.report = Report(now)

    # --- The loop --------------------------------------------------------------------------------

    def start(self) -> None:
        """See that table and daemon can be used, and wait for them.

        Raises TableUnfit, DaemonUnfit, WrongProtocol.
        """
        for check in (self._table.check, self._see_what_wakes, self._permits.check):
            while not self._stop.is_wanted and not self._tried(check):
                pass

    def _see_what_wakes(self) -> None:
        if not self._table.is_woken():
            advice = "make or enable the trigger that delayd relay --schema postgresql prints"
            self._log.warning("no trigger wakes the relay", looks_every_s=IDLE_S, do=advice)

    def run(self, *, is_draining: bool = False) -> None:
        """Relay until it is to end, or has nothing more to do; then write down what was put."""
        self._is_draining = is_draining
        if not self._stop.is_wanted:  # before all that it needs was there
            self._log.info("relaying")
        while not self._stop.is_wanted:
            self._tried(self._turn)
            self.report.tell(self._log)
        if any(self._settled):
            with contextlib.suppress(TableAway):  # the next relay finds out
                self._table.settle(self._settled)
        self.report.tell(self._log, is_last=True)
        self._table.database.close()

    def _tried(self, act: Callable[[], object]) -> bool:
        """Do it; tell whether that was possible. If something is away, say so once, and wait."""
        try:
            act()
        except TableAway as error:
            self._is_away("the database", str(error))
        except WrongProtocol:  # a wrong url: trying again changes nothing
            raise
        except DelaydError as error:
            self._is_away("delayd", str(error))
        else:
            return True
        self._stop.wait(self._backoff.next_s())
        return False

    def _is_away(self, who: str, why: str) -> None:
        if who not in self._away:
            self._away[who] = self._now()
            self._log.warning(f"{who} is away; it is tried again", why=why)

    def _is_back(self, who: str) -> None:
        if (since := self._away.pop(who, None)) is not None:
            self._log.info(f"{who} is back", after_s=round(self._now() - since, 1))
            self._backoff = Backoff()

    def _turn(self) -> None:
        """Do one step; wait where there is nothing to do."""
        if not self._table.database.leads():
            self._is_back("the database")
            if not self._stands_by:
                self._log.info("another relay is at work on this table; this one stands by")
            self._stands_by = True
            self._stop.wait(STAND_BY_S)
            return
        if self._stands_by:
            self._log.info("the other relay has gone; this one is at work")
            self._stands_by = False
        if self.step():
            return
        if self._is_draining:
            self._stop.want()
        else:
            self._table.database.wait(self._stop, self._idle_s())

    def _idle_s(self) -> float:
        """Return how long nothing needs to be done, if no row comes."""
        ends = [until for until, _ in self._resting.values()]
        return max(0.0, min([self._now() + IDLE_S, *ends]) - self._now())

    # --- One step --------------------------------------------------------------------------------

    def step(self) -> int:
        """Settle the step before, and put the next rows; return how many they are.

        Raises TableAway, DelaydError, DaemonUnfit; wherever it ends, the next step goes on.
        """
        rows = self._table.take(self._settled, self._topics_at_rest())
        self._settled = Settled()
        self._is_back("the database")
        if not rows:  # also none of topics whose rest is over
            now_s = self._now()
            self._resting = {name: rest for name, rest in self._resting.items() if rest[0] > now_s}
            return 0
        taken_s = self._now()
        undecided = [row for row in rows if row.permit is None]
        if undecided:
            permits = self._table.bind(self._permits.draw(undecided))
            rows = [
                row if row.permit is not None else row._replace(permit=permits.get(row.id))
                for row in rows
            ]
            rows = [row for row in rows if row.permit is not None]  # others were put meanwhile
        sent = self._permits.put(rows)
        self._is_back("delayd")
        self._settled = Settled(sent.done, sent.failed, sent.undecided)
        done = {*sent.done}
        self.report.note(
            [row for row in rows if row.id in done],
            *(len(sent.done), len(sent.failed), self._now() - taken_s),
        )
        if sent.failed:
            first = min(sent.failed)
            fields = {"rows": len(sent.failed), "first": first, "why": sent.failed[first]}
            self._log.warning("rows cannot be put, and are kept", **fields)
        self._rest({row.topic for row in rows}, sent.later)
        return len(rows)

    def _topics_at_rest(self) -> list[str]:
        now_s = self._now()
        return [topic for topic, (until_s, _) in self._resting.items() if until_s > now_s]

    def _rest(self, topics: set[str], later: dict[str, str]) -> None:
        """Have topics rest that take nothing now; the others take something again."""
        for topic in topics - later.keys():
            if self._resting.pop(topic, None):
                self._log.info("a topic takes jobs again", topic=topic)
        for topic, why in later.items():
            if topic not in self._resting:
                self._log.warning(
                    "a topic takes no jobs now; it is tried again", topic=topic, why=why
                )
            _, backoff = self._resting.pop(topic, (0.0, Backoff()))
            self._resting[topic] = (self._now() + backoff.next_s(), backoff)
        while len(self._resting) > RESTING_MAX:
            self._resting.pop(next(iter(self._resting)))
