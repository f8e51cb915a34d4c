"""The words `name=value` of the commands that are not beanstalkd's, and their other arguments.

    put 0 3600 60 5 key=order-17 on=replace
    list-jobs mail state=delayed,ready to=3600 limit=50

Words stand behind everything else, in any order, each at most once. What a key or a ladder may be
is for the core to say; here it is only taken apart.

>>> words = parse_put_words(b" key=order-17 on=replace retry=15s,3m")
>>> words.key, words.on.name, words.retry.steps_ms
(b'order-17', 'REPLACE', (15000, 180000))
"""

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from delayd.core.job import Retry, State
from delayd.core.operations.put import Conflict, checked_key
from delayd.core.policy import parse_ladder
from delayd.core.scans.list import Cursor
from delayd.core.scans.scan import NEVER_DUE_MS, Wanted
from delayd.limits import (
    ATTEMPTS_MAX,
    JITTER_PERCENT_MAX,
    KEY_BYTES_MAX,
    LONG_LINE_BYTES_MAX,
    PARSED_SHAPES_MAX,
    READ_BYTES,
    SEARCH_JOBS_MAX,
)
from delayd.line.grammar import BadFormat, PutLine, parse_put, u32
from delayd.text import parse_duration_ms

_KEY_WORD: Final = b" key="
_KEY: Final = rb"[!-~\x80-\xff]{1,%d}" % KEY_BYTES_MAX
_CURSOR: Final = re.compile(r"([0-9]{1,20}):([0-9]{1,20})")
_DIGITS: Final = re.compile(r"[0-9]{1,10}")
_DURATION: Final = re.compile(r"[0-9][0-9.a-z]*")

Reader = Callable[[str], Any]
"""Turns a word's value into an argument; `ValueError` for what it cannot be."""


def _words(text: bytes, readers: Mapping[str, Reader]) -> dict[str, Any]:
    """Return the words by their names, each read; `BadFormat`."""
    values: dict[str, Any] = {}
    for word in filter(None, text.split(b" ")):
        try:
            name, sign, value = word.decode().partition("=")
            if not sign or name in values or name not in readers:
                raise BadFormat(text)
            values[name] = readers[name](value)
        except ValueError as error:
            raise BadFormat(text) from error
    return values


def _whole(lowest: int, highest: int) -> Reader:
    def read(value: str) -> int:
        if not _DIGITS.fullmatch(value) or not lowest <= int(value) <= highest:
            raise ValueError(value)
        return int(value)

    return read


def _text(value: str) -> str:
    if not value:
        raise ValueError(value)
    return value


def _duration(value: str) -> int:
    if not _DURATION.fullmatch(value):
        raise ValueError(value)
    return parse_duration_ms(value)


def _number(value: str) -> int:
    if not _DIGITS.fullmatch(value):
        raise ValueError(value)
    return u32(value.encode(), value.encode())


# --- put -----------------------------------------------------------------------------------------


class PutWords(NamedTuple):
    """What stands behind the number of bytes."""

    key: bytes = b""
    on: Conflict = Conflict.REJECT
    retry: Retry | None = None


_PUT_READERS: Final[dict[str, Reader]] = {
    "key": lambda value: checked_key(value.encode()),
    "on": Conflict,
    "retry": parse_ladder,
    "attempts": _whole(1, ATTEMPTS_MAX),
    "jitter": _whole(0, JITTER_PERCENT_MAX),
}


def parse_put_words(text: bytes) -> PutWords:
    """Return what the words say; `BadFormat`, `KeyInvalid`."""
    values = _words(text, _PUT_READERS)
    steps_ms, attempts_max = values.get("retry", ()), values.get("attempts", 0)
    lacks_its_word = ("on" in values and "key" not in values) or (
        "jitter" in values and not steps_ms
    )
    if lacks_its_word or not values:
        raise BadFormat(text)
    retry = Retry(steps_ms, attempts_max, values.get("jitter", 0))
    return PutWords(
        values.get("key", b""),
        values.get("on", Conflict.REJECT),
        retry if steps_ms or attempts_max else None,
    )


class Shape(NamedTuple):
    """What put lines have in common that differ in their keys only."""

    put: PutLine
    words: PutWords
    """Without a key."""
    each: re.Pattern[bytes] | None
    """Such a line and its body; its groups are key and body. None where two of them do not arrive
    at once anyway, or might be too long a line."""

    def run_in(self, data: bytes, at: int) -> tuple[list[bytes], list[bytes], int]:
        """Return keys and bodies of the puts that stand here one behind the other, and their end.

        0.25 µs each: one pass of the expression takes everything apart.
        """
        assert self.each is not None
        # What is no put of this shape, key, body, what is none, key, body, what is none, …
        parts = self.each.split(data[at:])
        if not any(parts[:-1:3]):
            return parts[1::3], parts[2::3], len(data) - len(parts[-1])
        # Something else stands between two of them, or in front.
        keys, bodies = [], []
        while (match := self.each.match(data, at)) is not None:
            keys.append(match[1])
            bodies.append(match[2])
            at = match.end()
        return keys, bodies, at


def split_at_key(line: bytes) -> tuple[bytes, bytes, bytes]:
    """Return what stands before the key, the key, and what stands behind it."""
    before, word, rest = line.partition(_KEY_WORD)
    key, space, after = rest.partition(b" ")
    return before + word, key, space + after


@functools.lru_cache(maxsize=PARSED_SHAPES_MAX)
def shape_of(before: bytes, after: bytes) -> Shape | None:
    """Return the shape of put lines that begin and end like this; None when there is none.

    Producers that put with keys send one shape with ever another key. Remembered, its expressions
    find key and body of each in the input, one behind the other.
    """
    put = parse_put(before.removesuffix(_KEY_WORD))
    if put is None or put.extra:
        return None
    try:
        words = parse_put_words(b"key=x" + after)
    except BadFormat:
        return None
    words = words._replace(key=b"")
    longest_bytes = len(before) + KEY_BYTES_MAX + len(after) + 2
    if longest_bytes > LONG_LINE_BYTES_MAX or 2 * put.body_bytes > READ_BYTES:
        return Shape(put, words, None)
    head, tail, body = re.escape(before), re.escape(after), b".{%d}" % put.body_bytes
    each = b"%b(%b)%b\r\n(%b)\r\n" % (head, _KEY, tail, body)
    return Shape(put, words, re.compile(each, re.DOTALL))


# --- Others --------------------------------------------------------------------------------------


class Changes(NamedTuple):
    """What is to be another; None: as it is."""

    priority: int | None = None
    delay_ms: int | None = None
    ttr_ms: int | None = None
    body_bytes: int | None = None


_CHANGE_READERS: Final[dict[str, Reader]] = {
    "pri": _number,
    "delay": _duration,
    "ttr": _duration,
    "bytes": _number,
}


def parse_changes(text: bytes) -> Changes:
    """Return what is to be changed, one thing at least; `BadFormat`."""
    values = _words(text, _CHANGE_READERS)
    if not values:
        raise BadFormat(text)
    return Changes(values.get("pri"), values.get("delay"), values.get("ttr"), values.get("bytes"))


class Filter(NamedTuple):
    """Which jobs of a tube; times count from now."""

    states: frozenset[State] = frozenset(State)
    from_ms: int | None = None
    to_ms: int | None = None
    prefix: str = ""
    limit: int = SEARCH_JOBS_MAX
    after: Cursor | None = None
    is_dry: bool = False

    def wanted(self, now_ms: int) -> Wanted:
        """Return the same in delayd time."""
        return Wanted(
            self.states,
            0 if self.from_ms is None else now_ms + self.from_ms,
            NEVER_DUE_MS if self.to_ms is None else now_ms + self.to_ms,
            self.prefix,
        )


def _states(value: str) -> frozenset[State]:
    names = value.split(",")
    found = frozenset(state for state in State if state.name.lower() in names)
    if len(found) != len(names):
        raise ValueError(value)
    return found


def _cursor(value: str) -> Cursor:
    match = _CURSOR.fullmatch(value)
    if match is None:
        raise ValueError(value)
    return Cursor(int(match[1]), int(match[2]))


_WANTED_READERS: Final[dict[str, Reader]] = {
    "state": _states,
    "from": _duration,
    "to": _duration,
    "prefix": _text,
}
LIST_READERS: Final[dict[str, Reader]] = {
    **_WANTED_READERS,
    "limit": _whole(1, SEARCH_JOBS_MAX),
    "after": _cursor,
}
BULK_READERS: Final[dict[str, Reader]] = {
    **_WANTED_READERS,
    "dry": lambda value: bool(_whole(1, 1)(value)),
}


def parse_filter(text: bytes, readers: Mapping[str, Reader]) -> Filter:
    """Return which jobs are meant; `BadFormat`."""
    values = _words(text, readers)
    return Filter(
        values.get("state", frozenset(State)),
        values.get("from"),
        values.get("to"),
        values.get("prefix", ""),
        values.get("limit", SEARCH_JOBS_MAX),
        values.get("after"),
        values.get("dry", False),
    )


def split_nack(text: bytes) -> tuple[int, str]:
    """Return the delay that a nack asks for, 0 if none, and what its worker says of the job.

    The error is free text for people: bytes that are no UTF-8 are shown as such, not refused.
    """
    delay_ms = 0
    text = text.lstrip(b" ")
    if text.startswith(b"delay="):
        word, _, text = text.partition(b" ")
        try:
            delay_ms = _duration(word.removeprefix(b"delay=").decode())
        except ValueError as error:
            raise BadFormat(word) from error
    return delay_ms, text.decode(errors="replace")
