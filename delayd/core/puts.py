r"""What a put says: what is to be done, when, under which key, and what if that is taken.

>>> checked_key(b"order-17"), checked_key("größe".encode())
(b'order-17', b'gr\xc3\xb6\xc3\x9fe')
>>> When(due_ms=5_000, delay_ms=0, wall_ms=None).state.name
'READY'

The words of `core.keyed`, with the records that follow from them. Nothing here knows a store.
"""

import enum
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from delayd.core.errors import KeyInvalid
from delayd.core.job import (
    HEADER,
    STATE_AT,
    U64,
    Flag,
    Retry,
    State,
    key_of,
    note_of,
    pack_key,
    pack_retry,
    tally_of,
    wall_of,
)
from delayd.core.moments import check_range
from delayd.core.topic import Topic
from delayd.core.transitions import amended, with_tail
from delayd.limits import (
    ATTEMPTS_MAX,
    DURATION_MS_MAX,
    JITTER_PERCENT_MAX,
    KEY_BYTES_MAX,
    RETRY_STEPS_MAX,
)

# For every put; an enum member's arithmetic costs 40 ns more than an int's.
_WALL: Final = int(Flag.WALL)
_KEY: Final = int(Flag.KEY)
_RETRY: Final = int(Flag.RETRY)
_DELAYED: Final = int(State.DELAYED)
_READY: Final = int(State.READY)
_PLAIN: Final = bytes(range(0x21, 0x7F))
_PLAIN_KEY: Final = re.compile(rb"[!-~]{1,%d}" % KEY_BYTES_MAX)


class Conflict(enum.Enum):
    """What a put is to do when its key is taken."""

    REJECT = "reject"
    KEEP = "keep"
    REPLACE = "replace"
    PRESERVE = "preserve"
    EXTEND = "extend"


class Outcome(enum.Enum):
    """What a put under a key has done."""

    CREATED = "created"
    KEPT = "kept"
    REPLACED = "replaced"
    PRESERVED = "preserved"
    EXTENDED = "extended"


def checked_key(key: bytes) -> bytes:
    """Return the key, or raise `KeyInvalid`."""
    if _PLAIN_KEY.fullmatch(key) is None:
        try:
            text = key.decode("utf-8")
        except UnicodeDecodeError:
            raise KeyInvalid(key) from None
        if not text.isprintable() or " " in text or not 1 <= len(key) <= KEY_BYTES_MAX:
            raise KeyInvalid(key)
    return key


def check_keys(keys: Sequence[bytes]) -> None:
    """Raise `KeyInvalid` for the first that is not one. 0.05 µs a key where they are ASCII."""
    if len(keys) == 1:
        checked_key(keys[0])
        return
    text = b"".join(keys)
    are_plain = all(keys) and not text.translate(None, _PLAIN)
    if not are_plain or (len(text) > KEY_BYTES_MAX and max(map(len, keys)) > KEY_BYTES_MAX):
        for key in keys:
            checked_key(key)


def check_retry(retry: Retry | None) -> None:
    """Raise `ValueOutOfRange` if a job's own retry rule is not one that a record can say."""
    if retry is not None:
        check_range("retry steps", len(retry.steps_ms), RETRY_STEPS_MAX)
        for step_ms in retry.steps_ms:
            check_range("retry step in ms", step_ms, DURATION_MS_MAX)
        check_range("attempts", retry.attempts_max, ATTEMPTS_MAX)
        check_range("jitter in percent", retry.jitter_percent, JITTER_PERCENT_MAX)


class What(NamedTuple):
    """What is to be done by a job."""

    priority: int
    ttr_ms: int
    retry: Retry | None
    body: bytes


class When(NamedTuple):
    """When it is to be done."""

    due_ms: int
    delay_ms: int
    """0: at once."""
    wall_ms: int | None
    """The moment of the wall clock that it was put for, if it was."""

    @property
    def state(self) -> State:
        """The state of a job that waits for that."""
        return State.DELAYED if self.delay_ms else State.READY


def fresh(job_id: int, topic: Topic, key: bytes, what: What, when: When, now_ms: int) -> bytes:
    """Return the record of a job that nothing has happened to."""
    due_ms, delay_ms, wall_ms = when
    priority, ttr_ms, retry, body = what
    flags = (_KEY if key else 0) | (0 if wall_ms is None else _WALL) | (_RETRY if retry else 0)
    state = _DELAYED if delay_ms else _READY
    head = HEADER.pack(job_id, due_ms, now_ms, ttr_ms, priority, topic.number, state, flags)
    wall = b"" if wall_ms is None else U64.pack(wall_ms)
    return head + wall + pack_key(key) + pack_retry(retry) + body


def preserved(record: bytes, what: What) -> bytes:
    """Return the record of a job that is to do something else, at the time that it has."""
    due_ms: int = HEADER.unpack_from(record)[1]
    delay_ms, wall_ms = tally_of(record).delay_ms, wall_of(record) or 0
    changed = amended(
        record, due_ms, delay_ms, wall_ms, what.ttr_ms, what.priority, record[STATE_AT]
    )
    key, note = key_of(record), note_of(record)
    return with_tail(changed, key=key, retry=what.retry, note=note, body=what.body)
