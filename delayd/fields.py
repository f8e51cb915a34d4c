r"""A field: its name, how it is read, how it is written, and its JSON schema.

Settings, policies, targets, options of sinks, tokens and secrets are tables of fields; the forms of
HTTP, the OpenAPI document and the options of the line protocol are made of the same kinds of
values. A `ValueKind` reads what JSON or TOML holds, or raises `ValueError`, whose message is the
rule that is broken. A `Field` puts its name and the value in front:

>>> limit = Field("limit", "limit_ms", duration(1, 60_000))
>>> limit.read("30s"), limit.kind.show(30_000)
(30000, '30s')
>>> try: read_all({"limit": "2m", "limmit": 1}, [limit])
... except Invalid as invalid: print(*invalid.errors, sep="\n")
limit = "2m": must be from "1ms" to "1m"
limmit: there is no such field; did you mean limit?

All errors are reported together. Variables, flags and options of the line protocol hold
nothing but text (`GivenText`): numbers, lists and true are read from that as well. In JSON and
TOML, which have numbers, lists and true, the same text is a mistake.

>>> whole(1, 10).read(GivenText("7")), or_off(size(1, 1 << 40)).read("64KiB")
(7, 65536)
>>> whole(1, 10).read("7")
Traceback (most recent call last):
  ...
ValueError: must be a whole number from 1 to 10
"""

import enum
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from delayd.durations import (
    DURATION_BOUNDS,
    US_PER_MS,
    duration_pattern,
    duration_text,
    parse_duration_ms,
    parse_duration_us,
    parse_size_bytes,
    size_pattern,
    size_text,
)
from delayd.limits import (
    DURATION_MS_MAX,
    QUANTITY_CHARACTERS_MAX,
    SHOWN_CHARACTERS_MAX,
    WALL_MS_MAX,
)
from delayd.moments import MOMENT_PATTERN, moment_text, parse_moment_ms, parse_time_s, time_text
from delayd.text import did_you_mean, parse_whole, with_shown_urls

OFF: Final = "off"
Reader = Callable[[object], Any]
Schema = dict[str, Any]


class GivenText(str):
    """Text of a variable, a flag or an option of the line protocol, which have only text."""

    __slots__ = ()


# --- What is wrong -------------------------------------------------------------------------------


class Wrong(NamedTuple):
    """One thing that is wrong: its place, the rule, and the value if it may be shown."""

    place: str
    """As `push.url`; empty for the whole."""
    rule: str
    value: str = ""
    source: str = ""
    """A file, or where else it comes from."""

    def __str__(self) -> str:
        subject = f"{self.place} = {self.value}" if self.value else self.place
        return ": ".join(part for part in (self.source, subject, self.rule) if part)

    def below(self, place: str) -> "Wrong":
        """Return the same about a value of which this is a part."""
        dot = "." if self.place and self.place[0] != "[" else ""
        return self._replace(place=f"{place}{dot}{self.place}")


class Invalid(ValueError):
    """A value of several parts, some of which are wrong."""

    def __init__(self, errors: Iterable[Wrong]) -> None:
        self.errors = tuple(errors)
        super().__init__("; ".join(map(str, self.errors)))


def invalid(place: str, rule: str, value: str = "") -> Invalid:
    """Return the error for one part that is wrong."""
    return Invalid([Wrong(place, rule, value)])


def shown(value: object, redact: Callable[[str], str] = str, name: str = "") -> str:
    """Return a value as it can stand in a sentence, on one line, without secrets of urls and calls.

    Of a long one it is the beginning. `redact` takes other secrets out; `name` is of its field.

    >>> shown({"a": "b" * 1000})[-8:], shown("redis://:s3cret@host/0")
    ('bbbbb...', '"redis://***@host/0"')
    """
    import json  # noqa: PLC0415 - takes 1 ms, and is for mistakes only

    try:
        text = redact(json.dumps(with_shown_urls(value, name), default=str))
    except RecursionError:  # it goes as deep as can just be read
        return "..."
    return text if len(text) <= SHOWN_CHARACTERS_MAX else f"{text[: SHOWN_CHARACTERS_MAX - 3]}..."


def unknown(name: str, known: Iterable[str], noun: str = "field", prefix: str = "") -> str:
    """Return the rule that a name breaks which is none of these."""
    return f"there is no such {noun}{did_you_mean(name, known, prefix)}"


def read_json(text: str | bytes) -> tuple[Any, list[Wrong]]:
    """Read JSON, and tell which names an object has twice: that is ambiguous. Raises `ValueError`.

    >>> read_json('{"a": 1, "a": 2}')
    ({'a': 2}, [Wrong(place='a', rule='is given twice', value='', source='')])
    """
    import json  # noqa: PLC0415 - takes 1 ms, and few need it

    twice: dict[str, Wrong] = {}

    def named(pairs: list[tuple[str, object]]) -> dict[str, object]:
        values: dict[str, object] = {}
        for name, value in pairs:
            if name in values:
                twice[name] = Wrong(name, "is given twice")
            values[name] = value
        return values

    try:
        return json.loads(text, object_pairs_hook=named), [*twice.values()]
    except RecursionError as error:
        raise ValueError(str(error)) from None


# --- Fields --------------------------------------------------------------------------------------


def as_it_is(value: Any) -> Any:  # noqa: ANN401 (whatever a field holds)
    """Write a value that JSON and TOML can hold."""
    return value


class ValueKind(NamedTuple):
    """A kind of value."""

    read: Reader
    """Turns what JSON or TOML holds into a value; `ValueError`, whose message is the rule."""
    show: Callable[[Any], object] = as_it_is
    """Writes a value so that `read` reads the same."""
    schema: Schema = {}  # noqa: RUF012 - it is never changed

    def described(self, description: str, *examples: object) -> "ValueKind":
        """Return the same with a description and examples in its schema."""
        about: Schema = {**self.schema, "description": description}
        return self._replace(schema={**about, "examples": [*examples]} if examples else about)


class Field(NamedTuple):
    """One row of a table."""

    name: str
    """In JSON, in TOML, for people."""
    inside: str
    """The attribute that holds the value."""
    kind: ValueKind
    flag: str = ""
    """Of the command line; empty: there is none."""
    is_secret: bool = False
    """No error repeats a value."""
    is_needed: bool = False

    def read(self, value: object, place: str = "", redact: Callable[[str], str] = str) -> Any:  # noqa: ANN401
        """Return the value. Raises `Invalid`, which names the place, the value and the rule."""
        place = place or self.name
        try:
            return self.kind.read(value)
        except Invalid as parts:
            raise Invalid(wrong.below(place) for wrong in parts.errors) from None
        except ValueError as broken:
            text = "" if self.is_secret else shown(value, redact, self.name)
            raise invalid(place, str(broken), text) from None


def read_all(
    raw: Mapping[str, object],
    fields: Iterable[Field],
    noun: str = "field",
    redact: Callable[[str], str] = str,
    *,
    takes_null: bool = False,
) -> dict[str, Any]:
    """Return the values by their inside names. Raises `Invalid` with everything that is wrong.

    `takes_null`: null is the same as no such field.
    """
    by_name = {field.name: field for field in fields}
    values: dict[str, Any] = {}
    errors: list[Wrong] = []
    for name, value in raw.items():
        field = by_name.get(name)
        if field is None:
            # A name may be a secret that stands in the wrong place.
            errors.append(Wrong(redact(name), unknown(name, by_name, noun)))
            continue
        if value is None and takes_null:
            continue
        try:
            values[field.inside] = field.read(value, redact=redact)
        except Invalid as wrong:
            errors += wrong.errors
    errors += [
        Wrong(name, "is missing")
        for name, field in by_name.items()
        if field.is_needed and (name not in raw or (takes_null and raw[name] is None))
    ]
    if errors:
        raise Invalid(errors)
    return values


def written(fields: Iterable[Field], holder: object, nothing: object = None) -> dict[str, Any]:
    """Write what the holder has by the names of the fields; what is as in `nothing` is left out."""
    return {
        field.name: field.kind.show(value)
        for field in fields
        if (value := getattr(holder, field.inside)) != getattr(nothing, field.inside, None)
    }


# --- Kinds of values -----------------------------------------------------------------------------


UNSEEN: Final = (
    r"\x00-\x20\x7f-\xa0\xad\u061c\u1680\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff"
    r"\ufff9-\ufffb"
)
"""Characters that cannot be seen as themselves, as a part of a class of a pattern.

Controls, spaces, what has no width, and what turns the direction of writing. Not `str.isprintable`,
which no pattern says in a few words and which every version of Python decides anew.
"""


BASE64: Final = "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"
"""The pattern of bytes in base64, without lines."""


def whole_text(pattern: str) -> str:
    """Return the pattern of a schema for texts that match the whole of this one.

    Python, unlike ECMAScript, lets a line end follow `$`.
    """
    return rf"^(?:{pattern})$(?!\n)"


def text_schema(pattern: str, shortest: int = 0, longest: int | None = None) -> Schema:
    """Return the schema of texts that match the whole pattern, of so many characters."""
    schema: Schema = {"type": "string", "pattern": whole_text(pattern)}
    if shortest:
        schema["minLength"] = shortest
    return schema if longest is None else {**schema, "maxLength": longest}


def matching(pattern: str, rule: str) -> ValueKind:
    """Return the kind of texts that match the whole pattern."""

    def read(value: object) -> str:
        if not isinstance(value, str) or re.fullmatch(pattern, value) is None:
            raise ValueError(rule)
        return str(value)

    return ValueKind(read, schema=text_schema(pattern))


def text_of(rule: str) -> ValueKind:
    """Return the kind of texts that are not empty; `rule` says of what."""

    def read(value: object) -> str:
        if not isinstance(value, str) or not value or "\0" in value:
            raise ValueError(rule)
        return value

    return ValueKind(read, schema={"type": "string", "minLength": 1})


def _read_flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, GivenText) and value in {"true", "false"}:
        return value == "true"
    raise ValueError("must be true or false")


FLAG: Final = ValueKind(_read_flag, schema={"type": "boolean"})
MOMENT_TEXT_SCHEMA: Final = {**text_schema(MOMENT_PATTERN), "format": "date-time"}
_SECONDS_SCHEMA: Final = {"type": "number", "minimum": 0, "maximum": WALL_MS_MAX // 1_000}
MOMENT: Final = ValueKind(
    parse_moment_ms, moment_text, {"anyOf": [MOMENT_TEXT_SCHEMA, _SECONDS_SCHEMA]}
).described("RFC 3339 with an offset, or seconds since 1970.", "2030-01-01T09:00:00Z")
TIME: Final = ValueKind(parse_time_s, time_text, {"type": "string", "format": "date-time"})


def member_of(kind: type[enum.Enum]) -> ValueKind:
    """Return the kind of the members of an enum, by their values, which are words."""
    return one_of({member.value: member for member in kind})


def one_of(choices: Mapping[str, Any]) -> ValueKind:
    """Return the kind of values that these words stand for."""

    def read(value: object) -> object:
        if isinstance(value, str) and value in choices:
            return choices[value]
        raise ValueError("must be one of " + ", ".join(choices))

    words = {value: word for word, value in choices.items()}
    return ValueKind(read, words.__getitem__, {"enum": [*choices]})


def as_whole(value: object) -> object:
    """Return a number without a fraction as a whole one, as JSON Schema takes it; else the value.

    >>> as_whole(5e0), as_whole(5.5), as_whole("5.0")
    (5, 5.5, '5.0')
    """
    return int(value) if isinstance(value, float) and value.is_integer() else value


def whole(lowest: int, highest: int) -> ValueKind:
    """Return the kind of whole numbers between these, both included."""

    def read(value: object) -> int:
        value = parse_whole(value) if isinstance(value, GivenText) else as_whole(value)
        if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
            raise ValueError(f"must be a whole number from {lowest} to {highest}")
        return value

    return ValueKind(read, schema={"type": "integer", "minimum": lowest, "maximum": highest})


def number(lowest: float, highest: float) -> ValueKind:
    """Return the kind of numbers between these, both included; whole ones stay whole."""

    def read(value: object) -> int | float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not lowest <= value <= highest:  # type: ignore[operator]
            raise ValueError(f"must be a number from {lowest} to {highest}")
        return value  # type: ignore[return-value]

    return ValueKind(read, schema={"type": "number", "minimum": lowest, "maximum": highest})


DURATION_TEXT: Final = "Seconds, or a text such as 50ms, 15s, 1h30m or 7d; without units seconds."
MORE_THAN_0: Final = "(?=.*[1-9])"
"""Begins the pattern of texts with a number that is more than 0."""


def duration_schema(before: str = "", highest_ms: int = DURATION_MS_MAX) -> Schema:
    """Return the schema of a duration as text, with a pattern that something else begins."""
    return text_schema(before + duration_pattern(highest_ms), 1, QUANTITY_CHARACTERS_MAX)


def duration(lowest_ms: int = 0, highest_ms: int = DURATION_MS_MAX) -> ValueKind:
    """Return the kind of durations between these: seconds or a text such as `50ms`."""
    is_bounded = highest_ms < DURATION_MS_MAX
    rule = DURATION_BOUNDS.replace("from 0", "more than 0, up") if lowest_ms else DURATION_BOUNDS
    bounds = f'from "{duration_text(lowest_ms)}" to "{duration_text(highest_ms)}"'
    if is_bounded:
        rule = f"must be {bounds}"

    def read(value: object) -> int:
        try:
            duration_ms = parse_duration_ms(value)
        except ValueError as error:  # what any duration keeps to, and then what this one does
            if str(error) == DURATION_BOUNDS:
                raise ValueError(rule if is_bounded else DURATION_BOUNDS) from None
            raise ValueError(f"{error}, {bounds}" if is_bounded else str(error)) from None
        # Not by the milliseconds, which are rounded up: 0.1 ms is less than 1 ms.
        if is_bounded:
            is_right = lowest_ms <= parse_duration_us(value) / US_PER_MS <= highest_ms
        else:
            is_right = duration_ms >= lowest_ms
        if not is_right:
            raise ValueError(rule)
        return duration_ms

    lowest = {"minimum": lowest_ms / 1_000 if lowest_ms else 0}
    if lowest_ms and not is_bounded:  # what is more than 0 is rounded up to 1 ms
        lowest = {"exclusiveMinimum": 0}
    seconds: Schema = {"type": "number", **lowest, "maximum": highest_ms // 1_000}
    texts = duration_schema(MORE_THAN_0 if lowest_ms else "", highest_ms)
    return ValueKind(read, duration_text, {"description": DURATION_TEXT, "anyOf": [seconds, texts]})


DURATION: Final = duration().described(DURATION_TEXT, "15s", 3600)
TTR: Final = duration(1).described(f"{DURATION_TEXT} More than 0.", "1m", 60)


def size(lowest_bytes: int, highest_bytes: int) -> ValueKind:
    """Return the kind of sizes between these: bytes or a text such as `64KiB`."""

    def read(value: object) -> int:
        size_bytes = parse_size_bytes(as_whole(value))
        if not lowest_bytes <= size_bytes <= highest_bytes:
            bounds = f"{lowest_bytes} to {highest_bytes} bytes"
            if not str(value).isdigit():  # a value with units gets its rule with units
                bounds = f'"{size_text(lowest_bytes)}" to "{size_text(highest_bytes)}"'
            raise ValueError(f"must be from {bounds}")
        return size_bytes

    pattern = (MORE_THAN_0 if lowest_bytes else "") + size_pattern(highest_bytes)
    schema: Schema = {
        "anyOf": [
            {"type": "integer", "minimum": lowest_bytes, "maximum": highest_bytes},
            text_schema(pattern, 1, QUANTITY_CHARACTERS_MAX),
        ]
    }
    return ValueKind(read, size_text, schema)


def or_off(kind: ValueKind) -> ValueKind:
    """Return the kind that may also be off, which is None."""

    def read(value: object) -> object:
        if value == OFF:
            return None
        try:
            return kind.read(value)
        except ValueError as error:
            raise ValueError(f"{error}, or off") from None

    def show(value: object) -> object:
        return OFF if value is None else kind.show(value)

    return ValueKind(read, show, {"anyOf": [kind.schema, {"const": OFF}]})


def or_null(kind: ValueKind) -> ValueKind:
    """Return the kind that may also be null, which is None."""
    return kind._replace(read=lambda value: None if value is None else kind.read(value))


def list_of(kind: ValueKind, rule: str, lowest: int = 0, highest: int | None = None) -> ValueKind:
    """Return the kind of lists, in a variable texts with commas; of parts without rules the rule.

    >>> hosts = list_of(matching("[a-z.]+", ""), "must be hosts", highest=2)
    >>> hosts.read(["a.example"]), hosts.read(GivenText("a,b")), hosts.read([])
    (('a.example',), ('a', 'b'), ())
    """

    def read(value: object) -> tuple[Any, ...]:
        is_text = isinstance(value, GivenText)
        parts = value.replace(",", " ").split() if isinstance(value, GivenText) else value
        if not isinstance(parts, list | tuple) or len(parts) < lowest:
            raise ValueError(rule)
        if highest is not None and len(parts) > highest:
            raise ValueError(rule)
        values: list[Any] = []
        for index, part in enumerate(parts):
            try:
                values.append(kind.read(GivenText(part) if is_text else part))
            except Invalid as wrong:
                raise Invalid(each.below(f"[{index}]") for each in wrong.errors) from None
            except ValueError as error:
                raise ValueError(str(error) or rule) from None
        return tuple(values)

    def show(values: Iterable[object]) -> list[object]:
        return [*map(kind.show, values)]

    schema: Schema = {"type": "array", "items": kind.schema, "minItems": lowest}
    return ValueKind(read, show, schema if highest is None else {**schema, "maxItems": highest})


def only(rule: str, kind: ValueKind) -> ValueKind:
    """Return the same kind with one rule for all that is wrong."""

    def read(value: object) -> object:
        try:
            return kind.read(value)
        except ValueError:
            raise ValueError(rule) from None

    return kind._replace(read=read)
