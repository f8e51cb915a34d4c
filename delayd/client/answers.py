"""Answers of a server, checked before they are used.

A value of the wrong kind is an error of the server, not of the program, so each function raises
NotUnderstood with the value and the expected kind:

>>> whole_in(read_json(b'{"id": 7}'), "id")
7
>>> whole_in(read_json(b'{"id": "7"}'), "id")
Traceback (most recent call last):
delayd.client.errors.NotUnderstood: `id` is the text '7' and not a whole number; this may or may \
not have been done
"""

import binascii
import datetime as dt
import functools
import itertools
import json
import sys
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, NoReturn, TypeVar, get_args, get_origin

from delayd.client.errors import NotUnderstood
from delayd.client.limits import (
    JSON_CONTAINERS_MAX,
    JSON_DEPTH_MAX,
    JSON_DIGITS_MAX,
    JSON_VALUES_MAX,
    NUMBER_MAX,
    SHOWN_CHARACTERS_MAX,
    WHOLE_MAX,
)

KINDS: Final[Mapping[type, str]] = MappingProxyType(
    {
        int: "a whole number",
        float: "a number",
        str: "a text",
        bool: "true or false",
        list: "an array",
        dict: "an object",
        type(None): "null",
    }
)
"""The names of kinds of values in JSON."""
_BACKSLASH: Final = ord("\\")
_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
"""Brackets as signed bytes: one level more, or one less."""
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[{]}"))


# --- JSON ----------------------------------------------------------------------------------------


def read_json(text: bytes) -> Any:  # noqa: ANN401 - JSON
    """Read JSON. Raises NotUnderstood for other texts, and for too much."""
    containers = text.count(b"[") + text.count(b"{")
    if containers > JSON_DEPTH_MAX:
        _check_size(text, containers)
    if text.count(b",") > JSON_VALUES_MAX:
        raise NotUnderstood(f"JSON of more than {JSON_VALUES_MAX:,} values")
    try:
        value = decoder().decode(text.decode())
    except RecursionError:
        raise NotUnderstood("JSON that is nested deeper than Python's stack has room") from None
    except ValueError:
        raise NotUnderstood(f"{shown(text)} is not JSON") from None
    if _BACKSLASH in text and (b"\\ud" in text or b"\\uD" in text):
        return _without_surrogates(value)
    return value


def _check_size(text: bytes, containers: int) -> None:
    """Check the arrays and objects of JSON: how many, and how deep. Linear."""
    if containers > JSON_CONTAINERS_MAX:
        raise NotUnderstood(f"JSON of more than {JSON_CONTAINERS_MAX:,} arrays and objects")
    if text.count(b'"') > 2 * JSON_VALUES_MAX:
        raise NotUnderstood(f"JSON of more than {JSON_VALUES_MAX:,} texts")
    if _BACKSLASH in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    outside = b"".join(text.split(b'"')[::2])
    steps = memoryview(outside.translate(_STEPS, _NO_BRACKETS)).cast("b")
    if max(itertools.accumulate(steps), default=0) > JSON_DEPTH_MAX:
        raise NotUnderstood(f"JSON that is nested more than {JSON_DEPTH_MAX:,} deep")


def _without_surrogates(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Replace halves of UTF-16 pairs, which cannot be encoded."""
    try:
        return json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
    except (RecursionError, ValueError):
        raise NotUnderstood("JSON that is nested deeper than Python's stack has room") from None


def _whole_of(digits: str) -> int:
    if len(digits) > JSON_DIGITS_MAX:
        raise ValueError("a number of too many digits")
    return int(digits)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_PLAIN: Final = json.JSONDecoder(parse_constant=_no_constant)
_CAREFUL: Final = json.JSONDecoder(parse_constant=_no_constant, parse_int=_whole_of)


def decoder() -> json.JSONDecoder:
    """Return a decoder of JSON. It counts digits itself only where Python's own limit is off."""
    is_bounded = 0 < sys.get_int_max_str_digits() <= JSON_DIGITS_MAX
    return _PLAIN if is_bounded else _CAREFUL


# --- Members -------------------------------------------------------------------------------------


def members(value: object) -> dict[str, Any]:
    """Return an object as it is. Raises NotUnderstood, as all of these."""
    if type(value) is not dict:
        raise NotUnderstood(f"the answer is {kind_of(value)} and not an object")
    return value


def member(value: object, name: str) -> Any:  # noqa: ANN401 - JSON
    """Return a member of an object."""
    try:
        return members(value)[name]
    except KeyError:
        raise NotUnderstood(f"the answer has no `{name}`") from None


def whole_in(value: object, name: str) -> int:
    """Return a member that is a whole number."""
    return checked(name, member(value, name), int)  # type: ignore[no-any-return]


def text_in(value: object, name: str) -> str:
    """Return a member that is a text."""
    return checked(name, member(value, name), str)  # type: ignore[no-any-return]


def array_in(value: object, name: str) -> list[Any]:
    """Return a member that is an array."""
    return checked(name, member(value, name), list)  # type: ignore[no-any-return]


def seconds_in(value: object, name: str) -> float:
    """Return a member that is a number of seconds."""
    return float(checked(name, member(value, name), int, float))


def moment_in(value: object, name: str) -> dt.datetime:
    """Return a member that is a time."""
    return read_moment(member(value, name), name)


def base64_in(value: object, name: str) -> bytes:
    """Return the bytes of a member that is base64."""
    text = text_in(value, name)
    try:
        return binascii.a2b_base64(text)
    except ValueError:
        raise NotUnderstood(f"`{name}` is {shown(text)} and not base64") from None


def body_texts(answer: bytes) -> Iterator[bytes]:
    """Yield the very texts of all members `body` of an answer, in their order.

    A quote within a string is escaped, so `"body":` is a name; the inside of a body is skipped.

    >>> list(body_texts(b'{"jobs":[{"key":"body","body":{"body":  1}},{"id":2,"body":"a"}]}'))
    [b'{"body":  1}', b'"a"']
    """
    text, read = answer.decode(), decoder().raw_decode
    at = 0
    while (at := text.find('"body":', at)) >= 0:
        start = at + len('"body":')
        while text[start : start + 1].isspace():
            start += 1
        _value, at = read(text, start)
        yield text[start:at].encode()


def checked(name: str, value: Any, *kinds: type) -> Any:  # noqa: ANN401 - JSON
    """Return a value of one of these kinds; numbers are such as a daemon may have."""
    kind = type(value)
    if kind not in kinds:
        wanted = " or ".join(KINDS[each] for each in kinds)
        raise NotUnderstood(f"`{name}` is {shown(value)} and not {wanted}")
    if (kind is int and not -WHOLE_MAX <= value <= WHOLE_MAX) or (
        kind is float and not -NUMBER_MAX <= value <= NUMBER_MAX
    ):
        raise NotUnderstood(f"`{name}` is out of range")
    return value


def read_moment(value: object, name: str) -> dt.datetime:
    """Read a time of an answer."""
    try:
        time = dt.datetime.fromisoformat(value)  # type: ignore[arg-type]  # TypeError tells
        if time.tzinfo is not None:
            return time
    except (TypeError, ValueError):
        pass
    raise NotUnderstood(f"`{name}` is {shown(value)} and not a time with an offset")


def from_epoch(seconds: float) -> dt.datetime:
    """Read a time of the line protocol, in seconds since 1970."""
    try:
        return dt.datetime.fromtimestamp(seconds, dt.UTC)
    except (ValueError, OverflowError, OSError):
        raise NotUnderstood(f"a time is {seconds:g} s after 1970") from None


# --- Results -------------------------------------------------------------------------------------

N = TypeVar("N", bound=NamedTuple)
_MISSING: Final = object()
_TEXT: Final = (str,)
_WHOLE: Final = (int,)
_SECONDS: Final = (float, int)
_TIME: Final = (dt.datetime,)
_OBJECT: Final = (dict,)
_READ: Final[Mapping[object, tuple[type, ...]]] = MappingProxyType(
    {str: _TEXT, Literal: _TEXT, int: _WHOLE, float: _SECONDS, dt.datetime: _TIME, dict: _OBJECT}
)
"""Type of a field -> those that its value in JSON may have; a time is a text there."""
_USUAL: Final = 1 << 32
"""Numbers up to this need no further check, which saves a call."""


def named(kind: type[N], answer: object, **converted: object) -> N:
    """Return a result with the answer's members of the same names, by the types of its fields.

    Those of other types, such as bytes, come in `converted`.
    """
    fields = members(answer)
    values: list[Any] = []
    for name, default, kinds, inner in _fields_of(kind):
        if kinds is None:
            values.append(converted.get(name, default))
            continue
        value = fields.get(name, default)
        if value is default or (value is None and default is not _MISSING):
            value = default
            if value is _MISSING:
                raise NotUnderstood(f"the answer has no `{name}`")
        elif kinds is _TIME:
            value = read_moment(value, name)
        elif (kinds is _TEXT and type(value) is str) or (
            (kinds is _WHOLE or kinds is _SECONDS) and type(value) in kinds and 0 <= value <= _USUAL
        ):
            pass
        else:
            value = checked(name, value, *kinds)
            if inner is not None:
                value = named(inner, value)
        values.append(value)
    return kind._make(values)


@functools.cache
def _fields_of(
    kind: type[NamedTuple],
) -> tuple[tuple[str, Any, tuple[type, ...] | None, Any], ...]:
    """Return the fields of a result: name, value if it is absent or null, and `_kinds_of`."""
    defaults, hints = kind._field_defaults, kind.__annotations__
    return tuple(
        (name, defaults.get(name, _MISSING), *_kinds_of(hints[name])) for name in kind._fields
    )


def _kinds_of(hint: Any) -> tuple[tuple[type, ...] | None, Any]:  # noqa: ANN401 - a type
    """Return the types that a field of this type has in JSON, and the result that it is itself.

    None: it is not read; and None: it is no result.
    """
    either = get_args(hint)
    if type(None) in either:  # or it is absent
        hint = either[0]
    if hasattr(hint, "_field_defaults"):
        return _OBJECT, hint
    return _READ.get(get_origin(hint) or hint), None


# --- Showing -------------------------------------------------------------------------------------


def kind_of(value: object) -> str:
    """Return the name of a value's kind in JSON."""
    return KINDS.get(type(value), type(value).__name__)


def shown(value: object) -> str:
    """Return a value of a server for people, cut short; arrays and objects are only named.

    >>> shown("x" * 100) == f"the text '{'x' * 80}...'", shown([1]), shown(0.5)
    (True, 'an array', '0.5')
    """
    if isinstance(value, str | bytes):
        is_long = len(value) > SHOWN_CHARACTERS_MAX
        text = repr(value[:SHOWN_CHARACTERS_MAX])
        text = f"{text[:-1]}...{text[-1]}" if is_long else text
        return f"the text {text}" if isinstance(value, str) else text
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:g}" if isinstance(value, float) else f"{value}"[:SHOWN_CHARACTERS_MAX]
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else kind_of(value)
