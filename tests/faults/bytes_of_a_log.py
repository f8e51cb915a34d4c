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
from delayd.core.session import Session
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
DAY_MS: Final = 86_400_000
SEED: Final = 3
TOPICS: Final = ("default", "mail", "x.y", "tries", "cleared", "own", "out")


def worked_on(engine: Engine, rng: random.Random) -> Iterator[None]:
    """Let jobs of all kinds live, for ever; one turn after the other, in which all is done."""
    engine.vet_target = lambda target: target
    pusher = open_session(engine)
    for name in TOPICS:
        engine.store.topic(name)
    for turn in itertools.count():
        now_ms = RequestMs(max(START_MS, engine.store.time_ms) + rng.randrange(50))
        if turn == 0:
            target = Target(url="https://example.com/all", headers=(("X-Team", "mail"),))
            set_policy(engine, "out", Policy(push=target), now_ms)
            policy = Policy(retry_ms=(500, 60_000), exhausted="x.y", jobs_max=10_000)
            set_policy(engine, "tries", policy, now_ms)
        produce(engine, rng, now_ms, turn)
        change_and_clear(engine, now_ms, turn)
        push(engine, pusher, now_ms, turn)
        while advance(engine, PlayedMs(now_ms)):
            pass
        work(engine, rng, now_ms, turn)
        yield


def produce(engine: Engine, rng: random.Random, now_ms: RequestMs, turn: int) -> None:
    """Put jobs with all parts that there are."""
    topics = engine.store.topics.by_name
    for _ in range(rng.randrange(1, 4)):
        body = rng.randbytes(rng.choice((0, 20, 200, 900)))
        delay_ms = rng.choice((0, 0, 500, DAY_MS))
        topic = topics[rng.choice(TOPICS[:3])]
        put(engine, topic, priority=rng.randrange(9), body=body, delay_ms=delay_ms, now_ms=now_ms)
    follow_wall(engine, turn % 3)
    job_id = put(engine, topics["tries"], due_wall_ms=now_ms + 700, body=b"at", now_ms=now_ms)
    reschedule(engine, job_id, 0, now_ms, now_ms + DAY_MS)
    what: dict[str, Any] = {"priority": 3, "ttr_ms": 60_000, "now_ms": now_ms}
    for number, on in enumerate(Conflict):
        key, body = b"key-%d" % ((turn + number) % 7), rng.randbytes(30)
        with contextlib.suppress(JobAlreadyExists):
            delay_ms = rng.choice((0, 900, DAY_MS))
            put_keyed(engine, topics["tries"], key, on, delay_ms=delay_ms, body=body, **what)
    own = pack_own("PUT", f"https://example.com/{turn}?a=b", (("X-Turn", str(turn)),))
    put(engine, topics["tries"], body=b"own", retry=Retry((5_000, 50_000), 7, 10), **what)
    put(engine, topics["own"], body=b"own target", target=own, **what)
    put(engine, topics["out"], body=b"the topic's target", **what)
    group = Own(target=None if turn % 2 else own, group=b"group-%d" % turn)
    put_keyed(engine, topics["own"], b"", body=b"of a group", own=group, **what)


def work(engine: Engine, rng: random.Random, now_ms: RequestMs, turn: int) -> None:
    """Do something else to each job of a batch, and leave with the rest in hand: some are buried in
    the very millisecond of what comes next.
    """
    worker = open_session(engine)
    for name in TOPICS[:4]:
        watch(engine, worker, name)
    acts: tuple[Callable[[int], object], ...] = (
        lambda job_id: delete(engine, worker, job_id, now_ms),
        lambda job_id: release(engine, worker, job_id, 3, rng.choice((0, 700)), now_ms),
        lambda job_id: bury(engine, worker, job_id, 7, now_ms),
        lambda job_id: nack(engine, worker, job_id, now_ms, error="no é"),
        lambda job_id: touch(engine, worker, job_id, now_ms),
    )
    for number, (job_id, _) in enumerate(reserve_batch(engine, worker, 6, 1 << 20, now_ms)):
        acts[(turn + number) % len(acts)](job_id)
    close_session(engine, worker, now_ms)
    kick(engine, engine.store.topic("default"), rng.randrange(2), now_ms)


def change_and_clear(engine: Engine, now_ms: RequestMs, turn: int) -> None:
    """Change a job in every way, pause a topic and a group, and empty a topic."""
    mail, cleared = engine.store.topic("mail"), engine.store.topic("cleared")
    job_id = put(engine, mail, delay_ms=9, now_ms=now_ms)
    change(engine, job_id, now_ms, priority=1)
    change(engine, job_id, now_ms, body=b"changed", ttr_ms=5_000)
    reschedule(engine, job_id, DAY_MS, now_ms)
    kick_job(engine, job_id, now_ms)
    pause(engine, "mail", 5_000 * (turn % 2), now_ms)
    pause_group(engine, "mail", b"g", 5_000 * (turn % 2), now_ms)
    put(engine, cleared, delay_ms=5_000, now_ms=now_ms)
    if leases_are_caught_up(engine):
        clear(engine, cleared)
    while engine.store.cleared.left:
        engine.store.cleared.sweep(100)


def push(engine: Engine, session: Session, now_ms: RequestMs, turn: int) -> None:
    """Have all calls fail that may begin."""
    for lane in take_fresh(engine):
        while job := reserve_call(engine, session, lane, 60_000, now_ms):
            error = "503 Service Unavailable\nlater"
            fail_call(engine, session, job[0], now_ms, error=error, is_exhausted=turn % 3 == 0)


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


def snapshots_of(turns: int) -> tuple[SimulatedDisk, str]:
    """Return a disk with two snapshots and the log since the older, and the digest of the state."""
    disk = SimulatedDisk()
    journal, _ = opened(disk, 64 << 10)
    engine = Engine(start_ms=START_MS)
    for turn, _ in enumerate(worked_on(engine, random.Random(SEED)), 1):
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
