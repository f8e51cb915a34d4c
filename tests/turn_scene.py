"""Turns with everything around them scripted, but for the engine.

    stage = Stage(Watch())
    assert stage.slept(None) == [0.0]

The line is a script: each poll notes how long it might take, lets that time pass, and does what the
test says happens then. Nothing here sleeps.
"""

from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING, cast

import pytest

from delayd import turns as turns_module
from delayd.clock import NS_PER_S
from delayd.core.background import BackgroundTasks
from delayd.core.engine import Engine
from delayd.core.session import Handed, WaitEnd
from delayd.testing.clock import FakeClock
from delayd.turns import Turns

if TYPE_CHECKING:
    from delayd.commit import GroupCommit
    from delayd.line.server import LineServer

Happening = Callable[[], object]


class Watch:
    """The time that `turns` measures its own work with."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.step_ns = 0
        """What each look costs."""

    def __call__(self) -> int:
        self.now_ns += self.step_ns
        return self.now_ns


class Recipient:
    """Where replies and deliveries go."""

    def __init__(self, name: str, events: list[str]) -> None:
        self._name = name
        self._events = events

    def send(self, data: bytes) -> None:
        self._events.append(f"{self._name} gets {data.decode()}")

    def deliver(self, outcome: Handed | WaitEnd, now_ms: int) -> None:
        del now_ms
        what = outcome.name if isinstance(outcome, WaitEnd) else f"job {outcome[0]}"
        self._events.append(f"{self._name} is told {what}")


class ScriptedLine:
    def __init__(self, clock: FakeClock, watch: Watch, events: list[str]) -> None:
        self._clock = clock
        self._watch = watch
        self._events = events
        self.waits_s: list[float | None] = []
        self.heard_clients: list[bool] = []
        self.script: list[Happening] = []
        """What happens at the end of each poll."""
        self.has_more = False
        self.tasks = BackgroundTasks(Engine(start_ms=0).state)
        self.durable_id = 0
        self.out_of_order_ids: Container[int] = ()
        self.replies: list[tuple[Recipient, bytes]] = []
        self.free: list[tuple[Recipient, bytes]] = []
        self.served_ms: list[int] = []

    def poll(self, wait_s: float | None, *, hears_clients: bool = True) -> list[tuple[int, int]]:
        self.waits_s.append(wait_s)
        self.heard_clients.append(hears_clients)
        assert len(self.waits_s) < 1_000, "it never sleeps"
        if wait_s:
            self._watch.now_ns += round(wait_s * NS_PER_S)
            self._clock.advance(round(wait_s * 1_000))
        if self.script:
            self.script.pop(0)()
        else:
            assert wait_s is not None, "it sleeps for ever"
        return []

    def serve(self, events: Sequence[tuple[int, int]], now_ms: int) -> None:
        del events
        self.served_ms.append(now_ms)
        self.has_more = False

    def take_replies(self) -> list[tuple[Recipient, bytes]]:
        replies, self.replies = self.replies, []
        return replies

    def take_free_replies(self) -> list[tuple[Recipient, bytes]]:
        free, self.free = self.free, []
        return free


class ScriptedCommit:
    """Notes what it is given and releases it at once."""

    def __init__(self, events: list[str]) -> None:
        self._events = events
        self.is_syncing = False
        self.is_backed_up = False
        self.durable_id = 0
        self.out_of_order_ids: dict[int, int] = {}
        self.on_commit: Happening = int
        self.is_holding = False
        """Nothing becomes durable: whoever waits is told by the test, out of `replies`."""
        self.synced: list[bool] = []
        """Of each commit whether it has to be synced."""
        self.replies: list[list[tuple[Recipient, bytes]]] = []
        """Of each commit who waits for it, and what for."""
        self.times_ms: list[tuple[int, int]] = []
        """What the frames say of delayd time and the wall clock."""

    def reap(self) -> None:
        self._events.append("reap")

    def commit(
        self,
        log: list[bytes],
        replies: Sequence[tuple[Recipient, bytes]],
        *,
        must_sync: bool,
        time_ms: int,
        wall_ms: int,
        last_id: int,
    ) -> None:
        self.synced.append(must_sync)
        self.replies.append([*replies])
        self.times_ms.append((time_ms, wall_ms))
        self._events.append(f"commit {len(log)} up to {last_id}")
        self.on_commit()
        if not self.is_holding:
            for recipient, data in replies:
                recipient.send(data)


class Stage:
    """Turns with everything around them scripted but the engine."""

    def __init__(self, watch: Watch, *, keeps: bool = True) -> None:
        self.events: list[str] = []
        self.watch = watch
        self.clock = FakeClock()
        self.engine = Engine(start_ms=self.clock.now_ms())
        self.line = ScriptedLine(self.clock, watch, self.events)
        self.commit = ScriptedCommit(self.events)
        self.turns = Turns(
            self.engine,
            self.clock,
            cast("LineServer", self.line),
            cast("GroupCommit", self.commit) if keeps else None,
        )
        self.a = Recipient("a", self.events)
        self.session = self.engine.open_session(self.a)

    def put(self, delay_ms: int = 0, jobs: int = 1) -> None:
        topic = self.session.used
        assert topic is not None
        self.engine.put_alike(topic, 0, delay_ms, 60_000, [b"x"] * jobs, self.clock.now_ms())

    def slept(self, timeout_s: float | None, *script: Happening) -> list[float | None]:
        """Sleep with that script, and then be nudged; how long each poll might have taken."""
        self.line.waits_s.clear()
        self.line.script = [*script, self.turns.nudge]
        self.turns.sleep(timeout_s)
        return self.line.waits_s

    def look(self) -> list[str]:
        events, self.events[:] = list(self.events), []
        return events


def set_watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    """Let turns measure by a watch that the test winds."""
    made = Watch()
    monkeypatch.setattr(turns_module, "monotonic_ns", made)
    return made
