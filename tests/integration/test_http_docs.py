"""docs/http.md is true: its examples are carried out, in their order, and answered as it says.

The daemon has a virtual clock, so that its times are those of the page but for when it began: every
moment of an answer, and the one in each token, is moved by that difference. `...` stands for what
varies, in answers that are no JSON alone.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote

import msgspec
import pytest

from delayd.http.problems import ProblemAnswer
from delayd.http.routes import ROUTES
from delayd.http.routing import Route
from delayd.http.values import Answer
from delayd.testing.daemon import Daemon
from tests import pages
from tests.rigs.http import http_refusals
from tests.rigs.process import daemon_of

PAGE: Final = Path(__file__).parents[2] / "docs" / "http.md"
TEXT: Final = PAGE.read_text(encoding="utf-8")
PAGE_START: Final = datetime(2026, 11, 21, 19, tzinfo=UTC)
"""When the daemon of the page began."""
ADDRESS: Final = "localhost:11301"
SPAN: Final = timedelta(days=400)
"""Moments that far from the start, as 2030, were named by a request and stay."""

MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
TOKEN: Final = re.compile(r"\b(\d+)-([0-9a-f]{11})-(\d+)\b")
PAGE_MARK: Final = re.compile(r"\b([0-9a-f]{11})-(\d+)\b")
VARYING: Final = re.compile("^(Date|Server):.*", re.MULTILINE)
CALL: Final = re.compile(rf"(?:-X (\w+) )?'?{ADDRESS}([^ ']*)")


class Example(NamedTuple):
    """What somebody types, and what is answered."""

    command: str
    answer: str

    @property
    def call(self) -> tuple[str, str]:
        """Method and path."""
        found = CALL.search(self.command)
        assert found is not None, self.command
        method = found[1] or ("POST" if "--json" in self.command else "GET")
        return method, unquote(found[2].partition("?")[0])


def examples(text: str) -> Iterator[Example]:
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for part in block.removeprefix("$ ").split("\n$ "):
            command, _, answer = part.partition("\n")
            yield Example(command, answer.removesuffix("\n"))


class Shift(NamedTuple):
    """From one clock to another."""

    start: datetime
    ahead: timedelta

    @property
    def ahead_ms(self) -> int:
        return round(self.ahead / timedelta(milliseconds=1))

    def moved(self, text: str) -> str:
        """The same, at the other time."""

        def moment(found: re.Match[str]) -> str:
            time = datetime.fromisoformat(found[0])
            if abs(time - self.start) < SPAN:
                time += self.ahead
            return f"{time:%Y-%m-%dT%H:%M:%S}.{time.microsecond // 1_000:03d}Z"

        def token(found: re.Match[str]) -> str:
            return f"{found[1]}-{int(found[2], 16) + self.ahead_ms:x}-{found[3]}"

        def page_mark(found: re.Match[str]) -> str:
            return f"{int(found[1], 16) + self.ahead_ms:x}-{found[2]}"

        text = MOMENT.sub(moment, text)
        return TOKEN.sub(token, text) if TOKEN.search(text) else PAGE_MARK.sub(page_mark, text)


def carried_out(command: str, daemon: Daemon) -> str:
    typed = command.replace(ADDRESS, daemon.http_listens_on).replace("curl ", "curl -sS ", 1)
    ran = subprocess.run(
        ["bash", "-c", typed], check=False, capture_output=True, text=True, timeout=60
    )
    assert not ran.stderr, ran.stderr
    return ran.stdout.replace("\r\n", "\n").removesuffix("\n")


def clocks(daemon: Daemon) -> tuple[Shift, Shift]:
    """From the page's clock to the daemon's, and back."""
    said = carried_out(f"curl {ADDRESS}/v1/clock/advance --json '{{\"by\": 0}}'", daemon)
    start = datetime.fromisoformat(json.loads(said)["now"])
    return Shift(PAGE_START, start - PAGE_START), Shift(start, PAGE_START - start)


def is_as_told(told: str, answered: str) -> bool:
    """Whether the page, which may break JSON into lines, says what was answered."""
    told, answered = (VARYING.sub(r"\1:", text) for text in (told, answered))
    head, _, body = told.rpartition("\n\n")
    answered_head, _, answered_body = answered.rpartition("\n\n")
    try:
        is_same = json.loads(body) == json.loads(answered_body)
    except ValueError:
        return pages.is_as_told(told, answered)
    return is_same and pages.is_as_told(head, answered_head)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_examples_are_answered_as_the_page_says(tmp_path: Path) -> None:
    flags = ("--line", "off", "--http", "127.0.0.1:0", "--clock", "virtual")
    with daemon_of(tmp_path, *flags) as daemon:
        there, back = clocks(daemon)
        for example in examples(TEXT):
            answered = back.moved(carried_out(there.moved(example.command), daemon))
            assert is_as_told(example.answer, answered), f"{example.command}\n{answered}"
            assert is_as_described(example, answered), f"{example.command}\n{answered}"


def route_of(example: Example) -> Route:
    method, path = example.call
    (route,) = (
        route
        for route in ROUTES
        if route.method == method and re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", route.path), path)
    )
    return route


def is_as_described(example: Example, answered: str) -> bool:
    """Whether the answer has what its schema says, and no member that is not described."""
    body = answered.rpartition("\n\n")[2].encode()
    responses = route_of(example).responses.values()
    kinds = [ProblemAnswer, *(kind for response in responses for kind in response.structs)]
    if len(kinds) == 1 or not body.startswith(b"{"):
        return True
    return any(map(partial(can_be, body), kinds))


def can_be(body: bytes, kind: type[Answer]) -> bool:
    try:
        msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError:
        return False
    return True


def test_every_call_has_an_example() -> None:
    shown = {route_of(example)[:2] for example in examples(TEXT)}
    assert shown == {route[:2] for route in ROUTES}


def errors_table() -> str:
    """The table as the classes say it: one row for each."""
    lines = ["| status | word | kind | | `Retry-After` |", "|---|---|---|---|---|"]
    for refusal in sorted(http_refusals(), key=lambda each: (each.status, each.word, each.kind)):
        said = f"| {refusal.status} | `{refusal.word}` | `{refusal.kind}` | {refusal.title}"
        wait = "" if refusal.retry_after_s is None else f" {refusal.retry_after_s} s"
        lines.append(f"{said} |{wait} |")
    return "\n".join(lines)


def test_the_table_of_errors_is_that_of_the_classes() -> None:
    assert errors_table() in TEXT
