"""Many jobs of a topic: a page of them, a calendar, and one operation on all of them.

Each of these calls is a background task of the core, executed in slices between the turns of other
clients; its answer is made in slices too. If the client disconnects, the task ends; changes by then
stay.

    which jobs      state=delayed,ready  from=-1h  to=2030-01-01T00:00:00Z  prefix=order-
    a page          {"jobs": [...], "after": "1a1ff7acc7a-7"}, and the next with after=1a1ff7acc7a-7
    an operation    {"cancelled": 17}; with dry_run=true {"matched": 17}
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from delayd import limits
from delayd.access.authorize import Right
from delayd.access.scopes import Scope
from delayd.core.errors import JobNotFound, TopicNotFound
from delayd.core.job_parts import body_of
from delayd.core.scans.bulk import Action, Bulk
from delayd.core.scans.find import KeySearch
from delayd.core.scans.list import Calendar, Cursor, Row, Search
from delayd.core.scans.reasons import DeadReasons
from delayd.core.scans.scan import Wanted
from delayd.core.targets import masked, own_target
from delayd.core.times import RequestMs
from delayd.core.topic import Topic
from delayd.core.views import live_record
from delayd.http import answer_forms, request_forms
from delayd.http.api import Api, Call
from delayd.http.handlers.job_responses import failure_answer, set_body
from delayd.http.handlers.topics import carry_out_bulk, page_of_names
from delayd.http.responses import Reply, reply
from delayd.http.values import UNSET, page_mark_text
from delayd.moments import moment_text


def _wanted(api: Api, query: request_forms.WhichForm, now_ms: RequestMs) -> Wanted:
    """Return the filter of a query in delayd time."""
    if query.names_moment:
        api.turns.look_at_wall_clock()
    return query.wanted(now_ms, api.engine.store.wall_times.offset_ms)


# --- A page --------------------------------------------------------------------------------------


async def list_jobs(call: Call) -> Reply:
    """Answer one page of jobs, in due order."""
    api, name = call.api, call.topic
    query: request_forms.ListJobsForm = call.query
    wanted = _wanted(api, query, api.now_ms())
    after = Cursor(*query.after) if isinstance(query.after, tuple) else None
    search = Search(api.engine, name, wanted, query.limit, after)
    await api.carry_out(search)
    rows, after = search.page
    jobs, ends_at = await _rows(call, name, rows, with_bodies=query.bodies)
    if ends_at is not None:
        after = ends_at
    mark = None if after is None else page_mark_text(*after)
    answer = answer_forms.PageAnswer(jobs=jobs, after=mark)
    async with api.slices(len(jobs)):
        return reply(200, answer, waits_for_log=query.bodies)


async def find_key(call: Call) -> Reply:
    """Answer one page of the jobs that have a key, in all topics that the token allows."""
    api, principal = call.api, call.principal
    query: request_forms.FindKeyForm = call.query
    assert call.scope is not None
    call.allow_some()
    after = query.after if isinstance(query.after, str) else ""
    may_see = partial(principal.may, call.scope)
    cost = 1 + principal.cost_us
    search = KeySearch(api.engine, call.key, may_see, query.limit, after, cost=cost)
    await api.carry_out(search)
    offset_ms = api.engine.store.wall_times.offset_ms
    jobs = []
    async with api.slices(len(search.found)) as slices:
        for name, row in search.found:
            await slices.rest_if_over()
            found = answer_forms.FoundJobAnswer(**_members(row, offset_ms), topic=name)
            _add_further(found, row, offset_ms, sees_all=call.is_admin(name))
            jobs.append(found)
        return reply(200, answer_forms.FoundAnswer(jobs=jobs, after=search.after))


async def _asked_about(
    call: Call,
    query: request_forms.HorizonForm | request_forms.DeadForm,
    limit: int,
    is_wanted: Callable[[Topic], bool],
) -> tuple[list[str], str | None]:
    """Return the topics that are named, or else a page of those wanted, and `after` of the next."""
    names: list[str] = [*dict.fromkeys(query.topic)]
    for name in names:
        call.allow(name)
    if names:
        return names, None
    behind = query.after if isinstance(query.after, str) else ""
    return await page_of_names(call, behind, limit, is_wanted)


async def get_dead(call: Call) -> Reply:
    """Answer the dead letters of topics by reason."""
    api = call.api
    query: request_forms.DeadForm = call.query
    names, after = await _asked_about(
        call, query, query.limit, lambda topic: bool(topic.queues.buried)
    )
    topics = []
    for name in names:
        try:
            reasons = DeadReasons(api.engine, name)
            await api.carry_out(reasons)
        except TopicNotFound:
            if query.topic:
                raise
            continue  # it was removed after the names were looked up
        groups = [
            answer_forms.DeadGroupAnswer(
                id=group.id,
                reason=group.reason,
                jobs=group.jobs,
                first=moment_text(api.wall_ms(group.first_ms)),
                last=moment_text(api.wall_ms(group.last_ms)),
                job=group.job_id,
            )
            for group in reasons.groups()
        ]
        topics.append(answer_forms.DeadTopicAnswer(name=name, jobs=reasons.jobs, reasons=groups))
    async with api.slices(sum(len(topic.reasons) for topic in topics)):
        return reply(200, answer_forms.DeadAnswer(topics=topics, after=after))


async def _rows(
    call: Call, topic: str, rows: list[Row], *, with_bodies: bool
) -> tuple[list[answer_forms.PageJobAnswer], Cursor | None]:
    """Return the rows of a page, and the one after which it ends; None: the last page.

    Bodies are as of now: a job that was deleted or moved meanwhile is left out.
    """
    store = call.api.engine.store
    offset_ms = store.wall_times.offset_ms
    sees_all = call.is_admin(topic)
    jobs: list[answer_forms.PageJobAnswer] = []
    total_bytes = 0
    async with call.api.slices(len(rows)) as slices:
        for number, row in enumerate(rows):
            await slices.rest_if_over()
            job = answer_forms.PageJobAnswer(**_members(row, offset_ms))
            row_bytes = _add_further(job, row, offset_ms, sees_all=sees_all)
            body = b""
            if with_bodies:
                try:
                    record = live_record(store, row.job_id)
                except JobNotFound:
                    continue
                if store.topic_of(record).name != topic:
                    continue
                body = body_of(record)
                row_bytes += len(body)
            total_bytes += row_bytes
            if jobs and total_bytes > limits.HTTP_PAGE_BYTES_MAX:
                before = rows[number - 1]
                return jobs, Cursor(before.due_ms, before.job_id)
            if with_bodies:
                set_body(job, body)
            jobs.append(job)
    return jobs, None


def _members(row: Row, offset_ms: int) -> dict[str, Any]:
    """Return the members of an answer that every job of a list has."""
    return {
        "id": row.job_id,
        "state": row.state.name.lower(),
        "due": moment_text(row.due_ms + offset_ms),
        "priority": row.priority,
        "key": row.key or UNSET,
    }


def _add_further(
    job: answer_forms.PageJobAnswer, row: Row, offset_ms: int, *, sees_all: bool
) -> int:
    """Add failure, target and texts; return how many bytes the first two have.

    The failure is written as JSON here, in a slice: a thousand errors of control characters take
    16 ms.
    """
    for name, value in row.texts.items():
        setattr(job, name, value)
    if row.target:
        target = own_target(row.target)
        job.url = (target if sees_all else masked(target)).url
        job.method = target.method
    if row.failed is None:
        return len(row.target)
    attempts, failure, note = row.failed
    text = msgspec.json.encode(failure_answer(failure, note, offset_ms, sees_all=sees_all))
    job.attempts = attempts
    job.failure = answer_forms.as_written(text)
    return len(text) + len(row.target)


# --- Many at once --------------------------------------------------------------------------------


async def cancel_jobs(call: Call) -> Reply:
    """Cancel all these jobs except reserved ones; every one of the topic only for an admin."""
    query: request_forms.CancelJobsForm = call.query
    if query.all:
        call.allow_all(Right(Scope.ADMIN, call.topic))
    return await _do(call, Action.cancel(), "cancelled")


async def kick_jobs(call: Call) -> Reply:
    """Make all these jobs ready that are delayed or buried."""
    return await _do(call, Action.kick(), "kicked")


async def reschedule_jobs(call: Call) -> Reply:
    """Give all these jobs that are delayed or ready a delay, or an absolute time."""
    form: request_forms.RescheduleForm = call.form
    moment_ms = call.api.moment_ms(form.at)
    if moment_ms is not None:
        return await _do(call, Action.reschedule_at(moment_ms), "rescheduled")
    assert isinstance(form.delay, int)
    return await _do(call, Action.reschedule(form.delay), "rescheduled")


async def _do(call: Call, action: Action, done: str) -> Reply:
    api, name = call.api, call.topic
    query: request_forms.ManyJobsForm = call.query
    wanted = _wanted(api, query, api.now_ms())
    bulk = Bulk(api.engine, name, wanted, action, dry_run=query.dry_run)
    return await carry_out_bulk(call, bulk, "matched" if query.dry_run else done)


# --- The calendar --------------------------------------------------------------------------------


async def calendar(call: Call) -> Reply:
    """Count the jobs that come due in each of a number of time spans, by topic."""
    api = call.api
    query: request_forms.HorizonForm = call.query
    names, after = await _asked_about(
        *(call, query, limits.HTTP_CALENDAR_TOPICS_MAX),
        lambda topic: bool(topic.delayed) and not topic.is_internal,
    )
    if query.names_moment:
        api.turns.look_at_wall_clock()
    from_ms = query.from_ms(api.now_ms(), api.engine.store.wall_times.offset_ms)
    bin_ms = -(-query.horizon_ms // query.bins)
    topics = []
    for name in names:
        try:
            counting = Calendar(api.engine, name, from_ms=from_ms, bin_ms=bin_ms, bins=query.bins)
            await api.carry_out(counting)
        except TopicNotFound:
            if query.topic:
                raise
            continue  # it was removed after the names were looked up
        topics.append(answer_forms.TopicCalendarAnswer(name=name, counts=counting.counts))
    answer = answer_forms.CalendarAnswer(
        from_=moment_text(api.wall_ms(from_ms)), bin=bin_ms / 1_000, topics=topics, after=after
    )
    async with api.slices(len(topics) * query.bins):
        return reply(200, answer)
