"""A reader of a page, who saves what it says to save and types what it says to type, in order.

    Reader(directory, daemon).follow("tour.md")

A block of `python` is saved if the line before it ends with "as `NAME`:", appended to a file if
with "at the end of `NAME`:", and else is run: it prints what the comments behind its prints say. A
block of `console` is typed into a shell command by command, and answers as the page says; `...`
stands for what varies. What begins with `timeout` is ended when it has said so, however long that
takes on this machine. On a virtual clock
`follow(page, time_passes=True)` lets time pass while somebody waits for a job, and only then: what
a page says to do in two seconds may take a minute. Where a page tells times, `share_clock` moves
all of them, and those in tokens and in marks of pages, from its clock to that of the daemon.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from delayd.client import Client
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
needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
STEP_S: Final = 0.5
"""Of virtual time."""
START: Final = datetime(2026, 11, 21, 19, tzinfo=UTC)
"""When the daemons of pages that tell times began."""
SPAN: Final = timedelta(days=400)
"""Times that far from the start, as 2030, were named by the reader and stay."""
TIME: Final = re.compile(r"\d{4}-\d\d-\d\d([T ])\d\d:\d\d:\d\d(\.\d{3})?")
TOKEN: Final = re.compile(r"\b(\d+)-([0-9a-f]{11})-(\d+)\b")
PAGE_MARK: Final = re.compile(r"\b([0-9a-f]{11})-(\d+)\b")


def text_of(page: str, section: str = "") -> str:
    """The page, or what stands under one of its headings."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return text.split(f"\n## {section}\n")[1].split("\n## ")[0] if section else text


def is_as_told(told: str, answered: str) -> bool:
    """Put where lines end, `...` stands for lines as well."""
    return (
        re.fullmatch(".*".join(map(re.escape, told.split("..."))), answered, re.DOTALL) is not None
    )


def is_same_answer(told: str, answered: str) -> bool:
    """Whether the page, which may break JSON into lines, says what was answered.

    Above the JSON there may be a head; `...` is any value too.
    """
    head, _, body = told.rpartition("\n\n")
    answered_head, _, answered_body = answered.rpartition("\n\n")
    try:
        is_same = _fits(json.loads(body), json.loads(answered_body))
    except ValueError:
        return is_as_told(told, answered)
    return is_same and is_as_told(head, answered_head)


def _fits(told: object, answered: object) -> bool:
    if isinstance(told, dict) and isinstance(answered, dict):
        return told.keys() == answered.keys() and all(
            _fits(value, answered[name]) for name, value in told.items()
        )
    if isinstance(told, list) and isinstance(answered, list):
        return len(told) == len(answered) and all(map(_fits, told, answered))
    return told in ("...", answered)


class Typed(NamedTuple):
    """A command of a page, and what it prints."""

    command: str
    answer: str


def typed_in(session: str) -> Iterator[Typed]:
    """Each command of a block of `console`."""
    for part in session.rstrip("\n").removeprefix("$ ").split("\n$ "):
        command, _, answer = part.partition("\n")
        yield Typed(command, answer)


def examples(page: str) -> Iterator[Typed]:
    """Each command of a page."""
    for block in BLOCK.finditer(text_of(page)):
        if block["kind"] == "console":
            yield from typed_in(block["text"])


class Reader:
    """Somebody in a directory, beside a daemon; `also` says what else is elsewhere here."""

    def __init__(
        self, directory: Path, daemon: Daemon | None = None, also: Mapping[str, str] | None = None
    ) -> None:
        self.directory = directory
        self._also = also or {}
        self._ahead = timedelta()
        self.elsewhere = {**self._also}
        self.environment = {
            **{name: os.environ[name] for name in os.environ if not name.startswith("DELAYD_")},
            "PATH": f"{self._programs()}:{os.environ['PATH']}",
            "PYTHONWARNINGS": "error",
        }
        if daemon is not None:
            self.finds(daemon)

    def finds(self, daemon: Daemon) -> None:
        """From now on this is the daemon of the page."""
        self.daemon = daemon
        self.elsewhere = {
            "localhost:11301": daemon.http_listens_on,
            "127.0.0.1:11301": daemon.http_listens_on,
            "127.0.0.1:11300": daemon.listens_on,
            **self._also,
        }
        self.environment["DELAYD_URL"] = f"http://{daemon.http_listens_on}"

    def share_clock(self) -> None:
        """Move the times of the page to the virtual clock of the daemon."""
        with Client(self.environment["DELAYD_URL"]) as client:
            self._ahead = client.advance_clock(0) - START

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
        """The text with the addresses that the servers have here, and at the time here."""
        for written, meant in self.elsewhere.items():
            text = text.replace(written, meant)
        return moved(text, self._ahead) if self._ahead else text

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
        for command, told in typed_in(session):
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


def moved(text: str, ahead: timedelta) -> str:
    """The text of a page at another time."""
    ahead_ms = round(ahead / timedelta(milliseconds=1))

    def time(found: re.Match[str]) -> str:
        at = datetime.fromisoformat(f"{found[0]}+00:00")
        if abs(at - START) > SPAN:
            return found[0]
        parts = "milliseconds" if found[2] else "seconds"
        return (at + ahead).isoformat(found[1], parts).removesuffix("+00:00")

    def token(found: re.Match[str]) -> str:
        return f"{found[1]}-{int(found[2], 16) + ahead_ms:x}-{found[3]}"

    def page_mark(found: re.Match[str]) -> str:
        return f"{int(found[1], 16) + ahead_ms:x}-{found[2]}"

    text = TIME.sub(time, text)
    return TOKEN.sub(token, text) if TOKEN.search(text) else PAGE_MARK.sub(page_mark, text)


def passing_time(daemon: Daemon) -> contextlib.AbstractContextManager[None]:
    """Advance the virtual clock until the block ends, whenever somebody waits for a job."""

    def let_pass(client: LineClient) -> None:
        if client.stats()["current-waiting"] != "0":
            daemon.advance(STEP_S)

    return client_beside(daemon, let_pass, pause_s=0.02)
