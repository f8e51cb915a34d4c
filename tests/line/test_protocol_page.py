"""Every example of docs/protocol.md goes as it is written there."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from delayd.line.commands import COMMANDS
from delayd.line.extensions import EXTENSIONS
from delayd.line.grammar import LONG_LINE
from tests.line.talk import Talk

PAGE: Final = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
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
    client = Talk(is_virtual=True).client()
    for sent, answered in exchanges(example):
        assert client.says(sent).decode().replace("\r\n", "\n") == answered, sent


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 5


@pytest.mark.parametrize("word", [word.decode().strip() for word, _ in COMMANDS])
def test_every_command_is_on_the_page(word: str) -> None:
    assert re.search(rf"`{word}[ `]", PAGE), f"{word} is not described"


@pytest.mark.parametrize("word", [word for word, _ in EXTENSIONS if word != b"advance-clock "])
def test_every_command_of_ours_may_be_long(word: bytes) -> None:
    assert LONG_LINE.match(word)
