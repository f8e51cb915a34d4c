"""`delayd demo` and `delayd bench`: on daemons of their own, which are gone afterwards."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from delayd.cli.main import INTERRUPTED
from delayd.exits import Exit


def ran(*words: str, tmp_path: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "delayd", *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "TMPDIR": str(tmp_path), "DELAYD_URL": "http://127.0.0.1:1"},
    )


def test_the_demo_tells_three_stories_and_leaves_nothing(tmp_path: Path) -> None:
    demo = ran("demo", tmp_path=tmp_path)
    assert demo.returncode == Exit.OK, demo.stderr
    shown = re.sub(r"\d+-[0-9a-f]{11}-\d+", "TOKEN", demo.stdout)
    # Each of these is said because it was so: the answers are those of the daemon.
    for line in (
        "-- 1. An order that is not paid is closed after 30 minutes\n",
        "  $ delayd reserve orders\n    no job of orders was ready in time\n  ... 1s later",
        "    close order 17\n",
        "  $ delayd cancel --topic orders --key order-18\n    cancelled: 1 job\n",
        "  $ delayd nack TOKEN --error 'no route to host'   # attempt 4\n    3 buried\n",
        "    3  4 attempts  no route to host\n",
        "    order 17 was closed\n",
    ):
        assert line in shown
    assert not list(tmp_path.iterdir())


def test_the_figures_of_this_machine_are_measured(tmp_path: Path) -> None:
    within = tmp_path / "disk"
    within.mkdir()
    words = ("bench", "--seconds", "0.05", "--sync", "never", "--within", str(within), "--json")
    bench = ran(*words, tmp_path=tmp_path)
    assert bench.returncode == Exit.OK, bench.stderr
    assert f"in {within}/" in bench.stderr
    rows = [json.loads(line) for line in bench.stdout.splitlines()]
    assert len(rows) == 3
    # How many each second is 0 where the machine stops for some seconds.
    assert all(row["per_second"] >= 0 and 0 < row["p50_ms"] <= row["p99_ms"] for row in rows)
    assert not list(within.iterdir())


@pytest.mark.parametrize("words", [["demo"], ["bench", "--seconds", "30"]])
def test_sigterm_ends_the_daemon_too_and_removes_its_directory(
    words: list[str], tmp_path: Path
) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "delayd", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(1)  # the daemon is there
        process.terminate()
        process.stdout.read()
    assert process.returncode == INTERRUPTED
    assert not list(tmp_path.iterdir())
