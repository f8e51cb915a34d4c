"""What a restart makes of the log: the same jobs, and nothing that the log does not say."""

import random
from collections.abc import Iterator
from itertools import pairwise

import pytest

from delayd.core.engine import Engine
from delayd.core.job_parts import key_of
from delayd.core.log_records import LAYOUTS, TAILED, Kind, UnknownRecord
from delayd.core.operations.put import Conflict, put_alike, put_keyed_run
from delayd.core.operations.tick import next_deadline
from delayd.core.replay import Replay
from tests.core import views
from tests.core.canonical import canonical
from tests.core.check import check
from tests.core.test_engine_walk import Scan
from tests.rigs.engine import TTR_MS, EngineRig, kinds_of

HOUR_MS = 3_600_000


def test_it_does_not_matter_how_the_log_is_cut_into_frames(rng: random.Random) -> None:
    walk = Scan(rng)
    for _ in range(200):
        walk.step()
    whole, singly = cut_otherwise(walk.rig)
    assert [*canonical(whole)] == [*canonical(singly)] == [*canonical(walk.rig.replayed())]


def cut_otherwise(rig: EngineRig) -> Iterator[Engine]:
    """Yield what a restart makes of the log in one frame, and with each record for itself."""
    rig.take_log()
    log, payload = rig.log, b"".join(rig.log)
    ends = record_ends(payload)
    for rig.log in ([payload], [payload[start:end] for start, end in pairwise([0, *ends])]):
        yield rig.replayed()
    rig.log = log


def record_ends(payload: bytes) -> list[int]:
    """Return where each record ends, found with nothing but the kinds' sizes."""
    ends = []
    at = 0
    for kind in kinds_of(payload):
        fields = LAYOUTS[kind].unpack_from(payload, at)
        at += LAYOUTS[kind].size + (fields[-1] if kind in TAILED else 0)
        ends.append(at)
    return ends


@pytest.mark.thorough
def test_a_payload_that_is_cut_inside_a_record_is_refused_at_every_byte(rig: EngineRig) -> None:
    me = rig.client("topic")
    rig.put_many(6, "topic", body=b"body")
    rig.reserve_all(me)
    rig.touch(me, 1)
    rig.release(me, 1, 0, 5)
    rig.reschedule(1, 9)
    rig.bury(me, 2)
    rig.kick_job(2)
    rig.delete(me, 3)
    rig.pause("topic", 1)
    rig.close(me)
    payload, _ = rig.take_log()
    ends = {0, *record_ends(payload)}
    assert len(payload) in ends
    for end in range(len(payload)):
        replay = Replay(Engine(start_ms=0))
        if end in ends:
            replay.play(payload[:end])
        else:
            with pytest.raises(UnknownRecord, match="cut short") as caught:
                replay.play(payload[:end])
            assert caught.value.offset == end


def test_puts_that_are_alike_are_played_as_a_run_and_lead_to_the_same_state(
    rng: random.Random,
) -> None:
    rig = EngineRig(time_ms=1000)
    me = rig.client("a")
    topics = [rig.engine.store.topic(name) for name in ("a", "b")]
    keys: list[bytes] = []
    for _ in range(60):
        if rng.random() < 0.3:
            rig.engine.store.last_id += 1  # an id that nothing came of
        topic = rng.choice(topics)
        numbers = rng.choice((0, 0, 0, 5)), rng.choice((0, HOUR_MS)), TTR_MS
        bodies = [b"x" * rng.choice((0, 3, 3, 70)) for _ in range(rng.choice((1, 2, 30)))]
        if rng.random() < 0.5:
            put_alike(rig.engine, topic, *numbers, bodies, rig.now_ms)
            continue
        new = [b"%d" % number for number in range(len(keys), len(keys) + len(bodies))]
        keys += new
        assert put_keyed_run(rig.engine, topic, *numbers, new, bodies, rig.now_ms)
        job_id = rig.reserve(me) if rng.random() < 0.5 else 0
        if job_id:
            # The key of a reserved job goes over to one that is put now; then one with a new key.
            taken = key_of(rig.engine.store.jobs.get(job_id) or b"")
            keys.append(b"%d" % len(keys))
            for key in filter(None, (taken, keys[-1])):
                rig.put_keyed(key, Conflict.REPLACE, topic="a")
    in_runs, singly = cut_otherwise(rig)
    check(in_runs)
    assert [*canonical(in_runs)] == [*canonical(singly)] == [*canonical(rig.engine)]
    assert next_deadline(in_runs) == next_deadline(singly)
    for job_id, record in views.live_jobs(in_runs.store):
        if key_of(record):
            assert (
                in_runs.store.keys.owner_of(in_runs.store.topic_of(record), key_of(record))
                == job_id
            )


def run_of_keyed_puts() -> bytes:
    """Return the log of five jobs that have keys and else are alike."""
    rig = EngineRig()
    names = [b"name-%d" % number for number in range(5)]
    put_keyed_run(
        rig.engine, rig.engine.store.topic("mail"), 0, 9, TTR_MS, names, [b"body"] * 5, rig.now_ms
    )
    return rig.take_log()[0]


def test_a_run_of_puts_that_is_cut_off_is_refused_at_every_byte() -> None:
    payload = run_of_keyed_puts()
    ends = {0, *record_ends(payload)}
    for end in set(range(len(payload))) - ends:
        replay = Replay(Engine(start_ms=0))
        with pytest.raises(UnknownRecord):
            replay.play(payload[:end])


def test_a_key_in_a_run_of_puts_that_is_longer_than_its_job_is_refused() -> None:
    payload = run_of_keyed_puts()
    start = record_ends(payload)[-3]
    length_at = payload.index(b"\x06name-", start)
    wrong = payload[:length_at] + b"\x0b" + payload[length_at + 1 :]
    with pytest.raises(UnknownRecord, match=f"byte {start} .* shorter than its parts"):
        Replay(Engine(start_ms=0)).play(wrong)


@pytest.mark.parametrize("kind", [0, max(Kind) + 1, 255])
def test_a_kind_from_another_time_is_refused_and_its_place_is_named(
    rig: EngineRig, kind: int
) -> None:
    rig.put()
    payload, _ = rig.take_log()
    with pytest.raises(UnknownRecord, match=f"byte {len(payload)} .* kind is {kind}"):
        Replay(Engine(start_ms=0)).play(payload + bytes((kind,)) + bytes(40))


def test_time_is_recorded_once_for_all_that_happens_in_a_turn(rig: EngineRig) -> None:
    rig.put()
    rig.put()
    assert kinds_of(rig.take_log()[0]) == [Kind.TURN, Kind.TOPIC, Kind.PUT, Kind.PUT]
    rig.put()
    assert kinds_of(rig.take_log()[0]) == [Kind.PUT]
    rig.run(1)
    rig.put()
    assert kinds_of(rig.take_log()[0]) == [Kind.TURN, Kind.PUT]


@pytest.mark.parametrize("leaps", [False, True])
def test_a_job_whose_ttr_ran_out_is_ready_since_then(rig: EngineRig, leaps: bool) -> None:
    rig.put("mail")
    rig.reserve(rig.client("mail"))
    (rig.run if leaps else rig.play)(rig.time_ms + HOUR_MS)
    rig.put("other")
    for engine in (rig.engine, rig.replayed()):
        assert engine.store.topics.by_name["mail"].queues.ready.ages.since == {1: TTR_MS}
