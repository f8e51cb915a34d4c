"""Schedules: make, change, remove, pause, resume, run, backfill, list, show, preview.

Looking at a schedule takes the right to look at the jobs of its topic, and changing it the right to
put such jobs there. For clients that have neither it does not exist; those that may only change it
are answered no more than what they changed.

`delayd.schedules` is imported when the first call is about a schedule: most daemons have none.
"""

from functools import partial
from typing import TYPE_CHECKING, Any

from delayd.access.authorize import denial_of, taken_by_others, to_schedule
from delayd.access.principal import EVERYBODY
from delayd.access.scopes import Scope
from delayd.core.errors import ScheduleNotFound
from delayd.http import answer_forms, request_forms
from delayd.http.api import Call
from delayd.http.problems import Forbidden
from delayd.http.responses import NO_CONTENT, Reply, refused, reply
from delayd.http.values import UNSET
from delayd.moments import moment_text
from delayd.schedules.definition import Definition

if TYPE_CHECKING:
    from delayd.schedules.book import Schedule
    from delayd.schedules.schedules import Change


def _allowed(call: Call, name: str = "", *, hidden: Exception | None = None) -> "Schedule":
    """Return the schedule of that name, or of the path's.

    `ScheduleNotFound`, or `hidden`, also where the client may not see it.
    """
    name, principal = name or call.names["name"], call.principal
    schedule = call.api.schedules().load(name)
    if principal is EVERYBODY:
        return schedule
    rights = to_schedule(
        call.scope or Scope.PUT, schedule.definition.topic, schedule.definition.url
    )
    if (denial := denial_of(principal, *rights, hides=True)) is not None:
        if denial.is_hidden:
            raise hidden or ScheduleNotFound(name)
        raise Forbidden(denial.lack)
    return schedule


async def _answered(call: Call, name: str, note: str = "", change: "Change | None" = None) -> Reply:
    """Answer a schedule as it is now, when its changes are durable.

    To those who may not look at it only what they have just said or set, a `note` for example.
    """
    from delayd.schedules.shown import shown_change, shown_schedule  # noqa: PLC0415

    schedules = call.api.schedules()
    schedule = schedules.load(name)
    topic = schedule.definition.topic
    if call.principal.may(Scope.PEEK, topic):
        shown = shown_schedule(schedules, schedule, sees_secrets=call.is_admin(topic))
    else:
        shown = shown_change(schedules, schedule, note)
    if change is not None:
        shown["change"] = change.value
    return _reply(shown, 201 if shown.get("change") == "created" else 200, waits_for_log=True)


def _with_now(call: Call, shown: dict[str, Any]) -> dict[str, Any]:
    """Return an answer with the daemon's time, which is not the reader's on a virtual clock."""
    return {**shown, "now": moment_text(call.api.wall_ms(call.api.now_ms()))}


def _reply(shown: dict[str, Any], status: int = 200, *, waits_for_log: bool = False) -> Reply:
    from delayd.schedules.shown import as_json  # noqa: PLC0415

    return Reply(status, as_json(shown), waits_for_log=waits_for_log)


# --- Changes -------------------------------------------------------------------------------------


async def set_schedule(call: Call) -> Reply:
    """Make the schedule, or give it this definition."""
    name, schedules = call.names["name"], call.api.schedules()
    definition, body = Definition.from_json(call.data)
    call.allow_all(*to_schedule(Scope.PUT, definition.topic, definition.url))
    if name in schedules.book.index:
        _allowed(call, hidden=Forbidden(taken_by_others(name)))
    _, change = schedules.set(name, definition, body, call.api.now_ms())
    return await _answered(call, name, change=change)


async def remove(call: Call) -> Reply:
    """Remove the schedule, and none of its jobs."""
    schedule = _allowed(call)
    call.api.schedules().remove(schedule.name, call.api.now_ms())
    return Reply(NO_CONTENT, waits_for_log=True)


async def pause(call: Call) -> Reply:
    """Have no runs for now."""
    form: request_forms.NoteForm = call.form
    name = _allowed(call).name
    call.api.schedules().pause(name, form.note, call.api.now_ms())
    return await _answered(call, name, note=form.note)


async def resume(call: Call) -> Reply:
    """Go on with the runs that follow."""
    name = _allowed(call).name
    call.api.schedules().resume(name, call.api.now_ms())
    return await _answered(call, name)


async def run(call: Call) -> Reply:
    """Put the job of a run now, besides those that are due."""
    name = _allowed(call).name
    job_id, key, outcome = call.api.schedules().run_now(name, call.api.now_ms())
    return await call.answered(answer_forms.RanAnswer(id=job_id, key=key, outcome=outcome))


async def backfill(call: Call) -> Reply:
    """Put the jobs of the runs of a past range; also if a refusal has ended it early."""
    form: request_forms.BackfillForm = call.form
    until_ms = None if form.until is UNSET else form.until
    work = call.api.schedules().backfill(_allowed(call).name, form.from_, until_ms)
    await call.carry_out(work)
    if work.refusal is not None:
        return refused(work.refusal, put=work.put)
    return reply(200, answer_forms.BackfilledAnswer(put=work.put, kept=work.kept))


# --- Looking -------------------------------------------------------------------------------------


async def get(call: Call) -> Reply:
    """Answer the schedule of the path."""
    return await _answered(call, _allowed(call).name)


async def list_schedules(call: Call) -> Reply:
    """Answer one page of the schedules that the token may see, sorted by name."""
    from delayd.schedules.shown import SchedulePage  # noqa: PLC0415

    query: request_forms.ListSchedulesForm = call.query
    principal = call.principal
    topic = "" if query.topic is UNSET else str(query.topic)
    if topic:
        call.allow(topic)
    call.allow_some()
    page = SchedulePage(
        call.api.schedules(),
        partial(principal.may, Scope.PEEK),
        call.is_admin,
        limit=query.limit,
        topic=topic,
        prefix=query.prefix,
        after="" if query.after is UNSET else str(query.after),
        cost=1 + principal.cost_us,
    )
    await call.api.carry_out(page)
    async with call.api.slices():
        return _reply(_with_now(call, page.page))


async def preview(call: Call) -> Reply:
    """Answer when the next runs of the schedule are due."""
    from delayd.schedules.shown import shown_runs  # noqa: PLC0415

    query: request_forms.PreviewForm = call.query
    schedules, schedule = call.api.schedules(), _allowed(call)
    runs_ms = schedules.next_runs(schedule, query.count)
    shown = shown_runs(schedules, schedule.definition, runs_ms)
    return _reply(_with_now(call, shown), waits_for_log=True)


async def preview_new(call: Call) -> Reply:
    """Answer when the runs would be due of a schedule that is made now, or changed."""
    from delayd.schedules.shown import shown_runs  # noqa: PLC0415

    query: request_forms.PreviewNewForm = call.query
    schedules = call.api.schedules()
    definition, _ = Definition.from_json(call.data)
    call.allow(definition.topic)
    name = "" if query.name is UNSET else str(query.name)
    if name in schedules.book.index:
        _allowed(call, name, hidden=Forbidden(taken_by_others(name)))
    runs_ms = schedules.preview(name, definition, query.count)
    return _reply(_with_now(call, shown_runs(schedules, definition, runs_ms)))
