"""The oracle on keys, ladders, policies and whole topics: what it passes, and what it names."""

from collections.abc import Callable
from typing import Any, Final

import pytest

from tests.faults.history import Seen
from tests.faults.test_history import START_MS, Story, judged

ONE_STEP: Final = ((50,), 0, 0)
"""A ladder of one step of 50 ms."""

ONCE_FAILED: Final = Seen(1, "ready", b"body 1", None, 0, "default", "", 1)
NOT_BURIED: Final = Seen(1, "delayed", b"body 1", None, 0, "default", "", -1)


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

    def hold_and_leave(self, client: str) -> None:
        """Somebody asks for a job, and goes before there is an answer."""
        self.ask("reserve", client)
        self.leave(client)

    def leave(self, client: str) -> None:
        self.ok(self.ask("close", client), self.now_ms)

    def ask_twice_under(self, key: str, **what: Any) -> list[int]:  # noqa: ANN401
        """Put two jobs in one piece: bodies a and b, the later in the place of the one before."""
        settings: dict[str, Any] = {"key": key, "on": "replace", "ttr_ms": 100, **what}
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
        self.look(ONCE_FAILED)
        self.note("started", self.now_ms)

    def go_back(self, how: str = "power") -> None:
        """Stop, and have the wall clock set back meanwhile: to when the ttr had not run out."""
        self.note("stopped", self.now_ms, how=how)
        self.now_ms = START_MS + 50
        self.look(Seen(1, "reserved", b"body 1", START_MS + 101, 0, "default", "", -1))

    def bury_twice(self) -> None:
        """Within the daemon, which tells nobody: that the second is refused shows the first."""
        self.put(1, delay_ms=500)
        self.unknown(self.ask("bury-waiting", "within", job_id=1), self.now_ms)
        self.refused("bury-waiting", 1, client="within")

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


def the_first_of_a_batch_are_cleared_and_nobody_is_answered(story: Ruled) -> None:
    """A piece comes in pieces, and who clears the topic comes in between."""
    story.batch_of_three()
    story.ask("clear", "d", topic="default")
    story.leave("c")
    story.leave("d")
    story.look((3, "ready"))


def a_refusal_shows_a_hand_out_that_a_power_cut_takes_back(story: Ruled) -> None:
    story.put(1)
    reserve = story.ask("reserve", "b")
    story.refused("delete", 1)
    story.ok(reserve, story.now_ms, job_id=1, body=b"body 1")
    story.stop("power")
    story.look((1, "ready"))


def a_refusal_by_key_shows_one_that_nobody_is_told_of(story: Ruled) -> None:
    story.put_under("k", "reject", 1, "created", body=b"a", retry=ONE_STEP)
    story.ask("reserve", "b")
    story.fail(story.ask("delete-key", key="k", topic="default"), story.now_ms, "NOT_FOUND")
    story.stop("power")
    story.look(Seen(1, "ready", b"a", None, 0, "default", "k", -1))


def a_refusal_within_shows_a_burial_that_a_power_cut_takes_back(story: Ruled) -> None:
    story.bury_twice()
    story.stop("power")
    story.look(NOT_BURIED)


def a_refusal_within_shows_a_delete_that_a_power_cut_takes_back(story: Ruled) -> None:
    story.put(1, delay_ms=500)
    story.ask("delete", job_id=1)
    story.refused("bury-waiting", 1, client="within")
    story.stop("power")
    story.look(NOT_BURIED)


def a_stop_overtakes_who_leaves(story: Ruled) -> None:
    story.put(1, retry=ONE_STEP)
    story.reserve(1, "b")
    story.ask("close", "b")
    story.note("closed", story.now_ms, client="b", stops=True)
    story.stop("power")
    story.look(ONCE_FAILED._replace(attempts=0))


def a_key_is_lost_while_somebody_holds_the_job_and_leaves(story: Ruled) -> None:
    first, second = story.ask_twice_under("k")
    story.hold_and_leave("b")
    story.ok(first, story.now_ms, job_id=1, outcome="created")
    story.ok(second, story.now_ms, job_id=2, outcome="created")
    story.look(
        Seen(1, "ready", b"a", None, 0, "default", "", -1),
        Seen(2, "ready", b"b", None, 0, "default", "k", -1),
    )


def what_was_replaced_fails_with_who_holds_it_and_leaves(story: Ruled) -> None:
    first, second = story.ask_twice_under("k", retry=((), 1, 0))
    story.hold_and_leave("b")
    story.ok(first, story.now_ms, job_id=1, outcome="created")
    story.ok(second, story.now_ms, job_id=1, outcome="replaced")
    story.look(Seen(1, "buried", b"b", None, 0, "default", "k", 1))


def a_lapse_is_undone_when_time_goes_back_and_what_came_after_is_lost(story: Ruled) -> None:
    story.expire()
    story.reserve(1, "b")
    story.go_back()


def a_lapse_is_undone_whatever_was_refused_since(story: Ruled) -> None:
    story.put_under("k", "reject", 1, "created", body=b"body 1", retry=ONE_STEP)
    story.reserve(1, "b")
    story.now_ms += 200
    story.stop("power")
    story.look(ONCE_FAILED._replace(key="k"))
    story.put_under("k", "reject", 1, "there", body=b"x")
    story.note("stopped", story.now_ms, how="kill")
    story.now_ms = START_MS + 50
    story.look(Seen(1, "reserved", b"body 1", START_MS + 101, 0, "default", "k", -1))


PASSED: Final = (
    a_key_goes_through_all_modes,
    a_replacement_without_an_answer_happened_or_not,
    a_ladder_is_climbed_to_its_end,
    a_policy_that_may_hold_moves_a_job_or_not,
    a_topic_is_cleared_but_for_what_is_in_hand,
    the_first_of_a_batch_are_cleared_and_nobody_is_answered,
    a_refusal_shows_a_hand_out_that_a_power_cut_takes_back,
    a_refusal_by_key_shows_one_that_nobody_is_told_of,
    a_refusal_within_shows_a_burial_that_a_power_cut_takes_back,
    a_refusal_within_shows_a_delete_that_a_power_cut_takes_back,
    a_stop_overtakes_who_leaves,
    a_key_is_lost_while_somebody_holds_the_job_and_leaves,
    what_was_replaced_fails_with_who_holds_it_and_leaves,
    a_lapse_is_undone_when_time_goes_back_and_what_came_after_is_lost,
    a_lapse_is_undone_whatever_was_refused_since,
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


def the_first_of_a_batch_are_gone_and_another_topic_was_cleared(story: Ruled) -> None:
    story.put(9, topic="other")
    story.batch_of_three()
    story.ask("clear", "d", topic="other")
    story.leave("c")
    story.leave("d")
    story.look((3, "ready"), (9, "ready"))


def the_first_of_a_batch_are_gone_and_the_topic_was_cleared_before(story: Ruled) -> None:
    story.put(9)
    story.done("clear", topic="default")
    story.now_ms += 1
    story.batch_of_three()
    story.leave("c")
    story.look((3, "ready"))


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


def a_hand_out_is_taken_back_by_a_kill(story: Ruled) -> None:
    story.put(1)
    reserve = story.ask("reserve", "b")
    story.refused("delete", 1)
    story.ok(reserve, story.now_ms, job_id=1, body=b"body 1")
    story.stop()
    story.look((1, "ready"))


def a_hand_out_is_taken_back_behind_what_was_acknowledged(story: Ruled) -> None:
    story.put(1)
    reserve = story.ask("reserve", "b")
    story.refused("delete", 1)
    story.ok(reserve, story.now_ms, job_id=1, body=b"body 1")
    story.did("touch", 1, "b")
    story.stop("power")
    story.look((1, "ready"))


def a_delete_that_was_refused_is_done_by_a_power_cut(story: Ruled) -> None:
    story.put(1)
    reserve = story.ask("reserve", "b")
    story.refused("delete", 1)
    story.ok(reserve, story.now_ms, job_id=1, body=b"body 1")
    story.stop("power")
    story.look()


def a_burial_is_taken_back_by_a_kill(story: Ruled) -> None:
    story.bury_twice()
    story.stop()
    story.look(NOT_BURIED)


def a_burial_is_taken_back_behind_what_was_acknowledged(story: Ruled) -> None:
    story.bury_twice()
    story.did("kick", 1)
    story.stop("power")
    story.look(NOT_BURIED)


def a_burial_that_another_refusal_shows_is_taken_back(story: Ruled) -> None:
    """The line says so when what it depends on is synced."""
    story.put(1, delay_ms=500)
    story.unknown(story.ask("bury-waiting", "within", job_id=1), story.now_ms)
    story.refused("reschedule", 1)
    story.stop("power")
    story.look(NOT_BURIED)


def who_leaves_has_not_failed_and_nothing_stops(story: Ruled) -> None:
    story.put(1, retry=ONE_STEP)
    story.reserve(1, "b")
    story.ask("close", "b")
    story.stop("power")
    story.look(ONCE_FAILED._replace(attempts=0))


def a_key_is_lost_to_a_put_when_the_holder_has_left(story: Ruled) -> None:
    story.hold_and_leave("b")
    first, second = story.ask_twice_under("k")
    story.ok(first, story.now_ms, job_id=1, outcome="created")
    story.ok(second, story.now_ms, job_id=2, outcome="created")
    story.look(
        Seen(1, "ready", b"a", None, 0, "default", "", -1),
        Seen(2, "ready", b"b", None, 0, "default", "k", -1),
    )


def a_key_is_lost_though_the_holder_watched_another_topic(story: Ruled) -> None:
    first, second = story.ask_twice_under("k")
    story.ask("reserve", "b", topics=["other"])
    story.leave("b")
    story.ok(first, story.now_ms, job_id=1, outcome="created")
    story.ok(second, story.now_ms, job_id=2, outcome="created")
    story.look(
        Seen(1, "ready", b"a", None, 0, "default", "", -1),
        Seen(2, "ready", b"b", None, 0, "default", "k", -1),
    )


def what_was_replaced_fails_and_nobody_held_it(story: Ruled) -> None:
    first, second = story.ask_twice_under("k", retry=((), 1, 0))
    story.ok(first, story.now_ms, job_id=1, outcome="created")
    story.ok(second, story.now_ms, job_id=1, outcome="replaced")
    story.look(Seen(1, "buried", b"b", None, 0, "default", "k", 1))


def what_is_replaced_when_its_holder_has_left_fails(story: Ruled) -> None:
    settings: dict[str, Any] = {"on": "replace", "ttr_ms": 100, "retry": ((), 1, 0)}
    put = story.ask("put", "c", body=b"a", key="k", **settings)
    story.hold_and_leave("b")
    story.ok(put, story.now_ms, job_id=1, outcome="created")
    story.put_under("k", job_id=1, outcome="replaced", body=b"b", **settings)
    story.look(Seen(1, "buried", b"b", None, 0, "default", "k", 1))


def a_lapse_is_undone_behind_what_was_acknowledged(story: Ruled) -> None:
    story.expire()
    story.reserve(1, "b")
    story.did("bury", 1, "b")
    story.go_back()


def a_lapse_is_undone_by_a_kill_behind_a_hand_out(story: Ruled) -> None:
    story.expire()
    story.reserve(1, "b")
    story.go_back("kill")


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
    ("I5", the_first_of_a_batch_are_gone_and_another_topic_was_cleared),
    ("I5", the_first_of_a_batch_are_gone_and_the_topic_was_cleared_before),
    ("I2", what_was_cancelled_is_there),
    ("I8", an_old_policy_holds),
    ("I8", a_hand_out_is_taken_back_by_a_kill),
    ("I8", a_hand_out_is_taken_back_behind_what_was_acknowledged),
    ("I1", a_delete_that_was_refused_is_done_by_a_power_cut),
    ("I12", a_burial_is_taken_back_by_a_kill),
    ("I12", a_burial_is_taken_back_behind_what_was_acknowledged),
    ("I12", a_burial_that_another_refusal_shows_is_taken_back),
    ("I4", who_leaves_has_not_failed_and_nothing_stops),
    ("I8", a_key_is_lost_to_a_put_when_the_holder_has_left),
    ("I8", a_key_is_lost_though_the_holder_watched_another_topic),
    ("I4", what_was_replaced_fails_and_nobody_held_it),
    ("I8", what_is_replaced_when_its_holder_has_left_fails),
    ("I12", a_lapse_is_undone_behind_what_was_acknowledged),
    ("I12", a_lapse_is_undone_by_a_kill_behind_a_hand_out),
)


@pytest.mark.parametrize(
    ("invariant", "tell"), BROKEN, ids=lambda value: getattr(value, "__name__", value)
)
def test_what_may_not_happen_is_found(invariant: str, tell: Callable[[Ruled], None]) -> None:
    story = Ruled()
    assert story.now_ms == START_MS
    tell(story)
    assert invariant in judged(story)


@pytest.mark.parametrize(("late_ms", "expected"), [(40, []), (60, ["I12"])])
def test_a_lapse_is_undone_when_what_came_after_may_be_lost(
    late_ms: int, expected: list[str]
) -> None:
    """Where a power cut may take 50 ms of what was acknowledged."""
    story = Ruled()
    story.expire()
    story.reserve(1, "b")
    story.did("bury", 1, "b")
    story.now_ms += late_ms
    story.go_back()
    assert judged(story, loss_ms=50) == expected


# --- What a power cut may take, of what was acknowledged in the last 50 ms ----------------------


def a_put_is_lost_and_the_burial_before_it_is_not(story: Ruled) -> Seen:
    """Nobody was told of the burial: it came before the put, or after it, or never."""
    story.put_under("k", "reject", 1, "created", body=b"a")
    story.unknown(story.ask("bury-waiting", "within", job_id=1), story.now_ms)
    story.put_under("k", "preserve", 1, "preserved", body=b"b")
    return Seen(1, "buried", b"a", None, 0, "default", "k", 0)


def a_delete_that_a_refusal_shows_is_lost_and_the_change_before_it_is_not(story: Ruled) -> Seen:
    story.put(1, delay_ms=500)
    story.ask("change", job_id=1, priority=7)
    story.ask("delete", job_id=1)
    story.refused("kick", 1, client="b")
    return Seen(1, "delayed", b"body 1", None, 7, "default", "", -1)


def a_return_is_lost_and_the_hand_out_before_it_is_not(story: Ruled) -> Seen:
    story.put(1)
    story.hold_and_leave("b")
    story.did("change", 1, priority=7)
    return Seen(1, "reserved", b"body 1", None, 0, "default", "", -1)


def a_return_before_the_answer_to_the_put_is_lost(story: Ruled) -> Seen:
    put = story.ask("put", body=b"body 1", ttr_ms=100)
    story.hold_and_leave("b")
    story.ok(put, story.now_ms, job_id=1)
    story.did("change", 1, priority=7)
    return Seen(1, "reserved", b"body 1", None, 0, "default", "", -1)


@pytest.mark.parametrize("late_ms", [40, 60])
@pytest.mark.parametrize(
    ("invariant", "tell"),
    [
        ("I4", a_put_is_lost_and_the_burial_before_it_is_not),
        ("I2", a_delete_that_a_refusal_shows_is_lost_and_the_change_before_it_is_not),
        ("I4", a_return_is_lost_and_the_hand_out_before_it_is_not),
        ("I8", a_return_before_the_answer_to_the_put_is_lost),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_what_was_unknown_may_be_all_that_is_left_when_the_rest_may_be_lost(
    invariant: str, tell: Callable[[Ruled], Seen], late_ms: int
) -> None:
    story = Ruled()
    seen = tell(story)
    story.now_ms += late_ms
    story.stop("power")
    story.look(seen)
    assert judged(story, loss_ms=50) == ([invariant] if late_ms > 50 else [])


def test_a_put_that_made_another_job_has_never_changed_this_one() -> None:
    """Whatever a power cut takes."""
    story = Ruled()
    story.put_under("k", "reject", 1, "created", body=b"a")
    story.ask("delete", job_id=1)
    story.put_under("k", "preserve", 2, "created", body=b"b")
    story.stop("power")
    story.look(Seen(1, "ready", b"b", None, 0, "default", "k", -1))
    assert judged(story, loss_ms=50) == ["I3"]
