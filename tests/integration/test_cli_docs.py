"""docs/cli.md is true: its examples are typed into a shell, in their order, and answer as it says.

The daemon has a virtual clock, so that its times are those of the page but for when it began; every
time and token is moved by that difference. `...` stands for what varies.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from delayd.client.sync import Client
from delayd.testing.daemon import running_daemon
from tests.cli.test_main import LEAVES
from tests.pages import is_as_told

PAGE: Final = Path(__file__).parents[2] / "docs" / "cli.md"
TEXT: Final = PAGE.read_text(encoding="utf-8")
PAGE_START: Final = datetime(2026, 11, 21, 19, tzinfo=UTC)
SPAN: Final = timedelta(days=400)
"""Times that far from the start, as 2030, were named by an option and stay."""
TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d")
TOKEN: Final = re.compile(r"\b(\d+)-([0-9a-f]{11})-(\d+)\b")
ELSEWHERE: Final = (
    "serve",
    "token",
    "secret",
    "schedule",
    "journal",
    "import-beanstalkd",
    "push",
    "group",
    "worker",
    "relay",
    "handover",
)
"""Described on other pages."""


class Typed(NamedTuple):
    """A command of the page, and what it prints."""

    command: str
    answer: str


def examples() -> Iterator[Typed]:
    for block in re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL):
        for part in block.removeprefix("$ ").split("\n$ "):
            command, _, answer = part.partition("\n")
            yield Typed(command, answer.removesuffix("\n"))


def moved(text: str, start: datetime, ahead: timedelta) -> str:
    """The text of a daemon that began at another time."""

    def time(found: re.Match[str]) -> str:
        at = datetime.fromisoformat(f"{found[0]}+00:00")
        if abs(at - start) > SPAN:
            return found[0]
        return (at + ahead).isoformat(found[0][10], timespec="seconds").removesuffix("+00:00")

    def token(found: re.Match[str]) -> str:
        ahead_ms = round(ahead / timedelta(milliseconds=1))
        return f"{found[1]}-{int(found[2], 16) + ahead_ms:x}-{found[3]}"

    return TOKEN.sub(token, TIME.sub(time, text))


def typed(command: str, environment: Mapping[str, str], output: Path) -> str:
    # Into a file: standard output and standard error in the order in which they were written.
    with output.open("wb") as file:
        subprocess.run(
            ["bash", "-c", command],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
            timeout=120,
        )
    return output.read_text().removesuffix("\n")


def whole_second(client: Client) -> datetime:
    """Let the clock stand at a whole second, and return it."""
    now = client.advance_clock(0)
    return client.advance_clock((1_000_000 - now.microsecond) / 1_000_000)


def test_the_examples_print_what_the_page_says(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "delayd"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m delayd "$@"\n')
    program.chmod(0o755)
    with running_daemon("--http", "127.0.0.1:0", clock="virtual") as daemon:
        url = f"http://{daemon.http_listens_on}"
        with Client(url) as client:
            start = whole_second(client)
        environment = {
            **{name: os.environ[name] for name in os.environ if not name.startswith("DELAYD_")},
            "DELAYD_URL": url,
            "PATH": f"{program.parent}:{os.environ['PATH']}",
        }
        for example in examples():
            command = moved(example.command, PAGE_START, start - PAGE_START)
            said = typed(command, environment, tmp_path / "output")
            said = moved(said, start, PAGE_START - start)
            assert is_as_told(example.answer, said), f"$ {example.command}\n{said}"


@pytest.mark.parametrize("name", [name for name in LEAVES if name.split()[1] not in ELSEWHERE])
def test_every_command_has_an_example(name: str) -> None:
    assert any(name in example.command for example in examples())
