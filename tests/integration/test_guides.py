"""The pages that guide a newcomer are true: everything on them is typed or run, in its order."""

import shutil
from pathlib import Path

import pytest

from delayd.testing.daemon import running_daemon
from tests.pages import Reader

needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


@needs_curl
def test_who_takes_the_tour_sees_what_it_says(tmp_path: Path) -> None:
    with running_daemon("--http", "127.0.0.1:0") as daemon:
        Reader(tmp_path, daemon).follow("tour.md")


def test_every_recipe_does_what_it_says(tmp_path: Path) -> None:
    with running_daemon("--http", "127.0.0.1:0", clock="virtual") as daemon:
        Reader(tmp_path, daemon).follow("recipes.md")
