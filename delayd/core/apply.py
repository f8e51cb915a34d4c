"""What each record does to the store: one function for each kind, called live and by replay.

An operation decides, records and then calls the function of that kind; replay calls the same one
with the fields that it unpacked. So a restart cannot reach another state. The functions return
the topic that may have more ready jobs now, if there is one: the operation serves waiting
consumers, and counts.

A record that does not fit the state is a mistake of ours or a damaged log: `AssertionError`,
`KeyError`. It is raised, and not by `assert`: a replay relies on it under `python -O` too. TURN has
no function: only the engine can advance time.

The kinds of which thousands pass in a second have tuned forms for whole runs in `core.store`:
`put_alike` (PUT), `hand_out` and `hand_out_run` (RESERVE), `delete_held` (DELETE). Tests play what
they record into a second engine and compare.

>>> store = Store(tick_ms=1, wheel_size=256, start_ms=0)
>>> topic(store, 1, b"mail").recorded
True
>>> clear(store, 1, 2), store.topics.by_name["mail"].number
(0, 2)
"""

from collections.abc import Callable
from typing import Any, Final

from delayd.core.job_parts import WORD_KNOWN, Flag, head_bytes_of, key_of, word_of
from delayd.core.job_record import FLAGS_AT, HEADER, STATE_AT, State
from delayd.core.log_records import Kind
from delayd.core.policy import Policy
from delayd.core.retry import RetryDecision, failed, kept_under
from delayd.core.session import Session
from delayd.core.store import Store
from delayd.core.topic import Source, Topic
from delayd.core.transitions import amended, buried, kicked, ranked, released, rescheduled, returned

# Tested for every job; an enum member's arithmetic costs 40 ns more than an int's.
_BURIED: Final = int(State.BURIED)
_KEY: Final = int(Flag.KEY)
_WALL: Final = int(Flag.WALL)
_RANK: Final = int(Flag.RANK)


def _record(store: Store, job_id: int) -> bytes:
    record = store.jobs.get(job_id)
    if record is None:
        raise AssertionError(f"a record names job {job_id}, which is not there")
    return record


# --- Coming and going ----------------------------------------------------------------------------


def put(store: Store, record: bytes) -> Topic:
    """Take in a new job."""
    job_id, due_ms, _, _, priority, number, state, flags = HEADER.unpack_from(record)
    if flags:
        _check_parts(store, job_id, flags, record)
    if state == _BURIED and not flags & _RANK:
        # By an older delayd or an import; a RANK record follows, or the order is that of PUTs.
        record = ranked(record, store.last_rank + 1)
    here = store.topics.by_number[number]
    store.put(here, job_id, priority, due_ms, record)
    if flags & _WALL:
        store.wall_times.note(job_id, record, store.time_ms)
    if job_id > store.last_id:  # noqa: PLR1730 - a call of `max` costs 60 ns
        store.last_id = job_id
    return here


def put_run(store: Store, first_id: int, records: list[bytes]) -> None:
    """Take in new jobs that wait, with ids in sequence, alike but for ids, keys and bodies.

    A sixth of what `put` costs for each. Their state is DELAYED or READY, and they have no optional
    part but a key.
    """
    _, due_ms, _, _, priority, number, _, flags = HEADER.unpack_from(records[0])
    here = store.topics.by_number[number]
    if flags & _KEY and not store.keys.claim_run(here, list(map(key_of, records)), first_id):
        for record in records:
            put(store, record)
        return
    store.put_alike(here, first_id, priority, due_ms, records)
    store.last_id = max(store.last_id, first_id + len(records) - 1)


def _check_parts(store: Store, job_id: int, flags: int, record: bytes) -> None:
    if flags & _WALL:
        _check_offset(store, job_id)
    if head_bytes_of(record) > len(record):
        raise AssertionError(f"job {job_id} is shorter than its parts")
    if word_of(record) & ~store.parts_recorded:
        raise AssertionError(f"no record says which parts job {job_id} may have")


def _check_offset(store: Store, job_id: int) -> None:
    if store.wall_times.recorded_ms is None:
        raise AssertionError(f"no record says where the time of {job_id} is")


def delete(store: Store, job_id: int) -> Topic:
    """Delete a job, whatever its state."""
    return store.delete(job_id)


def last(store: Store, job_id: int, topic_number: int) -> None:
    """Use no id and no number up to these again."""
    store.last_id = max(store.last_id, job_id)
    store.last_put_id = max(store.last_put_id, job_id)
    store.topics.last_number = max(store.topics.last_number, topic_number)


# --- Reserved jobs -------------------------------------------------------------------------------


def reserve(store: Store, job_id: int, deadline_ms: int, session: Session | None = None) -> Topic:
    """Hand out this very job, to the orphans after a restart."""
    return store.lease(job_id, store.orphans if session is None else session, deadline_ms)


def touch(store: Store, job_id: int, deadline_ms: int) -> None:
    """Extend the lease to this deadline."""
    store.extend(job_id, deadline_ms)


def release(store: Store, job_id: int, due_ms: int, delay_ms: int, priority: int) -> Topic:
    """Take back a job that its holder released."""
    record = _record(store, job_id)
    return store.put_back(job_id, record, released(record, due_ms, delay_ms, priority))


def give_back(store: Store, job_id: int) -> Topic:
    """Take back a job whose holder's connection closed."""
    record = _record(store, job_id)
    return store.put_back(job_id, record, returned(record))


def bury(store: Store, job_id: int, priority: int) -> Topic:
    """Bury a job, after all that were buried before."""
    record = _record(store, job_id)
    return store.put_back(job_id, record, buried(record, priority, store.next_rank()))


def fail(store: Store, *fields: Any) -> Topic:  # noqa: ANN401 - numbers, and at last the error
    """End a failed attempt as its outcome says; return the topic in which the job is now."""
    outcome, error = RetryDecision(*fields[:-1]), fields[-1].decode()
    record = _record(store, outcome.job_id)
    topic, rank = store.topic_of(record), store.next_rank()
    last_end, store.leases.last_end = store.leases.last_end, (0, 0, "")
    changed = failed(
        *(record, outcome),
        origin=topic.name,
        rank=rank,
        error=error,
        lasted_ms=last_end[1] if last_end[0] == outcome.job_id else 0,
        who=last_end[2] if last_end[0] == outcome.job_id else "",
        kept=kept_under(topic.policy),
    )
    return store.put_back(outcome.job_id, record, changed)


def attempt(store: Store, job_id: int, lasted_ms: int, who: bytes) -> None:
    """Note how long a job was held, and by whom: its FAIL follows."""
    store.leases.last_end = job_id, lasted_ms, who.decode()


# --- Jobs that wait or are buried ----------------------------------------------------------------


def kick(store: Store, job_id: int) -> Topic:
    """Make a buried or delayed job ready."""
    return store.move(job_id, kicked(_record(store, job_id)))


def reschedule(store: Store, job_id: int, due_ms: int, delay_ms: int) -> Topic:
    """Give a job another time."""
    return store.move(job_id, rescheduled(_record(store, job_id), due_ms, delay_ms))


def appoint(store: Store, job_id: int, due_ms: int, delay_ms: int, wall_ms: int) -> Topic:
    """Give a job another wall-clock time."""
    return _change(store, job_id, rescheduled(_record(store, job_id), due_ms, delay_ms, wall_ms))


def amend(store: Store, job_id: int, *fields: int) -> Topic:
    """Change a job, except its body."""
    return _change(store, job_id, amended(_record(store, job_id), *fields))


def rewrite(store: Store, record: bytes) -> Topic:
    """Give a job this record, of the same id, key and topic."""
    job_id, *_, number, state, flags = HEADER.unpack_from(record)
    _check_parts(store, job_id, flags, record)
    old = _record(store, job_id)
    if key_of(record) != key_of(old):
        raise AssertionError(f"job {job_id} has another key")
    if store.topic_of(old) is not store.topics.by_number[number]:
        raise AssertionError(f"job {job_id} has another topic")
    if (state == _BURIED) != bool(flags & _RANK):
        raise AssertionError(f"job {job_id} is buried nowhere")
    return _change(store, job_id, record)


def _change(store: Store, job_id: int, changed: bytes) -> Topic:
    if job_id in store.leases.sessions:
        raise AssertionError(f"job {job_id} is held and cannot be changed")
    if changed[FLAGS_AT] & _WALL:
        _check_offset(store, job_id)
    here = store.move(job_id, changed)
    store.wall_times.note(job_id, changed, store.time_ms)
    return here


def rank(store: Store, job_id: int, place: int) -> None:
    """Give a buried job its position, or, without a job, set the last position given."""
    if not job_id:
        store.last_rank = max(store.last_rank, place)
        return
    record = _record(store, job_id)
    if record[STATE_AT] != _BURIED:
        raise AssertionError(f"job {job_id} has a rank and is not buried")
    if job_id in store.leases.sessions:
        raise AssertionError(f"job {job_id} has a rank and is held")
    store.move(job_id, ranked(record, place))


# --- Topics and the wall clock -------------------------------------------------------------------


def topic(store: Store, number: int, name: bytes) -> Topic:
    """Give the topic this number in records; make it when there is none."""
    text = name.decode("ascii")
    here = store.topics.by_name.get(text)
    if here is None or here.number != number:
        here = store.number_topic(text, number)
    here.recorded = True
    return here


def policy(store: Store, number: int, source: int, text: bytes) -> Topic:
    """Set the topic's policy from now on; empty: none."""
    here = store.topics.by_number[number]
    store.set_policy(here, Policy.from_json(text) if text else None, Source(source))
    return here


def pause(store: Store, number: int, until_ms: int, pause_ms: int) -> Topic:
    """Hand out nothing of the topic until then; with a `pause_ms` of 0, no longer pause it."""
    here = store.topics.by_number[number]
    store.blocks.pause(here, until_ms, pause_ms, store.time_ms)
    return here


def pause_group(store: Store, number: int, until_ms: int, pause_ms: int, name: bytes) -> Topic:
    """Hand out nothing of the group until then; with a `pause_ms` of 0, no longer pause it."""
    here = store.topics.by_number[number]
    store.groups.pause(here, name, until_ms, pause_ms, store.time_ms)
    return here


def clear(store: Store, number: int, next_number: int) -> int:
    """Delete the topic's jobs that are not reserved, for `Cleared.sweep`; return how many."""
    here = store.topics.by_number[number]
    if here.number != number:
        raise AssertionError(f"topic {number} was cleared before")
    if next_number in store.topics.by_number:
        raise AssertionError(f"topic {next_number} is there already")
    return store.clear(here, next_number)


def offset(store: Store, offset_ms: int) -> None:
    """Set how far the wall clock is ahead of delayd time, as the log says now."""
    if offset_ms != store.wall_times.offset_ms:
        store.step_wall(offset_ms)
    store.wall_times.recorded_ms = offset_ms


def parts(store: Store, word: int) -> None:
    """Let jobs have these further parts from now on."""
    if word & ~WORD_KNOWN:
        raise AssertionError(f"jobs have parts that this version does not know: {word:#x}")
    store.parts_recorded |= word


APPLY: Final[dict[int, Callable[..., object]]] = {
    Kind.TOPIC: topic,
    Kind.PUT: put,
    Kind.RESERVE: reserve,
    Kind.TOUCH: touch,
    Kind.RELEASE: release,
    Kind.RETURN: give_back,
    Kind.BURY: bury,
    Kind.KICK: kick,
    Kind.RESCHEDULE: reschedule,
    Kind.DELETE: delete,
    Kind.PAUSE: pause,
    Kind.LAST: last,
    Kind.RANK: rank,
    Kind.OFFSET: offset,
    Kind.APPOINT: appoint,
    Kind.FAIL: fail,
    Kind.AMEND: amend,
    Kind.REWRITE: rewrite,
    Kind.POLICY: policy,
    Kind.CLEAR: clear,
    Kind.PARTS: parts,
    Kind.ATTEMPT: attempt,
    Kind.PAUSE_GROUP: pause_group,
}
"""The function of each kind, which takes the store, the fields of the record and its tail."""
