"""A disk and a journal on it, which is new."""

import pytest

from delayd.journal.journal import Journal
from tests.journal.journals import opened
from tests.rigs.disk import SimulatedDisk


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def journal(disk: SimulatedDisk) -> Journal:
    return opened(disk)[0]
