"""docs/cli.md is true: its examples are typed into a shell, in their order, and answer as it says.

The daemon has a virtual clock, so that its times are those of the page but for when it began.
"""

from pathlib import Path
from typing import Final

import pytest

from delayd.testing.daemon import running_daemon
from tests.cli.test_main import LEAVES
from tests.http_client import HTTP
from tests.pages import Reader, examples

PAGE: Final = "cli.md"
ELSEWHERE: Final = (
    *("serve", "token", "secret", "schedule", "journal", "import-beanstalkd", "push", "group"),
    *("worker", "relay", "handover"),
)
"""Described on other pages."""


def test_the_examples_print_what_the_page_says(tmp_path: Path) -> None:
    with running_daemon(*HTTP, clock="virtual") as daemon:
        reader = Reader(tmp_path, daemon)
        daemon.advance(1 - daemon.advance(0) % 1)  # what is told is whole seconds
        reader.share_clock()
        reader.follow(PAGE)


@pytest.mark.parametrize("name", [name for name in LEAVES if name.split()[1] not in ELSEWHERE])
def test_every_command_has_an_example(name: str) -> None:
    assert any(name in example.command for example in examples(PAGE))
