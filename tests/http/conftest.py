"""What nearly every test of HTTP begins with."""

from collections.abc import Iterator

import pytest

from tests.rigs.http import HttpRig


@pytest.fixture
def rig() -> Iterator[HttpRig]:
    """A daemon whose clients need no token, on a clock of its own."""
    with HttpRig() as made:
        yield made
