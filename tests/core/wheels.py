"""A wheel with an owner as simple as can be, and the model that it is compared with."""

from collections.abc import Sequence

from delayd.core.wheel.wheel import TimingWheel, ceil_to_tick

NO_LIMIT = 1 << 62


class Owned:
    """A wheel, and the due time of every live entry: all that the wheel may ask for.

    The model is this dict. What is due at `now_ms` is what the dict says, rounded up to the tick.
    """

    def __init__(self, tick_ms: int = 1, wheel_size: int = 20, start_ms: int = 0) -> None:
        self.due_ms: dict[int, int] = {}
        self.questions = 0
        self.now_ms = start_ms
        self.wheel = TimingWheel(tick_ms, wheel_size, start_ms, self._due_of)

    def _due_of(self, entry: int) -> int | None:
        self.questions += 1
        return self.due_ms.get(entry)

    def insert(self, entry: int, due_ms: int) -> bool:
        assert entry not in self.due_ms
        self.due_ms[entry] = due_ms
        return self.wheel.insert(entry, due_ms, self.now_ms)

    def insert_run(self, entries: Sequence[int], due_ms: int) -> bool:
        self.due_ms.update(dict.fromkeys(entries, due_ms))
        return self.wheel.insert_run(entries, due_ms, self.now_ms)

    def cancel(self, *entries: int) -> None:
        for entry in entries:
            del self.due_ms[entry]
        self.wheel.cancel(len(entries))

    def reschedule(self, entry: int, due_ms: int) -> None:
        self.cancel(entry)
        self.insert(entry, due_ms)

    def advance(self, now_ms: int, limit: int = NO_LIMIT) -> list[tuple[int, int]]:
        """Turn the wheel once; return (due_ms, entry) of what fired, in the order it did."""
        self.now_ms = max(self.now_ms, now_ms)
        fired = self.wheel.advance(now_ms, limit)
        assert len(set(fired)) == len(fired), "an entry fired twice in one call"
        return [(self.due_ms.pop(entry), entry) for entry in fired]

    def due(self, now_ms: int) -> set[int]:
        """What must have fired by then, by the model."""
        tick_ms = self.wheel.tick_ms
        return {e for e, due_ms in self.due_ms.items() if ceil_to_tick(due_ms, tick_ms) <= now_ms}

    def run(self) -> list[tuple[int, int]]:
        """Sleep until each deadline in turn and advance, to the end; return (fired at, entry)."""
        fired = []
        while (deadline_ms := self.wheel.next_deadline()) is not None:
            now_ms = max(deadline_ms, self.now_ms)
            fired += [(now_ms, entry) for _, entry in self.advance(now_ms)]
        return fired

    def held(self) -> int:
        """How many entries the wheel keeps in memory, live and dead."""
        return sum(len(bucket.entries) for bucket in self.wheel.layout())

    def places(self) -> dict[int, tuple[int, int, int]]:
        """Where each entry is: (level, slot, expiration)."""
        return {
            entry: (bucket.level, bucket.slot, bucket.expiration_ms)
            for bucket in self.wheel.layout()
            for entry in bucket.entries
        }

    def check(self) -> None:
        self.wheel.check()
        assert len(self.wheel) == len(self.due_ms)
