"""The oracle itself: it passes what may happen, and names the promise that was broken.

histories.txt tells what may and what may not, and says how it is written.
"""

import ast
import re
import shlex
from pathlib import Path
from typing import Any, Final

import pytest

from tests.faults.checker import violations
from tests.faults.history import History, Seen
from tests.rigs.written import Fact, facts_of

LATE_MS: Final = 10
START_MS: Final = 1_000
ONE_STEP: Final = ((50,), 0, 0)
"""A ladder of one step of 50 ms."""

INVARIANTS_MAX: Final = 12
WHOLE: Final = {"priority": 0, "topic": "default", "key": "", "attempts": -1}


class Story(History):
    """A history told briefly: one client a word, one millisecond for each answer."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = START_MS
        self._asked: list[int] = []

    # --- Words -----------------------------------------------------------------------------------

    def ask(self, kind: str, client: str = "a", **what: object) -> int:
        return self.invoke(kind, self.now_ms, client=client, **what)

    def done(self, kind: str, client: str = "a", **what: object) -> None:
        number = self.ask(kind, client, **what)
        self.now_ms += 1
        self.ok(number, self.now_ms)

    def did(self, kind: str, job_id: int, client: str = "a", **what: object) -> None:
        self.done(kind, client, job_id=job_id, **what)

    def refused(self, kind: str, job_id: int, why: str = "NOT_FOUND", client: str = "a") -> None:
        self.fail(self.ask(kind, client, job_id=job_id), self.now_ms + 1, why)
        self.now_ms += 1

    def put(self, job_id: int, *, delay_ms: int = 0, client: str = "a", **what: object) -> None:
        settings = {"body": b"body %d" % job_id, "delay_ms": delay_ms, "ttr_ms": 100, **what}
        number = self.ask("put", client, **settings)
        self.now_ms += 1
        self.ok(number, self.now_ms, job_id=job_id)

    def put_under(self, key: str, on: str, job_id: int, outcome: str, **what: object) -> None:
        body = b"body %d %b" % (len(self.entries), key.encode())
        settings = {"body": body, "delay_ms": 0, "ttr_ms": 100, "key": key, "on": on, **what}
        number = self.ask("put", "a", **settings)
        self.now_ms += 1
        self.ok(number, self.now_ms, job_id=job_id, outcome=outcome)

    def reserve(self, job_id: int, client: str = "a", body: str = "", **what: object) -> None:
        number = self.ask("reserve", client, **what)
        self.now_ms += 1
        self.ok(number, self.now_ms, job_id=job_id, body=(body or f"body {job_id}").encode())

    def stop(self, how: str = "kill") -> None:
        self.note("stopped", self.now_ms, how=how)
        self.note("started", self.now_ms)

    def look(self, *jobs: str) -> None:
        self.observe(self.now_ms, [self._seen(job) for job in jobs])

    def _seen(self, told: str) -> Seen:
        job, *details = told.split(",")
        job_id, _, state = job.partition("=")
        fields: dict[str, Any] = {"body": b"body %d" % int(job_id)}
        for detail in details:
            name, _, value = detail.partition("=")
            match name:
                case "whole":
                    fields |= WHOLE
                case "body":
                    fields["body"] = value.encode()
                case "due":
                    fields["due_ms"] = self.now_ms + int(value)
                case _:
                    fields[name] = value_of(value)
        return Seen(int(job_id), state, **fields)

    # --- What several tell -----------------------------------------------------------------------

    def leave(self, client: str) -> None:
        self.ok(self.ask("close", client), self.now_ms)

    def hold_and_leave(self, client: str) -> None:
        """Somebody asks for a job, and goes before there is an answer."""
        self.ask("reserve", client)
        self.leave(client)

    def ask_twice_under(self, key: str, **what: object) -> list[int]:
        """Put two jobs in one piece: bodies a and b, the later in the place of the one before."""
        settings = {"key": key, "on": "replace", "ttr_ms": 100, **what}
        return [self.ask("put", "c", body=body, **settings) for body in (b"a", b"b")]

    def batch_of_three(self) -> None:
        """Send three puts in one piece, and hear nothing."""
        for number in (1, 2, 3):
            self.ask("put", "c", body=b"body %d" % number, batch=1)

    def expire(self) -> None:
        """A job under a ladder is handed out, its ttr runs out, and that is seen at a start."""
        self.put(1, retry=ONE_STEP)
        self.reserve(1, "b")
        self.now_ms += 200
        self.note("stopped", self.now_ms, how="power")
        self.look("1=ready,whole,attempts=1")
        self.note("started", self.now_ms)

    def go_back(self, how: str = "power") -> None:
        """Stop, and have the wall clock set back meanwhile: to when the ttr had not run out."""
        self.note("stopped", self.now_ms, how=how)
        self.now_ms = START_MS + 50
        self.look("1=reserved,whole,due=+51")

    def bury_twice(self) -> None:
        """Within the daemon, which tells nobody: that the second is refused shows the first."""
        self.put(1, delay_ms=500)
        self.unknown(self.ask("bury-waiting", "within", job_id=1), self.now_ms)
        self.refused("bury-waiting", 1, client="within")

    # --- As it is written ------------------------------------------------------------------------

    def step(self, step: str) -> None:
        word, *words = shlex.split(step)
        if re.fullmatch(r"[+-]\d+", word):
            self.now_ms += int(word)
            return
        if word == "look":
            self.look(*words)
            return
        more: dict[str, Any] = dict(part.split("=", 1) for part in words if "=" in part)
        more = {
            name: text.encode() if name == "body" else value_of(text) for name, text in more.items()
        }
        given: list[Any] = [value_of(part) for part in words if "=" not in part]
        match word:
            case "ok" | "fail" | "unknown":
                number = self._asked[int(str(given[0])[1:]) - 1]
                at_ms = self.now_ms + int(more.pop("at", 0))
                getattr(self, word)(number, at_ms, *given[1:], **more)
            case "ask":
                self._asked.append(self.ask(*given, **more))
            case "ask-twice-under":
                self._asked += self.ask_twice_under(*given, **more)
            case "note":
                self.note(str(given[0]), self.now_ms, **more)
            case _:
                getattr(self, word.replace("-", "_"))(*given, **more)


def value_of(text: str) -> Any:  # noqa: ANN401
    """A number, a tuple, or a word; a list of words ends with a comma."""
    if text.endswith(","):
        return text[:-1].split(",")
    return ast.literal_eval(text) if re.match(r"[-+(\d]", text) else text


def judged(story: Story, *, loss_ms: float = 0) -> list[str]:
    found = violations(story.entries, late_ms_max=LATE_MS, loss_ms=loss_ms)
    return [violation.invariant for violation in found]


HISTORIES: Final = facts_of(Path(__file__).parent / "histories.txt", separator=" ; ")


@pytest.mark.parametrize("history", HISTORIES, ids=str)
def test_a_history_is_judged_as_written(history: Fact) -> None:
    story = Story()
    history.play(story.step)
    loss_ms = [each.removeprefix("loss=") for each in history.options if "=" in each]
    broken = [each for each in history.options if "=" not in each]
    assert judged(story, loss_ms=float(*loss_ms or "0")) == broken


def test_every_invariant_is_broken_by_some_history() -> None:
    broken = {each for history in HISTORIES for each in history.options if "=" not in each}
    assert broken == {f"I{number}" for number in range(1, INVARIANTS_MAX + 1)}


def test_a_history_without_one_of_its_operations_is_another() -> None:
    story = Story()
    HISTORIES[0].play(story.step)
    numbers = sorted({entry[1] for entry in story.entries} - {0})
    caught = []
    for number in numbers:
        left = [entry for entry in story.entries if entry[1] != number]
        caught.append(bool(violations(left, late_ms_max=LATE_MS)))
    # A refusal, a touch, and what the next operation makes good do not show.
    assert caught.count(False) <= 5
