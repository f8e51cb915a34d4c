r"""A request's body: its bytes up to a bound, and the form in them or everything that is wrong.

    up to 16 KiB           read in one go
    longer                 in slices, with turns between them
      a list of forms        cut into its items in one go; then these are read one by one
      JSON in lines          one line after the other
      anything else          in one go: only the bodies of jobs are long (`form_reader`)

No reader of JSON can stop half-way, and all of them hold the interpreter's lock, so a thread would
not help. Finding where the items of a list end takes msgspec 2 ms for a MiB at most. So JSON that
is longer than `HTTP_JSON_BYTES_MAX` is refused, and lines are not.

>>> import asyncio
>>> from delayd.http.request_forms import PutJobForm, PutJobsForm
>>> from delayd.http.long_work import LoopTime
>>> reader = BodyReader(PutJobForm, PutJobsForm, 65_535)
>>> slices = Slices(LoopTime(now_ns=lambda: 0))
>>> jobs = asyncio.run(reader.read_long(b'{"jobs": [{"body": [ 1]}, {"body": 2}]}', slices)).jobs
>>> [job.body_bytes for job in jobs]
[b'[ 1]', b'2']
>>> jobs = asyncio.run(reader.read_lines(b'{"body": 1}\n\n{"body": 2}\n', slices)).jobs
>>> [job.body_bytes for job in jobs]
[b'1', b'2']
"""

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, Final

import msgspec
from aiohttp import hdrs
from aiohttp.streams import EMPTY_PAYLOAD

from delayd.http.connection import HttpRequest
from delayd.http.form_reader import (
    Form,
    Hints,
    ListField,
    Reader,
    check_rest,
    fields_of,
    new_hints,
    too_many,
    unknown,
)
from delayd.http.long_work import Slices
from delayd.http.problems import (
    LINES,
    BodyTooLong,
    ExpectationWrong,
    FieldError,
    NotJson,
    RequestInvalid,
)
from delayd.http.responses import HTTP_1_0
from delayd.http.values import UNSET, Unset
from delayd.json_text import why_not_json
from delayd.limits import (
    HTTP_ERRORS_MAX,
    HTTP_FIELDS_BYTES_MAX,
    HTTP_JSON_BYTES_MAX,
    HTTP_STEP_BYTES,
    POLICY_JSON_BYTES_MAX,
)

_OF_SETTING: Final = ", the setting http.body_bytes_max"
_BLANKS: Final = b" \t\r\n"
_BACKSLASH: Final = ord("\\")
_MEMBERS_TWO_BYTES: Final = len('{"":,"":0}')
"""Of an object of two members, without the name and the value of the first."""
_LINES_HINT: Final = f": send longer batches as lines, with the Content-Type {LINES}"


async def read_bytes(request: HttpRequest, bytes_max: int) -> bytes:
    """Return the body of a request, of a length up to that; `BodyTooLong`, `ExpectationWrong`."""
    headers, stream = request.headers, request.body
    if stream is EMPTY_PAYLOAD:
        return b""
    if int(headers.get(hdrs.CONTENT_LENGTH, 0)) > bytes_max:
        raise BodyTooLong(bytes_max, _OF_SETTING)
    if stream.is_eof():  # it came with the head, as short bodies do
        data = stream.read_nowait()
        if len(data) > bytes_max:
            raise BodyTooLong(bytes_max, _OF_SETTING)
        return data
    if hdrs.EXPECT in headers and request.version != HTTP_1_0:  # the client waits with the body
        if headers[hdrs.EXPECT].lower() != "100-continue":
            raise ExpectationWrong(headers[hdrs.EXPECT])
        request.connection.ask_for_body()
    body = bytearray()
    while chunk := await stream.readany():
        body += chunk
        if len(body) > bytes_max:
            raise BodyTooLong(bytes_max, _OF_SETTING)
    return bytes(body)


class BodyReader:
    """Reads the bodies of one call's requests."""

    __slots__ = (
        *("_batch", "_begins_as_batch", "_cut", "_item", "_json_bytes_max", "_list"),
        *("_list_name", "_one", "takes_lines"),
    )

    def __init__(self, form: type[Form], batch: type[Form] | None, job_body_bytes_max: int) -> None:
        """`batch` is the form for many at once, if it is not `form` that has a list of forms.

        A job whose body is longer than `job_body_bytes_max` will be refused: it need not be JSON.
        """
        self._one: Reader[Form] = Reader(form, job_body_bytes_max)
        self._batch = None if batch is None else Reader(batch, job_body_bytes_max)
        self._list: ListField | None = None
        self._item = self._one
        self._begins_as_batch = self._list_name = b""
        # A single job's body always fits, in base64 too.
        self._json_bytes_max = max(HTTP_JSON_BYTES_MAX, 2 * job_body_bytes_max)
        self.takes_lines = batch is not None
        for field in (self._batch or self._one).lists:
            if field.form is not None:
                self._list = field
                self._item = Reader(field.form, job_body_bytes_max)
                self._list_name = b'"%b"' % field.name.encode()
                self._begins_as_batch = b"{" + self._list_name
                fields = [(field.name, msgspec.Raw | Unset, UNSET)]
                self._cut = msgspec.json.Decoder(msgspec.defstruct("Cut", fields)).decode

    def read_short(self, data: bytes) -> Form:
        """Return the form in JSON of up to `HTTP_STEP_BYTES`; `NotJson`, `RequestInvalid`."""
        batch = self._batch
        if batch is None:
            return self._one.read(data)
        if data.startswith(self._begins_as_batch):
            return batch.read(data)
        if data.find(self._list_name) < 0 and _BACKSLASH not in data:  # nor with escapes
            return self._one.read(data)
        try:
            is_batch = self._list_in(data) is not None
        except (ValueError, RecursionError):  # the form for one says it in detail
            is_batch = False
        return batch.read(data) if is_batch else self._one.read(data)

    async def read_long(self, data: bytes, slices: Slices) -> Form:
        """Return the form in longer JSON; raises the same, and `BodyTooLong`."""
        if self._one.is_bounded:
            raise BodyTooLong(POLICY_JSON_BYTES_MAX)
        data = data.strip(_BLANKS)
        if len(data) > self._json_bytes_max:
            raise BodyTooLong(self._json_bytes_max, _LINES_HINT if self.takes_lines else "")
        if self._list is None:
            return await self._read_one(self._one, data, "", new_hints(), slices)
        try:
            array = self._list_in(data)
            await slices.rest_if_over()
            if array is None:
                return await self._read_one(self._one, data, "", new_hints(), slices)
            texts = _items_of(array, self._list)
            await slices.rest_if_over()
            errors = self._errors_beside(data, array, self._list)
            await slices.rest_if_over()
        except msgspec.ValidationError:
            raise RequestInvalid([FieldError("", "must be an object")]) from None
        except (ValueError, RecursionError) as error:
            raise NotJson(why_not_json(data, str(error))) from None
        name = self._list.name
        items = ((f"{name}[{number}]", text) for number, text in enumerate(texts))
        try:
            return await self._read_items(items, errors, slices)
        except NotJson as refusal:
            raise NotJson(why_not_json(data, *refusal.shown)) from None

    async def read_lines(self, data: bytes, slices: Slices) -> Form:
        """Return the batch with an item on each line; blank lines are skipped. As `read_long`."""
        return await self._read_items(_lines_of(data), [], slices)

    # --- Lists -----------------------------------------------------------------------------------

    def _list_in(self, data: bytes) -> memoryview | None:
        """Return the list of forms as it is written, None if there is none.

        `ValueError` and `RecursionError` where it is no JSON, `ValidationError` if it is no object.
        """
        assert self._list is not None, "only forms that have a list are looked into"
        raw: msgspec.Raw | Unset = getattr(self._cut(data), self._list.name)
        return memoryview(raw) if isinstance(raw, msgspec.Raw) else None

    def _errors_beside(self, data: bytes, array: memoryview, field: ListField) -> list[FieldError]:
        """Return the errors of members beside the list, where there may be none."""
        if len(data) - len(array) < len(field.name) + _MEMBERS_TWO_BYTES:
            return []
        check_rest(data, len(array))
        fields = fields_of((self._batch or self._one).kind)
        hints = new_hints()
        names = [*msgspec.json.decode(data, type=dict[str, msgspec.Raw])]
        errors = [
            FieldError(name, unknown(name, fields, hints)) for name in names if name != field.name
        ]
        if len(errors) >= HTTP_ERRORS_MAX:
            raise RequestInvalid(errors)
        return errors

    async def _read_one(
        self, reader: Reader[Form], text: bytes, where: str, hints: Hints, slices: Slices
    ) -> Form:
        """Return the form in a text that may be long."""
        if len(text) > self._json_bytes_max:  # a line
            raise BodyTooLong(self._json_bytes_max)
        if len(text) > HTTP_FIELDS_BYTES_MAX:
            reader.check_fields(text, where)
            await slices.rest_if_over()
        return reader.read(text, where, hints)

    async def _read_items(
        self, items: Iterable[tuple[str, bytes]], errors: list[FieldError], slices: Slices
    ) -> Form:
        """Return the form with this list of forms; each item comes with its place."""
        assert self._list is not None
        forms: list[Form] = []
        hints = new_hints()
        count = unseen_bytes = 0
        for where, text in items:
            if unseen_bytes > HTTP_STEP_BYTES:
                unseen_bytes = 0
                await slices.rest_if_over()
            unseen_bytes += len(text)
            if not where:
                continue
            count += 1
            if count > self._list.items_max:
                raise RequestInvalid([too_many(self._list)])
            try:
                if len(text) <= HTTP_STEP_BYTES:
                    forms.append(self._item.read(text, where, hints))
                else:
                    forms.append(await self._read_one(self._item, text, where, hints, slices))
            except RequestInvalid as refusal:
                errors += refusal.errors
                if len(errors) >= HTTP_ERRORS_MAX:
                    raise RequestInvalid(errors) from None
        if not count:
            errors.insert(0, FieldError(self._list.name, "must be at least 1 long"))
        if errors:
            raise RequestInvalid(errors)
        lister: Any = (self._batch or self._one).kind
        whole: Form = lister(**{self._list.name: forms})
        return whole


def _items_of(array: memoryview, field: ListField) -> list[bytes]:
    """Return the items as they are written; stops where there are too many."""
    if array[0] != ord("["):
        raise RequestInvalid([FieldError(field.name, "must be an array")])
    try:
        row = msgspec.json.decode(array, type=_row_of(field.items_max))
    except msgspec.ValidationError:
        raise RequestInvalid([too_many(field)]) from None
    return [bytes(one) for one in msgspec.structs.astuple(row) if one is not UNSET]


@cache
def _row_of(items_max: int) -> type[msgspec.Struct]:
    """Return the struct as which an array of at most so many items is read.

    The reader of a list would go on to its end, however long it is: a MiB of numbers takes 60 ms.
    """
    fields = [(f"item_{number}", msgspec.Raw | Unset, UNSET) for number in range(items_max)]
    return msgspec.defstruct("Row", fields, array_like=True, forbid_unknown_fields=True)


def _lines_of(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield each line with its place; blank ones in steps, without a place."""
    at = ends = 0
    while at < len(data):
        step = data[at : at + HTTP_STEP_BYTES]
        blank_bytes = len(step) - len(step.lstrip(_BLANKS))
        if blank_bytes:
            ends += step.count(b"\n", 0, blank_bytes)
            at += blank_bytes
            yield "", step[:blank_bytes]
            continue
        end = data.find(b"\n", at)
        end = len(data) if end < 0 else end
        yield f"line {ends + 1}", data[at:end]
        at = end
