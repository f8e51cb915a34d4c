"""The arguments of the line protocol's commands: numbers, seconds, names.

Numbers are runs of ASCII digits after spaces. Where beanstalkd's C library reads more (`kick -1`),
so do we.

Seconds may have a fraction, which beanstalkd refuses; it is rounded up to the millisecond.

>>> parse_put(b"put 10 0.5 60 5")
PutLine(priority=10, delay_ms=500, ttr_ms=60000, body_bytes=5, extra=b'')
"""

import functools
import re
from typing import Final, NamedTuple

from delayd.core.errors import Refusal
from delayd.limits import DURATION_MS_MAX, JOB_ID_MAX, PARSED_LINES_MAX, RATE_PER_S_MIN

U32_MAX: Final = 2**32 - 1


class BadFormat(Refusal):
    """The line is not a well-formed command."""

    word = "BAD_FORMAT"
    status = 400

    def __init__(self, line: bytes) -> None:
        """Quote the line."""
        super().__init__(f"{line[:80]!r} is not a well-formed command")


# --- Numbers -------------------------------------------------------------------------------------

_SECONDS: Final = rb"[0-9]+(?:\.[0-9]+)?"
_NAME: Final = rb"[-A-Za-z0-9+/;.$_()]+"

_PUT: Final = re.compile(
    rb"put  *([0-9]+) +(" + _SECONDS + rb") +(" + _SECONDS + rb") +([0-9]+)([^\0]*)"
)
LONG_LINE: Final = re.compile(
    rb"put +[^ ]+ +[^ ]+ +[^ ]+ +[0-9][^=]*="
    rb"|(?:put-in-tube|(?:delete|reschedule|peek|kick)-key|change|nack|(?:set|get)-policy|redrive"
    rb"|(?:list|cancel|kick|reschedule)-jobs|calendar|clear-tube) "
)
"""How lines begin that may be longer than beanstalkd's: a put with words, and commands of ours."""

_SOME_SECONDS: Final = re.compile(_SECONDS)
_FIRST_DIGITS: Final = re.compile(rb"(?:bytes=)?([0-9]+)")

_NUMBER_AND_NUMBER: Final = re.compile(rb" *([0-9]+) +([0-9]+)")
_ONLY_NUMBER: Final = re.compile(rb" *([0-9]+)")
_NUMBER_AND_MAYBE_RATE: Final = re.compile(rb" *([0-9]+)(?: +([0-9]{1,10}(?:\.[0-9]{1,9})?))?")
_ONLY_SECONDS: Final = re.compile(rb" *(" + _SECONDS + rb")")
_NUMBER_AND_SECONDS: Final = re.compile(rb" *([0-9]+) +(" + _SECONDS + rb")")
_SECONDS_AND_NUMBER: Final = re.compile(rb" *(" + _SECONDS + rb") +([0-9]+)")
_RELEASE: Final = re.compile(rb" *([0-9]+) +([0-9]+) +(" + _SECONDS + rb")")
_PAUSE: Final = re.compile(rb" *(" + _NAME + rb") +(" + _SECONDS + rb")")
_C_INTEGER: Final = re.compile(rb"[ \t\n\v\f\r]*([+-]?)([0-9]+)(\.[0-9]+)?")


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


def _parse_id_and(rest: bytes, pattern: re.Pattern[bytes]) -> tuple[int, tuple[bytes, ...]]:
    match = pattern.fullmatch(rest)
    if match is None:
        raise BadFormat(rest)
    return parse_job_id(match[1]), match.groups()[1:]


def parse_release(rest: bytes) -> tuple[int, int, int]:
    """Return id, priority and delay in milliseconds."""
    job_id, (priority, delay) = _parse_id_and(rest, _RELEASE)
    return job_id, u32(priority, rest), milliseconds(delay, rest)


def parse_bury(rest: bytes) -> tuple[int, int]:
    """Return id and priority."""
    job_id, (priority,) = _parse_id_and(rest, _NUMBER_AND_NUMBER)
    return job_id, u32(priority, rest)


def parse_reschedule(rest: bytes) -> tuple[int, int]:
    """Return id and delay in milliseconds."""
    job_id, (delay,) = _parse_id_and(rest, _NUMBER_AND_SECONDS)
    return job_id, milliseconds(delay, rest)


def parse_pause(rest: bytes) -> tuple[str, int]:
    """Return the topic, not yet checked, and how long in milliseconds."""
    match = _PAUSE.fullmatch(rest)
    if match is None:
        raise BadFormat(rest)
    return match[1].decode("ascii"), milliseconds(match[2], rest)


def parse_seconds(rest: bytes) -> int:
    """Return the one argument of a command that takes seconds, in milliseconds."""
    match = _ONLY_SECONDS.fullmatch(rest)
    if match is None:
        raise BadFormat(rest)
    return milliseconds(match[1], rest)


def parse_bytes(rest: bytes) -> int:
    """Return the one argument of a command that says how long its body is."""
    match = _ONLY_NUMBER.fullmatch(rest)
    if match is None:
        raise BadFormat(rest)
    return u32(match[1], rest)


def parse_redrive(rest: bytes) -> tuple[int, float]:
    """Return how many jobs at most, and how many a second; 0 where no rate is given: at once."""
    match = _NUMBER_AND_MAYBE_RATE.fullmatch(rest)
    if match is None:
        raise BadFormat(rest)
    per_s = 0.0 if match[2] is None else float(match[2])
    if match[2] is not None and per_s < RATE_PER_S_MIN:
        raise BadFormat(rest)
    return u32(match[1], rest), per_s


def parse_spans(rest: bytes) -> tuple[int, int]:
    """Return how long a span of time is in milliseconds, and how many there are."""
    match = _SECONDS_AND_NUMBER.fullmatch(rest)
    if match is None:
        raise BadFormat(rest)
    return milliseconds(match[1], rest), u32(match[2], rest)


def parse_batch(rest: bytes) -> tuple[int, int]:
    """Return how many jobs at most, at least 1, and how long to wait in milliseconds."""
    match = _NUMBER_AND_SECONDS.fullmatch(rest)
    if match is None:
        raise BadFormat(rest)
    jobs = u32(match[1], rest)
    if not jobs:
        raise BadFormat(rest)
    return jobs, milliseconds(match[2], rest)


def parse_kick(rest: bytes) -> int:
    """Return the bound as C's `strtoul` reads it, cut to 32 bits: -1 is everything."""
    match = _C_INTEGER.match(rest)
    if match is None or int(match[2]) > 2**64 - 1:
        raise BadFormat(rest)
    return int(match[1] + match[2]) % 2**32


def parse_wait(rest: bytes) -> int | None:
    """Return how long to wait in milliseconds, None for ever.

    C's `strtol` cut to 32 bits, as beanstalkd reads it: no digits are 0, a negative number waits
    for ever. A fraction counts, where beanstalkd's takes it for junk and a waiting client polls.
    """
    match = _C_INTEGER.match(rest)
    if match is None:
        return 0
    value = int(match[1] + match[2])
    if not -(2**63) <= value < 2**63:
        raise BadFormat(rest)
    seconds = (value + 2**31) % 2**32 - 2**31
    if seconds < 0:
        return None
    return milliseconds(b"%d%s" % (seconds, match[3] or b""), rest)


def parse_name(rest: bytes) -> str:
    """Return a topic's name, not yet checked for more than being text."""
    try:
        return rest.decode("ascii")
    except UnicodeDecodeError:
        raise BadFormat(rest) from None


class PutLine(NamedTuple):
    """What a put command says before its body."""

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
        return PutLine(
            u32(priority, line),
            milliseconds(delay, line),
            milliseconds(ttr, line),
            u32(body_bytes, line),
            extra,
        )
    except BadFormat:
        return None


def announced_bytes(line: bytes) -> int | None:
    """Return how long a body follows a line that is badly formed; None when nothing says so.

    That body is data, and must not be taken for commands whatever is wrong with the line
    before it. Of a plain put it is: beanstalkd does so, and clients may count on it.

    >>> announced_bytes(b"put 0 0 60 8 KEY=a"), announced_bytes(b"put 0 0 60 8 junk")
    (8, None)
    >>> announced_bytes(b"put-in-tube bad^t 0 0 60 8"), announced_bytes(b"put-in-tube a b 0 0 1 9")
    (8, 9)
    """
    command, *words = line.split(b" ")
    words = list(filter(None, words))
    if command == b"put":
        words = words[3:] if any(b"=" in word for word in words[3:]) else []
    elif command == b"put-in-tube":
        words = _behind_times(words[1:])
    elif command == b"set-policy":
        words = words[1:]
    elif command == b"change":
        words = [word for word in words if word.startswith(b"bytes=")]
    else:
        return None
    match = _FIRST_DIGITS.match(words[0]) if words else None
    body_bytes = U32_MAX + 1 if match is None else int(match[1])
    return body_bytes if body_bytes <= U32_MAX else None


def _behind_times(words: list[bytes]) -> list[bytes]:
    """Return the words from the number of bytes on, of those after a topic's name.

    It is the fourth of the first four numbers in a row, so that a name with a space in it does not
    hide it; failing that, the fourth word.
    """
    are_numbers = [_SOME_SECONDS.fullmatch(word) is not None for word in words]
    for at in range(3, len(words)):
        if all(are_numbers[at - 3 : at]) and words[at][:1].isdigit():
            return words[at:]
    return words[3:]


@functools.lru_cache(maxsize=PARSED_LINES_MAX)
def parse_put(line: bytes) -> PutLine | None:
    """Return the same; for lines that are sent again and again.

    Remembered, one costs 60 ns instead of 2 µs. Lines with keys come once each: they would push the
    others out, and hold memory here and there of which nothing else is left.
    """
    return read_put(line)


def parse_put_in_tube(rest: bytes) -> tuple[str, PutLine]:
    """Return the topic, not yet checked, and what an ordinary put would say."""
    name, _, numbers = rest.partition(b" ")
    put = (read_put if b"=" in numbers else parse_put)(b"put " + numbers)
    if put is None:
        raise BadFormat(rest)
    return parse_name(name), put
