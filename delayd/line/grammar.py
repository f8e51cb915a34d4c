"""The arguments of the line protocol's commands: numbers, seconds, names, and `name=value` words.

Numbers are runs of ASCII digits after spaces. Where beanstalkd's C library reads more (`kick -1`),
so does this. Seconds may have a fraction, which beanstalkd refuses; it is rounded up to the
millisecond.

>>> parse_put(b"put 10 0.5 60 5")
PutLine(priority=10, delay_ms=500, ttr_ms=60000, body_bytes=5, extra=b'')

Commands that beanstalkd does not have take options after everything else, in any order, each at
most once. The core decides which keys and ladders are valid; here they are only parsed.

>>> words = parse_put_words(b" key=order-17 on=replace retry=15s,3m")
>>> words.key, words.on.name, words.own.retry.steps_ms
(b'order-17', 'REPLACE', (15000, 180000))
"""

import enum
import functools
import re
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from delayd.core.errors import Refusal, TargetRefused
from delayd.core.job_parts import TEXTS, Own, Retry
from delayd.core.job_record import State
from delayd.core.names import GROUP, PREDECESSOR, TOPIC, Predecessor, checked_key, checked_name
from delayd.core.operations.put import Conflict
from delayd.core.policy import ATTEMPTS, JITTER_PERCENT, LADDER
from delayd.core.reasons import REASON
from delayd.core.scans.groups import GroupOrder
from delayd.core.scans.list import Cursor
from delayd.core.scans.scan import NEVER_DUE_MS, Wanted
from delayd.core.targets import METHOD, URL, Target
from delayd.durations import parse_duration_ms
from delayd.fields import GivenText, ValueKind, matching, one_of, whole
from delayd.limits import (
    DURATION_MS_MAX,
    GROUPS_SHOWN_MAX,
    JOB_ID_MAX,
    KEY_BYTES_MAX,
    LINE_KEYED_RUN_MAX,
    LONG_LINE_BYTES_MAX,
    PARSED_LINES_MAX,
    PARSED_SHAPES_MAX,
    RATE_PER_S_MIN,
    READ_BYTES,
    SCHEDULE_PREVIEW_MAX,
    SEARCH_JOBS_MAX,
)
from delayd.moments import parse_moment_ms
from delayd.text import shown_url

U32_MAX: Final = 2**32 - 1
I32_MAX: Final = 2**31 - 1


class Detail(enum.Enum):
    """What a reserve can tell of each job besides its number and body."""

    TTR = b"ttr"
    """How long the reservation lasts, in seconds."""
    ATTEMPT = b"attempt"
    """Attempt number, starting at 1."""
    TUBE = b"tube"
    KEY = b"key"
    """As `key=...`, and `key=` of a job without one."""


class BadFormat(Refusal):
    """The line is not a well-formed command."""

    kind = "line_malformed"
    title = "The line is not a well-formed command."
    word = "BAD_FORMAT"
    status = 400

    def __init__(self, line: bytes) -> None:
        super().__init__(f"{line[:80]!r} is not a well-formed command")


# --- Numbers -------------------------------------------------------------------------------------

# What is not compiled here is compiled by `re` at its first use, which keeps it: the first reply of
# a daemon comes 2 ms earlier.
_SECONDS: Final = rb"[0-9]+(?:\.[0-9]+)?"

_PUT: Final = re.compile(rb"put  *([0-9]+) +(%b) +(%b) +([0-9]+)([^\0]*)" % (_SECONDS, _SECONDS))
LONG_LINE: Final = (
    rb"put +[^ ]+ +[^ ]+ +[^ ]+ +[0-9][^=]*=|bury +[0-9]+ +[0-9]+ error="
    rb"|(?:put-in-tube|(?:delete|reschedule|peek|kick|find)-key|change|nack|(?:set|get)-policy|redrive|dead-reasons"
    rb"|(?:list|cancel|kick|reschedule)-jobs|calendar|clear-tube"
    rb"|(?:pause|stats)-group|list-groups"
    rb"|schedule-(?:put|get|delete|pause|resume|run|backfill|preview)) |schedules(?: |$)"
)
"""How lines begin that may be longer than beanstalkd's: with words of ours, and our commands."""

_BODY_PLACES: Final = MappingProxyType(
    {b"put": 4, b"put-in-tube": 5, b"set-policy": 2, b"schedule-put": 2, b"schedule-pause": 2}
)
"""By command the place of the number of bytes in the line, where single spaces separate words."""
UNKNOWN_BYTES: Final = 2**62
"""The length of a body of which nobody can tell where it ends."""
_EQUALS: Final = ord("=")
"""Of a byte that is looked for as a number, `in` takes half of the time."""
_FIRST_DIGITS: Final = rb"[0-9]+"

_ID_AND_PRIORITY: Final = rb" *([0-9]+) +([0-9]+)"
_ONLY_NUMBER: Final = rb" *([0-9]+)"
_REDRIVE: Final = rb" *([0-9]+)(?: +([0-9]{1,10}(?:\.[0-9]{1,9})?))?((?: +[a-z]+=[^ ]*)*)"
_NUMBER_AND_MAYBE_TAG: Final = rb" *([0-9]+)(?: +if=([0-9a-f]{16}))?"
_NAME_CHARACTERS: Final = r"[-A-Za-z0-9+/;.$_()]+"
_ONLY_SECONDS: Final = rb" *(%b)" % _SECONDS
_NUMBER_AND_SECONDS: Final = rb" *([0-9]+) +(%b)" % _SECONDS
_BATCH: Final = rb" *([0-9]+) +(%b)(?: +with=([a-z,]+))?( +until=input)?" % _SECONDS
_SECONDS_AND_NUMBER: Final = rb" *(%b) +([0-9]+)" % _SECONDS
_RELEASE: Final = rb" *([0-9]+) +([0-9]+) +(%b)" % _SECONDS
_PAUSE: Final = rb" *([-A-Za-z0-9+/;.$_()]+) +(%b)" % _SECONDS
_C_INTEGER: Final = rb"[ \t\n\v\f\r]*([+-]?)([0-9]+)(\.[0-9]+)?"


def u32(digits: bytes, line: bytes) -> int:
    """Return the number, or raise `BadFormat` when it needs more than 32 bits."""
    value = int(digits)
    if value > U32_MAX:
        raise BadFormat(line)
    return value


def milliseconds(seconds: bytes, line: bytes) -> int:
    """Return the seconds in milliseconds, rounded up; `BadFormat` above 32 bits of seconds."""
    whole, _, fraction = seconds.partition(b".")
    ms = u32(whole, line) * 1_000
    if fraction:
        ms -= -int(fraction) * 1_000 // 10 ** len(fraction)
    if ms > DURATION_MS_MAX:
        raise BadFormat(line)
    return ms


def parse_job_id(rest: bytes) -> int:
    """Return the one argument of a command that takes a job id."""
    digits = rest if rest.isdigit() else rest.lstrip(b" ")
    if not digits.isdigit():
        raise BadFormat(rest)
    value = int(digits)
    if value > JOB_ID_MAX:
        raise BadFormat(rest)
    return value


def _matched(pattern: bytes, rest: bytes) -> tuple[Any, ...]:
    """Return the groups of the pattern, which all of it must fit."""
    match = re.fullmatch(pattern, rest)
    if match is None:
        raise BadFormat(rest)
    return match.groups()


def parse_release(rest: bytes) -> tuple[int, int, int]:
    """Return id, priority and delay in milliseconds."""
    job_id, priority, delay = _matched(_RELEASE, rest)
    return parse_job_id(job_id), u32(priority, rest), milliseconds(delay, rest)


def parse_bury(rest: bytes) -> tuple[int, int, str]:
    """Return id, priority and error, which is free text as that of a nack."""
    numbers, _, text = rest.partition(b" error=")
    job_id, priority = _matched(_ID_AND_PRIORITY, numbers)
    return parse_job_id(job_id), u32(priority, rest), text.decode(errors="replace")


def parse_reschedule(rest: bytes) -> tuple[int, int]:
    """Return id and delay in milliseconds."""
    job_id, delay = _matched(_NUMBER_AND_SECONDS, rest)
    return parse_job_id(job_id), milliseconds(delay, rest)


def parse_pause(rest: bytes) -> tuple[str, int]:
    """Return the topic, not yet checked, and how long in milliseconds."""
    name, pause = _matched(_PAUSE, rest)
    return name.decode("ascii"), milliseconds(pause, rest)


def parse_seconds(rest: bytes) -> int:
    """Return the one argument of a command that takes seconds, in milliseconds."""
    (seconds,) = _matched(_ONLY_SECONDS, rest)
    return milliseconds(seconds, rest)


class BatchLine(NamedTuple):
    """What a `reserve-batch` asks for."""

    jobs_max: int
    """At least 1."""
    wait_ms: int
    details: tuple[Detail, ...] = ()
    """What the line of each job says behind the number of bytes, in this order."""
    ends_on_input: bool = False
    """Whether the next byte that the client sends ends the wait."""


@functools.lru_cache(maxsize=PARSED_LINES_MAX)
def parse_batch(rest: bytes) -> BatchLine:
    """Return what is asked for; `BadFormat`. Workers send one line again and again."""
    number, wait, names, until = _matched(_BATCH, rest)
    jobs_max = u32(number, rest)
    try:
        details = tuple(map(Detail, names.split(b","))) if names else ()
    except ValueError:
        raise BadFormat(rest) from None
    if not jobs_max or len(set(details)) < len(details):
        raise BadFormat(rest)
    return BatchLine(jobs_max, milliseconds(wait, rest), details, until is not None)


def parse_kick(rest: bytes) -> int:
    """Return the bound as C's `strtoul` reads it, cut to 32 bits: -1 is everything."""
    match = re.match(_C_INTEGER, rest)
    if match is None or int(match[2]) > 2**64 - 1:
        raise BadFormat(rest)
    return int(match[1] + match[2]) % 2**32


def parse_wait(rest: bytes) -> int | None:
    """Return how long to wait in milliseconds, at most as long as beanstalkd 1.13 takes."""
    if rest.isdigit() and len(rest) < 10:  # nearly all of them
        return int(rest) * 1_000
    wait_ms = parse_seconds(rest)
    if wait_ms > I32_MAX * 1_000:
        raise BadFormat(rest)
    return wait_ms


def parse_wait_1_12(rest: bytes) -> int | None:
    """Return how long to wait in milliseconds as beanstalkd 1.12 reads it, None for ever.

    C's `strtol` cut to 32 bits: no digits are 0, a negative number waits
    for ever. A fraction counts, where beanstalkd's takes it for junk and a waiting client polls.
    """
    match = re.match(_C_INTEGER, rest)
    if match is None:
        return 0
    value = int(match[1] + match[2])
    if not -(2**63) <= value < 2**63:
        raise BadFormat(rest)
    seconds = (value + 2**31) % 2**32 - 2**31
    if seconds < 0:
        return None
    return milliseconds(b"%d%s" % (seconds, match[3] or b""), rest)


def parse_nothing(rest: bytes) -> None:
    """Refuse anything after a command that takes no arguments."""
    if rest:
        raise BadFormat(rest)


def parse_nothing_yet(rest: bytes) -> bytes:
    """Return the bytes as they are, for a command that reads them itself."""
    return rest


def parse_topic(rest: bytes) -> str:
    """Return the one argument of a command that takes a topic."""
    try:
        name = rest.decode("ascii")
    except UnicodeDecodeError:
        raise BadFormat(rest) from None
    return checked_name(name)


def _parse_topic_and(rest: bytes) -> tuple[str, bytes]:
    """Return the topic of the command, and what follows it."""
    name, _, rest = rest.lstrip(b" ").partition(b" ")
    return parse_topic(name), rest


def parse_only_topic(rest: bytes) -> str:
    """Return the one argument of a command of ours that takes a topic."""
    name, rest = _parse_topic_and(rest)
    parse_nothing(rest)
    return name


def parse_set_policy(rest: bytes) -> tuple[str, int, str]:
    """Return the topic, how long the policy is in bytes, and the tag that the one in force has."""
    name, rest = _parse_topic_and(rest)
    json_bytes, tag = _matched(_NUMBER_AND_MAYBE_TAG, rest)
    return name, u32(json_bytes, rest), (tag or b"").decode()


def parse_redrive(rest: bytes) -> tuple[str, int, float, Wanted]:
    """Return the topic, how many jobs at most, how many a second, and which.

    0 if no rate is given.
    """
    name, rest = _parse_topic_and(rest)
    jobs, rate, words = _matched(_REDRIVE, rest)
    per_s = 0.0 if rate is None else float(rate)
    if rate is not None and per_s < RATE_PER_S_MIN:
        raise BadFormat(rest)
    which = _words(words, {"reason": REASON.read, "group": GROUP.read})
    return name, u32(jobs, rest), per_s, Wanted(frozenset({State.BURIED}), **which)


def parse_calendar(rest: bytes) -> tuple[str, int, int]:
    """Return the topic, how long each span of time is in milliseconds, and how many there are."""
    name, rest = _parse_topic_and(rest)
    span, spans = _matched(_SECONDS_AND_NUMBER, rest)
    return name, milliseconds(span, rest), u32(spans, rest)


def _parse_key_and(rest: bytes) -> tuple[str, bytes, bytes]:
    """Return topic and key of the command, and what follows them."""
    name, rest = _parse_topic_and(rest)
    key, _, rest = rest.lstrip(b" ").partition(b" ")
    return name, checked_key(key), rest


def parse_key(rest: bytes) -> tuple[str, bytes]:
    """Return the topic and the key."""
    name, key, rest = _parse_key_and(rest)
    parse_nothing(rest)
    return name, key


class KeyLine(NamedTuple):
    """What a `find-key` asks for. The names but for the key's are the words."""

    key: bytes
    limit: int = SEARCH_JOBS_MAX
    """Jobs at most."""
    after: str = ""
    """The tube behind which the page begins."""


def parse_find(rest: bytes) -> KeyLine:
    """Return the key, and which page of the jobs that have it."""
    key, _, rest = rest.lstrip(b" ").partition(b" ")
    return KeyLine(checked_key(key), **_words(rest, _FIND_READERS))


def parse_key_and_delay(rest: bytes) -> tuple[str, bytes, int]:
    """Return topic, key, and delay in milliseconds."""
    name, key, rest = _parse_key_and(rest)
    return name, key, parse_seconds(rest)


def parse_nack(rest: bytes) -> tuple[int, int, str, bool, bool]:
    """Return id, delay in milliseconds (0: none), error, whether it counts, and whether it is dead.

    The error is free text for people: bytes that are not UTF-8 are replaced, not refused.
    """
    job_id, _, text = rest.lstrip(b" ").partition(b" ")
    text = text.lstrip(b" ")
    word, _, behind = text.partition(b" ")
    counts, dead = word != b"counts=0", word == b"dead=1"
    if dead or not counts:
        text = behind
    delay_ms = 0
    if text.startswith(b"delay=") and not dead:
        word, _, text = text.partition(b" ")
        try:
            delay_ms = _duration(word.removeprefix(b"delay=").decode())
        except ValueError as error:
            raise BadFormat(word) from error
    return parse_job_id(job_id), delay_ms, text.decode(errors="replace"), counts, dead


# --- Puts ----------------------------------------------------------------------------------------


class PutLine(NamedTuple):
    """The line of a put, before its body."""

    priority: int
    delay_ms: int
    ttr_ms: int
    body_bytes: int
    extra: bytes
    """What follows the number of bytes."""


def read_put(line: bytes) -> PutLine | None:
    """Return what a put line says, None when it is badly formed."""
    match = _PUT.fullmatch(line)
    if match is None:
        return None
    priority, delay, ttr, body_bytes, extra = match.groups()
    try:
        delay_ms, ttr_ms = milliseconds(delay, line), milliseconds(ttr, line)
        return PutLine(u32(priority, line), delay_ms, ttr_ms, u32(body_bytes, line), extra)
    except BadFormat:
        return None


def announced_bytes(line: bytes) -> int | None:
    """Return how long a body follows a line that is refused; None when nothing says so.

    That body is data, and must not be taken for commands whatever is wrong with the line
    before it. Of a plain put it is: beanstalkd does so, and clients may count on it.

    >>> announced_bytes(b"put 0 0 60 8 KEY=a"), announced_bytes(b"put 0 0 60 8 junk")
    (8, None)
    >>> announced_bytes(b"put-in-tube bad^t 0 0 60 8"), announced_bytes(b"put-in-tube  0 0 60 9")
    (8, 9)

    `UNKNOWN_BYTES` where the number is not in its place, or another one is behind it: a name with
    spaces moves it back, and never forward, so it is the last number or not known.

    >>> announced_bytes(b"put-in-tube a b 0 0 60 9") == UNKNOWN_BYTES
    True
    """
    command, *words = line.split(b" ")
    if command == b"change":
        words = [word.removeprefix(b"bytes=") for word in words if word.startswith(b"bytes=")]
        place = 1
    elif command in _BODY_PLACES and (command != b"put" or _EQUALS in line):
        place = _BODY_PLACES[command]
    else:
        return None
    if len(line) + 2 > LONG_LINE_BYTES_MAX:  # not all of it was kept
        return UNKNOWN_BYTES
    numbers = [re.match(_FIRST_DIGITS, word) for word in words]
    if not any(numbers):
        return None
    match = numbers[place - 1] if len(numbers) >= place else None
    if match is None or any(numbers[place:]) or int(match[0]) > U32_MAX:
        return UNKNOWN_BYTES
    return int(match[0])


@functools.lru_cache(maxsize=PARSED_LINES_MAX)
def parse_put(line: bytes) -> PutLine | None:
    """Return the same; for lines that are sent again and again.

    Cached, one costs 60 ns instead of 2 µs. Lines with keys come once each: they would evict the
    others, and fragment the memory.
    """
    return read_put(line)


def parse_put_in_tube(rest: bytes) -> tuple[str, PutLine]:
    """Return the topic, and what an ordinary put would say; cached as above."""
    return (_read_put_in_tube if _EQUALS in rest else _parse_put_in_tube)(rest)


def _read_put_in_tube(rest: bytes) -> tuple[str, PutLine]:
    name, _, numbers = rest.partition(b" ")
    put = read_put(b"put " + numbers)
    if put is None:
        raise BadFormat(rest)
    return parse_topic(name), put


_parse_put_in_tube: Final = functools.lru_cache(maxsize=PARSED_LINES_MAX)(_read_put_in_tube)


# --- Words: options `name=value` -----------------------------------------------------------------

_KEY_WORD: Final = b" key="
_KEY: Final = rb"[!-~\x80-\xff]{1,%d}" % KEY_BYTES_MAX
_U32: Final = whole(0, U32_MAX)
_CURSOR: Final = r"([0-9]{1,20}):([0-9]{1,20})"
_DURATION: Final = r"[0-9][0-9.a-z]*"

Readers = dict[str, Callable[[str], Any]]
"""By their names, what turns words into arguments; `ValueError` for what they cannot be."""


def _words(text: bytes, readers: Readers) -> dict[str, Any]:
    """Return the words by their names, each read; `BadFormat`."""
    values: dict[str, Any] = {}
    for word in filter(None, text.split(b" ")):
        try:
            name, sign, value = word.decode().partition("=")
            if not sign or name in values or name not in readers:
                raise BadFormat(text)
            values[name] = readers[name](GivenText(value))
        except ValueError as error:
            raise BadFormat(text) from error
    return values


def _duration(value: str) -> int:
    if not re.fullmatch(_DURATION, value):
        raise ValueError(value)
    return parse_duration_ms(value)


def _url(value: str) -> str:
    """Return the url; `TargetRefused`, since the rule that it breaks is shown, as of any url."""
    try:
        return str(URL.read(value))
    except ValueError as error:
        raise TargetRefused(f"url {shown_url(value)!r}", str(error)) from None


# --- Words of put --------------------------------------------------------------------------------


class PutWords(NamedTuple):
    """The options after the number of bytes."""

    key: bytes = b""
    on: Conflict = Conflict.REJECT
    own: Own | None = None
    """What the job has of its own, but for a target; None: nothing."""
    target: Target | None = None
    """Where the job is sent when it is due; None: nowhere."""
    instead: Predecessor | None = None
    """The job in whose place it is put; None: there is none."""


_PUT_READERS: Final[Readers] = {
    "key": lambda value: checked_key(value.encode()),
    "on": Conflict,
    "instead": PREDECESSOR.read,
    "retry": LADDER.read,
    "attempts": ATTEMPTS.read,
    "jitter": JITTER_PERCENT.read,
    "url": _url,
    "method": METHOD.read,
    **{name: kind.read for name, kind in TEXTS.items()},
}


def _own(values: dict[str, Any], retry: Retry | None = None) -> Own | None:
    """Return what the words say that a job is to have of its own, but for a target."""
    own = Own(retry=retry, **{name: values[name] for name in TEXTS if name in values})
    return None if own == Own() else own


def parse_put_words(text: bytes) -> PutWords:
    """Return the parsed options, each after a space; `BadFormat`, `KeyInvalid`, `TargetRefused`."""
    if not text.startswith(b" "):
        raise BadFormat(text)
    values = _words(text, _PUT_READERS)
    steps_ms, attempts_max = values.get("retry", ()), values.get("attempts", 0)
    key, on = values.get("key", b""), values.get("on", Conflict.REJECT)
    url, method = values.get("url", ""), values.get("method", "")
    if not values or ("on" in values and not key) or ("jitter" in values and not steps_ms):
        raise BadFormat(text)
    if method and not url:
        raise BadFormat(text)
    retry = Retry(steps_ms, attempts_max, values.get("jitter", 0))
    own = _own(values, retry if steps_ms or attempts_max else None)
    target = Target(url=url, method=method or "POST") if url else None
    return PutWords(key, on, own, target, values.get("instead"))


class Shape(NamedTuple):
    """What put lines have in common that differ in their keys only."""

    put: PutLine
    words: PutWords
    """Without a key."""
    each: re.Pattern[bytes] | None
    """Such a line and its body; its groups are key and body. None where two of them do not arrive
    at once anyway, or might be too long a line."""

    def run_in(self, data: bytes, at: int) -> tuple[list[bytes], list[bytes], int]:
        """Return keys and bodies of the consecutive puts that begin here, and their end.

        `LINE_KEYED_RUN_MAX` at most. 0.25 µs each: one pass of the expression takes them apart.
        """
        assert self.each is not None
        # What is no put of this shape, key, body, what is none, key, body, what is none, …
        parts = self.each.split(data[at:], LINE_KEYED_RUN_MAX)
        if not any(parts[:-1:3]):
            return parts[1::3], parts[2::3], len(data) - len(parts[-1])
        # Something else is between two of them, or before the first.
        keys: list[bytes] = []
        bodies: list[bytes] = []
        while len(keys) < LINE_KEYED_RUN_MAX and (match := self.each.match(data, at)) is not None:
            keys.append(match[1])
            bodies.append(match[2])
            at = match.end()
        return keys, bodies, at


INSTEAD: Final = b" instead="
"""What is in a line that puts a job in the place of another one."""


def split_at_key(line: bytes) -> tuple[bytes, bytes, bytes]:
    """Return what is before the key, the key, and what follows it."""
    before, word, rest = line.partition(_KEY_WORD)
    key, space, after = rest.partition(b" ")
    return before + word, key, space + after


@functools.lru_cache(maxsize=PARSED_SHAPES_MAX)
def shape_of(before: bytes, after: bytes) -> Shape | None:
    """Return the shape of put lines that begin and end like this; None when there is none.

    Producers that put with keys send one shape with different keys. Its cached expressions find key
    and body of each in the input, one after the other.
    """
    put = parse_put(before.removesuffix(_KEY_WORD))
    if put is None or put.extra:
        return None
    try:
        words = parse_put_words(b" key=x" + after)
    except Refusal:
        return None
    words = words._replace(key=b"")
    longest_bytes = len(before) + KEY_BYTES_MAX + len(after) + 2
    if longest_bytes > LONG_LINE_BYTES_MAX or 2 * put.body_bytes > READ_BYTES:
        return Shape(put, words, None)
    head, tail, body = re.escape(before), re.escape(after), b".{%d}" % put.body_bytes
    each = b"%b(%b)%b\r\n(%b)\r\n" % (head, _KEY, tail, body)
    return Shape(put, words, re.compile(each, re.DOTALL))


# --- Words of others -----------------------------------------------------------------------------


class Changes(NamedTuple):
    """What is to be changed; None: unchanged."""

    priority: int | None = None
    delay_ms: int | None = None
    ttr_ms: int | None = None
    body_bytes: int | None = None
    own: Own | None = None
    """What the job has of its own, but for a target; empty: no longer."""
    target: Target | None = None
    """Where the job is sent when it is due; without a url: nowhere."""


_CHANGE_READERS: Final[Readers] = {
    "pri": _U32.read,
    "delay": _duration,
    "ttr": _duration,
    "bytes": _U32.read,
}
_TARGET_READERS: Final[Readers] = {
    "url": lambda value: _url(value) if value else "",
    "method": METHOD.read,
}


def _or_nothing(kind: ValueKind) -> Callable[[str], Any]:
    """Return its reader, for which an empty value takes away what there is."""
    return lambda value: kind.read(value) if value else b""


_TEXT_READERS: Final[Readers] = {name: _or_nothing(kind) for name, kind in TEXTS.items()}


def parse_change(rest: bytes) -> tuple[int, Changes]:
    """Return id, and what is to be changed: one thing at least; `BadFormat`, `TargetRefused`."""
    job_id, _, text = rest.lstrip(b" ").partition(b" ")
    values = _words(text, _CHANGE_READERS | _TARGET_READERS | _TEXT_READERS)
    url, method = values.get("url"), values.get("method")
    if not values or (method and not url):
        raise BadFormat(text)
    target = None if url is None else Target(url=url, method=method or "POST")
    changes = Changes(*map(values.get, _CHANGE_READERS))
    return parse_job_id(job_id), changes._replace(own=_own(values), target=target)


class Filter(NamedTuple):
    """Which jobs of a tube; times count from now. The names are the words."""

    state: frozenset[State] = frozenset(State)
    from_ms: int | None = None
    to_ms: int | None = None
    prefix: str = ""
    reason: str = ""
    group: bytes = b""
    limit: int = SEARCH_JOBS_MAX
    after: Cursor | None = None
    dry: bool = False

    def wanted(self, now_ms: int) -> Wanted:
        """Return the same in delayd time."""
        from_ms = 0 if self.from_ms is None else now_ms + self.from_ms
        to_ms = NEVER_DUE_MS if self.to_ms is None else now_ms + self.to_ms
        return Wanted(self.state, from_ms, to_ms, self.prefix, self.reason, self.group)


def _states(value: str) -> frozenset[State]:
    names = value.split(",")
    found = frozenset(state for state in State if state.name.lower() in names)
    if len(found) != len(names):
        raise ValueError(value)
    return found


def _cursor(value: str) -> Cursor:
    match = re.fullmatch(_CURSOR, value)
    if match is None:
        raise ValueError(value)
    return Cursor(int(match[1]), int(match[2]))


_WANTED_READERS: Final[Readers] = {
    "state": _states,
    "from": _duration,
    "to": _duration,
    "prefix": matching("(?s:.+)", "").read,
    "reason": REASON.read,
    "group": GROUP.read,
}
_LIST_READERS: Final[Readers] = {
    **_WANTED_READERS,
    "limit": whole(1, SEARCH_JOBS_MAX).read,
    "after": _cursor,
}
_FIND_READERS: Final[Readers] = {"limit": whole(1, SEARCH_JOBS_MAX).read, "after": TOPIC.read}
_BULK_READERS: Final[Readers] = {**_WANTED_READERS, "dry": one_of({"1": True}).read}


def parse_list(rest: bytes) -> tuple[str, Filter]:
    """Return the topic, and which of its jobs are to be listed."""
    name, rest = _parse_topic_and(rest)
    return name, _parse_filter(rest, _LIST_READERS)


def parse_bulk(rest: bytes) -> tuple[str, Filter]:
    """Return the topic, and which of its jobs are to be changed."""
    name, rest = _parse_topic_and(rest)
    return name, _parse_filter(rest, _BULK_READERS)


def parse_reschedule_jobs(rest: bytes) -> tuple[str, int, Filter]:
    """Return the topic, the delay in milliseconds, and which of its jobs are to have it."""
    name, rest = _parse_topic_and(rest)
    delay, _, rest = rest.lstrip(b" ").partition(b" ")
    return name, parse_seconds(delay), _parse_filter(rest, _BULK_READERS)


def _parse_filter(text: bytes, readers: Readers) -> Filter:
    """Return which jobs are meant; `BadFormat`."""
    values = _words(text, readers)
    for word in values.keys() & {"from", "to"}:
        values[f"{word}_ms"] = values.pop(word)
    return Filter(**values)


# --- Groups --------------------------------------------------------------------------------------


class GroupsLine(NamedTuple):
    """Which groups of a tube a `list-groups` asks for. The names are the words."""

    order: GroupOrder = GroupOrder.NAME
    limit: int = GROUPS_SHOWN_MAX
    after: bytes = b""
    """The group behind which the page begins."""


_GROUPS_READERS: Final[Readers] = {
    "order": GroupOrder,
    "limit": whole(1, GROUPS_SHOWN_MAX).read,
    "after": GROUP.read,
}


def _parse_group_and(rest: bytes) -> tuple[str, bytes, bytes]:
    """Return topic and group of the command, and what follows them."""
    name, rest = _parse_topic_and(rest)
    group, _, rest = rest.lstrip(b" ").partition(b" ")
    try:
        return name, GROUP.read(group.decode()), rest
    except ValueError:
        raise BadFormat(rest) from None


def parse_group(rest: bytes) -> tuple[str, bytes]:
    """Return the topic and the group."""
    name, group, rest = _parse_group_and(rest)
    parse_nothing(rest)
    return name, group


def parse_pause_group(rest: bytes) -> tuple[str, bytes, int]:
    """Return topic, group, and how long in milliseconds."""
    name, group, rest = _parse_group_and(rest)
    return name, group, parse_seconds(rest)


def parse_groups(rest: bytes) -> tuple[str, GroupsLine]:
    """Return the topic, and which of its groups are to be listed."""
    name, rest = _parse_topic_and(rest)
    return name, GroupsLine(**_words(rest, _GROUPS_READERS))


# --- Schedules -----------------------------------------------------------------------------------


class SchedulesLine(NamedTuple):
    """Which page of which schedules. The names are the words."""

    topic: str = ""
    prefix: str = ""
    after: str = ""
    limit: int = SEARCH_JOBS_MAX


def _schedule_name(value: str) -> str:
    if not re.fullmatch(_NAME_CHARACTERS, value):
        raise ValueError(value)
    return value


_SCHEDULES_READERS: Final[Readers] = {
    "topic": TOPIC.read,
    "prefix": _schedule_name,
    "after": _schedule_name,
    "limit": whole(1, SEARCH_JOBS_MAX).read,
}
_PREVIEW_READERS: Final[Readers] = {"count": whole(1, SCHEDULE_PREVIEW_MAX).read}


def _parse_schedule_and(rest: bytes) -> tuple[str, bytes]:
    """Return the name of a schedule, which the core checks, and what follows it."""
    name, _, rest = rest.lstrip(b" ").partition(b" ")
    try:
        return _schedule_name(name.decode("ascii")), rest
    except ValueError:
        raise BadFormat(rest) from None


def parse_schedule(rest: bytes) -> str:
    """Return the one argument of a command that takes a schedule."""
    name, rest = _parse_schedule_and(rest)
    parse_nothing(rest)
    return name


def parse_schedule_and_body(rest: bytes) -> tuple[str, int]:
    """Return the schedule, and how long what follows is in bytes."""
    name, rest = _parse_schedule_and(rest)
    (body_bytes,) = _matched(_ONLY_NUMBER, rest)
    return name, u32(body_bytes, rest)


def parse_schedule_put(rest: bytes) -> tuple[str, int]:
    """Return the schedule and its length; `ScheduleInvalid` for what no schedule can be called."""
    from delayd.schedules.definition import checked_schedule_name  # noqa: PLC0415 - it comes now

    name = rest.lstrip(b" ").partition(b" ")[0]
    if name:
        checked_schedule_name(name.decode(errors="replace"))
    return parse_schedule_and_body(rest)


def parse_backfill(rest: bytes) -> tuple[str, int, int | None]:
    """Return the schedule, and the first and the last moment; None: now."""
    name, rest = _parse_schedule_and(rest)
    words = [word.decode(errors="replace") for word in rest.split(b" ") if word]
    try:
        moments_ms = [parse_moment_ms(word) for word in words]
    except ValueError:
        raise BadFormat(rest) from None
    if not 1 <= len(moments_ms) <= 2:
        raise BadFormat(rest)
    return name, moments_ms[0], moments_ms[1] if len(moments_ms) > 1 else None


def parse_preview(rest: bytes) -> tuple[str, int | None]:
    """Return the schedule, and how many runs at most; None: not said."""
    name, rest = _parse_schedule_and(rest)
    return name, _words(rest, _PREVIEW_READERS).get("count")


def parse_schedules(rest: bytes) -> SchedulesLine:
    """Return which schedules are to be listed."""
    if rest and not rest.startswith(b" "):
        raise BadFormat(rest)
    return SchedulesLine(**_words(rest, _SCHEDULES_READERS))
