"""Each refusal of the engine: what causes it, its word and kind, and the value that it names."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import pytest

from delayd.core import errors
from delayd.core.targets import Target
from delayd.limits import TOPICS_WATCHED_MAX
from tests.facts.worlds import Told, World, everything


class Row(NamedTuple):
    """An act that is refused."""

    refusal: type[errors.Refusal]
    act: Callable[[Any], object]
    names: str
    """What its sentence names."""
    given: Callable[[Any], object] = lambda _world: None
    told_as: str = ""
    """The kind that wires tell, which find it in the request before the engine is asked."""


def refuse(refusal: errors.Refusal) -> Callable[[Any], object]:
    """Have the daemon refuse targets."""

    def vet(_target: Target) -> Target:
        raise refusal

    return lambda world: setattr(world.engine, "vet_target", vet)


def no_room(world: World) -> object:
    return world.engine.log_space.limit(0, lambda *_: -1)  # type: ignore[func-returns-value]


def put_url(world: World) -> object:
    return world.put(url=URL)


def put_key(key: str, world: World) -> object:
    return world.put(key=key)


def topic_has_target(world: World) -> None:
    world.engine.vet_target = lambda target: target
    world.policy("mail", push={"url": URL})


URL: Final = "https://example.com/due"
LONG: Final = b"x" * 65_536
AT_FAULT: Final = "line_malformed request_invalid"
ROWS: Final = {
    "cancel": Row(errors.JobNotFound, lambda w: w.cancel(7), "7"),
    "kick": Row(errors.JobNotFound, lambda w: w.kick(7), "7"),
    "reschedule": Row(errors.JobNotFound, lambda w: w.reschedule(7, 1), "7"),
    "change": Row(errors.JobNotFound, lambda w: w.change(7, priority=1), "7"),
    "look": Row(errors.JobNotFound, lambda w: w.look(7), "7"),
    "bury": Row(errors.JobNotFound, lambda w: w.bury_waiting(7), "7"),
    "unknown key": Row(errors.KeyNotFound, lambda w: w.find("mail", "k"), "'k'", lambda w: w.put()),
    "key of no topic": Row(errors.TopicNotFound, lambda w: w.find("no", "k"), "'no'"),
    "pause": Row(errors.TopicNotFound, lambda w: w.pause("no", 9), "'no'"),
    "clear": Row(errors.TopicNotFound, lambda w: w.clear("no"), "'no'"),
    "redrive": Row(errors.TopicNotFound, lambda w: w.redrive("no", 9), "'no'"),
    **{
        f"key {name}": Row(errors.KeyInvalid, partial(put_key, key), "key", told_as=AT_FAULT)
        for name, key in (
            *(("empty", ""), ("with a space", "a b"), ("too long", "k" * 201)),
            *(("with a control", "a\x7f"), ("with a wide space", "a\u00a0b")),
        )
    },
    "key taken": Row(
        errors.JobAlreadyExists, lambda w: w.put(key="k"), "1", lambda w: w.put(key="k")
    ),
    "put into internal": Row(
        errors.TopicIsInternal, lambda w: w.put("$idempotency"), "'$idempotency'"
    ),
    "name of a topic": Row(errors.TopicNameInvalid, lambda w: w.put("-a"), "-a", told_as=AT_FAULT),
    "name too long": Row(
        errors.TopicNameInvalid, lambda w: w.put("a" * 201), "aaa", told_as=AT_FAULT
    ),
    "priority": Row(
        errors.ValueOutOfRange, lambda w: w.put(priority=1 << 32), "priority", told_as=AT_FAULT
    ),
    "priority below 0": Row(
        errors.ValueOutOfRange, lambda w: w.put(priority=-1), "priority", told_as=AT_FAULT
    ),
    "delay": Row(errors.ValueOutOfRange, lambda w: w.put(delay=1 << 32), "delay", told_as=AT_FAULT),
    "change of priority": Row(
        errors.ValueOutOfRange,
        *(lambda w: w.change(1, priority=1 << 32), "priority", lambda w: w.put()),
        told_as=AT_FAULT,
    ),
    "delay of the topic": Row(
        errors.DelayTooLong,
        *(lambda w: w.put(delay=3601), "1h", lambda w: w.policy("mail", delay_max="1h")),
    ),
    "body": Row(errors.BodyTooBig, lambda w: w.put(body=LONG), "65535"),
    "body of the topic": Row(
        errors.BodyTooBig,
        *(
            lambda w: w.put(body=b"x" * 99),
            "'mail' is 9",
            lambda w: w.policy("mail", body_bytes_max=9),
        ),
    ),
    "changed body": Row(
        errors.BodyTooBig, lambda w: w.change(1, body=LONG), "65535", lambda w: w.put()
    ),
    "last watched": Row(errors.LastWatched, lambda w: w.ignore("default"), "'default'"),
    "too many watched": Row(
        errors.TooManyWatched,
        *(lambda w: w.watch("one-more"), "'one-more'"),
        lambda w: w.watch(*(f"t{number}" for number in range(1, TOPICS_WATCHED_MAX))),
    ),
    "draining": Row(
        errors.Draining, lambda w: w.put(), "", lambda w: setattr(w.engine, "draining", True)
    ),
    "policy": Row(
        errors.PolicyInvalid, lambda w: w.policy("mail", retry=15), "retry", told_as=AT_FAULT
    ),
    "target": Row(
        errors.TargetRefused, put_url, URL, refuse(errors.TargetRefused(f"url {URL!r}", "is not"))
    ),
    "sink": Row(
        errors.NotForTopic, put_url, URL, refuse(errors.NotForTopic(f"url {URL!r}", "is not"))
    ),
    "target of the topic": Row(
        errors.TargetRefused,
        *(put_url, "'mail' has a target"),
        topic_has_target,
    ),
    "push": Row(errors.PushIsOff, put_url, ""),
    "jobs of the topic": Row(
        errors.CapReached,
        *(lambda w: w.put(), "'mail' is 1 and 1 are"),
        lambda w: (w.policy("mail", jobs_max=1), w.put()),
    ),
    "bytes of the topic": Row(
        errors.CapReached,
        *(lambda w: w.put(body=b"x" * 99), "'mail' is 90"),
        lambda w: (w.policy("mail", bytes_max=90), w.put()),
    ),
    "put without room": Row(errors.OutOfSpace, lambda w: w.put(), "", no_room),
    "keyed put without room": Row(errors.OutOfSpace, lambda w: w.put(key="k"), "", no_room),
    "policy without room": Row(errors.OutOfSpace, lambda w: w.policy("mail", ttr=1), "", no_room),
    "kick without room": Row(
        errors.OutOfSpace, lambda w: w.kick(1), "", lambda w: (w.put(delay=9), no_room(w))
    ),
}


@pytest.mark.parametrize("row", ROWS)
def test_refusal(row: str, world: World) -> None:
    refusal, act, names, given, told_as = ROWS[row]
    given(world)
    before = everything(world.engine)
    with pytest.raises(Told) as caught:
        act(world)
    told = caught.value
    line_word = refusal.line_word if world.name in {"line", "line-client"} else None
    assert told.word == (line_word or refusal.word)
    assert told.kind in ("", refusal.kind, *told_as.split())
    assert names in told.text or not told.text
    assert everything(world.engine) == before


def refusals(kind: type[errors.Refusal] = errors.Refusal) -> set[type[errors.Refusal]]:
    below = [each for each in kind.__subclasses__() if each.__module__ == errors.__name__]
    return {*below, *(each for kind in below for each in refusals(kind))}


def test_every_refusal_of_the_engine_has_a_row() -> None:
    assert refusals() == {row.refusal for row in ROWS.values()}
