"""The oracle on keys, ladders, policies and whole topics: what it passes, and what it names."""

from collections.abc import Callable
from typing import Any, Final

import pytest

from tests.faults.history import Seen
from tests.faults.test_history import START_MS, Story, judged

ONE_STEP: Final = ((50,), 0, 0)
"""A ladder of one step of 50 ms."""


class Ruled(Story):
    """With the words for what is told here."""

    def put_under(self, key: str, on: str, job_id: int, outcome: str, **what: Any) -> None:  # noqa: ANN401
        body = b"body %d %b" % (len(self.entries), key.encode())
        settings: dict[str, Any] = {
            "body": body,
            "delay_ms": 0,
            "ttr_ms": 100,
            "key": key,
            "on": on,
            **what,
        }
        number = self.ask("put", **settings)
        self.now_ms += 1
        self.ok(number, self.now_ms, job_id=job_id, outcome=outcome)

    def done(self, kind: str, **what: Any) -> None:  # noqa: ANN401
        number = self.ask(kind, **what)
        self.now_ms += 1
        self.ok(number, self.now_ms)


# --- What may happen ----------------------------------------------------------------------------


def a_key_goes_through_all_modes(story: Ruled) -> None:
    story.put_under("k", "reject", 1, "created", body=b"a")
    story.put_under("k", "reject", 1, "there", body=b"b")
    story.put_under("k", "keep", 1, "kept", body=b"c")
    story.look(Seen(1, "ready", b"a", None, 0, "default", "k", -1))
    story.put_under("k", "preserve", 1, "preserved", body=b"d")
    story.put_under("k", "extend", 1, "extended", body=b"e", delay_ms=70)
    story.look(Seen(1, "delayed", b"d", None, 0, "default", "k", -1))
    story.put_under("k", "replace", 1, "replaced", body=b"f")
    story.reserve(1, "b", b"f")
    story.put_under("k", "replace", 2, "created", body=b"g")
    story.look(
        Seen(1, "reserved", b"f", None, 0, "default", "", -1),
        Seen(2, "ready", b"g", None, 0, "default", "k", -1),
    )
    story.done("delete-key", key="k", topic="default")
    story.did("delete", 1, "b")
    story.look()


def a_replacement_without_an_answer_happened_or_not(story: Ruled) -> None:
    story.put_under("k", "reject", 1, "created", body=b"a")
    story.ask("put", key="k", on="replace", body=b"b", ttr_ms=100)
    story.stop("power")
    story.look(Seen(1, "ready", b"b", None, 0, "default", "k", -1))


def a_ladder_is_climbed_to_its_end(story: Ruled) -> None:
    story.put(1, retry=ONE_STEP)
    story.reserve(1, "b")
    story.did("nack", 1, "b")
    story.look(Seen(1, "delayed", b"body 1", story.now_ms + 50, 0, "default", "", 1))
    story.now_ms += 55
    story.reserve(1, "b")
    story.now_ms += 110
    story.look(Seen(1, "buried", b"body 1", None, 0, "default", "", 2))
    story.did("kick", 1)
    story.look(Seen(1, "ready", b"body 1", None, 0, "default", "", 0))


def a_policy_that_may_hold_moves_a_job_or_not(story: Ruled) -> None:
    story.put(1, topic="b")
    story.put(2, topic="b")
    story.ask("policy", "c", topic="b", retry=((), 1, 0), target="dead")
    for job_id in (1, 2):
        story.reserve(job_id, "b")
        story.did("nack", job_id, "b")
    story.look(
        Seen(1, "ready", b"body 1", None, 0, "b", "", 1),
        Seen(2, "ready", b"body 2", None, 0, "dead", "", 0),
    )


def a_topic_is_cleared_but_for_what_is_in_hand(story: Ruled) -> None:
    story.put(1)
    story.put(2)
    story.reserve(2, "b")
    story.put(3, topic="other")
    story.done("clear", topic="default")
    story.look((2, "reserved"), (3, "ready"))


PASSED: Final = (
    a_key_goes_through_all_modes,
    a_replacement_without_an_answer_happened_or_not,
    a_ladder_is_climbed_to_its_end,
    a_policy_that_may_hold_moves_a_job_or_not,
    a_topic_is_cleared_but_for_what_is_in_hand,
)


@pytest.mark.parametrize("tell", PASSED, ids=lambda tell: tell.__name__)
def test_what_may_happen_passes(tell: Callable[[Ruled], None]) -> None:
    story = Ruled()
    tell(story)
    assert judged(story) == []


# --- What may not -------------------------------------------------------------------------------


def two_jobs_have_a_key(story: Ruled) -> None:
    story.put_under("k", "reject", 1, "created", body=b"a")
    story.put_under("k", "reject", 2, "created", body=b"b")


def two_jobs_are_seen_with_a_key(story: Ruled) -> None:
    for job_id in (1, 2):
        story.ask("put", key="k", on="replace", body=b"body %d" % job_id, ttr_ms=100)
    story.reserve(1, "b")
    story.stop()
    seen = [Seen(n, "reserved", b"body %d" % n, None, 0, "default", "k", -1) for n in (1, 2)]
    story.look(*seen)


def a_key_is_found_that_was_deleted(story: Ruled) -> None:
    story.put_under("k", "reject", 1, "created", body=b"a")
    story.done("delete-key", key="k", topic="default")
    story.done("kick-key", key="k", topic="default")


def a_key_is_forgotten(story: Ruled) -> None:
    story.put_under("k", "reject", 1, "created", body=b"a")
    story.stop()
    story.fail(story.ask("delete-key", key="k", topic="default"), story.now_ms, "NOT_FOUND")


def what_was_replaced_is_handed_out(story: Ruled) -> None:
    story.put_under("k", "reject", 1, "created", body=b"a")
    story.put_under("k", "replace", 1, "replaced", body=b"b")
    story.reserve(1, "b", b"a")


def a_step_is_not_waited_for(story: Ruled) -> None:
    story.put(1, retry=ONE_STEP)
    story.reserve(1, "b")
    story.did("nack", 1, "b")
    story.now_ms += 30
    story.reserve(1, "b")


def a_lapse_is_forgotten(story: Ruled) -> None:
    story.put(1, retry=ONE_STEP)
    story.reserve(1, "b")
    story.now_ms += 110
    story.stop()
    story.look(Seen(1, "ready", b"body 1", None, 0, "default", "", -1))


def attempts_go_backwards(story: Ruled) -> None:
    story.put(1, retry=((5, 5, 5), 0, 0))
    for _ in range(2):
        story.reserve(1, "b")
        story.did("nack", 1, "b")
        story.now_ms += 10
    story.stop()
    story.look(Seen(1, "ready", b"body 1", None, 0, "default", "", 1))


def what_was_cleared_is_there(story: Ruled) -> None:
    story.put(1)
    story.done("clear", topic="default")
    story.stop("power")
    story.look((1, "ready"))


def what_was_cancelled_is_there(story: Ruled) -> None:
    story.put(1)
    story.done("cancel", topic="default")
    story.look((1, "ready"))


def an_old_policy_holds(story: Ruled) -> None:
    story.done("policy", topic="b", retry=((), 1, 0), target="dead")
    story.put(1, topic="b")
    story.reserve(1, "b")
    story.did("nack", 1, "b")
    story.look(Seen(1, "ready", b"body 1", None, 0, "b", "", 1))


BROKEN: Final = (
    ("I11", two_jobs_have_a_key),
    ("I11", two_jobs_are_seen_with_a_key),
    ("I11", a_key_is_found_that_was_deleted),
    ("I11", a_key_is_forgotten),
    ("I3", what_was_replaced_is_handed_out),
    ("I6", a_step_is_not_waited_for),
    ("I4", a_lapse_is_forgotten),
    ("I12", attempts_go_backwards),
    ("I2", what_was_cleared_is_there),
    ("I2", what_was_cancelled_is_there),
    ("I8", an_old_policy_holds),
)


@pytest.mark.parametrize(
    ("invariant", "tell"), BROKEN, ids=lambda value: getattr(value, "__name__", value)
)
def test_what_may_not_happen_is_found(invariant: str, tell: Callable[[Ruled], None]) -> None:
    story = Ruled()
    assert story.now_ms == START_MS
    tell(story)
    assert invariant in judged(story)
