"""A crowd of jobs in all states, and anything that may happen to them while a pass is under way."""

import contextlib
import random
from collections.abc import Callable, Iterator

from delayd.core.background_tasks import Work
from delayd.core.errors import Refusal
from delayd.core.job_parts import tally_of
from delayd.core.job_record import DUE_AT, U64, State
from delayd.core.operations.tick import catch_up_leases
from delayd.core.scans.scan import Wanted, seen_state
from tests.rigs.engine import EngineRig

TOPICS = ("a", "b")
HOUR_MS = 3_600_000
SPANS_MS = (3, 400, 70_000, HOUR_MS)

Mark = tuple[int, object, bool]
"""What a job would not keep if somebody touched it: its due time, its tally, whether it is held."""


class Crowd:
    def __init__(self, rng: random.Random, jobs: int = 60) -> None:
        self.rng = rng
        self.rig = EngineRig(tick_ms=rng.choice((1, 10)), wheel_size=rng.choice((2, 20, 256)))
        self.engine = self.rig.engine
        self.me = self.rig.client(*TOPICS)
        self.span_ms = rng.choice(SPANS_MS)
        self.restlessness = 200
        """So many things may happen while passes are carried out."""
        self.topic = rng.choice(TOPICS)
        self.wanted: Wanted | None = None
        self.kicks: dict[int, int] = {}
        self.reserves: dict[int, int] = {}
        self.untouched: dict[int, Mark] = {}
        """The jobs that have been wanted since `watch`, and that nobody has touched since."""
        for _ in range(jobs):
            self.put()
        for _ in range(jobs):
            self.step(0)

    def put(self) -> None:
        self.rig.put(
            self.rng.choice(TOPICS),
            delay_ms=self.rng.choice((0, self.rng.randrange(self.span_ms))),
            priority=self.rng.choice((0, 7, 2000)),
            ttr_ms=self.rng.choice((5, self.span_ms, 10 * self.span_ms)),
        )

    def ids(self) -> list[int]:
        return [job_id for job_id, _ in self.engine.store.jobs]

    def step(self, puts: int = 2, spare: frozenset[int] = frozenset()) -> None:
        """Do anything, but leave those to be spared alone; who is refused has done nothing."""
        rng, rig = self.rng, self.rig
        job_id = rng.choice([one for one in self.ids() if one not in spare] or [1 << 40])
        held = rng.choice([*self.me.deadlines] or [1])
        delay_ms = rng.choice((0, rng.randrange(self.span_ms)))
        doings: list[Callable[[], object]] = [
            lambda: rig.reserve(self.me),
            lambda: rig.reserve_job(self.me, job_id),
            lambda: rig.release(self.me, held, 5, delay_ms),
            lambda: rig.bury(self.me, held, 5, rng.choice(("", "no route to host"))),
            lambda: rig.delete(self.me, held),
            lambda: rig.kick_job(job_id),
            lambda: rig.bury_waiting(job_id),
            lambda: rig.reschedule(job_id, delay_ms),
            lambda: rig.advance(rig.time_ms + rng.randrange(1 + self.span_ms // 20)),
            lambda: rig.advance(rig.time_ms),
            *[self.put] * puts,
        ]
        with contextlib.suppress(Refusal):
            rng.choice(doings)()
        if self.wanted is not None:
            now = self.matching(self.topic, self.wanted)
            self.untouched = {
                job_id: mark for job_id, mark in self.untouched.items() if now.get(job_id) == mark
            }

    # --- What a pass should find -----------------------------------------------------------------

    def matching(self, topic: str, wanted: Wanted) -> dict[int, Mark]:
        """The jobs that are wanted now, by looking at each, once what is due has ended."""
        store = self.engine.store
        while not catch_up_leases(self.engine, 100, self.rig.now_ms):
            pass
        found: dict[int, Mark] = {}
        for job_id, record in store.jobs:
            due_ms: int = U64.unpack_from(record, DUE_AT)[0]
            is_wanted = (
                store.topic_of(record).name == topic
                and seen_state(store, job_id, record) in wanted.states
                and wanted.from_ms <= due_ms < wanted.until_ms
            )
            if is_wanted:
                found[job_id] = due_ms, tally_of(record), job_id in store.leases.sessions
        return found

    def watch(self, wanted: Wanted) -> None:
        """Remember which jobs are wanted now."""
        self.wanted = wanted
        self.untouched = self.matching(self.topic, wanted)

    def some_filter(self) -> Wanted:
        rng, time_ms = self.rng, self.rig.time_ms
        states = frozenset(rng.sample(list(State), rng.randrange(1, 5)))
        times = sorted(time_ms + rng.randrange(-self.span_ms, self.span_ms) for _ in range(2))
        from_ms, until_ms = rng.choice(((0, 1 << 64), (max(0, times[0]), max(0, times[1]))))
        return Wanted(states, from_ms, until_ms)

    def note_kicks(self) -> None:
        """Remember how often each job has been kicked and handed out."""
        for job_id, record in self.engine.store.jobs:
            tally = tally_of(record)
            self.kicks[job_id] = tally.kicks
            self.reserves[job_id] = tally.reserves

    def was_left_alone(self, job_id: int) -> bool:
        """Tell whether nobody has got hold of the job since `note_kicks`."""
        record = self.engine.store.jobs.get(job_id)
        return (
            record is not None
            and job_id not in self.engine.store.leases.sessions
            and tally_of(record).reserves == self.reserves[job_id]
        )

    def carried_out(
        self, a_pass: Work, steps_max: int = 0, spare: frozenset[int] = frozenset()
    ) -> Iterator[None]:
        """Carry the pass out in small steps; after each let so many things happen, and yield.

        After a while no more happens: new jobs would always be behind the last page.
        """
        rng = self.rng
        while not a_pass.step(rng.choice((1, 2, 5, 20)), self.rig.now_ms):
            happening = min(rng.randrange(steps_max + 1), self.restlessness)
            self.restlessness -= happening
            for _ in range(happening):
                self.step(spare=spare)
            yield
