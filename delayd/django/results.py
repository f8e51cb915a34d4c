"""Results that are kept for a while: a job for each, in a topic of their own.

Its key is the id of the result and its body the result (`bodies`). It is delayed by the time to
live, and put again with each change; when it comes due, nobody has to see it any more, and the
next worker that reserves from the topic acknowledges it.

    in the topic of results      the job of the task      the result is
    finished                     (gone, or buried)        as it was kept
    begun, or nothing            delayed, ready           READY
    begun, or nothing            reserved                 RUNNING
    begun, or nothing            buried                   FAILED
    nothing                      gone                     not there: its time is over

So a task that waits costs nothing: its own job tells.
"""

import datetime as dt
from typing import Final

from django.utils import timezone

from delayd.client.errors import Invalid, NotFound
from delayd.client.results import JobInfo
from delayd.client.sync import Client
from delayd.client.values import seconds
from delayd.django.bodies import amend, read, written
from delayd.django.contract import (
    AnyResult,
    TaskError,
    TaskResultDoesNotExist,
    TaskResultStatus,
)
from delayd.django.options import TaskOptions


class AttemptEnded(Exception):
    """An attempt that ended without a word of its worker, which was killed, or had no connection.

    The `exception_class` of a `TaskError` whose text is the daemon's.
    """


class ResultTooLong(Exception):
    """A return value that is longer than the daemon lets a job be, so it is not kept.

    The `exception_class` of a `TaskError`. The task has run.
    """


ENDED: Final = f"{AttemptEnded.__module__}.{AttemptEnded.__qualname__}"
STATUS_OF: Final = {
    "delayed": TaskResultStatus.READY,
    "ready": TaskResultStatus.READY,
    "reserved": TaskResultStatus.RUNNING,
    "buried": TaskResultStatus.FAILED,
}
"""By the state of the task's job."""


class KeptResults:
    """The results of a backend."""

    def __init__(self, client: Client, options: TaskOptions, alias: str) -> None:
        self._client = client
        self._options = options
        self._alias = alias

    def keep(self, result: AnyResult, until: dt.datetime | None = None) -> None:
        """Keep a result for its time to live, from now or from the time until which it waits.

        Raises DelaydError.
        """
        delay_s = seconds(self._options.results_ttl or 0)
        if until is not None:
            delay_s += max(0.0, (until - dt.datetime.now(dt.UTC)).total_seconds())
        topic = self._options.kept_in
        self._client.put(
            topic, written(result), key=result.id, delay=delay_s, on_conflict="replace"
        )

    def kept(self, result_id: str) -> AnyResult | None:
        """Return what was kept last; None: nothing, or its time is over. Raises NotATask."""
        try:
            job = self._client.find(self._options.kept_in, result_id)
        except (NotFound, Invalid):
            return None
        return None if job.state == "ready" else self._read(job)

    def find(self, result_id: str) -> AnyResult:
        """Return a result. Raises TaskResultDoesNotExist, NotATask and DelaydError."""
        kept = self.kept(result_id)
        if kept is None or not kept.is_finished:
            job = self._job_of_task(result_id)
            if job is not None:
                return _as_of(job, kept or self._read(job))
            kept = self.kept(result_id)  # it was finished meanwhile
        if kept is None or not kept.is_finished:
            raise TaskResultDoesNotExist(result_id)
        return kept

    def _job_of_task(self, result_id: str) -> JobInfo | None:
        options = self._options
        try:
            for job in self._client.find_key(result_id):
                if job.topic != options.kept_in and job.topic.startswith(options.topic_prefix):
                    return self._client.get(job.id)
        except (NotFound, Invalid):
            return None
        return None

    def _read(self, job: JobInfo) -> AnyResult:
        queue_name = job.topic.removeprefix(self._options.topic_prefix)
        body = job.body or b""
        return read(body, backend=self._alias, queue_name=queue_name, result_id=job.key)


def _as_of(job: JobInfo, result: AnyResult) -> AnyResult:
    """Return a result that is not finished as the job of its task tells."""
    amend(result, status=STATUS_OF[job.state])
    if result.status == TaskResultStatus.FAILED:
        failure = job.failure
        text = "" if failure is None else f"{failure.reason}: {failure.error}".removesuffix(": ")
        result.errors.append(TaskError(exception_class_path=ENDED, traceback=text))
        amend(result, finished_at=_local(failure.at if failure is not None else None))
    return result


def _local(time: dt.datetime | None) -> dt.datetime:
    """Return a time as the settings have times."""
    now: dt.datetime = timezone.now()
    if time is None:
        return now
    return time if timezone.is_aware(now) else time.astimezone().replace(tzinfo=None)
