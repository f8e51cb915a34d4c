"""What the holder of a job says of it: ack, nack, touch, bury; one by one, or many at once.

The token that came with the job says which reservation is meant. A worker that was too slow has
lost it: whoever has the job now is not disturbed, and the late one is told, 409.
"""

from typing import TYPE_CHECKING, Any

from delayd.access.scopes import Scope
from delayd.core.errors import JobNotFound, Refusal
from delayd.core.job import PRIORITY_AND_TOPIC, PRIORITY_AT, State
from delayd.http.api import Api, Call
from delayd.http.handlers.job_responses import due_text, parse_token
from delayd.http.handlers.reserve import holder_of
from delayd.http.problems import FieldError, RequestInvalid
from delayd.http.responses import Reply, refused_item, reply, reply_of_many
from delayd.http.schemas import Bury, Held, HeldMany, Nack, NackMany
from delayd.text import moment_text

if TYPE_CHECKING:
    from delayd.core.session import Session


def _reservation(call: Call, scope: Scope) -> tuple[int, "Session", bytes]:
    """Return the job of the path, who holds it under the token given, and its record."""
    given: Held = call.given
    job_id = call.job_id
    ticket = parse_token(given.token)
    if ticket.job_id != job_id:
        raise RequestInvalid([FieldError("token", f"belongs to another job than {job_id}")])
    record = call.allow_job(scope, job_id)
    return job_id, holder_of(call.api, ticket, record), record


async def ack(call: Call) -> Reply:
    """The job is done: it is gone for good."""
    job_id, session, _ = _reservation(call, Scope.DELETE)
    call.api.engine.delete(session, job_id, call.api.now_ms())
    await call.api.durable()
    return reply(200, {"id": job_id})


async def nack(call: Call) -> Reply:
    """The attempt has failed; what becomes of the job says its retry rule."""
    given: Nack = call.given
    job_id, session, _ = _reservation(call, Scope.RELEASE)
    _nack(call.api, session, job_id, given)
    content = _became(call.api, job_id)
    await call.api.durable()
    return reply(200, content)


def _nack(api: Api, session: "Session", job_id: int, given: Nack) -> None:
    api.engine.nack(
        session,
        job_id,
        api.now_ms(),
        delay_ms=given.delay,
        priority=given.priority if isinstance(given.priority, int) else None,
        error=given.error,
    )


def _became(api: Api, job_id: int) -> dict[str, Any]:
    """Return what became of a job whose attempt failed."""
    record, state = api.engine.caught_up(job_id, api.now_ms())
    told: dict[str, Any] = {"id": job_id, "state": state.name.lower()}
    told["topic"] = api.engine.store.topic_of(record).name
    if state is State.DELAYED:
        told["due"] = due_text(api.engine.store, job_id)
    return told


async def touch(call: Call) -> Reply:
    """Let the reservation last a full ttr from now."""
    job_id, session, _ = _reservation(call, Scope.RELEASE)
    api = call.api
    api.engine.touch(session, job_id, api.now_ms())
    expires = moment_text(api.wall_ms(session.deadlines[job_id]))
    await api.durable()
    return reply(200, {"id": job_id, "expires": expires})


async def bury(call: Call) -> Reply:
    """Park the job until it is kicked."""
    given: Bury = call.given
    job_id, session, record = _reservation(call, Scope.BURY)
    priority = given.priority
    if not isinstance(priority, int):
        priority = PRIORITY_AND_TOPIC.unpack_from(record, PRIORITY_AT)[0]
    call.api.engine.bury(session, job_id, priority, call.api.now_ms(), given.error)
    content = _became(call.api, job_id)
    await call.api.durable()
    return reply(200, content)


# --- Many ----------------------------------------------------------------------------------------


async def ack_many(call: Call) -> Reply:
    """Acknowledge many jobs in one commit, and tell of each whether it was still theirs."""
    given: HeldMany = call.given
    api = call.api
    now_ms = api.now_ms()
    results: list[dict[str, Any]] = []
    held: dict[Session, list[int]] = {}
    seen: set[int] = set()
    for token in given.tokens:
        ticket = parse_token(token)
        job_id = ticket.job_id
        try:
            record = call.allow_job(Scope.DELETE, job_id)
            session = holder_of(api, ticket, record)
            if job_id in seen:
                raise JobNotFound(job_id)
        except Refusal as refusal:
            results.append({"id": job_id, **refused_item(refusal)})
        else:
            seen.add(job_id)
            held.setdefault(session, []).append(job_id)
            results.append({"id": job_id, "status": 200})
    for session, job_ids in held.items():
        assert all(api.engine.delete_batch(session, job_ids, now_ms)), "all of them were held"
    await api.durable()
    return reply_of_many(results, 200)


async def nack_many(call: Call) -> Reply:
    """Nack many jobs in one commit, and tell of each what became of it."""
    given: NackMany = call.given
    api = call.api
    results: list[dict[str, Any]] = []
    for one in given.nacks:
        ticket = parse_token(one.token)
        job_id = ticket.job_id
        try:
            record = call.allow_job(Scope.RELEASE, job_id)
            _nack(api, holder_of(api, ticket, record), job_id, one)
        except Refusal as refusal:
            results.append({"id": job_id, **refused_item(refusal)})
        else:
            results.append({"status": 200, **_became(api, job_id)})
    await api.durable()
    return reply_of_many(results, 200)
