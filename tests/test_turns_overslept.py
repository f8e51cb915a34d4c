"""The watchdog's question: should somebody have been woken long ago?"""

import pytest

from delayd.core.operations.tick import next_deadline
from delayd.limits import MISSED_WAKE_UP_MS
from tests.rigs.commit import CommitRig, set_watch

DELAY_MS = 5_000


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> CommitRig:
    made = CommitRig(watch=set_watch(monkeypatch))
    made.turns.turn()
    return made


def past_ms(rig: CommitRig) -> int:
    """How long ago the deadline was."""
    deadline_ms = next_deadline(rig.engine)
    assert deadline_ms is not None
    return rig.clock.now_ms() - deadline_ms


def test_with_nothing_due_or_hardly_past_nobody_has_overslept(rig: CommitRig) -> None:
    assert rig.turns.overslept_ms() == 0
    rig.put(delay_ms=DELAY_MS)
    rig.turns.turn()
    rig.clock.advance(-past_ms(rig) + MISSED_WAKE_UP_MS)
    assert past_ms(rig) == MISSED_WAKE_UP_MS
    assert rig.turns.overslept_ms() == 0, "a second is within what slices may take"


def test_a_deadline_that_is_long_past_with_no_turn_since_was_slept_through(rig: CommitRig) -> None:
    rig.put(delay_ms=DELAY_MS)
    rig.turns.turn()
    rig.clock.advance(-past_ms(rig) + MISSED_WAKE_UP_MS + 1)
    assert rig.turns.overslept_ms() == MISSED_WAKE_UP_MS + 1
    rig.turns.turn()
    assert rig.turns.overslept_ms() == 0
    assert rig.turns.repairs == 1


def test_who_has_just_taken_a_turn_has_not_overslept_however_much_is_left(rig: CommitRig) -> None:
    for _ in range(10_000):
        rig.put(delay_ms=DELAY_MS)
    rig.clock.advance(DELAY_MS + 10 * MISSED_WAKE_UP_MS)
    rig.turns.turn()
    deadline_ms = next_deadline(rig.engine)
    assert deadline_ms is not None, "a slice does not fire them all"
    assert deadline_ms + MISSED_WAKE_UP_MS < rig.clock.now_ms()
    assert rig.turns.overslept_ms() == 0
