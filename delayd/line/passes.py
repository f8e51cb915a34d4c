"""Commands that take long, carried out in slices between everybody else's.

    command ─► begin ─► the connection waits ─► step, turn, step, turn … ─► answer ─► it goes on

Each is a pass of the core (`core.passes`) and somebody who waits for what it finds; `ClockAdvance`
is one that only this package has. One whose connection closes is forgotten where it stands.

This module refuses to know what a pass does, and how much time there is for steps.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from delayd.core.engine import Engine
from delayd.core.errors import Refusal
from delayd.core.limits import WALL_MS_MAX
from delayd.core.moments import check_range
from delayd.core.passes import Pass, Passes
from delayd.line import replies

if TYPE_CHECKING:
    from delayd.line.connection import Connection


class StandingClock(Protocol):
    """A clock that a client moves."""

    def now_ms(self) -> int:
        """Delayd time."""
        ...

    def go_on_to(self, time_ms: int) -> None:
        """Be at this time, which is not past."""
        ...


class LongCommand:
    """A pass that a connection waits for."""

    __slots__ = ("_say", "_work", "connection", "reply")

    def __init__(self, connection: "Connection", work: Pass, say: Callable[[], bytes]) -> None:
        """Carry out the work; `say` makes the reply of it in the end."""
        self.connection = connection
        self.reply = b""
        self._work = work
        self._say = say

    def step(self, budget: int, now_ms: int) -> bool:
        """Take a step; tell whether the reply is there."""
        try:
            if not self._work.step(budget, now_ms):
                return False
            self.reply = self._say()
        except Refusal as refusal:
            self.reply = replies.refused(refusal)
        return True


class LongCommands:
    """All of them that are under way."""

    __slots__ = ("_passes", "_waiting", "clock")

    def __init__(self, engine: Engine, clock: StandingClock | None = None) -> None:
        """Start with none; `clock` is there if clients may advance it."""
        self.clock = clock
        self._passes = Passes(engine)
        self._waiting: dict[Connection, LongCommand] = {}

    @property
    def has_more(self) -> bool:
        """Tell whether there is a step to take."""
        return self._passes.has_more

    def begin(self, connection: "Connection", work: Pass, say: Callable[[], bytes]) -> None:
        """Carry this out for the connection, which waits for the answer."""
        command = self._waiting[connection] = LongCommand(connection, work, say)
        self._passes.add(command)

    def forget(self, connection: "Connection") -> None:
        """Carry on no further with what nobody waits for."""
        command = self._waiting.pop(connection, None)
        if command is not None:
            self._passes.drop(command)

    def step(self, now_ms: int) -> "Connection | None":
        """Carry on with the one whose turn it is; return its connection if that is answered."""
        command = self._passes.step(now_ms)
        if command is None:
            return None
        assert isinstance(command, LongCommand), "nobody else adds passes here"
        del self._waiting[command.connection]
        command.connection.answer(command.reply, now_ms)
        return command.connection


class ClockAdvance:
    """The virtual clock on its way: it goes from one deadline to the next, and stops at each.

    So whatever is due happens at its very time, and what follows from that (a reservation that runs
    out, the retry after it) at its own, all within one advance.
    """

    __slots__ = ("_by_ms", "_clock", "_engine", "_until_ms")

    def __init__(self, engine: Engine, clock: StandingClock, by_ms: int) -> None:
        """Go so far, counted from when it begins."""
        self._engine = engine
        self._clock = clock
        self._by_ms = by_ms
        self._until_ms: int | None = None

    def step(self, _budget: int, _now_ms: int) -> bool:
        """Go on to the next deadline, or let happen a slice of what is due at this one."""
        engine, clock = self._engine, self._clock
        now_ms = clock.now_ms()
        until_ms = self._until_ms
        if until_ms is None:
            # Not before its turn comes: another advance may have been under way.
            until_ms = now_ms + self._by_ms
            check_range("time", until_ms, WALL_MS_MAX)
            self._until_ms = until_ms
        next_ms = engine.next_deadline()
        if next_ms is not None and next_ms <= until_ms:
            time_ms = max(now_ms, next_ms)
            clock.go_on_to(time_ms)
            engine.advance(time_ms)
            return False
        clock.go_on_to(max(now_ms, until_ms))
        engine.reach(clock.now_ms())
        engine.record_time()
        return True

    def said(self) -> bytes:
        """Return the reply."""
        return replies.advanced(self._clock.now_ms())
