"""A fixture for pytest, which finds it wherever delayd is installed.

def test_a_review_is_asked_for_after_seven_days(fake_delayd):
    ask_for_review(fake_delayd.client(), 17)
    fake_delayd.advance("7d")
"""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from delayd.testing.fake import FakeDelayd


@pytest.fixture
def fake_delayd() -> "Iterator[FakeDelayd]":
    """Return a `FakeDelayd` of this test's own: a daemon in memory, on a virtual clock."""
    from delayd.testing.fake import FakeDelayd  # noqa: PLC0415 - most tests need none

    with FakeDelayd() as fake:
        yield fake
