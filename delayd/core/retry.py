"""What becomes of a job whose attempt has failed: the rule that it is under, and the outcome.

A **retry rule** is a ladder of delays, a highest number of attempts, or both. Under one every
failed attempt is judged: `decide` says whether the job is delayed by the next step or, with steps
or attempts used up, buried or moved to another topic. A job's own rule wins over its topic's.

    ladder 15s 3m, attempt 1 fails at 100 s    delayed until 115 s
                   attempt 2 fails at 120 s    delayed until 300 s
                   attempt 3 fails at 310 s    exhausted: buried

>>> from delayd.core.job_record import HEADER
>>> record = HEADER.pack(7, 500, 500, 60_000, 3, 1, State.READY, Flag.NONE) + b"hello"
>>> rule = Retry(steps_ms=(15_000, 180_000))
>>> for failed_ms in (100_000, 120_000, 310_000):
...     outcome = decide(record, rule, Reason.NACKED, failed_ms, tick_ms=1)
...     print(State(outcome.state).name, outcome.due_ms)
...     record = failed(record, outcome, origin="mail", rank=1)
DELAYED 115000
DELAYED 300000
BURIED 310000

What a client caused is recorded with its outcome (`core.operations.attempts`). What time caused is
not, and a replay decides it again: so everything here is a function of its arguments, jitter
included.
"""

from typing import Final, NamedTuple

from delayd.core.job_parts import (
    COUNT_MAX,
    Attempt,
    AttemptOutcome,
    Failure,
    Flag,
    Note,
    Reason,
    Retry,
    attempts_of,
    failure_of,
    longer_history,
    note_of,
    pack_note,
    retry_of,
    tally_of,
    target_of,
    with_parts,
)
from delayd.core.job_record import (
    DUE_AT,
    FLAGS_AT,
    ID_AT,
    PRIORITY_AND_TOPIC,
    PRIORITY_AT,
    STATE_AT,
    TTR_AT,
    U64,
    State,
)
from delayd.core.policy import Policy
from delayd.core.transitions import (
    amend,
    came_due,
    expired,
    rank_at,
    was_moved,
)
from delayd.core.wheel.wheel import ceil_to_tick
from delayd.limits import (
    DURATION_MS_MAX,
    ERROR_BYTES_MAX,
    HISTORY_DEFAULT,
    HISTORY_ERROR_BYTES_MAX,
    HISTORY_WHO_BYTES_MAX,
)

PUSH_STEPS_MS: Final = (
    *(15_000, 180_000, 600_000, 1_800_000, 1_800_000),
    *(3_600_000, 7_200_000, 21_600_000, 54_000_000),
)
"""The ladder of jobs that are pushed and have no other: 15s 3m 10m 30m 30m 1h 2h 6h 15h. Replays
decide by it, so it never changes."""

UNCOUNTED: Final = frozenset({Reason.EXCUSED, Reason.UNDELIVERED})
"""Ends of a reservation that are no failed attempts."""

_GIVES_BACK: Final = frozenset({Reason.NACKED, Reason.RELEASED, Reason.PUSH_FAILED})
"""Its holder has given it back itself, as failed."""

NO_END: Final = "delayd ended while the call was under way, or the ttr of its worker ran out"
"""The error of a job that is pushed and whose lease has run out. A call ends before its lease."""

_KEY: Final = int(Flag.KEY)
_NOTE: Final = int(Flag.NOTE)
_HISTORY: Final = int(Flag.HISTORY)
BRINGS_RULE: Final = int(Flag.RETRY)
"""Flags of a record below this: the job brings no retry rule and no target of its own."""

_MASK: Final = 2**64 - 1


# --- The rule ------------------------------------------------------------------------------------


def rule_of(record: bytes, policy: Policy | None) -> Retry | None:
    """Return the retry rule that the job is under, in a topic of that policy; None: none."""
    return rule_for(retry_of(record), policy, is_pushed=is_pushed(record, policy))


def is_pushed(record: bytes, policy: Policy | None) -> bool:
    """Tell whether the job has a target, in a topic of that policy.

    One that was moved, exhausted, to another topic is not delivered by its own target there.
    """
    if policy is not None and policy.push is not None:
        return True
    return bool(target_of(record)) and not was_moved(record)


def rule_for(
    own: Retry | None, policy: "Policy | None", *, is_pushed: bool = False
) -> Retry | None:
    """Return the rule that a job is under: its own over its topic's; None when there is neither.

    A ladder of its own replaces the topic's rule as a whole. A job that only brings its number of
    attempts climbs the topic's ladder; one that is pushed climbs `PUSH_STEPS_MS` where there is no
    other.
    """
    topics = None if policy is None else policy.rule
    if is_pushed and (topics is None or not topics.steps_ms):
        topics = (topics or Retry())._replace(steps_ms=PUSH_STEPS_MS)
    if own is None or topics is None or own.steps_ms:
        return topics if own is None else own
    return topics._replace(attempts_max=own.attempts_max)


def is_exhausted(rule: Retry, attempt: int) -> bool:
    """Tell whether nothing comes after the attempt of that number."""
    if rule.attempts_max and attempt >= rule.attempts_max:
        return True
    return bool(rule.steps_ms) and attempt > len(rule.steps_ms)


def step_ms(rule: Retry, job_id: int, attempt: int) -> int:
    """Return how long the job waits after that attempt; 0 without a ladder."""
    if not rule.steps_ms:
        return 0
    wait_ms = rule.steps_ms[attempt - 1]
    if rule.jitter_percent:
        chance = _scattered(job_id, attempt)
        wait_ms += (wait_ms * rule.jitter_percent * chance // 100) >> 64
    return min(wait_ms, DURATION_MS_MAX)


def _scattered(job_id: int, attempt: int) -> int:
    """Return a number of 64 bits that looks drawn, always the same one (Steele's SplitMix64)."""
    mixed = (job_id + attempt * 0x9E3779B97F4A7C15) & _MASK
    mixed = ((mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ mixed >> 27) * 0x94D049BB133111EB) & _MASK
    return mixed ^ mixed >> 31


def attempt_number(record: bytes) -> int:
    """Return the number of the attempt of a job that is held, or was until now: 1 upwards.

    The first to fail under a rule is the first of the ladder, however often the job was handed out
    when there was none.
    """
    return attempts_of(record) + 1 if record[FLAGS_AT] & Flag.FAILURE else 1


# --- The outcome ---------------------------------------------------------------------------------


class RetryDecision(NamedTuple):
    """What becomes of a job whose attempt has ended: the fields of a FAIL record, in its order."""

    job_id: int
    failed_ms: int
    due_ms: int
    """When its delay ends; of a job that does not wait, when the attempt ended."""
    delay_ms: int
    priority: int
    reason: int
    """A `Reason`; of a record it is a plain number, as the state."""
    state: int
    """A `State`."""
    target: int
    """The number of the topic that it is moved to; 0: it stays."""


def ended(
    record: bytes,
    reason: Reason,
    failed_ms: int,
    state: State,
    *,
    priority: int | None = None,
    target: int = 0,
) -> RetryDecision:
    """Return the outcome that the job is ready or buried, with this priority or its own."""
    job_id: int = U64.unpack_from(record, ID_AT)[0]
    if priority is None:
        priority = PRIORITY_AND_TOPIC.unpack_from(record, PRIORITY_AT)[0]
    return RetryDecision(job_id, failed_ms, failed_ms, 0, priority, reason, state, target)


def exhausted(
    record: bytes, reason: Reason, failed_ms: int, *, priority: int | None = None, target: int = 0
) -> RetryDecision:
    """Return the outcome that it is not tried again: it moves to the target, once, or is buried."""
    if target and not was_moved(record):
        return ended(record, reason, failed_ms, State.READY, priority=priority, target=target)
    return ended(record, reason, failed_ms, State.BURIED, priority=priority)


def decide(
    record: bytes,
    rule: Retry,
    reason: Reason,
    failed_ms: int,
    *,
    tick_ms: int,
    delay_ms: int = 0,
    priority: int | None = None,
    target: int = 0,
) -> RetryDecision:
    """Return the outcome of a failed attempt under a rule.

    `delay_ms` is what its holder asked for, if anything; `target` the number of the topic to which
    exhausted jobs are moved, if not buried.
    """
    number = attempt_number(record)
    if is_exhausted(rule, number):
        return exhausted(record, reason, failed_ms, priority=priority, target=target)
    again = ended(record, reason, failed_ms, State.READY, priority=priority)
    delay_ms = delay_ms or step_ms(rule, again.job_id, number)
    if not delay_ms:
        return again
    due_ms = ceil_to_tick(failed_ms + delay_ms, tick_ms)
    return again._replace(state=State.DELAYED, due_ms=due_ms, delay_ms=delay_ms)


def cut_error(error: str) -> bytes:
    """Return what is kept of an error's text: whole characters, as many as fit the limit."""
    return _cut(error, ERROR_BYTES_MAX)


def cut_who(who: str) -> bytes:
    """Return what is kept of who made an attempt."""
    return _cut(who, HISTORY_WHO_BYTES_MAX)


def _cut(text: str, bytes_max: int) -> bytes:
    return text.encode("utf-8", "replace")[:bytes_max].decode("utf-8", "ignore").encode()


# --- The record afterwards -----------------------------------------------------------------------


def failed(
    record: bytes,
    outcome: RetryDecision,
    *,
    origin: str,
    rank: int,
    error: str = "",
    lasted_ms: int = 0,
    who: str = "",
    kept: int = 0,
) -> bytes:
    """Return the record of a job whose attempt ended so.

    `origin` is the topic that it leaves if it is moved, `rank` its place among the buried if it is
    buried. One of `UNCOUNTED` does not count; of an error that is not known the last one stays. Of
    its attempts so many are `kept`; this one lasted so long, 0 if that is not known.
    """
    reason, state, failed_ms = Reason(outcome.reason), State(outcome.state), outcome.failed_ms
    reserves = 0 if reason is Reason.UNDELIVERED else tally_of(record).reserves
    failure = failure_of(record) or Failure(reason, reserves, failed_ms)
    if reason in UNCOUNTED:
        failure = failure._replace(attempts_before=failure.attempts_before + 1)
    elif outcome.target:  # a new life in another topic
        failure = Failure(reason, min(COUNT_MAX, tally_of(record).reserves + 1), failed_ms)
    else:
        failure = Failure(reason, failure.attempts_before, failed_ms)
    is_buried = state is State.BURIED
    changed = amend(
        record,
        state,
        due_ms=None if is_buried else outcome.due_ms,
        priority=outcome.priority,
        topic=outcome.target or None,
        delay_ms=None if is_buried else outcome.delay_ms,
        rank=rank,
        failure=failure,
        reserves=1,
        timeouts=int(reason is Reason.TTR_RAN_OUT),
        releases=int(reason in _GIVES_BACK),
        buries=int(is_buried),
    )
    parts: dict[int, bytes] = {}
    if outcome.target:
        parts[_KEY] = b""
    else:
        origin = ""
    if origin or error:
        note = note_of(changed) or Note()
        parts[_NOTE] = pack_note(Note(origin or note.origin, error or note.error))
    if reason not in UNCOUNTED:
        what = AttemptOutcome.MOVED if outcome.target else AttemptOutcome(outcome.state)
        line = _cut(error.partition("\n")[0], HISTORY_ERROR_BYTES_MAX)
        attempt = Attempt(failed_ms, lasted_ms, reason, what, who, line.decode())
        parts[_HISTORY] = longer_history(record, attempt, kept)
    return with_parts(changed, parts) if parts else changed


def kept_under(policy: Policy | None) -> int:
    """Return how many attempts of a job are kept in a topic of that policy."""
    if policy is None or policy.history is None:
        return HISTORY_DEFAULT
    return policy.history


class Place(NamedTuple):
    """Where a job is when its attempt fails."""

    name: str
    """Of its topic."""
    target: int = 0
    """The number of the topic that exhausted jobs are moved to; 0: they are buried."""


def expired_under(
    record: bytes,
    policy: Policy | None,
    place: Place,
    deadline_ms: int,
    *,
    tick_ms: int,
    begun_ms: int = 0,
) -> bytes:
    """Return the record of a job whose ttr ran out at the deadline, under a rule or not.

    It was handed out at `begun_ms`; 0: a ttr before.
    """
    rule, reason, kept = rule_of(record, policy), Reason.TTR_RAN_OUT, kept_under(policy)
    ttr_ms: int = U64.unpack_from(record, TTR_AT)[0]
    lasted_ms = deadline_ms - begun_ms if begun_ms else ttr_ms
    if rule is None:
        attempt = Attempt(deadline_ms, lasted_ms, reason, AttemptOutcome.READY, "", "")
        return with_parts(expired(record), {_HISTORY: longer_history(record, attempt, kept)})
    outcome = decide(record, rule, reason, deadline_ms, tick_ms=tick_ms, target=place.target)
    pushed = is_pushed(record, policy)
    return failed(
        *(record, outcome),
        origin=place.name,
        rank=rank_at(deadline_ms),
        error=NO_END if pushed else "",
        # Of a call no record says when it began, and a replay must arrive at the same.
        lasted_ms=0 if pushed else lasted_ms,
        kept=kept,
    )


def caught_up_expiry(
    record: bytes,
    policy: Policy | None,
    place: Place,
    deadline_ms: int,
    *,
    tick_ms: int,
    time_ms: int,
    begun_ms: int = 0,
) -> bytes:
    """Return the same decision as of a later time: a delay may have ended since."""
    changed = expired_under(record, policy, place, deadline_ms, tick_ms=tick_ms, begun_ms=begun_ms)
    if changed[STATE_AT] == State.DELAYED and U64.unpack_from(changed, DUE_AT)[0] <= time_ms:
        return came_due(changed)
    return changed
