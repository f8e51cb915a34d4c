"""How late delays end, how long jobs wait for somebody, and how often what happens."""

from bisect import bisect_right

import pytest

from delayd.core.operations.put import put_alike
from delayd.core.operations.reserve import reserve, reserve_batch
from delayd.core.operations.sessions import ignore, watch
from delayd.core.operations.tick import advance, caught_up, reach
from delayd.core.operations.topics import clear
from delayd.core.operations.waiting import wait
from delayd.core.policy import Policy
from delayd.core.stats.counters import Operation
from delayd.core.stats.figures import daemon_operations, topic_operations
from delayd.core.stats.histogram import new_histogram, note_run, quantile_ms, span, sum_ms
from delayd.core.times import PlayedMs, RequestMs
from delayd.limits import LATENESS_BOUNDS_MS
from tests.rigs.engine import EngineRig

START_MS = 1_000_000


@pytest.fixture
def rig() -> EngineRig:
    return EngineRig(time_ms=START_MS)


def put(rig: EngineRig, jobs: int = 1, delay_ms: int = 0, ttr_ms: int = 60_000) -> None:
    rig.put_alike([b""] * jobs, delay_ms=delay_ms, ttr_ms=ttr_ms)


def bucket(waited_ms: int) -> int:
    return bisect_right(LATENESS_BOUNDS_MS, waited_ms)


def expect(histogram: list[int], waited_ms: dict[int, int]) -> None:
    """The histogram has counted exactly these: how long → how many."""
    expected = new_histogram()
    for waited, jobs in waited_ms.items():
        expected[bucket(waited)] += jobs
        expected[-1] += waited * jobs
    assert histogram == expected


# --- Histograms ----------------------------------------------------------------------------------


def test_a_bucket_holds_nothing_that_took_longer_than_its_bound() -> None:
    for place, bound_ms in enumerate(LATENESS_BOUNDS_MS):
        histogram = new_histogram()
        # The millisecond that has begun: it took up to one more than that.
        note_run(histogram, bound_ms - 1, bound_ms - 1, 1)
        note_run(histogram, bound_ms, bound_ms, 1)
        assert (histogram[place], histogram[place + 1]) == (1, 1)


def test_a_span_is_one_bucket_and_one_slot() -> None:
    time_ms = 50_000_000
    for waited_ms in (0, 1, 2, 7, 499, 500, 86_400_000 // 2):
        since_ms = time_ms - waited_ms
        low_ms, high_ms = span(since_ms, time_ms, 7)
        assert low_ms <= since_ms < high_ms
        for each_ms in (low_ms, high_ms - 1):
            assert bucket(time_ms - each_ms) == bucket(waited_ms)
            assert each_ms >> 7 == since_ms >> 7
        for each_ms in (low_ms - 1, high_ms):
            is_other_bucket = bucket(time_ms - each_ms) != bucket(waited_ms)
            assert is_other_bucket or each_ms >> 7 != since_ms >> 7


def test_quantiles_lie_within_their_bucket() -> None:
    histogram = new_histogram()
    assert quantile_ms(histogram, 0.5) is None
    note_run(histogram, 3, 3, 90)
    note_run(histogram, 700, 700, 10)
    assert 2 < (quantile_ms(histogram, 0.5) or 0) <= 5
    assert 500 < (quantile_ms(histogram, 0.99) or 0) <= 1_000
    note_run(histogram, 10**9, 10**9, 1_000)
    assert quantile_ms(histogram, 0.99) == LATENESS_BOUNDS_MS[-1]


# --- Due to ready, ready to reserved -------------------------------------------------------------


def test_what_fires_late_is_counted_by_how_late_it_is(rig: EngineRig) -> None:
    for delay_ms in (1_000, 1_900, 1_990, 2_000):
        put(rig, jobs=2, delay_ms=delay_ms)
    while advance(rig.engine, PlayedMs(START_MS + 2_000)):
        pass
    expect(rig.topic().overdue, {1_000: 2, 100: 2, 10: 2, 0: 2})


def test_a_job_that_is_asked_for_before_its_slice_comes_is_counted_once(rig: EngineRig) -> None:
    put(rig, delay_ms=1_000)
    reach(rig.engine, PlayedMs(START_MS + 1_030))
    caught_up(rig.engine, 1, RequestMs(START_MS + 1_030))
    while advance(rig.engine, PlayedMs(START_MS + 1_030)):
        pass
    expect(rig.topic().overdue, {30: 1})


@pytest.mark.parametrize("batch", [1, 7, 1_000])
def test_how_long_jobs_waited_does_not_depend_on_how_they_are_reserved(
    rig: EngineRig, batch: int
) -> None:
    session = rig.client()
    waited_ms = {0: 3, 40: 20, 90: 20, 300: 5, 7_000: 50}
    for waited in sorted(waited_ms, reverse=True):
        rig.play(START_MS + 7_000 - waited)
        put(rig, jobs=waited_ms[waited])
    taken = 0
    while jobs := (
        reserve_batch(rig.engine, session, batch, 10**9, rig.now_ms)
        if batch > 1
        else [job for job in (reserve(rig.engine, session, rig.now_ms),) if job]
    ):
        taken += len(jobs)
    assert taken == sum(waited_ms.values()) == rig.topic().reserves
    expect(rig.topic().waited, waited_ms)


def test_who_waits_for_a_job_gets_it_at_once() -> None:
    rig = EngineRig(time_ms=START_MS, skew_ms=1)
    session = rig.client()
    wait(rig.engine, session, rig.now_ms, None)
    put(rig)
    expect(rig.topic().waited, {0: 1})


def test_a_job_that_came_back_waits_anew(rig: EngineRig) -> None:
    session = rig.client()
    put(rig, ttr_ms=5_000)
    reserve(rig.engine, session, rig.now_ms)
    rig.play(START_MS + 5_200)
    reserve_batch(rig.engine, session, 1, 100, rig.now_ms)
    rig.release(session, 1)
    rig.play(START_MS + 5_300)
    rig.reserve_job(session, 1)
    expect(rig.topic().waited, {0: 1, 200: 1, 100: 1})


def test_nothing_is_counted_that_a_replay_repeats(rig: EngineRig) -> None:
    session = rig.client()
    put(rig, jobs=5, delay_ms=1_000)
    rig.play(START_MS + 3_000)
    reserve_batch(rig.engine, session, 2, 100, rig.now_ms)
    rig.touch(session, 1)
    rig.restart()
    topic, counters = rig.topic(), rig.engine.store.counters
    assert (topic.jobs_put, topic.reserves, topic.deletes) == (0, 0, 0)
    assert not any((*topic.overdue, *topic.waited, *topic.operations, *counters.operations))
    assert (counters.reserves, counters.deletes, rig.engine.store.counters.jobs_put) == (0, 0, 0)


# --- Operations ----------------------------------------------------------------------------------


def test_every_operation_is_counted(rig: EngineRig) -> None:
    engine, session = rig.engine, rig.client()
    topic = rig.topic()
    put(rig, jobs=9, ttr_ms=1_000)
    reserve_batch(engine, session, 8, 100, rig.now_ms)
    rig.delete(session, 1)
    rig.release(session, 2)
    rig.nack(session, 3)
    rig.bury(session, 4)
    rig.kick_job(4)
    rig.touch(session, 5)
    rig.reschedule(9, 5_000)
    rig.change(9, priority=3)
    rig.pause("default", 0)
    rig.play(rig.time_ms + 1_000)
    other = rig.client()
    reserve(engine, other, rig.now_ms)
    rig.close(other)
    clear(engine, topic)
    expected = {
        **dict.fromkeys(("release", "nack", "bury", "kick", "touch", "return", "change"), 1),
        "reschedule": 1,
        "pause": 1,
        "timeout": 4,
        "clear": 8,
        "put": 9,
        "reserve": 9,
        "delete": 1,
    }
    assert topic_operations(topic) == daemon_operations(engine) == expected
    assert set(topic_operations(engine.store.topic("sms")).values()) == {0}


def test_what_fails_under_a_rule_is_counted_by_what_it_was(rig: EngineRig) -> None:
    engine, session = rig.engine, rig.client()
    rig.set_policy("default", Policy.from_json(b'{"max_attempts": 100}'))
    put(rig, jobs=4, ttr_ms=1_000)
    reserve_batch(engine, session, 4, 100, rig.now_ms)
    rig.release(session, 1)
    rig.bury(session, 2)
    rig.play(rig.time_ms + 999)
    rig.reserve_job(session, 1)
    rig.play(rig.time_ms + 1)
    rig.close(session)
    counted = rig.topic().operations
    assert counted[Operation.RELEASE] == counted[Operation.BURY] == counted[Operation.RETURN] == 1
    assert counted[Operation.TIMEOUT] == 2


def test_counters_over_all_topics_outlive_them(rig: EngineRig) -> None:
    session = rig.client()
    watch(rig.engine, session, "brief")
    topic = rig.topic("brief")
    put_alike(rig.engine, topic, 0, 0, 1_000, [b""] * 3, rig.now_ms)
    jobs = reserve_batch(rig.engine, session, 3, 100, rig.now_ms)
    rig.touch(session, jobs[0][0])
    rig.delete_batch(session, [job_id for job_id, _ in jobs])
    ignore(rig.engine, session, "brief")
    assert "brief" not in rig.engine.store.topics.by_name
    counters = rig.engine.store.counters
    counted = (rig.engine.store.counters.jobs_put, counters.reserves, counters.deletes)
    assert (*counted, counters.operations[Operation.TOUCH]) == (3, 3, 3, 1)


def test_the_mean_and_the_median_of_what_takes_less_than_a_millisecond_agree() -> None:
    took = new_histogram()
    note_run(took, first_ms=0, last_ms=0, jobs=95)
    note_run(took, first_ms=1, last_ms=1, jobs=5)
    assert sum_ms(took) / 100 == pytest.approx(0.55)
    assert quantile_ms(took, 0.5) == pytest.approx(0.526, abs=0.001)
