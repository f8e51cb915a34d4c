"""From a request's bytes to the struct that its schema describes, or to everything that is wrong.

msgspec reads and checks in one go, and stops at the first mistake. Only then the body is read once
more, into plain values, and all mistakes are named. Rules for several fields together are the
form's own (`Rule`, `broken_rules`).

>>> from delayd.http.values import Duration
>>> class Wish(Form):
...     delay: Duration = Duration(0)
...     priority: int = 0
>>> Reader(Wish).read(b'{"delay": "15s"}').delay
15000
>>> try: Reader(Wish).read(b'{"delay": "soon", "priority": "high", "colour": 1}')
... except RequestInvalid as refusal: print(*(error.field for error in refusal.errors))
delay priority colour

Texts that are kept as they are, which msgspec does not check, are read by orjson: UTF-8, no NaN, no
control characters. Of a name that is there twice the last value counts, as in nearly all readers.

Reading blocks all other clients: `bodies` cuts long requests into parts that are read here. In a
part only the bodies of jobs may be long, which are kept as they are.
"""

import enum
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, islice
from typing import Annotated, Any, ClassVar, Final, Generic, NamedTuple, TypeVar

import msgspec
import orjson

from delayd.fields import as_whole
from delayd.http.problems import FieldError, NotJson, RequestInvalid
from delayd.http.values import decode_value
from delayd.json_text import is_dense, why_not_json
from delayd.limits import (
    BODY_BYTES_CEILING,
    HTTP_CONTAINERS_MAX,
    HTTP_ERRORS_MAX,
    HTTP_FIELDS_BYTES_MAX,
    HTTP_HINTS_MAX,
    HTTP_STEP_BYTES,
)
from delayd.text import did_you_mean


class Rule(NamedTuple):
    """A rule for several fields of a form together."""

    schema: dict[str, Any]
    """The same as a JSON schema."""
    field: str
    """The field that an error names."""
    detail: str
    is_broken: Callable[[Any], bool]
    """Tells whether a form breaks it."""


Rules = tuple[Rule, ...]


class Form(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The contents of a request; a subclass has its fields."""

    rules: ClassVar[Rules] = ()
    """A subclass names its own, besides those of its bases."""

    def broken_rules(self) -> list[FieldError]:
        """Return the mistakes that concern several fields together."""
        return [
            FieldError(rule.field, rule.detail)
            for rule in rules_of(type(self))
            if rule.is_broken(self)
        ]

    def kept_texts(self) -> Iterable[msgspec.Raw]:
        """Return the JSON texts that are kept as they are, and not checked yet."""
        return ()


FormT = TypeVar("FormT", bound=Form)


@cache
def rules_of(kind: type[Form]) -> Rules:
    """Return the rules of a form and of its bases."""
    return tuple(rule for base in kind.__mro__ for rule in vars(base).get("rules", ()))


class _Bodies(msgspec.Struct):
    """The fields that may be long, as they are written; the others are skipped."""

    body: msgspec.Raw = msgspec.Raw()
    body_base64: msgspec.Raw = msgspec.Raw()


_decode_bodies: Final = msgspec.json.Decoder(_Bodies).decode

Hints = Iterator[int]
"""An item for each "did you mean" that may still be searched for, which takes long."""


def new_hints() -> Hints:
    """Return the hints of one request."""
    return iter(range(HTTP_HINTS_MAX))


class ListField(NamedTuple):
    """A field that is a list of a bounded length."""

    name: str
    items_max: int
    form: type[Form] | None
    """Of its items; None: they are plain values."""


SOMETHING: Final = 0
"""In place of a wrong value, where rules ask only which fields are present."""
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
"""msgspec's name of a kind of value -> the words for it in messages."""


class Reader(Generic[FormT]):
    """Reads the bodies of one kind of request."""

    def __init__(self, kind: type[FormT], job_body_bytes_max: int = BODY_BYTES_CEILING) -> None:
        """A job whose body is longer than that will be refused: it is not read here."""
        self.kind = kind
        self._kept = _kept_of(kind)
        """Fields whose texts are kept as they are."""
        self._job_body_bytes_max = job_body_bytes_max
        self._decode = msgspec.json.Decoder(kind, dec_hook=decode_value).decode
        self.lists = _lists_of(kind)
        self.is_bounded = not (kind.__struct_config__.forbid_unknown_fields or self._kept)
        """The fields are read by something else, and none may be long: only JSON is checked."""

    def read(self, data: bytes, where: str = "", hints: Hints | None = None) -> FormT:
        """Return the form in a text; `where` is its place in the request, such as `jobs[3]`.

        Raises `NotJson`, `RequestInvalid`.
        """
        try:
            if self.is_bounded:
                orjson.loads(data)
            for field in self.lists:
                _check_length(data, field)
            try:
                form = self._decode(data)
            except msgspec.ValidationError:
                form = self._decode(_with_whole_numbers(data, self.kind))
            if len(data) <= HTTP_STEP_BYTES:
                for text in form.kept_texts():
                    orjson.loads(memoryview(text))
            else:
                for text in form.kept_texts():
                    self._check_body(text, where)
        except (ValueError, RecursionError) as error:
            raise self._refusal(data, error, where, hints or new_hints()) from None
        if broken := form.broken_rules():
            dot = f"{where}." if where else ""
            raise RequestInvalid([FieldError(dot + one.field, one.detail) for one in broken])
        return form

    def check_fields(self, data: bytes, where: str) -> None:
        """Refuse a text whose fields are long, job bodies excepted; `NotJson`, `RequestInvalid`."""
        try:
            bodies = _decode_bodies(data)
        except (ValueError, RecursionError) as error:
            raise self._refusal(data, error, where, new_hints()) from None
        check_rest(data, max(len(bodies.body), len(bodies.body_base64)), where)

    def _check_body(self, text: msgspec.Raw, where: str) -> None:
        """Refuse a body that is no JSON, or too much of it: reading it would block all clients."""
        if len(text) > self._job_body_bytes_max:
            return
        if len(text) > HTTP_CONTAINERS_MAX and is_dense(bytes(text)):
            rule = f"has more than {HTTP_CONTAINERS_MAX} arrays and objects: send it in base64"
            raise RequestInvalid([FieldError(f"{where}.body" if where else "body", rule)])
        orjson.loads(memoryview(text))

    def _refusal(
        self, data: bytes, error: Exception, where: str, hints: Hints
    ) -> NotJson | RequestInvalid:
        """Return all mistakes of a text in which msgspec has found one."""
        try:
            values = self._plain_values(data, where)
            errors = [*islice(errors_in(values, self.kind, hints, where), HTTP_ERRORS_MAX)]
        except msgspec.ValidationError:
            return RequestInvalid([FieldError(where, "must be an object")])
        except (ValueError, RecursionError) as strict_error:
            return NotJson(why_not_json(data, str(strict_error), where))
        if not errors and not isinstance(error, msgspec.ValidationError):
            return NotJson(why_not_json(data, str(error), where))  # it goes less deep than orjson
        return RequestInvalid(errors or [FieldError(where, str(error))])

    def _plain_values(self, data: bytes, where: str) -> dict[str, object]:
        """Return the values of all members, read strictly; of a body a placeholder."""
        values: dict[str, object] = {}
        for name, raw in msgspec.json.decode(data, type=dict[str, msgspec.Raw]).items():
            if name in self._kept:
                self._check_body(raw, where)
                values[name] = SOMETHING
            else:
                orjson.loads(memoryview(raw))  # but it makes floats of whole numbers beyond 64 bits
                values[name] = msgspec.json.decode(raw)
        return values


def _with_whole_numbers(data: bytes, kind: type[Form]) -> bytes:
    """Return the text with each `5.0` and `5e0` written as 5 where a whole number is meant.

    JSON Schema takes them for whole ones, and msgspec does not.
    """
    members = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    for name, field in fields_of(kind).items():
        if name not in members:
            continue
        if (inner := form_in(field.type)) is not None:
            items = msgspec.json.decode(members[name], type=list[msgspec.Raw])
            written = [_with_whole_numbers(bytes(item), inner) for item in items]
            members[name] = msgspec.Raw(b"[%b]" % b",".join(written))
        elif int in _kinds(field.type):
            number = as_whole(msgspec.json.decode(members[name]))
            if isinstance(number, int):
                members[name] = msgspec.Raw(str(number).encode())
    return msgspec.json.encode(members)


def check_rest(data: bytes, long_bytes: int, where: str = "") -> None:
    """Refuse an object that is long even without its bodies: reading it would block all clients.

    Raises `RequestInvalid`.
    """
    if len(data) - long_bytes > HTTP_FIELDS_BYTES_MAX:
        rule = f"its fields, bodies of jobs excepted, are longer than {HTTP_FIELDS_BYTES_MAX} bytes"
        raise RequestInvalid([FieldError(where, rule)])


@cache  # a form does not change, and to look at its annotations takes half a millisecond
def _lists_of(kind: type[Form]) -> tuple[ListField, ...]:
    return tuple(
        ListField(name, meta.max_length, form_in(field.type))
        for name, field in fields_of(kind).items()
        for meta in typing.get_args(field.type)[1:]
        if isinstance(meta, msgspec.Meta) and meta.max_length and _is_list(field.type)
    )


@cache
def _kept_of(kind: type[Form]) -> frozenset[str]:
    fields = fields_of(kind).items()
    return frozenset(name for name, field in fields if msgspec.Raw in _kinds(field.type))


def _check_length(data: bytes, field: ListField) -> None:
    """Refuse a list that is too long before its items are read, which takes long."""
    if data.count(b",") < field.items_max:
        return
    raw = msgspec.json.decode(data, type=dict[str, msgspec.Raw]).get(field.name)
    if raw is not None and bytes(memoryview(raw)[:1]) == b"[":
        count = len(msgspec.json.decode(raw, type=list[msgspec.Raw]))
        if count > field.items_max:
            raise RequestInvalid([too_many(field)])


def too_many(field: ListField) -> FieldError:
    """Return the error of a list that is too long."""
    return FieldError(field.name, f"has more than {field.items_max} items")


def errors_in(
    value: object, kind: type[Form], hints: Hints, where: str = ""
) -> Iterator[FieldError]:
    """Yield all mistakes of an object; `where` is its place, such as `jobs[3]`."""
    if type(value) is not dict:
        yield FieldError(where, "must be an object")
        return
    values: dict[str, object] = {**value}
    dot = f"{where}." if where else ""
    fields = fields_of(kind)
    good: dict[str, Any] = {}
    for field in fields.values():
        if field.encode_name not in values:
            if field.required:
                yield FieldError(dot + field.encode_name, "is missing")
            continue
        value_there = values.pop(field.encode_name)
        errors = []
        place = dot + field.encode_name
        for error in _errors_of(value_there, field.type, place, good, field.name, hints):
            errors.append(error)
            yield error
        if errors and not field.required:
            good[field.name] = SOMETHING
    for name in values:
        yield FieldError(dot + name, unknown(name, fields, hints))
    if all(field.name in good or not field.required for field in fields.values()):
        for error in kind(**good).broken_rules():
            yield FieldError(dot + error.field, error.detail)


def _errors_of(
    value: object,
    kind: Any,  # noqa: ANN401 (a type)
    where: str,
    good: dict[str, Any],
    name: str,
    hints: Hints,
) -> Iterator[FieldError]:
    """Yield the mistakes of a field's value; without any it is added to `good`."""
    if msgspec.Raw in _kinds(kind):
        good[name] = SOMETHING
        return
    inner = form_in(kind)
    if inner is not None and type(value) is list:
        errors: Iterator[FieldError] = chain.from_iterable(
            errors_in(item, inner, hints, f"{where}[{number}]") for number, item in enumerate(value)
        )
        if (first := next(errors, None)) is not None:
            yield first
            yield from errors
            return
        kind = Annotated[(list[Any], *kind.__metadata__)]
    elif inner is not None:
        yield FieldError(where, "must be an array")
        return
    elif int in _kinds(kind):
        value = as_whole(value)
    try:
        converted = msgspec.convert(value, kind, dec_hook=decode_value)
    except msgspec.ValidationError as error:
        errors = _errors_of_items(value, kind, where)
        yield next(errors, None) or _error_of(where, str(error), kind)
        yield from errors
    else:
        good[name] = converted if inner is None else []


def _errors_of_items(value: object, kind: Any, where: str) -> Iterator[FieldError]:  # noqa: ANN401
    """Yield the mistakes of each item of a list; none if the value or its type is no list."""
    lists = [one for one in _kinds(kind) if typing.get_origin(one) is list]
    if type(value) is not list or not lists:
        return
    (item_kind,) = typing.get_args(lists[0])
    for number, item in enumerate(value):
        try:
            msgspec.convert(item, item_kind, dec_hook=decode_value)
        except msgspec.ValidationError as error:
            yield _error_of(f"{where}[{number}]", str(error), item_kind)


def _error_of(where: str, message: str, kind: Any) -> FieldError:  # noqa: ANN401 (a type)
    """Return msgspec's message as a rule, and where in the value it is broken.

    >>> _error_of("tokens", "Expected `str`, got `int` - at `$[3]`", list[str])
    FieldError(field='tokens[3]', detail='must be a text, not a whole number')
    >>> _error_of("priority", "Expected `int` >= 0", int).detail
    'must be at least 0'
    """
    message, _, path = message.partition(" - at `$")
    where += path.rstrip("`")
    if (match := _GOT.fullmatch(message)) is not None:
        return FieldError(where, f"must be {_words(match[1])}, not {_words(match[2])}")
    if message.startswith("Expected `str` ") and (rule := _rule_of(kind)):
        return FieldError(where, rule)
    if (match := _BOUND.fullmatch(message)) is not None:
        unit = " long" if match[1] else ""
        return FieldError(where, f"must be {_SIGNS[match[2]]} {match[3]}{unit}")
    if message.startswith("Invalid enum value"):
        value = message.removeprefix("Invalid enum value ")
        return FieldError(where, f"must be one of {', '.join(_choices(kind))}, not {value}")
    if message == "Invalid base64 encoded string":
        return FieldError(where, "must be base64, with its padding: the length a multiple of 4")
    if "matching regex" in message:
        return FieldError(where, "does not have the required form: see /openapi.json")
    return FieldError(where, message)


def _rule_of(kind: Any) -> str:  # noqa: ANN401 (a type)
    """Return the rule that the type names for its texts: `extra={"rule": ...}`; mostly empty."""
    for meta in getattr(kind, "__metadata__", ()):
        if isinstance(meta, msgspec.Meta) and meta.extra and "rule" in meta.extra:
            return str(meta.extra["rule"])
    return next(filter(None, map(_rule_of, typing.get_args(kind))), "")


def _words(names: str) -> str:
    return " or ".join(_TYPES.get(name.strip(), name) for name in names.split("|"))


def _choices(kind: Any) -> Iterator[str]:  # noqa: ANN401 (a type)
    for one in _kinds(kind):
        if typing.get_origin(one) is typing.Literal:
            yield from typing.get_args(one)
        elif isinstance(one, type) and issubclass(one, enum.Enum):
            yield from (str(member.value) for member in one)


def unknown(name: str, fields: Iterable[str], hints: Hints) -> str:
    """Return the error of a name that is none of these."""
    hint = "" if next(hints, None) is None else did_you_mean(name, fields)
    return f"there is no such field{hint}"


@cache
def fields_of(kind: type[Form]) -> Mapping[str, msgspec.structs.FieldInfo]:
    """Return the fields of a form, by their names in JSON."""
    return {field.encode_name: field for field in msgspec.structs.fields(kind)}


def _kinds(kind: Any) -> Iterator[Any]:  # noqa: ANN401 (types)
    """Yield the types of a union, or the only one, without their annotations."""
    origin = typing.get_origin(kind)
    if origin is Annotated:
        yield from _kinds(typing.get_args(kind)[0])
    elif origin in {types.UnionType, typing.Union}:
        for one in typing.get_args(kind):
            yield from _kinds(one)
    else:
        yield kind


def form_in(kind: Any) -> type[Form] | None:  # noqa: ANN401 (a type)
    """Return the form in a type that is a list of forms; None for other types."""
    for one in _kinds(kind):
        if typing.get_origin(one) is list:
            (inner,) = typing.get_args(one)
            if isinstance(inner, type) and issubclass(inner, Form):
                return inner
    return None


def _is_list(kind: Any) -> bool:  # noqa: ANN401 (a type)
    return any(typing.get_origin(one) is list for one in _kinds(kind))


def read_query(kind: type[FormT], pairs: Sequence[tuple[str, str]]) -> FormT:
    """Return the form of a query's names and values; `RequestInvalid`."""
    fields = fields_of(kind)
    hints = new_hints()
    raws: dict[str, Any] = {}
    errors = []
    for name, value in pairs:
        field = fields.get(name)
        if field is None:
            errors.append(FieldError(name, unknown(name, fields, hints)))
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
            errors.append(FieldError(name, _error_of(name, str(error), field.type).detail))
    errors += [
        FieldError(name, "is missing")
        for name, field in fields.items()
        if field.required and name not in raws
    ]
    if not errors:
        form = kind(**good)
        errors = form.broken_rules()
        if not errors:
            return form
    raise RequestInvalid(errors)
