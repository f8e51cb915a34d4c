"""What README.md tells a newcomer to type does what it says, with shorter delays."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from delayd.testing.daemon import running_daemon
from tests.http_client import HTTP
from tests.pages import Reader, needs_curl, passing_time, text_of

README: Final = "../README.md"


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


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    """Somebody who waits for a second where the page waits for ten."""
    with running_daemon(*HTTP, data_dir=tmp_path / "data") as daemon:
        sooner = {"delay=10": "delay=1", '"delay": "10s"': '"delay": "1s"'}
        yield Reader(tmp_path, daemon, {**sooner, "11300": str(daemon.address[1])})


def test_the_programs_of_the_readme_work(reader: Reader) -> None:
    programs = re.findall(r"```python\n(.*?)```", text_of(README, "From a program"), re.DOTALL)
    for program in programs:
        said = reader.said(sys.executable, "-c", reader.here(program))
        assert said == "hello, ten seconds later\n"
    assert len(programs) == 2


@needs_curl
def test_the_job_over_http_comes_and_is_acknowledged(reader: Reader) -> None:
    blocks = re.findall(r"(?:^    .*\n)+", text_of(README, "Over HTTP"), re.MULTILINE)
    typed = reader.here("\n".join(blocks)).replace("curl ", "curl -sS ")
    put, got, done = map(json.loads, reader.said("bash", "-c", typed).splitlines())
    (job,) = got["jobs"]
    assert put["id"] == job["id"] == done["id"] == 1
    assert job["body"] == {"to": "ada"}
    assert job["lateness"] >= 0
