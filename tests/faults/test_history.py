"""The oracle itself: it passes what may happen, and names the promise that was broken."""

import io
from collections.abc import Callable
from typing import Final

import pytest

from tests.faults.checker import violations
from tests.faults.history import History, Seen, merged, read_entries

LATE_MS: Final = 10
START_MS: Final = 1_000


class Story(History):
    """A history told briefly: one client a word, one millisecond for each answer."""

    def __init__(self) -> None:
        super().__init__(io.StringIO())
        self.now_ms = START_MS
        self.after_stop = 0

    def ask(self, kind: str, client: str = "a", **what: object) -> int:
        return self.invoke(kind, self.now_ms, client=client, **what)

    def did(self, kind: str, job_id: int, client: str = "a", **what: object) -> None:
        number = self.ask(kind, client, job_id=job_id, **what)
        self.now_ms += 1
        self.ok(number, self.now_ms)

    def refused(self, kind: str, job_id: int, why: str = "NOT_FOUND", client: str = "a") -> None:
        self.fail(self.ask(kind, client, job_id=job_id), self.now_ms + 1, why)
        self.now_ms += 1

    def put(self, job_id: int, *, delay_ms: int = 0, client: str = "a", **what: object) -> None:
        settings = {"body": b"body %d" % job_id, "delay_ms": delay_ms, "ttr_ms": 100, **what}
        number = self.ask("put", client, **settings)
        self.now_ms += 1
        self.ok(number, self.now_ms, job_id=job_id)

    def reserve(self, job_id: int, client: str = "a", body: bytes = b"", **what: object) -> None:
        number = self.ask("reserve", client, **what)
        self.now_ms += 1
        self.ok(number, self.now_ms, job_id=job_id, body=body or b"body %d" % job_id)

    def stop(self, how: str = "kill") -> None:
        self.note("stopped", self.now_ms, how=how)
        self.note("started", self.now_ms)

    def look(self, *jobs: tuple[int, str] | Seen, is_complete: bool = True) -> None:
        seen = [
            job if isinstance(job, Seen) else Seen(job[0], job[1], b"body %d" % job[0])
            for job in jobs
        ]
        self.observe(self.now_ms, seen, is_complete=is_complete)


def judged(story: Story, *, loss_ms: float = 0) -> list[str]:
    found = violations(story.entries, late_ms_max=LATE_MS, loss_ms=loss_ms)
    return [violation.invariant for violation in found]


# --- What may happen ----------------------------------------------------------------------------


def the_whole_life(story: Story) -> None:
    story.put(1, delay_ms=50)
    story.look((1, "delayed"))
    story.now_ms += 60
    story.look((1, "ready"))
    story.reserve(1, "b")
    story.refused("delete", 1)
    story.did("touch", 1, "b")
    story.did("release", 1, "b", delay_ms=30, priority=7)
    story.look(Seen(1, "delayed", b"body 1", story.now_ms + 30, 7))
    story.did("reschedule", 1, delay_ms=500)
    story.did("kick", 1)
    story.reserve(1, "c")
    story.did("bury", 1, "c", priority=9)
    story.look((1, "buried"))
    story.did("kick", 1)
    story.reserve(1)
    story.did("delete", 1)
    story.refused("delete", 1)
    story.look()
    story.note("drained", story.now_ms)


def a_put_without_an_answer_is_there(story: Story) -> None:
    story.unknown(story.ask("put", body=b"body 9"), story.now_ms)
    story.stop("power")
    story.look((9, "ready"))
    story.reserve(9)


def a_put_without_an_answer_is_not_there(story: Story) -> None:
    story.ask("put", body=b"body 9")
    story.stop("power")
    story.look()


def a_delete_without_an_answer_happened_or_not(story: Story) -> None:
    story.put(1)
    story.put(2)
    story.ask("delete", job_id=1)
    story.ask("delete", "b", job_id=2)
    story.stop()
    story.look((2, "ready"))


def a_power_cut_forgets_who_held_a_job(story: Story) -> None:
    story.put(1)
    story.reserve(1)
    story.stop("power")
    story.reserve(1, "b")


def a_ttr_runs_out_over_a_restart(story: Story) -> None:
    story.put(1)
    story.reserve(1)
    story.stop()
    story.look((1, "reserved"))
    story.now_ms += 101
    story.reserve(1, "b")


def a_job_is_deleted_after_its_ttr_before_the_reserve_is_answered(story: Story) -> None:
    story.put(1)
    reserve = story.ask("reserve", "b")
    story.now_ms += 101
    story.did("delete", 1)
    story.ok(reserve, story.now_ms, job_id=1, body=b"body 1")
    story.look()


def a_closed_connection_gives_its_jobs_back(story: Story) -> None:
    story.put(1)
    story.reserve(1)
    story.note("closed", story.now_ms, client="a")
    story.reserve(1, "b")


def a_delivery_overtakes_the_answer_to_its_put(story: Story) -> None:
    put = story.ask("put", body=b"body 1", ttr_ms=100)
    story.reserve(1, "b")
    story.ok(put, story.now_ms, job_id=1)


def operations_that_overlap_happen_in_any_order(story: Story) -> None:
    story.put(1, delay_ms=500)
    kick = story.ask("kick", job_id=1)
    later = story.ask("reschedule", "b", job_id=1, delay_ms=800)
    story.ok(later, story.now_ms + 1)
    story.ok(kick, story.now_ms + 2)
    story.now_ms += 3
    story.look((1, "ready"))


def a_refusal_for_want_of_space_changes_nothing(story: Story) -> None:
    story.fail(story.ask("put", body=b"body 1"), story.now_ms, "OUT_OF_MEMORY")
    story.put(2)
    story.reserve(2)
    story.refused("release", 2, "OUT_OF_MEMORY")
    story.look((2, "reserved"))


def a_fresh_segment_lets_replies_leave_again(story: Story) -> None:
    story.note("sync failed", story.now_ms)
    story.note("fresh start", story.now_ms)
    story.put(1)


def a_batch_is_cut_short(story: Story) -> None:
    for number in (1, 2, 3):
        story.ask("put", body=b"body %d" % number, batch=1)
    story.stop("power")
    story.look((1, "ready"), (2, "ready"))


def the_state_is_one_that_was(story: Story) -> None:
    for sequence in range(5):
        story.note("prefix", story.now_ms, sequence=sequence, digest=f"state {sequence}", acked=2)
    story.note("recovered", story.now_ms, digest="state 3")
    story.note("same", story.now_ms, of="snapshot and log", left="x", right="x")


GOOD: Final[tuple[Callable[[Story], None], ...]] = (
    the_whole_life,
    a_put_without_an_answer_is_there,
    a_put_without_an_answer_is_not_there,
    a_delete_without_an_answer_happened_or_not,
    a_power_cut_forgets_who_held_a_job,
    a_ttr_runs_out_over_a_restart,
    a_job_is_deleted_after_its_ttr_before_the_reserve_is_answered,
    a_closed_connection_gives_its_jobs_back,
    a_delivery_overtakes_the_answer_to_its_put,
    operations_that_overlap_happen_in_any_order,
    a_refusal_for_want_of_space_changes_nothing,
    a_fresh_segment_lets_replies_leave_again,
    a_batch_is_cut_short,
    the_state_is_one_that_was,
)


@pytest.mark.parametrize("told", GOOD, ids=lambda told: told.__name__)
def test_what_may_happen_passes(told: Callable[[Story], None]) -> None:
    story = Story()
    told(story)
    assert violations(story.entries, late_ms_max=LATE_MS) == []


# --- What may not -------------------------------------------------------------------------------


def an_acknowledged_put_is_missing(story: Story) -> None:
    story.put(1)
    story.stop("power")
    story.look()


def a_ready_job_is_said_not_to_be_there(story: Story) -> None:
    story.put(1)
    story.refused("delete", 1)


def a_deleted_job_is_there(story: Story) -> None:
    story.put(1)
    story.did("delete", 1)
    story.stop("power")
    story.look((1, "ready"))


def a_deleted_job_is_delivered(story: Story) -> None:
    story.put(1)
    story.did("delete", 1)
    story.reserve(1, "b")


def a_job_that_nobody_put(story: Story) -> None:
    story.put(1)
    story.look((1, "ready"), (2, "ready"))


def a_job_that_nobody_put_is_delivered(story: Story) -> None:
    story.reserve(1)


def a_body_is_another(story: Story) -> None:
    story.put(1)
    story.reserve(1, body=b"bodY 1")


def an_unanswered_put_appears_only_after_the_second_start(story: Story) -> None:
    story.ask("put", body=b"body 1")
    story.stop()
    story.look()
    story.stop()
    story.look((1, "ready"))


def half_a_body_is_there(story: Story) -> None:
    story.ask("put", body=b"body 1")
    story.stop()
    story.look(Seen(1, "ready", b"bod"))


def a_refused_put_is_there(story: Story) -> None:
    story.fail(story.ask("put", body=b"body 1"), story.now_ms, "OUT_OF_MEMORY")
    story.look((1, "ready"))


def half_a_release_happened(story: Story) -> None:
    story.put(1)
    story.reserve(1)
    story.ask("release", job_id=1, priority=5, delay_ms=500)
    story.stop()
    story.look(Seen(1, "delayed", b"body 1", story.now_ms + 500, 0))


def a_later_put_of_a_piece_happened_and_an_earlier_one_not(story: Story) -> None:
    for number in (1, 2, 3):
        story.ask("put", body=b"body %d" % number, batch=1)
    story.stop("power")
    story.look((1, "ready"), (3, "ready"))


def a_job_is_deleted_and_then_delivered_within_its_ttr(story: Story) -> None:
    story.put(1)
    reserve = story.ask("reserve", "b")
    story.now_ms += 50
    story.did("delete", 1)
    story.ok(reserve, story.now_ms, job_id=1, body=b"body 1")


def a_batch_holds_a_job_twice(story: Story) -> None:
    story.put(1)
    story.reserve(1, batch=1)
    story.now_ms += 200
    story.reserve(1, batch=1)


def a_batch_is_too_long(story: Story) -> None:
    for number in (1, 2, 3):
        story.put(number)
    for number in (1, 2, 3):
        story.reserve(number, batch="x", batch_max=2)


def a_job_comes_early(story: Story) -> None:
    story.put(1, delay_ms=100)
    story.now_ms += 97
    story.reserve(1)


def a_job_comes_late(story: Story) -> None:
    story.put(1, delay_ms=100)
    number = story.ask("reserve")
    story.ok(number, story.now_ms + 120, job_id=1, body=b"body 1")


def a_consumer_is_sent_away_though_a_job_is_ready(story: Story) -> None:
    story.put(1)
    number = story.ask("reserve", topics=["default"])
    story.fail(number, story.now_ms + 50, "TIMED_OUT")


def a_job_never_comes(story: Story) -> None:
    story.put(1, delay_ms=100)
    story.now_ms += 200
    story.note("drained", story.now_ms)


def a_delayed_job_stays_so(story: Story) -> None:
    story.put(1, delay_ms=100)
    story.now_ms += 200
    story.look((1, "delayed"))


def two_hold_one_job(story: Story) -> None:
    story.put(1)
    story.reserve(1)
    story.reserve(1, "b")


def a_kill_forgets_who_holds_a_job(story: Story) -> None:
    story.put(1)
    story.reserve(1)
    story.stop("kill")
    story.reserve(1, "b")


def one_who_does_not_hold_it_touches_a_job(story: Story) -> None:
    story.put(1)
    story.reserve(1)
    story.did("touch", 1, "b")


def the_holder_is_told_that_it_does_not_hold_the_job(story: Story) -> None:
    story.put(1)
    story.reserve(1)
    story.refused("touch", 1)


def an_acknowledged_bury_is_forgotten(story: Story) -> None:
    story.put(1)
    story.reserve(1)
    story.did("bury", 1)
    story.stop("power")
    story.look((1, "reserved"))


def a_state_that_never_was(story: Story) -> None:
    story.note("prefix", story.now_ms, sequence=1, digest="x", acked=0)
    story.note("recovered", story.now_ms, digest="y")


def a_state_from_before_the_acknowledged(story: Story) -> None:
    for sequence in range(4):
        story.note("prefix", story.now_ms, sequence=sequence, digest=f"{sequence}", acked=2)
    story.note("recovered", story.now_ms, digest="1")


def an_acknowledgement_after_a_failed_sync(story: Story) -> None:
    story.note("sync failed", story.now_ms)
    story.put(1)


def snapshot_and_log_differ(story: Story) -> None:
    story.note("same", story.now_ms, of="snapshot and log", left="x", right="y")


BAD: Final[tuple[tuple[str, Callable[[Story], None]], ...]] = (
    ("I1", an_acknowledged_put_is_missing),
    ("I1", a_ready_job_is_said_not_to_be_there),
    ("I2", a_deleted_job_is_there),
    ("I2", a_deleted_job_is_delivered),
    ("I2", a_job_is_deleted_and_then_delivered_within_its_ttr),
    ("I3", a_job_that_nobody_put),
    ("I3", a_job_that_nobody_put_is_delivered),
    ("I3", a_body_is_another),
    ("I3", an_unanswered_put_appears_only_after_the_second_start),
    ("I4", half_a_body_is_there),
    ("I4", a_refused_put_is_there),
    ("I4", half_a_release_happened),
    ("I5", a_later_put_of_a_piece_happened_and_an_earlier_one_not),
    ("I5", a_batch_holds_a_job_twice),
    ("I5", a_batch_is_too_long),
    ("I6", a_job_comes_early),
    ("I6", a_job_comes_late),
    ("I6", a_consumer_is_sent_away_though_a_job_is_ready),
    ("I6", a_job_never_comes),
    ("I8", a_delayed_job_stays_so),
    ("I7", two_hold_one_job),
    ("I7", a_kill_forgets_who_holds_a_job),
    ("I7", one_who_does_not_hold_it_touches_a_job),
    ("I7", the_holder_is_told_that_it_does_not_hold_the_job),
    ("I8", an_acknowledged_bury_is_forgotten),
    ("I8", a_state_that_never_was),
    ("I8", a_state_from_before_the_acknowledged),
    ("I9", an_acknowledgement_after_a_failed_sync),
    ("I10", snapshot_and_log_differ),
)


@pytest.mark.parametrize(
    ("invariant", "told"), BAD, ids=lambda value: getattr(value, "__name__", value)
)
def test_what_may_not_happen_is_found(invariant: str, told: Callable[[Story], None]) -> None:
    story = Story()
    told(story)
    assert judged(story) == [invariant]


def test_every_invariant_is_broken_by_some_history() -> None:
    assert {invariant for invariant, _ in BAD} == {f"I{number}" for number in range(1, 11)}


# --- What a power cut may take where not every reply waits for the disk --------------------------


def lossy(story: Story, *survivors: int) -> None:
    for number in range(1, 6):
        story.put(number)
        story.now_ms += 20
    story.stop("power")
    story.look(*((number, "ready") for number in survivors))


def test_with_an_interval_the_last_puts_may_be_lost_and_no_others() -> None:
    for survivors, expected in (
        ((1, 2, 3, 4, 5), []),
        ((1, 2, 3, 4), []),
        ((1, 2, 3), []),
        ((1, 2), ["I1"]),
    ):
        story = Story()
        lossy(story, *survivors)
        assert judged(story, loss_ms=50) == expected, survivors


def test_with_no_syncs_any_prefix_may_be_left_and_nothing_else() -> None:
    for survivors, expected in (((), []), ((1, 2), []), ((2, 3), ["I8"]), ((1, 3), ["I8"])):
        story = Story()
        lossy(story, *survivors)
        assert judged(story, loss_ms=float("inf")) == expected, survivors


# --- The log ------------------------------------------------------------------------------------


def test_a_log_is_read_as_it_was_written_up_to_the_line_that_was_cut() -> None:
    story = Story()
    the_whole_life(story)
    assert isinstance(story._sink, io.StringIO)
    lines = story._sink.getvalue()
    entries = read_entries(io.StringIO(lines))
    assert len(entries) == len(story.entries)
    assert violations(entries, late_ms_max=LATE_MS) == []
    assert read_entries(io.StringIO(lines[:-5])) == entries[:-1]


def test_logs_are_merged_in_the_order_of_time_without_mixing_up_operations() -> None:
    first, second = Story(), Story()
    first.put(1)
    second.now_ms += 1
    second.reserve(1, "b")
    entries = merged(first.entries, second.entries)
    assert [entry[0] for entry in entries] == ["invoke", "invoke", "ok", "ok"]
    assert len({entry[1] for entry in entries}) == 2
    assert violations(entries) == []


def test_a_history_without_one_of_its_operations_is_another() -> None:
    story = Story()
    the_whole_life(story)
    numbers = sorted({entry[1] for entry in story.entries} - {0})
    caught = []
    for number in numbers:
        left = [entry for entry in story.entries if entry[1] != number]
        caught.append(bool(violations(left, late_ms_max=LATE_MS)))
    # A refusal, a touch, and what the next operation makes good do not show.
    assert caught.count(False) <= 5
