"""A copy of the state as it was at one instant, taken in slices while the state keeps changing.

The copy consists of ordinary records: what a fresh engine must replay to be where the store was
when the copy began. So a snapshot is read by the code that reads the log, and snapshot and log
cannot disagree about what a record means.

    TURN, LAST            how far time had been played, which numbers were in use
    OFFSET                where absolute times are, if the log says so
    PARTS                 which further parts jobs have, if the log says so
    RANK                  the last position among the buried, if others may follow now
    TOPIC, PAUSE          for each topic that records may name, PAUSE_GROUP for each of its groups
    POLICY                for each of them that has one
    PUT, RESERVE, TOUCH   for each job; RESERVE if it was reserved, TOUCH if that was extended
    PARTS                 before the first whose ttr had run out, if that gives it a further part

What was due by then is copied as having happened, whether or not its slice had come: a delay that
had ended, a ttr that had run out (judged by the policy of then), a pause that was over.

It is exact because of the order in which things are done: the table of jobs consists of pages of
64, and a page that the copy has not come to yet is frozen *before* the first change to one of its
jobs or leases. Freezing is a list of what is there, 1 µs (5 µs where jobs are reserved), and its
memory, 10 bytes a job, is freed by the slice that comes to the page.
Pages are copied in the order of the table whatever happens meanwhile, so the bytes of a copy depend
on nothing but the state when it began.

>>> from delayd.core.engine import Engine
>>> from delayd.core.operations.ack import delete
>>> from delayd.core.operations.put import put_alike
>>> from delayd.core.operations.sessions import open_session
>>> engine = Engine(start_ms=0)
>>> topic = engine.store.topic("default")
>>> put_alike(engine, topic, 0, 0, 9, [b"x"], now_ms=0)
1
>>> copy = SnapshotCopy(engine.store)
>>> delete(engine, open_session(engine), 1, now_ms=0)
>>> copy.take(slice_jobs=1_000, slice_bytes=1_000).endswith(b"x"), copy.is_over, copy.jobs
(True, True, 1)
"""

from collections.abc import Iterator
from itertools import chain, repeat
from typing import Final

from delayd.core.job_parts import word_of
from delayd.core.job_record import (
    DUE_AT,
    ID_AT,
    PRIORITY_AND_TOPIC,
    PRIORITY_AT,
    STATE_AT,
    TTR_AT,
    U64,
    State,
)
from delayd.core.job_table import PAGE_BITS, Page, offsets_of, records_of
from delayd.core.log_records import Kind, pack, pack_put
from delayd.core.retry import Place, caught_up_expiry
from delayd.core.store import Store
from delayd.core.topic import Source, Topic, place_of
from delayd.core.transitions import came_due, rank_at, renumbered

_PUT: Final = int(Kind.PUT)
_DELAYED: Final = int(State.DELAYED)

_NO_POLICY: Final = (None, Source.CONFIGURATION, Place(""))

Notes = dict[int, tuple[int, int]]
"""Id → deadline, and `Leases.begun`, 0 if it is not there, of reserved jobs: what their records do
not have."""


class SnapshotCopy:
    """One copy in the making. There is at most one of a store at a time."""

    def __init__(self, store: Store) -> None:
        """Begin: what the copy will say is decided now. O(topics + jobs / 64).

        Not while jobs with absolute times are being placed: their records are out of date. Not
        while cleared jobs are being swept: they are still in the table.
        """
        assert self.can_begin(store), "jobs are being placed anew or swept away"
        self._store = store
        self._time_ms = store.time_ms
        deadline_ms = store.timer_queue.next_deadline()
        self._has_due = deadline_ms is not None and deadline_ms <= store.time_ms
        # With their numbers of now: a clear gives others.
        self._topics = [topic for topic in store.topics.listing if topic.recorded]
        self._topic_numbers = [topic.number for topic in self._topics]
        self._numbers = {
            old: topic.number
            for topic in store.topics.listing
            if topic.old_held
            for old in topic.old_held
        }
        self._paused = store.blocks.paused.copy()
        self._paused_groups = {
            topic.number: [*groups.paused.items()]
            for topic in self._topics
            if (groups := topic.queues.ready.groups) is not None and groups.paused
        }
        self._policies = {
            topic.number: (topic.policy, topic.policy_source, place_of(topic))
            for topic in store.topics.listing
            if topic.policy is not None
        }
        self._slice_bytes = 0
        self._frozen: dict[int, tuple[list[bytes], Notes]] = {}
        last = pack(Kind.LAST, store.last_put_id, store.topics.last_number)
        if store.wall_times.recorded_ms is not None:
            last += pack(Kind.OFFSET, store.wall_times.recorded_ms)
        self._parts_known = store.parts_recorded
        if store.parts_recorded:
            last += pack(Kind.PARTS, store.parts_recorded)
        if store.last_rank > rank_at(self._time_ms):
            # The job that got it may be gone; the next one, of the same millisecond, comes after.
            last += pack(Kind.RANK, 0, store.last_rank)
        self._parts = self._copied(last, store.jobs.guard(self._freeze))
        self.jobs = 0
        """How many have been copied so far."""
        self.is_over = False
        """Everything has been taken."""

    @staticmethod
    def can_begin(store: Store) -> bool:
        """Tell whether a copy may begin now."""
        return not (store.wall_times.layers or store.cleared.left)

    def take(self, slice_jobs: int, slice_bytes: int) -> bytes:
        """Return records of `slice_jobs` more jobs or topics, or `slice_bytes` if less.

        It exceeds them by one page or one job at most; a page of more than `slice_bytes` is taken
        job by job.
        """
        self._slice_bytes = slice_bytes
        taken_bytes = taken_pieces = 0
        pieces: list[bytes] = []
        while taken_pieces < 2 * slice_jobs and taken_bytes < slice_bytes:
            part = next(self._parts, None)
            if part is None:
                self._store.jobs.unguard()
                self.is_over = True
                break
            pieces += part
            taken_pieces += max(2, len(part))  # of a topic without a policy there is nothing
            taken_bytes += sum(map(len, part))
        return b"".join(pieces)

    def abandon(self) -> None:
        """Stop: the copy is not needed any more; does nothing when it is over."""
        if not self.is_over:
            self._store.jobs.unguard()
            self._parts = iter(())
            self._frozen.clear()
            self.is_over = True

    # --- Freezing --------------------------------------------------------------------------------

    def _freeze(self, number: int, page: Page) -> None:
        """Keep the page as it is, with the leases of its jobs."""
        notes: Notes = {}
        store = self._store
        holders, begun = store.leases.sessions, store.leases.begun
        if holders:
            base = number << PAGE_BITS
            for job_id in map(base.__or__, offsets_of(page)):
                if job_id in holders:
                    notes[job_id] = holders[job_id].deadlines[job_id], begun.get(job_id, 0)
        self._frozen[number] = (records_of(page), notes)

    # --- Packing ---------------------------------------------------------------------------------

    def _copied(self, last: bytes, numbers: list[int]) -> Iterator[list[bytes]]:
        """Yield the records in pieces, as a list for each topic, page or job."""
        yield [pack(Kind.TURN, self._time_ms), last]
        for topic, number in zip(self._topics, self._topic_numbers, strict=True):
            yield self._copied_topic(topic, number)
        for number in self._topic_numbers:
            yield self._copied_policy(number)
        self._topics.clear()
        self._topic_numbers.clear()
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

    def _copied_topic(self, topic: Topic, number: int) -> list[bytes]:
        name = topic.name.encode("ascii")
        part = [pack(Kind.TOPIC, number, len(name)), name]  # two pieces, as a job has
        until_ms, pause_ms = self._paused.get(number, (0, 0))
        if until_ms > self._time_ms:
            part.append(pack(Kind.PAUSE, number, until_ms, pause_ms))
        for group, (until_ms, pause_ms) in self._paused_groups.get(number, ()):
            if until_ms > self._time_ms:
                part.append(pack(Kind.PAUSE_GROUP, number, until_ms, pause_ms, tail=group))
        return part

    def _copied_policy(self, number: int) -> list[bytes]:
        """Return a topic's policy; after all names, since it may name another topic."""
        policy, source, _ = self._policies.get(number, _NO_POLICY)
        if policy is None:
            return []
        return [pack(Kind.POLICY, number, source, tail=policy.to_json().encode("ascii"))]

    def _lapsed(self, record: bytes, deadline_ms: int, begun_ms: int) -> bytes:
        """Return the record of a job whose ttr had run out when the copy began."""
        number = PRIORITY_AND_TOPIC.unpack_from(record, PRIORITY_AT)[1]
        policy, _, place = self._policies.get(number, _NO_POLICY)
        return caught_up_expiry(
            *(record, policy, place, deadline_ms),
            tick_ms=self._store.tick_ms,
            time_ms=self._time_ms,
            begun_ms=begun_ms,
        )

    def _copied_jobs(self, records: list[bytes], notes: Notes) -> Iterator[list[bytes]]:
        """Yield the records of each job of a page, after what was due has happened."""
        time_ms, known = self._time_ms, self._parts_known
        for record in records:
            before: tuple[bytes, ...] = ()
            job_id: int = U64.unpack_from(record, ID_AT)[0]
            deadline_ms, begun_ms = notes.get(job_id, (None, 0))
            now = record
            if self._numbers:  # the job may be held since before a clear of its topic
                number = PRIORITY_AND_TOPIC.unpack_from(record, PRIORITY_AT)[1]
                now = renumbered(record, self._numbers.get(number, number))
            if deadline_ms is not None and deadline_ms <= time_ms:
                now, deadline_ms = self._lapsed(now, deadline_ms, begun_ms), None
                if word_of(now) & ~known:  # no attempt had failed before
                    self._parts_known = known = known | word_of(now)
                    before = (pack(Kind.PARTS, known),)
            elif deadline_ms is None and record[STATE_AT] == _DELAYED:
                due_ms: int = U64.unpack_from(record, DUE_AT)[0]
                now = came_due(now) if due_ms <= time_ms else now
            part = [*before, pack_put(_PUT, len(now)), now]
            if deadline_ms is not None and begun_ms:
                ttr_ms: int = U64.unpack_from(record, TTR_AT)[0]
                part.append(pack(Kind.RESERVE, job_id, begun_ms + ttr_ms))
                part.append(pack(Kind.TOUCH, job_id, deadline_ms))
            elif deadline_ms is not None:
                part.append(pack(Kind.RESERVE, job_id, deadline_ms))
            self.jobs += 1
            yield part
