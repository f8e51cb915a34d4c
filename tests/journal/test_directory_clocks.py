"""`delayd journal check` says which clock a directory belongs to; facts.txt has what follows."""

import pytest

from delayd.cli.journal_report import examine
from tests.journal.journals import DIRECTORY, opened
from tests.rigs.disk import SimulatedDisk


@pytest.mark.parametrize("is_virtual", [False, True])
def test_check_says_which_clock_it_is(disk: SimulatedDisk, *, is_virtual: bool) -> None:
    opened(disk, is_virtual=is_virtual)[0].close()
    lines = examine(disk, DIRECTORY).lines()
    assert any(line.startswith("clock      virtual") for line in lines) is is_virtual
