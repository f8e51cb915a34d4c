"""Walks whose commands wait, expire and come due: one step at a time on a fixed timetable.

beanstalkd counts in whole seconds, so what a step starts ends a whole number of seconds later. The
13 steps of a timed walk start at multiples of 5/13 s, so that no two of them, whole seconds apart,
come closer to each other than 1/13 s: whatever ends, ends clearly before or after each step, and
both servers may be late by some milliseconds. When the machine lets us or one of them wait longer
than that, the walk is late, and what it shows says nothing. Several walks run at the same time,
each with two servers of its own, since they mostly wait.

One thing beanstalkd does not do, and the walks do not ask for: a timed reserve that finds a ready
job at once leaves its time behind as the connection's timer, and when that is shorter than the ttr,
the jobs of the connection end only with its next command. So nobody keeps what he got that way.
"""

import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.compat.lockstep import Act, Difference, Lockstep, Step
from tests.compat.walks import Pair
from tests.servers import Server

STEPS: Final = 13
SPACING_S: Final = 5 / STEPS
HOLDERS: Final = (0, 1)
TIMER: Final = 2
ADMIN: Final = 3
GUEST: Final = 4
TUBES: Final = (b"default", b"a")
# More than the timetable allows for: whoever comes later has not kept to it.
LATE_S_MAX: Final = 0.04
# Who differs must not keep the others from their timetable.
PATIENCE_S: Final = 0.025


@dataclass(slots=True)
class TimedWalk:
    """One timed walk: its steps are drawn one by one from what has happened so far."""

    name: str
    pair: Pair
    rng: random.Random = field(init=False)
    taken: int = 0
    late_s: float = 0.0
    _waited_s: list[float] = field(default_factory=list)
    """How long each server has waited for a processor so far."""

    def __post_init__(self) -> None:
        self.rng = random.Random(self.name)

    @property
    def lockstep(self) -> Lockstep:
        return self.pair.lockstep

    def note_waits(self) -> None:
        """See whether a server has been ready to run for long, and did not."""
        before, self._waited_s = self._waited_s, [waited_s(each) for each in self.pair.servers]
        waits = (now - then for now, then in zip(self._waited_s, before, strict=False))
        self.late_s = max(self.late_s, *waits, 0.0)

    def take_next(self) -> None:
        """Take the step that is due now; the last one compares everything."""
        self.lockstep.poke()
        self.lockstep.settle()
        if self.taken == 0:
            self.lockstep.take(Step(TIMER, units=(b"watch a\r\n", b"ignore default\r\n")))
            self.lockstep.take(Step(HOLDERS[1], units=(b"watch b\r\n",)))
        if self.taken == STEPS:
            self.lockstep.inspect()
        else:
            step = self.draw()
            self.lockstep.take(step)
            if step.connection == GUEST or (step.connection == TIMER and self.holds(TIMER)):
                self.lockstep.take(Step(step.connection, Act.CLOSE))
        self.taken += 1

    def holds(self, connection: int) -> bool:
        twin = self.lockstep.twins.get(connection)
        return twin is not None and bool(twin.held)

    def draw(self) -> Step:
        kind = self.rng.random()
        if self.taken < 2 or kind < 0.22:
            return self.put_step()
        if kind < 0.62:
            return self.holder_step()
        if kind < 0.75:
            return self.timer_step()
        if kind < 0.83:
            return Step(GUEST, units=(b"reserve-with-timeout 0\r\n",))
        return self.admin_step()

    def put_step(self) -> Step:
        put = b"put %d %d %d 1\r\nx\r\n" % (
            self.rng.randrange(3),
            self.rng.choice((0, 0, 0, 1, 2)),
            self.rng.choice((1, 2, 2, 3)),
        )
        return Step(ADMIN, units=(b"use %b\r\n" % self.rng.choice(TUBES), put))

    def holder_step(self) -> Step:
        """Reserve, or do something to a reserved job."""
        connection = self.rng.choice(HOLDERS)
        if self.holds(connection) and self.rng.random() < 0.6:
            job = self.rng.choice(sorted(self.lockstep.twins[connection].held))
            delay = self.rng.choice((0, 1, 2))
            choices = (b"touch %d" % job, b"release %d 0 %d" % (job, delay), b"bury %d 0" % job)
            return Step(connection, units=(self.rng.choice(choices) + b"\r\n",))
        if self.rng.random() < 0.1:
            return Step(connection, Act.CLOSE)
        by_id = b"reserve-job {%d}" % self.rng.randint(1, self.lockstep.jobs + 1)
        return Step(connection, units=(self.rng.choice((b"reserve", b"reserve", by_id)) + b"\r\n",))

    def timer_step(self) -> Step:
        """Wait for a limited time."""
        if self.holds(TIMER):
            return Step(TIMER, Act.CLOSE)
        seconds = self.rng.choice((1, 2, 3))
        return Step(TIMER, units=(b"reserve-with-timeout %d\r\n" % seconds,))

    def admin_step(self) -> Step:
        tube = self.rng.choice(TUBES)
        pause = b"pause-tube %b %d" % (tube, self.rng.choice((0, 1, 1, 2)))
        choices = (
            b"stats-job {%d}" % self.rng.randint(1, self.lockstep.jobs + 1),
            b"stats-tube %b" % tube,
            b"kick 1",
            b"stats",
            b"peek-delayed",
            b"delete {%d}" % self.rng.randint(1, self.lockstep.jobs + 1),
            *(pause, pause, pause),
        )
        return Step(ADMIN, units=(self.rng.choice(choices) + b"\r\n",))


def waited_s(server: Server) -> float:
    """How long it has waited for a processor; 0 where the kernel does not say."""
    try:
        said = Path(f"/proc/{server.process.pid}/schedstat").read_text(encoding="ascii")
    except FileNotFoundError:
        return 0.0
    return int(said.split()[1]) / 1e9


def run(walks: list[TimedWalk]) -> dict[str, Difference]:
    """Take the walks side by side, evenly offset; the differences by name."""
    differences: dict[str, Difference] = {}
    for walk in walks:
        _ = walk.lockstep  # starts the servers before the clock
        walk.note_waits()
    offset_s = SPACING_S / len(walks)
    started = time.monotonic()
    # After the last step there is one more look, at who has still been waiting.
    for turn in range(STEPS + 2):
        for number, walk in enumerate(walks):
            due = started + turn * SPACING_S + number * offset_s
            time.sleep(max(0.0, due - time.monotonic()))
            walk.note_waits()
            if turn > STEPS or walk.name in differences:
                continue
            walk.late_s = max(walk.late_s, time.monotonic() - due)
            try:
                walk.take_next()
            except Difference as difference:
                differences[walk.name] = difference
            else:
                walk.late_s = max(walk.late_s, time.monotonic() - due)
    return differences
