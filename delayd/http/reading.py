"""From a request's bytes to the struct that its schema describes, or to everything that is wrong.

msgspec reads and checks in one go, and stops at the first mistake. Only then the body is read once
more, into plain values, of which all mistakes are named. What concerns several fields at once says
the struct itself, in `broken_rules`.

>>> from delayd.http.values import Duration
>>> class Wish(Form):
...     delay: Duration = Duration(0)
...     priority: int = 0
>>> Reader(Wish).read(b'{"delay": "15s"}').delay
15000
>>> try: Reader(Wish).read(b'{"delay": "soon", "priority": "high", "colour": 1}')
... except RequestInvalid as refusal: print(*(error.field for error in refusal.errors))
delay priority colour

What msgspec does not look into, since it is kept as the very text, is read by orjson: UTF-8, no
NaN, no control characters. Of a name that is there twice the last value counts, as
nearly all readers have it.
"""

import enum
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import Annotated, Any, ClassVar, Final, Generic, TypeVar

import msgspec
import orjson

from delayd.http.problems import FieldError, NotJson, RequestInvalid
from delayd.http.values import decode_value, is_dense
from delayd.limits import (
    HTTP_BATCH_MAX,
    HTTP_CONTAINERS_MAX,
    HTTP_DEPTH_READ,
    HTTP_ERRORS_MAX,
)
from delayd.text import did_you_mean

Rules = tuple[dict[str, Any], ...]


class Form(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What a request says; a subclass has a field for each thing that it may say."""

    told_rules: ClassVar[Rules] = ()
    """What `broken_rules` checks, as JSON schemas say it; a subclass names its own."""

    def broken_rules(self) -> list[FieldError]:
        """Return what is wrong with several fields together."""
        return []

    def kept_texts(self) -> Iterable[msgspec.Raw]:
        """Return the texts that are kept as they are, which nothing has read yet."""
        return ()


FormT = TypeVar("FormT", bound=Form)

SOMETHING: Final = 0
"""Stands for a value that is wrong, where rules ask which fields are there."""
_GOT: Final = re.compile(r"Expected `([^`]*)`, got `([^`]*)`")
_BOUND: Final = re.compile(r"Expected `(?:\w+)`( of length)? (>=|<=|>|<) ([0-9.e+]+)")
_SIGNS: Final = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}
_TYPES: Final = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "array": "an array",
    "object": "an object",
    "null": "null",
    "bytes": "a text in base64",
}
"""What msgspec calls the kinds of values, in words of people who write JSON."""


class Reader(Generic[FormT]):
    """Reads the bodies of one kind of request."""

    def __init__(self, kind: type[FormT]) -> None:
        self.kind = kind
        self._decode = msgspec.json.Decoder(kind, dec_hook=decode_value).decode
        self._lengths = [*_lengths_of(kind)]
        """The lists among the fields, and how long they may be."""
        self._has_rules = kind.__struct_config__.forbid_unknown_fields
        """Otherwise the fields are read by something else, and only JSON is to be checked."""

    def read(self, data: bytes) -> FormT:
        """Return what the body says; `NotJson`, `RequestInvalid`."""
        if is_dense(data):
            rule = f"has more than {HTTP_CONTAINERS_MAX} arrays and objects: send several requests"
            raise RequestInvalid([FieldError("", rule)])
        try:
            if not self._has_rules:
                orjson.loads(data)
            for name, items_max in self._lengths:
                _check_length(data, name, items_max)
            given = self._decode(data)
            for text in given.kept_texts():
                orjson.loads(memoryview(text))
        except (ValueError, RecursionError) as error:
            raise self._refusal(data, str(error)) from None
        if broken := given.broken_rules():
            raise RequestInvalid(broken)
        return given

    def _refusal(self, data: bytes, said: str) -> NotJson | RequestInvalid:
        """Return everything that is wrong with a body in which msgspec has found one mistake."""
        try:
            orjson.loads(data)  # strict; but it makes floats of whole numbers beyond 64 bits
            errors = [*islice(errors_in(msgspec.json.decode(data), self.kind), HTTP_ERRORS_MAX)]
        except (ValueError, RecursionError) as error:
            return NotJson(_not_json(data, str(error)))
        if not errors and not said.startswith(("Expected", "Invalid", "Object", "Number")):
            return NotJson(_not_json(data, said))  # msgspec goes less deep than orjson
        return RequestInvalid(errors or [FieldError("", said)])


def _not_json(data: bytes, said: str) -> str:
    r"""Return why the data is not JSON; `said` is what orjson or msgspec says of it.

    >>> _not_json(b'{"body": "\xff"}', "str is not valid UTF-8")
    'the byte 0xff at offset 10 is not UTF-8'
    """
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return f"the byte 0x{data[error.start]:02x} at offset {error.start} is not UTF-8"
    if "depth" in said:
        return f"arrays and objects are nested too deeply; {HTTP_DEPTH_READ} levels are read"
    return said


def _lengths_of(kind: type[Form]) -> Iterator[tuple[str, int]]:
    """Yield the fields that are lists of a bounded length."""
    for field in msgspec.structs.fields(kind):
        for meta in typing.get_args(field.type)[1:]:
            if isinstance(meta, msgspec.Meta) and meta.max_length and _is_list(field.type):
                yield field.encode_name, meta.max_length


def _check_length(data: bytes, name: str, items_max: int) -> None:
    """Refuse a list that is too long, before its items are looked at: that takes seconds."""
    if data.count(b",") < items_max:
        return
    raw = msgspec.json.decode(data, type=dict[str, msgspec.Raw]).get(name)
    if raw is not None and bytes(memoryview(raw)[:1]) == b"[":
        count = len(msgspec.json.decode(raw, type=list[msgspec.Raw]))
        if count > items_max:
            raise RequestInvalid([_too_many(name, count, items_max)])


def _too_many(where: str, count: int, items_max: int) -> FieldError:
    return FieldError(where, f"has {count} items, more than {items_max}")


def errors_in(value: object, kind: type[Form], where: str = "") -> Iterator[FieldError]:
    """Yield everything that is wrong with an object of this kind; where: `jobs[3]` or nothing."""
    if type(value) is not dict:
        yield FieldError(where, "must be an object")
        return
    values: dict[str, object] = {**value}
    dot = f"{where}." if where else ""
    fields = _fields(kind)
    good: dict[str, Any] = {}
    for field in fields.values():
        if field.encode_name not in values:
            if field.required:
                yield FieldError(dot + field.encode_name, "is missing")
            continue
        there = values.pop(field.encode_name)
        errors = []
        for error in _errors_of(there, field.type, dot + field.encode_name, good, field.name):
            errors.append(error)
            yield error
        if errors and not field.required:
            good[field.name] = SOMETHING
    for name in values:
        yield FieldError(dot + name, _unknown(name, fields))
    if all(field.name in good or not field.required for field in fields.values()):
        for error in kind(**good).broken_rules():
            yield FieldError(dot + error.field, error.detail)


def _errors_of(
    value: object,
    kind: Any,  # noqa: ANN401 (a type)
    where: str,
    good: dict[str, Any],
    name: str,
) -> Iterator[FieldError]:
    """Yield what is wrong with the value of a field; one that is right goes among the `good`."""
    if msgspec.Raw in _kinds(kind):
        good[name] = SOMETHING
        return
    inner = form_in(kind)
    if inner is not None and type(value) is list:
        if len(value) > HTTP_BATCH_MAX:
            yield _too_many(where, len(value), HTTP_BATCH_MAX)
            return
        is_wrong = False
        for number, item in enumerate(value):
            for error in errors_in(item, inner, f"{where}[{number}]"):
                is_wrong = True
                yield error
        if is_wrong:
            return
        kind = Annotated[(list[Any], *kind.__metadata__)]
    elif inner is not None:
        yield FieldError(where, "must be an array")
        return
    try:
        converted = msgspec.convert(value, kind, dec_hook=decode_value)
    except msgspec.ValidationError as error:
        yield from _errors_of_items(value, kind, where) or [_told(where, str(error), kind)]
    else:
        good[name] = converted if inner is None else []


def _errors_of_items(value: object, kind: Any, where: str) -> list[FieldError]:  # noqa: ANN401
    """Return what is wrong with each item of a list; nothing if the value or its kind is none."""
    errors: list[FieldError] = []
    lists = [one for one in _kinds(kind) if typing.get_origin(one) is list]
    if type(value) is not list or not lists:
        return errors
    (item_kind,) = typing.get_args(lists[0])
    for number, item in enumerate(value[:HTTP_BATCH_MAX]):
        try:
            msgspec.convert(item, item_kind, dec_hook=decode_value)
        except msgspec.ValidationError as error:
            errors.append(_told(f"{where}[{number}]", str(error), item_kind))
    return errors


def _told(where: str, said: str, kind: Any) -> FieldError:  # noqa: ANN401 (a type)
    """Return msgspec's sentence as a rule, and where in the value it is broken.

    >>> _told("tokens", "Expected `str`, got `int` - at `$[3]`", list[str])
    FieldError(field='tokens[3]', detail='must be a text, not a whole number')
    >>> _told("priority", "Expected `int` >= 0", int).detail
    'must be at least 0'
    """
    said, _, path = said.partition(" - at `$")
    where += path.rstrip("`")
    if (match := _GOT.fullmatch(said)) is not None:
        return FieldError(where, f"must be {_words(match[1])}, not {_words(match[2])}")
    if said.startswith("Expected `str` ") and (rule := _rule_of(kind)):
        return FieldError(where, rule)
    if (match := _BOUND.fullmatch(said)) is not None:
        what = " long" if match[1] else ""
        return FieldError(where, f"must be {_SIGNS[match[2]]} {match[3]}{what}")
    if said.startswith("Invalid enum value"):
        value = said.removeprefix("Invalid enum value ")
        return FieldError(where, f"must be one of {', '.join(_choices(kind))}, not {value}")
    if said == "Invalid base64 encoded string":
        return FieldError(where, "must be base64, with its padding: the length a multiple of 4")
    if "matching regex" in said:
        return FieldError(where, "has not the form that it must have: see /openapi.json")
    return FieldError(where, said)


def _rule_of(kind: Any) -> str:  # noqa: ANN401 (a type)
    """Return the rule that the type names for its texts: `extra={"rule": ...}`; mostly empty."""
    for meta in getattr(kind, "__metadata__", ()):
        if isinstance(meta, msgspec.Meta) and meta.extra and "rule" in meta.extra:
            return str(meta.extra["rule"])
    return next(filter(None, map(_rule_of, typing.get_args(kind))), "")


def _words(types_said: str) -> str:
    return " or ".join(_TYPES.get(name.strip(), name) for name in types_said.split("|"))


def _choices(kind: Any) -> Iterator[str]:  # noqa: ANN401 (a type)
    for one in _kinds(kind):
        if typing.get_origin(one) is typing.Literal:
            yield from typing.get_args(one)
        elif isinstance(one, type) and issubclass(one, enum.Enum):
            yield from (str(member.value) for member in one)


def _unknown(name: str, fields: Iterable[str]) -> str:
    return "there is no such field" + did_you_mean(name, fields)


@cache
def _fields(kind: type[Form]) -> Mapping[str, msgspec.structs.FieldInfo]:
    return {field.encode_name: field for field in msgspec.structs.fields(kind)}


def _kinds(kind: Any) -> Iterator[Any]:  # noqa: ANN401 (types)
    """Yield the types of a union, or the only one, without what is said of them besides."""
    origin = typing.get_origin(kind)
    if origin is Annotated:
        yield from _kinds(typing.get_args(kind)[0])
    elif origin in {types.UnionType, typing.Union}:
        for one in typing.get_args(kind):
            yield from _kinds(one)
    else:
        yield kind


def form_in(kind: Any) -> type[Form] | None:  # noqa: ANN401 (a type)
    """Return the form of which the type is a list; None if it is none."""
    for one in _kinds(kind):
        if typing.get_origin(one) is list:
            (inner,) = typing.get_args(one)
            if isinstance(inner, type) and issubclass(inner, Form):
                return inner
    return None


def _is_list(kind: Any) -> bool:  # noqa: ANN401 (a type)
    return any(typing.get_origin(one) is list for one in _kinds(kind))


def read_query(kind: type[FormT], pairs: Sequence[tuple[str, str]]) -> FormT:
    """Return what the names and values behind the `?` say; `RequestInvalid`."""
    fields = _fields(kind)
    raws: dict[str, Any] = {}
    errors = []
    for name, value in pairs:
        field = fields.get(name)
        if field is None:
            errors.append(FieldError(name, _unknown(name, fields)))
        elif _is_list(field.type):
            raws.setdefault(name, []).append(value)
        elif name in raws:
            errors.append(FieldError(name, "is given twice"))
        else:
            raws[name] = value
    good: dict[str, Any] = {}
    for name, raw in raws.items():
        field = fields[name]
        try:
            good[field.name] = msgspec.convert(raw, field.type, strict=False, dec_hook=decode_value)
        except msgspec.ValidationError as error:
            errors.append(FieldError(name, _told(name, str(error), field.type).detail))
    errors += [
        FieldError(name, "is missing")
        for name, field in fields.items()
        if field.required and name not in raws
    ]
    if not errors:
        given = kind(**good)
        errors = given.broken_rules()
        if not errors:
            return given
    raise RequestInvalid(errors)
