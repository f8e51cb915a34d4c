"""What groups of jobs cost, and what they are good for: the chapter `groups`.

    put, reserve    one of them, in µs of processor time, in a topic with so many groups that have a
                    ready job each. Beside it a topic with as many ready jobs, each with a ladder of
                    its own in place of a group, since a part of a job costs as such; and one of
                    bare jobs. A reserve is followed by the ack, which is not counted. With the put,
                    the memory of a job, its group included
    slices          the longest time for which the engine is busy without a break, and the median,
                    while the jobs of 100,000 groups come due at one instant, while the policy
                    changes of as many, and when it changes the order of their jobs
    webhooks        fifty customers have ten webhooks each that take 10 ms, behind a gateway that is
                    called 8 times at once: how long they take alone, and beside one that has
                    100,000 which take 0.5 s each, where the policy is `SHARE_POLICY`; and without

Put, reserve and slices measure the engine, in a process of its own for each reading and without a
journal; webhooks a real daemon.
"""

import functools
import gc
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from time import process_time
from typing import Final

from benchmarks.alone import in_a_process
from benchmarks.endpoint import Endpoint, push_settings, set_policy
from benchmarks.keys import resident_bytes
from benchmarks.line import Line, ask
from benchmarks.registry import Bench, Case, Durability, NotMeasuredError, Values
from benchmarks.servers.delayd import RunningDelayd, new_delayd
from delayd.core.engine import Engine
from delayd.core.job_parts import Own, Retry
from delayd.core.operations.ack import delete_batch
from delayd.core.operations.put import put_keyed
from delayd.core.operations.reserve import reserve
from delayd.core.operations.sessions import open_session
from delayd.core.operations.tick import advance, next_deadline
from delayd.core.operations.topics import set_policy as change_policy
from delayd.core.policy import Policy
from delayd.core.times import PlayedMs, RequestMs
from delayd.core.topic import Topic
from delayd.limits import GC_YOUNG_OBJECTS

GROUPS: Final = "delayd, a group for each job"
KINDS: Final = (GROUPS, "delayd, a ladder for each job", "delayd, bare jobs")
LADDER: Final = Retry((15_000, 180_000), 3)
COUNTS: Final = (1_000, 100_000, 1_000_000)
"""Of groups that have a ready job each, or of ready jobs."""
BODY: Final = b"x" * 100
TTR_MS: Final = 3_600_000
MEASURED: Final = 20_000
"""Jobs at most that are put, or reserved, in the topic that stands."""
RUN: Final = 500
"""Jobs that are held at once."""
STRIDE: Final = 7_919
"""From the group of a job to that of the next: a prime, so that all have their turn."""
RULE: Final = {"fair": True, "group_reserved_max": 1_000_000}
OTHER_RULES: Final = {
    "the policy changes": RULE | {"group_weights": {"customer-7": 5}},
    "the order changes": RULE | {"group_order": "put"},
}
COME_DUE: Final = "the jobs come due"
SLICED: Final = 100_000
DUE_MS: Final = 1_000

CUSTOMERS: Final = 50
JOBS_EACH: Final = 10
SLOW_JOBS: Final = 100_000
SHARE_POLICY: Final = {"fair": True, "group_reserved_max": 2}
PATIENCE_S: Final = 60.0


# --- In the engine -------------------------------------------------------------------------------


def own_of(kind: str, number: int, groups: int) -> Own | None:
    """Return what a job of a kind has of its own."""
    if kind == GROUPS:
        return Own(group=b"customer-%d" % (number % groups))
    return Own(retry=LADDER) if kind == KINDS[1] else None


def put_one(engine: Engine, topic: Topic, own: Own | None, delay_ms: int = 0) -> None:
    """Put a job."""
    put_keyed(
        engine,
        topic,
        b"",
        priority=0,
        delay_ms=delay_ms,
        ttr_ms=TTR_MS,
        body=BODY,
        now_ms=RequestMs(engine.store.time_ms),
        own=own,
    )


def filled(kind: str, jobs: int, delay_ms: int = 0) -> tuple[Engine, Topic]:
    """Return an engine with so many jobs, each in a group of its own if they have groups."""
    engine = Engine(start_ms=0)
    if kind == GROUPS:
        change_policy(engine, "default", Policy.from_json(json.dumps(RULE)), RequestMs(0))
    topic = engine.store.topic("default")
    gc.disable()
    for number in range(jobs):
        put_one(engine, topic, own_of(kind, number, jobs), delay_ms)
        engine.take_log()
    gc.freeze()
    gc.set_threshold(GC_YOUNG_OBJECTS)  # as in the daemon
    gc.enable()
    return engine, topic


def putting(kind: str, count: int) -> Values:
    """Return the microseconds of a put beside so many ready jobs, and the memory of each."""
    began_bytes = resident_bytes()
    engine, topic = filled(kind, count)
    job_bytes = (resident_bytes() - began_bytes) / count
    measured = min(MEASURED, count)
    begun = process_time()
    for number in range(measured):
        put_one(engine, topic, own_of(kind, number * STRIDE, count))
        engine.take_log()
    put_us = (process_time() - begun) / measured * 1e6
    # With a few jobs, memory says more of the process than of them.
    return {"us": put_us} | ({"entry_bytes": job_bytes} if count >= MEASURED else {})


def reserving(kind: str, count: int) -> Values:
    """Return the microseconds of a reserve of so many ready jobs."""
    engine, topic = filled(kind, count)
    for number in range(min(MEASURED, count)):
        put_one(engine, topic, own_of(kind, number * STRIDE, count))
        engine.take_log()
    session = open_session(engine)
    spent_s, reserved = 0.0, 0
    now_ms = RequestMs(engine.store.time_ms)
    while reserved < min(MEASURED, count):
        taken = []
        begun = process_time()
        for _ in range(min(RUN, count)):
            job = reserve(engine, session, now_ms)
            assert job is not None
            taken.append(job[0])
            engine.take_log()
        spent_s += process_time() - begun
        delete_batch(engine, session, taken, now_ms)
        engine.take_log()
        reserved += len(taken)
    return {"us": spent_s / reserved * 1e6}


def slices_of(engine: Engine, until_ms: int) -> Iterator[float]:
    """Play what is due by then, a slice at a time; yield how many ms each took."""
    engine.store.reach(PlayedMs(until_ms))
    while (due_ms := next_deadline(engine)) is not None and due_ms <= until_ms:
        begun = process_time()
        advance(engine, PlayedMs(until_ms))
        yield (process_time() - begun) * 1e3
        engine.take_log()


def slices(what: str, groups: int) -> Values:
    """Return the longest and the median slice of one of the big things."""
    engine, topic = filled(GROUPS, groups, DUE_MS)
    times_ms = [*slices_of(engine, DUE_MS)]
    assert len(topic.queues.ready) == groups
    if what != COME_DUE:
        policy = Policy.from_json(json.dumps(OTHER_RULES[what]))
        begun = process_time()
        change_policy(engine, "default", policy, RequestMs(DUE_MS))
        first_ms = (process_time() - begun) * 1e3
        times_ms = [first_ms, *slices_of(engine, DUE_MS)]
        assert not topic.blocks, "it hands out again"
    return {"p50_ms": statistics.median(times_ms), "worst_ms": max(times_ms)}


# --- With a daemon -------------------------------------------------------------------------------


def webhooks_of(endpoint: Endpoint, path: str, names: Sequence[str], group: str) -> list[bytes]:
    """Return a put of a webhook for each of these customers; without `group` no job has one."""
    url = endpoint.url(path)
    return [
        f"put 0 0 60 2 url={url}{group and f' group={name}'}\r\n{{}}\r\n".encode() for name in names
    ]


def share(
    daemon: RunningDelayd, endpoint: Endpoint, slow_jobs: int, policy: Mapping[str, object]
) -> tuple[int, float]:
    """Deliver beside so many slow webhooks; how many of the fifty's arrived, and the last when.

    In seconds from the first call.
    """
    group = "group" * bool(policy)
    with closing(Line(daemon.port, "hooks")) as line:
        if policy:
            set_policy(daemon.port, "hooks", policy)
        line.put_all(webhooks_of(endpoint, "/quick", ["warm-up"], group))
        endpoint.report(1)
        ask(daemon.port, b"pause-tube hooks 3600\r\n")
        line.put_all(webhooks_of(endpoint, "/slow", ["large"] * slow_jobs, group))
        quick = [f"small-{number % CUSTOMERS}" for number in range(CUSTOMERS * JOBS_EACH)]
        line.put_all(webhooks_of(endpoint, "/quick", quick, group))
        begun_s = time.monotonic()
        ask(daemon.port, b"pause-tube hooks 0\r\n")
        report = endpoint.report(len(quick), PATIENCE_S)
    return report.requests, report.last_s - begun_s


# --- The chapter ---------------------------------------------------------------------------------


def engine_reading(
    measure: Callable[[str, int], Values], what: str, count: int, bench: Bench
) -> Values:
    """Measure the engine in a new process."""
    return in_a_process(measure, what, bench.entries(count))


def webhooks(slow_jobs: int, policy: Mapping[str, object], bench: Bench) -> Values:
    """Return how long the webhooks of the fifty take beside so many slow ones."""
    with (
        closing(Endpoint()) as endpoint,
        new_delayd(bench, config=push_settings([endpoint.port]), http=False) as daemon,
    ):
        arrived, seconds = share(daemon, endpoint, bench.entries(slow_jobs), policy)
    if arrived < CUSTOMERS * JOBS_EACH:
        raise NotMeasuredError(f"{arrived} of {CUSTOMERS * JOBS_EACH} came in {PATIENCE_S:.0f} s")
    return {"seconds": seconds}


def cases() -> Sequence[Case]:
    """Return the chapter."""
    return [*engine_cases(), *webhook_cases()]


def engine_cases() -> Iterator[Case]:
    """Yield what is measured without a daemon."""
    for operation, measure in (("put", putting), ("reserve", reserving)):
        for count in COUNTS:
            for kind in KINDS:
                took = functools.partial(engine_reading, measure, kind, count)
                yield Case("groups", operation, {"ready jobs": count}, kind, took)
    for what in (COME_DUE, *OTHER_RULES):
        took = functools.partial(engine_reading, slices, what, SLICED)
        yield Case("groups", f"slices while {what}", {"groups": SLICED}, "delayd", took)


def webhook_cases() -> Iterator[Case]:
    """Yield what is measured with one; the first is what the others are compared with."""
    for slow_jobs, policy in ((0, SHARE_POLICY), (SLOW_JOBS, SHARE_POLICY), (SLOW_JOBS, {})):
        yield Case(
            chapter="groups",
            operation="500 webhooks of fifty customers",
            size={"slow webhooks of another": slow_jobs},
            subject="delayd, fair groups" if policy else "delayd, without groups",
            measure=functools.partial(webhooks, slow_jobs, policy),
            policy=Durability.BEFORE_ANSWER,
            settings=json.dumps(policy),
            runs_max=None if policy else 1,
        )
