"""Where the parts of a long JSON text are, found in steps.

The readers of JSON read a whole text in one go, and others wait meanwhile. So a long text is first
cut up: into the members of its object, and the items of the one array among them that may be long.
Where a short array, object or text ends is found by Python's own reader, the only one that returns
it; where a long one ends, by regular expressions that look at texts and brackets only. Whether the
parts are JSON says who reads them. (msgspec would be twice as fast, but it says where a value ends
in the text of an error alone, which its next version may write otherwise.)

>>> walk = JsonWalk(b'{"jobs": [{"body": [1, "]"]}, 7], "more": 8}')
>>> for part in walk.members("jobs"):
...     if part is not None: print(part.name, part.number, walk.text[part.start : part.end])
jobs 0 b'{"body": [1, "]"]}'
jobs 1 b'7'
jobs -1 b'[{"body": [1, "]"]}, 7]'
more -1 b'8'

A step looks at `HTTP_STEP_BYTES`, blanks and numbers included. What yields None has made one and
has not found the next part: others may have a turn.
"""

import json
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

import orjson

from delayd.limits import HTTP_DEPTH_READ, HTTP_STEP_BYTES


class Part(NamedTuple):
    """A member of the object, or an item of the array that was asked for."""

    name: str
    number: int
    """Of an item, from 0; -1: it is the member itself."""
    start: int
    end: int


_BEGINNINGS: Final = frozenset({b'"', b"[", b"{"})
_skip: Final = json.JSONDecoder(strict=False).raw_decode
"""Returns a value, which nobody needs, and where it ends."""
_BLANK: Final = re.compile(rb"[ \t\n\r]*")
_SCALAR: Final = re.compile(rb'[^ \t\n\r,:"\[\]{}]*')
# No repeat is possessive: Python before 3.11.5 (Debian 12 has 3.11.2) matches those wrongly. In an
# unrolled one, a run and then each escape with the run behind it, no way is tried twice either.
_INSIDE: Final = rb'[^"\\]*(?:\\.[^"\\]*)*'
_INSIDE_TEXT: Final = re.compile(_INSIDE, re.DOTALL)
_TO_BRACKET: Final = re.compile(
    rb'[^"\[\]{}]*(?:"' + _INSIDE + rb'"[^"\[\]{}]*)*([\[\]{}]?)', re.DOTALL
)
"""Whatever is before the next bracket; without one it ends with the step, or before a text that
goes on behind it."""


class NoObjectError(ValueError):
    """The text begins with something else."""


def behind_blanks(text: bytes, at: int) -> int:
    """Return where the blanks end that begin there, or a step's bytes behind it."""
    match = _BLANK.match(text, at, at + HTTP_STEP_BYTES)
    assert match is not None, "it matches nothing too"
    return match.end()


class JsonWalk:
    """Walks through one text, from its first byte to its last."""

    __slots__ = ("at", "text")

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.at = 0

    def members(self, array: str | None = None) -> Iterator[Part | None]:
        """Yield the parts in order; items of the named array before the array itself.

        Raises `ValueError` where the text does not go on as JSON does, `NoObjectError` if it is
        none from the start.
        """
        yield from self._through(_BLANK)
        if not self._is_at(b"{"):
            raise NoObjectError(f"{{ is missing at byte {self.at}")
        self.at += 1
        yield from self._through(_BLANK)
        if self._is_at(b"}"):
            self.at += 1
        else:
            yield from self._members(array)
        yield from self._through(_BLANK)
        if self.at < len(self.text):
            raise self._wrong("there is more behind the end")

    def _members(self, array: str | None) -> Iterator[Part | None]:
        while True:
            start = self.at
            self._take(b'"')
            yield from self._text()
            name = orjson.loads(self.text[start : self.at])
            yield from self._through(_BLANK)
            self._take(b":")
            yield from self._through(_BLANK)
            start = self.at
            if name == array and self._is_at(b"["):
                yield from self._items(name)
            else:
                yield from self._value()
            yield Part(name, -1, start, self.at)
            yield from self._through(_BLANK)
            if self._is_over(b"}"):
                return
            yield from self._through(_BLANK)

    def _items(self, name: str) -> Iterator[Part | None]:
        self._take(b"[")
        yield from self._through(_BLANK)
        if self._is_at(b"]"):
            self.at += 1
            return
        number = 0
        while True:
            start = self.at
            yield from self._value()
            yield Part(name, number, start, self.at)
            yield from self._through(_BLANK)
            if self._is_over(b"]"):
                return
            yield from self._through(_BLANK)
            number += 1

    def _value(self) -> Iterator[None]:
        """Go behind the value that is here."""
        at = self.at
        if self.text[at : at + 1] not in _BEGINNINGS:
            yield from self._through(_SCALAR)
            if self.at == at:
                raise self._wrong("a value is missing")
            return
        try:
            # In latin-1 a byte is a character, so that the end is where it is in the text.
            _, length = _skip(self.text[at : at + HTTP_STEP_BYTES].decode("latin-1"))
        except (ValueError, RecursionError):
            yield from self._long_value()
        else:
            self.at = at + length

    def _long_value(self) -> Iterator[None]:
        if self._is_at(b'"'):
            self.at += 1
            yield from self._text()
        else:
            yield from self._container()

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

    def _through(self, signs: re.Pattern[bytes]) -> Iterator[None]:
        """Go behind all that the pattern matches, which stops at the first other byte."""
        while True:
            step_end = self.at + HTTP_STEP_BYTES
            match = signs.match(self.text, self.at, step_end)
            assert match is not None, "it matches nothing too"
            self.at = match.end()
            if self.at < step_end:
                return
            yield None

    def _is_at(self, sign: bytes) -> bool:
        return self.text.startswith(sign, self.at)

    def _take(self, sign: bytes) -> None:
        """Go behind this sign."""
        if not self._is_at(sign):
            raise self._wrong(f"{sign.decode()} is missing")
        self.at += 1

    def _is_over(self, bracket: bytes) -> bool:
        """Go behind a comma, or behind the bracket that ends the parts; tell whether it did."""
        is_over = self._is_at(bracket)
        if not is_over and not self._is_at(b","):
            raise self._wrong(f"neither , nor {bracket.decode()} follows")
        self.at += 1
        return is_over

    def _wrong(self, what: str) -> ValueError:
        return ValueError(f"{what} at byte {self.at}")
