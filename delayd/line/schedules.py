"""The commands about schedules; loaded with the first of them, since most daemons have none.

Looking at a schedule takes the right to look at the jobs of its tube, and changing it the right to
put such jobs there. For clients that have neither it does not exist.

    schedule-put nightly 45 ─► body: JSON ─► `Definition.from_json` ─► may the client? ─► `set`

What is shown is the JSON of the HTTP API (`schedules.shown`).
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from delayd.access.authorize import Denial, Right, taken_by_others, to_schedule
from delayd.access.scopes import Scope
from delayd.core.errors import ScheduleNotFound
from delayd.core.operations.put import Outcome
from delayd.core.times import RequestMs
from delayd.limits import (
    LONG_LINE_BYTES_MAX,
    SCHEDULE_JSON_BYTES_MAX,
    SCHEDULE_PREVIEW_DEFAULT,
)
from delayd.line import replies
from delayd.line.connection import LineConnection
from delayd.line.grammar import SchedulesLine
from delayd.moments import moment_text
from delayd.schedules.definition import Definition
from delayd.schedules.shown import SchedulePage, as_json, shown_runs, shown_schedule


def denial_of(client: LineConnection, scope: Scope, name: str) -> Denial | None:
    """Return why a client may not do this to the schedule; None: it may, or there is none."""
    try:
        definition = client.context.schedules().book.load(name).definition
    except ScheduleNotFound:
        return None
    return client.denial_of(*to_schedule(scope, definition.topic, definition.url), hides=True)


# --- Changes -------------------------------------------------------------------------------------


def _put(client: LineConnection, args: tuple[str, int], _now_ms: RequestMs) -> bytes:
    name, json_bytes = args

    def set_it(text: bytes, now_ms: RequestMs) -> bytes:
        definition, body = Definition.from_json(text)
        denial = client.denial_of(*to_schedule(Scope.PUT, definition.topic, definition.url))
        if (denial := denial or denial_of(client, Scope.PUT, name)) is not None:
            lack = taken_by_others(name) if denial.is_hidden else denial.lack
            return client.refuse(replies.forbidden(lack))
        _, change = client.context.schedules().set(name, definition, body, now_ms)
        return b"SCHEDULED %b\r\n" % change.value.encode()

    # Of a body in base64 four characters are three bytes.
    longest_bytes = SCHEDULE_JSON_BYTES_MAX + 4 * (client.engine.body_bytes_max // 3 + 1)
    return client.expect(json_bytes, set_it, longest_bytes)


def _delete(client: LineConnection, name: str, now_ms: RequestMs) -> bytes:
    client.context.schedules().remove(name, now_ms)
    return replies.DELETED


def _pause(client: LineConnection, args: tuple[str, int], _now_ms: RequestMs) -> bytes:
    name, note_bytes = args

    def pause(note: bytes, now_ms: RequestMs) -> bytes:
        # Before the note came there may have been none of that name, or one for another tube.
        if (denial := denial_of(client, Scope.PUT, name)) is not None:
            if denial.is_hidden:
                raise ScheduleNotFound(name)
            return client.refuse(replies.forbidden(denial.lack))
        client.context.schedules().pause(name, note.decode(errors="replace"), now_ms)
        return replies.PAUSED

    return client.expect(note_bytes, pause, LONG_LINE_BYTES_MAX)  # the core refuses what is longer


def _resume(client: LineConnection, name: str, now_ms: RequestMs) -> bytes:
    client.context.schedules().resume(name, now_ms)
    return b"RESUMED\r\n"


def _run(client: LineConnection, name: str, now_ms: RequestMs) -> bytes:
    job_id, key, outcome = client.context.schedules().run_now(name, now_ms)
    kept = b" kept" if outcome is Outcome.KEPT else b""
    return b"RAN %d %b%b\r\n" % (job_id, key.encode(), kept)


def _backfill(
    client: LineConnection, args: tuple[str, int, int | None], _now_ms: RequestMs
) -> bytes:
    work = client.context.schedules().backfill(*args)

    def reply() -> bytes:
        if work.refusal is not None:
            return client.refuse_with(work.refusal, done=work.put)
        return b"BACKFILLED %d %d\r\n" % (work.put, work.kept)

    return client.begin(work, reply)


# --- Looking -------------------------------------------------------------------------------------


def _get(client: LineConnection, name: str, _now_ms: RequestMs) -> bytes:
    schedules = client.context.schedules()
    schedule = schedules.load(name)
    sees_secrets = client.may(Scope.ADMIN, schedule.definition.topic)
    shown = shown_schedule(schedules, schedule, sees_secrets=sees_secrets)
    return client.long_reply(replies.ok(as_json(shown)))


def _list(client: LineConnection, wanted: SchedulesLine, _now_ms: RequestMs) -> bytes:
    if wanted.topic and (denial := client.denial_of(Right(Scope.PEEK, wanted.topic))) is not None:
        return client.refuse(replies.forbidden(denial.lack))
    page = SchedulePage(
        client.context.schedules(),
        partial(client.may, Scope.PEEK),
        partial(client.may, Scope.ADMIN),
        limit=wanted.limit,
        topic=wanted.topic,
        prefix=wanted.prefix,
        after=wanted.after,
        cost=1 + client.visible_us,
    )
    return client.begin(page, lambda: client.long_reply(replies.ok(as_json(page.page))))


def _preview(client: LineConnection, args: tuple[str, int | None], now_ms: RequestMs) -> bytes:
    name, count = args
    schedules = client.context.schedules()
    schedule = schedules.load(name)
    runs_ms = schedules.next_runs(schedule, count or SCHEDULE_PREVIEW_DEFAULT)
    shown = shown_runs(schedules, schedule.definition, runs_ms)
    shown["now"] = moment_text(now_ms + client.engine.store.wall_times.offset_ms)
    return client.long_reply(replies.ok(as_json(shown)))


HANDLERS: Final[Mapping[str, Callable[[LineConnection, Any, RequestMs], bytes]]] = MappingProxyType(
    {
        "schedule-put": _put,
        "schedule-get": _get,
        "schedule-delete": _delete,
        "schedule-pause": _pause,
        "schedule-resume": _resume,
        "schedule-run": _run,
        "schedule-backfill": _backfill,
        "schedule-preview": _preview,
        "schedules": _list,
    }
)
"""By the words of the commands."""
