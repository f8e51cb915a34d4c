"""Lists of a topic's jobs: a page in due order, or how many come due when.

Both are background tasks (`core.background_tasks`) with a `Scan`. A *page* is the first `limit`
jobs after a cursor `(due_ms, job_id)`. A heap keeps the best so far, so that memory is bounded by
the page; once it is full, jobs due later than its last are skipped, and the scan of the wheel ends
there: the first page of two million delayed jobs looks at a few thousand.

    Search(engine, name, wanted, limit, after=None)   .page: Page, when it is over
    Calendar(engine, name, from_ms, bin_ms, bins)     .counts: list[int], when it is over

Both raise `TopicNotFound`, `TopicNameInvalid` and `ValueOutOfRange` at once. A job that is there
and unchanged from the beginning to the end is on exactly one page, counted exactly once. One that
is changed meanwhile may be missing: a page shows each job as it was when it was last looked at.

>>> from delayd.core.engine import Engine
>>> from delayd.core.operations.put import put_alike
>>> engine = Engine(start_ms=0)
>>> topic = engine.store.topic("default")
>>> for delay_ms in (5_000, 1_000, 3_000):
...     job_id = put_alike(engine, topic, 0, delay_ms, 9, [b""], now_ms=0)
>>> search = Search(engine, "default", Wanted(), limit=2)
>>> while not search.step(budget=100, now_ms=0): pass
>>> [row.job_id for row in search.page.rows], search.page.after
([2, 3], Cursor(due_ms=3000, job_id=3))
>>> calendar = Calendar(engine, "default", from_ms=0, bin_ms=2_000, bins=3)
>>> while not calendar.step(budget=100, now_ms=0): pass
>>> calendar.counts
[1, 1, 1]
"""

from collections.abc import Mapping
from heapq import heappush, heapreplace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from delayd.core.engine import Engine
from delayd.core.job_parts import (
    Failure,
    Note,
    attempts_of,
    failure_of,
    key_of,
    note_of,
    target_of,
    texts_of,
)
from delayd.core.job_record import DUE_AT, PRIORITY_AND_TOPIC, PRIORITY_AT, U64, State
from delayd.core.operations.checks import check_range, topic_named
from delayd.core.scans.scan import ROW_ID_END, Scan, Wanted, seen_state
from delayd.core.times import RequestMs
from delayd.core.wall_times import IdSet
from delayd.limits import CALENDAR_BINS_MAX, DURATION_MS_MAX, SEARCH_JOBS_MAX

if TYPE_CHECKING:
    from delayd.core.store import Store

ROW_COST: Final = 8
"""Jobs that could have been looked at in the time it takes to write one: 6 µs where an attempt
has failed, 2 where none has."""


NO_TEXTS: Final[Mapping[str, str]] = MappingProxyType({})


class Cursor(NamedTuple):
    """The job after which a page begins."""

    due_ms: int
    job_id: int


class Row(NamedTuple):
    """One job of a page; times are delayd's."""

    job_id: int
    state: State
    due_ms: int
    """When it came due last, of a job that is not delayed."""
    priority: int
    key: str
    """Empty if it has none."""
    failed: "Failed | None" = None
    """None if no attempt has failed."""
    target: bytes = b""
    """Its own; empty if it has none."""
    texts: Mapping[str, str] = NO_TEXTS
    """Further parts that its client has set, by name."""


class Failed(NamedTuple):
    """The attempts of a job, and the last failure."""

    attempts: int
    """Since its retry ladder began, including the current one."""
    last: Failure
    note: Note | None


class Page(NamedTuple):
    """What a search has found."""

    rows: list[Row]
    """In due order; sometimes fewer than `limit`, because some were changed meanwhile."""
    after: Cursor | None
    """Where the next page begins; None when this one is the last."""


def row_of(store: "Store", job_id: int, record: bytes) -> Row:
    """Return what a page says of a job."""
    due_ms: int = U64.unpack_from(record, DUE_AT)[0]
    state = seen_state(store, job_id, record)
    priority: int = PRIORITY_AND_TOPIC.unpack_from(record, PRIORITY_AT)[0]
    key = key_of(record).decode()
    failure = failure_of(record)
    failed = None
    if failure is not None:
        attempts = attempts_of(record) + (state is State.RESERVED)
        failed = Failed(attempts, failure, note_of(record))
    target = target_of(record)
    return Row(job_id, state, due_ms, priority, key, failed, target, texts_of(record))


class Search:
    """Looks for one page."""

    def __init__(
        self,
        engine: Engine,
        name: str,
        wanted: Wanted,
        limit: int = SEARCH_JOBS_MAX,
        after: Cursor | None = None,
    ) -> None:
        check_range("limit", limit, SEARCH_JOBS_MAX, lowest=1)
        self._store = engine.store
        self._limit = limit
        self._after_row = -1 if after is None else after.due_ms * ROW_ID_END + after.job_id
        if after is not None:
            wanted = wanted._replace(from_ms=max(wanted.from_ms, after.due_ms))
        self._scan = Scan(engine, topic_named(engine, name), wanted)
        # The negatives of rows, so that the latest of those kept comes first; and whose they are.
        self._heap: list[int] = []
        self._ids: set[int] = set()
        # In due order, once nothing more can come; the first `_written` of them are on the page.
        self._found: list[int] | None = None
        self._written = 0
        self.page = Page([], None)
        """What was found; complete when the search is over."""
        self.is_over = False

    def step(self, budget: int, now_ms: RequestMs) -> bool:
        """Look at `budget` more jobs; tell whether the page is complete."""
        while budget > 0 and not self.is_over:
            if self._found is None:
                rows = self._scan.take(budget, now_ms)
                if rows is None:
                    self._found = sorted(-row for row in self._heap)
                else:
                    self._keep(rows)
                budget -= self._scan.cost
            else:
                self._write(self._found, 1 + budget // ROW_COST)
                budget = 0
        return self.is_over

    def _keep(self, rows: list[int]) -> None:
        """Keep those that are among the first."""
        heap, ids = self._heap, self._ids
        for row in rows:
            job_id = row % ROW_ID_END
            if row <= self._after_row or job_id in ids:
                continue
            if len(heap) < self._limit:
                heappush(heap, -row)
            elif -row > heap[0]:
                ids.discard(-heapreplace(heap, -row) % ROW_ID_END)
            else:
                continue
            ids.add(job_id)
        if len(heap) == self._limit:
            latest_ms = -heap[0] // ROW_ID_END
            self._scan.until_ms = min(self._scan.until_ms, latest_ms + 1)

    def _write(self, found: list[int], count: int) -> None:
        """Put more jobs on the page: those that are still as they were when they were found."""
        store = self._store
        chunk = found[self._written : self._written + count]
        self._written += len(chunk)
        still = set(self._scan.rows([row % ROW_ID_END for row in chunk]))
        for row in chunk:
            if row not in still:
                continue
            job_id = row % ROW_ID_END
            record = store.jobs.get(job_id)
            assert record is not None
            self.page.rows.append(row_of(store, job_id, record))
        if self._written == len(found):
            if len(found) == self._limit:
                self.page = self.page._replace(after=Cursor(*divmod(found[-1], ROW_ID_END)))
            self.is_over = True


class Calendar:
    """Counts the delayed jobs that come due in each of a number of consecutive time spans.

    `counts[n]` is how many come due from `from_ms + n * bin_ms` on, for `bin_ms`. What is due
    already has come, and is in none.
    """

    def __init__(self, engine: Engine, name: str, *, from_ms: int, bin_ms: int, bins: int) -> None:
        check_range("bins", bins, CALENDAR_BINS_MAX, lowest=1)
        check_range("span in ms", bin_ms, DURATION_MS_MAX, lowest=1)
        wanted = Wanted(frozenset({State.DELAYED}), from_ms, from_ms + bins * bin_ms)
        self._scan = Scan(engine, topic_named(engine, name), wanted)
        self._from_ms = from_ms
        self._bin_ms = bin_ms
        self._seen = IdSet()
        self.counts = [0] * bins
        """Complete when the calendar is over."""
        self.is_over = False

    def step(self, budget: int, now_ms: RequestMs) -> bool:
        """Look at `budget` more jobs; tell whether all have been counted."""
        counts, seen = self.counts, self._seen
        while budget > 0 and not self.is_over:
            rows = self._scan.take(budget, now_ms)
            self.is_over = rows is None
            budget -= self._scan.cost
            for row in rows or ():
                due_ms, job_id = divmod(row, ROW_ID_END)
                if job_id not in seen:
                    seen.add(job_id)
                    counts[(due_ms - self._from_ms) // self._bin_ms] += 1
        return self.is_over
