"""Callbacks when a turn is durable: behind its commit, many at once, and once each."""

from typing import Final

import pytest

from delayd.core.operations.reserve import reserve
from delayd.core.operations.sessions import open_session
from delayd.core.operations.waiting import wait
from delayd.core.session import Handed, WaitEnd
from delayd.core.times import RequestMs
from tests.rigs.commit import CommitRig, Recipient, Watch, set_watch

MANY: Final = 1_000


class LinePeer(Recipient):
    """Somebody who is told of a job in a turn, and waits for it to be durable."""

    def __init__(self, rig: CommitRig) -> None:
        super().__init__("b", rig.events)
        self._rig = rig

    def deliver(self, outcome: Handed | WaitEnd, now_ms: int) -> None:
        super().deliver(outcome, now_ms)
        waiting(self._rig)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return set_watch(monkeypatch)


@pytest.fixture
def rig(watch: Watch) -> CommitRig:
    made = CommitRig(watch=watch)
    made.turns.turn()
    made.look()
    return made


def waiting(rig: CommitRig, name: str = "w") -> None:
    rig.turns.when_durable(lambda: rig.events.append(f"{name} goes on"))


def test_who_waits_goes_on_behind_the_commit(rig: CommitRig) -> None:
    rig.put()
    waiting(rig)
    rig.turns.turn()
    assert rig.events[-2:] == ["commit 3 up to 1", "w goes on"]


def test_an_answer_that_waits_is_sent_behind_the_commit_and_wakes_nobody(rig: CommitRig) -> None:
    rig.put()
    rig.turns.reply_when_durable(Recipient("w", rig.events), b"done")
    assert rig.slept(None) == [0.0]
    assert rig.events[-2:] == ["commit 3 up to 1", "w gets done"]
    rig.put()
    rig.turns.reply_when_durable(Recipient("w", rig.events), b"done")
    assert rig.slept(None, int) == [0.0, None], "a reply does not end a sleep"


def test_who_waits_for_a_commit_that_takes_long_goes_on_when_it_is_through(rig: CommitRig) -> None:
    rig.commits.is_holding = True
    rig.put()
    waiting(rig, "first")
    rig.turns.turn()
    waiting(rig, "second")
    rig.turns.turn()
    assert "first goes on" not in rig.events
    ((one, _),), ((other, _),) = rig.commits.replies
    one.send(b"")
    assert "first goes on" in rig.events
    assert "second goes on" not in rig.events
    other.send(b"")
    assert "second goes on" in rig.events


def test_who_waits_gets_a_turn_at_once(rig: CommitRig) -> None:
    waiting(rig)
    rig.line.waits_s.clear()
    rig.turns.sleep(None)
    assert rig.line.waits_s == [0.0], "and asyncio is let go to see what follows"
    assert rig.events == ["commit 0 up to 0", "w goes on"]


def test_what_need_not_be_synced_for_the_line_is_synced_for_who_waits(rig: CommitRig) -> None:
    rig.put(jobs=2)
    rig.turns.turn()
    rig.commits.synced.clear()
    assert reserve(rig.engine, rig.session, RequestMs(rig.clock.now_ms())) is not None
    rig.turns.turn()
    assert rig.commits.synced == [False], "a reservation alone is lost with its connection"
    assert reserve(rig.engine, rig.session, RequestMs(rig.clock.now_ms())) is not None
    waiting(rig)
    rig.turns.turn()
    assert rig.commits.synced == [False, True]


def test_with_nothing_recorded_there_is_nothing_to_sync(rig: CommitRig) -> None:
    waiting(rig)
    rig.turns.turn()
    assert rig.commits.synced == [False]
    assert rig.events == ["commit 0 up to 0", "w goes on"]


def test_many_wait_for_one_sync_and_are_one_reply(rig: CommitRig) -> None:
    rig.put(jobs=MANY)
    for number in range(MANY):
        waiting(rig, f"{number}")
    rig.turns.turn()
    assert (rig.commits.synced, [*map(len, rig.commits.replies)]) == ([True], [1])
    assert rig.events[1:] == [f"{number} goes on" for number in range(MANY)]


def test_nobody_is_told_twice(rig: CommitRig) -> None:
    waiting(rig)
    rig.turns.turn()
    rig.turns.turn()
    rig.put()
    rig.turns.turn()
    assert rig.events.count("w goes on") == 1


def test_replies_of_the_line_leave_as_ever_beside_who_waits(rig: CommitRig) -> None:
    rig.put()
    rig.line.replies = [(rig.a, b"INSERTED")]
    waiting(rig)
    rig.turns.turn()
    assert rig.events[-2:] == ["a gets INSERTED", "w goes on"]


def test_who_is_told_of_a_job_waits_for_that_very_turn(rig: CommitRig) -> None:
    session = open_session(rig.engine, LinePeer(rig))
    wait(rig.engine, session, RequestMs(rig.clock.now_ms()), None)
    rig.put(delay_ms=5)
    rig.turns.turn()
    rig.look()
    rig.commits.synced.clear()
    rig.clock.advance(6)
    rig.turns.turn()
    assert rig.commits.synced == [True]
    assert rig.events == ["reap", "b is told job 1", "commit 2 up to 1", "w goes on"]


def test_without_a_journal_who_waits_goes_on_at_once(watch: Watch) -> None:
    rig = CommitRig(watch=watch, keeps=False)
    rig.put()
    waiting(rig)
    rig.turns.turn()
    assert rig.events == ["w goes on"]


def test_nobody_goes_on_when_all_is_over(rig: CommitRig) -> None:
    waiting(rig)
    rig.turns.is_over = True
    rig.turns.turn()
    assert "w goes on" not in rig.events
