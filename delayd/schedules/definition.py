r"""What a schedule is: when its runs are due, what is put then, and what becomes of missed ones.

Clients say it as a JSON object, the configuration as a table; `FIELDS` has a row for each field.

>>> definition, body = Definition.from_json(b'{"topic": "mail", "every": "15m", "body": {"a": 1}}')
>>> definition.every_ms, body, definition.missed.value
(900000, b'{"a": 1}', 'latest')
>>> definition.to_fields()
{'topic': 'mail', 'every': '15m'}
>>> try: Definition.from_json(b'{"every": "1ms", "bdy": 1}')
... except ScheduleInvalid as refusal: print(*refusal.errors, sep="\n")
every = "1ms": must be from "1s" to "52w2d"
bdy: there is no such field; did you mean body?
topic: is missing
body: is missing: give body or body_base64

A definition never changes: to alter a schedule is to give it another one. It is kept as JSON by its
inside names, in the units of the core.
"""

import base64
import binascii
import enum
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from delayd.core.errors import ScheduleInvalid
from delayd.core.job_parts import TEXTS, Own, Retry
from delayd.core.names import INTERNAL_TOPICS, TOPIC
from delayd.core.policy import ATTEMPTS, JITTER_PERCENT, LADDER
from delayd.core.targets import HEADERS, METHOD, URL, Target
from delayd.durations import duration_text
from delayd.fields import (
    BASE64,
    MOMENT,
    TTR,
    Field,
    Invalid,
    ValueKind,
    Wrong,
    duration,
    matching,
    member_of,
    read_all,
    shown,
    text_schema,
    whole,
    written,
)
from delayd.json_text import is_json, why_not_json
from delayd.limits import (
    CAP_MAX,
    HTTP_CONTAINERS_MAX,
    PRIORITY_DEFAULT,
    PRIORITY_MAX,
    SCHEDULE_GRACE_MS,
    SCHEDULE_JITTER_MS_MAX,
    SCHEDULE_JSON_BYTES_MAX,
    SCHEDULE_NAME_BYTES_MAX,
)
from delayd.moments import moment_text
from delayd.schedules.cron import CRON
from delayd.schedules.recurrence import EVERY, Recurrence
from delayd.schedules.zones import TIME_ZONE

NAME_RULE: Final = (
    f"must be 1 to {SCHEDULE_NAME_BYTES_MAX} of A-Z a-z 0-9 - + / ; . $ _ ( ), must not begin"
    " with -, and must not be . or .., which browsers take out of paths"
)
NAME_PATTERN: Final = (
    rf"(?!\.{{1,2}}$)[A-Za-z0-9+/;.$_()][-A-Za-z0-9+/;.$_()]{{0,{SCHEDULE_NAME_BYTES_MAX - 1}}}"
)
NAME: Final = matching(NAME_PATTERN, NAME_RULE).described("A schedule's name.", "nightly-report")
# What a put takes and a schedule does not: why, instead of the field with the nearest name.
_OF_A_PUT: Final = {
    "key": "is not for schedules: the job of a run has the key NAME@TIME",
    "on_conflict": "is not for schedules: a run whose job is there is left alone",
    "delay": "is not for schedules: cron or every says when, start from when on",
    "at": "is not for schedules: cron or every says when, start from when on",
}
_BASE64_RULE: Final = "must be base64"
_NO_BODY: Final = (
    f"has a number that is too large, or more than {HTTP_CONTAINERS_MAX} arrays and objects: give"
    " it as body_base64"
)


class Missed(enum.Enum):
    """Which runs are put late that were due while no daemon ran."""

    LATEST = "latest"
    """The newest."""
    NONE = "none"
    """The newest if it is at most `SCHEDULE_GRACE_MS` late."""
    ALL = "all"
    """All, or the newest `SCHEDULE_MADE_UP_MAX` of them."""


class Overlap(enum.Enum):
    """What becomes of a run that is due while the one before is neither done nor dead."""

    ALLOW = "allow"
    SKIP = "skip"
    QUEUE_ONE = "queue_one"
    """It waits until that has ended; a further one is skipped."""


class VerbatimJson(bytes):
    """A JSON value as the client wrote it."""

    __slots__ = ()


def _read_body(value: object) -> bytes:
    if isinstance(value, VerbatimJson):
        return bytes(value)
    try:
        if not _is_finite(value):
            raise ValueError  # msgspec would write null
        return msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError):  # times of TOML can be written
        raise ValueError("must be a value that can be written as JSON") from None


def _is_finite(value: object) -> bool:
    match value:
        case float():
            return math.isfinite(value)
        case list():
            return all(map(_is_finite, value))
        case dict():
            return all(map(_is_finite, value.values()))
    return True


def _read_base64(value: object) -> bytes:
    if not isinstance(value, str):
        raise ValueError(_BASE64_RULE)  # noqa: TRY004 - as for all that is wrong
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(_BASE64_RULE) from None


def _show_base64(body: bytes) -> str:
    return base64.b64encode(body).decode()


def _as_text(kind: ValueKind) -> ValueKind:
    """Return the kind of a part of jobs as a definition has it: not in bytes."""
    return kind._replace(read=lambda value: kind.read(value).decode())


BODY: Final = ValueKind(_read_body).described(
    "Of each run's job: any JSON value, handed on as the very text."
)
BODY_BASE64: Final = ValueKind(_read_base64, _show_base64, text_schema(BASE64)).described(
    "The same, any bytes, in base64."
)

FIELDS: Final = (
    Field("topic", "topic", TOPIC, is_needed=True),
    Field("cron", "cron", CRON),
    Field("every", "every_ms", EVERY),
    Field("timezone", "timezone", TIME_ZONE),
    Field("start", "start_ms", MOMENT),
    Field("end", "end_ms", MOMENT),
    Field("limit", "limit", whole(1, CAP_MAX)),
    Field("missed", "missed", member_of(Missed)),
    Field("window", "window_ms", TTR),
    Field("overlap", "overlap", member_of(Overlap)),
    Field("jitter", "jitter_ms", duration(0, SCHEDULE_JITTER_MS_MAX)),
    Field("priority", "priority", whole(0, PRIORITY_MAX)),
    Field("ttr", "ttr_ms", TTR),
    Field("retry", "retry_ms", LADDER),
    Field("max_attempts", "attempts_max", ATTEMPTS),
    Field("jitter_percent", "jitter_percent", JITTER_PERCENT),
    *(Field(name, name, _as_text(kind)) for name, kind in TEXTS.items()),
    Field("url", "url", URL),
    Field("method", "method", METHOD),
    Field("headers", "headers", HEADERS, is_secret=True),
)
"""Of a definition; the body, by one of the two other names, is kept beside it."""
BODY_FIELDS: Final = (
    Field("body", "body", BODY),
    Field("body_base64", "body_base64", BODY_BASE64),
)


class Definition(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a client or the configuration says of a schedule, its body aside."""

    topic: str
    """Where the job of each run is put."""
    cron: str | None = None
    """Five fields; either this or `every_ms`."""
    every_ms: int | None = None
    """From `start_ms` on, or from when the schedule was made; not from the end of the last run."""
    timezone: str = "UTC"
    """By which `cron` counts: a name of the IANA database."""
    start_ms: int | None = None
    """By the wall clock: no run is due before it."""
    end_ms: int | None = None
    """By the wall clock: no run is due after it."""
    limit: int | None = None
    """How many runs there are at most."""
    missed: Missed = Missed.LATEST
    window_ms: int | None = None
    """Runs that are later are not put; None: there is no such bound."""
    overlap: Overlap = Overlap.ALLOW
    jitter_ms: int = 0
    """All runs are delayed by the same time, below this, which is computed from the name."""

    priority: int = PRIORITY_DEFAULT
    ttr_ms: int | None = None
    """None: the topic's."""
    retry_ms: tuple[int, ...] = ()
    attempts_max: int = 0
    jitter_percent: int = 0
    group: str | None = None
    url: str | None = None
    method: str = "POST"
    headers: tuple[tuple[str, str], ...] = ()

    @staticmethod
    def from_json(text: bytes) -> "tuple[Definition, bytes]":
        """Read a schedule; return its definition and its body. Raises `ScheduleInvalid`."""
        try:
            text.decode()  # msgspec checks no text that is kept as it is
            raw = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
            fields = {
                name: VerbatimJson(value) if name == "body" else msgspec.json.decode(value)
                for name, value in raw.items()
            }
        except msgspec.ValidationError:
            raise ScheduleInvalid([Wrong("", "it is not a JSON object")]) from None
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            why = why_not_json(text, str(error))
            raise ScheduleInvalid([Wrong("", f"it is not JSON: {why}")]) from None
        if sum(len(name) + len(value) for name, value in raw.items() if name not in _BODIES) > (
            SCHEDULE_JSON_BYTES_MAX
        ):
            rule = f"it is longer than {SCHEDULE_JSON_BYTES_MAX} bytes without its body"
            raise ScheduleInvalid([Wrong("", rule)])
        if "body" in raw and not is_json(bytes(raw["body"])):  # though it was read
            raise ScheduleInvalid([Wrong("body", _NO_BODY)])
        return Definition.from_fields(fields)

    @staticmethod
    def from_fields(fields: Mapping[str, object]) -> "tuple[Definition, bytes]":
        """Make a schedule of fields by their outside names; null says nothing.

        Returns its definition and its body. Raises `ScheduleInvalid` with all that is wrong.
        """
        try:
            values = read_all(fields, (*FIELDS, *BODY_FIELDS), takes_null=True)
        except Invalid as wrong:
            errors = [*map(_explained, wrong.errors), *_missing(fields)]
            raise ScheduleInvalid(errors) from None
        bodies = [values.pop(name) for name in _BODIES if name in values]
        errors = [*_missing(fields), *_broken_rules(values, len(bodies))]
        if errors:
            raise ScheduleInvalid(errors)
        return Definition(**values), bodies[0]

    def to_fields(self) -> dict[str, Any]:
        """Write it as `from_fields` reads it; what says nothing is left out."""
        return written(FIELDS, self, _NOTHING)

    def recurrence(self, created_ms: int) -> Recurrence:
        """Return when its runs are due; without a start `every` counts from `created_ms`.

        Raises `ScheduleInvalid` if the time zone is not there any more.
        """
        start_ms = self.start_ms
        if start_ms is None:
            start_ms = 0 if self.every_ms is None else created_ms
        try:
            return Recurrence(
                cron=self.cron,
                every_ms=self.every_ms,
                timezone=self.timezone,
                start_ms=start_ms,
                end_ms=self.end_ms,
            )
        except ValueError as error:  # of a database of time zones that has lost this one
            raise ScheduleInvalid([Wrong("timezone", str(error), shown(self.timezone))]) from None

    @property
    def own(self) -> Own | None:
        """What each job has of its own, without its target."""
        texts = {name: text.encode() for name in TEXTS if (text := getattr(self, name))}
        retry = None
        if self.retry_ms or self.attempts_max:
            retry = Retry(self.retry_ms, self.attempts_max, self.jitter_percent)
        return Own(retry=retry, **texts) if retry or texts else None

    @property
    def target(self) -> Target | None:
        """Where each job is sent; None: workers take them, or the topic's policy says."""
        if self.url is None:
            return None
        return Target(url=self.url, method=self.method, headers=self.headers)


_BODIES: Final = tuple(field.name for field in BODY_FIELDS)
_NOTHING: Final = Definition(topic="")


def _explained(wrong: Wrong) -> Wrong:
    """Say of a field that only a put has why a schedule has it not."""
    return wrong._replace(rule=_OF_A_PUT.get(wrong.place, wrong.rule))


def _missing(fields: Mapping[str, object]) -> Iterator[Wrong]:
    """Yield which of two fields is missing of which one has to be given."""
    for one, other in (("cron", "every"), _BODIES):
        if fields.get(one) is None and fields.get(other) is None:
            yield Wrong(one, f"is missing: give {one} or {other}")


def _broken_rules(values: Mapping[str, Any], bodies: int) -> Iterator[Wrong]:
    """Yield what is wrong with fields that are right each by itself."""
    if values["topic"] in INTERNAL_TOPICS:
        rule = "must be another topic: this one is reserved"
        yield Wrong("topic", rule, shown(values["topic"]))
    if "cron" in values and "every_ms" in values:
        yield Wrong("cron", "cannot be given with every")
    if "timezone" in values and "every_ms" in values:
        yield Wrong("timezone", "is for cron only: every counts the time that passes")
    if bodies > 1:
        yield Wrong("body", "cannot be given with body_base64")
    start_ms, end_ms = values.get("start_ms"), values.get("end_ms")
    if start_ms is not None and end_ms is not None and end_ms < start_ms:
        yield Wrong("end", f"must not be before the start, {moment_text(start_ms)}")
    if values.get("missed") is Missed.NONE and values.get("window_ms", 0) > SCHEDULE_GRACE_MS:
        longest = duration_text(SCHEDULE_GRACE_MS)
        rule = f"must be at most {longest} with missed = none, which makes up for nothing later"
        yield Wrong("window", rule, shown(duration_text(values["window_ms"])))
    for name in ("method", "headers"):
        if name in values and "url" not in values:
            yield Wrong(name, "needs url too")
    if "jitter_percent" in values and "retry_ms" not in values:
        yield Wrong("jitter_percent", "needs retry too")


def checked_schedule_name(name: str) -> str:
    """Return the name; `ScheduleInvalid`."""
    if re.fullmatch(NAME_PATTERN, name) is None:
        raise ScheduleInvalid([Wrong("name", NAME_RULE, shown(name))])
    return name
