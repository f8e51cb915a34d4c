"""The life of a job: what each state allows, how reservations end, what keys and topics do."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.facts.worlds import Held, Told, World

UNFIT = {"NOT_FOUND", "RESERVED", "NOT_RESERVED", "WRONG_STATE"}
"""HTTP tells why the state or the holder of a job does not allow something; the line does not."""
STATES = ("delayed", "ready", "reserved", "buried")


def job_in(world: World, state: str, **options: Any) -> int:  # noqa: ANN401 - what a put takes
    """Put a job, and bring it into a state; in hand it is until its ttr runs out in a minute."""
    job_id, _ = world.put(delay=90 if state == "delayed" else 0, **options)
    if state in {"reserved", "buried"}:
        held = in_hand(world)
        if state == "buried":
            world.bury(held)
    return job_id


def in_hand(world: World) -> Held:
    held = world.reserve()
    assert held is not None
    return held


def state(world: World, job_id: int) -> str:
    """The state of a job; `gone`."""
    try:
        return world.look(job_id).state
    except Told as told:
        return "gone" if told.word == "NOT_FOUND" else told.word


# --- States --------------------------------------------------------------------------------------

ACTS: dict[str, Callable[[World], object]] = {
    "cancel": lambda world: world.cancel(1),
    "kick": lambda world: world.kick(1),
    "reschedule": lambda world: world.reschedule(1, 30),
    "change delay": lambda world: world.change(1, delay=30),
    "change priority": lambda world: world.change(1, priority=7),
    "bury": lambda world: world.bury_waiting(1),
    "wait": lambda world: world.advance(90),
}
BECOMES = {
    # act: from delayed, ready, reserved (by somebody else), buried; empty: refused
    "cancel": ("gone", "gone", "", "gone"),
    "kick": ("ready", "", "", "ready"),
    "reschedule": ("delayed", "delayed", "", ""),
    "change delay": ("delayed", "delayed", "", "delayed"),
    "change priority": ("delayed", "ready", "", "buried"),
    "bury": ("buried", "buried", "", ""),
    "wait": ("ready", "ready", "ready", "buried"),
}


@pytest.mark.parametrize("before", STATES)
@pytest.mark.parametrize("act", BECOMES)
def test_state(act: str, before: str, world: World) -> None:
    job_id = job_in(world, before, key="k")
    after = BECOMES[act][STATES.index(before)]
    if after:
        ACTS[act](world)
    else:
        with pytest.raises(Told) as told:
            ACTS[act](world)
        assert told.value.word in UNFIT
    assert state(world, job_id) == (after or before)


def test_a_job_is_ready_when_it_is_due_and_not_before(world: World) -> None:
    world.put(body=b"hello", delay=90)
    world.advance(89.999)
    assert world.reserve() is None
    world.advance(0.001)
    assert in_hand(world).body == b"hello"
    assert world.reserve() is None, "it is handed out once"


def test_a_change_of_everything_is_one_step(world: World) -> None:
    world.put(delay=90, key="k")
    world.change(1, body=b"new", priority=7, ttr=5, delay=10)
    assert world.look(1)[1:5] == ("delayed", 7, b"new", "k")
    world.advance(10)
    held = in_hand(world)
    world.advance(4.999)
    assert state(world, 1) == "reserved"
    world.advance(0.001)
    assert held.body == b"new"
    assert state(world, 1) == "ready"


# --- How reservations end ------------------------------------------------------------------------

RULES: dict[str, Callable[[World], object]] = {
    "none": lambda world: world.put(),
    "ladder": lambda world: (world.policy("mail", retry="15s 3m"), world.put()),
    "own ladder": lambda world: world.put(retry="15s 3m"),
    "own before the topic's": lambda world: (
        world.policy("mail", retry="1h"),
        world.put(retry="15s 3m"),
    ),
    "one attempt": lambda world: (world.policy("mail", max_attempts=1), world.put()),
    "moved": lambda world: (
        world.policy("mail", max_attempts=1, exhausted="dead"),
        world.put(key="k"),
    ),
}
ENDS: dict[str, Callable[[World, Held], object]] = {
    "ack": lambda world, held: world.ack(held),
    "nack": lambda world, held: world.nack(held, "no route"),
    "nack delay": lambda world, held: world.nack(held, delay=5),
    "release": lambda world, held: world.release(held),
    "release delay": lambda world, held: world.release(held, delay=5),
    "bury": lambda world, held: world.bury(held),
    "ttr": lambda world, _held: world.advance(60),
}
ENDINGS = {
    # rule: after ack, nack, nack delay=5, release, release delay=5, bury, ttr;
    # a number: delayed for so many seconds
    "none": ("gone", "ready", 5, "ready", 5, "buried", "ready"),
    "ladder": ("gone", 15, 5, 15, 5, "buried", 15),
    "own ladder": ("gone", 15, 5, 15, 5, "buried", 15),
    "own before the topic's": ("gone", 15, 5, 15, 5, "buried", 15),
    "one attempt": ("gone", "buried", "buried", "buried", "buried", "buried", "buried"),
    "moved": ("gone", "dead", "dead", "dead", "dead", "buried", "dead"),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("rule", ENDINGS)
def test_ending(rule: str, end: str, world: World) -> None:
    RULES[rule](world)
    held = in_hand(world)
    ENDS[end](world, held)
    after = ENDINGS[rule][list(ENDS).index(end)]
    if isinstance(after, int):
        world.advance(after - 0.001)
        assert state(world, 1) == "delayed"
        world.advance(0.001)
        after = "ready"
    if after == "dead":
        assert (world.look(1).topic, world.look(1).key) == ("dead", "")
        after = "ready"
    assert state(world, 1) == after
    if end == "nack":
        assert world.look(1).error == "no route"
    for again in ("nack", "bury", "ack" if end == "ack" else "nack"):
        with pytest.raises(Told) as told:
            ENDS[again](world, held)
        assert told.value.word in UNFIT, "it is no more in hand"
    assert state(world, 1) == after


def test_nacks_climb_the_ladder_to_its_end_and_a_kick_begins_it_anew(world: World) -> None:
    world.policy("mail", retry="15s 3m")
    world.put()
    for step in (15, 180):
        world.nack(in_hand(world))
        world.advance(step - 0.001)
        assert world.reserve() is None
        world.advance(0.001)
    world.nack(in_hand(world), "it is over")
    assert (state(world, 1), world.look(1).error) == ("buried", "it is over")
    assert world.redrive("mail", 9) == 1
    world.nack(in_hand(world))
    world.advance(15)
    assert state(world, 1) == "ready"


def test_an_exhausted_job_is_moved_once_and_then_buried(world: World) -> None:
    world.policy("mail", max_attempts=1, exhausted="dead")
    world.policy("dead", max_attempts=1, exhausted="mail")
    world.put(key="k")
    world.nack(in_hand(world))
    held = world.reserve("dead")
    assert held is not None
    world.nack(held)
    assert world.look(1)[:2] == ("dead", "buried")


def test_who_is_slower_than_the_ttr_does_not_disturb_the_next_holder(world: World) -> None:
    world.put()
    first = in_hand(world)
    world.advance(60)
    second = in_hand(world)
    assert second.id == first.id
    if world.name in {"http", "client"}:  # elsewhere the connection holds it, and names it alone
        with pytest.raises(Told):
            world.ack(first)
    world.ack(second)
    assert state(world, 1) == "gone"


def test_a_touch_gives_the_whole_ttr_again(world: World) -> None:
    world.put()
    held = in_hand(world)
    world.advance(59)
    world.touch(held)
    world.advance(59.999)
    assert state(world, 1) == "reserved"
    world.advance(0.001)
    assert state(world, 1) == "ready"


# --- Keys ----------------------------------------------------------------------------------------

NEW: dict[str, Any] = {"body": b"new", "delay": 30, "priority": 9, "key": "k"}
MODES = {
    # mode: outcome, has the new body and priority, has the new time
    "reject": ("JOB_ALREADY_EXISTS", False, False),
    "keep": ("kept", False, False),
    "replace": ("replaced", True, True),
    "preserve": ("preserved", True, False),
    "extend": ("extended", False, True),
}


@pytest.mark.parametrize("before", STATES)
@pytest.mark.parametrize("mode", MODES)
def test_taken_key(mode: str, before: str, world: World) -> None:
    job_in(world, before, body=b"old", key="k")
    outcome, has_body, has_time = MODES[mode]
    if before == "reserved" and mode not in {"reject", "keep"}:
        assert world.put(**NEW, on=mode) == (2, "created")
        assert (world.find("mail", "k"), world.look(2).body) == (2, b"new")
        assert world.look(1)[1:5] == ("reserved", 0, b"old", "")
        return
    if mode == "reject":
        with pytest.raises(Told) as told:
            world.put(**NEW)
        assert (told.value.word, "1" in (told.value.text or "1")) == (outcome, True)
    else:
        assert world.put(**NEW, on=mode) == (1, outcome)
    seen = world.look(world.find("mail", "k"))
    assert (seen.body, seen.priority) == ((b"new", 9) if has_body else (b"old", 0))
    assert seen.state == ("delayed" if has_time else before)
    world.advance(29.999)
    assert state(world, 1) == seen.state
    world.advance(0.001)
    assert state(world, 1) == ("ready" if has_time else before)


def test_a_key_is_its_topics_and_free_again_when_its_job_is_gone(world: World) -> None:
    for number, topic in ((1, "mail"), (2, "sms")):
        assert world.put(topic, key="größe-4") == (number, "created")
        assert world.find(topic, "größe-4") == number
    world.ack(in_hand(world))
    assert world.put(key="größe-4") == (3, "created")


# --- Topics --------------------------------------------------------------------------------------


def test_ready_order_is_priority_and_then_id_whatever_happened_before(world: World) -> None:
    for priority in (5, 0, 5, 1):
        world.put(priority=priority)
    world.put(priority=1, delay=9)
    world.advance(9)
    world.nack(in_hand(world))
    assert [in_hand(world).id for _ in range(5)] == [2, 4, 5, 1, 3]


def test_a_paused_topic_hands_out_nothing_until_its_time(world: World) -> None:
    world.put()
    world.pause("mail", 90)
    world.advance(89.999)
    assert world.reserve() is None
    world.advance(0.001)
    assert in_hand(world).id == 1


def test_a_clear_forgets_all_but_what_is_worked_on(world: World) -> None:
    world.put()
    held = in_hand(world)
    world.put()
    world.put(delay=90)
    world.put(key="k")
    world.put("sms")
    assert world.clear("mail") == 3
    assert [state(world, number) for number in range(1, 6)] == [
        *("reserved", "gone", "gone", "gone", "ready")
    ]
    assert world.clear("mail") == 0
    world.ack(held)


def test_buried_jobs_come_back_the_longest_buried_first(world: World) -> None:
    for _ in range(3):
        world.put()
    first, *others = [in_hand(world) for _ in range(3)]
    for held in (*others, first):
        world.bury(held)
    assert world.redrive("mail", 2) == 2
    assert [state(world, number) for number in (1, 2, 3)] == ["buried", "ready", "ready"]
    assert world.redrive("mail", 9) == 1
