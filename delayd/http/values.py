"""Values in JSON and in the daemon: durations, times, names, keys, ladders.

Each has a type of its own, so that the schema of a field follows from its type. msgspec makes them
by `decode_value`, which raises `ValueError` with the rule as its message; the OpenAPI document has
their schemas.

>>> decode_value(Duration, "1h30m"), decode_value(Duration, 0.05)
(5400000, 50)
>>> decode_value(Moment, "2026-11-21T20:00:00+01:00"), decode_value(Moment, 1_795_287_600)
(1795287600000, 1795287600000)
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Annotated, Any, Final

import msgspec

from delayd import limits
from delayd.core.job_record import State
from delayd.core.names import GROUP, KEY, PREDECESSOR, TOPIC, Predecessor
from delayd.core.policy import LADDER, parse_ladder
from delayd.core.reasons import REASON
from delayd.core.targets import HEADERS, METHOD, URL
from delayd.durations import parse_duration_ms
from delayd.fields import (
    DURATION,
    MOMENT,
    MOMENT_TEXT_SCHEMA,
    TTR,
    ValueKind,
    duration,
    duration_schema,
    text_schema,
    whole_text,
)
from delayd.moments import parse_moment_ms
from delayd.schedules.definition import NAME

Meta: Final = msgspec.Meta
Unset = msgspec.UnsetType
UNSET: Final = msgspec.UNSET


def about(description: str, **rules: Any) -> msgspec.Meta:  # noqa: ANN401 (those of Meta)
    """Return the schema of a field: its description, and its rules."""
    return msgspec.Meta(description=description, **rules)


class Duration(int):
    """A length of time, in milliseconds; in JSON seconds or a text such as `"15s"`."""

    __slots__ = ()


class Ttr(int):
    """A length of time above 0, in milliseconds; in JSON like a `Duration`."""

    __slots__ = ()


class Wait(int):
    """How long a call waits for a job, in milliseconds; in JSON like a `Duration`."""

    __slots__ = ()


class Moment(int):
    """A wall-clock time, in milliseconds since 1970; in JSON RFC 3339 or seconds."""

    __slots__ = ()


class TopicName(str):
    """The name of a topic."""

    __slots__ = ()


class ScheduleName(str):
    """The name of a schedule."""

    __slots__ = ()


class Key(bytes):
    """The caller's own name for a job, in UTF-8."""

    __slots__ = ()


class GroupName(bytes):
    """What a job belongs to, in UTF-8."""

    __slots__ = ()


class InsteadOf(tuple[str, int, bytes]):
    """The job in whose place another one is put; in JSON `"TOPIC:ID"` or `"TOPIC:ID:KEY"`."""

    __slots__ = ()

    @property
    def predecessor(self) -> Predecessor:
        """The same, as the core knows it."""
        return Predecessor(*self)


class Ladder(tuple[int, ...]):
    """The steps of a retry ladder, in milliseconds."""

    __slots__ = ()


class TargetUrl(str):
    """Where a job is sent when it is due."""

    __slots__ = ()


class TargetMethod(str):
    """The method of that request."""

    __slots__ = ()


class TargetHeaders(tuple[tuple[str, str], ...]):
    """Headers of that request; in JSON an object."""

    __slots__ = ()


class States(frozenset[State]):
    """States in which jobs may be; in a query their names, with commas between them."""

    __slots__ = ()


class TimeBound(tuple[int, bool]):
    """A wall-clock time, or a duration from now; both in milliseconds."""

    __slots__ = ()

    @property
    def ms(self) -> int:
        """Since 1970, or from now; less than 0: that long ago."""
        return self[0]

    @property
    def is_moment(self) -> bool:
        """Whether it is a wall-clock time."""
        return self[1]


class ReasonId(str):
    """The id of a reason for which jobs are dead."""

    __slots__ = ()


class PageMark(tuple[int, int]):
    """The job after which a page begins: its due time in milliseconds, its id."""

    __slots__ = ()


ANY_TAG: Final = "*"
ONE_TAG: Final = '"([!#-~]{1,64})"'
"""A tag of a policy, as `If-Match` names it."""
Token = Annotated[
    str,
    about(
        "What the reserve gave with the job: good for this reservation alone.",
        min_length=5,
        max_length=60,
        # One spelling for each.
        pattern=whole_text("[1-9][0-9]{0,18}-(?:0|[1-9a-f][0-9a-f]{0,15})-(?:0|[1-9][0-9]{0,9})"),
        examples=["17-19e0a2b3c4d-1"],
        extra={"rule": 'must be what the reserve gave with the job, such as "17-19e0a2b3c4d-1"'},
    ),
]
JobId = Annotated[int, about("The job's number, never used again.", ge=1)]
MomentText = Annotated[
    str,
    about(
        "A wall-clock time: RFC 3339, in UTC, with milliseconds.",
        examples=["2030-01-01T09:00:00.000Z"],
        extra_json_schema={"format": "date-time"},
    ),
]


class Answer(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A body of an answer, or a part of one."""


def _states(value: object) -> frozenset[State]:
    names = value.split(",") if isinstance(value, str) else []
    if not names or not _STATES.keys() >= set(names):
        raise ValueError(_STATES_RULE)
    return frozenset(_STATES[name] for name in names)


def _time_bound(value: object) -> tuple[int, bool]:
    """Read a time relative to now, also a past one, or a wall-clock time.

    >>> _time_bound("1h"), _time_bound("-0.5"), _time_bound("1970-01-01T00:00:05Z")
    ((3600000, False), (-500, False), (5000, True))
    """
    if isinstance(value, str):
        if value[4:5] == "-":
            # A + in a query that was not sent as %2B is a space.
            return parse_moment_ms(value[:11] + value[11:].replace(" ", "+")), True
        if value.startswith("-"):
            return -parse_duration_ms(value[1:]), False
    try:
        return parse_duration_ms(value), False
    except ValueError as error:
        raise ValueError(f"{error}, or a moment of RFC 3339") from None


def page_mark_text(due_ms: int, job_id: int) -> str:
    """Write a page mark; clients send it back unchanged.

    >>> page_mark_text(1_795_287_600_250, 7), _page_mark("1a1ff7acc7a-7")
    ('1a1ff7acc7a-7', (1795287600250, 7))
    """
    return f"{due_ms:x}-{job_id}"


def _page_mark(value: object) -> tuple[int, int]:
    match = _PAGE_MARK.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("must be `after` of an earlier page")
    return int(match[1], 16), int(match[2])


_STATES: Final = MappingProxyType({state.name.lower(): state for state in State})
_PAGE_MARK: Final = re.compile("([0-9a-f]{1,16})-([0-9]{1,20})")


def _ladder(value: object) -> tuple[int, ...]:
    if isinstance(value, str):
        return _ladder_of_text(value)
    if isinstance(value, list) and {*map(type, value)} == {str}:  # numbers: 1 and True are equal
        return _ladder_of_text(tuple(value))
    return parse_ladder(value)


@lru_cache(maxsize=limits.LADDERS_KNOWN_MAX)
def _ladder_of_text(value: str | tuple[str, ...]) -> tuple[int, ...]:
    """Read a ladder. Jobs of a batch mostly have the same, and 255 steps take 0.3 ms."""
    return parse_ladder(value)


_STATES_RULE: Final = f"must be one or more of {', '.join(_STATES)}, with commas between"

KINDS: Final[Mapping[type, ValueKind]] = MappingProxyType(
    {
        Duration: DURATION,
        Ttr: TTR,
        Wait: duration(0, limits.HTTP_WAIT_MS_MAX),  # as proxies allow
        Moment: MOMENT,
        TopicName: TOPIC,
        ScheduleName: NAME,
        Key: KEY,
        GroupName: GROUP,
        InsteadOf: PREDECESSOR,
        Ladder: LADDER._replace(read=_ladder),
        TargetUrl: URL,
        TargetMethod: METHOD,
        TargetHeaders: HEADERS,
        States: ValueKind(
            _states,
            schema=text_schema("(?:{0})(?:,(?:{0}))*".format("|".join(_STATES))),
        ).described(
            f"One state or several: {', '.join(_STATES)}; with commas between.",
            *("buried", "ready,delayed"),
        ),
        TimeBound: ValueKind(
            _time_bound, schema={"anyOf": [MOMENT_TEXT_SCHEMA, duration_schema("-?")]}
        ).described(
            "A length of time from now, with a minus before it that long ago; or a moment: RFC 3339"
            " with an offset.",
            *("1h", "-15m", "2030-01-01T09:00:00Z"),
        ),
        ReasonId: REASON,
        PageMark: ValueKind(_page_mark, schema=text_schema(_PAGE_MARK.pattern)).described(
            "Where the page before this one has ended, as it was told."
        ),
    }
)


def decode_value(kind: type, value: Any) -> Any:  # noqa: ANN401 (whatever JSON holds)
    """Make a value of one of these types; `ValueError` with the rule."""
    if type(value) is int and kind in _LENGTHS:
        return _length_of(kind, value)
    return kind(KINDS[kind].read(value))


_LENGTHS: Final = frozenset({Duration, Ttr, Wait})


@lru_cache(maxsize=limits.LENGTHS_KNOWN_MAX)
def _length_of(kind: type, seconds: int) -> Any:  # noqa: ANN401 (one of `_LENGTHS`)
    """Read whole seconds, which the jobs of a batch mostly have in common."""
    return kind(KINDS[kind].read(seconds))
