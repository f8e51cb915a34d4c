"""A reader of a page, who saves what it says to save and types what it says to type, in order.

    Reader(directory, daemon).follow("tour.md")

A block of `python` is saved if the line before it ends with "as `NAME`:", appended to a file if
with "at the end of `NAME`:", and else is run: it prints what the comments behind its prints say. A
block of `console` is typed into a shell command by command, and answers as the page says; `...`
stands for what varies. What begins with `timeout` is ended when it has said so, however long that
takes on this machine. On a virtual clock
`follow(page, time_passes=True)` lets time pass while somebody waits for a job, and only then: what
a page says to do in two seconds may take a minute.
"""

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from delayd.testing.daemon import Daemon
from tests.line_client import LineClient
from tests.rigs.process import client_beside

DOCS: Final = Path(__file__).parent.parent / "docs"
BLOCK: Final = re.compile(
    r"(?:(?P<how>as|at the end of) `(?P<name>[\w./-]+)`:\n\n)?"
    r"^```(?P<kind>python|toml|console)\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
PRINTED: Final = re.compile(r"^ *print\(.*\)  # (.*)$", re.MULTILINE)
PATIENCE_S: Final = 120
STEP_S: Final = 0.5
"""Of virtual time."""


def text_of(page: str, section: str = "") -> str:
    """The page, or what stands under one of its headings."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return text.split(f"\n## {section}\n")[1].split("\n## ")[0] if section else text


def is_as_told(told: str, answered: str) -> bool:
    """Put where lines end, `...` stands for lines as well."""
    return (
        re.fullmatch(".*".join(map(re.escape, told.split("..."))), answered, re.DOTALL) is not None
    )


class Reader:
    """Somebody in a directory, beside a daemon; `also` says what else is elsewhere here."""

    def __init__(
        self, directory: Path, daemon: Daemon, also: Mapping[str, str] | None = None
    ) -> None:
        self.directory = directory
        self.daemon = daemon
        self.elsewhere = {
            "localhost:11301": daemon.http_listens_on,
            "127.0.0.1:11301": daemon.http_listens_on,
            "127.0.0.1:11300": daemon.listens_on,
            **(also or {}),
        }
        self.environment = {
            **{name: os.environ[name] for name in os.environ if not name.startswith("DELAYD_")},
            "DELAYD_URL": f"http://{daemon.http_listens_on}",
            "PATH": f"{self._programs()}:{os.environ['PATH']}",
            "PYTHONWARNINGS": "error",
        }

    def _programs(self) -> Path:
        """The directory of the commands of this checkout, and its Python."""
        programs = self.directory / ".bin"
        programs.mkdir()
        for name, arguments in (
            ("delayd", "-m delayd "),
            ("celery", "-m celery "),
            ("python3", ""),
        ):
            (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {arguments}"$@"\n')
            (programs / name).chmod(0o755)
        return programs

    def here(self, text: str) -> str:
        """The text with the addresses that the servers have here."""
        for written, meant in self.elsewhere.items():
            text = text.replace(written, meant)
        return text

    def follow(self, page: str, section: str = "", *, time_passes: bool = False) -> None:
        """Do all that the page says, or its section. Raises AssertionError where it is not so."""
        blocks = list(BLOCK.finditer(text_of(page, section)))
        assert blocks
        with passing_time(self.daemon) if time_passes else contextlib.nullcontext():
            for block in blocks:
                if block["name"]:
                    how = "w" if block["how"] == "as" else "a"
                    with (self.directory / block["name"]).open(how, encoding="utf-8") as file:
                        file.write(self.here(block["text"]))
                elif block["kind"] == "console":
                    self.type(block["text"])
                elif block["kind"] == "python":
                    self.run(block["text"])

    def type(self, session: str) -> None:
        """Type each command of the session."""
        for part in session.removeprefix("$ ").split("\n$ "):
            command, _, told = part.partition("\n")
            if command.startswith("timeout "):
                said = self.said_until(self.here(command.split(" ", 2)[2]), self.here(told))
            else:
                said = self.said("bash", "-c", self.here(command))
            assert is_as_told(self.here(told).rstrip(), said.rstrip()), f"$ {command}\n{said}"

    def run(self, program: str) -> None:
        """Run a program, which prints what its comments say."""
        said = self.said(sys.executable, "-c", self.here(program))
        assert said.splitlines() == PRINTED.findall(program), f"{program}\n{said}"

    def said(self, *command: str) -> str:
        """Standard output and standard error, in the order in which they were written."""
        return subprocess.run(
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.directory,
            env=self.environment,
            timeout=PATIENCE_S,
        ).stdout

    def said_until(self, command: str, told: str) -> str:
        """What it has said, ended as `timeout` does it, but only when it has said what is told."""
        output = self.directory / ".output"
        with (
            output.open("wb") as file,
            subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                env=self.environment,
            ) as process,
        ):
            deadline_s = time.monotonic() + PATIENCE_S
            while not is_as_told(told.rstrip(), output.read_text().rstrip()):
                if time.monotonic() > deadline_s:
                    break
                time.sleep(0.05)
            process.terminate()
        return output.read_text()


def passing_time(daemon: Daemon) -> contextlib.AbstractContextManager[None]:
    """Advance the virtual clock until the block ends, whenever somebody waits for a job."""

    def let_pass(client: LineClient) -> None:
        if client.stats()["current-waiting"] != "0":
            daemon.advance(STEP_S)

    return client_beside(daemon, let_pass, pause_s=0.02)
