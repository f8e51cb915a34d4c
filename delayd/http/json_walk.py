"""Where the parts of a long JSON text are, found in steps.

The readers of JSON read a whole text in one go, and others wait meanwhile. So a long text is first
cut up: into the members of its object, and the items of the one array among them that may be long.
Where a short part ends is found by msgspec, which says so when it is given more than one value;
where a long one ends, by regular expressions that look at texts and brackets only. Whether the
parts are JSON says who reads them.

>>> walk = JsonWalk(b'{"jobs": [{"body": [1, "]"]}, 7], "more": 8}')
>>> for part in walk.members("jobs"):
...     if part is not None: print(part.name, part.number, walk.text[part.start : part.end])
jobs 0 b'{"body": [1, "]"]}'
jobs 1 b'7'
jobs -1 b'[{"body": [1, "]"]}, 7]'
more -1 b'8'

A step looks at `HTTP_STEP_BYTES`. What yields None has made one and has not found the next part:
others may have a turn.
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec
import orjson

from delayd.limits import HTTP_DEPTH_READ, HTTP_STEP_BYTES


class Part(NamedTuple):
    """A member of the object, or an item of the array that was asked for."""

    name: str
    number: int
    """Of an item, from 0; -1: it is the member itself."""
    start: int
    end: int


_skip: Final = msgspec.json.Decoder(msgspec.Raw).decode
_BEHIND: Final = re.compile(r"JSON is malformed: trailing characters \(byte (\d+)\)")
BLANKS: Final = b" \t\n\r"
_BLANK: Final = re.compile(rb"[ \t\n\r]*")
_SEPARATOR: Final = re.compile(rb"[ \t\n\r]*([,\]}])[ \t\n\r]*")
_SCALAR: Final = re.compile(rb'[^ \t\n\r,:"\[\]{}]+')
# No repeat is possessive: Python before 3.11.5 (Debian 12 has 3.11.2) matches those wrongly. In an
# unrolled one, a run and then each escape with the run behind it, no way is tried twice either.
_INSIDE: Final = rb'[^"\\]*(?:\\.[^"\\]*)*'
_INSIDE_TEXT: Final = re.compile(_INSIDE, re.DOTALL)
_TO_BRACKET: Final = re.compile(
    rb'[^"\[\]{}]*(?:"' + _INSIDE + rb'"[^"\[\]{}]*)*([\[\]{}]?)', re.DOTALL
)
"""Whatever is before the next bracket; without one it ends with the step, or before a text that
goes on behind it."""


class JsonWalk:
    """Walks through one text, from its first byte to its last."""

    __slots__ = ("at", "text")

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.at = 0

    def members(self, array: str | None = None) -> Iterator[Part | None]:
        """Yield the parts in order; items of the named array before the array itself.

        Raises `ValueError` where the text does not go on as JSON does.
        """
        self._take(b"{")
        if self._is_at(b"}"):
            self.at += 1
        else:
            while True:
                start = self.at
                self._take(b'"')
                yield from self._text()
                name = orjson.loads(self.text[start : self.at])
                self._take(b":")
                start = self.at
                if name == array and self._is_at(b"["):
                    yield from self._items(name)
                else:
                    yield from self._value()
                yield Part(name, -1, start, self.at)
                if self._is_over(b"}"):
                    break
        self._blank()
        if self.at < len(self.text):
            raise self._wrong("there is more behind the end")

    def _items(self, name: str) -> Iterator[Part | None]:
        self._take(b"[")
        if self._is_at(b"]"):
            self.at += 1
            return
        number = 0
        while True:
            start = self.at
            yield from self._value()
            yield Part(name, number, start, self.at)
            if self._is_over(b"]"):
                return
            number += 1

    def _value(self) -> Iterator[None]:
        """Go behind the value that is here."""
        text, at = self.text, self.at
        try:
            _skip(memoryview(text)[at : at + HTTP_STEP_BYTES])
        except (ValueError, RecursionError) as error:
            match = _BEHIND.fullmatch(str(error))
            if match is not None:
                self.at = at + len(text[at : at + int(match[1]) - 1].rstrip(BLANKS))
                return
        yield from self._long_value()

    def _long_value(self) -> Iterator[None]:
        if self._is_at(b'"'):
            self.at += 1
            yield from self._text()
        elif self._is_at(b"[") or self._is_at(b"{"):
            yield from self._container()
        else:
            match = _SCALAR.match(self.text, self.at)
            if match is None:
                raise self._wrong("a value is missing")
            self.at = match.end()

    def _text(self) -> Iterator[None]:
        """Go behind the quote that ends a text."""
        while True:
            step_end = min(len(self.text), self.at + HTTP_STEP_BYTES)
            match = _INSIDE_TEXT.match(self.text, self.at, step_end)
            assert match is not None, "it matches nothing too"
            is_stuck = match.end() == self.at
            self.at = match.end()
            if self._is_at(b'"'):
                self.at += 1
                return
            if is_stuck:
                raise self._wrong("a text has no end")
            yield None

    def _container(self) -> Iterator[None]:
        """Go behind the bracket that closes the one that is here."""
        depth = 0
        while True:
            step_end = min(len(self.text), self.at + HTTP_STEP_BYTES)
            for match in _TO_BRACKET.finditer(self.text, self.at, step_end):
                self.at = match.end()
                bracket = match[1]
                if bracket in {b"[", b"{"}:
                    depth += 1
                    if depth > HTTP_DEPTH_READ:
                        raise self._wrong("the depth is too great")
                elif bracket:
                    depth -= 1
                    if not depth:
                        return
                else:
                    break
            if self.at == len(self.text):
                raise self._wrong("an array or object has no end")
            if self.at < step_end:
                self.at += 1
                yield from self._text()
            yield None

    # --- Steps within a part ---------------------------------------------------------------------

    def _blank(self) -> None:
        match = _BLANK.match(self.text, self.at)
        assert match is not None, "it matches nothing too"
        self.at = match.end()

    def _is_at(self, sign: bytes) -> bool:
        return self.text.startswith(sign, self.at)

    def _take(self, sign: bytes) -> None:
        """Go behind this sign and the blanks before and behind it; but not into a text."""
        self._blank()
        if not self._is_at(sign):
            raise self._wrong(f"{sign.decode()} is missing")
        self.at += 1
        if sign != b'"':
            self._blank()

    def _is_over(self, bracket: bytes) -> bool:
        """Go to the next part behind a comma, or behind the bracket that ends them."""
        match = _SEPARATOR.match(self.text, self.at)
        if match is None or match[1] not in {b",", bracket}:
            raise self._wrong(f"neither , nor {bracket.decode()} follows")
        self.at = match.end()
        return match[1] == bracket

    def _wrong(self, what: str) -> ValueError:
        return ValueError(f"{what} at byte {self.at}")
