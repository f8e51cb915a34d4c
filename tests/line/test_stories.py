"""What several clients of the line say and are answered; stories.txt says how it is written."""

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from delayd.access.scopes import Scope
from delayd.compat import Compat
from delayd.core.errors import TargetRefused
from delayd.core.operations.attempts import fail_call
from delayd.core.operations.push import reserve_call, take_fresh
from delayd.core.operations.topics import configure
from delayd.core.session import Session
from delayd.core.targets import Target
from tests.line.corpus import LinePlay, lines_in
from tests.rigs.line import WRONG, Client, LineRig
from tests.rigs.written import Fact, facts_of

STORIES: Final = facts_of(Path(__file__).parent / "stories.txt", separator=" ; ")


def vet(target: Target) -> Target:
    if target.url and not target.url.startswith("https:"):
        raise TargetRefused(f"url {target.url!r}", "must be https")
    return target


class Play(LinePlay[Client]):
    def __init__(self, rig: LineRig) -> None:
        super().__init__(rig.client)
        self.rig = rig
        self.said: dict[str, bytes] = defaultdict(bytes)
        """What clients have been answered that no step has looked at."""
        self.names = {"$wrong": WRONG}

    def lines(self, told: str) -> Iterator[bytes]:
        for line in lines_in(told):
            yield re.sub(rb"\$[a-z]+", lambda m: self.names.get(m[0].decode(), m[0]), line)

    def says(self, name: str, data: bytes) -> None:
        self.said[name] += self.client(name).says(data)

    def heard(self, name: str) -> bytes:
        return self.said.pop(name, b"") + self.client(name).replies()

    def arrange(self, word: str, *words: str) -> None:
        rig = self.rig
        match word:
            case "wait":
                rig.pass_ms(round(float(words[0]) * 1_000))
            case "may":  # CLIENT SCOPES TOPICS: it has shown a token that is good for them
                name, scopes, *topics = words
                chosen = Scope if scopes == "all" else map(Scope, scopes.split(","))
                self.clients[name] = rig.user(*chosen, topics=topics or ("*",))
            case "token":
                name, scopes, *topics = words
                token = rig.token(*map(Scope, scopes.split(",")), topics=topics or ("*",))
                self.names[f"${name}"] = token
            case "far":
                self.clients[words[0]] = rig.unauthenticated("192.0.2.8")
            case "ends":
                self.said[words[0]] += self.client(words[0]).half_closes()
            case "leaves":
                self.clients[words[0]].closes()
            case "closing":
                assert self.client(words[0]).connection.is_closing
            case "listening":
                assert self.client(words[0]).connection.is_listening
            case "drain":
                rig.engine.draining = True
            case "full":
                rig.engine.log_space.limit(int(words[0]) if words else 0, lambda *_: -1)
            case "room":
                rig.engine.log_space.limit(1 << 40, lambda *_: -1)
            case "jobs":
                assert [job_id for job_id, _ in sorted(rig.engine.store.jobs)] == [*map(int, words)]
            case "last_id":
                assert rig.engine.store.last_id == int(words[0])
            case "tubes":
                assert {*rig.engine.store.topics.by_name} == {*words}
            case "waiting":
                assert rig.stats.report(rig.now_ms)["current-waiting"] == int(words[0])
            case "refused":
                reasons = (word.split("=") for word in words)
                assert rig.refusals.by_reason == {name: int(count) for name, count in reasons}
            case "jobs_max":
                configure(rig.engine, jobs_max=int(words[0]))
            case "call_fails":
                (lane,) = take_fresh(rig.engine)
                session = Session()
                assert reserve_call(rig.engine, session, lane, 60_000, rig.now_ms) is not None
                error = "503 Service Unavailable\nTraceback: s3"
                fail_call(rig.engine, session, 1, rig.now_ms, error=error)
            case _:
                raise AssertionError(f"no step: {word}")


@pytest.mark.parametrize("story", STORIES, ids=str)
def test_every_story_goes_as_written(story: Fact) -> None:
    rig = LineRig(
        is_virtual="virtual" in story.options,
        needs_token="tokens" in story.options,
        compat=Compat.V1_12 if "1.12" in story.options else Compat.V1_13,
    )
    if "push" in story.options:
        rig.engine.vet_target = vet
    story.play(Play(rig).step)
    rig.state()
