"""Pushes: jobs handed out to the scheduler, which has them delivered.

    take_fresh()          lanes that have a job for it, of which it has not heard yet
    reserve_call(lane)    the lane's next job, leased for as long as an attempt may take

A job that was taken is deleted (`ack.delete`), for others see `core.operations.attempts`. Consumers
that wait come first: a job goes to one of them as it becomes ready. Pause, `reserved_max` and
`rate_per_s` hold as for every hand-out.

>>> from delayd.core.operations.attempts import fail_call
>>> from delayd.core.operations.put import put_keyed
>>> from delayd.core.operations.sessions import open_session
>>> from delayd.core.job_parts import Own
>>> from delayd.core.targets import pack_own
>>> engine = Engine(start_ms=0)
>>> mail, own = engine.store.topic("mail"), pack_own("POST", "https://example.com/a", ())
>>> what = {"priority": 0, "ttr_ms": 9_000, "body": b"hi", "now_ms": 0}
>>> job_id, _ = put_keyed(engine, mail, b"", own=Own(target=own), **what)
>>> (lane,) = take_fresh(engine)
>>> session = open_session(engine)
>>> reserve_call(engine, session, lane, lease_ms=20_000, now_ms=0)[0], lane[1]
(1, b'https://example.com')
>>> reserve_call(engine, session, lane, lease_ms=20_000, now_ms=0)
>>> fail_call(engine, session, 1, now_ms=5, error="503 Service Unavailable"), mail.delayed
(False, 1)
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from delayd.core import apply
from delayd.core.engine import Engine
from delayd.core.errors import TargetRefused
from delayd.core.log_records import Kind, pack_reserve
from delayd.core.log_space import RESERVE_COST_BYTES
from delayd.core.push_lanes import next_key
from delayd.core.ready_queue import job_id_of
from delayd.core.session import Session
from delayd.core.targets import Target, origin_of
from delayd.core.times import RequestMs
from delayd.core.wheel.wheel import ceil_to_tick

if TYPE_CHECKING:
    from delayd.core.push_lanes import Lane

_RESERVE: Final = int(Kind.RESERVE)
_ANY_URL: Final = Target(url="https://of.a.job/")


def take_fresh(engine: Engine) -> "list[Lane]":
    """Return the lanes that may have a job to be pushed, each once until nothing is there."""
    return engine.store.push_lanes.take()


def reserve_call(
    engine: Engine, session: Session, lane: "Lane", lease_ms: int, now_ms: RequestMs, skips: int = 0
) -> tuple[int, bytes] | None:
    """Hand out the lane's next job for so long; return its id and its record.

    Or the one that comes after so many others, counted round and round.
    None when nothing may be handed out now: the lane will be fresh again when there is.
    """
    store = engine.store
    topic, origin = lane
    key = None if topic.blocks else next_key(topic, origin, skips)
    if key is None or not engine.log_space.has_for_reserve():
        ready = topic.queues.ready
        if topic.is_pushed and ready.is_listed and not ready.count:
            store.ready_topics.unstock(topic)
        store.push_lanes.rest(lane)
        return None
    job_id = job_id_of(key)
    record = store.jobs.get(job_id)
    assert record is not None
    deadline_ms = ceil_to_tick(now_ms + lease_ms, engine.tick_ms)
    if engine.turn_ms != store.time_ms:
        engine.stamp()
    engine.log_space.free_bytes -= RESERVE_COST_BYTES
    engine.log.append(pack_reserve(_RESERVE, job_id, deadline_ms))
    apply.reserve(store, job_id, deadline_ms, session)
    store.leases.calls[job_id] = now_ms
    if topic.throttle is not None:
        store.blocks.restrain(topic, topic.throttle, store.time_ms, 1)
    if topic.queues.ready.groups is not None:
        topic.queues.ready.served(record, store.time_ms)
        store.groups.announce(topic, store.time_ms)
    return job_id, record


def undeliverable(engine: Engine) -> Iterator[tuple[str, str]]:
    """Yield the topics whose jobs the configuration does not let be delivered, and why. O(topics).

    Of a url only the origin is shown.
    """
    known: dict[Target, str] = {}
    for topic in engine.store.topics.listing:
        target = None if topic.policy is None else topic.policy.push
        if target is None and not topic.queues.ready.lanes:
            continue
        if engine.vet_target is None:
            yield topic.name, "push.enabled is false"
            continue
        if target is not None and target not in known:
            known[target] = _refusal(engine.vet_target, target)
        reason = "" if target is None else known[target]
        # Whatever the urls of its jobs are, they are signed as those of the topic are.
        reason = reason or _misuse(engine, _ANY_URL if target is None else target, topic.name)
        if reason:
            yield topic.name, reason


def _refusal(vet: Callable[[Target], Target], target: Target) -> str:
    """Return the rule that the target breaks; empty: none."""
    if target.url:
        origin = origin_of(f"{target.method} {target.url}".encode()).decode()
        target = target._replace(url=f"{origin}/")
    try:
        vet(target)
    except TargetRefused as refusal:
        return str(refusal)
    return ""


def _misuse(engine: Engine, target: Target, topic: str) -> str:
    """Return why the topic may not use the target's secrets or sink; empty: it may."""
    if engine.vet_use is not None:
        try:
            engine.vet_use(target, topic)
        except TargetRefused as refusal:
            return str(refusal)
    return ""
