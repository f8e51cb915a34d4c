"""Schedules as clients see them, over HTTP and on the line: plain values, to be written as JSON.

    shown_schedule      everything about one: what it is, and what has become of its runs
    shown_change        what one is told of its own change who may not look at it
    shown_runs          when runs are due
    SchedulePage        a page of those that a client may see, in slices

Lengths of time are texts, moments RFC 3339 in UTC. The body is the very text where that is JSON.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final, final

import msgspec

from delayd.core.targets import masked
from delayd.core.times import RequestMs
from delayd.json_text import is_json
from delayd.limits import HTTP_PAGE_BYTES_MAX, PASS_ACTION_COST
from delayd.moments import moment_text
from delayd.schedules.book import Schedule
from delayd.schedules.definition import BODY_FIELDS, Definition
from delayd.schedules.runner import REFUSED, run_key
from delayd.schedules.schedules import Schedules

CONFIGURATION: Final = "configuration"
RUN_TIME: Final = "run_time"

_SHOWN_COST: Final = 4 * PASS_ACTION_COST
"""Names that could have been looked at in the time it takes to show a schedule: 20 us."""
as_json: Final = msgspec.json.Encoder().encode
"""Writes what is shown here as JSON."""


def shown_schedule(
    schedules: Schedules, schedule: Schedule, *, sees_secrets: bool
) -> dict[str, Any]:
    """Return everything about a schedule that `Schedules.load` or a change has returned.

    Without `sees_secrets` the query of its url and the values of its headers are left out.
    """
    progress = schedule.progress
    next_runs = schedules.next_runs(schedule, 1)
    shown = {
        "name": schedule.name,
        "definition": _definition(schedule, sees_secrets=sees_secrets),
        "source": CONFIGURATION if progress.is_configured else RUN_TIME,
        "state": progress.state.value,
        "next": moment_text(next_runs[0]) if next_runs else None,
        "created": moment_text(progress.created_ms),
        "changed": _moment(progress.changed_ms),
        "runs": progress.runs,
        "missed": progress.missed,
        "last_missed": _moment(progress.missed_ms),
        "skipped": progress.skipped,
        "refused": progress.refused,
        "late": progress.late,
        "last": _last(schedules, schedule),
        "queued": _moment(progress.queued_ms),
        "tzdata": schedules.runner.tzdata,
    }
    if progress.is_paused:
        shown["note"] = progress.note
    return shown


def shown_change(schedules: Schedules, schedule: Schedule, note: str = "") -> dict[str, Any]:
    """Return what the client itself has said or set, without what others have, or the body.

    `note`: with which it has just paused the schedule.
    """
    next_runs = schedules.next_runs(schedule, 1)
    shown: dict[str, Any] = {
        "name": schedule.name,
        "topic": schedule.definition.topic,
        "state": schedule.progress.state.value,
        "next": moment_text(next_runs[0]) if next_runs else None,
    }
    if note:
        shown["note"] = note
    return shown


def _moment(wall_ms: int) -> str | None:
    return moment_text(wall_ms) if wall_ms else None


def _definition(schedule: Schedule, *, sees_secrets: bool) -> dict[str, Any]:
    definition, body = schedule.definition, schedule.body
    if not sees_secrets and (target := definition.target) is not None:
        hidden = masked(target)
        definition = msgspec.structs.replace(definition, url=hidden.url, headers=hidden.headers)
    as_text, as_base64 = BODY_FIELDS
    fields = definition.to_fields()
    if is_json(body):
        fields[as_text.name] = msgspec.Raw(body)
    else:
        fields[as_base64.name] = as_base64.kind.show(body)
    return fields


def _last(schedules: Schedules, schedule: Schedule) -> dict[str, Any] | None:
    """Return the last run, or that it was refused; None: there was none."""
    name, progress = schedule.name, schedule.progress
    if progress.outcome == REFUSED:
        job_id, nominal_ms = None, progress.refused_ms
    elif progress.run_id:
        job_id, nominal_ms = progress.run_id, progress.run_ms
    else:
        return None
    return {
        "key": run_key(name, nominal_ms).decode(),
        "id": job_id,
        "due": moment_text(nominal_ms),
        "outcome": progress.outcome,
        "error": schedules.error_of_last(schedule) or None,
    }


def shown_runs(
    schedules: Schedules, definition: Definition, runs_ms: Iterable[int]
) -> dict[str, Any]:
    """Return when runs are due, and by which clock."""
    return {
        "runs": [*map(moment_text, runs_ms)],
        "timezone": definition.timezone,
        "tzdata": schedules.runner.tzdata,
    }


@final
class SchedulePage(msgspec.Struct, eq=False):
    """Looks for one page of schedules, by name; a background task (`core.background_tasks`)."""

    schedules: Schedules
    may_see: Callable[[str], bool]
    """Tells whether schedules of a topic are shown to the client."""
    is_admin: Callable[[str], bool]
    """Tells whether they are shown with secrets."""
    limit: int
    topic: str = ""
    """Only those that put jobs there; empty: all."""
    prefix: str = ""
    after: str = ""
    """The name of the last one that was looked at."""
    cost: int = 1
    """As long as to look at so many names takes it to tell whether one is shown."""
    last: str = ""
    """The name of the last one that is shown: no client learns another from the page."""
    size: int = 0
    found: list[msgspec.Raw] = []
    has_more: bool = False

    def __post_init__(self) -> None:
        self.last = self.after

    @property
    def page(self) -> dict[str, Any]:
        """What was found, and the name after which the next page begins; None: that was all."""
        return {"schedules": self.found, "after": self.last if self.has_more else None}

    def step(self, budget: int, _now_ms: RequestMs) -> bool:
        """Look at so many more names, or show fewer; tell whether the page is full, or the last."""
        for name, topic in self.schedules.names_after(self.after, self.prefix):
            if budget <= 0:
                return False
            budget -= self.cost
            if (not self.topic or topic == self.topic) and self.may_see(topic):
                if len(self.found) == self.limit or self.size > HTTP_PAGE_BYTES_MAX:
                    self.has_more = True
                    return True
                budget -= _SHOWN_COST
                self._show(name, topic)
            self.after = name
        return True

    def _show(self, name: str, topic: str) -> None:
        schedule = self.schedules.load(name)
        sees_secrets = self.is_admin(topic)
        text = as_json(shown_schedule(self.schedules, schedule, sees_secrets=sees_secrets))
        self.found.append(msgspec.Raw(text))
        self.last = name
        self.size += len(text)
