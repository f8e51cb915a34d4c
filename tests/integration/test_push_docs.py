"""docs/push.md is true: a newcomer who follows it to the end sees what it says.

Its port is another one here, and the daemon listens elsewhere. `...` stands for what varies.
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from delayd.config import load
from delayd.testing.daemon import Daemon
from tests.config_files import written
from tests.rigs.waiting import until
from tests.servers import free_port

PAGE: Final = (Path(__file__).parents[2] / "docs" / "push.md").read_text(encoding="utf-8")
WAIT_S_MAX: Final = 60.0
BLOCK: Final = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ADDRESS: Final = "localhost:11301"
PORT: Final = "8080"


def blocks(kind: str) -> list[str]:
    return [text for found, text in BLOCK.findall(PAGE) if found == kind]


class Newcomer:
    """Somebody in a directory, with a shell, and with what the page has them save there."""

    def __init__(self, directory: Path, port: int) -> None:
        self.directory = directory
        self.port = str(port)
        beside = os.path.dirname(sys.executable)
        self.environment = {"PATH": f"{beside}:{os.defpath}", "LC_ALL": "C.UTF-8"}
        self.api = ADDRESS

    def here(self, text: str) -> str:
        return text.replace(PORT, self.port).replace(ADDRESS, self.api)

    def saves(self, name: str, text: str) -> None:
        (self.directory / name).write_text(self.here(text))

    def types(self, commands: str) -> str:
        ran = subprocess.run(
            ["bash", "-ec", self.here(commands).replace("curl ", "curl -sS ", 1)],
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
            cwd=self.directory,
            env=self.environment,
        )
        assert ran.returncode == 0, ran
        return ran.stdout.removesuffix("\n")

    def sees(self, command: str, told: str) -> None:
        """Type it and be told so; who only looks does so again, as a call takes a moment."""
        if " --json " in command or " -X " in command:
            answered = self.types(command)
            assert is_as_told(told, answered), f"{command}\n{answered}"
        else:
            until(lambda: is_as_told(told, self.types(command)), seen=lambda: command)

    @contextlib.contextmanager
    def receiver(self, command: str) -> Iterator[Path]:
        """Start it as the page says; what it prints is in the file."""
        output = self.directory / "received"
        with (
            output.open("wb") as file,
            subprocess.Popen(
                ["bash", "-ec", "exec env " + command],
                stdout=file,
                cwd=self.directory,
                env=self.environment,
            ) as process,
        ):
            try:
                until(self.answers)
                yield output
            finally:
                process.kill()

    def answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", int(self.port))):
            return True
        return False

    def daemon(self, command: str) -> Daemon:
        words = [sys.executable, "-m", *shlex.split(command)]
        elsewhere = ["--line", "127.0.0.1:0", "--http", "127.0.0.1:0"]
        return Daemon([*words, *elsewhere], directory=str(self.directory))


def is_as_told(told: str, answered: str) -> bool:
    """Whether the page, which breaks JSON into lines, says what was answered."""
    try:
        return fits(json.loads(told), json.loads(answered))
    except ValueError:
        parts = map(re.escape, told.split("..."))
        return re.fullmatch(".*".join(parts), answered, re.DOTALL) is not None


def fits(told: object, answered: object) -> bool:
    if isinstance(told, dict) and isinstance(answered, dict):
        return told.keys() == answered.keys() and all(
            fits(value, answered[name]) for name, value in told.items()
        )
    if isinstance(told, list) and isinstance(answered, list):
        return len(told) == len(answered) and all(map(fits, told, answered))
    return told in ("...", answered)


def examples() -> Iterator[tuple[str, str]]:
    for block in blocks("console"):
        for part in block.removeprefix("$ ").split("\n$ "):
            command, _, answer = part.partition("\n")
            yield command, answer.removesuffix("\n")


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_who_follows_the_page_sees_what_it_says(tmp_path: Path) -> None:
    with free_port() as port:
        follow(Newcomer(tmp_path, port))


def follow(someone: Newcomer) -> None:
    make_secret, start_receiver, serve, try_it = blocks("sh")
    someone.types(make_secret)
    someone.saves("delayd.toml", blocks("toml")[0])
    someone.saves("receiver.py", blocks("python")[0])
    received, explained = blocks("text")
    first, *others = examples()
    with someone.receiver(start_receiver) as output, someone.daemon(serve) as daemon:
        someone.api = daemon.http_listens_on
        assert is_as_told(first[1], someone.types(first[0]))
        until(lambda: output.read_text() == received, seen=output.read_text)
        until(lambda: '"status":404' in someone.types(f"curl {ADDRESS}/v1/jobs/1"))
        for command, told in others:
            someone.sees(command, someone.here(told))
        answered = someone.types(f"if {try_it.strip()}; then exit 1; else test $? = 69; fi")
        assert is_as_told(someone.here(explained).strip(), answered), answered


def test_the_examples_of_the_configuration_are_good(tmp_path: Path) -> None:
    for text in blocks("toml"):
        load(written(tmp_path, text), {}, {})
