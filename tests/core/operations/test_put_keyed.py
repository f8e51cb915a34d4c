"""What a key and a rule of its own may be. Conflicts, want of room, clears: the facts."""

import pytest

from delayd.core.errors import KeyInvalid, ValueOutOfRange
from delayd.core.job_parts import Own, Retry
from delayd.core.names import checked_key
from tests.rigs.engine import EngineRig


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
