"""What becomes of a job whose attempt has failed: the verdict of a policy, applied to its record.

`core.policy` decides on numbers; this module knows where a record has them and what it says
afterwards. Live operation, replay, copies and views all come here, so that they agree to the byte.

>>> from delayd.core.job import HEADER, Flag, State, attempts_of, failure_of
>>> from delayd.core.policy import Policy
>>> record = HEADER.pack(7, 500, 500, 60_000, 3, 1, State.READY, Flag.NONE) + b"hello"
>>> policy = Policy(retry_ms=(15_000,))
>>> once = expired_under(record, policy, Place("mail"), deadline_ms=60_500, tick_ms=1)
>>> State(once[40]).name, attempts_of(once), failure_of(once).failed_ms
('DELAYED', 1, 60500)
>>> State(expired_under(once, policy, Place("mail"), 150_000, tick_ms=1)[40]).name
'BURIED'

Like `core.transitions` it is pure, and refuses to know which session holds the job.
"""

from typing import TYPE_CHECKING, Final, NamedTuple

from delayd.core.job import (
    COUNT_MAX,
    DUE_AT,
    FLAGS_AT,
    ID_AT,
    STATE_AT,
    U64,
    Failure,
    Flag,
    Note,
    Reason,
    Retry,
    State,
    attempts_of,
    failure_of,
    note_of,
    retry_of,
    tally_of,
)
from delayd.core.policy import Attempt, Policy, Verdict, decide, rule_for
from delayd.core.transitions import amend, came_due, expired, rank_at, with_note, without_key
from delayd.limits import ERROR_BYTES_MAX

if TYPE_CHECKING:
    from delayd.core.topic import Topic

UNCOUNTED: Final = frozenset({Reason.EXCUSED, Reason.UNDELIVERED})
"""Ends of a reservation that are no failed attempts."""

BRINGS_RULE: Final = int(Flag.RETRY)
"""Flags of a record below this: the job brings no retry rule of its own."""


class Place(NamedTuple):
    """Where a job is when its attempt fails."""

    name: str
    """Of its topic."""
    target: int = 0
    """The number of the topic that exhausted jobs are moved to; 0: they are buried."""


def rule_of(record: bytes, policy: Policy | None) -> Retry | None:
    """Return the retry rule that the job is under, in a topic of that policy; None: none."""
    return rule_for(retry_of(record), policy)


def attempt_of(record: bytes) -> Attempt:
    """Return the attempt of a job that is held, or was until now.

    The first to fail under a rule is the first of the ladder, however often the job was handed out
    when there was none.
    """
    job_id: int = U64.unpack_from(record, ID_AT)[0]
    note = note_of(record)
    number = attempts_of(record) + 1 if record[FLAGS_AT] & Flag.FAILURE else 1
    return Attempt(job_id, number, note is not None and bool(note.origin))


def cut_error(error: str) -> bytes:
    """Return what is kept of an error's text: whole characters, as many as fit the limit."""
    text = error.encode("utf-8", "replace")
    return text[:ERROR_BYTES_MAX].decode("utf-8", "ignore").encode()


def failed(
    record: bytes,
    verdict: Verdict,
    reason: int,
    failed_ms: int,
    *,
    origin: str,
    rank: int,
    priority: int | None = None,
    error: str = "",
) -> bytes:
    """Return the record of a job whose attempt failed, as the verdict says.

    `origin` is the topic that it leaves if it is moved, `rank` its place among the buried if it is
    buried. One of `UNCOUNTED` does not count; of an error that is not known the last one stays.
    """
    reserves = 0 if reason == Reason.UNDELIVERED else tally_of(record).reserves
    failure = failure_of(record) or Failure(reason, reserves, failed_ms)
    if reason in UNCOUNTED:
        failure = failure._replace(attempts_before=failure.attempts_before + 1)
    elif verdict.target:  # a new life in another topic
        failure = Failure(reason, min(COUNT_MAX, tally_of(record).reserves + 1), failed_ms)
    else:
        failure = Failure(reason, failure.attempts_before, failed_ms)
    is_buried = verdict.state is State.BURIED
    changed = amend(
        record,
        verdict.state,
        due_ms=None if is_buried else verdict.due_ms,
        priority=priority,
        topic=verdict.target or None,
        delay_ms=None if is_buried else verdict.delay_ms,
        rank=rank,
        failure=failure,
        reserves=1,
        timeouts=int(reason == Reason.TTR_RAN_OUT),
        releases=int(reason in {Reason.NACKED, Reason.RELEASED}),
        buries=int(is_buried),
    )
    if verdict.target:
        changed = without_key(changed) if changed[FLAGS_AT] & Flag.KEY else changed
    else:
        origin = ""
    if origin or error:
        note = note_of(changed) or Note()
        changed = with_note(changed, Note(origin or note.origin, error or note.error))
    return changed


def expired_under(
    record: bytes, policy: Policy | None, place: Place, deadline_ms: int, *, tick_ms: int
) -> bytes:
    """Return the record of a job whose ttr ran out at the deadline, under a rule or not."""
    rule = rule_of(record, policy)
    if rule is None:
        return expired(record)
    verdict = decide(attempt_of(record), rule, deadline_ms, tick_ms=tick_ms, target=place.target)
    rank = rank_at(deadline_ms)
    return failed(record, verdict, Reason.TTR_RAN_OUT, deadline_ms, origin=place.name, rank=rank)


def caught_up_expiry(
    record: bytes,
    policy: Policy | None,
    place: Place,
    deadline_ms: int,
    *,
    tick_ms: int,
    time_ms: int,
) -> bytes:
    """Return the same decision as of a later time: a delay may have ended since."""
    changed = expired_under(record, policy, place, deadline_ms, tick_ms=tick_ms)
    if changed[STATE_AT] == State.DELAYED and U64.unpack_from(changed, DUE_AT)[0] <= time_ms:
        return came_due(changed)
    return changed


def place_of(topic: "Topic") -> Place:
    """Return where the jobs of a topic are when they fail."""
    return Place(topic.name, 0 if topic.target is None else topic.target.number)
