"""Every example of docs/protocol.md goes as it is written there."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from delayd.access.scopes import Scope
from delayd.config import Config
from delayd.core.job_parts import Reason
from delayd.line.commands import COMMANDS
from delayd.line.grammar import LONG_LINE
from delayd.push.opening import Push
from tests.line.test_commands import OURS
from tests.rigs.line import LineRig

PAGE: Final = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
SHORT: Final = (b"auth ", b"advance-clock ", b"reserve-batch ", b"reschedule ", b"why")
"""Commands of ours that need no long lines."""

EXAMPLES: Final = re.findall(r"^```\n(> .*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def exchanges(example: str) -> Iterator[tuple[bytes, str]]:
    """What is sent in one go, and what is answered to it."""
    for sent, answered in re.findall(r"((?:> .*\n)+)((?:< ?.*\n)*)", example):
        yield (
            b"".join(line[2:].encode() + b"\r\n" for line in sent.splitlines()),
            "".join(line[2:] + "\n" for line in answered.splitlines()),
        )


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_the_example_goes_as_written(example: str) -> None:
    rig = LineRig(is_virtual=True)
    rig.engine.vet_target = Push(Config(), None, (), {}).vet
    client = rig.client()
    for sent, answered in exchanges(example):
        assert client.says(sent).decode().replace("\r\n", "\n") == answered, sent


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 5


@pytest.mark.parametrize("word", [command.word.decode().strip() for command in COMMANDS])
def test_every_command_is_on_the_page(word: str) -> None:
    assert re.search(rf"`{word}[ `]", PAGE), f"{word} is not described"


def test_every_reason_of_a_failure_is_on_the_page() -> None:
    (told,) = re.findall(r"after a failure `failure` \(([^)]*)\)", PAGE)
    assert re.findall(r"`([a-z-]+)`", told) == [
        reason.name.lower().replace("_", "-") for reason in Reason
    ]


@pytest.mark.parametrize("word", [word for word in OURS if word not in SHORT])
def test_every_command_of_ours_may_be_long(word: bytes) -> None:
    assert re.match(LONG_LINE, word)


def scopes_on_the_page() -> dict[str, set[str]]:
    """By commands, without `put`'s forms: which scopes the page says that they take."""
    (table,) = re.findall(
        r"^\| scope \| commands \|\n\|---\|---\|\n((?:\|.*\n)+)", PAGE, re.MULTILINE
    )
    scopes: dict[str, set[str]] = {}
    for scope, commands in re.findall(r"^\| `([a-z]+)` \| (.*) \|$", table, re.MULTILINE):
        for command in re.findall(r"`([a-z-]+)`", commands):
            scopes.setdefault(command, set()).add(scope)
    return scopes


def test_each_command_takes_the_scopes_that_the_page_says() -> None:
    told = scopes_on_the_page()
    assert told.pop("put") == {Scope.PUT}
    assert told == {
        command.word.decode().strip(): {command.scope, *command.or_scopes}
        for command in COMMANDS
        if command.scope is not None
    }
