"""Arguments: bodies, durations, times, and the options of a put.

A body is `bytes`, which are kept as they are, `str`, kept as UTF-8, or any value for JSON.

>>> body_bytes("hello"), body_bytes({"to": "ada"})
(b'hello', b'{"to":"ada"}')
>>> seconds("1h30m"), seconds(dt.timedelta(minutes=5)), seconds(0.25), seconds("10")
(5400.0, 300.0, 0.25, 10.0)
>>> moment(dt.datetime(2030, 1, 1, 9, tzinfo=dt.UTC))
'2030-01-01T09:00:00+00:00'
"""

import binascii
import datetime as dt
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal, Required, TypedDict

from delayd.client.errors import wrong

Body = Any
"""`bytes`, `str`, or a value for JSON."""
Duration = float | str | dt.timedelta
"""Seconds, a text such as `"1h30m"`, or a timedelta."""
Moment = str | dt.datetime
"""RFC 3339 with an offset, or a datetime with a time zone."""
Bound = Duration | Moment
"""A time, or how far it is from now: `"1h"`, `"-15m"`."""
State = Literal["delayed", "ready", "reserved", "buried"]
GroupOrder = Literal["name", "ready", "oldest", "reserved"]
OnConflict = Literal["reject", "keep", "replace", "preserve", "extend"]
Outcome = Literal["created", "kept", "replaced", "preserved", "extended"]
Missed = Literal["latest", "none", "all"]
Overlap = Literal["allow", "skip", "queue_one"]

WAIT_MS_MAX: Final = 60_000
"""The longest wait of one request."""
SECONDS_MAX: Final = (1 << 32) - 1
"""The longest duration; the daemon's bound as well."""
PAGE_JOBS: Final = 1_000
"""So many jobs or topics are listed in one answer."""
_UNITS_S: Final = MappingProxyType(
    {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1, "ms": 0.001}
)
_NUMBER: Final = r"[0-9]+(?:\.[0-9]+)?"
# From the largest unit to the smallest, as the daemon reads it.
_DURATION: Final = "".join(rf"(?:({_NUMBER}){unit}\s*)?" for unit in _UNITS_S)
_DURATIONS: Final = ("delay", "ttr", "every", "window", "jitter")
_MOMENTS: Final = ("at", "start", "end")
EXAMPLE: Final = 'put_many("mail", [{"body": {"to": "ada"}}, {"body": "later", "delay": "1h"}])'
_DURATION_RULE: Final = 'must be seconds, or a duration such as "50ms", "15s" or "1h30m"'


class JobOptions(TypedDict, total=False):
    """What a job has besides its body, whether a client puts it or a run of a schedule."""

    priority: int
    """0, the most urgent, to 4,294,967,295; 65536 by default."""
    ttr: Duration
    """How long a worker may hold it; by default the topic's policy, or a minute."""
    group: str
    """The job's group."""
    retry: str | Sequence[Duration]
    """The retry ladder: `"15s 3m 10m"` or a list."""
    max_attempts: int
    """How often it is handed out at most."""
    jitter_percent: int
    """Lengthens each step of `retry` by up to this much."""
    url: str
    """Where the daemon delivers it when it is due, instead of handing it to a worker."""
    method: str
    """The HTTP method of that call."""
    headers: Mapping[str, str]
    """Headers of that call. HTTP only."""


class PutOptions(JobOptions, total=False):
    """The options of a put."""

    delay: Duration
    """How long until it is due; by default the topic's policy, or at once."""
    at: Moment
    """When it is due, in place of a delay. HTTP only."""
    key: str
    """A name of yours, unique among the live jobs of the topic."""
    on_conflict: OnConflict
    """What to do if the key is taken; `reject` by default."""
    instead_of: str
    """A job that ends as this one is put, `"TOPIC:ID"` or `"TOPIC:ID:KEY"`; JobNotFound without
    it. So a put that is sent again is refused, and never a second job."""
    idempotency_key: str
    """Makes a put without a key safe to repeat, for a day. HTTP only."""


class NewJob(PutOptions, total=False):
    """A job of a batch: its body, and the options of a put."""

    body: Required[Body]


class ScheduleOptions(JobOptions, total=False):
    """When the runs of a schedule are due, and what their jobs have besides topic and body."""

    cron: str
    """Five fields, or a name such as `@daily`; this or `every`."""
    every: Duration
    """The time from one run to the next, from a second to a year."""
    timezone: str
    """By which `cron` counts, such as `Europe/Berlin`; UTC by default."""
    start: Moment
    """No run is due before it; `every` counts from it, or from when the schedule was made."""
    end: Moment
    """No run is due after it."""
    limit: int
    """How many runs there are at most."""
    missed: Missed
    """Which of the runs that were due while no daemon ran are put late; `latest` by default."""
    window: Duration
    """Missed runs that are later than this are not put; without it there is no such bound."""
    overlap: Overlap
    """What to do while the run before is neither done nor dead; `allow` by default."""
    jitter: Duration
    """Delays all runs by the same time, below this, computed from the name; keys are without it."""


class NewSchedule(ScheduleOptions, total=False):
    """A schedule that is not made yet, to preview it."""

    topic: Required[str]
    body: Body


class Filter(TypedDict, total=False):
    """Which jobs of a topic; all of them by default."""

    state: State | Sequence[State]
    key_prefix: str
    reason: str
    """The id of a reason for which jobs are dead, as of `dead_reasons`."""
    group: str
    """Jobs of this group alone."""
    due_from: Bound
    due_to: Bound


class Timing(TypedDict, total=False):
    """When: one of the two."""

    delay: Duration
    at: Moment


class Changes(Timing, total=False):
    """Changes of a job; other fields stay."""

    priority: int
    ttr: Duration
    body: Body
    group: str | None
    """The job's group; None: none."""
    url: str | None
    """Where it is delivered; None: to workers. `headers` over HTTP only."""
    method: str
    headers: Mapping[str, str]


def listed(jobs: Iterable[NewJob]) -> list[NewJob]:
    """Return the jobs of a `put_many`. Raises TypeError with an example, and Invalid."""
    found: list[Any] = list(jobs)
    for number, job in enumerate(found):
        if not isinstance(job, dict):
            raise TypeError(f"each job is a dict with its body, and not {job!r:.80}: {EXAMPLE}")
        if "body" not in job:
            raise wrong(f"jobs[{number}].body", "is missing")
    return found


def text_bytes(text: object, field: str) -> bytes:
    """Return a note or a reason as it is sent. Raises Invalid."""
    try:
        return text.encode()  # type: ignore[attr-defined,no-any-return]  # which it may not have
    except (AttributeError, UnicodeEncodeError):
        raise wrong(field, "must be a text") from None


def body_bytes(body: Body) -> bytes:
    """Return a body as it is kept."""
    if isinstance(body, bytes):
        return body
    if isinstance(body, bytearray | memoryview):
        return bytes(body)
    return body.encode() if isinstance(body, str) else json_bytes(body)


def json_bytes(value: object) -> bytes:
    """Write JSON without spaces. Raises TypeError or ValueError for values that it cannot hold."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode()


def is_json(value: object) -> bool:
    """Tell whether JSON can hold it."""
    try:
        return bool(json_bytes(value))
    except (TypeError, ValueError):
        return False


def seconds(duration: Duration, field: str = "") -> float:
    """Read the duration of a field as seconds. Raises Invalid."""
    if isinstance(duration, dt.timedelta):
        return duration.total_seconds()
    if isinstance(duration, int | float) and not isinstance(duration, bool):
        return float(duration)
    text = duration.strip() if isinstance(duration, str) else ""
    if re.fullmatch(_NUMBER, text):
        return float(text)
    if not text or (parts := re.fullmatch(_DURATION, text)) is None:
        raise wrong(field, _DURATION_RULE)
    units = zip(parts.groups("0"), _UNITS_S.values(), strict=True)
    return sum(float(number) * unit_s for number, unit_s in units)


def waits(timeout: Duration | None) -> Iterator[float]:
    """Yield how long each of the requests waits that wait so long together; None: for ever.

    >>> list(waits("2m")), list(waits(0.0004)), list(waits(0))
    ([60.0, 60.0], [0.001], [0.0])
    """
    if timeout is None:
        return itertools.repeat(WAIT_MS_MAX / 1_000)
    return _waits(-(-seconds(timeout) * 1_000 // 1))


def _waits(left_ms: float) -> Iterator[float]:
    while True:
        wait_ms = min(left_ms, WAIT_MS_MAX)
        yield wait_ms / 1_000
        left_ms -= wait_ms
        if left_ms <= 0:
            return


def duration_value(duration: Duration) -> float | str:
    """Return a duration for JSON: a text stays as it is, and the daemon reads it."""
    return duration.total_seconds() if isinstance(duration, dt.timedelta) else duration


def moment(time: Moment, field: str = "") -> str:
    """Write a time as RFC 3339. Raises Invalid for one without a time zone."""
    if isinstance(time, str):
        return time
    if not isinstance(time, dt.datetime):
        raise wrong(field, "must be a datetime with a time zone, or RFC 3339")
    if time.tzinfo is None:
        raise wrong(field, f"{time!r} needs a time zone: dt.now(UTC), or .astimezone()")
    return time.isoformat()


def job_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a job or a schedule as JSON has them. Raises Invalid."""
    fields = {name: value for name, value in options.items() if value is not None or name == "body"}
    for name in _DURATIONS:
        if name in fields:
            fields[name] = duration_value(fields[name])
    for name in _MOMENTS:
        if name in fields:
            fields[name] = moment(fields[name], name)
    if isinstance(fields.get("retry"), Sequence) and not isinstance(fields["retry"], str | bytes):
        fields["retry"] = [duration_value(step) for step in fields["retry"]]
    if isinstance(fields.get("headers"), Mapping):
        fields["headers"] = dict(fields["headers"])
    if isinstance(fields.get("body"), bytes | bytearray | memoryview | str):
        text = binascii.b2a_base64(body_bytes(fields.pop("body")), newline=False)
        fields["body_base64"] = text.decode()
    return fields


def tag_word(tag: object) -> str:
    """Return the tag of a policy as it can stand in a line or a header. Raises Invalid."""
    if not isinstance(tag, str) or not re.fullmatch("[0-9a-f]{16}", tag):
        raise wrong("if_tag", f"{tag!r:.80} is not the policy_tag of a policy")
    return tag
