"""How a row of facts is read, and what is seen of it in a world.

A row is a name, a set-up, and acts each with an outcome. Steps stand between semicolons: an act of
the worlds with its arguments (`put sms key=k delay=90`), or one of `GIVEN`. `x*99` is 99 times x,
`null` is None, `true` is True, and `body=` is bytes; `ack 1:0` is the first time that job 1 was in
hand. Outcomes:

    JobNotFound 7                   the last step is refused, and the sentence says 7
    JobNotFound/NOT_RESERVED 7      and HTTP, which knows more, has this word
    on *http: JobNotFound           the same, in worlds of that name: others leave the act out
    = 1 created                     it returns this
    1 delayed left=15, 2 gone       what is true of a job then
    mail ready=1, mail gone         what is true of a topic then
    schedule a next=60              the same of a schedule; times are seconds from now
    group mail a ready=2            the same of a group of a topic
    log KICK                        the records of the step, of the engine alone; goes first

`repeat 9 put` takes a step so often, and `b: reserve` is done by another client, where the world
has more than one: in the facts of the engine alone, tests/core/facts.txt.
"""

import re
import shlex
from fnmatch import fnmatch
from functools import partialmethod
from typing import Any, Final

import pytest

from delayd.core import errors
from delayd.core.names import IDEMPOTENCY_TOPIC
from delayd.core.operations import topics
from delayd.core.operations.checks import as_daemon
from delayd.core.operations.put import put_keyed
from delayd.core.targets import Target
from delayd.core.times import RequestMs
from delayd.schedules import schedules
from tests.fact_rows import Fact
from tests.facts.worlds import (
    Beyond,
    Told,
    World,
    counts,
    everything,
    group_truth,
    same,
    schedule_truth,
    truth,
)

AT_FAULT: Final = {"line_malformed", "request_invalid"}
"""The kinds of wires that find it in the request, before the engine is asked."""


def refuse(refusal: errors.Refusal, world: World) -> None:
    def vet(_target: Target) -> Target:
        raise refusal

    world.engine.vet_target = vet


def limit_room(world: World, room: int) -> None:
    world.engine.log_space.limit(room, lambda *_: -1)


def put_memo(world: World) -> None:
    """Have the daemon put job 1 into its own topic, under the key m."""
    engine = world.engine
    what: Any = {"priority": 0, "delay_ms": 9_000, "ttr_ms": 60_000, "body": b"x"}
    with as_daemon(engine):
        topic = engine.store.topic(IDEMPOTENCY_TOPIC)
        put_keyed(engine, topic, b"m", now_ms=RequestMs(world.now_ms), **what)


def take_only_out(world: World) -> None:
    """Have the daemon take targets in the topic `out` alone."""

    def vet(_target: Target, topic: str) -> None:
        if topic != "out":
            raise errors.NotForTopic("secret 'b'", f"is not for {topic!r}", "url")

    world.engine.vet_target, world.engine.vet_use = (lambda target: target), vet


GIVEN: Final[dict[str, Any]] = {
    "only_out": take_only_out,
    "memo": put_memo,
    "one_schedule_at_most": lambda world: world.patch.setattr(schedules, "SCHEDULES_MAX", 1),
    "set_by_configuration": lambda world: world.patch.setattr(
        schedules.Schedules, "set", partialmethod(schedules.Schedules.set, is_configured=True)
    ),
    "one_policy_at_most": lambda world: world.patch.setattr(topics, "POLICIES_MAX", 1),
    "one_paused_group_at_most": lambda world: world.patch.setattr(topics, "GROUPS_PAUSED_MAX", 1),
    "stop": lambda world: setattr(world.engine, "is_stopping", True),
    "drain": lambda world: setattr(world.engine, "draining", True),
    "no_room": lambda world: limit_room(world, 0),
    "room": lambda world: limit_room(world, 1 << 40),
    "push_on": lambda world: setattr(world.engine, "vet_target", lambda target: target),
    "url_refused": lambda world: refuse(errors.TargetRefused("url", "must not"), world),
    "sink_refused": lambda world: refuse(errors.NotForTopic("url", "must not"), world),
}


def value_of(text: str) -> Any:  # noqa: ANN401 - as it is written
    if match := re.fullmatch(r"(.)\*(\d+)", text):
        return match[1] * int(match[2])
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    if re.fullmatch(r"-?\d+\.\d+", text):
        return float(text)
    if "\\" in text:
        return text.encode().decode("unicode_escape")
    return {"null": None, "true": True}.get(text, text)


def fields_of(words: list[str]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, _, text in (word.partition("=") for word in words):
        value = value_of(text)
        if name == "retry" and isinstance(value, str):
            value = value.replace(",", " ")
        if name == "body":
            value = str(value).encode()
        if name == "history" and isinstance(value, str):  # reason:outcome:error:s of each attempt
            value = [(*each.split(":")[:3], float(each.split(":")[3])) for each in text.split()]
        outer, _, inner = name.partition(".")
        if inner:
            fields.setdefault(outer, {})[inner] = value
        else:
            fields[outer] = value
    return fields


def take(step: str, world: World) -> Any:  # noqa: ANN401 - what it returns
    """Take a step."""
    act, *words = shlex.split(step)
    _, _, rest = step.partition(" ")
    if act.endswith(":"):
        several: Any = world
        with several.as_client(act[:-1]):
            return take(rest, world)
    if act == "repeat":
        return [take(rest.partition(" ")[2], world) for _ in range(int(words[0]))]
    if act in GIVEN:
        return GIVEN[act](world)
    names = [word for word in words if re.match(r"[a-z_.]+=", word)]
    values = [value_of(word) for word in words if word not in names]
    if act == "watch" and (many := re.fullmatch(r"t\*1:(\d+)", str(values[0]))):
        values = [f"t{number}" for number in range(1, int(many[1]) + 1)]
    if not hasattr(world, act):
        raise Beyond
    return getattr(world, act)(*values, **fields_of(names))


def written(value: object) -> str:
    """Write what a step returns as outcomes have it."""
    if isinstance(value, dict):
        return " ".join(f"{name}={each}" for name, each in value.items()) or "none"
    return " ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)


def check_refusal(outcome: str, told: Told | None, world: World) -> None:
    """See that the step was refused as the outcome says."""
    name, _, said = outcome.partition(" ")
    name, _, http_word = name.partition("/")
    refusal = getattr(errors, name)
    is_http, is_line = "http" in world.name, "line" in world.name
    assert told is not None, "it was not refused"
    if world.name.endswith("-line") and told.word == "NOT_RESERVED":  # what the client makes of it
        assert refusal is errors.JobNotFound
    elif is_http and http_word:
        assert told.word == http_word
        assert told.status in {0, 409}
    else:
        assert told.word == ((refusal.line_word if is_line else None) or refusal.word)
        assert told.status in {0, refusal.status}
        assert told.kind in ({"", refusal.kind} | (AT_FAULT if refusal.status == 422 else set()))
    is_bare = world.name.endswith("-line") and refusal is errors.JobNotFound
    assert said in told.text or not told.text or is_bare


def look_at(outcome: str, world: World) -> None:
    """See that a job or a topic is as the outcome says."""
    name, *words = shlex.split(outcome)
    engine = world.engine
    if name == "log":
        assert getattr(world, "records", words) == words
        return
    if name == "schedule":
        look_at_schedule(*words, world=world)
        return
    if name == "group":
        topic, group, *words = words
        expected = group_truth(engine, topic, group, world.now_ms)
        same(world.group(topic, group), expected)
        same(fields_of(words), expected)
        return
    if not name.isdigit():
        assert (name not in engine.store.topics.by_name) == (words == ["gone"])
        if words != ["gone"]:
            shown, expected = world.topic(name), counts(engine, name, world.now_ms)
            same(shown, expected)
            same(fields_of(words), expected)
        return
    if words[0] == "gone":
        with pytest.raises(Told) as told:
            world.look(int(name))
        assert told.value.word == "NOT_FOUND"
        return
    expected = truth(engine, int(name), world.now_ms)
    same(world.look(int(name)), expected)
    same({"state": words[0], **fields_of(words[1:])}, expected)


def look_at_schedule(name: str, *words: str, world: World) -> None:
    if words == ("gone",):
        with pytest.raises(Told) as told:
            world.schedule(name)
        assert told.value.word == "NOT_FOUND"
        return
    expected = schedule_truth(world.engine, name, world.now_ms)
    shown = world.schedule(name)
    same({each: shown[each] for each in shown.keys() & expected.keys()}, expected)
    same(fields_of([*words]), {**expected, **shown})


def run(fact: Fact, world: World) -> None:
    """Set up, and see after each act that its outcome is as the row says."""
    for step in filter(None, fact.given.split("; ")):
        take(step, world)
    for steps, outcomes in fact.then:
        *others, last = steps.split("; ")
        names, _, said = outcomes.rpartition(": ")
        if names and not any(fnmatch(world.name, each) for each in names.split()[1:]):
            continue
        for step in others:
            take(step, world)
        before = everything(world.engine)
        returned, told = None, None
        try:
            returned = take(last, world)
        except Told as refusal:
            told = refusal
            assert everything(world.engine) == before, "a refusal changes nothing"
        for outcome in said.split("; "):
            if outcome[0].isupper():
                check_refusal(outcome, told, world)
                continue
            assert told is None or said[0].isupper(), told
            if outcome[0] == "=":
                assert written(returned) == outcome[2:]
            else:
                look_at(outcome, world)
