"""The facts of facts.txt, and tables of what each state, rule and key does, over every world.

A row is a name, a set-up, and acts each with an outcome. Steps stand between semicolons: an act of
the worlds with its arguments (`put sms key=k delay=90`), or one of `GIVEN`. `x*99` is 99 times x,
`null` is None, and `body=` is bytes; `ack 1:0` is the first time that job 1 was in hand. Outcomes:

    JobNotFound 7                   the last step is refused, and the sentence says 7
    JobNotFound/NOT_RESERVED 7      and HTTP, which knows more, has this word
    on *http: JobNotFound           the same, in worlds of that name: others leave the act out
    = 1 created                     it returns this
    1 delayed left=15, 2 gone       what is true of a job then
    mail ready=1, mail gone         what is true of a topic then
    log KICK                        the records of the step, of the engine alone; goes first
"""

import re
import shlex
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from delayd.core import errors
from delayd.core.names import INTERNAL_TOPIC
from delayd.core.operations import topics
from delayd.core.operations.checks import as_daemon
from delayd.core.operations.put import put_keyed
from delayd.core.policy import FIELDS
from delayd.core.targets import Target
from delayd.core.times import RequestMs
from tests.facts.worlds import WORLDS, Beyond, Told, World, counts, everything, same, truth

AT_FAULT: Final = {"line_malformed", "request_invalid"}
"""The kinds of wires that find it in the request, before the engine is asked."""


class Fact(NamedTuple):
    """A row of the table."""

    given: str
    then: list[tuple[str, str]]


def rows() -> Iterator[tuple[str, Fact]]:
    text = (Path(__file__).parent / "facts.txt").read_text(encoding="utf-8")
    text = re.sub(r"\n +", " ", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    for line in filter(None, text.splitlines()):
        name, given, *then = (column.strip() for column in line.split("|"))
        yield name, Fact(given, list(zip(then[::2], then[1::2], strict=True)))


STATES: Final = {
    "delayed": "put delay=90 key=k body=old",
    "ready": "put key=k body=old",
    "reserved": "put key=k body=old; reserve",
    "buried": "put key=k body=old; reserve; bury 1",
}
RESERVED: Final = "JobNotFound/RESERVED 1; 1 reserved"
WRONG: Final = "JobNotFound/WRONG_STATE 1"
BECOMES: Final = {
    # What somebody else does to it: from delayed, ready, reserved, buried
    "cancel 1": ("1 gone", "1 gone", RESERVED, "1 gone"),
    "cancel mail k": ("1 gone; mail gone", "1 gone", RESERVED, "1 gone"),
    "kick 1": ("1 ready kicks=1", f"{WRONG}; 1 ready kicks=0", RESERVED, "1 ready kicks=1"),
    "kick mail k": ("1 ready kicks=1", f"{WRONG}; 1 ready", RESERVED, "1 ready kicks=1"),
    "reschedule 1 delay=30": (
        *("1 delayed left=30 delay=30", "1 delayed left=30", RESERVED),
        "on engine line: JobNotFound 1; 1 buried",
    ),
    "change 1 delay=30": ("1 delayed left=30", "1 delayed left=30", RESERVED, "1 delayed left=30"),
    "change mail k priority=7 ttr=5 body=new": (
        *("1 delayed priority=7 ttr=5 body=new left=90", "1 ready priority=7 ttr=5 body=new"),
        *(RESERVED, "1 buried priority=7 ttr=5 body=new buries=1"),
    ),
    "change 1 body=y delay=0": ("1 ready body=y", "1 ready body=y", RESERVED, "1 ready kicks=0"),
    "shelve 1 error=why priority=7": (
        *("1 buried error=why priority=7 reason=buried", "1 buried error=why priority=7"),
        *(RESERVED, f"{WRONG}; 1 buried error= buries=1"),
    ),
    "shelve mail k": ("1 buried buries=1", "1 buried attempts=0", RESERVED, f"{WRONG}; 1 buried"),
    "wait 90": ("1 ready", "1 ready", "1 ready timeouts=1", "1 buried"),
    "wait 59.999": ("1 delayed", "1 ready", "1 reserved", "1 buried"),
    # A put under its key, of b"new" with another priority and delay
    "put key=k": tuple(f"JobAlreadyExists 1; 1 {state}" for state in STATES),
    **{
        f"put key=k on={on} body=new priority=9 delay=30": tuple(
            f"= 1 {outcome}; 1 {state if left is None else f'delayed left={left}'} {what}; 2 gone"
            if outcome == "kept" or state != "reserved"
            else "= 2 created; 1 reserved body=old key=; 2 delayed body=new key=k left=30"
            for state in STATES
        )
        for on, outcome, what, left in (
            ("keep", "kept", "body=old priority=0 key=k", None),
            ("replace", "replaced", "body=new priority=9 buries=0 reserves=0 key=k", 30),
            ("preserve", "preserved", "body=new priority=9 key=k", None),
            ("extend", "extended", "body=old priority=0 key=k", 30),
        )
    },
}
RULES: Final = {
    "no rule": "put",
    "a ladder": "set_policy mail retry=15s,3m; put",
    "an own ladder": "put retry=15s,3m",
    "an own ladder before the topic's": "set_policy mail retry=1h; put retry=15s,3m",
    "one attempt": "set_policy mail max_attempts=1; put",
    "moved": "set_policy mail max_attempts=1 exhausted=dead; put key=k",
}
STEP: Final = ("1 delayed left=15 attempts=1", "1 delayed left=5 attempts=1")
BURIED: Final = "1 buried attempts=1"
MOVED: Final = "dead ready=1; 1 ready topic=dead key= origin=mail attempts=0"
ENDINGS: Final = {
    # How its reservation ends: by no rule, a ladder, one attempt, a move
    "ack 1": ("1 gone", "1 gone", "1 gone", "1 gone"),
    "nack 1 error=why": (
        *("1 ready error=why reason=nacked releases=1", f"{STEP[0]} error=why reason=nacked"),
        *(f"{BURIED} error=why", f"{MOVED} error=why"),
    ),
    "nack 1 delay=5": ("1 delayed left=5", STEP[1], BURIED, MOVED),
    "release 1": ("1 ready releases=1 reserves=1", STEP[0], BURIED, MOVED),
    "release 1 delay=5": ("1 delayed left=5 releases=1", STEP[1], BURIED, MOVED),
    "bury 1": tuple(f"1 buried buries=1{each}" for each in ("", " attempts=1", "", " key=k")),
    "wait 60": ("1 ready timeouts=1", f"{STEP[0]} reason=ttr_ran_out", BURIED, MOVED),
    "touch 1": ("1 reserved left=60",) * 4,
}


LOGS: Final = {
    # What an act that is carried out records; where a rule judges how a reservation ends: FAIL
    "cancel": "DELETE",
    "kick": "KICK",
    "reschedule": "RESCHEDULE",
    "shelve": "REWRITE",
    "change 1 delay": "AMEND",
    "change": "REWRITE",
    "put key=k on=keep": "",
    "put key=k on=extend": "RESCHEDULE",
    "put key=k on": "REWRITE",
    "ack": "DELETE",
    "nack": "FAIL",
    "release": "RELEASE",
    "bury": "BURY",
    "touch": "TOUCH",
}


def recorded(act: str, outcome: str, *, is_judged: bool = False) -> str:
    """Return the records of the act, and the outcome."""
    log = next((kind for start, kind in LOGS.items() if act.startswith(start)), None)
    if log is None or "JobNotFound" in outcome or "created" in outcome:
        return outcome
    return f"log {'FAIL' if is_judged and log in {'RELEASE', 'BURY'} else log}; {outcome}"


POLICIES: Final = {
    # A field's values: one and the bounds as they are told, and two that are wrong
    "ttr": ("5m 0.001s 7101w3d6h28m15s", "-1 4294967296"),
    "delay": ("10s 0s 7101w3d6h28m15s", "-1 soon"),
    "retry": ("['1s', '3m'] ['1ms']", "0s 15"),
    "max_attempts": ("3 1 65535", "0 65536"),
    "exhausted": ("dead " + "a" * 200, "-a " + "a" * 201),
    "on_close": ("return", "fail 1"),
    "jobs_max": ("10 1 4611686018427387904", "0 4611686018427387905"),
    "bytes_max": ("100 1 4611686018427387904", "0 1.5"),
    "body_bytes_max": ("9 1 1073741824", "0 1073741825"),
    "delay_max": ("1h 0s 7101w3d6h28m15s", "-1 4294967296"),
    "reserved_max": ("2 1 4611686018427387904", "0 many"),
    "rate_per_s": ("0.5 0.001 1000000", "0 1000001"),
    "push": ("{'topic':'out'}", "0 x"),
    "jitter_percent": ("10 0 100", "-1 101"),
}


def policies() -> Iterator[tuple[str, Fact]]:
    for field, (right, wrong) in POLICIES.items():
        values = re.findall(r"\[.*?\]|\S+", right)
        then = []
        for value in values:
            given = value.replace("', '", ",").strip("[']") if value[0] == "[" else value
            given = "push.topic=out" if field == "push" else f"{field}={given}"
            shown = value.replace("0.001s", "1ms").replace(":", ": ")
            steps = f"set_policy mail {given}; policy mail"
            then.append((steps, f"= {field}={shown}"))
        then += [
            (f"set_policy mail {field}={value}", f"PolicyInvalid {field}")
            for value in wrong.split()
        ]
        yield f"policy of {field}", Fact("push_on", then)


def tables() -> Iterator[tuple[str, Fact]]:
    yield from policies()
    for act, outcomes in BECOMES.items():
        for (state, given), outcome in zip(STATES.items(), outcomes, strict=True):
            yield f"{act}, {state}", Fact(given, [(act, recorded(act, outcome))])
    for act, (plain, ladder, *others) in ENDINGS.items():
        ends = (plain, *[ladder] * 3, *others)
        for (rule, given), outcome in zip(RULES.items(), ends, strict=True):
            then = recorded(act, outcome, is_judged=rule != "no rule")
            yield f"{act}, {rule}", Fact(f"{given}; reserve", [(act, then)])


FACTS: Final = {**dict(rows()), **dict(tables())}


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
        topic = engine.store.topic(INTERNAL_TOPIC)
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
    "one_policy_at_most": lambda world: world.patch.setattr(topics, "POLICIES_MAX", 1),
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
    return None if text == "null" else text


def fields_of(words: list[str]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, _, text in (word.partition("=") for word in words):
        value = value_of(text)
        if name == "retry" and isinstance(value, str):
            value = value.replace(",", " ")
        if name == "body":
            value = str(value).encode()
        outer, _, inner = name.partition(".")
        fields[outer] = {inner: value} if inner else value
    return fields


def take(step: str, world: World) -> Any:  # noqa: ANN401 - what it returns
    """Take a step."""
    act, *words = shlex.split(step)
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


ASYNC: Final = set([*FACTS][::3])
"""With asyncio the operations are the same: every third fact sees that they are awaited."""
CASES: Final = [
    (name, world)
    for name in FACTS
    for world in WORLDS
    if not world.startswith("async") or name in ASYNC
]


@pytest.mark.parametrize(("name", "world"), CASES, indirect=["world"])
def test_fact(name: str, world: World) -> None:
    given, then = FACTS[name]
    for step in filter(None, given.split("; ")):
        take(step, world)
    for steps, outcomes in then:
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


def refusals(kind: type[errors.Refusal] = errors.Refusal) -> set[type[errors.Refusal]]:
    below = [each for each in kind.__subclasses__() if each.__module__ == errors.__name__]
    return {*below, *(each for kind in below for each in refusals(kind))}


def test_every_refusal_of_the_engine_has_a_fact() -> None:
    outcomes = " ".join(outcome for fact in FACTS.values() for _, outcome in fact.then)
    assert {refusal.__name__ for refusal in refusals()} <= {*re.findall(r"\w+", outcomes)}


def test_every_field_of_a_policy_has_facts() -> None:
    assert {*POLICIES} == {field.name for field in FIELDS}
