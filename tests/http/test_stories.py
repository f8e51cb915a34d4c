"""What clients of HTTP say and are answered; stories.txt says how it is written."""

import json
import re
from ast import literal_eval
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from delayd.access.scopes import Scope
from delayd.access.tokens import Tokens
from delayd.core.errors import TargetRefused
from delayd.core.operations.attempts import fail_call
from delayd.core.operations.push import reserve_call, take_fresh
from delayd.core.operations.topics import configure
from delayd.core.policy import Patterns, Policy
from delayd.core.session import Session
from delayd.core.targets import Target
from delayd.core.throttle import PushBlock
from tests.rigs.clock import FakeClock
from tests.rigs.http import Answer, Client, HttpRig, stored
from tests.rigs.written import ABSENT, Fact, covers, facts_of

if TYPE_CHECKING:
    from collections.abc import Callable

STORIES: Final = facts_of(Path(__file__).parent / "stories.txt")
SHORT: Final = {
    "put": ("POST", "topics/{}/jobs"),
    "reserve": ("POST", "topics/{}/reserve"),
    "policy": ("PUT", "topics/{}/policy"),
}
"""Calls that stories make again and again, and how each begins when it is written out."""
STEP: Final = re.compile(
    r"(?:(?P<times>\d+)x )?(?:(?P<client>\w+): )?(?P<method>[A-Z]+|put|reserve|policy) "
    r"(?P<path>\S+)(?P<token> @\w+)?(?P<headers>(?: [A-Za-z-]+=(?:\"[^\"]*\"|\S+))*)(?P<body> .+)?"
)
EXPECTED: Final = re.compile(
    r"(?P<status>\d+|nothing)(?: (?P<word>[A-Z_]+))?(?: fields=(?P<fields>\"[^\"]*\"|\S*))?"
    r"(?P<headers>(?: [a-z-]+=(?:\"[^\"]*\"|\S+))*)(?P<json> [{\[].*)?"
)
HEADER: Final = re.compile(r"([A-Za-z-]+)=(\"\"[^\"]+\"\"|\"[^\"]*\"|\S+)")


def vet(target: Target) -> Target:
    """Of a daemon that may call whatever is https."""
    if target.url and not target.url.startswith("https:"):
        raise TargetRefused(f"url {target.url!r}", "must be https")
    return target


class Play:
    """One story on its way."""

    def __init__(self, rig: HttpRig) -> None:
        self.rig = rig
        self.tokens: dict[str, str] = {}
        self.names: dict[str, str] = {}
        """What answers have had in the place of a `$name`."""
        self.clients: dict[str, Client] = {}
        self.commits = 0
        self.acts: dict[str, Callable[..., object]] = {
            "wait": lambda seconds: rig.pass_ms(round(float(seconds) * 1_000)),
            "clock": self.step_clock,
            "hold": rig.disk.hold,
            "release": self.release,
            "drain": lambda: setattr(rig.engine, "draining", True),
            "stop": self.stop,
            "free": lambda free: rig.engine.log_space.limit(int(free), lambda *_: -1),
            "trouble": lambda *words: setattr(rig.disk, "trouble", " ".join(words)),
            "space_trouble": lambda *words: setattr(rig.disk, "space_trouble", " ".join(words)),
            "cut_off": self.cut_off,
            "standby": lambda *words: setattr(rig, "handover", (" ".join(words), "")),
            "make_room": lambda: rig.engine.log_space.limit(0, lambda missing, *_: missing),
            "room": lambda: rig.engine.log_space.limit(10**9, lambda missing, *_: missing),
            "leave": self.leave,
            "token": self.add_token,
            "revoke": self.revoke,
            "configure": self.configure,
            "call_fails": self.call_fails,
            "push_on": lambda: setattr(rig.engine, "vet_target", vet),
            "push_off": lambda: setattr(rig.engine, "vet_target", None),
            "push_blocks": self.block,
            "keys_max": lambda count: setattr(rig.api.memos, "keys_max", int(count)),
            "commits": self.count_commits,
            "jobs": lambda count: same(rig.engine.log_space.jobs, int(count)),
            "jobs_after_crash": lambda count: same(rig.after_restart().log_space.jobs, int(count)),
            "topics": lambda *names: same(
                {*rig.engine.store.topics.by_name} - {"default"}, {*names}
            ),
            "waiting": lambda count: same(len(rig.api.waiting), int(count)),
        }

    def step(self, step: str) -> None:
        act, _, expected = re.sub(r"\$[a-z]+", self.named, step).partition(" -> ")
        word, *words = act.split()
        if word in self.acts:
            self.acts[word](*words)
        elif word == "answer":
            self.check(self.clients[words[0]].answer, expected)
        elif word == "raw":
            self.check(self.spoken(literal_eval(act.removeprefix("raw "))), expected)
        elif word == "job":
            engine = self.rig.after_restart() if words[1:] else self.rig.engine
            covers(stored(engine, int(words[0])), json.loads(expected), self.names)
        else:
            self.call(act, expected)

    def spoken(self, data: bytes) -> Answer:
        """Say something that no client of ours would say."""
        client = self.rig.connect()
        client.say(data.partition(b" ")[0].decode(), data)
        self.rig.settle()
        return client.the_answer

    def named(self, match: re.Match[str]) -> str:
        return self.names.get(match[0], match[0])

    def call(self, act: str, expected: str) -> None:
        match = STEP.fullmatch(act)
        assert match is not None, f"no step: {act}"
        method, path = match["method"], match["path"]
        body = (match["body"] or "").strip()
        if method in SHORT:
            body = body or ("{}" if method == "reserve" else '{"body": 1}')
            if (
                method == "put"
                and body[0] == "{"
                and not re.search('"(body|body_base64|jobs)"', body)
            ):
                body = body.replace("{", '{"body": 1, ', 1)
            name, _, query = path.partition("?")
            method, path = SHORT[method][0], SHORT[method][1].format(name) + query
        path = path if path.startswith(("/", "http:")) else f"/v1/{path}"
        data = literal_eval(body) if body.startswith("b") else body.encode() or None
        token = self.tokens[match["token"].strip(" @")] if match["token"] else ""
        how: dict[str, Any] = {
            "data": data,
            "headers": headers_in(match["headers"]),
            "token": token,
        }
        for _ in range(int(match["times"] or 1)):
            if match["client"]:
                self.clients[match["client"]] = self.rig.send(method, path, **how)
            else:
                self.check(self.rig.call(method, path, **how), expected)

    def check(self, answer: Answer | None, expected: str) -> None:
        if not expected:
            assert answer is not None
            assert answer.status in {200, 201, 204}, answer
            return
        match = EXPECTED.fullmatch(expected)
        assert match is not None, f"no outcome: {expected}"
        if match["status"] == "nothing":
            assert answer is None
            return
        assert answer is not None, "there is no answer"
        assert answer.status == int(match["status"]), answer
        assert match["word"] is None or answer.word == match["word"], answer
        if match["fields"] is not None:
            named = match["fields"].strip('"')
            same(sorted(answer.fields), sorted(named.split(",") if named else []))
        for name, value in headers_in(match["headers"]).items():
            same(answer.headers.get(name, ABSENT), value)
        if match["json"]:
            covers(answer.json, json.loads(match["json"]), self.names)

    # --- What is no request ----------------------------------------------------------------------

    def count_commits(self, count: str) -> None:
        before, self.commits = self.commits, len(self.rig.disk.frames)
        same(self.commits - before, int(count))

    def step_clock(self, seconds: str) -> None:
        assert isinstance(self.rig.clock, FakeClock)
        self.rig.clock.step_wall(int(seconds) * 1_000)

    def release(self) -> None:
        self.rig.disk.release()
        self.rig.settle()

    def stop(self) -> None:
        self.rig.server.stop_accepting()
        self.rig.settle()

    def cut_off(self, *words: str) -> None:
        self.rig.cut_off = self.rig.disk.trouble = " ".join(words)

    def leave(self, client: str) -> None:
        self.clients[client].hang_up()
        self.rig.settle()

    def add_token(self, name: str, scopes: str = "all", *topics: str) -> None:
        chosen = [*Scope] if scopes == "all" else [Scope(scope) for scope in scopes.split(",")]
        self.tokens[name] = self.rig.token(*chosen, topics=topics or ("*",))

    def revoke(self, name: str, *topics: str) -> None:
        """Take the token away, or let it be good for these topics alone."""
        tokens = self.rig.authenticator.tokens
        assert tokens is not None
        entries = [*tokens.entries]
        at = [*self.tokens].index(name)
        entries[at : at + 1] = [replace(entries[at], topics=topics)] if topics else []
        self.rig.authenticator.tokens = Tokens(entries)

    def configure(self, *words: str) -> None:
        """Set a policy for a pattern, or caps of the daemon."""
        told: dict[str, Any] = {
            name: int(value) for name, value in (word.split("=") for word in words if "=" in word)
        }
        patterns = [word for word in words if "=" not in word]
        if patterns:
            configure(self.rig.engine, Patterns(dict.fromkeys(patterns, Policy(**told))))
        else:
            configure(self.rig.engine, None, **told)

    def call_fails(self, *words: str) -> None:
        """Have the job be called, and refused with that."""
        engine, session, now_ms = self.rig.engine, Session(), self.rig.api.now_ms()
        (lane,) = take_fresh(engine)
        called = reserve_call(engine, session, lane, 60_000, now_ms)
        assert called is not None
        fail_call(engine, session, called[0], now_ms, error=literal_eval(" ".join(words)))

    def block(self, topic: str, *blocks: str) -> None:
        self.rig.push_blocks[topic] = [PushBlock(block) for block in blocks]


def headers_in(text: str | None) -> dict[str, str]:
    found = HEADER.findall(text or "")
    return {name: value[1:-1] if value[0] == '"' else value for name, value in found}


def same(found: object, expected: object) -> None:
    assert found == expected


def play(story: Fact, rig_of: type[HttpRig] = HttpRig) -> None:
    options = dict(option.split("=") for option in story.options if "=" in option)
    with rig_of(
        is_virtual="virtual" in story.options,
        needs_token="tokens" in story.options,
        serves_ui="ui" in story.options,
        hosts=tuple(options.get("hosts", "").split(",")) if "hosts" in options else (),
    ) as rig:
        if "push" in story.options:
            rig.engine.vet_target = vet
        story.play(Play(rig).step)


@pytest.mark.parametrize("story", STORIES, ids=str)
def test_every_story_goes_as_written(story: Fact) -> None:
    play(story)
