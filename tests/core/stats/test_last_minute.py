"""Rates, failures and lateness of the last minute."""

from collections.abc import Callable, Iterator

import pytest

from delayd.core.operations.reserve import reserve_batch
from delayd.core.operations.sessions import open_session
from delayd.core.policy import Policy
from delayd.core.session import Session
from delayd.core.stats.counters import counts_of
from delayd.core.stats.figures import daemon_rates, late_lately, topic_rates, window_ms
from delayd.core.stats.histogram import count_of, quantile_ms
from delayd.core.stats.last_minute import LastMinute
from delayd.core.times import RequestMs
from delayd.limits import RATE_CELL_MS, RATE_CELLS
from tests.rigs.engine import EngineRig

START_MS = 1_000_000


@pytest.fixture
def rig() -> EngineRig:
    return EngineRig(time_ms=START_MS)


def rates_of(rig: EngineRig, later_ms: int = 0) -> Iterator[tuple[float, ...]]:
    """Yield the rates of the topic and of the daemon, which has no other."""
    now_ms = RequestMs(rig.now_ms + later_ms)
    yield topic_rates(rig.engine, rig.topic(), now_ms)
    yield daemon_rates(rig.engine, now_ms)


def test_rates_are_those_of_the_last_minute(rig: EngineRig) -> None:
    session = open_session(rig.engine)
    for second in range(300):
        rig.play(START_MS + 1_000 * second)
        rig.put_many(10)
        for job_id, _ in reserve_batch(rig.engine, session, 5, 100, rig.now_ms):
            rig.delete(session, job_id)
    for rates in rates_of(rig):
        assert rates == pytest.approx((10, 5, 5, 0), rel=0.05)
    assert next(rates_of(rig, 30_000))[0] == pytest.approx(5, rel=0.1)
    assert next(rates_of(rig, 61_000)) == (0, 0, 0, 0)


def test_rates_soon_after_the_start_are_of_the_time_since_then(rig: EngineRig) -> None:
    rig.play(START_MS + 27_000)
    rig.put_many(2_700)
    assert [rates[0] for rates in rates_of(rig)] == pytest.approx([100, 100])
    assert topic_rates(rig.engine, rig.engine.store.topic("sms"), rig.now_ms) == (0, 0, 0, 0)
    assert window_ms(rig.engine, rig.now_ms) == 27_000
    rig.play(START_MS + 3_600_000)
    assert window_ms(rig.engine, rig.now_ms) == 60_000
    rig.restart()
    rig.play(rig.time_ms + 4_000)
    assert window_ms(rig.engine, rig.now_ms) == 4_000


@pytest.mark.parametrize(
    "change",
    [
        lambda rig, me: rig.put(),
        lambda rig, me: rig.put_alike([b"a", b"b"]),
        lambda rig, me: rig.reserve(me),
        lambda rig, me: rig.reserve_all(me),
        lambda rig, me: rig.reserve_job(me, 4),
        lambda rig, me: rig.delete(me, 1),
        lambda rig, me: rig.delete(me, 4),
        lambda rig, me: rig.delete_batch(me, [1, 2]),
        lambda rig, me: rig.nack(me, 1),
    ],
)
def test_what_happens_when_a_cell_is_full_is_of_the_next(
    rig: EngineRig, change: Callable[[EngineRig, Session], object]
) -> None:
    me = rig.client()
    rig.put_many(4)
    assert [rig.reserve(me), rig.reserve(me)] == [1, 2]
    rig.play(START_MS + RATE_CELL_MS)
    assert rig.topic().roll_ms == rig.time_ms
    change(rig, me)
    assert rig.topic().roll_ms == rig.time_ms + RATE_CELL_MS


def test_the_cells_reach_over_the_minute() -> None:
    puts = LastMinute(counters=1)
    for cell in range(20):
        puts.begin(cell * RATE_CELL_MS, (cell * 100,))
    counted = puts.counted(20 * RATE_CELL_MS, (2_000,))[0]
    assert counted == pytest.approx(60_000 / RATE_CELL_MS * 100)
    assert RATE_CELLS * RATE_CELL_MS > 60_000 + RATE_CELL_MS


def test_what_comes_at_once_each_minute_is_the_same_for_the_topic_and_the_daemon(
    rig: EngineRig,
) -> None:
    for minute in range(3):
        begins_ms = START_MS + 60_000 * minute
        rig.play(begins_ms + 8_000)
        rig.put_many(600)
        rig.play(begins_ms + 60_000)  # nothing is counted then, but time goes on
    assert [rates[0] for rates in rates_of(rig, 8_000)] == pytest.approx([10, 10])


@pytest.mark.parametrize("rule", [None, '{"retry": "1h"}'])
def test_attempts_that_fail_long_after_the_last_put_are_of_the_last_minute(
    rig: EngineRig, rule: str | None
) -> None:
    if rule:
        rig.set_policy("mail", Policy.from_json(rule))
    session = rig.client("mail")
    nacked, _expired = rig.put("mail"), rig.put("mail", ttr_ms=300_000)
    rig.reserve(session)
    rig.reserve(session)
    rig.play(START_MS + 55_000)
    rig.nack(session, nacked, delay_ms=3_600_000)
    rig.play(START_MS + 100_000)
    assert topic_rates(rig.engine, rig.topic("mail"), rig.now_ms)[3] == pytest.approx(1 / 60)
    rig.play(START_MS + 340_000)
    topic, now_ms = rig.topic("mail"), rig.now_ms
    assert counts_of(topic)[3] == 2
    assert topic_rates(rig.engine, topic, now_ms)[3] == pytest.approx(1 / 60)
    assert daemon_rates(rig.engine, now_ms)[3] == pytest.approx(1 / 60)


def test_lateness_is_that_of_the_last_minute(rig: EngineRig) -> None:
    rig.put_many(100, delay_ms=1_000)
    rig.run(START_MS + 1_000 + 700)  # all of them late
    rig.play(START_MS + 120_000)
    rig.put_many(50, delay_ms=1_000)
    rig.play(START_MS + 125_000)
    topic = rig.topic()
    for of in (topic, rig.engine.store.counters):
        assert count_of(of.overdue) == 150
        late = late_lately(of, rig.now_ms)
        assert count_of(late) == pytest.approx(50)
        assert quantile_ms(late, 0.99) == pytest.approx(0.99)
        assert count_of(late_lately(of, rig.now_ms + 120_000)) == 0
    assert late_lately(rig.engine.store.topic("sms"), rig.now_ms) == []
