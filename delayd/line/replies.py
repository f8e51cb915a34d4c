"""The replies of the line protocol: fixed ones, jobs, lists in YAML; `stats` has the others."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from delayd.core.errors import (
    JobAlreadyExists,
    PolicyInvalid,
    Refusal,
    ScheduleConfigured,
    ScheduleInvalid,
    TargetRefused,
)
from delayd.core.job_parts import attempts_of, key_of
from delayd.core.job_record import TTR_AT, U64
from delayd.core.operations.put import Outcome
from delayd.core.scans.find import KeySearch
from delayd.core.scans.groups import GroupList, GroupRow
from delayd.core.scans.list import Page, Row
from delayd.core.scans.reasons import DeadReasons
from delayd.core.session import Handed
from delayd.core.store import Store
from delayd.core.topic import Topic
from delayd.line.grammar import Detail
from delayd.text import visible

AUTHENTICATED: Final = b"OK\r\n"
BURIED: Final = b"BURIED\r\n"
DEADLINE_SOON: Final = b"DEADLINE_SOON\r\n"
DELETED: Final = b"DELETED\r\n"
EXPECTED_CRLF: Final = b"EXPECTED_CRLF\r\n"
JOB_TOO_BIG: Final = b"JOB_TOO_BIG\r\n"
KICKED: Final = b"KICKED\r\n"
NOT_FOUND: Final = b"NOT_FOUND\r\n"
BAD_FORMAT: Final = b"BAD_FORMAT\r\n"
NOT_HTTP: Final = (
    b"HTTP/1.1 426 Upgrade Required\r\nUpgrade: beanstalk\r\nConnection: Upgrade, close\r\n"
    b"Content-Type: text/plain\r\nContent-Length: 87\r\n\r\n"
    b"This is delayd's line port: use beanstalk://HOST:PORT. HTTP is at that of http.listen.\n"
)
"""What a client that speaks HTTP can read, if it was sent to the wrong port."""
PAUSED: Final = b"PAUSED\r\n"
RELEASED: Final = b"RELEASED\r\n"
RESCHEDULED: Final = b"RESCHEDULED\r\n"
TIMED_OUT: Final = b"TIMED_OUT\r\n"
NO_JOB: Final = frozenset({DEADLINE_SOON, TIMED_OUT})
"""Replies to a reserve that gets no job."""

_ERRORS_BYTES_MAX: Final = 1_000
"""Length of the errors of a policy; a client that reads lines can read one of ours."""

TOUCHED: Final = b"TOUCHED\r\n"
UNAUTHORIZED: Final = b"UNAUTHORIZED\r\n"
UNKNOWN_COMMAND: Final = b"UNKNOWN_COMMAND\r\n"


KINDS: Final = MappingProxyType(
    {
        b"BAD_FORMAT": "line_malformed",
        b"EXPECTED_CRLF": "expected_crlf",
        b"FORBIDDEN": "forbidden",
        b"JOB_TOO_BIG": "body_too_big",
        b"NOT_FOUND": "job_not_found",
        b"UNAUTHORIZED": "unauthorized",
        b"UNKNOWN_COMMAND": "unknown_command",
    }
)
"""The kind of what is refused without a `Refusal`, by the reply's word."""


def why(kind: str) -> bytes:
    """Tell the kind of the last refusal of a connection."""
    return b"WHY %b\r\n" % kind.encode() if kind else NOT_FOUND


def refused(refusal: Refusal) -> bytes:
    """Return the reply to a refused command."""
    if isinstance(refusal, JobAlreadyExists):
        return b"JOB_ALREADY_EXISTS %d\r\n" % refusal.job_id
    if isinstance(refusal, TargetRefused | ScheduleConfigured):
        return _with_words(refusal.word.encode(), str(refusal))
    if isinstance(refusal, ScheduleInvalid):
        return _with_words(b"BAD_FORMAT", "; ".join(map(str, refusal.errors)))
    return b"%b\r\n" % (refusal.line_word or refusal.word).encode()


def policy_refused(refusal: PolicyInvalid) -> bytes:
    """List every error of a policy, on one line, for people."""
    return _with_words(b"BAD_FORMAT", "; ".join(map(str, refusal.errors)))


def forbidden(lack: str) -> bytes:
    """Say what the token lacks."""
    return _with_words(b"FORBIDDEN", lack)


def unauthorized(expiry: str) -> bytes:
    """Say when the token expired, if it has."""
    return _with_words(b"UNAUTHORIZED", expiry) if expiry else UNAUTHORIZED


def _with_words(word: bytes, words: str) -> bytes:
    text = visible(words).encode()
    if len(text) > _ERRORS_BYTES_MAX:
        text = text[: _ERRORS_BYTES_MAX - 3].decode(errors="ignore").encode() + b"..."
    return b"%b %b\r\n" % (word, text)


def advanced(time_ms: int) -> bytes:
    """Reply with the time of the virtual clock, in seconds since 1970."""
    return b"ADVANCED %d.%03d\r\n" % divmod(time_ms, 1_000)


_OUTCOMES: Final = MappingProxyType(
    {
        Outcome.CREATED: b"INSERTED %d\r\n",
        Outcome.KEPT: b"KEPT %d\r\n",
        Outcome.REPLACED: b"REPLACED %d\r\n",
        Outcome.PRESERVED: b"PRESERVED %d\r\n",
        Outcome.EXTENDED: b"EXTENDED %d\r\n",
    }
)


def put_outcome(job_id: int, outcome: Outcome) -> bytes:
    """Reply with the outcome of a put under a key."""
    return _OUTCOMES[outcome] % job_id


def reserved(job: Handed) -> bytes:
    """Reply with a reserved job."""
    return b"RESERVED %d %d\r\n%b\r\n" % (job[0], len(job[1]), job[1])


def reserved_run(jobs: list[Handed]) -> bytes:
    """Reply with several, one after the other."""
    return b"".join(
        [b"RESERVED %d %d\r\n%b\r\n" % (job_id, len(body), body) for job_id, body in jobs]
    )


def reserved_batch(jobs: list[Handed], store: Store, details: tuple[Detail, ...]) -> bytes:
    """Reply with a batch; each line has these details behind the number of bytes."""
    if not details:
        return b"RESERVED_BATCH %d\r\n%b" % (len(jobs), reserved_run(jobs))
    parts = [b"RESERVED_BATCH %d\r\n" % len(jobs)]
    for job_id, body in jobs:
        record = store.jobs.get(job_id)
        assert record is not None, "a job just handed out is there"
        words = _details_of(store, record, details)
        parts.append(b"RESERVED %d %d%b\r\n%b\r\n" % (job_id, len(body), words, body))
    return b"".join(parts)


def _details_of(store: Store, record: bytes, details: tuple[Detail, ...]) -> bytes:
    """Return the words for them, each after a space."""
    words = b""
    for detail in details:
        if detail is Detail.TTR:
            whole_s, ms = divmod(U64.unpack_from(record, TTR_AT)[0], 1_000)
            words += b" %d.%03d" % (whole_s, ms) if ms else b" %d" % whole_s
        elif detail is Detail.ATTEMPT:
            words += b" %d" % (attempts_of(record) + 1)
        elif detail is Detail.TUBE:
            words += b" %b" % store.topic_of(record).name.encode()
        else:
            words += b" key=%b" % key_of(record)
    return words


def found(job: Handed) -> bytes:
    """Reply with a peeked job."""
    return b"FOUND %d %d\r\n%b\r\n" % (job[0], len(job[1]), job[1])


def yaml_map(values: Mapping[str, object]) -> bytes:
    """Answer a mapping; the caller quotes."""
    return _yaml("".join(f"{key}: {value}\n" for key, value in values.items()))


def _yaml(text: str) -> bytes:
    return yaml_list(text.encode())


def yaml_list(rows: bytes) -> bytes:
    """Answer a list with these rows."""
    return ok(b"---\n" + rows)


def yaml_rows(topics: Iterable[Topic]) -> bytes:
    """Return the rows of a list that name these topics."""
    return "".join([f"- {topic.name}\n" for topic in topics]).encode()


def ok(body: bytes) -> bytes:
    """Answer something to be read."""
    return b"OK %d\r\n%b\r\n" % (len(body), body)


def jobs_page(page: Page, offset_ms: int) -> bytes:
    """Answer a page of jobs; `offset_ms` is how far the wall clock is ahead of delayd time.

    A key is quoted as in JSON, which is YAML too: it may hold whatever can be printed.
    """
    after = "" if page.after is None else f"{page.after.due_ms}:{page.after.job_id}"
    return _page(after, [_row(row, offset_ms) for row in page.rows])


def jobs_with_key(search: KeySearch, offset_ms: int) -> bytes:
    """Answer a page of jobs that have a key, with the tube of each."""
    rows = [_row(row, offset_ms, f" tube: {quoted(name)},") for name, row in search.found]
    return _page(search.after or "", rows)


def dead_reasons(reasons: DeadReasons, offset_ms: int) -> bytes:
    """Answer the dead letters of a tube by reason, the most frequent first."""
    rows = "".join(
        f"- {{id: {quoted(group.id)}, jobs: {group.jobs}, "
        f"first: {_epoch(group.first_ms + offset_ms)}, last: {_epoch(group.last_ms + offset_ms)}, "
        f"job: {group.job_id}, reason: {any_text(group.reason)}}}\n"
        for group in reasons.groups()
    )
    return _yaml(f"jobs: {reasons.jobs}\nreasons:{'' if rows else ' []'}\n{rows}")


def group_stats(row: GroupRow, now_ms: int, offset_ms: int) -> bytes:
    """Answer how a group is doing."""
    about = _group(row, now_ms, offset_ms)
    return yaml_map({**about, "name": any_text(row.name)})


def groups_page(groups: GroupList, now_ms: int, offset_ms: int) -> bytes:
    """Answer groups of a tube, each as JSON, which YAML reads too, and how many there are."""
    rows = "".join(f"- {any_text(_group(row, now_ms, offset_ms))}\n" for row in groups.rows)
    head = f"count: {groups.count}\nafter: {any_text(groups.after or '')}\n"
    return _yaml(f"{head}groups:{'' if rows else ' []'}\n{rows}")


def _group(row: GroupRow, now_ms: int, offset_ms: int) -> dict[str, object]:
    """Return what there is to say of a group; what is not so is left out."""
    since_ms, until_ms = row.ready_since_ms, row.paused_until_ms
    about = {
        "name": row.name,
        "jobs": row.jobs,
        "ready": row.ready,
        "reserved": row.reserved,
        "retrying": row.retrying,
        "weight": row.weight,
        "ready-age": None if since_ms is None else max(0, now_ms - since_ms) / 1_000,
        "paused-until": None if until_ms is None else (until_ms + offset_ms) / 1_000,
        "blocked": None if row.block is None else row.block.value,
    }
    return {name: value for name, value in about.items() if value is not None}


def _page(after: str, rows: list[str]) -> bytes:
    """Answer rows of jobs, and where the next page begins; empty: there is none."""
    return _yaml(f"after: {quoted(after)}\njobs:{'' if rows else ' []'}\n{''.join(rows)}")


def _row(row: Row, offset_ms: int, tube: str = "") -> str:
    return (
        f"- {{id: {row.job_id},{tube} state: {row.state.name.lower()}, pri: {row.priority}, "
        f"due: {_epoch(row.due_ms + offset_ms)}, key: {any_text(row.key)}}}\n"
    )


def calendar(counts: list[int], bin_ms: int) -> bytes:
    """Answer how many jobs come due in each span, by when it begins in seconds from now."""
    return _yaml(
        "".join(f"{_epoch(span * bin_ms)}: {count}\n" for span, count in enumerate(counts))
    )


def _epoch(time_ms: int) -> str:
    return f"{time_ms // 1_000}.{time_ms % 1_000:03}"


def quoted(text: str) -> str:
    """Put a string in quotes."""
    return f'"{text}"'


def any_text(text: object) -> str:
    """Write a client's text as JSON does, which YAML reads too; or texts in a list or object."""
    import json  # noqa: PLC0415 - takes 1 ms

    return json.dumps(text, ensure_ascii=False)
