"""What an engine that does everything writes: payloads of a log, and snapshots beside it."""

import contextlib
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any, Final

from delayd.core.engine import Engine
from delayd.core.errors import JobAlreadyExists
from delayd.core.job_parts import Own, Retry
from delayd.core.operations.ack import delete
from delayd.core.operations.attempts import bury, fail_call, nack, release
from delayd.core.operations.change import change, kick_job, reschedule
from delayd.core.operations.push import reserve_call, take_fresh
from delayd.core.operations.put import Conflict, put_keyed
from delayd.core.operations.reserve import reserve_batch, touch
from delayd.core.operations.sessions import close_session, open_session, watch
from delayd.core.operations.tick import advance, leases_are_caught_up
from delayd.core.operations.topics import clear, pause, pause_group, set_policy
from delayd.core.operations.wall_clock import follow_wall
from delayd.core.policy import Policy
from delayd.core.snapshot_copy import SnapshotCopy
from delayd.core.targets import Target, pack_own
from delayd.core.times import PlayedMs, RequestMs
from delayd.journal.disk import Disk
from delayd.journal.journal import Journal
from tests.faults.parts import digest
from tests.journal.journals import DIRECTORY, opened
from tests.rigs.disk import SimulatedDisk
from tests.rigs.engine import kick, played, put

START_MS: Final = 1_700_000_000_000
SEED: Final = 3

Work = Callable[[Engine, random.Random], Iterator[None]]


def worked_on(engine: Engine, rng: random.Random) -> Iterator[None]:
    """Let jobs live, of all kinds and for ever; one turn after the other."""
    session = open_session(engine)
    now_ms = START_MS
    while True:
        now_ms += rng.randrange(50)
        while advance(engine, PlayedMs(now_ms)):
            pass
        topic = engine.store.topic(rng.choice(("default", "mail", "x.y")))
        for _ in range(rng.randrange(1, 4)):
            body = rng.randbytes(rng.choice((0, 20, 200, 900)))
            delay_ms = rng.choice((0, 0, 500, 86_400_000))
            times: dict[str, Any] = {"delay_ms": delay_ms, "ttr_ms": 60_000, "now_ms": now_ms}
            put(engine, topic, priority=rng.randrange(9), body=body, **times)
        if topic.name not in {watched.name for watched in session.watched}:
            watch(engine, session, topic.name)
        for job_id, _ in reserve_batch(
            engine, session, rng.randrange(3), 1 << 20, RequestMs(now_ms)
        ):
            roll = rng.randrange(5)
            if roll < 2:
                delete(engine, session, job_id, RequestMs(now_ms))
            elif roll == 2:
                release(engine, session, job_id, 3, rng.choice((0, 700)), RequestMs(now_ms))
            elif roll == 3:
                bury(engine, session, job_id, 7, RequestMs(engine.store.time_ms))
        kick(engine, topic, rng.randrange(2), RequestMs(now_ms))
        if rng.random() < 0.1:
            pause(engine, topic.name, rng.choice((0, 5_000)), RequestMs(now_ms))
        yield


def pushed_in_every_way(engine: Engine, rng: random.Random) -> Iterator[None]:
    """The same with targets and groups: each turn has jobs that are pushed, and not taken."""
    engine.vet_target = lambda target: target
    session = open_session(engine)
    for turn, _ in enumerate(worked_on_in_every_way(engine, rng)):
        now_ms = RequestMs(engine.store.time_ms)
        if turn == 0:
            push = Target(url="https://example.com/all", headers=(("X-Team", "mail"),))
            set_policy(engine, "out", Policy(push=push), now_ms)
        own = pack_own("PUT", f"https://example.com/{turn}?a=b", (("X-Turn", str(turn)),))
        what: dict[str, Any] = {"priority": 3, "ttr_ms": 60_000, "now_ms": now_ms}
        put(engine, engine.store.topic("own"), body=b"own target", target=own, **what)
        put(engine, engine.store.topic("out"), body=b"the topic's target", **what)
        group = Own(target=None if turn % 2 else own, group=b"group-%d" % turn)
        put_keyed(engine, engine.store.topic("own"), b"", body=b"of a group", own=group, **what)
        for lane in take_fresh(engine):
            while job := reserve_call(engine, session, lane, 60_000, now_ms):
                error = "503 Service Unavailable\nlater"
                fail_call(engine, session, job[0], now_ms, error=error, is_exhausted=turn % 3 == 0)
        yield


def worked_on_in_every_way(engine: Engine, rng: random.Random) -> Iterator[None]:
    """The same with keys, absolute times, policies and clears: each turn has all kinds."""
    engine.store.topic("mail")
    for turn, _ in enumerate(worked_on(engine, rng)):
        now_ms = engine.store.time_ms
        if turn == 0:
            policy = Policy(retry_ms=(500, 60_000), exhausted="x.y", jobs_max=10_000)
            set_policy(engine, "tries", policy, RequestMs(now_ms))
            engine.store.topic("cleared")
        worker = open_session(engine)
        for name in ("tries", "mail"):
            watch(engine, worker, name)
        tries, topics = engine.store.topics.by_name["tries"], engine.store.topics.by_name
        what: dict[str, Any] = {"priority": 3, "ttr_ms": 60_000, "now_ms": now_ms}
        follow_wall(engine, turn % 3)
        job_id = put(engine, tries, due_wall_ms=now_ms + 700, body=b"at", **what)
        reschedule(engine, job_id, 0, RequestMs(now_ms), now_ms + 86_400_000)
        for number, on in enumerate(Conflict):
            key, body = b"key-%d" % ((turn + number) % 7), rng.randbytes(30)
            with contextlib.suppress(JobAlreadyExists):
                delay_ms = rng.choice((0, 900, 86_400_000))
                put_keyed(engine, tries, key, on, delay_ms=delay_ms, body=body, **what)
        retry = Retry((5_000, 50_000), 7, 10)
        put(engine, tries, delay_ms=0, body=b"own", retry=retry, **what)
        for number, (job_id, _) in enumerate(
            reserve_batch(engine, worker, 5, 1 << 20, RequestMs(now_ms))
        ):
            touch(engine, worker, job_id, RequestMs(now_ms))
            if number == 0:
                nack(engine, worker, job_id, RequestMs(now_ms), error="no é")
            elif number == 1:
                bury(engine, worker, job_id, 7, RequestMs(now_ms))
        change(
            engine, put(engine, tries, delay_ms=9, body=b"", **what), RequestMs(now_ms), priority=1
        )
        job_id = put(engine, topics["mail"], delay_ms=9, body=b"", **what)
        change(engine, job_id, RequestMs(now_ms), body=b"changed", ttr_ms=5_000)
        reschedule(engine, job_id, 86_400_000, RequestMs(now_ms))
        kick_job(engine, job_id, RequestMs(now_ms))
        pause(engine, "mail", 5_000 * (turn % 2), RequestMs(now_ms))
        pause_group(engine, "mail", b"g", 5_000 * (turn % 2), RequestMs(now_ms))
        cleared = engine.store.topic("cleared")
        put_keyed(engine, cleared, b"gone", delay_ms=5_000, body=b"", **what)
        if leases_are_caught_up(engine):
            clear(engine, cleared)
        while engine.store.cleared.left:
            engine.store.cleared.sweep(100)
        close_session(engine, worker, RequestMs(now_ms))
        worker = open_session(engine)
        for name in topics:
            watch(engine, worker, name)
        for job_id, _ in reserve_batch(engine, worker, 1, 1 << 20, RequestMs(now_ms)):
            bury(engine, worker, job_id, 7, RequestMs(now_ms))
        while advance(engine, now_ms):
            pass
        yield


def taken(engine: Engine) -> bytes:
    """Return what a turn has recorded."""
    pieces, _ = engine.take_log()
    engine.take_deliveries()
    return b"".join(pieces)


def payloads_of(turns: int) -> list[bytes]:
    """Return what an engine records in so many turns."""
    engine = Engine(start_ms=START_MS)
    work = worked_on(engine, random.Random(SEED))
    return [taken(engine) for _ in itertools.islice(work, turns)]


def snapshots_of(turns: int, work: Work = worked_on) -> tuple[SimulatedDisk, str]:
    """Return a disk with two snapshots and the log since the older, and the digest of the state."""
    disk = SimulatedDisk()
    journal, _ = opened(disk, 64 << 10)
    engine = Engine(start_ms=START_MS)
    for turn, _ in enumerate(work(engine, random.Random(SEED)), 1):
        journal.append(taken(engine), engine.store.time_ms, engine.store.time_ms)
        journal.sync()
        if turn in {turns // 2, turns - 5}:
            journal.snapshot_is_due(engine.store.live_bytes)
            take_snapshot(engine, journal)
        if turn == turns:
            break
    state = digest(engine)
    disk.crash()
    return disk, state


def take_snapshot(engine: Engine, journal: Journal) -> None:
    time_ms = engine.store.time_ms
    writer = journal.begin_snapshot(journal.appended_sequence, time_ms, time_ms)
    copy = SnapshotCopy(engine.store)
    while not copy.is_over:
        writer.write(copy.take(20, 3_000))
    writer.finish(copy.jobs)


def recovered(disk: Disk, segment_bytes: int = 64 << 10) -> tuple[Engine, Journal]:
    """Return the engine that a start would serve with."""
    journal = Journal.open(DIRECTORY, disk=disk, segment_bytes=segment_bytes)
    frames = [*journal.replay()]
    replay = played(frames)
    assert replay is not None
    replay.engine.store.time_ms = PlayedMs(max(replay.engine.store.time_ms, frames[-1].time_ms))
    replay.finish(PlayedMs(0))
    return replay.engine, journal
