"""docs/runbook.md is true: each situation is made, and each command prints what the page says.

What needs a process, a port or files is in `tests/integration/test_runbook.py`.
"""

import re
import shlex
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from delayd.exits import Exit
from tests.cli.talking import Talk
from tests.cli.test_sessions import Typed
from tests.integration.test_runbook import OF_PROCESSES
from tests.pages import is_as_told, text_of
from tests.rigs.written import facts_of

PAGE: Final = "runbook.md"


SITUATIONS: Final = {fact.name: fact for fact in facts_of(Path(__file__).parent / "runbook.txt")}


def typed(talk: Talk, command: str) -> str:
    """What a command of delayd prints, perhaps through a filter or with its exit code, or curl."""
    command, echoes, _ = command.partition("; echo $?")
    ours, _, filters = command.partition(" | ")
    program, *words = shlex.split(ours)
    if program == "curl":
        return talk.rig.call("GET", words[-1].removeprefix("localhost:11301")).body.decode()
    code, out, err = talk.run(*words)
    assert (code == Exit.OK) == (not echoes), err
    if filters:
        shell = ("sh", "-c", filters)
        out = subprocess.run(shell, input=out, stdout=subprocess.PIPE, text=True, check=True).stdout
    return f"{out}{err}{int(code) if echoes else ''}"


@pytest.mark.parametrize("symptom", SITUATIONS)
def test_who_sees_this_is_told_what_the_page_says(
    symptom: str, talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as stack:
        SITUATIONS[symptom].play(Typed(talk, monkeypatch, stack).step)
    text = text_of(PAGE, symptom)
    assert "**It means:**" in text
    assert "**Do:**" in text
    for block in re.findall("```console\n(.*?)```", text, re.DOTALL):
        for part in block.removeprefix("$ ").split("\n$ "):
            command, _, told = part.partition("\n")
            said = typed(talk, command)
            assert is_as_told(told.rstrip(), said.rstrip()), f"$ {command}\n{said}"


def test_every_symptom_is_played_and_listed() -> None:
    text = text_of(PAGE)
    headings = re.findall("^## (.*)$", text, re.MULTILINE)
    assert headings == [*SITUATIONS, *OF_PROCESSES]
    for heading in headings:
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        assert f"](#{anchor})" in text.partition("\n## ")[0], heading
