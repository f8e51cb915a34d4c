"""A copy of the state as it was at one instant, taken in slices while the state goes on changing.

The copy consists of ordinary records: what a fresh engine must replay to be where the store was
when the copy began. So a snapshot is read by the code that reads the log, and snapshot and log
cannot disagree about what a record means.

    TURN, LAST            how far time had been played, which numbers had been given
    OFFSET                where absolute times are, if the log says so
    TOPIC, PAUSE          for each topic that records may name
    PUT, RESERVE, RANK    for each job; RESERVE if somebody held it, RANK if it was buried

What was due by then is copied as having happened, whether or not its slice had come: a delay that
had ended, a ttr that had run out, a pause that was over.

It is exact because of the order in which things are done: the table of jobs consists of pages of
64, and a page that the copy has not come to yet is frozen *before* the first change to one of its
jobs or to who holds it. Nobody waits: freezing is a list of what is there, 1 µs (5 µs where jobs
are held), and the memory it takes, 10 bytes a job, goes with the slice that comes to the page.
Pages are copied in the order of the table whatever happens meanwhile, so the bytes of a copy depend
on nothing but the state when it began.

>>> from delayd.core.engine import Engine
>>> engine = Engine(start_ms=0)
>>> topic = engine.store.topic("default")
>>> engine.put(topic, priority=0, delay_ms=0, ttr_ms=9, body=b"x", now_ms=0)
1
>>> copy = Copy(engine.store)
>>> engine.delete(engine.open_session(), 1, now_ms=0)
>>> copy.take(slice_jobs=1_000, slice_bytes=1_000).endswith(b"x"), copy.is_over, copy.jobs
(True, True, 1)
"""

from collections.abc import Iterator
from itertools import chain, repeat
from typing import Final

from delayd.core.job import DUE_AT, ID_AT, STATE_AT, U64, State, came_due, lapsed
from delayd.core.records import (
    Kind,
    pack_last,
    pack_offset,
    pack_pause,
    pack_put,
    pack_rank,
    pack_reserve,
    pack_topic,
    pack_turn,
)
from delayd.core.store import Store
from delayd.core.table import PAGE_BITS, Page
from delayd.core.topic import Topic

_PUT: Final = int(Kind.PUT)
_DELAYED: Final = int(State.DELAYED)
_BURIED: Final = int(State.BURIED)

Notes = dict[int, tuple[Kind, int]]
"""Id → RESERVE and the deadline, or RANK and the rank: what a record does not say of its job."""


class Copy:
    """One copy in the making. There is at most one of a store at a time."""

    __slots__ = (
        "_frozen",
        "_has_due",
        "_parts",
        "_paused",
        "_slice_bytes",
        "_store",
        "_time_ms",
        "_topics",
        "is_over",
        "jobs",
    )

    def __init__(self, store: Store) -> None:
        """Begin: what the copy will say is decided now. O(topics + jobs / 64).

        Not while jobs with absolute times are placed anew: their records are out of date.
        """
        assert not store.absolute.layers, "jobs are being placed anew"
        self._store = store
        self._time_ms = store.time_ms
        deadline_ms = store.agenda.next_deadline()
        self._has_due = deadline_ms is not None and deadline_ms <= store.time_ms
        self._topics = [topic for topic in store.listing if topic.recorded]
        self._paused = store.paused.copy()
        self._slice_bytes = 0
        self._frozen: dict[int, tuple[list[bytes], Notes]] = {}
        last = pack_last(Kind.LAST, store.last_put_id, store.last_topic_number)
        if store.absolute.recorded_ms is not None:
            last += pack_offset(Kind.OFFSET, store.absolute.recorded_ms)
        self._parts = self._copied(last, store.jobs.guard(self._freeze))
        self.jobs = 0
        """How many have been copied so far."""
        self.is_over = False
        """Everything has been taken."""

    def take(self, slice_jobs: int, slice_bytes: int) -> bytes:
        """Return so many more jobs' (or topics') records, or so many bytes if that comes first.

        It exceeds them by one page or one job at most; a page of more than `slice_bytes` is taken
        job by job.
        """
        self._slice_bytes = slice_bytes
        taken_bytes = 0
        pieces: list[bytes] = []
        while len(pieces) < 2 * slice_jobs and taken_bytes < slice_bytes:
            part = next(self._parts, None)
            if part is None:
                self._store.jobs.unguard()
                self.is_over = True
                break
            pieces += part
            taken_bytes += sum(map(len, part))
        return b"".join(pieces)

    def abandon(self) -> None:
        """Stop: the copy is not wanted any more; does nothing when it is over."""
        if not self.is_over:
            self._store.jobs.unguard()
            self._parts = iter(())
            self._frozen.clear()
            self.is_over = True

    # --- Freezing --------------------------------------------------------------------------------

    def _freeze(self, number: int, page: Page) -> None:
        """Keep the page as it is, with what else is to be said of its jobs."""
        notes: Notes = {}
        store = self._store
        if store.holders or store.last_rank:
            self._note(number << PAGE_BITS, page, notes)
        self._frozen[number] = (list(page.values()), notes)

    def _note(self, base: int, page: Page, notes: Notes) -> None:
        holders = self._store.holders
        for offset, record in page.items():
            job_id = base | offset
            if job_id in holders:
                notes[job_id] = Kind.RESERVE, holders[job_id].deadlines[job_id]
            elif record[STATE_AT] == _BURIED:
                notes[job_id] = Kind.RANK, self._store.topic_of(record).buried[job_id]

    # --- Packing ---------------------------------------------------------------------------------

    def _copied(self, last: bytes, numbers: list[int]) -> Iterator[list[bytes]]:
        """Yield the records in pieces, as a list for each topic, page or job."""
        yield [pack_turn(Kind.TURN, self._time_ms), last]
        for topic in self._topics:
            yield self._copied_topic(topic)
        self._topics.clear()
        uncover = self._store.jobs.uncover
        for number in numbers:
            uncover(number)
            records, notes = self._frozen.pop(number)
            if self._has_due or notes or sum(map(len, records)) > self._slice_bytes:
                yield from self._copied_jobs(records, notes)
            else:
                # The usual case at a quarter of the cost: 0.15 µs a job.
                heads = map(pack_put, repeat(_PUT), map(len, records))
                self.jobs += len(records)
                yield list(chain.from_iterable(zip(heads, records, strict=False)))

    def _copied_topic(self, topic: Topic) -> list[bytes]:
        name = topic.name.encode("ascii")
        part = [pack_topic(Kind.TOPIC, topic.number, len(name)), name]
        until_ms, pause_ms = self._paused.get(topic.number, (0, 0))
        if until_ms > self._time_ms:
            part.append(pack_pause(Kind.PAUSE, topic.number, until_ms, pause_ms))
        return part

    def _copied_jobs(self, records: list[bytes], notes: Notes) -> Iterator[list[bytes]]:
        """Yield the records of each job of a page, as it stands now that what was due is done."""
        time_ms = self._time_ms
        for record in records:
            job_id: int = U64.unpack_from(record, ID_AT)[0]
            kind, value = notes.get(job_id, (None, 0))
            now = record
            if kind is Kind.RESERVE and value <= time_ms:
                now, kind = lapsed(record), None
            elif kind is None and record[STATE_AT] == _DELAYED:
                due_ms: int = U64.unpack_from(record, DUE_AT)[0]
                now = came_due(record) if due_ms <= time_ms else record
            part = [pack_put(_PUT, len(now)), now]
            if kind is Kind.RESERVE:
                part.append(pack_reserve(kind, job_id, value))
            elif kind is Kind.RANK:
                part.append(pack_rank(kind, job_id, value))
            self.jobs += 1
            yield part
