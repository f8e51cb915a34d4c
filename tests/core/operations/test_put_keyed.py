"""Keys: how they are spelled, and runs of them. Conflicts, want of room, clears: the facts."""

import pytest

from delayd.core.errors import KeyInvalid, ValueOutOfRange
from delayd.core.job_parts import Own, Retry
from delayd.core.names import checked_key
from delayd.core.operations.put import put_keyed_run
from tests.rigs.engine import TTR_MS, EngineRig

HOUR_MS = 3_600_000


def test_jobs_put_by_name_are_the_same_one_by_one_and_in_a_run() -> None:
    names = [b"k%d" % number for number in range(100)]
    in_a_run, one_by_one = EngineRig(), EngineRig()
    numbers = (3, HOUR_MS, TTR_MS, names, names, in_a_run.now_ms)
    assert put_keyed_run(in_a_run.engine, in_a_run.topic(), *numbers) == 1
    for name in names:
        one_by_one.put_keyed(name, delay_ms=HOUR_MS, priority=3, body=name)
    for rig in (in_a_run, one_by_one):
        rig.agree_with_the_log()
    assert in_a_run.log == one_by_one.log


@pytest.mark.parametrize("key", [b"a\tb", b"\xff", b"a\0", b"\xc3", b"\n"])
def test_a_key_is_printable_utf_8(key: bytes) -> None:
    with pytest.raises(KeyInvalid, match="be 1 to 200 bytes of printable UTF-8 without spaces"):
        checked_key(key)


@pytest.mark.parametrize(
    "rule", [Retry((0,) * 256), Retry((-1,)), Retry((1,), 65_536), Retry((1,), 0, 101)]
)
def test_a_rule_of_its_own_that_is_out_of_range_is_refused(rig: EngineRig, rule: Retry) -> None:
    with pytest.raises(ValueOutOfRange):
        rig.put_keyed(b"key", own=Own(rule))
    assert rig.take_log() == (b"", False)
