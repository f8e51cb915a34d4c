"""What schedules promise, told as it happens: runs, stops, overlaps, clocks that are set."""

import pytest

from delayd.core.operations.put import Outcome
from delayd.core.operations.topics import set_policy
from delayd.core.policy import Policy
from delayd.core.times import RequestMs
from delayd.moments import moment_text
from delayd.schedules import definition, runner
from delayd.schedules.book import Book
from delayd.schedules.definition import Definition
from delayd.schedules.progress import ScheduleState
from delayd.schedules.schedules import Change
from tests.schedules.rig import DAY, HOUR, MINUTE, START, ScheduleRig, refusal_of

NEW_YORK = {"cron": "30 2 * * *", "timezone": "America/New_York"}


def keys(*times: str) -> list[str]:
    return [f"s@2026-11-{time}Z" for time in times]


def test_each_run_is_one_job_under_its_nominal_time() -> None:
    rig = ScheduleRig()
    assert rig.set(**NEW_YORK) is Change.CREATED
    assert rig.next(count=2) == ["2026-11-22T07:30:00.000Z", "2026-11-23T07:30:00.000Z"]
    rig.pass_time(12 * HOUR + 30 * MINUTE - 1)
    assert rig.take() == []
    rig.pass_time(1)
    assert rig.work() == keys("22T07:30:00")
    rig.pass_time(2 * DAY)
    assert sorted(rig.work()) == keys("23T07:30:00", "24T07:30:00")
    progress = rig.progress()
    assert (progress.runs, progress.missed, progress.late, progress.outcome) == (3, 0, 0, "done")
    rig.agree_with_the_log()


@pytest.mark.parametrize(
    ("missed", "window", "made_up", "count"),
    [
        ("latest", None, ["22T22:00:00"], 26),
        ("latest", "30m", ["22T22:00:00"], 26),
        ("latest", "1m", [], 27),
        ("none", None, [], 27),
        ("all", "150m", ["22T20:00:00", "22T21:00:00", "22T22:00:00"], 24),
    ],
)
def test_runs_that_were_missed_while_the_daemon_was_down(
    missed: str, window: str | None, made_up: list[str], count: int
) -> None:
    rig = ScheduleRig()
    rig.set(every="1h", missed=missed, window=window)
    rig.restart(down_ms=DAY + 3 * HOUR + 5 * MINUTE)
    assert sorted(rig.work()) == keys(*made_up)
    progress = rig.progress()
    assert (progress.missed, progress.late) == (count, len(made_up))
    assert progress.missed_ms == (rig.schedules.runner.wall_ms if count else 0)
    rig.pass_time(HOUR)
    assert rig.work() == keys("22T23:00:00"), "it goes on by its clock"
    rig.agree_with_the_log()


def test_at_most_a_hundred_are_made_up_and_a_short_stop_misses_none() -> None:
    rig = ScheduleRig()
    rig.set(every="1m", missed="all")
    rig.set("short", every="1h", missed="none")
    rig.restart(down_ms=5 * HOUR + 50_000)
    runs = rig.work()
    assert len(runs) == 101
    assert "short@2026-11-22T00:00:00Z" in runs, "50 s late is not missed"
    assert rig.progress().missed == 200
    assert rig.progress("short").missed == 4


def test_a_run_under_way_stays_so_in_another_topic_and_none_waits_less_in_a_pause() -> None:
    rig = ScheduleRig()
    rig.set(every="1h", overlap="queue_one")
    rig.pass_time(HOUR)
    first = rig.take()
    rig.set(every="1h", overlap="queue_one", topic="other")
    assert rig.progress().outcome == "running"
    rig.pass_time(HOUR)
    assert rig.progress().queued_ms, "it waits for the one in the topic before"
    rig.schedules.pause("s", "", rig.now_ms)
    rig.finish(first)
    assert (rig.progress().runs, rig.progress().outcome) == (1, "done")
    rig.engine.draining = True
    assert refusal_of(lambda: rig.schedules.resume("s", rig.now_ms)).startswith("this daemon is dr")
    rig.engine.draining = False
    assert (rig.progress().state, rig.progress().runs) == (ScheduleState.PAUSED, 1), (
        "all or nothing"
    )
    rig.schedules.resume("s", rig.now_ms)
    rig.schedules.resume("s", rig.now_ms)
    assert (rig.progress().runs, rig.progress().late) == (2, 0)
    rig.agree_with_the_log()


def test_a_run_that_waits_is_put_when_the_one_before_is_dead() -> None:
    rig = ScheduleRig()
    rig.set(every="1h", overlap="queue_one")
    rig.pass_time(HOUR)
    ((job_id, _),) = rig.take()
    rig.pass_time(HOUR)
    rig.bury(rig.worker, job_id)
    rig.pass_time(0)
    assert rig.work() == keys("21T21:00:00")
    rig.pass_time(HOUR)
    assert rig.progress().outcome == "running"
    rig.clear("mail")
    rig.pass_time(0)
    assert rig.progress().outcome == "cancelled"
    rig.agree_with_the_log()


def test_nothing_waits_in_a_schedule_that_is_over() -> None:
    rig = ScheduleRig()
    rig.set(every="1h", overlap="queue_one", limit=3, end="2026-11-21T21:00:00Z")
    rig.pass_time(HOUR)
    first = rig.take()
    rig.pass_time(5 * HOUR)
    assert (rig.next(), rig.progress().state) == ([], ScheduleState.ACTIVE), "one waits"
    rig.finish(first)
    assert rig.work() == keys("21T21:00:00")
    assert (rig.progress().state, rig.progress().queued_ms) == (ScheduleState.OVER, 0)

    rig.set("two", every="1h", overlap="queue_one", limit=2)
    rig.pass_time(2 * HOUR)
    former = rig.progress("two")
    assert former.queued_ms
    rig.schedules.run_now("two", rig.now_ms)
    over = rig.progress("two")
    seen = (over.state, over.runs, over.queued_ms, over.skipped)
    assert seen == (ScheduleState.OVER, 2, 0, former.skipped + 1)
    assert len(rig.work()) == 2
    assert rig.work() == []

    schedule = rig.schedules.load("two")
    schedule.progress.queued_ms = former.queued_ms  # as older versions have left it
    rig.schedules.book.keep(schedule, rig.now_ms)
    rig.restart()
    assert rig.work() == []
    assert (rig.progress("two").runs, rig.progress("two").queued_ms) == (2, 0)
    rig.agree_with_the_log()


def test_a_queued_run_that_takes_the_last_of_a_limit_plans_no_other() -> None:
    rig = ScheduleRig()
    rig.set(every="1h", overlap="queue_one", limit=2)
    rig.pass_time(2 * HOUR)
    assert [rig.work(), rig.work()] == [keys("21T20:00:00"), keys("21T21:00:00")]
    assert (rig.progress().state, rig.next()) == (ScheduleState.OVER, [])


@pytest.mark.parametrize(
    ("ends_after_ms", "put", "missed"),
    [(HOUR + 5 * MINUTE, "21:00:00", 0), (HOUR + 5 * MINUTE + 1, "", 1), (4 * HOUR, "00:00:00", 3)],
)
def test_a_run_that_waited_for_longer_than_its_window_is_missed(
    ends_after_ms: int, put: str, missed: int
) -> None:
    rig = ScheduleRig()
    rig.set(every="1h", overlap="queue_one", window="5m")
    rig.pass_time(HOUR)
    first = rig.take()
    rig.pass_time(ends_after_ms)
    rig.finish(first)
    assert [key[-9:-1] for key in rig.work()] == [put] * bool(put)
    assert (rig.progress().missed, rig.progress().queued_ms) == (missed, 0)
    rig.agree_with_the_log()


def test_limit_end_pause_and_removal() -> None:
    rig = ScheduleRig()
    rig.set("two", every="1h", limit=2)
    rig.set("ends", every="1h", end="2026-11-21T20:30:00Z")
    rig.set("paused", every="1h")
    rig.set("gone", every="1h")
    rig.schedules.pause("paused", "while we move", rig.now_ms)
    rig.schedules.remove("gone", rig.now_ms)
    rig.pass_time(5 * HOUR)
    assert sorted(rig.work()) == [
        "ends@2026-11-21T20:00:00Z",
        "two@2026-11-21T20:00:00Z",
        "two@2026-11-21T21:00:00Z",
    ]
    assert rig.next("two") == rig.next("ends") == rig.next("paused") == []
    assert rig.progress("paused").note == "while we move"
    rig.schedules.resume("paused", rig.now_ms)
    rig.pass_time(HOUR)
    assert rig.work() == ["paused@2026-11-22T01:00:00Z"], "none is made up for"
    assert rig.progress("paused").missed == 0
    assert refusal_of(lambda: rig.schedules.run_now("two", rig.now_ms)) == (
        "schedule 'two' is over: it has had as many runs as its limit allows"
    )
    assert refusal_of(lambda: rig.set("two", every="1h", limit=1)) == (
        "the schedule is not valid: limit = 1: leaves no run: there were 2"
    )
    assert refusal_of(lambda: rig.schedules.load("gone")) == "there is no schedule 'gone'"
    rig.agree_with_the_log()


def test_run_now_and_runs_of_a_past_range() -> None:
    rig = ScheduleRig()
    rig.set(cron="0 * * * *")
    rig.pass_time(90_000)
    for outcome in (Outcome.CREATED, Outcome.KEPT):  # in the same millisecond
        assert rig.schedules.run_now("s", rig.now_ms) == (2, "s@2026-11-21T19:01:30Z", outcome)
    rig.pass_time(3 * HOUR)
    rig.take()
    work = rig.schedules.backfill("s", START - 2 * HOUR, START + 4 * HOUR - HOUR)
    while not work.step(1, rig.now_ms):
        pass
    assert (work.put, work.kept) == (3, 3), "those under way are left alone"
    assert rig.progress().runs == 4
    rig.set("e", every="1h")
    until_ms = rig.progress("e").created_ms
    assert rig.schedules.backfill("e", START, until_ms).step(9, rig.now_ms), "none was due yet"
    assert rig.schedules.load("e").progress.runs == 0
    assert refusal_of(lambda: rig.schedules.backfill("s", 0, START)) == (
        'the schedule is not valid: until = "2026-11-21T19:00:00.000Z": leaves 498692 runs since'
        " from, more than 1000 at once"
    )
    rig.agree_with_the_log()


def test_a_refused_run_is_counted_and_the_next_one_comes() -> None:
    rig = ScheduleRig()
    rig.set(every="1h")
    set_policy(rig.engine, "mail", Policy(jobs_max=1), RequestMs(rig.now_ms))
    rig.put("mail")
    rig.pass_time(HOUR)
    progress = rig.progress()
    assert (progress.refused, progress.outcome) == (1, "refused")
    assert progress.error == "jobs_max of topic 'mail' is 1 and 1 are in use"
    assert rig.lines == [f"a run of the schedule 's' was refused: {progress.error}"]
    rig.delete(rig.worker, *rig.reserve_all(rig.worker))
    rig.pass_time(HOUR)
    assert rig.work() == keys("21T21:00:00")


def test_a_draining_daemon_and_a_full_log_put_it_off() -> None:
    rig = ScheduleRig()
    rig.set(every="1h")
    rig.engine.draining = True
    rig.pass_time(HOUR + 10_000)
    rig.engine.draining = False
    rig.pass_time(1_000)
    assert rig.work() == keys("21T20:00:00")
    rig.engine.log_space.limit(0, lambda _missing, _body, _places: -1)
    rig.pass_time(HOUR)
    assert rig.take() == []
    rig.engine.log_space.limit(1 << 30, lambda _missing, _body, _places: -1)
    rig.pass_time(1_000)
    assert rig.work() == keys("21T21:00:00")
    assert rig.progress().missed == 0
    rig.agree_with_the_log()


def test_a_wall_clock_that_is_set_runs_nothing_twice_and_loses_nothing() -> None:
    rig = ScheduleRig()
    rig.set(every="1h")
    rig.pass_time(2 * HOUR)
    assert rig.work() == keys("21T20:00:00", "21T21:00:00")
    rig.set_wall_by(-2 * HOUR)
    rig.pass_time(2 * HOUR)
    assert rig.work() == [], "these were run"
    rig.pass_time(HOUR)
    assert rig.work() == keys("21T22:00:00")
    rig.set_wall_by(365 * DAY)
    assert len(rig.work()) == 1, "the latest of a year"
    rig.set_wall_by(-365 * DAY)
    rig.pass_time(2 * HOUR)
    assert rig.work() == keys("21T23:00:00", "22T00:00:00"), "the clock was wrong, these are new"
    rig.agree_with_the_log()


def test_a_preview_of_a_change_goes_by_what_there_is() -> None:
    rig = ScheduleRig()
    rig.set(every="1h", limit=5)
    rig.pass_time(3 * HOUR + MINUTE)
    changed, _ = Definition.from_fields({"topic": "mail", "every": "2h", "limit": 5, "body": 1})
    shown = [*map(moment_text, rig.schedules.preview("s", changed, 9))]
    assert shown == ["2026-11-21T23:00:00.000Z", "2026-11-22T01:00:00.000Z"]
    assert len(rig.schedules.preview("another", changed, 9)) == 5
    assert rig.schedules.load("s").definition.every_ms == HOUR, "nothing has changed"


def test_jitter_puts_every_run_off_by_the_same() -> None:
    rig = ScheduleRig()
    for number in range(20):
        rig.set(f"n{number}", every="1h", jitter="10m")
    rig.pass_time(HOUR - 1)
    assert rig.take() == []
    rig.pass_time(10 * MINUTE)
    assert len(rig.work()) == 20
    offsets = {rig.next(f"n{number}")[0] for number in range(20)}
    assert len(offsets) > 15
    assert rig.progress("n1").late == 0


def test_what_is_no_schedule_is_buried_in_the_daemons_topic() -> None:
    rig = ScheduleRig()
    rig.engine.acts_as_daemon = True  # as clients of an older delayd could
    rig.put("$schedules", body=b"hello")
    rig.engine.acts_as_daemon = False
    rig.set(every="1h")
    rig.pass_time(HOUR)
    assert rig.work() == keys("21T20:00:00")
    assert rig.view_topic("$schedules").buried == 1


def test_a_schedule_may_have_the_longest_body_and_is_read_once() -> None:
    rig = ScheduleRig()
    rig.set(every="1m", body="x" * (rig.engine.body_bytes_max - len('""')))
    rig.play(rig.time_ms + 1_000)
    rig.schedules.run_now("s", rig.now_ms)  # its job is written down again, in the same bucket
    book = Book(rig.engine)
    assert [schedule.name for schedule in book.read()] == ["s"]
    assert book.totals.schedules == 1


def no_recurrence(**_what: object) -> None:
    raise ValueError("there is no such time zone")


def test_a_time_zone_that_is_gone_ends_its_schedules_until_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = ScheduleRig()
    rig.set(**NEW_YORK)
    with monkeypatch.context() as patch:
        patch.setattr(definition, "Recurrence", no_recurrence)
        rig.pass_time(DAY)
        progress = rig.progress()
        assert (progress.refused, progress.outcome, rig.next()) == (1, "refused", [])
        assert "timezone" in progress.error
    monkeypatch.setattr(runner, "tzdata_version", lambda: "another")
    rig.restart()
    assert rig.work() == keys("22T07:30:00"), "it is made up for"
    assert rig.next() == ["2026-11-23T07:30:00.000Z"]


def test_a_clock_that_is_far_ahead_is_no_long_count() -> None:
    rig = ScheduleRig()
    rig.set(cron="* * * * *", timezone="America/New_York")
    rig.set_wall_by(7_900 * 365 * DAY)
    assert len(rig.work()) == 1
    assert 5_000_000 < rig.progress().missed < 5_300_000, "ten years are counted"


def test_ten_thousand_at_one_instant_are_spread_over_turns() -> None:
    rig = ScheduleRig()
    for number in range(300):
        rig.set(f"n{number}", every="1h")
    rig.put("other", delay_ms=HOUR)
    slices = rig.run(START + HOUR)
    assert slices >= 300 // 4, "others have their turn between them"
    assert len(rig.take()) == 300
