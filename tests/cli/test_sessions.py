"""What is typed and what is printed; sessions.txt says how it is written."""

import io
import json
import re
import shlex
from ast import literal_eval
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from delayd.access.scopes import Scope
from delayd.access.tokens import Tokens
from delayd.exits import Exit
from tests.cli.talking import Talk
from tests.rigs.written import Fact, covers, facts_of

NOW_MS: Final = 1_795_256_100_000
"""The wall clock of `delayd token` and `secret`: 2026-11-21T10:15:00Z."""


class Typed:
    """One session on its way."""

    def __init__(self, talk: Talk, patch: pytest.MonkeyPatch) -> None:
        self.talk = talk
        self.patch = patch
        self.names: dict[str, str] = {}
        """What `$name` stands for."""

    def step(self, step: str) -> None:
        step = re.sub(r"\$[a-z]+", lambda match: self.names.get(match[0], match[0]), step)
        word, _, more = step.partition(" ")
        if word == "$":
            typed, _, outcome = more.partition(" -> ")
            self.type(shlex.split(typed), outcome)
        else:
            self.arrange(word, more)

    def arrange(self, word: str, more: str) -> None:
        talk, rig = self.talk, self.talk.rig
        match word:
            case "file":
                name, _, content = more.partition(" ")
                Path(name).write_text(literal_eval(content))
            case "file_is":
                name, _, content = more.partition(" ")
                assert Path(name).read_text() == literal_eval(content)
            case "no_file":
                assert not Path(more).exists()
            case "piped":
                stdin = SimpleNamespace(buffer=io.BytesIO(literal_eval(more)), isatty=bool)
                self.patch.setattr("sys.stdin", stdin)
            case "terminal":
                talk.answers(more)
            case "wait":
                rig.pass_ms(round(float(more) * 1_000))
            case "now":
                wall_ms = NOW_MS + int(more) * 1_000
                for module in ("token", "secret"):
                    self.patch.setattr(f"delayd.cli.{module}.system_wall_ms", lambda: wall_ms)
            case "token":
                scopes, *topics = more.split()
                talk.has_token(*map(Scope, scopes.split(",")), topics=tuple(topics) or ("*",))
            case "no_token":
                self.patch.delenv("DELAYD_TOKEN", raising=False)
                rig.authenticator.tokens = rig.authenticator.tokens or Tokens(())
            case "env":
                self.patch.setenv(*more.split(" ", 1))
            case "call":
                method, path, body = more.split(" ", 2)
                rig.ok(method, path, json.loads(body))
            case "topics":
                for number in range(int(more)):
                    rig.ok("POST", f"/v1/topics/t{number}/jobs", {"body": 1})
            case "push_on":
                rig.engine.vet_target = lambda target: target
            case "jobs":
                assert sorted(job for job in range(1, 99) if rig.engine.store.jobs.get(job)) == [
                    *map(int, more.split())
                ]
            case "requests":
                assert len(talk.requests) == int(more)
            case "sent":
                covers(json.loads(talk.requests[-1].body), json.loads(more), self.names)
            case _:
                raise AssertionError(f"no step: {word}")

    def type(self, words: list[str], outcome: str) -> None:
        code, *said = self.talk.run(*words)
        out, err = (text.replace(f"{Path.cwd()}/", "") for text in said)
        parts = outcome.split(" ; ") if outcome else []
        expected = Exit[parts.pop(0)] if parts and re.fullmatch("[A-Z_]+", parts[0]) else Exit.OK
        assert code == expected, err or out
        for part in parts:
            how, _, text = part.partition(" ")
            match how:
                case "=":
                    assert lines_of(out) == text
                case "!=":
                    assert lines_of(err) == text
                case "~":
                    assert text in lines_of(out)
                case "!":
                    assert text in lines_of(err)
                case "lacks":
                    assert text not in lines_of(out + err)
                case "exactly":
                    assert out == literal_eval(text)
                case "is":
                    self.names[text] = out.strip()
                case "keeps":
                    Path(text).write_text(out)
                case "json":
                    objects: Any = [json.loads(line) for line in out.splitlines()]
                    wanted = json.loads(text)
                    covers(objects if isinstance(wanted, list) else objects[0], wanted, self.names)
                case _:
                    raise AssertionError(f"no outcome: {part}")


def lines_of(text: str) -> str:
    """A text with one space between words, and / between lines."""
    return " / ".join(" ".join(line.split()) for line in text.splitlines())


@pytest.mark.parametrize("session", facts_of(Path(__file__).parent / "sessions.txt"), ids=str)
def test_every_session_goes_as_written(
    session: Fact,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    with Talk(monkeypatch, capsys) as talk:
        typed = Typed(talk, monkeypatch)
        typed.step("now 0")
        if "orders" in session.options:
            typed.step("$ put orders one --delay 1h --key order-1")
            typed.step("$ put orders two --delay 2h --key order-2")
            typed.step("$ put orders three --delay 3h")
        session.play(typed.step)
