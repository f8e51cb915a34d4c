"""What both protocols say of schedules: definitions written, answers checked and read.

The line has the same JSON as HTTP, so that it is written and read here for both.

>>> definition_json({"topic": "reports", "cron": "@daily", "body": "x"})
b'{"topic":"reports","cron":"@daily","body_base64":"eA=="}'
>>> answer = {"runs": ["2030-01-01T02:30:00Z"], "timezone": "UTC", "tzdata": "2026a"}
>>> read_preview(answer).runs[0].isoformat()
'2030-01-01T02:30:00+00:00'
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from delayd.client.answers import (
    array_in,
    base64_in,
    body_texts,
    checked,
    decoder,
    member,
    members,
    named,
    read_moment,
    shown,
    text_in,
)
from delayd.client.errors import NotUnderstood, ScheduleInvalid, wrong
from delayd.client.limits import PREVIEW_RUNS_MAX, SCHEDULES_PAGE_MAX
from delayd.client.results import ScheduleInfo, SchedulePreview
from delayd.client.values import is_json, job_fields, json_bytes

NoneType: Final = type(None)
_NAME: Final = r"(?!\.{1,2}$)[A-Za-z0-9+/;.$_()][A-Za-z0-9+/;.$_()-]{0,174}"
_NAME_RULE: Final = (
    "must be 1 to 175 of A-Z a-z 0-9 - + / ; . $ _ ( ), must not begin with -,"
    " and must not be . or .."
)


def schedule_word(name: str, field: str = "name") -> str:
    """Return a schedule's name as it can stand in a line or a path. Raises ScheduleInvalid."""
    if not re.fullmatch(_NAME, name):
        raise ScheduleInvalid(f"{field}: {name!r:.200} {_NAME_RULE}", "BAD_FORMAT")
    return name


def definition_json(options: Mapping[str, Any]) -> bytes:
    """Write a definition, with its body. Raises Invalid for what JSON cannot hold."""
    fields = job_fields(options)
    try:
        return json_bytes(fields)
    except (TypeError, ValueError):
        for name, value in fields.items():
            if name != "body" and not is_json(value):
                raise wrong(name, "is nothing that JSON can say") from None
        raise


def preview_json(options: Mapping[str, Any]) -> bytes:
    """Write a definition that needs no body."""
    return definition_json({"body": b"", **options})


# --- Reading -------------------------------------------------------------------------------------


def read_schedule(answer: object, text: bytes) -> ScheduleInfo:
    """Read the answer about one schedule, and the text that it was."""
    return _schedule(answer, body_texts(text))


def read_changed(answer: object, text: bytes) -> ScheduleInfo:
    """Read the answer about a schedule that was changed.

    It is short for those who may not look at the schedule.
    """
    if "definition" in members(answer):
        return read_schedule(answer, text)
    return named(ScheduleInfo, answer, details=members(answer))


def read_page(
    answer: object, text: bytes, after: str | None
) -> tuple[list[ScheduleInfo], str | None]:
    """Read a page of schedules that follow `after`; return `after` of the next one."""
    found, next_after = array_in(answer, "schedules"), member(answer, "after")
    checked("after", next_after, str, NoneType)
    if len(found) > SCHEDULES_PAGE_MAX or (next_after and next_after <= (after or "")):
        raise NotUnderstood(f"a page of {len(found)} schedules and `after` {shown(next_after)}")
    texts = body_texts(text)
    return [_schedule(each, texts) for each in found], next_after or None


def read_preview(answer: object) -> SchedulePreview:
    """Read when runs are due."""
    runs = array_in(answer, "runs")
    if len(runs) > PREVIEW_RUNS_MAX:
        raise NotUnderstood(f"a preview of {len(runs)} runs")
    return named(SchedulePreview, answer, runs=[read_moment(run, "runs") for run in runs])


def _schedule(answer: object, texts: Iterator[bytes]) -> ScheduleInfo:
    definition = {**members(member(answer, "definition"))}
    body = _body_of(definition, texts)
    fields = {**members(answer), "topic": text_in(definition, "topic")}
    return named(ScheduleInfo, fields, definition=definition, body=body, details=members(answer))


def _body_of(definition: dict[str, Any], texts: Iterator[bytes]) -> bytes | None:
    """Take the body out of a definition, as its very text; None: it is not shown."""
    if "body" in definition:
        body = definition.pop("body")
        for text in texts:  # a header may have the name `body` as well
            if decoder().decode(text.decode()) == body:
                return text
        raise NotUnderstood("the body of a schedule does not stand where delayd writes it")
    if "body_base64" in definition:
        body = base64_in(definition, "body_base64")
        del definition["body_base64"]
        return body
    return None
