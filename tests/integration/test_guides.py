"""The pages that guide a newcomer are true: everything on them is typed or run, in its order."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from delayd.testing.daemon import running_daemon
from tests.cli.test_main import LEAVES
from tests.config_files import written
from tests.http_client import HTTP
from tests.pages import BLOCK, Reader, examples, needs_curl, passing_time, text_of
from tests.rigs.process import put_standing
from tests.servers import free_port


@needs_curl
@pytest.mark.parametrize("page", ["tour.md", "recipes.md", "schedules.md"])
def test_who_follows_the_page_sees_what_it_says(page: str, tmp_path: Path) -> None:
    with running_daemon(*HTTP, clock="virtual") as daemon:
        Reader(tmp_path, daemon).follow(page, time_passes=page == "tour.md")


def test_groups_do_what_the_page_says(tmp_path: Path) -> None:
    texts = [
        block["text"] for block in BLOCK.finditer(text_of("groups.md")) if block["kind"] == "toml"
    ]
    home = tmp_path / "home"
    home.mkdir()
    with free_port() as port:
        settings = written(tmp_path, "".join(texts).replace("8080", str(port)))
        with running_daemon(*HTTP, "--config", settings, clock="virtual") as daemon:
            Reader(home, daemon, {"8080": str(port)}).follow("groups.md")


def test_an_upgrade_is_prepared_as_the_page_says(tmp_path: Path) -> None:
    home, data = tmp_path / "home", tmp_path / "data"
    home.mkdir()
    with running_daemon("--http", "127.0.0.1:0", data_dir=data) as daemon:
        put_standing(daemon, 3, b"waits")
        there = {"/var/lib/delayd": str(data), "/backup": str(tmp_path)}
        Reader(home, daemon, there).follow("sizing.md", "Upgrading")


def test_one_person_keeps_the_jobs_at_home(tmp_path: Path) -> None:
    with running_daemon("--http", "127.0.0.1:0") as daemon:
        reader = Reader(tmp_path, daemon)
        reader.environment["HOME"] = str(tmp_path)
        reader.follow("operations.md", "For one person")


def test_the_program_of_the_page_on_testing_works(tmp_path: Path) -> None:
    program = text_of("testing.md").split("```python\n")[1].partition("```")[0]
    assert Reader(tmp_path).said(sys.executable, "-c", program) == "not yet\nreview order 4711\n"


# --- docs/cli.md --------------------------------------------------------------------------------

ELSEWHERE: Final = (
    *("serve", "token", "secret", "schedule", "journal", "import-beanstalkd", "push", "group"),
    *("worker", "relay", "handover"),
)
"""Described on other pages."""


def test_the_examples_of_the_commands_print_what_the_page_says(tmp_path: Path) -> None:
    with running_daemon(*HTTP, clock="virtual") as daemon:
        reader = Reader(tmp_path, daemon)
        daemon.advance(1 - daemon.advance(0) % 1)  # what is told is whole seconds
        reader.share_clock()
        reader.follow("cli.md")


@pytest.mark.parametrize("name", [name for name in LEAVES if name.split()[1] not in ELSEWHERE])
def test_every_command_has_an_example(name: str) -> None:
    assert any(name in example.command for example in examples("cli.md"))


# --- README.md ----------------------------------------------------------------------------------

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
