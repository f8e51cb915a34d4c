"""Jobs as answers have them.

Times are RFC 3339 by the wall clock, and durations in seconds. A body that is JSON is the very text
in `body`, others are in `body_base64`.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from delayd.core.job_parts import (
    TALLY,
    Attempt,
    AttemptOutcome,
    Failure,
    Flag,
    Note,
    Reason,
    attempts_of,
    body_of,
    failure_of,
    history_of,
    key_of,
    note_of,
    retry_of,
    tally_of,
    target_of,
    texts_of,
)
from delayd.core.job_record import (
    CREATED_AT,
    DUE_AT,
    FLAGS_AT,
    HEADER,
    HEADER_BYTES,
    U64,
    State,
)
from delayd.core.scans.scan import seen_state
from delayd.core.targets import masked, own_target
from delayd.durations import duration_text
from delayd.http.answer_forms import (
    AttemptAnswer,
    FailureAnswer,
    JobAnswer,
    PageJobAnswer,
    ReservedJobAnswer,
    as_written,
)
from delayd.http.values import UNSET, Unset
from delayd.json_text import is_json
from delayd.limits import SECONDS_WRITTEN_MAX
from delayd.moments import moment_text

if TYPE_CHECKING:
    from delayd.core.store import Store

_TALLY: Final = int(Flag.TALLY)
_FAILURE: Final = int(Flag.FAILURE)
_KEY: Final = int(Flag.KEY)
_MORE: Final = int(Flag.MORE)

IsAdmin = Callable[[str], bool]
"""Tells whether the client has the scope admin for a topic, and so sees secrets."""


def set_body(
    answer: JobAnswer | PageJobAnswer | ReservedJobAnswer, body: bytes, form: str = "auto"
) -> None:
    """Set the member that holds the body."""
    if form == "auto" and is_json(body):
        answer.body = as_written(body)
    else:
        answer.body_base64 = body


def _came_back(record: bytes) -> int:
    """Return how often the job came back from a holder, without the rest of its tally (0.5 µs)."""
    if not record[FLAGS_AT] & _TALLY:
        return 0
    reserves: int = TALLY.unpack_from(record, HEADER_BYTES)[1]
    return reserves


def token_of(job_id: int, created_ms: int, reserves: int) -> str:
    """Return the token that the holder of a job gets: earlier and later ones are others.

    `reserves` is the number of this hand-out in the job's present life, starting at 1.

    >>> token_of(17, 1_795_287_600_250, 1)
    '17-1a1ff7acc7a-1'
    """
    return f"{job_id}-{_hexadecimal(created_ms)}-{reserves}"


_hexadecimal: Final = lru_cache(maxsize=SECONDS_WRITTEN_MAX)("{:x}".format)
"""Of jobs that were put together: written anew it is half of what a token takes, compiled."""


def current_token(job_id: int, record: bytes) -> str:
    """Return the token of a job that is reserved; each reservation has one spelling."""
    return token_of(job_id, U64.unpack_from(record, CREATED_AT)[0], _came_back(record) + 1)


def job_of(token: str) -> int:
    """Return the job that a token of the right form is of.

    >>> job_of("17-1a1ff7acc7a-1")
    17
    """
    return int(token.partition("-")[0])


def reserved_job(
    store: "Store", job_id: int, handed_ms: int, form: str, is_admin: IsAdmin
) -> ReservedJobAnswer:
    """Return a job for its holder; it was handed out at `handed_ms`."""
    record = store.jobs.get(job_id)
    assert record is not None
    _, due_ms, created_ms, ttr_ms, priority, number, _, flags = HEADER.unpack_from(record)
    offset_ms = store.wall_times.offset_ms
    reserves = _came_back(record) + 1
    answer = ReservedJobAnswer(
        id=job_id,
        topic=store.topics.by_number[number].name,
        token=token_of(job_id, created_ms, reserves),
        attempt=attempts_of(record) + 1 if flags & _FAILURE else reserves,
        priority=priority,
        due=_shared_moment_text(due_ms + offset_ms),
        lateness=max(0, handed_ms - due_ms) / 1_000,
        ttr=ttr_ms / 1_000,
        expires=_shared_moment_text(store.leases.sessions[job_id].deadlines[job_id] + offset_ms),
    )
    if flags & _KEY:
        answer.key = key_of(record).decode()
    if flags & _FAILURE:
        answer.failure = last_failure(record, offset_ms, sees_all=is_admin(answer.topic))
    if flags & _MORE:
        _set_further(answer, record, is_admin)
    set_body(answer, body_of(record), form)
    return answer


_shared_moment_text: Final = lru_cache(maxsize=SECONDS_WRITTEN_MAX)(moment_text)
"""For jobs that are handed out together: they are due, and their reservations end, at few moments.
"""


def _set_further(answer: ReservedJobAnswer | JobAnswer, record: bytes, is_admin: IsAdmin) -> None:
    """Set the members for the job's own target and texts."""
    for name, text in texts_of(record).items():
        setattr(answer, name, text)
    packed = target_of(record)
    if not packed:
        return
    target = own_target(packed)
    if not is_admin(answer.topic):
        target = masked(target)
    answer.url, answer.method = target.url, target.method
    answer.headers = dict(target.headers) or UNSET


def last_failure(record: bytes, offset_ms: int, *, sees_all: bool) -> FailureAnswer | Unset:
    """Return the last failed attempt, as far as the client may see it."""
    failure = failure_of(record)
    if failure is None:
        return UNSET
    return failure_answer(failure, note_of(record), offset_ms, sees_all=sees_all)


def failure_answer(
    failure: Failure, note: Note | None, offset_ms: int, *, sees_all: bool
) -> FailureAnswer:
    """Return a failed attempt; without `sees_all` only the first line of a call's answer."""
    error = "" if note is None else note.error
    if failure.reason == Reason.PUSH_FAILED and not sees_all:
        error = error.partition("\n")[0]
    return FailureAnswer(
        reason=Reason(failure.reason).name.lower(),
        at=moment_text(failure.failed_ms + offset_ms),
        error=error or UNSET,
        origin=(note.origin if note is not None else "") or UNSET,
    )


def whole_job(store: "Store", job_id: int, record: bytes, is_admin: IsAdmin) -> JobAnswer:
    """Return everything about a job except its body."""
    record = store.wall_times.current(job_id, record)
    topic = store.topic_of(record).name
    state = seen_state(store, job_id, record)
    _, due_ms, created_ms, ttr_ms, priority, _, _, _ = HEADER.unpack_from(record)
    offset_ms = store.wall_times.offset_ms
    tally = tally_of(record)
    is_reserved = state is State.RESERVED
    answer = JobAnswer(
        id=job_id,
        topic=topic,
        state=state.name.lower(),
        priority=priority,
        due=moment_text(due_ms + offset_ms),
        created=moment_text(created_ms + offset_ms),
        ttr=ttr_ms / 1_000,
        attempts=attempts_of(record) + is_reserved,
        reserves=tally.reserves + is_reserved,
        timeouts=tally.timeouts,
        releases=tally.releases,
        buries=tally.buries,
        kicks=tally.kicks,
        key=key_of(record).decode() or UNSET,
        failure=last_failure(record, offset_ms, sees_all=is_admin(topic)),
    )
    if is_reserved:
        answer.expires = moment_text(store.leases.sessions[job_id].deadlines[job_id] + offset_ms)
    retry = retry_of(record)
    if retry is not None:
        answer.retry = [*map(duration_text, retry.steps_ms)] or UNSET
        answer.max_attempts = retry.attempts_max or UNSET
        answer.jitter_percent = retry.jitter_percent or UNSET
    if record[FLAGS_AT] & _MORE:
        _set_further(answer, record, is_admin)
        answer.history = [_attempt(each, offset_ms) for each in history_of(record)] or UNSET
    return answer


def _attempt(attempt: Attempt, offset_ms: int) -> AttemptAnswer:
    return AttemptAnswer(
        ended=moment_text(attempt.ended_ms + offset_ms),
        lasted=attempt.lasted_ms / 1_000 or None,
        who=attempt.who or UNSET,
        reason=Reason(attempt.reason).name.lower(),
        outcome=AttemptOutcome(attempt.outcome).name.lower(),
        error=attempt.error or UNSET,
    )


def due_text(store: "Store", job_id: int) -> str:
    """Return when a job is due, as RFC 3339."""
    return moment_text(due_wall_ms_of(store, job_id))


def due_wall_ms_of(store: "Store", job_id: int) -> int:
    """Return when a job is due on the wall clock."""
    record = store.jobs.get(job_id)
    assert record is not None
    due_ms: int = U64.unpack_from(record, DUE_AT)[0]
    return due_ms + store.wall_times.offset_ms
