"""The facts of facts.txt, and tables of what each state, rule and key does, over every world."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from delayd.core import errors
from delayd.core.policy import FIELDS
from tests.fact_rows import Fact, rows
from tests.facts.rows import run
from tests.facts.worlds import WORLDS, World

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
    "nack": "ATTEMPT FAIL",
    "release": "RELEASE",
    "bury": "BURY",
    "touch": "TOUCH",
}


def recorded(act: str, outcome: str, *, is_judged: bool = False) -> str:
    """Return the records of the act, and the outcome."""
    log = next((kind for start, kind in LOGS.items() if act.startswith(start)), None)
    if log is None or "JobNotFound" in outcome or "created" in outcome:
        return outcome
    return f"log {'ATTEMPT FAIL' if is_judged and log in {'RELEASE', 'BURY'} else log}; {outcome}"


POLICIES: Final = {
    # A field's values: one and the bounds as they are told, and two that are wrong
    "ttr": ("5m 0.001s 7101w3d6h28m15s", "-1 4294967296"),
    "delay": ("10s 0s 7101w3d6h28m15s", "-1 soon"),
    "retry": ("['1s', '3m'] ['1ms']", "0s 15"),
    "max_attempts": ("3 1 65535", "0 65536"),
    "exhausted": ("dead " + "a" * 200, "-a " + "a" * 201),
    "on_close": ("return", "fail 1"),
    "history": ("3 0 20", "-1 21"),
    "jobs_max": ("10 1 4611686018427387904", "0 4611686018427387905"),
    "bytes_max": ("100 1 4611686018427387904", "0 1.5"),
    "body_bytes_max": ("9 1 1073741824", "0 1073741825"),
    "delay_max": ("1h 0s 7101w3d6h28m15s", "-1 4294967296"),
    "reserved_max": ("2 1 4611686018427387904", "0 many"),
    "rate_per_s": ("0.5 0.001 1000000", "0 1000001"),
    "push": ("{'topic':'out'}", "0 x"),
    "jitter_percent": ("10 0 100", "-1 101"),
    "group_reserved_max": ("1 4611686018427387904", "0 many"),
    "group_rate_per_s": ("0.5 0.001 1000000", "0 1000001"),
    "group_jobs_max": ("1 4611686018427387904", "0 1.5"),
    "group_order": ("put", "fifo 1"),
    "group_on_retry": ("wait", "stop 1"),
    "fair": ("True", "1 yes"),
    "group_weights": ("{'acme':5} {'a':1000}", "{} x"),
    "group_from": ("key key:/ body:customer", "header:x body:"),
    "group_required": ("True", "1 yes"),
}


def policies() -> Iterator[tuple[str, Fact]]:
    for field, (right, wrong) in POLICIES.items():
        values = re.findall(r"\[.*?\]|\S+", right)
        then = []
        for value in values:
            given = value.replace("', '", ",").strip("[']") if value[0] == "[" else value
            given = f"{field}={given.replace('True', 'true')}"
            if value[0] == "{":
                given = field + re.sub(r"{'(\w+)':'?(\w+)'?}", r".\1=\2", value)
            shown = value.replace("0.001s", "1ms").replace("':", "': ")
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


FACTS: Final = {**dict(rows(Path(__file__).parent / "facts.txt")), **dict(tables())}


ASYNC: Final = set([*FACTS][::9])
"""With asyncio the operations are the same: every ninth fact sees that they are awaited."""
AT_ONCE: Final = ("engine", "line")
"""The worlds of `make check`: the engine and the wire that is played fastest."""
CASES: Final = [
    pytest.param(name, world, marks=() if world in AT_ONCE else pytest.mark.thorough)
    for name in FACTS
    for world in WORLDS
    if not world.startswith("async") or name in ASYNC
]


@pytest.mark.parametrize(("name", "world"), CASES, indirect=["world"])
def test_fact(name: str, world: World) -> None:
    run(FACTS[name], world)


def refusals(kind: type[errors.Refusal] = errors.Refusal) -> set[type[errors.Refusal]]:
    below = [each for each in kind.__subclasses__() if each.__module__ == errors.__name__]
    return {*below, *(each for kind in below for each in refusals(kind))}


def test_every_refusal_of_the_engine_has_a_fact() -> None:
    outcomes = " ".join(outcome for fact in FACTS.values() for _, outcome in fact.then)
    names = {refusal.__name__ for refusal in refusals()}
    names -= {name for name in names if "Schedule" in name}  # tests/schedules has those
    assert names <= {*re.findall(r"\w+", outcomes)}


def test_every_field_of_a_policy_has_facts() -> None:
    assert {*POLICIES} == {field.name for field in FIELDS}
