"""Putting jobs: one, a batch, or one under the key of the path.

Jobs of a batch that follow each other and differ only in their bodies go to the engine together. A
batch is put in slices, with turns of other clients between them, and answered when all of it is
durable. A malformed job refuses the whole request before any is put; one that the engine refuses (a
key that is taken, a cap) is reported for that job alone.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from delayd.access.authorize import to_put, to_put_instead
from delayd.core.errors import Refusal
from delayd.core.job_parts import Own
from delayd.core.names import checked_key
from delayd.core.operations.checks import vetted_own
from delayd.core.operations.put import (
    Conflict,
    Outcome,
    default_ttr_ms,
    put_alike,
    put_keyed,
    put_one,
)
from delayd.core.operations.succeed import put_instead
from delayd.core.times import RequestMs
from delayd.http.answer_forms import PutAnswer, PutResultAnswer
from delayd.http.api import Api, Call
from delayd.http.handlers.job_responses import due_text
from delayd.http.idempotency import Memo, memo_of, refuse_beside
from delayd.http.long_work import Slices
from delayd.http.problems import problem_of
from delayd.http.request_forms import PutJobForm, PutJobsForm, PutKeyedForm, WithRuleForm
from delayd.http.responses import Reply, Results, reply
from delayd.http.values import UNSET, InsteadOf
from delayd.limits import HTTP_RUN_BYTES, HTTP_RUN_JOBS_MAX

if TYPE_CHECKING:
    from delayd.core.topic import Topic


def ttr_ms_of(job: WithRuleForm, topic: "Topic") -> int:
    """Return the ttr of a job; 0 where its topic's policy has one."""
    return job.ttr if isinstance(job.ttr, int) else default_ttr_ms(topic)


def _delay_of(job: WithRuleForm) -> tuple[int, bool]:
    """Return the delay of a job, and whether 0 was set, which overrides the topic's policy.

    For the core a delay of 0 means that none was set, since on the line protocol there is always a
    number.
    """
    if isinstance(job.delay, int):
        return job.delay, not job.delay
    return 0, False


def _key_of(job: PutJobForm) -> tuple[bytes, Conflict]:
    """Return the key of a job, empty if it has none, and what to do if the key is taken."""
    key = job.key if isinstance(job.key, bytes) else b""
    return key, job.on_conflict if isinstance(job.on_conflict, Conflict) else Conflict.REJECT


def _put_form(
    api: Api,
    topic: "Topic",
    job: WithRuleForm,
    body: bytes,
    key: bytes,
    on: Conflict,
    now_ms: RequestMs,
    *,
    is_instead: bool = False,
) -> tuple[int, Outcome]:
    """Put a job, and end the one in whose place it comes; return its id and the outcome.

    `is_instead`: that one has been looked at. Raises the engine's refusals.
    """
    if not is_instead and isinstance(job.instead_of, InsteadOf):
        put = partial(_put_form, api, topic, job, body, key, on, now_ms, is_instead=True)
        predecessor = job.instead_of.predecessor
        return put_instead(api.engine, api.no_holder, predecessor, topic, put, now_ms)
    delay_ms, at_once = _delay_of(job)
    due_wall_ms = api.moment_ms(job.at)
    own = job.own
    ttr_ms = ttr_ms_of(job, topic)
    engine = api.engine
    target = job.target
    if not key and due_wall_ms is None and own is None and target is None:
        job_id = put_one(
            engine, topic, job.priority, delay_ms, ttr_ms, body, now_ms, at_once=at_once
        )
        return job_id, Outcome.CREATED
    if target is not None:
        own = (own or Own())._replace(target=vetted_own(engine, target, topic.name))
    return put_keyed(
        engine,
        topic,
        key,
        on,
        priority=job.priority,
        delay_ms=delay_ms,
        due_wall_ms=due_wall_ms,
        ttr_ms=ttr_ms,
        body=body,
        now_ms=now_ms,
        own=own,
        at_once=at_once,
    )


async def put(call: Call) -> Reply:
    """Put a job, or a batch."""
    name, headers = call.topic, call.request.headers
    if isinstance(call.form, PutJobsForm):
        refuse_beside(headers, "the jobs of a batch can have a key each, with on_conflict keep")
        if any(job.url is not UNSET for job in call.form.jobs):
            call.allow_all(*to_put(name, with_target=True))
        _allow_ends(call, call.form.jobs)
        return await _put_batch(call, name, call.form.jobs)
    job: PutJobForm = call.form
    if job.url is not UNSET:
        call.allow_all(*to_put(name, with_target=True))
    if job.instead_of is not UNSET:
        _allow_ends(call, (job,))
    key, on = _key_of(job)
    api = call.api
    if key:
        refuse_beside(headers, "the job has a key: on_conflict says what a second put does")
    if job.instead_of is not UNSET:
        refuse_beside(headers, "with instead_of a second put is refused")
    memo = None if key else memo_of(api.memos, headers, call.principal, name, call.data)
    if memo is not None and memo.job_id:
        answer = PutAnswer(id=memo.job_id, outcome=Outcome.CREATED)
        if api.engine.store.jobs.get(memo.job_id) is not None:
            answer.due = due_text(api.engine.store, memo.job_id)
    else:
        answer = _put(api, name, job, key, on, memo)
    return _answered(answer)


def _allow_ends(call: Call, jobs: Sequence[WithRuleForm]) -> None:
    """Refuse a client that may not delete the jobs in whose places these are put."""
    topics = {job.instead_of[0] for job in jobs if isinstance(job.instead_of, InsteadOf)}
    for topic in sorted(topics):
        call.allow_all(to_put_instead(topic))


def _put(
    api: Api, name: str, job: WithRuleForm, key: bytes, on: Conflict, memo: Memo | None = None
) -> PutAnswer:
    """Put a job, and keep its Idempotency-Key; return the answer."""
    topic = api.engine.store.topic(name)
    now_ms = api.now_ms()
    try:
        job_id, outcome = _put_form(api, topic, job, job.body_bytes or b"", key, on, now_ms)
        if memo is not None:
            memo.keep(job_id, now_ms)
        return PutAnswer(id=job_id, outcome=outcome, due=due_text(api.engine.store, job_id))
    except Refusal:
        api.engine.store.drop_if_unwanted(topic)
        raise


def _answered(answer: PutAnswer) -> Reply:
    place = {"Location": f"/v1/jobs/{answer.id}"}
    return reply(_status_of(answer.outcome), answer, place, waits_for_log=True)


def _status_of(outcome: Outcome) -> int:
    return 201 if outcome is Outcome.CREATED else 200


async def put_key(call: Call) -> Reply:
    """Put a job under the key of the path, in the place of the one that has it."""
    name = call.topic
    job: PutKeyedForm = call.form
    if job.url is not UNSET:
        call.allow_all(*to_put(name, with_target=True))
    _allow_ends(call, (job,))
    on = job.on_conflict if isinstance(job.on_conflict, Conflict) else Conflict.REPLACE
    answer = _put(call.api, name, job, checked_key(call.key), on)
    return _answered(answer)


# --- Batches -------------------------------------------------------------------------------------

_CREATED: Final = b'{"status":201,"id":%%d,"outcome":"created","due":"%b"}'
"""The `PutResultAnswer` of a created job, with a place for the id."""


async def _put_batch(call: Call, name: str, jobs: list[PutJobForm]) -> Reply:
    api = call.api
    results = Results()
    async with api.slices(len(jobs)) as slices:
        done = _put_slice(api, name, jobs, 0, slices, results)
        while done < len(jobs):
            await slices.rest()
            done = _put_slice(api, name, jobs, done, slices, results)
    return results.reply(201)


def _put_slice(
    api: Api, name: str, jobs: Sequence[PutJobForm], done: int, slices: Slices, results: Results
) -> int:
    """Put jobs after the first `done` until the slice is over; return how many are done then."""
    topic = api.engine.store.topic(name)
    now_ms = api.now_ms()
    while done < len(jobs):
        bodies = _bodies_alike(jobs, done)
        if len(bodies) == 1 or not _put_run(api, topic, jobs[done], bodies, now_ms, results):
            for job, body in zip(jobs[done : done + len(bodies)], bodies, strict=True):
                results.add(_put_item(api, topic, job, body, now_ms))
        done += len(bodies)
        if slices.is_over:
            break
    api.engine.store.drop_if_unwanted(topic)  # all of them may have been refused
    return done


def _bodies_alike(jobs: Sequence[PutJobForm], done: int) -> list[bytes]:
    """Return the bodies of the next jobs that can be put together, at least one."""
    first = jobs[done]
    bodies = [first.body_bytes or b""]
    left_bytes = HTTP_RUN_BYTES - len(bodies[0])
    if _are_alike(first, first):
        for job in jobs[done + 1 : done + HTTP_RUN_JOBS_MAX]:
            if left_bytes <= 0 or not _are_alike(first, job):
                break
            body = job.body_bytes or b""
            bodies.append(body)
            left_bytes -= len(body)
    return bodies


def _are_alike(first: PutJobForm, job: PutJobForm) -> bool:
    """Tell whether two jobs differ only in their bodies, and have no parts of their own."""
    return (
        job.is_plain
        and job.delay == first.delay
        and job.priority == first.priority
        and job.ttr == first.ttr
    )


def _put_run(
    api: Api,
    topic: "Topic",
    job: PutJobForm,
    bodies: Sequence[bytes],
    now_ms: RequestMs,
    results: Results,
) -> bool:
    """Put jobs that differ from this one only in their bodies, if all of them can be."""
    delay_ms, at_once = _delay_of(job)
    ttr_ms = ttr_ms_of(job, topic)
    try:
        first_id = put_alike(
            api.engine, topic, job.priority, delay_ms, ttr_ms, bodies, now_ms, at_once=at_once
        )
    except Refusal:
        return False  # put one by one, each has its own result
    created = _CREATED % due_text(api.engine.store, first_id).encode()
    results.add_alike(created, range(first_id, first_id + len(bodies)))
    return True


def _put_item(
    api: Api, topic: "Topic", job: PutJobForm, body: bytes, now_ms: RequestMs
) -> PutResultAnswer:
    key, on = _key_of(job)
    try:
        job_id, outcome = _put_form(api, topic, job, body, key, on, now_ms)
    except Refusal as refusal:
        return PutResultAnswer(status=refusal.status, problem=problem_of(refusal))
    return PutResultAnswer(
        status=_status_of(outcome),
        id=job_id,
        outcome=outcome,
        due=due_text(api.engine.store, job_id),
    )
