"""What the log of a daemon has the service do: look for a snapshot, warn, or stop at once.

When a commit and snapshots ask for that is in their own tests.
"""

import io
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from delayd.config import load
from delayd.core.engine import Engine
from delayd.exits import Exit
from delayd.log_lines import Log
from delayd.notices import Notices
from delayd.service import Service
from tests.rigs.clock import FakeClock
from tests.rigs.log import ERRORS, End, MemoryLog, MemorySnapshot, Place


class Keeping:
    """A service of which there is only what keeps jobs."""

    def __init__(self) -> None:
        self.written = io.StringIO()
        self.told: list[str] = []
        self.log = MemoryLog(Place())
        list(self.log.follow())
        self.log.take_over()
        self.service = cast("Any", Service.__new__(Service))
        self.turns = SimpleNamespace(is_over=False, wake_loop=lambda: self.told.append("wake"))
        self.loop = SimpleNamespace(
            is_woken=False, stop=lambda: self.told.append("stop"), call_soon_threadsafe=print
        )
        service, engine = self.service, Engine(start_ms=0)
        lines = Log(self.written, lambda: 0)
        service._config, service._clock, service._engine = load(None, {}, {}), FakeClock(), engine
        service._loop, service._turns, service._exit = self.loop, self.turns, Exit.OK
        service._is_ending = False
        service._notices = Notices(lines, engine, self.log.space)
        self.snapshots, self.commit = service._keeping(self.log, lines)
        service._snapshots = SimpleNamespace(ask_soon=lambda: self.told.append("look"))


@pytest.fixture
def keeping() -> Keeping:
    return Keeping()


@pytest.mark.parametrize(
    ("happens", "told"),
    [
        (lambda it: it.commit.lost("segment 7"), 'missing="segment 7"'),
        (lambda it: it.log.space.on_change(True), "no space is left"),
        (lambda it: it.log.space.on_change(False), "there is space again"),
    ],
)
def test_a_log_that_lost_a_file_or_its_space_has_it_looked_at_once_whether_a_snapshot_is_due(
    keeping: Keeping, happens: Callable[[Keeping], None], told: str
) -> None:
    happens(keeping)
    assert told in keeping.written.getvalue()
    assert keeping.loop.is_woken
    assert keeping.told == ["look"]


def test_a_slow_sync_is_warned_of(keeping: Keeping) -> None:
    keeping.commit.on_slow_sync(1_234)
    assert "ms=1234" in keeping.written.getvalue()


@pytest.mark.parametrize(
    "fails",
    [
        lambda it: it.commit.failed(ERRORS[End.FENCED]),
        lambda it: it.snapshots.step(),
    ],
)
def test_a_log_that_fails_ends_the_turns_at_once_with_the_exit_code_of_its_error(
    keeping: Keeping, monkeypatch: pytest.MonkeyPatch, fails: Callable[[Keeping], None]
) -> None:
    def begin_snapshot(_time_ms: int, _wall_ms: int) -> MemorySnapshot:
        raise ERRORS[End.FENCED]

    monkeypatch.setattr(keeping.log, "begin_snapshot", begin_snapshot)
    keeping.log.grown_bytes = 1 << 30
    keeping.snapshots.ask_soon()
    fails(keeping)
    assert keeping.service._exit is Exit.FENCED
    assert keeping.turns.is_over
    assert keeping.service._is_ending
    assert keeping.told == ["wake", "stop"]
    assert "fenced" in keeping.written.getvalue()


def test_a_broken_connection_is_logged_and_any_other_error_ends_the_process(
    keeping: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[int] = []
    monkeypatch.setattr("delayd.service.os._exit", ends.append)
    keeping.service._deliveries = None
    keeping.service._complain(None, {"message": "a write", "exception": ConnectionResetError(104)})
    assert "a write: 104" in keeping.written.getvalue()
    assert not ends
    keeping.service._complain(None, {"message": "a write", "exception": KeyError(7)})
    assert ends == [Exit.OUR_FAULT]
