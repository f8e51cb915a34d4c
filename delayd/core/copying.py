"""A copy of the state as it was at one instant, taken in slices while the state goes on changing.

The copy consists of ordinary records: what a fresh engine must replay to be where the store was
when the copy began. So a snapshot is read by the code that reads the log, and snapshot and log
cannot disagree about what a record means.

    TURN, LAST            how far time had been played, which numbers had been given
    TOPIC, PAUSE          for each topic that records may name
    PUT, RESERVE          for each job; RESERVE if somebody held it

It is exact because of the order in which things are done: the table of jobs consists of pages of
64, and a page that the copy has not come to yet is copied *before* the first change to one of its
jobs or to who holds it. Nobody waits: a slice is a bounded number of pages, and copying one early
takes 15 µs.

>>> from delayd.core.engine import Engine
>>> engine = Engine(start_ms=0)
>>> topic = engine.store.topic("default")
>>> engine.put(topic, priority=0, delay_ms=0, ttr_ms=9, body=b"x", now_ms=0)
1
>>> copy = Copy(engine.store)
>>> engine.delete(engine.open_session(), 1, now_ms=0)
>>> b"".join(copy.take(slice_jobs=1_000)).endswith(b"x"), copy.is_over
(True, True)
"""

from delayd.core.records import (
    Kind,
    pack_last,
    pack_pause,
    pack_put,
    pack_reserve,
    pack_topic,
    pack_turn,
)
from delayd.core.store import Store
from delayd.core.table import PAGE_BITS


class Copy:
    """One copy in the making. There is at most one of a store at a time."""

    __slots__ = ("_pages_left", "_pieces", "_store", "is_over", "jobs")

    def __init__(self, store: Store) -> None:
        """Begin: what the copy will say is decided now. O(topics + jobs / 64)."""
        self._store = store
        self._pieces = [
            pack_turn(Kind.TURN, store.time_ms),
            pack_last(Kind.LAST, store.last_id, store.last_topic_number),
        ]
        for topic in store.listing:
            if topic.recorded:
                name = topic.name.encode("ascii")
                self._pieces += (pack_topic(Kind.TOPIC, topic.number, len(name)), name)
                if topic.paused_until_ms is not None:
                    until_ms, pause_ms = topic.paused_until_ms, topic.pause_ms
                    self._pieces.append(pack_pause(Kind.PAUSE, topic.number, until_ms, pause_ms))
        self._pages_left = iter(store.jobs.guard(self._copy_page))
        self.jobs = 0
        """How many have been copied so far."""
        self.is_over = False
        """Everything has been taken."""

    def take(self, slice_jobs: int) -> list[bytes]:
        """Copy about so many jobs more; return the records there are by now."""
        table = self._store.jobs
        enough = self.jobs + slice_jobs
        for number in self._pages_left:
            table.uncover(number)
            if self.jobs >= enough:
                break
        else:
            table.unguard()
            self.is_over = True
        pieces, self._pieces = self._pieces, []
        return pieces

    def abandon(self) -> None:
        """Stop: the copy is not wanted any more."""
        self._store.jobs.unguard()
        self._pieces.clear()
        self.is_over = True

    def _copy_page(self, number: int, page: dict[int, bytes]) -> None:
        pieces = self._pieces
        holders = self._store.holders
        base = number << PAGE_BITS
        for offset, record in page.items():
            pieces += (pack_put(_PUT, len(record)), record)
            holder = holders.get(base | offset)
            if holder is not None:
                deadline_ms = holder.deadlines[base | offset]
                pieces.append(pack_reserve(Kind.RESERVE, base | offset, deadline_ms))
        self.jobs += len(page)


_PUT = int(Kind.PUT)
