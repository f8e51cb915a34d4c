"""One job, by its id or by its key: look at it, change it, cancel it, kick it."""

from typing import TYPE_CHECKING

from delayd.access.scopes import Scope
from delayd.core.job import State, body_of
from delayd.core.operations.change import change as change_job
from delayd.core.operations.change import kick_job
from delayd.core.operations.clock import caught_up
from delayd.core.operations.finish import delete
from delayd.core.operations.put import find_key
from delayd.http.api import Call
from delayd.http.handlers.job_responses import due_text, set_body, whole_job
from delayd.http.problems import JobReserved, WrongState
from delayd.http.responses import Reply, reply
from delayd.http.structs import ChangedAnswer, NamedAnswer

if TYPE_CHECKING:
    from delayd.http.forms import ChangeJobForm


def _by_key(call: Call) -> int:
    """Return the job that has the key of the path, in a topic that is allowed; `KeyNotFound`."""
    return find_key(call.api.engine, call.topic, call.key)


async def get(call: Call) -> Reply:
    """Look at the job of the path."""
    return await _get(call, call.job_id)


async def get_key(call: Call) -> Reply:
    """Look at the job that has the key of the path."""
    return await _get(call, _by_key(call))


async def _get(call: Call, job_id: int) -> Reply:
    call.allow_job(Scope.PEEK, job_id)
    api = call.api
    record, _ = caught_up(api.engine, job_id, api.now_ms())
    answer = whole_job(api.engine.store, job_id, record)
    set_body(answer, body_of(record))
    await api.durable()
    return reply(200, answer)


async def change(call: Call) -> Reply:
    """Change the job of the path."""
    return await _change(call, call.job_id)


async def change_key(call: Call) -> Reply:
    """Change the job that has the key of the path."""
    return await _change(call, _by_key(call))


async def _change(call: Call, job_id: int) -> Reply:
    given: ChangeJobForm = call.given
    call.allow_job(Scope.PUT, job_id)
    api = call.api
    now_ms = api.now_ms()
    _refuse_reserved(call, job_id, now_ms)
    change_job(
        api.engine,
        job_id,
        now_ms,
        delay_ms=given.delay if isinstance(given.delay, int) else None,
        due_wall_ms=api.moment_ms(given.at),
        priority=given.priority if isinstance(given.priority, int) else None,
        ttr_ms=given.ttr if isinstance(given.ttr, int) else None,
        body=given.body_bytes,
    )
    answer = ChangedAnswer(id=job_id, due=due_text(api.engine.store, job_id))
    await api.durable()
    return reply(200, answer)


def _refuse_reserved(call: Call, job_id: int, now_ms: int) -> State:
    """Return the state of a job that is not reserved; `JobReserved`, `JobNotFound`."""
    _, state = caught_up(call.api.engine, job_id, now_ms)
    if state is State.RESERVED:
        raise JobReserved(job_id)
    return state


async def cancel(call: Call) -> Reply:
    """Cancel the job of the path."""
    return await _cancel(call, call.job_id)


async def cancel_key(call: Call) -> Reply:
    """Cancel the job that has the key of the path."""
    return await _cancel(call, _by_key(call))


async def _cancel(call: Call, job_id: int) -> Reply:
    call.allow_job(Scope.DELETE, job_id)
    api = call.api
    now_ms = api.now_ms()
    _refuse_reserved(call, job_id, now_ms)
    delete(api.engine, api.nobody, job_id, now_ms)
    await api.durable()
    return reply(200, NamedAnswer(id=job_id))


async def kick(call: Call) -> Reply:
    """Make the job of the path ready, which is delayed or buried."""
    job_id = call.job_id
    call.allow_job(Scope.KICK, job_id)
    return await _kick(call, job_id)


async def kick_key(call: Call) -> Reply:
    """Make the job ready that has the key of the path."""
    return await _kick(call, _by_key(call))


async def _kick(call: Call, job_id: int) -> Reply:
    api = call.api
    now_ms = api.now_ms()
    state = _refuse_reserved(call, job_id, now_ms)
    if state is State.READY:
        raise WrongState(job_id, "ready", "kick")
    kick_job(api.engine, job_id, now_ms)
    await api.durable()
    return reply(200, NamedAnswer(id=job_id))
