"""The facts of turns.txt: turns over a scripted line, commit and snapshots.

`wait w` asks for a callback when the turn is durable, `reply w` has an answer for then. `line OK`
is a reply of the line, and `free OK` one that depends on nothing. `sleep 2` polls twice before it
is woken, `sleep 2 0.5` for half a second at most. `push` puts a job with a target.
"""

import select
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from delayd.clock import NS_PER_MS
from delayd.core.background_tasks import BackgroundTask
from delayd.core.job_record import HEADER
from delayd.core.operations.ack import delete
from delayd.core.operations.push import reserve_call, take_fresh
from delayd.core.operations.sessions import open_session
from delayd.core.operations.tick import next_deadline
from delayd.core.operations.waiting import wait
from delayd.core.session import Handed, WaitEnd
from delayd.core.stats.histogram import Histogram
from delayd.core.times import RequestMs
from delayd.limits import HELD_BOUNDS_NS
from tests.fact_rows import rows, taken
from tests.rigs.commit import DESCRIPTOR, CommitRig, Recipient, ScriptedSnapshots, Watch, set_watch
from tests.rigs.engine import put

PARTS: Final = {
    "reserve": "rig.reserve",
    "turn": "rig.turns.turn",
    "ask": "rig.turns.ask",
    "repairs": "rig.turns.repairs",
    "wake": "rig.turns.wake_loop",
    "overslept": "rig.turns.overslept_ms",
}
"""Steps that a part of the rig takes, or that see how it is."""
FACTS: Final = dict(rows(Path(__file__).parent / "turns.txt"))
CLIENT: Final = 99
TARGET: Final = b"POST https://a.example/"


class Bench:
    def __init__(self, watch: Watch, *, keeps: bool = True) -> None:
        self.watch = watch
        self.rig = CommitRig(watch=watch, keeps=keeps)
        if keeps:
            self.rig.turns.turn()
        self.rig.look()
        self._pushes = open_session(self.rig.engine)
        self._served = len(self.rig.line.served_ms)
        self._wishes: list[float | None] = []
        self._asked = 0
        self._long_holds: list[str] = []
        self.rig.turns.on_long_hold = self._tell
        self._is_a_turn = True
        """Whether one follows each poll."""

    def begin(self) -> None:
        """Forget what the set-up has made happen."""
        self.rig.look()

    # --- Who does what ---------------------------------------------------------------------------

    def put(self, **what: str) -> None:
        self.rig.put(**{name: int(value) for name, value in what.items()})  # type: ignore[arg-type]

    def delete(self, job_id: str) -> None:
        self.rig.delete([int(job_id)])

    def listen(self) -> None:
        """Have a wait for a job."""
        wait(self.rig.engine, self.rig.session, self.rig.now_ms, None)

    def peer(self) -> None:
        """Have somebody wait for a job who, told of one, waits for it to be durable."""
        rig, when_durable = self.rig, self.wait

        class Peer(Recipient):
            def deliver(self, outcome: Handed | WaitEnd, now_ms: int) -> None:
                super().deliver(outcome, now_ms)
                when_durable("w")

        wait(rig.engine, open_session(rig.engine, Peer("b", rig.events)), rig.now_ms, None)

    def wait(self, name: str) -> None:
        self.rig.turns.when_durable(lambda: self.rig.events.append(f"{name} goes on"))

    def reply(self, name: str) -> None:
        self.rig.turns.reply_when_durable(Recipient(name, self.rig.events), b"done")

    def wait_many(self, count: str) -> None:
        gone_on: list[None] = []

        def go_on() -> None:
            gone_on.append(None)
            if len(gone_on) == int(count):
                self.rig.events.append(f"{count} go on")

        for _ in range(int(count)):
            self.rig.turns.when_durable(go_on)

    def line(self, text: str) -> None:
        self.rig.line.replies = [(self.rig.a, text.encode())]

    def free(self, text: str) -> None:
        self.rig.line.free = [(self.rig.a, text.encode())]

    def event(self, *of: str) -> None:
        """Have the next poll tell of the end of a sync, or of a client."""
        numbers = {"sync": DESCRIPTOR, "client": CLIENT}
        self._is_a_turn = "client" in of
        self.rig.line.events = [(numbers[each], select.EPOLLIN) for each in of]

    # --- Pushes ----------------------------------------------------------------------------------

    def scheduler(self) -> None:
        """Have one that takes every job at once."""
        self.rig.turns.on_push = self._on_push
        self.rig.turns.turn()

    def _on_push(self, now_ms: RequestMs) -> None:
        told: list[int] = []
        for lane in take_fresh(self.rig.engine):
            while job := reserve_call(self.rig.engine, self._pushes, lane, 1_000, now_ms):
                told.append(job[0])
        self.rig.events.append(f"told {' '.join(map(str, told))}")

    def push(self, delay_ms: str = "0") -> None:
        engine, now_ms = self.rig.engine, self.rig.now_ms
        put(
            engine,
            engine.store.topic("default"),
            delay_ms=int(delay_ms),
            target=TARGET,
            now_ms=now_ms,
        )

    def settled(self, *job_ids: str) -> None:
        for job_id in job_ids:
            delete(self.rig.engine, self._pushes, int(job_id), self.rig.clock.request_ms())

    # --- Turns -----------------------------------------------------------------------------------

    def sleep(self, polls: str = "0", timeout_s: str = "") -> str:
        before = self.turns()
        waits_s = self.rig.slept(float(timeout_s) if timeout_s else None, *[int] * int(polls))
        assert self.turns() == before + len(waits_s) * self._is_a_turn
        return " ".join("None" if each is None else f"{round(each, 6)}" for each in waits_s)

    def more(self) -> None:
        """Have the line something to do."""
        self.rig.line.has_more = True

    def syncing(self) -> None:
        self.rig.commits.is_syncing = True

    def over(self) -> None:
        self.rig.look()
        self.rig.turns.is_over = True
        self._is_a_turn = False

    # --- What holds the loop ---------------------------------------------------------------------

    def blocks(self, ms: str) -> None:
        """Have asyncio take so long before its next sleep."""
        self.watch.pass_ms(int(ms))

    def collects(self, ms: str) -> None:
        """Have a collection of garbage take so long."""
        for phase, took_ms in (("start", int(ms)), ("stop", 0)):
            self.rig.turns.note_collection(phase, {"generation": 1})
            self.watch.pass_ms(took_ms)

    def snapshots_take(self, ms: str, gc: str = "0") -> None:
        """Have each step take so long, with a collection in it."""

        def step() -> float:
            self.blocks(ms)
            self.collects(gc)
            return 0.0

        self.rig.turns.snapshots = ScriptedSnapshots(step)

    def no_snapshots(self) -> None:
        self.rig.turns.snapshots = None

    def clients_take(self, ms: str, sync: str) -> None:
        """Have commands take so long, with a sync in the turn."""

        line: Any = self.rig.line
        serve = line.serve

        def slowly(events: object) -> None:
            self.rig.commits.in_turn_sync_ns = self.watch.now_ns, int(sync) * NS_PER_MS
            self.blocks(ms)
            serve(events)

        line.serve = slowly

    def tasks_take(self, ms: str) -> None:
        work: Any = SimpleNamespace(step=lambda *_: (self.blocks(ms), True))  # type: ignore[func-returns-value]
        self.rig.tasks.add(BackgroundTask(work, lambda *_: None))

    def due_takes(self, ms: str) -> None:
        """Have it take so long to see when a job is due."""

        def due_of(job_id: int) -> int | None:
            self.blocks(ms)
            due_ms: int = HEADER.unpack_from(self.rig.engine.store.jobs.get(job_id) or b"")[1]
            return due_ms

        self.rig.engine.store.topic("default").queues.delays.wheel.replace_due_of(due_of)

    def held(self, *values_ms: str) -> bool:
        """Whether just these holds were counted."""
        expected = Histogram(HELD_BOUNDS_NS)
        for value in values_ms:
            expected.note(int(value) * NS_PER_MS)
        return self.rig.turns.held_ns.counts == expected.counts

    def longest(self) -> int:
        return self.rig.turns.longest_held.within(self.watch.now_ns) // NS_PER_MS

    def told(self) -> str:
        """Return of which long holds was told, and what took how long in each."""
        return ", ".join(self._long_holds)

    def _tell(self, held_ns: int, parts: dict[str, int]) -> None:
        said = (f"{part}={ns // NS_PER_MS}" for part, ns in parts.items())
        self._long_holds.append(f"{held_ns // NS_PER_MS} {' '.join(said)}")

    # --- What is around them ---------------------------------------------------------------------

    def nothing_kept(self) -> None:
        self.__init__(self.watch, keeps=False)  # type: ignore[misc]

    def hold(self) -> None:
        self.rig.commits.is_holding = True

    def durable(self, number: str) -> None:
        ((waiting, _),) = self.rig.commits.replies[int(number)]
        waiting.send(b"")

    def backed_up(self) -> None:
        self.rig.commits.is_backed_up = True

    def let_up(self) -> None:
        self.rig.commits.is_backed_up = False

    def wishes(self, *after_s: str) -> None:
        """Have snapshots want their next steps so much later; None: when the log has grown."""
        self._wishes = [None if each == "None" else float(each) for each in after_s]
        self.rig.turns.snapshots = ScriptedSnapshots(self._step)

    def _step(self) -> float | None:
        self._asked += 1
        return self._wishes.pop(0)

    # ``pass`` of a row
    def pass_ms(self, ms: str) -> None:
        self.rig.clock.advance(int(ms))

    def late(self, ms: str) -> None:
        """Let it be so long after the next deadline."""
        deadline_ms = next_deadline(self.rig.engine)
        assert deadline_ms is not None
        self.rig.clock.advance(deadline_ms + int(ms) - self.rig.clock.now_ms())

    # --- What is seen ----------------------------------------------------------------------------

    def look(self) -> None:
        """What has happened is the outcome."""

    def turns(self) -> int:
        """Return how often clients were served."""
        return len(self.rig.line.served_ms) - self._served

    def synced(self) -> bool:
        return self.rig.commits.synced[-1]

    def heard(self) -> bool:
        return self.rig.line.heard_clients[-1]

    def steps(self) -> int:
        return self._asked

    def replies(self) -> int:
        """Return how many replies waited for the last commit."""
        return len(self.rig.commits.replies[-1])

    def ready(self) -> int:
        return len(self.rig.engine.store.topics.by_name["default"].queues.ready)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(set_watch(monkeypatch))


@pytest.mark.parametrize("name", FACTS)
def test_fact(name: str, bench: Bench) -> None:
    def take(step: str) -> object:
        act, *words = step.split()
        values = [word for word in words if "=" not in word]
        named = dict(word.split("=") for word in words if "=" in word)
        found: Any = attrgetter(PARTS.get(act, act))(bench)
        returned: object = found(*values, **named) if callable(found) else found
        return returned

    for returned, outcome in taken(FACTS[name], take, bench.begin):
        if outcome.startswith("="):
            assert str(returned) == outcome[2:]
        else:
            assert ", ".join(bench.rig.look()) == outcome
