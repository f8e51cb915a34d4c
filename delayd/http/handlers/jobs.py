"""One job, by its id or by its key: get, change, cancel, kick, bury."""

from typing import TYPE_CHECKING

from delayd.access.authorize import to_put
from delayd.core.job_parts import Own, body_of
from delayd.core.job_record import State
from delayd.core.operations.ack import delete
from delayd.core.operations.change import bury_waiting, kick_job
from delayd.core.operations.change import change as change_job
from delayd.core.operations.checks import vetted_own
from delayd.core.operations.tick import caught_up
from delayd.core.times import RequestMs
from delayd.core.views import live_record
from delayd.http.answer_forms import BecameAnswer, ChangedAnswer, NamedAnswer
from delayd.http.api import Call
from delayd.http.handlers.job_responses import due_text, set_body, whole_job
from delayd.http.problems import JobReserved, WrongState
from delayd.http.responses import Reply
from delayd.http.values import UNSET

if TYPE_CHECKING:
    from delayd.http.request_forms import BuryWaitingForm, ChangeJobForm


async def get(call: Call) -> Reply:
    """Answer the job of the path."""
    api, job_id = call.api, call.job_id
    call.allow_job(job_id)
    record, _ = caught_up(api.engine, job_id, api.now_ms())
    answer = whole_job(api.engine.store, job_id, record, call.is_admin)
    set_body(answer, body_of(record))
    return await call.answered(answer)


def _unreserved(call: Call) -> tuple[int, State, RequestMs]:
    """Return the job of the path, its state, and the time; `JobReserved`, `JobNotFound`."""
    job_id = call.job_id
    call.allow_job(job_id)
    now_ms = call.api.now_ms()
    _, state = caught_up(call.api.engine, job_id, now_ms)
    if state is State.RESERVED:
        raise JobReserved(job_id)
    return job_id, state, now_ms


async def change(call: Call) -> Reply:
    """Change the job of the path."""
    form: ChangeJobForm = call.form
    api = call.api
    job_id, _, now_ms = _unreserved(call)
    own = form.own
    if form.url is not UNSET:
        record = live_record(api.engine.store, job_id)
        topic = api.engine.store.topic_of(record).name
        call.allow_all(*to_put(topic, with_target=True))
        target = b"" if form.target is None else vetted_own(api.engine, form.target, topic)
        own = (own or Own())._replace(target=target)
    change_job(
        api.engine,
        job_id,
        now_ms,
        delay_ms=form.delay if isinstance(form.delay, int) else None,
        due_wall_ms=api.moment_ms(form.at),
        priority=form.priority if isinstance(form.priority, int) else None,
        ttr_ms=form.ttr if isinstance(form.ttr, int) else None,
        own=own,
        body=form.body_bytes,
    )
    return await call.answered(ChangedAnswer(id=job_id, due=due_text(api.engine.store, job_id)))


async def cancel(call: Call) -> Reply:
    """Cancel the job of the path."""
    job_id, _, now_ms = _unreserved(call)
    delete(call.api.engine, call.api.no_holder, job_id, now_ms)
    return await call.answered(NamedAnswer(id=job_id))


async def kick(call: Call) -> Reply:
    """Make the job of the path ready; it is delayed or buried."""
    job_id, state, now_ms = _unreserved(call)
    if state is State.READY:
        raise WrongState(job_id, "ready", "kicked")
    kick_job(call.api.engine, job_id, now_ms)
    return await call.answered(NamedAnswer(id=job_id))


async def bury(call: Call) -> Reply:
    """Bury the job of the path; it is delayed or ready."""
    form: BuryWaitingForm = call.form
    engine = call.api.engine
    job_id, state, now_ms = _unreserved(call)
    if state is State.BURIED:
        raise WrongState(job_id, "buried", "buried again")
    priority = form.priority if isinstance(form.priority, int) else None
    bury_waiting(engine, job_id, now_ms, priority=priority, error=form.error)
    topic = engine.store.topic_of(live_record(engine.store, job_id)).name
    return await call.answered(BecameAnswer(id=job_id, state="buried", topic=topic))
