r"""Reading requests that take too long to be read in one go: in slices, with turns between them.

    more than 16 KiB ──► parts (`json_walk`) ──► each job of the batch, read like a short request
                                            └──► a long object, without its long values: the same

No reader of JSON can stop on its way, and all of them keep the interpreter meanwhile, so a thread
would not help. A job of a batch that is long itself is cut up once more. Its body is kept as the
text that it is, checked if a job may be that long; other arrays and objects that are longer than
any field takes are read as empty ones, which is refused like them.

>>> import asyncio
>>> from delayd.http.forms import PutJobForm, PutJobsForm
>>> from delayd.http.slices import LoopTime
>>> reader = LongReader(Reader(PutJobForm), Reader(PutJobsForm), 65_535)
>>> slices = Slices(LoopTime(now_ns=lambda: 0))
>>> jobs = asyncio.run(reader.read(b'{"jobs": [{"body": {"a": 1}}, {"body": 2}]}', slices)).jobs
>>> [job.body_bytes for job in jobs]
[b'{"a": 1}', b'2']
>>> jobs = asyncio.run(reader.read_lines(b'{"body": 1}\n{"body": 2}\n', slices)).jobs
>>> [job.body_bytes for job in jobs]
[b'1', b'2']
"""

import msgspec
import orjson

from delayd.http.json_walk import JsonWalk, NoObjectError, behind_blanks
from delayd.http.problems import BodyTooLong, FieldError, NotJson, RequestInvalid
from delayd.http.reading import (
    Form,
    Hints,
    Reader,
    fields_of,
    new_hints,
    too_many,
    unknown,
    why_not_json,
)
from delayd.http.slices import Slices
from delayd.limits import (
    HTTP_CONTAINERS_MAX,
    HTTP_ERRORS_MAX,
    HTTP_STEP_BYTES,
    HTTP_VALUE_BYTES_MAX,
    POLICY_JSON_BYTES_MAX,
)


class _Batch:
    """What was read of a list of forms, and what is wrong with it."""

    __slots__ = ("count", "errors", "forms", "hints")

    def __init__(self) -> None:
        self.count = 0
        """Of its items so far, with those that are wrong."""
        self.forms: list[Form] = []
        self.errors: list[FieldError] = []
        self.hints: Hints = new_hints()

    def add_errors(self, *errors: FieldError) -> None:
        """Raise `RequestInvalid` when there are as many as an answer tells."""
        self.errors += errors
        if len(self.errors) >= HTTP_ERRORS_MAX:
            raise RequestInvalid(self.errors)


class _Members:
    """The members of one long object, until all of them are there to be read."""

    __slots__ = ("_body", "_fields", "_reader", "_spare_bytes", "_texts", "_unknown_count")

    def __init__(self, reader: Reader[Form]) -> None:
        self._reader = reader
        self._fields = fields_of(reader.kind)
        self._texts: dict[str, bytes] = {}
        self._body: bytes | None = None
        """The body, if it is long."""
        self._spare_bytes = HTTP_VALUE_BYTES_MAX
        self._unknown_count = 0

    def add(self, name: str, text: bytes) -> bool:
        """Take a member, of its name the last; tell whether more of them matter."""
        if name not in self._fields:
            self._unknown_count += name not in self._texts
            text = b"0"
        elif name == "body":
            is_long = len(text) > HTTP_STEP_BYTES
            self._body = text if is_long else None
            text = b"0" if is_long else text
        elif text.startswith((b"[", b"{")):
            self._spare_bytes -= len(text)
            if self._spare_bytes < 0:
                for field in self._reader.lists:
                    if field.name == name:
                        raise RequestInvalid([too_many(field)])
                # Headers are an object, so that an empty one would be taken.
                text = b"{}" if text.startswith(b"{") and name != "headers" else b"[]"
        self._texts[name] = text
        return self._unknown_count <= HTTP_ERRORS_MAX

    @property
    def names(self) -> list[str]:
        """All names that were taken."""
        return [*self._texts]

    def read(self, where: str, hints: Hints, body_bytes_max: int) -> Form:
        """Return what they say together."""
        texts = [b"%b:%b" % (orjson.dumps(name), text) for name, text in self._texts.items()]
        given = self._reader.read(b"{%b}" % b",".join(texts), where, hints)
        if self._body is not None:
            if len(self._body) <= body_bytes_max:
                orjson.loads(self._body)
            given.body = msgspec.Raw(self._body)  # type: ignore[attr-defined]
        return given


class LongReader:
    """Reads the long requests of one call."""

    def __init__(
        self, reader: Reader[Form], batch: Reader[Form] | None, body_bytes_max: int
    ) -> None:
        """`batch` reads the form for many at once, if it is not `reader` that has a list of forms.

        A job whose body is longer than `body_bytes_max` will be refused: it need not be JSON.
        """
        self._reader = reader
        self._body_bytes_max = body_bytes_max
        self._lister = batch or reader
        forms = [field for field in self._lister.lists if field.form is not None]
        self._list = forms[0] if forms else None
        self._item_reader = Reader(forms[0].form) if forms and forms[0].form else reader

    async def read(self, data: bytes, slices: Slices) -> Form:
        """Return what a body says; `NotJson`, `RequestInvalid`, `BodyTooLong`."""
        if not self._reader.has_rules:
            raise BodyTooLong(POLICY_JSON_BYTES_MAX)
        try:
            await _refuse_dense(data, slices)
            return await self._read(data, slices)
        except NotJson as refusal:
            raise NotJson(why_not_json(data, *refusal.said)) from None
        except NoObjectError:
            raise RequestInvalid([FieldError("", "must be an object")]) from None
        except (ValueError, RecursionError) as error:
            raise NotJson(why_not_json(data, str(error))) from None

    async def _read(self, data: bytes, slices: Slices) -> Form:
        name = None if self._list is None else self._list.name
        members = _Members(self._reader)
        batch: _Batch | None = None
        coming: _Batch | None = None
        is_batch = False
        for part in JsonWalk(data).members(name):
            if slices.is_over:
                await slices.rest()
            if part is None:
                continue
            if part.number < 0 and part.name == name:
                is_batch = True
                batch = coming or _Batch() if data.startswith(b"[", part.start) else None
                coming = None
                continue
            text = data[part.start : part.end]
            if part.number >= 0:
                coming = coming or _Batch()
                await self._add(coming, text, f"{name}[{part.number}]", slices)
            elif not members.add(part.name, text):
                break
        if not is_batch:
            return members.read("", new_hints(), self._body_bytes_max)
        return self._batch_of(batch, members)

    async def read_lines(self, data: bytes, slices: Slices) -> Form:
        """Return the batch whose jobs are a line each; blank lines are none. As `read`."""
        await _refuse_dense(data, slices)
        batch = _Batch()
        at = ends = 0
        while at < len(data):
            if slices.is_over:
                await slices.rest()
            start, at = at, behind_blanks(data, at)
            ends += data.count(b"\n", start, at)
            if at == len(data) or at == start + HTTP_STEP_BYTES:
                continue  # there may be more blanks
            start, at = at, data.find(b"\n", at)
            if at < 0:
                at = len(data)
            await self._add(batch, data[start:at], f"line {ends + 1}", slices)
        return self._batch_of(batch, None)

    async def _add(self, batch: _Batch, text: bytes, where: str, slices: Slices) -> None:
        """Read one item of a list of forms."""
        assert self._list is not None, "only forms are read as items"
        if batch.count == self._list.items_max:
            raise RequestInvalid([too_many(self._list)])
        batch.count += 1
        try:
            if len(text) <= HTTP_STEP_BYTES:
                form = self._item_reader.read(text, where, batch.hints)
            else:
                form = await self._read_object(text, where, batch.hints, slices)
        except RequestInvalid as refusal:
            batch.add_errors(*refusal.errors)
        else:
            batch.forms.append(form)

    async def _read_object(self, text: bytes, where: str, hints: Hints, slices: Slices) -> Form:
        members = _Members(self._item_reader)
        try:
            for part in JsonWalk(text).members():
                if slices.is_over:
                    await slices.rest()
                if part is not None and not members.add(part.name, text[part.start : part.end]):
                    break
            return members.read(where, hints, self._body_bytes_max)
        except NoObjectError:
            raise RequestInvalid([FieldError(where, "must be an object")]) from None
        except (ValueError, RecursionError) as error:
            raise NotJson(why_not_json(text, str(error), where)) from None

    def _batch_of(self, batch: _Batch | None, members: _Members | None) -> Form:
        """Return the form that has the list, which is None if it is no array."""
        assert self._list is not None
        name = self._list.name
        errors = [] if batch is None else batch.errors
        if batch is None:
            errors.append(FieldError(name, "must be an array"))
        elif not batch.count:
            errors.append(FieldError(name, "must be at least 1 long"))
        hints = new_hints()
        for other in members.names if members is not None else ():
            errors.append(FieldError(other, unknown(other, (name,), hints)))
        if errors:
            raise RequestInvalid(errors)
        assert batch is not None
        return self._lister.kind(**{name: batch.forms})


async def _refuse_dense(data: bytes, slices: Slices) -> None:
    """Refuse what has more arrays and objects than a request may have."""
    containers = 0
    for at in range(0, len(data), HTTP_VALUE_BYTES_MAX):
        end = at + HTTP_VALUE_BYTES_MAX
        containers += data.count(b"[", at, end) + data.count(b"{", at, end)
        if slices.is_over:
            await slices.rest()
    if containers > HTTP_CONTAINERS_MAX:
        rule = f"has more than {HTTP_CONTAINERS_MAX} arrays and objects: send several requests"
        raise RequestInvalid([FieldError("", rule)])
