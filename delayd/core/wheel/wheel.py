"""The hierarchical timing wheel: it keeps entries until they are due, at a cost that does not grow.

The picture is Kafka's `TimingWheel`. A wheel has `wheel_size` buckets, each as wide as its *tick*;
together they span its *interval*. What lies after the interval goes to an *overflow* wheel above,
whose tick is this interval, and so on: here each of these wheels is called a *level*, counted from
1 for the lowest. A bucket of a higher level comes due at its beginning. Its entries then *cascade*:
each is placed again by its own due time, into a lower level, until level 1 fires it.

With a tick of 1 ms and 20 buckets a level, seen at time 0:

    level  tick    interval   a bucket of it
    1        1 ms     20 ms   entries due at 11
    2       20 ms    400 ms   slot 17: entries due from 340 to 359
    3      400 ms  8,000 ms   slot 1: entries due from 400 to 799

An entry due at 450 waits in level 3 until 400, then in level 2 with those due from 440 to 459 until
440, then in level 1 until 450. `TimingWheel` shows it as an example that runs.

What differs from Kafka, and why:

- Due times are rounded *up* to the tick, by `ceil_to_tick` alone. Kafka rounds down and may fire up
  to a tick early.
- Empty buckets do not exist. Others are found by what they are (expiration and level), so an empty
  wheel is small and its levels appear when they are needed.
- An entry is a bare 64-bit number. The owner's `due_of` returns its due time when that matters; so
  `cancel` has nothing to find: it counts. `sweep.py` drops the dead in small steps once they
  outnumber the living. Kafka's linked lists find the entry at once, and cost 150 bytes more for
  each in Python.
- One call of `advance` does a bounded piece of work. A bucket that it did not finish is `pending`.
- Few entries need no lower levels: a bucket that comes due with at most `SORTED_ENTRIES_PER_SLOT`
  for each slot below it is not cascaded but sorted by due time (`_sorted`), and fires from there. A
  sparse wheel so wakes its owner once for an entry and not once a level, and opens no bucket for
  each. It is how a ladder queue ends (Tang, Goh, Thng: Ladder queue, 2005): spread what is much,
  sort what is little.
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import groupby, islice
from operator import itemgetter
from typing import Final, NamedTuple

from delayd.core.wheel.buckets import (
    LEVEL_BITS,
    LEVELS_MAX,
    Bucket,
    BucketQueue,
    Level,
    Mark,
    WheelCounts,
    expiration_of,
    level_of,
)
from delayd.core.wheel.sweep import Sweep
from delayd.limits import (
    SORTED_ENTRIES_MAX,
    SORTED_ENTRIES_PER_SLOT,
    SWEEP_CHUNK_ENTRIES,
    SWEEP_DEAD_PER_LIVE,
    SWEEP_ENTRIES_PER_CANCEL,
    SWEEP_SLACK_ENTRIES,
)

_LEVEL_1: Final = LEVELS_MAX - 1
"""The part of a key that stands for level 1."""
_key_of: Final = itemgetter(0)


def ceil_to_tick(time_ms: int, tick_ms: int) -> int:
    """Round up to a multiple of the tick: the one place that rounds, so that nothing is early."""
    # Not -(-time_ms // tick_ms) * tick_ms: compiled, a product of times takes 600 instructions.
    return time_ms + -time_ms % tick_ms


class BucketView(NamedTuple):
    """A bucket as `layout` shows it."""

    level: int
    slot: int
    expiration_ms: int
    entries: tuple[int, ...]


class TimingWheel:
    """Entries in the order in which they come due, in buckets of several levels.

    `due_of(entry)` must return the due time that the entry was inserted with, until it is cancelled
    or fired, and then None or the due time that it is inserted with next.

    >>> due_ms = {7: 450}
    >>> wheel = TimingWheel(tick_ms=1, wheel_size=20, start_ms=0, due_of=due_ms.get)
    >>> wheel.insert(7, due_ms[7], now_ms=0)
    True
    >>> wheel.layout()
    [BucketView(level=3, slot=1, expiration_ms=400, entries=(7,))]
    >>> wheel.advance(400, limit=100), wheel.layout()
    ([], [BucketView(level=2, slot=2, expiration_ms=440, entries=(7,))])
    >>> wheel.advance(440, limit=100), wheel.layout()
    ([], [BucketView(level=1, slot=10, expiration_ms=450, entries=(7,))])
    >>> wheel.next_deadline()
    450
    >>> wheel.advance(450, limit=100), wheel.next_deadline()
    ([7], None)
    """

    __slots__ = (
        *("_clock_ms", "_counts", "_dead", "_dead_max", "_due_of", "_held", "_levels"),
        *("_memo_after_ms", "_memo_append", "_memo_bucket", "_memo_until_ms", "_pending"),
        *("_pending_at", "_pending_key", "_pending_sorts", "_queue", "_sorted", "_sorted_max"),
        *("_sweep", "_sweep_credit", "_twins_suspected"),
        *("tick_ms", "wheel_size"),
    )

    def __init__(
        self,
        tick_ms: int,
        wheel_size: int,
        start_ms: int,
        due_of: Callable[[int], int | None],
        counts: WheelCounts | None = None,
    ) -> None:
        """Start empty at `start_ms`, with one level; several wheels may share `counts`."""
        self.tick_ms = tick_ms
        self.wheel_size = wheel_size
        self._due_of = due_of
        self._counts = WheelCounts() if counts is None else counts
        # A multiple of the tick. No bucket that is not pending expires before it.
        self._clock_ms = start_ms - start_ms % tick_ms
        self._levels = [Level(1, tick_ms, tick_ms * wheel_size)]
        self._queue = BucketQueue()
        self._held = 0
        self._dead = 0
        # How many dead ones `cancel` may count before it looks whether to sweep. Inserts make more
        # tolerable, so it may be too low; what makes fewer tolerable sets it to 0.
        self._dead_max = 0
        # The bucket that is being fired, cascaded or sorted, already taken off the queue, and how
        # far.
        self._pending: Bucket | None = None
        self._pending_key = 0
        self._pending_at = 0
        self._pending_sorts = False
        # What was sorted, the first to fire last: its key if it had a bucket of level 1, the entry.
        self._sorted: list[tuple[int, int]] = []
        self._sorted_max = min(SORTED_ENTRIES_MAX, SORTED_ENTRIES_PER_SLOT * wheel_size)
        # The bucket that was last put into takes due times after the one and until the other; none
        # when both are the same.
        self._memo_after_ms = self._memo_until_ms = -1
        self._memo_bucket: Bucket = array("Q")
        self._memo_append: Callable[[int], None] = self._memo_bucket.append
        self._sweep: Sweep | None = None
        self._sweep_credit = 0
        self._twins_suspected = False

    def replace_due_of(self, due_of: Callable[[int], int | None]) -> None:
        """Take another `due_of`, which returns the same for all live entries."""
        self._due_of = due_of

    def __len__(self) -> int:
        return self._held - self._dead

    def insert(self, entry: int, due_ms: int, now_ms: int) -> bool:
        """Add an entry; return whether `next_deadline()` may be earlier now than it was.

        An entry that is due already fires at the next `advance`.
        """
        self._held += 1
        # 200,000 a second come through here, most for the bucket of the one before: 90 ns instead
        # of 600 by way of `_place`.
        if self._memo_after_ms < due_ms <= self._memo_until_ms:
            self._memo_append(entry)
            return False
        if now_ms >= self._clock_ms + self.tick_ms and not self._is_due(now_ms):
            # Nothing has happened for a while. Placed by today's clock, the entry cascades less.
            self._clock_ms = now_ms - now_ms % self.tick_ms
        return self._place(entry, due_ms) and self._pending is None

    def insert_run(self, entries: Sequence[int], due_ms: int, now_ms: int) -> bool:
        """Add entries with the same due time; return what `insert` returns."""
        is_first = self.insert(entries[0], due_ms, now_ms)
        if len(entries) > 1:
            self._held += len(entries) - 1
            self._memo_bucket.extend(array("Q", entries[1:]))
        return is_first

    def cancel(self, entries: int = 1) -> None:
        """Give up so many live entries; `due_of` has changed already, or does before the next call.

        O(1): when there are three dead for each live one it sweeps, 16 entries for each.
        """
        dead = self._dead = self._dead + entries
        if dead > self._dead_max and self._has_too_many_dead():
            self._sweep_credit += SWEEP_ENTRIES_PER_CANCEL * entries
            while self._sweep_credit >= SWEEP_CHUNK_ENTRIES:
                self._sweep_credit -= SWEEP_CHUNK_ENTRIES
                self._sweep_on()

    def next_deadline(self) -> int | None:
        """Return when to call `advance` next, None when never; up to now means: again, at once."""
        if self._pending is not None:
            return self._clock_ms
        keys = self._queue.keys
        if self._sorted:
            key = self._sorted[-1][0]
            return (keys[0] if keys and keys[0] < key else key) >> LEVEL_BITS
        return keys[0] >> LEVEL_BITS if keys else None

    def advance(self, now_ms: int, limit: int) -> list[int]:
        """Return entries that are due, oldest first, each once; the wheel has dropped them.

        Touches about `limit` entries, fired or cascaded, so the list may be empty although more is
        due: `next_deadline()` tells. The caller changes what `due_of` says of the entries returned
        before it calls again.
        """
        fired: list[int] = []
        has_twins = self._dead > 0
        due_of, tick_ms = self._due_of, self.tick_ms
        keys = self._queue.keys
        due_keys_end = (now_ms + 1) << LEVEL_BITS
        while limit > 0:
            if self._pending is None:
                end = keys[0] + 1 if keys and keys[0] < due_keys_end else due_keys_end
                rows = self._sorted
                while rows and rows[-1][0] < end and limit > 0:
                    key, entry = rows.pop()
                    limit -= 1
                    until_ms = self._clock_ms = key >> LEVEL_BITS
                    due_ms = due_of(entry)
                    if due_ms is not None and until_ms - tick_ms < due_ms <= until_ms:
                        fired.append(entry)
                    else:
                        self._drop(1)
                if limit <= 0:
                    break
                if end == due_keys_end:
                    if now_ms - tick_ms >= self._clock_ms:
                        self._clock_ms = now_ms - now_ms % tick_ms
                    break
                self._take_first()
            chunk = self._next_chunk(limit)
            limit -= len(chunk)
            if self._pending_key & LEVELS_MAX == _LEVEL_1:
                alive = self._alive(chunk, self._pending_key)
                self._drop(len(chunk) - len(alive))
                fired += alive
            elif self._pending_sorts:
                self._sort(chunk, self._pending_key)
            else:
                self._cascade(chunk, self._pending_key)
        if has_twins:
            # Only an entry that was cancelled and inserted again can be here twice.
            once = list(dict.fromkeys(fired))
            self._drop(len(fired) - len(once))
            fired = once
        self._held -= len(fired)
        self._dead_max = 0
        return fired

    def soonest(self, count: int) -> list[int]:
        """Return the `count` live entries that come due first, by due time and then by entry.

        What is before them on a higher level is cascaded ahead of its time, once: O(entries in
        the first buckets) then, and O(count) when asked again.
        """
        due_of = self._due_of
        found = self._pending_live()
        self._open_sorted()
        queue = self._queue
        place = 0
        while place < len(queue.keys):
            key = queue.keys[place]
            if len(found) >= count and expiration_of(key) > self._clock_ms:
                break
            if level_of(key) > 1:
                key, bucket = self._take(place)
                self._cascade(bucket, key)
                continue
            found.update(self._alive(queue.by_key[key], key))
            place += 1
        rows = sorted((due_of(entry) or 0, entry) for entry in found)
        return [entry for _, entry in islice(rows, count)]

    # --- Looking along ---------------------------------------------------------------------------

    def enter(self, mark: Mark) -> tuple[int, int] | None:
        """Move the mark to a bucket that has not been scanned; None when there is no more.

        Returns (after, until]: where the due times of its live entries lie; nothing that is still
        to come is due by `after`. Between two calls anything may be done to the wheel: an entry
        that is in it all the while is seen, now and then twice. A cascade moves entries ahead.
        """
        self._open_sorted()
        queue, pending = self._queue, self._pending
        bucket = mark.bucket
        if mark.end and (bucket is pending or bucket is queue.by_key.get(mark.place >> 1)):
            key = mark.place >> 1
        elif pending is not None and pending is not bucket and mark.place <= self._pending_key << 1:
            key = self._pending_key
            mark.place, mark.bucket, mark.end = key << 1, pending, len(pending)
        else:
            place = bisect_left(queue.keys, mark.place + 1 >> 1)
            if place == len(queue.keys):
                return None
            key = queue.keys[place]
            mark.place, mark.bucket = key << 1 | 1, queue.by_key[key]
            mark.end = len(mark.bucket)
        # What was overdue when it was inserted is in, or after, a bucket that is due by now.
        expiration_ms = expiration_of(key)
        after_ms = expiration_ms - self.tick_ms if expiration_ms > self._clock_ms else -1
        return after_ms, self._span_of(key)[1]

    def next_entries(self, mark: Mark, limit: int) -> Bucket:
        """Return so many more entries of the bucket that was just entered, dead ones among them."""
        bucket = mark.bucket
        assert bucket is not None, "`enter` comes first"
        end = min(mark.end, len(bucket))
        mark.end = max(0, end - limit)
        return bucket[mark.end : end]

    def take_some(self, limit: int) -> Bucket:
        """Take some entries out, dead ones among them; none when it is empty.

        For taking a wheel apart: it is good for nothing else from then on.
        """
        self._open_sorted()
        if self._pending is None:
            self._sweep = None  # its gap holds entries that are dead anyway
            if not self._queue.keys:
                return array("Q")
            self._pending_key, self._pending = self._take(len(self._queue.keys) - 1)
            self._pending_at = 0
        return self._next_chunk(limit)

    # --- Placing ---------------------------------------------------------------------------------

    def _is_due(self, now_ms: int) -> bool:
        """Whether `advance` has something to do at `now_ms`."""
        deadline_ms = self.next_deadline()
        return deadline_ms is not None and deadline_ms <= now_ms

    def _place(self, entry: int, due_ms: int) -> bool:
        """Put the entry into its bucket; return whether that is now the first. O(levels)."""
        clock_ms = self._clock_ms
        expiration_ms = ceil_to_tick(due_ms, self.tick_ms)
        ahead_ms = expiration_ms - clock_ms
        if ahead_ms <= 0:
            key = clock_ms << LEVEL_BITS | (LEVELS_MAX - 1)
            until_ms, width_ms = due_ms, 1
        else:
            for number, tick_ms, interval_ms in self._levels:  # noqa: B007
                # Kafka's rule: a level holds what is due before its own clock + its interval. The
                # first comparison spares the levels that are passed a division: 60 ns each.
                if ahead_ms < interval_ms and ahead_ms < interval_ms - clock_ms % tick_ms:
                    break
            else:
                number, tick_ms = self._add_levels(ahead_ms)
            bucket_ms = expiration_ms - expiration_ms % tick_ms
            key = bucket_ms << LEVEL_BITS | (LEVELS_MAX - number)
            until_ms, width_ms = bucket_ms + tick_ms - self.tick_ms, tick_ms
        bucket = self._queue.by_key.get(key)
        is_first = False
        if bucket is None:
            bucket, is_first = self._queue.open(key)
        self._memo_until_ms = until_ms
        self._memo_after_ms = until_ms - width_ms
        self._memo_bucket = bucket
        append = self._memo_append = bucket.append
        append(entry)
        return is_first

    def _add_levels(self, ahead_ms: int) -> tuple[int, int]:
        """Add overflow levels up to one that reaches so far ahead; return its number and tick."""
        while True:
            number, _, tick_ms = self._levels[-1]
            level = Level(number + 1, tick_ms, tick_ms * self.wheel_size)
            self._levels.append(level)
            self._counts.levels = max(self._counts.levels, level.number)
            if ahead_ms < level.interval_ms - self._clock_ms % tick_ms:
                return level.number, level.tick_ms

    def _span_of(self, key: int) -> tuple[int, int]:
        """Return (after, until]: the due times, not rounded, that belong into the bucket."""
        expiration_ms = expiration_of(key)
        number = level_of(key)
        if number == 1:
            # What was overdue when it was inserted is here too.
            return -1, expiration_ms
        width_ms = self._levels[number - 1].tick_ms
        return expiration_ms - self.tick_ms, expiration_ms + width_ms - self.tick_ms

    # --- Coming due ------------------------------------------------------------------------------

    def _take_first(self) -> None:
        """Make the first bucket pending, and move the clock to its expiration."""
        self._pending_key, self._pending = self._take(0)
        self._pending_at = 0
        self._pending_sorts = len(self._pending) + len(self._sorted) <= self._sorted_max
        self._clock_ms = self._pending_key >> LEVEL_BITS

    def _next_chunk(self, limit: int) -> Bucket:
        """Take up to `limit` entries off the pending bucket."""
        pending = self._pending
        assert pending is not None
        start = self._pending_at
        end = self._pending_at = start + limit
        if end < len(pending):
            return pending[start:end]
        self._pending = None
        return pending[start:] if start else pending

    def _take(self, place: int) -> tuple[int, Bucket]:
        """Take a whole bucket off the queue; a sweep of it stops."""
        self._memo_until_ms = self._memo_after_ms
        if self._sweep is not None:
            self._sweep.leave(self._queue.keys[place])
        return self._queue.take(place)

    def _alive(self, chunk: Bucket, key: int) -> list[int]:
        """Return the entries whose due time belongs into the bucket of that key."""
        after_ms, until_ms = self._span_of(key)
        return [
            entry
            for entry, due_ms in zip(chunk, map(self._due_of, chunk), strict=True)
            if due_ms is not None and after_ms < due_ms <= until_ms
        ]

    def _cascade(self, chunk: Bucket, key: int) -> None:
        """Place each entry of a bucket again, as is right at the bucket's expiration."""
        # 0.3 µs an entry with everything at hand; 0.6 µs by way of `_place`.
        after_ms, until_ms = self._span_of(key)
        start_ms = expiration_of(key)
        tick_ms = self.tick_ms
        by_key = self._queue.by_key
        # Lower levels, the highest first, with the first time that is too far for the next one.
        lower = [
            (start_ms + level.tick_ms, level.tick_ms, level.rank)
            for level in reversed(self._levels[1 : level_of(key) - 1])
        ]
        lower.append((start_ms, tick_ms, self._levels[0].rank))
        self._counts.cascaded += len(chunk)
        last_due_ms = -1
        append = chunk.append
        dead = 0
        for entry, due_ms in zip(chunk, map(self._due_of, chunk), strict=True):
            if due_ms is None or not after_ms < due_ms <= until_ms:
                dead += 1
                continue
            if due_ms != last_due_ms:
                expiration_ms = ceil_to_tick(due_ms, tick_ms)
                for from_ms, width_ms, rank in lower:  # noqa: B007
                    if expiration_ms >= from_ms:
                        break
                lower_key = (expiration_ms - expiration_ms % width_ms) << LEVEL_BITS | rank
                bucket = by_key.get(lower_key)
                append = (self._queue.open(lower_key)[0] if bucket is None else bucket).append
                last_due_ms = due_ms
            append(entry)
        self._drop(dead)

    def _sort(self, chunk: Bucket, key: int) -> None:
        """Sort entries of a bucket by due time; the last of them are merged with all others."""
        after_ms, until_ms = self._span_of(key)
        tick_ms = self.tick_ms
        rows = [
            (ceil_to_tick(due_ms, tick_ms) << LEVEL_BITS | _LEVEL_1, entry)
            for entry, due_ms in zip(chunk, map(self._due_of, chunk), strict=True)
            if due_ms is not None and after_ms < due_ms <= until_ms
        ]
        self._counts.cascaded += len(chunk)
        self._drop(len(chunk) - len(rows))
        # Of equal keys, those that came later stand further ahead, and fire later.
        rows.reverse()
        rows.sort(key=_key_of, reverse=True)
        if self._sorted:
            rows += self._sorted
            if self._pending is None:
                rows.sort(key=_key_of, reverse=True)  # of runs that are sorted: 0.1 ms for 2,048
        self._sorted = rows

    def _open_sorted(self) -> None:
        """Open buckets of level 1 for what is sorted, however far ahead, to look along them."""
        if self._sorted:
            self._queue.open_for(reversed(self._sorted))
            self._sorted = []

    def _pending_live(self) -> set[int]:
        """Return what is pending to be fired; what is pending to be cascaded is cascaded."""
        if self._pending is None:
            return set()
        rest = self._pending[self._pending_at :]
        if level_of(self._pending_key) == 1:
            return set(self._alive(rest, self._pending_key))
        self._pending = None
        self._cascade(rest, self._pending_key)
        return set()

    # --- Dead entries ----------------------------------------------------------------------------

    def _drop(self, dead: int) -> None:
        """Count dead entries that are no longer held."""
        self._held -= dead
        self._dead -= dead

    def _has_too_many_dead(self) -> bool:
        """Tell whether there are more dead entries than are tolerated; remember how many are."""
        share = SWEEP_DEAD_PER_LIVE
        self._dead_max = (share * self._held + SWEEP_SLACK_ENTRIES) // (share + 1)
        return self._dead > self._dead_max

    def _sweep_on(self) -> None:
        """Take one step of the sweep under way; begin one when there is none."""
        # The step may drop the bucket that was remembered.
        self._memo_until_ms = self._memo_after_ms
        if self._sweep is None:
            self._sweep = Sweep(self._queue, self._alive, hunts_twins=self._twins_suspected)
        self._drop(self._sweep.step(SWEEP_CHUNK_ENTRIES))
        self._dead_max = 0
        if self._sweep.is_over:
            self._sweep = None
            self._twins_suspected = self._has_too_many_dead()

    # --- For people and tests --------------------------------------------------------------------

    def layout(self) -> list[BucketView]:
        """Return all buckets in the order in which they come due. O(entries).

        What was sorted is shown in the buckets that it would have on the levels.
        """
        if self._sweep is not None:
            self._sweep.close_gap()
        rows = self._sorted[::-1]
        rows.sort(key=_key_of)
        shown = {key: tuple(bucket) for key, bucket in self._queue.by_key.items()}
        for key, here in groupby(rows, lambda row: self._key_now(row[0])):
            shown[key] = tuple(entry for _, entry in here) + shown.get(key, ())
        views = []
        for key in sorted(shown):
            level = self._levels[level_of(key) - 1]
            slot = expiration_of(key) // level.tick_ms % self.wheel_size
            views.append(BucketView(level.number, slot, expiration_of(key), shown[key]))
        return views

    def _key_now(self, key: int) -> int:
        """Return the key of the bucket where what was sorted under that key belongs now."""
        expiration_ms = expiration_of(key)
        for level in self._levels:
            if expiration_ms - self._clock_ms < level.interval_ms - self._clock_ms % level.tick_ms:
                break
        return (expiration_ms - expiration_ms % level.tick_ms) << LEVEL_BITS | level.rank

    def check(self) -> None:
        """Assert every invariant, slowly; the owner is done with what was fired last."""
        if self._sweep is not None:
            self._sweep.close_gap()
        self._queue.check()
        alive: set[int] = set()
        held = 0
        if self._pending is not None:
            rest = self._pending[self._pending_at :]
            alive.update(self._alive(rest, self._pending_key))
            held += len(rest)
        for key, bucket in self._queue.by_key.items():
            tick_ms = self._levels[level_of(key) - 1].tick_ms
            expiration_ms = expiration_of(key)
            assert expiration_ms % tick_ms == 0, "a bucket is off the ticks of its level"
            assert expiration_ms >= self._clock_ms, "a bucket was passed over"
            alive.update(self._alive(bucket, key))
            held += len(bucket)
        if self._pending is None:
            in_order = sorted(self._sorted, key=_key_of, reverse=True)
            assert self._sorted == in_order, "what is sorted is not in order"
        for key, entry in self._sorted:
            expiration_ms = expiration_of(key)
            assert expiration_ms % self.tick_ms == 0, "what is sorted is off the ticks"
            assert expiration_ms >= self._clock_ms, "what is sorted was passed over"
            due_ms = self._due_of(entry)
            if due_ms is not None and ceil_to_tick(due_ms, self.tick_ms) == expiration_ms:
                alive.add(entry)
        held += len(self._sorted)
        assert held == self._held, "the entries held are not those counted"
        assert len(alive) == len(self), "the entries that look alive are not those counted"
