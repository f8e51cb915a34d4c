"""Operations of a job's holder: ack, nack, touch, bury; one by one, or many at once.

The token that came with the job names the reservation. A worker that was too slow has lost it: it
is answered 409, and the job's present holder is not affected.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from delayd.core.errors import JobNotFound, Refusal
from delayd.core.job import PRIORITY_AND_TOPIC, PRIORITY_AT, State
from delayd.core.operations.clock import caught_up
from delayd.core.operations.finish import bury as bury_job
from delayd.core.operations.finish import delete, delete_batch
from delayd.core.operations.finish import nack as nack_job
from delayd.core.operations.reserve import touch as touch_job
from delayd.http import structs
from delayd.http.api import Api, Call
from delayd.http.handlers.job_responses import (
    Reservation,
    due_wall_ms_of,
    parse_token,
    reservation_of,
)
from delayd.http.handlers.jobs import bury as bury_waiting
from delayd.http.handlers.reserve import holder_of
from delayd.http.problems import FieldError, RequestInvalid, problem_of
from delayd.http.responses import Reply, reply_of_many
from delayd.http.values import UNSET, Answer, Unset
from delayd.text import moment_text

if TYPE_CHECKING:
    from delayd.core.session import Session
    from delayd.http.forms import BuryForm, HeldForm, HeldManyForm, NackForm, NackManyForm


def _reservation(call: Call) -> tuple[int, "Session", bytes]:
    """Return the job of the path, who holds it under the token given, and its record."""
    given: HeldForm = call.given
    job_id = call.job_id
    reservation = parse_token(given.token)
    if reservation.job_id != job_id:
        raise RequestInvalid([FieldError("token", f"belongs to another job than {job_id}")])
    record = call.allow_job(job_id, _has_handed_out(reservation))
    return job_id, holder_of(call.api, reservation, record), record


def _has_handed_out(reservation: Reservation) -> Callable[[bytes], bool]:
    """Return what tells whether the job was handed out with this reservation the last time."""
    return lambda record: reservation_of(record) == reservation


async def ack(call: Call) -> Reply:
    """The job is done: delete it."""
    job_id, session, _ = _reservation(call)
    delete(call.api.engine, session, job_id, call.api.now_ms())
    return await call.answered(structs.NamedAnswer(id=job_id))


async def nack(call: Call) -> Reply:
    """The attempt has failed; the retry rule decides the outcome."""
    given: NackForm = call.given
    job_id, session, _ = _reservation(call)
    _nack(call.api, session, job_id, given)
    return await call.answered(_became(_outcome(call.api, job_id)))


def _nack(api: Api, session: "Session", job_id: int, given: "NackForm") -> None:
    nack_job(
        api.engine,
        session,
        job_id,
        api.now_ms(),
        delay_ms=given.delay,
        priority=given.priority if isinstance(given.priority, int) else None,
        error=given.error,
    )


class _Outcome(NamedTuple):
    """What became of a job after a failed attempt."""

    job_id: int
    state: State
    topic: str
    due_wall_ms: int


def _outcome(api: Api, job_id: int) -> _Outcome:
    record, state = caught_up(api.engine, job_id, api.now_ms())
    store = api.engine.store
    return _Outcome(job_id, state, store.topic_of(record).name, due_wall_ms_of(store, job_id))


def _became(outcome: _Outcome) -> structs.BecameAnswer:
    answer = structs.BecameAnswer(
        id=outcome.job_id, state=outcome.state.name.lower(), topic=outcome.topic
    )
    if outcome.state is State.DELAYED:
        answer.due = moment_text(outcome.due_wall_ms)
    return answer


async def touch(call: Call) -> Reply:
    """Extend the reservation to a full ttr from now."""
    job_id, session, _ = _reservation(call)
    api = call.api
    touch_job(api.engine, session, job_id, api.now_ms())
    expires = moment_text(api.wall_ms(session.deadlines[job_id]))
    return await call.answered(structs.TouchedAnswer(id=job_id, expires=expires))


async def bury(call: Call) -> Reply:
    """Bury the job until it is kicked; without a token, one that nobody holds."""
    given: BuryForm = call.given
    if given.token is UNSET:
        return await bury_waiting(call)
    job_id, session, record = _reservation(call)
    priority = given.priority
    if not isinstance(priority, int):
        priority = PRIORITY_AND_TOPIC.unpack_from(record, PRIORITY_AT)[0]
    bury_job(call.api.engine, session, job_id, priority, call.api.now_ms(), given.error)
    return await call.answered(_became(_outcome(call.api, job_id)))


# --- Many ----------------------------------------------------------------------------------------


class _Nacked(Answer, kw_only=True):
    """A `NackResultAnswer` of success: there the status comes first, in a refusal the id."""

    status: int
    id: int
    state: str
    topic: str
    due: str | Unset
    problem: Unset = UNSET


async def ack_many(call: Call) -> Reply:
    """Acknowledge many jobs, in slices; answer for each whether it was still reserved."""
    given: HeldManyForm = call.given
    api = call.api
    results: list[structs.AckResultAnswer] = []
    held: dict[Session, list[int]] = {}
    seen: set[int] = set()
    async with api.slices(len(given.tokens)) as slices:
        for token in given.tokens:
            if slices.is_over:
                _delete_held(api, held)
                await slices.rest()
            reservation = parse_token(token)
            job_id = reservation.job_id
            try:
                record = call.allow_job(job_id, _has_handed_out(reservation))
                session = holder_of(api, reservation, record)
                if job_id in seen:
                    raise JobNotFound(job_id)
            except Refusal as refusal:
                status, problem = refusal.status, problem_of(refusal)
                results.append(structs.AckResultAnswer(id=job_id, status=status, problem=problem))
            else:
                seen.add(job_id)
                held.setdefault(session, []).append(job_id)
                results.append(structs.AckResultAnswer(id=job_id, status=200))
        _delete_held(api, held)
    await api.durable()
    async with api.slices(len(results)):
        return reply_of_many(200, structs.AckResultsAnswer(results=results))


def _delete_held(api: Api, held: "dict[Session, list[int]]") -> None:
    """Delete these jobs, which their sessions hold, and forget them."""
    for session, job_ids in held.items():
        deleted = delete_batch(api.engine, session, job_ids, api.now_ms())
        assert all(deleted), "all were held"
    held.clear()


async def nack_many(call: Call) -> Reply:
    """Nack many jobs, in slices; answer the outcome of each."""
    given: NackManyForm = call.given
    api = call.api
    done: list[tuple[int, _Outcome | Refusal]] = []
    async with api.slices(len(given.nacks)) as slices:
        for one in given.nacks:
            if slices.is_over:
                await slices.rest()
            reservation = parse_token(one.token)
            job_id = reservation.job_id
            try:
                record = call.allow_job(job_id, _has_handed_out(reservation))
                _nack(api, holder_of(api, reservation, record), job_id, one)
            except Refusal as refusal:
                done.append((job_id, refusal))
            else:
                done.append((job_id, _outcome(api, job_id)))
    await api.durable()
    results: list[Any] = []
    async with api.slices(len(done)) as slices:
        for job_id, outcome in done:
            results.append(_nack_result(job_id, outcome))
            if slices.is_over:
                await slices.rest()
        return reply_of_many(200, structs.NackResultsAnswer(results=results))


def _nack_result(job_id: int, outcome: _Outcome | Refusal) -> structs.NackResultAnswer | _Nacked:
    if isinstance(outcome, Refusal):
        problem = problem_of(outcome)
        return structs.NackResultAnswer(id=job_id, status=outcome.status, problem=problem)
    return _Nacked(status=200, **msgspec.structs.asdict(_became(outcome)))
