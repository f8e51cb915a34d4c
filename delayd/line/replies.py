"""What the server says: every fixed reply, and the YAML of the statistics.

Clients compare words and sometimes whole dictionaries, so keys, their order, their quoting and
their number are exactly beanstalkd's (1.13: strings in quotes but for states).
"""

from collections.abc import Iterable, Mapping
from typing import Final

from delayd.core.errors import Refusal
from delayd.core.timekeeper import Handed
from delayd.core.views import JobView, TopicView

BURIED: Final = b"BURIED\r\n"
DEADLINE_SOON: Final = b"DEADLINE_SOON\r\n"
DELETED: Final = b"DELETED\r\n"
EXPECTED_CRLF: Final = b"EXPECTED_CRLF\r\n"
JOB_TOO_BIG: Final = b"JOB_TOO_BIG\r\n"
KICKED: Final = b"KICKED\r\n"
NOT_FOUND: Final = b"NOT_FOUND\r\n"
BAD_FORMAT: Final = b"BAD_FORMAT\r\n"
PAUSED: Final = b"PAUSED\r\n"
RELEASED: Final = b"RELEASED\r\n"
RESCHEDULED: Final = b"RESCHEDULED\r\n"
TIMED_OUT: Final = b"TIMED_OUT\r\n"
NO_JOB: Final = frozenset({DEADLINE_SOON, TIMED_OUT})
"""What a reserve is told that gets none."""

TOUCHED: Final = b"TOUCHED\r\n"
UNKNOWN_COMMAND: Final = b"UNKNOWN_COMMAND\r\n"


def refused(refusal: Refusal) -> bytes:
    """Say why something was not done."""
    return b"%b\r\n" % refusal.word.encode()


def reserved(job: Handed) -> bytes:
    """Say that a job is handed out."""
    return b"RESERVED %d %d\r\n%b\r\n" % (job[0], len(job[1]), job[1])


def reserved_run(jobs: list[Handed]) -> bytes:
    """Say that several are, one after the other."""
    return b"".join(
        [b"RESERVED %d %d\r\n%b\r\n" % (job_id, len(body), body) for job_id, body in jobs]
    )


def reserved_batch(jobs: list[Handed]) -> bytes:
    """Say that several are."""
    return b"RESERVED_BATCH %d\r\n%b" % (len(jobs), reserved_run(jobs))


def found(job: Handed) -> bytes:
    """Show a job."""
    return b"FOUND %d %d\r\n%b\r\n" % (job[0], len(job[1]), job[1])


def yaml_map(values: Mapping[str, object]) -> bytes:
    """Answer a mapping; the caller quotes."""
    return _yaml("".join(f"{key}: {value}\n" for key, value in values.items()))


def yaml_list(names: Iterable[str]) -> bytes:
    """Answer a list."""
    return _yaml("".join(f"- {name}\n" for name in names))


def _yaml(text: str) -> bytes:
    body = b"---\n" + text.encode()
    return b"OK %d\r\n%b\r\n" % (len(body), body)


def quoted(text: str) -> str:
    """Put a string in quotes."""
    return f'"{text}"'


def seconds_left(left_ms: int) -> int:
    """Return whole seconds; a moment after it began, a second is no longer whole."""
    return max(0, left_ms - 1) // 1_000


def stats_job(view: JobView) -> bytes:
    """Answer `stats-job`. `file` is 0: a job's bytes move from file to file, nobody keeps count."""
    return yaml_map(
        {
            "id": view.job_id,
            "tube": quoted(view.topic),
            "state": view.state.name.lower(),
            "pri": view.priority,
            "age": view.age_ms // 1_000,
            "delay": view.delay_ms // 1_000,
            "ttr": view.ttr_ms // 1_000,
            "time-left": seconds_left(view.left_ms),
            "file": 0,
            "reserves": view.reserves,
            "timeouts": view.timeouts,
            "releases": view.releases,
            "buries": view.buries,
            "kicks": view.kicks,
        },
    )


def stats_tube(view: TopicView) -> bytes:
    """Answer `stats-tube`."""
    return yaml_map(
        {
            "name": quoted(view.name),
            "current-jobs-urgent": view.urgent,
            "current-jobs-ready": view.ready,
            "current-jobs-reserved": view.reserved,
            "current-jobs-delayed": view.delayed,
            "current-jobs-buried": view.buried,
            "total-jobs": view.jobs_put,
            "current-using": view.using,
            "current-watching": view.watching,
            "current-waiting": view.waiting,
            "cmd-delete": view.deletes,
            "cmd-pause-tube": view.pauses,
            "pause": view.pause_ms // 1_000,
            "pause-time-left": seconds_left(view.pause_left_ms),
        },
    )
