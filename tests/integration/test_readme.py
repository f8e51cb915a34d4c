"""What README.md tells a newcomer to type does what it says, with shorter delays."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from delayd.testing.daemon import Daemon, running_daemon
from tests.pages import Reader, passing_time, text_of

README: Final = "../README.md"
HTTP: Final = ("--http", "127.0.0.1:0")


def typed(text: str, daemon: Daemon) -> str:
    """What a reader types, for this daemon."""
    for written, meant in (
        ("11300", str(daemon.address[1])),
        ("localhost:11301", daemon.http_listens_on),
        ("127.0.0.1:11301", daemon.http_listens_on),
        ("delay=10", "delay=1"),
        ('"delay": "10s"', '"delay": "1s"'),
    ):
        text = text.replace(written, meant)
    return text


def test_what_a_newcomer_types_first_is_answered_as_it_says_and_outlives_a_kill(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    before, after = re.findall("```console\n(.*?)```", text_of(README, "Kill it"), re.DOTALL)
    with running_daemon(*HTTP, data_dir=data, clock="virtual") as daemon:
        reader = Reader(tmp_path, daemon, {"data/lock": f"{data}/lock"})
        reader.follow(README, "Start", time_passes=True)
        reader.type(before)
        assert daemon.process.wait(60) == -9
    home = tmp_path / "again"
    home.mkdir()
    with running_daemon(*HTTP, data_dir=data, clock="virtual") as daemon:
        reader = Reader(home, daemon)
        with passing_time(daemon):
            reader.type(after)
        reader.follow(README, "Keys")


@pytest.mark.parametrize("number", [0, 1])
def test_the_programs_of_the_readme_work(tmp_path: Path, number: int) -> None:
    program = re.findall(r"```python\n(.*?)```", text_of(README, "From a program"), re.DOTALL)[
        number
    ]
    with running_daemon(*HTTP, data_dir=tmp_path) as daemon:
        ran = subprocess.run(
            [sys.executable, "-c", typed(program, daemon)],
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert ran.stdout == "hello, ten seconds later\n"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_job_over_http_comes_and_is_acknowledged(tmp_path: Path) -> None:
    blocks = re.findall(r"(?:^    .*\n)+", text_of(README, "Over HTTP"), re.MULTILINE)
    with running_daemon(*HTTP, data_dir=tmp_path) as daemon:
        ran = subprocess.run(
            ["bash", "-c", typed("\n".join(blocks).replace("curl ", "curl -sS "), daemon)],
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert not ran.stderr
    put, got, done = map(json.loads, ran.stdout.splitlines())
    (job,) = got["jobs"]
    assert put["id"] == job["id"] == done["id"] == 1
    assert job["body"] == {"to": "ada"}
    assert job["lateness"] >= 0
