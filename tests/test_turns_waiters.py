"""Who waits for a turn to be durable: told behind its commit, many at once, and not when gone."""

from typing import Final

import pytest

from delayd.core.session import Handed, WaitEnd
from tests.turn_scene import Recipient, Stage, Watch, set_watch

MANY: Final = 1_000


class Waiter:
    """Somebody who waits; a future of asyncio's is like that."""

    def __init__(self, name: str, events: list[str]) -> None:
        self._name = name
        self._events = events
        self.is_done = False

    def done(self) -> bool:
        return self.is_done

    def set_result(self, result: None, /) -> None:
        assert not self.is_done, "a future that is done takes no result"
        self.is_done = True
        self._events.append(f"{self._name} goes on")


class LinePeer(Recipient):
    """Somebody who is told of a job in a turn, and waits for it to be durable."""

    def __init__(self, stage: Stage, waiter: Waiter) -> None:
        super().__init__("b", stage.events)
        self._stage = stage
        self._waiter = waiter

    def deliver(self, outcome: Handed | WaitEnd, now_ms: int) -> None:
        super().deliver(outcome, now_ms)
        self._stage.turns.when_durable(self._waiter)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return set_watch(monkeypatch)


@pytest.fixture
def stage(watch: Watch) -> Stage:
    made = Stage(watch)
    made.turns.turn()
    made.look()
    return made


def waiting(stage: Stage, name: str = "w") -> Waiter:
    waiter = Waiter(name, stage.events)
    stage.turns.when_durable(waiter)
    return waiter


def test_who_waits_goes_on_behind_the_commit(stage: Stage) -> None:
    stage.put()
    waiting(stage)
    stage.turns.turn()
    assert stage.events[-2:] == ["commit 3 up to 1", "w goes on"]


def test_who_waits_for_a_commit_that_takes_long_goes_on_when_it_is_through(stage: Stage) -> None:
    stage.commit.is_holding = True
    stage.put()
    first = waiting(stage, "first")
    stage.turns.turn()
    second = waiting(stage, "second")
    stage.turns.turn()
    assert not first.is_done
    ((one, _),), ((other, _),) = stage.commit.replies
    one.send(b"")
    assert (first.is_done, second.is_done) == (True, False)
    other.send(b"")
    assert second.is_done


def test_who_waits_gets_a_turn_at_once(stage: Stage) -> None:
    waiting(stage)
    stage.line.waits_s.clear()
    stage.turns.sleep(None)
    assert stage.line.waits_s == [0.0], "and asyncio is let go to see what follows"
    assert stage.events == ["commit 0 up to 0", "w goes on"]


def test_what_need_not_be_synced_for_the_line_is_synced_for_who_waits(stage: Stage) -> None:
    stage.put(jobs=2)
    stage.turns.turn()
    stage.commit.synced.clear()
    assert stage.engine.reserve(stage.session, stage.clock.now_ms()) is not None
    stage.turns.turn()
    assert stage.commit.synced == [False], "a reservation alone is lost with its connection"
    assert stage.engine.reserve(stage.session, stage.clock.now_ms()) is not None
    waiting(stage)
    stage.turns.turn()
    assert stage.commit.synced == [False, True]


def test_with_nothing_recorded_there_is_nothing_to_sync(stage: Stage) -> None:
    waiting(stage)
    stage.turns.turn()
    assert stage.commit.synced == [False]
    assert stage.events == ["commit 0 up to 0", "w goes on"]


def test_many_wait_for_one_sync_and_are_one_reply(stage: Stage) -> None:
    stage.put(jobs=MANY)
    waiters = [waiting(stage, f"{number}") for number in range(MANY)]
    stage.turns.turn()
    assert (stage.commit.synced, [*map(len, stage.commit.replies)]) == ([True], [1])
    assert all(waiter.is_done for waiter in waiters)
    assert stage.events[1:] == [f"{number} goes on" for number in range(MANY)]


def test_who_has_gone_is_not_told(stage: Stage) -> None:
    waiting(stage, "gone").is_done = True
    waiting(stage, "here")
    stage.turns.turn()
    assert stage.events == ["commit 0 up to 0", "here goes on"]


def test_nobody_is_told_twice(stage: Stage) -> None:
    waiting(stage)
    stage.turns.turn()
    stage.turns.turn()
    stage.put()
    stage.turns.turn()
    assert stage.events.count("w goes on") == 1


def test_replies_of_the_line_leave_as_ever_beside_who_waits(stage: Stage) -> None:
    stage.put()
    stage.line.replies = [(stage.a, b"INSERTED")]
    waiting(stage)
    stage.turns.turn()
    assert stage.events[-2:] == ["a gets INSERTED", "w goes on"]


def test_who_is_told_of_a_job_waits_for_that_very_turn(stage: Stage) -> None:
    waiter = Waiter("w", stage.events)
    session = stage.engine.open_session(LinePeer(stage, waiter))
    stage.engine.wait(session, stage.clock.now_ms(), None)
    stage.put(delay_ms=5)
    stage.turns.turn()
    stage.look()
    stage.commit.synced.clear()
    stage.clock.advance(6)
    stage.turns.turn()
    assert stage.commit.synced == [True]
    assert stage.events == ["reap", "b is told job 1", "commit 2 up to 1", "w goes on"]


def test_without_a_journal_who_waits_goes_on_at_once(watch: Watch) -> None:
    stage = Stage(watch, keeps=False)
    stage.put()
    waiter = waiting(stage)
    stage.turns.turn()
    assert waiter.is_done


def test_nobody_goes_on_when_all_is_over(stage: Stage) -> None:
    waiter = waiting(stage)
    stage.turns.is_over = True
    stage.turns.turn()
    assert not waiter.is_done
