"""Idempotency-Key: restarts, full disks, very many keys, and memos that are none."""

import hashlib
import json
import random
from typing import Any

import pytest

from delayd.core.engine import Engine
from delayd.core.operations.checks import as_daemon
from delayd.core.operations.put import Conflict, put_keyed
from delayd.core.operations.topics import pause
from delayd.core.replay import Replay
from delayd.core.times import PlayedMs
from delayd.http.idempotency import TOPIC, Memos
from delayd.limits import IDEMPOTENCY_KEY_BYTES_MAX, IDEMPOTENCY_MS
from tests.rigs.clock import START_MS
from tests.rigs.http import JOBS, Answer, HttpRig


def put(rig: HttpRig, key: str = "a", **fields: object) -> Answer:
    """Put a job that is due when its key is long forgotten."""
    given = {"body": 1, "delay": "7d", **fields}
    return rig.call("POST", JOBS, given, headers={"Idempotency-Key": key})


def topics(rig: HttpRig) -> set[str]:
    return {*rig.engine.store.topics.by_name} - {"default"}


def jobs_of(engine: Engine, name: str) -> int:
    topic = engine.store.topics.by_name.get(name)
    return 0 if topic is None else topic.jobs


def test_the_longest_key_is_one_and_a_longer_one_is_none(rig: HttpRig) -> None:
    longest = "x" * IDEMPOTENCY_KEY_BYTES_MAX
    assert put(rig, longest).json == put(rig, longest).json
    answer = put(rig, longest + "x")
    assert (answer.status, answer.fields) == (422, ["Idempotency-Key"])


@pytest.mark.thorough
def test_where_the_disk_is_full_both_are_put_or_neither() -> None:
    for free_bytes in range(0, 2_000, 50):
        with HttpRig() as rig:
            rig.engine.log_space.limit(64 * 1_024 + free_bytes, lambda *_: -1)
            is_put = put(rig).status == 201
            for engine in (rig.engine, rig.after_restart()):
                jobs = jobs_of(engine, "mail"), jobs_of(engine, TOPIC)
                assert jobs == ((1, 1) if is_put else (0, 0))
            assert topics(rig) == ({"mail", TOPIC} if is_put else set())


def test_what_was_put_before_a_crash_is_remembered_after_it() -> None:
    with HttpRig() as rig:
        for number in range(5):
            put(rig, f"{number}", body=number)
        told = put(rig, "3", body=3).json
        frames = rig.disk.frames
        assert len(frames) == 5, "job and memo are in one commit"
    with HttpRig() as later:
        replay = Replay(later.engine)
        for frame in frames:
            replay.play(frame)
        replay.finish(PlayedMs(START_MS))
        later.api.memos.begin(later.api.now_ms())  # as at the start
        assert put(later, "3", body=3).json == told
        assert put(later, "3", body=4).status == 422
        assert put(later, "9").json["id"] > told["id"]
        later.pass_ms(IDEMPOTENCY_MS + 10)
        assert jobs_of(later.engine, TOPIC) == 0
        assert jobs_of(later.engine, "mail") == 6


@pytest.mark.thorough
def test_very_many_keys_are_forgotten_in_slices() -> None:
    with HttpRig(is_checked=False) as rig:
        for number in range(1_500):
            put(rig, f"{number}")
            if number == 700:
                rig.pass_ms(5_000)
        assert jobs_of(rig.engine, TOPIC) == 1_500
        rig.pass_ms(IDEMPOTENCY_MS - 5_000 + 10)
        assert jobs_of(rig.engine, TOPIC) == 1_500 - 701
        rig.pass_ms(5_000)
        assert topics(rig) == {"mail"}
        assert rig.after_restart().log_space.jobs == 1_500


def test_nobody_is_waited_for_where_there_is_nothing(rig: HttpRig) -> None:
    Memos(rig.engine, keys_max=1).begin(rig.api.now_ms())
    assert topics(rig) == set()


def test_what_is_no_memo_breaks_nothing(rig: HttpRig, rng: random.Random) -> None:
    """Clients of older daemons could put anything in the place of one."""
    put(rig)
    (memo,) = rig.ok("GET", f"/v1/topics/{TOPIC}/jobs?bodies=true")["jobs"]
    key = hashlib.sha256(b"everybody\0\0mail\0a").hexdigest()
    assert memo["key"] == key
    said: dict[str, Any] = memo["body"]
    wrong = [json.dumps({**said, "job": job_id}).encode() for job_id in (-1, 0, 2**64)]
    for body in (
        *(b"1", b'{"job": "x", "request": 7}', b'{"job": 0, "request": ""}'),
        *(b'{"job": -1, "request": ""}', b"{}", b"\xff", b"", rng.randbytes(9), *wrong),
    ):
        with as_daemon(rig.engine):
            put_keyed(
                rig.engine,
                rig.engine.store.topics.by_name[TOPIC],
                key.encode(),
                Conflict.REPLACE,
                priority=0,
                delay_ms=3_600_000,
                ttr_ms=60_000,
                body=body,
                now_ms=rig.api.now_ms(),
            )
        answer = put(rig)
        assert (answer.status, answer.word) == (422, "IDEMPOTENCY_KEY_REUSED"), body


def test_a_memo_that_is_due_and_still_there_is_one_all_the_same(rig: HttpRig) -> None:
    job_id = put(rig).json["id"]
    (memo_id,) = rig.engine.store.topics.by_name[TOPIC].queues.delays.wheel.soonest(1)
    assert memo_id > job_id, "a crash between them would promise a job that is not there"
    with as_daemon(rig.engine):
        pause(rig.engine, TOPIC, 2 * IDEMPOTENCY_MS, rig.api.now_ms())
    rig.pass_ms(IDEMPOTENCY_MS + 10)
    assert put(rig).json["id"] == 1
    rig.pass_ms(IDEMPOTENCY_MS + 10)
    assert TOPIC not in topics(rig)
