"""Why jobs are dead: the reason of a failure without what differs from job to job.

    nacked: order 17 of ada-4 not found in 0.3 s     nacked: order # of # not found in # s
    push_failed: 503 Service Unavailable             push_failed: # Service Unavailable
    nacked: exit code 137 after 20 s                 nacked: exit code 137 after # s

Each word with a digit becomes `#`, and so do several that belong together (addresses, times). A
number of up to three digits behind a word of `_BEFORE_CODES` stays: it says what failed. Jobs
with the same text form a group. It goes by a short id, a hash of the text, which fits a query,
an option of the line and an argument; the same in every topic and after every restart.

>>> normalised("order 17 of ada-4 not found at 10.0.0.7:80: 9d2e-11f0")
'order # of ada-# not found at #: #'
>>> reason_id("nacked: order # not found") == reason_id("nacked: order # not found")
True
"""

import re
from typing import Final
from zlib import crc32

from delayd.core.job_parts import Reason, failure_of, note_of
from delayd.core.job_record import STATE_AT, State
from delayd.fields import matching
from delayd.limits import REASON_CHARACTERS_MAX

_BEFORE_CODES: Final = ("code", "status", r"HTTP(?:/[0-9](?:\.[0-9])?)?")
# From the beginning of a word, so that one without a digit is looked at once.
_WORD: Final = re.compile(
    r"(?<![0-9A-Za-z_])(?:"
    rf"((?i:{'|'.join(_BEFORE_CODES)})(?:[:=] ?| )[0-9]{{1,3}}(?![0-9A-Za-z_]|[-.:/,][0-9]))"
    r"|[A-Za-z_]*[0-9][0-9A-Za-z_]*)"
)
_TOGETHER: Final = re.compile(r"#(?:[-.:/,]+#)+")
_BURIED: Final = int(State.BURIED)

REASON: Final = matching("[0-9a-f]{8}", "must be the id of a reason: 8 of 0-9 a-f").described(
    "The id of a reason for which jobs are dead.", "4f2a90c1"
)


def normalised(text: str) -> str:
    """Return a text with `#` in place of each word that has a digit and is no code."""
    return _TOGETHER.sub("#", _WORD.sub(_code_or_sign, text))


def _code_or_sign(word: re.Match[str]) -> str:
    return word[1] or "#"


def reason_of(record: bytes) -> str:
    """Return why the last attempt of a job failed, or why it was buried; empty: neither was."""
    failure = failure_of(record)
    if failure is None:
        return "buried" if record[STATE_AT] == _BURIED else ""
    word = Reason(failure.reason).name.lower()
    note = note_of(record)
    line = "" if note is None else note.error.partition("\n")[0][:REASON_CHARACTERS_MAX]
    return f"{word}: {normalised(line)}" if line else word


def reason_id(reason: str) -> str:
    """Return the id of a reason. Two of them in 65,000 or so share one, and are one group then."""
    return f"{crc32(reason.encode()):08x}"
