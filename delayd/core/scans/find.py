"""The jobs that have a key, in whichever topics: keys are unique within a topic only.

    KeySearch(engine, key, may_see, limit)    .found: the jobs by topic, .after: of the next page

A background task (`core.background_tasks`): one look-up for each topic that has keys, and then a
row for each job that was found. A page is the first `limit` topics by name that have the key, so a
page of one answer and `after` lead to all of them however many they are. A topic that is made
meanwhile, or a job that is put, may be missing.

>>> from delayd.core.operations.put import put_keyed
>>> engine = Engine(start_ms=0)
>>> what = {"priority": 0, "ttr_ms": 9_000, "body": b"", "now_ms": 0}
>>> for name in ("sms", "mail"):
...     _ = put_keyed(engine, engine.store.topic(name), b"order-17", **what)
>>> search = KeySearch(engine, b"order-17", lambda name: True, limit=1)
>>> while not search.step(budget=100, now_ms=0): pass
>>> [(name, row.job_id) for name, row in search.found], search.after
([('mail', 2)], 'mail')
"""

from collections.abc import Callable
from contextlib import suppress
from heapq import nsmallest
from itertools import islice
from typing import final

from delayd.core.engine import Engine
from delayd.core.errors import JobNotFound
from delayd.core.names import checked_key
from delayd.core.operations.checks import check_range
from delayd.core.operations.tick import caught_up
from delayd.core.scans.list import ROW_COST, Row, row_of
from delayd.core.times import RequestMs
from delayd.limits import SEARCH_JOBS_MAX


@final
class KeySearch:
    """Looks for one page of them."""

    def __init__(
        self,
        engine: Engine,
        key: bytes,
        may_see: Callable[[str], bool],
        limit: int = SEARCH_JOBS_MAX,
        after: str = "",
        *,
        cost: int = 1,
    ) -> None:
        """Begin behind the topic `after`; `KeyInvalid`, `ValueOutOfRange`.

        Topics that the client `may_see` are searched; to look at one takes as long as `cost` jobs.
        """
        check_range("limit", limit, SEARCH_JOBS_MAX, lowest=1)
        self._engine = engine
        self._key = checked_key(key)
        self._may_see = may_see
        self._limit = limit
        self._first = after
        self._cost = cost
        self._left = iter(tuple(engine.store.topics.listing))
        self._names: list[str] = []
        """Of topics that have the key: while they are looked for, and then those to be shown, the
        last one first."""
        self._is_searched = False
        self.found: list[tuple[str, Row]] = []
        """Topic and job; complete when the search is over."""
        self.after: str | None = None
        """The topic behind which the next page begins; None when this one is the last."""

    def step(self, budget: int, now_ms: RequestMs) -> bool:
        """Look at so many more topics, or fewer that have the key; tell whether it is over."""
        if not self._is_searched:
            self._look(max(1, budget // self._cost))
            return False
        for _ in range(min(len(self._names), max(1, budget // ROW_COST))):
            self._show(self._names.pop(), now_ms)
        return not self._names

    def _look(self, count: int) -> None:
        store, key, names = self._engine.store, self._key, self._names
        some = tuple(islice(self._left, count))
        for topic in some:
            if topic.keys is None or topic.is_internal or topic.name <= self._first:
                continue
            if not store.keys.owner_of(topic, key):
                continue
            if self._may_see(topic.name):
                names.append(topic.name)
        self._is_searched = len(some) < count
        if self._is_searched or len(names) > 2 * self._limit:
            self._names = names = nsmallest(self._limit + 1, names)
        if self._is_searched:
            if len(names) > self._limit:
                names.pop()
                self.after = names[-1]
            names.reverse()

    def _show(self, name: str, now_ms: RequestMs) -> None:
        """Add the topic's job as it is now, if it still has the key."""
        store, key = self._engine.store, self._key
        topic = store.topics.by_name.get(name)
        job_id = 0 if topic is None else store.keys.owner_of(topic, key)
        if not job_id:
            return
        with suppress(JobNotFound):
            record, _ = caught_up(self._engine, job_id, now_ms)
            # A ttr that has run out just now may have moved it to another topic, without its key.
            if store.topic_of(record).name == name:
                self.found.append((name, row_of(store, job_id, record)))
