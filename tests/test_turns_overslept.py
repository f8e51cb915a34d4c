"""The watchdog's question: should somebody have been woken long ago?"""

import pytest

from delayd.limits import MISSED_WAKE_UP_MS
from tests.turn_scene import Stage, set_watch

DELAY_MS = 5_000


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    made = Stage(set_watch(monkeypatch))
    made.turns.turn()
    return made


def past_ms(stage: Stage) -> int:
    """How long ago the deadline was."""
    deadline_ms = stage.engine.next_deadline()
    assert deadline_ms is not None
    return stage.clock.now_ms() - deadline_ms


def test_with_nothing_due_or_hardly_past_nobody_has_overslept(stage: Stage) -> None:
    assert stage.turns.overslept_ms() == 0
    stage.put(delay_ms=DELAY_MS)
    stage.turns.turn()
    stage.clock.advance(-past_ms(stage) + MISSED_WAKE_UP_MS)
    assert past_ms(stage) == MISSED_WAKE_UP_MS
    assert stage.turns.overslept_ms() == 0, "a second is within what slices may take"


def test_a_deadline_that_is_long_past_with_no_turn_since_was_slept_through(stage: Stage) -> None:
    stage.put(delay_ms=DELAY_MS)
    stage.turns.turn()
    stage.clock.advance(-past_ms(stage) + MISSED_WAKE_UP_MS + 1)
    assert stage.turns.overslept_ms() == MISSED_WAKE_UP_MS + 1
    stage.turns.turn()
    assert stage.turns.overslept_ms() == 0


def test_who_has_just_taken_a_turn_has_not_overslept_however_much_is_left(stage: Stage) -> None:
    for _ in range(10_000):
        stage.put(delay_ms=DELAY_MS)
    stage.clock.advance(DELAY_MS + 10 * MISSED_WAKE_UP_MS)
    stage.turns.turn()
    deadline_ms = stage.engine.next_deadline()
    assert deadline_ms is not None, "a slice does not fire them all"
    assert deadline_ms + MISSED_WAKE_UP_MS < stage.clock.now_ms()
    assert stage.turns.overslept_ms() == 0
