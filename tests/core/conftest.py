"""An engine of each test's own."""

import pytest

from tests.rigs.engine import EngineRig


@pytest.fixture
def rig() -> EngineRig:
    return EngineRig()
