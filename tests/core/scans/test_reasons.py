"""Dead letters are grouped by reason, a slice at a time, and those of one reason are selected."""

import pytest

from delayd.core.operations.change import bury_waiting, kick_job
from delayd.core.reasons import normalised
from delayd.core.scans.reasons import DeadReasons
from delayd.limits import PASS_ACTION_COST, REASONS_KEPT_MAX, REASONS_SHOWN_MAX
from tests.rigs.engine import EngineRig


def buried(rig: EngineRig, error: str) -> int:
    job_id = rig.put()
    bury_waiting(rig.engine, job_id, rig.now_ms, error=error)
    return job_id


def reasons_of(rig: EngineRig) -> DeadReasons:
    reasons = DeadReasons(rig.engine, "default")
    while not reasons.step(256, rig.now_ms):
        pass
    return reasons


SET_ASIDE = """
order 17 is gone -> order # is gone
no such user -> no such user
user17 at 10.0.0.7:80, 3.5 s -> # at #, # s
8f14e45f-ceea-467a-9f0b-2c5d1e6a7b80 is gone -> #-ceea-# is gone
HTTP/1.1 503 -> HTTP/1.1 503
HTTP/2 502 of 10.0.0.7 -> HTTP/2 502 of #
exit code 137 after 20 s -> exit code 137 after # s
HTTP 503, Status: 42, status=7 -> HTTP 503, Status: 42, status=7
code 1234, code 4a, code 17.5, code 12-7 -> code #, code #, code #, code #
code 1. -> code 1.
barcode 17, encode 3 -> barcode #, encode #
HTTP503 and code17 -> # and #
größe 4 -> größe #
"""


@pytest.mark.parametrize("line", ["->", *SET_ASIDE.strip().splitlines()])
def test_each_word_with_a_digit_is_set_aside(line: str) -> None:
    text, _, expected = line.partition("->")
    assert normalised(text.strip()) == expected.strip()


def test_the_longest_error_takes_no_longer_than_its_length() -> None:
    """A pattern that goes back looks at 1,000 letters a million times."""
    assert normalised("a" * 100_000) == "a" * 100_000
    assert normalised("a" * 100_000 + "1") == "#"


def test_all_dead_letters_are_counted_and_the_largest_groups_told() -> None:
    rig = EngineRig()
    for number in range(REASONS_SHOWN_MAX + 5):
        buried(rig, "x" * (number % 150) + "-" * (number // 150))
    for _ in range(2):
        buried(rig, "often 7")
    reasons = reasons_of(rig)
    groups = reasons.groups()
    assert reasons.jobs == REASONS_SHOWN_MAX + 7
    assert len(groups) == REASONS_SHOWN_MAX
    assert (groups[0].reason, groups[0].jobs) == ("buried: often #", 2)


@pytest.mark.thorough
def test_reasons_beyond_the_bound_are_counted_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = EngineRig()
    for number in range(REASONS_KEPT_MAX + 3):
        buried(rig, "y" * (number % 150) + "-" * (number // 150))
    reasons = reasons_of(rig)
    assert reasons.jobs == REASONS_KEPT_MAX + 3
    assert len(reasons._groups) == REASONS_KEPT_MAX


def test_a_step_groups_as_many_as_it_could_change() -> None:
    rig = EngineRig()
    for _ in range(100):
        buried(rig, "busy")
    reasons = DeadReasons(rig.engine, "default")
    assert not reasons.step(PASS_ACTION_COST * 10, rig.now_ms)
    assert 1 <= reasons.jobs <= 12


def test_one_that_is_buried_again_meanwhile_counts_once() -> None:
    rig = EngineRig()
    ids = [buried(rig, "busy") for _ in range(40)]
    reasons = DeadReasons(rig.engine, "default")
    reasons.step(PASS_ACTION_COST * 10, rig.now_ms)
    kick_job(rig.engine, ids[0], rig.now_ms)
    bury_waiting(rig.engine, ids[0], rig.now_ms, error="busy")
    while not reasons.step(PASS_ACTION_COST * 10, rig.now_ms):
        pass
    assert reasons.jobs == 40
