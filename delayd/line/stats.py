"""`stats`, `stats-job` and `stats-tube` in beanstalkd's words, and the counters of the protocol.

Clients compare words and sometimes whole dictionaries, so keys, their order, their quoting and
their number are exactly beanstalkd's. Its strings are in quotes but for states; those of 1.12 are
bare (`Compat`).
"""

import enum
import os
import resource
from collections.abc import Callable
from typing import Final, NamedTuple

from delayd import __version__
from delayd.build_kind import is_compiled
from delayd.compat import Compat
from delayd.core.engine import Engine
from delayd.core.job_parts import (
    Attempt,
    AttemptOutcome,
    Reason,
    attempts_of,
    failure_of,
    history_of,
    key_of,
    note_of,
    retry_of,
    tally_of,
    target_of,
    texts_of,
)
from delayd.core.job_record import HEADER, State
from delayd.core.policy import Policy
from delayd.core.session import Session
from delayd.core.stats.counters import Operation
from delayd.core.stats.refusals import Refusals
from delayd.core.stats.totals import StateTotals
from delayd.core.store import Store
from delayd.core.targets import masked, own_target
from delayd.core.topic import Topic
from delayd.durations import duration_text
from delayd.line.replies import any_text, quoted, yaml_map

COUNTED: Final = (
    *("put", "peek", "peek-ready", "peek-delayed", "peek-buried"),
    *("reserve", "reserve-with-timeout", "delete", "release", "use", "watch", "ignore"),
    *("bury", "kick", "touch", "stats", "stats-job", "stats-tube"),
    *("list-tubes", "list-tube-used", "list-tubes-watched", "pause-tube"),
)
"""The commands that `stats` counts, in its order; beanstalkd counts no others."""


def instance_id() -> str:
    """Return a name for this run: hex that no client takes for a number (a lone `e` could be)."""
    return f"d{os.urandom(7).hex()}d"


class LogFigures(NamedTuple):
    """The log's part of `stats`, in beanstalkd's words; zeros without a journal."""

    oldest_index: int = 0
    """The number of the oldest file."""
    current_index: int = 0
    """The number of the file that is being written."""
    records_migrated: int = 0
    """Jobs that were copied, so that older files could go; since the start, as the next."""
    records_written: int = 0
    max_bytes: int = 0
    """The configured size; beanstalkd shows it with and without a log."""


class Stats:
    """What happened on the line since the daemon started."""

    def __init__(
        self,
        engine: Engine,
        started_ms: int,
        log_figures: Callable[[], LogFigures] = LogFigures,
        refusals: Refusals | None = None,
        *,
        compat: Compat = Compat.V1_13,
    ) -> None:
        """Start at zero; `refusals` counts what every front end refuses.

        `compat` is the version of beanstalkd in the replies.
        """
        self._engine = engine
        self._started_ms = started_ms
        self._log_figures = log_figures
        self._refusals = Refusals() if refusals is None else refusals
        self._instance = instance_id()
        self.compat = compat
        self.counts: dict[str, int] = dict.fromkeys(COUNTED, 0)
        self.connections = 0
        self.connections_total = 0
        self.producers = 0
        self.workers = 0

    def note_connection(self) -> None:
        """Count a new client."""
        self.connections += 1
        self.connections_total += 1

    def note_producer(self, session: Session) -> None:
        """Count a client that puts jobs, once."""
        if not session.produces:
            session.produces = True
            self.producers += 1

    def note_worker(self, session: Session) -> None:
        """Count a client that asks for jobs, once."""
        if not session.works:
            session.works = True
            self.workers += 1

    def forget(self, session: Session) -> None:
        """Stop counting a closed client."""
        self.connections -= 1
        self.producers -= session.produces
        self.workers -= session.works

    def note_refusal(self, reason: str, times: int = 1) -> None:
        """Count what was refused: a word of the wire, or why a connection was closed.

        Every refusal of this package is counted here.
        """
        self._refusals.note(reason, times)

    def report(self, now_ms: int, totals: StateTotals | None = None) -> dict[str, object]:
        """Return beanstalkd's 51 values, in its order; then delayd's own.

        `totals` is the sum over all topics, if it was taken before: O(topics).
        Those are its version, but not for clients of 1.12, and use against caps if there are any.
        Clients choose their commands by `version`, so that is beanstalkd's.
        """
        engine = self._engine
        text = self.compat.name_text
        topics = engine.store.topics.listing
        if totals is None:
            totals = StateTotals()
            totals.add_all(topics)
        log = self._log_figures()
        spent = resource.getrusage(resource.RUSAGE_SELF)
        machine = os.uname()
        own_waits = sum(len(topic.waiters) for topic in engine.store.topics.internal.values())
        return {
            "current-jobs-urgent": totals.urgent,
            "current-jobs-ready": totals.ready,
            "current-jobs-reserved": totals.reserved,
            "current-jobs-delayed": totals.delayed,
            "current-jobs-buried": totals.buried,
            **{f"cmd-{name}": count for name, count in self.counts.items()},
            "job-timeouts": engine.store.counters.operations[Operation.TIMEOUT],
            "total-jobs": engine.store.counters.jobs_put,
            "max-job-size": engine.body_bytes_max,
            "current-tubes": totals.topics,
            "current-connections": self.connections,
            "current-producers": self.producers,
            "current-workers": self.workers,
            "current-waiting": len(engine.waits) - own_waits,
            "total-connections": self.connections_total,
            "pid": os.getpid(),
            "version": f'"{self.compat.value}"',
            "rusage-utime": f"{spent.ru_utime:.6f}",
            "rusage-stime": f"{spent.ru_stime:.6f}",
            "uptime": (now_ms - self._started_ms) // 1_000,
            "binlog-oldest-index": log.oldest_index,
            "binlog-current-index": log.current_index,
            "binlog-records-migrated": log.records_migrated,
            "binlog-records-written": log.records_written,
            "binlog-max-size": log.max_bytes,
            "draining": "true" if engine.draining else "false",
            "id": self._instance,
            "hostname": text(machine.nodename),
            "os": text(machine.version),
            "platform": text(machine.machine),
            **({} if self.compat is Compat.V1_12 else {"delayd-version": f'"{__version__}"'}),
            **self._caps(),
        }

    def beside_jobs(self, now_ms: int) -> dict[str, object]:
        """Return the daemon's figures except those of jobs, as plain values; in seconds."""
        log = self._log_figures()
        spent = resource.getrusage(resource.RUSAGE_SELF)
        machine = os.uname()
        return {
            "version": __version__,
            "compiled": is_compiled(),
            "id": self._instance,
            "pid": os.getpid(),
            "uptime": (now_ms - self._started_ms) / 1_000,
            "cpu": {"user": spent.ru_utime, "system": spent.ru_stime},
            "machine": {
                "hostname": machine.nodename,
                "os": machine.version,
                "platform": machine.machine,
            },
            "journal": {
                "oldest_file": log.oldest_index,
                "current_file": log.current_index,
                "jobs_copied": log.records_migrated,
                "records_written": log.records_written,
                "segment_bytes": log.max_bytes,
            },
            "line": {
                "connections": self.connections,
                "connections_total": self.connections_total,
                "producers": self.producers,
                "workers": self.workers,
                "commands": {**self.counts},
            },
        }

    def _caps(self) -> dict[str, object]:
        """Return the totals of all topics and the configured caps."""
        engine = self._engine
        caps = {"jobs-max": engine.jobs_max, "bytes-max": engine.bytes_max}
        if engine.jobs_max is None and engine.bytes_max is None:
            return {}
        return {
            "current-jobs": engine.log_space.jobs,
            "current-bytes": engine.record_bytes,
            **{name: cap for name, cap in caps.items() if cap is not None},
        }


def stats_job(
    store: Store,
    job_id: int,
    record: bytes,
    state: State,
    now_ms: int,
    compat: Compat,
    *,
    sees_all: bool,
) -> bytes:
    """Answer `stats-job`. `file` is 0: a job's bytes move from file to file.

    `sees_all`: also what may be secret of a job's target, and of its answer.
    Fields that beanstalkd does not have come last, and only where they apply.
    """
    _, due_ms, created_ms, ttr_ms, priority, _, _, _ = HEADER.unpack_from(record)
    tally = tally_of(record)
    ends_ms = due_ms if state is State.DELAYED else now_ms
    if state is State.RESERVED:
        ends_ms = store.leases.sessions[job_id].deadlines[job_id]
    return yaml_map(
        {
            "id": job_id,
            "tube": compat.name_text(store.topic_of(record).name),
            "state": state.name.lower(),
            "pri": priority,
            "age": max(0, now_ms - created_ms) // 1_000,
            "delay": tally.delay_ms // 1_000,
            "ttr": ttr_ms // 1_000,
            "time-left": seconds_left(ends_ms - now_ms),
            "file": 0,
            "reserves": tally.reserves + (state is State.RESERVED),
            "timeouts": tally.timeouts,
            "releases": tally.releases,
            "buries": tally.buries,
            "kicks": tally.kicks,
            **_job_details(record, state, now_ms, sees_all=sees_all),
        }
    )


def _job_details(record: bytes, state: State, now_ms: int, *, sees_all: bool) -> dict[str, object]:
    values: dict[str, object] = {}
    retry, failure, note = retry_of(record), failure_of(record), note_of(record)
    if key := key_of(record):
        values["key"] = any_text(key.decode())
    if retry is not None:
        values["retry"] = quoted(" ".join(map(duration_text, retry.steps_ms)))
        values["max-attempts"] = retry.attempts_max
        values["jitter-percent"] = retry.jitter_percent
    if retry is not None or failure is not None:
        values["attempts"] = attempts_of(record) + (state is State.RESERVED)
    if failure is not None:
        values["failure"] = _words_of(Reason(failure.reason))
        values["failure-age"] = max(0, now_ms - failure.failed_ms) // 1_000
    if note is not None and note.origin:
        values["moved-from"] = quoted(note.origin)
    if note is not None and note.error:
        is_answer = failure is not None and failure.reason == Reason.PUSH_FAILED
        error = note.error.partition("\n")[0] if is_answer and not sees_all else note.error
        values["error"] = any_text(error)
    if packed := target_of(record):
        target = own_target(packed)
        values["url"] = any_text((target if sees_all else masked(target)).url)
        values["method"] = quoted(target.method)
    values.update((name, any_text(text)) for name, text in texts_of(record).items())
    # Of a job whose ttr has run out without a rule, and no more, beanstalkd tells nothing else.
    if failure is not None and (history := history_of(record)):
        values["history"] = any_text([_attempt(each, now_ms) for each in history])
    return values


def _attempt(attempt: Attempt, now_ms: int) -> dict[str, object]:
    """Return an attempt; what is not known is left out."""
    about = {
        "age": max(0, now_ms - attempt.ended_ms) // 1_000,
        "lasted": attempt.lasted_ms / 1_000 or None,
        "who": attempt.who or None,
        "reason": _words_of(Reason(attempt.reason)),
        "outcome": _words_of(AttemptOutcome(attempt.outcome)),
        "error": attempt.error or None,
    }
    return {name: value for name, value in about.items() if value is not None}


def seconds_left(left_ms: int) -> int:
    """Return whole seconds, rounded down: a second that has begun to pass does not count."""
    return max(0, left_ms - 1) // 1_000


def stats_tube(topic: Topic, now_ms: int, compat: Compat) -> bytes:
    """Answer `stats-tube`; of a tube with a policy also how much of its caps is used."""
    until_ms = topic.paused_until_ms
    return yaml_map(
        {
            "name": compat.name_text(topic.name),
            "current-jobs-urgent": topic.queues.ready.urgent,
            "current-jobs-ready": len(topic.queues.ready),
            "current-jobs-reserved": topic.reserved,
            "current-jobs-delayed": topic.delayed,
            "current-jobs-buried": len(topic.queues.buried),
            "total-jobs": topic.jobs_put,
            "current-using": topic.users,
            "current-watching": topic.clients_watching,
            "current-waiting": len(topic.clients_waiting),
            "cmd-delete": topic.deletes,
            "cmd-pause-tube": topic.pauses,
            "pause": topic.pause_ms // 1_000,
            "pause-time-left": 0 if until_ms is None else seconds_left(until_ms - now_ms),
            **({} if topic.policy is None else _policy_details(topic, topic.policy)),
            **({"current-groups": count} if (count := topic.queues.ready.group_count) else {}),
        }
    )


def _policy_details(topic: Topic, policy: Policy) -> dict[str, object]:
    caps = {
        "jobs-max": policy.jobs_max,
        "bytes-max": policy.bytes_max,
        "body-bytes-max": policy.body_bytes_max,
        "reserved-max": policy.reserved_max,
        "rate-per-s": policy.rate_per_s,
        "group-reserved-max": policy.group_reserved_max,
        "group-rate-per-s": policy.group_rate_per_s,
        "group-jobs-max": policy.group_jobs_max,
    }
    return {
        "policy": _words_of(topic.policy_source),
        "current-jobs": topic.jobs,
        "current-bytes": topic.bytes,
        **{name: cap for name, cap in caps.items() if cap is not None},
    }


def _words_of(member: enum.Enum) -> str:
    return member.name.lower().replace("_", "-")
