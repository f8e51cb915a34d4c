"""Operations of a job's holder: ack, nack, touch, bury; one by one, or many at once.

The token that came with the job names the reservation. A worker that was too slow has lost it: it
is answered 409, and the job's present holder is not affected.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from delayd.core.errors import JobNotFound, Refusal
from delayd.core.job_record import PRIORITY_AND_TOPIC, PRIORITY_AT, State
from delayd.core.operations.ack import delete, delete_batch
from delayd.core.operations.attempts import bury as bury_job
from delayd.core.operations.attempts import nack as nack_job
from delayd.core.operations.reserve import touch as touch_job
from delayd.core.operations.tick import caught_up
from delayd.http import answer_forms
from delayd.http.api import Api, Call
from delayd.http.handlers.job_responses import current_token, due_text, job_of
from delayd.http.handlers.jobs import bury as bury_waiting
from delayd.http.handlers.reserve import holder_of
from delayd.http.problems import FieldError, RequestInvalid
from delayd.http.responses import Reply, Results, written
from delayd.http.values import UNSET
from delayd.limits import HTTP_LOOK_ITEMS
from delayd.moments import moment_text

if TYPE_CHECKING:
    from delayd.core.session import Session
    from delayd.http.request_forms import BuryForm, HeldForm, HeldManyForm, NackForm, NackManyForm


def _reservation(call: Call) -> tuple[int, "Session", bytes]:
    """Return the job of the path, the session that holds it under this token, and its record."""
    form: HeldForm = call.form
    job_id = call.job_id
    if job_of(form.token) != job_id:
        raise RequestInvalid([FieldError("token", f"belongs to another job than {job_id}")])
    record = call.allow_job(job_id, _is_token(job_id, form.token))
    return job_id, holder_of(call.api.engine, job_id, form.token, record), record


def _is_token(job_id: int, token: str) -> Callable[[bytes], bool]:
    """Return a function that tells whether the last reservation of a record has this token."""
    return lambda record: current_token(job_id, record) == token


async def ack(call: Call) -> Reply:
    """Acknowledge the job: delete it."""
    job_id, session, _ = _reservation(call)
    delete(call.api.engine, session, job_id, call.api.now_ms())
    return await call.answered(answer_forms.NamedAnswer(id=job_id))


async def nack(call: Call) -> Reply:
    """Report a failed attempt; the retry rule decides the outcome."""
    form: NackForm = call.form
    job_id, session, _ = _reservation(call)
    _nack(call.api, session, job_id, form)
    return await call.answered(_became(call.api, job_id))


def _nack(api: Api, session: "Session", job_id: int, form: "NackForm") -> None:
    nack_job(
        api.engine,
        session,
        job_id,
        api.now_ms(),
        delay_ms=form.delay,
        priority=form.priority if isinstance(form.priority, int) else None,
        error=form.error,
        counts=form.counts,
        dead=form.dead,
    )


def _became(api: Api, job_id: int) -> answer_forms.BecameAnswer:
    """Return the state of a job after a failed attempt."""
    record, state = caught_up(api.engine, job_id, api.now_ms())
    store = api.engine.store
    topic = store.topic_of(record).name
    answer = answer_forms.BecameAnswer(id=job_id, state=state.name.lower(), topic=topic)
    if state is State.DELAYED:
        answer.due = due_text(store, job_id)
    return answer


async def touch(call: Call) -> Reply:
    """Extend the reservation to a full ttr from now."""
    job_id, session, _ = _reservation(call)
    api = call.api
    touch_job(api.engine, session, job_id, api.now_ms())
    expires = moment_text(api.wall_ms(session.deadlines[job_id]))
    return await call.answered(answer_forms.TouchedAnswer(id=job_id, expires=expires))


async def bury(call: Call) -> Reply:
    """Bury the job until it is kicked; without a token, one that is not reserved."""
    form: BuryForm = call.form
    if form.token is UNSET:
        return await bury_waiting(call)
    job_id, session, record = _reservation(call)
    priority = form.priority
    if not isinstance(priority, int):
        priority = PRIORITY_AND_TOPIC.unpack_from(record, PRIORITY_AT)[0]
    bury_job(call.api.engine, session, job_id, priority, call.api.now_ms(), form.error)
    return await call.answered(_became(call.api, job_id))


# --- Many ----------------------------------------------------------------------------------------

_ACKED: Final = b'{"id":%d,"status":200}'
"""The `AckResultAnswer` of an acknowledged job, with a place for the id."""


async def ack_many(call: Call) -> Reply:
    """Acknowledge many jobs, in slices; answer for each whether it was still reserved."""
    form: HeldManyForm = call.form
    api = call.api
    results = Results()
    held: dict[Session, list[int]] = {}
    seen: set[int] = set()
    acked: list[int] = []  # since the last refusal
    async with api.slices(len(form.tokens)) as slices:
        for number, token in enumerate(form.tokens):
            if not number % HTTP_LOOK_ITEMS and slices.is_over:
                _delete_held(api, held)
                await slices.rest()
            job_id = job_of(token)
            try:
                record = call.allow_job(job_id, _is_token(job_id, token))
                session = holder_of(api.engine, job_id, token, record)
                if job_id in seen:
                    raise JobNotFound(job_id)
            except Refusal as refusal:
                results.add_alike(_ACKED, acked)
                acked.clear()
                results.add_refused(answer_forms.AckResultAnswer, job_id, refusal)
            else:
                seen.add(job_id)
                held.setdefault(session, []).append(job_id)
                acked.append(job_id)
        _delete_held(api, held)
    results.add_alike(_ACKED, acked)
    return results.reply(200)


def _delete_held(api: Api, held: "dict[Session, list[int]]") -> None:
    """Delete these jobs, which their sessions hold, and forget them."""
    for session, job_ids in held.items():
        deleted = delete_batch(api.engine, session, job_ids, api.now_ms())
        assert all(deleted), "all were held"
    held.clear()


async def nack_many(call: Call) -> Reply:
    """Nack many jobs, in slices; answer the outcome of each."""
    form: NackManyForm = call.form
    api = call.api
    results = Results()
    async with api.slices(len(form.nacks)) as slices:
        for one in form.nacks:
            if slices.is_over:
                await slices.rest()
            job_id = job_of(one.token)
            try:
                record = call.allow_job(job_id, _is_token(job_id, one.token))
                _nack(api, holder_of(api.engine, job_id, one.token, record), job_id, one)
            except Refusal as refusal:
                results.add_refused(answer_forms.NackResultAnswer, job_id, refusal)
            else:
                results.add_written(b'{"status":200,%b' % written(_became(api, job_id))[1:])
    return results.reply(200)
