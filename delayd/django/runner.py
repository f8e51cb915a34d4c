"""One attempt at a task: read its job, call it, and report what has become of it.

    the task returns            its job is acknowledged                    SUCCESSFUL
    it raises, no retry rule    nacked as dead: buried, or moved           FAILED
    it raises, under a rule     nacked: it waits for the next step         READY
                                or it is exhausted: buried, or moved       FAILED
    the job is no task          buried, with the reason

The retry rule is that of the topic's policy, or the job's own. Signals are sent so that a receiver
that raises is logged by Django: it neither fails a task nor repeats it.
"""

import logging
import os
import socket
from collections.abc import Collection
from copy import copy
from threading import current_thread, main_thread
from traceback import format_exception
from typing import Final

from django.db import close_old_connections, reset_queries
from django.utils import timezone

from delayd.client.errors import BodyTooBig, DelaydError, NotFound
from delayd.client.jobs import described
from delayd.client.results import Became
from delayd.client.sync import Job
from delayd.client.tasks import NotATask
from delayd.client.values import json_bytes
from delayd.client.worker import from_own
from delayd.django.backend import DelaydBackend
from delayd.django.bodies import amend, read
from delayd.django.contract import (
    LIBRARY,
    AnyResult,
    TaskContext,
    TaskError,
    TaskResultStatus,
    normalize_json,
    task_backends,
    task_finished,
    task_started,
)
from delayd.django.results import ResultTooLong

UNKNOWN: Final = "unknown"
"""Stands for the workers of attempts before, where results are not kept."""
NOT_OF_THE_TASK: Final = frozenset(
    ("delayd", "asgiref", "asyncio", "concurrent", "threading", f"{LIBRARY}.base")
)
"""Packages and a module whose functions stand between a worker and a task."""
TOO_LONG: Final = f"{__package__}.results.{ResultTooLong.__name__}"
AGAIN: Final = "attempt %d at task id=%s path=%s failed, and it is tried again"
NOT_KEPT: Final = "the result of task id=%s path=%s could not be kept: %s"


def drain(alias: str = "default", queues: Collection[str] = ()) -> int:
    """Run all tasks of these queues, or of all, that are ready, and return how many.

    In the calling thread, for tests: with a `FakeDelayd`, whose client is an option of the backend.
    Tasks that these enqueue are run too. One that fails raises nothing: its result tells.
    """
    backend = task_backends[alias]
    if not isinstance(backend, DelaydBackend):
        raise TypeError(f"the backend of TASKS[{alias!r}] is {type(backend).__name__}")
    runner, count = TaskRunner(backend), 0
    while jobs := backend.client.reserve_many(backend.topics(queues), limit=1, timeout=0):
        with jobs[0] as job:
            count += runner.work(job)
    return count


class TaskRunner:
    """Works on the jobs of a backend, in as many threads as its caller has."""

    def __init__(self, backend: DelaydBackend) -> None:
        self._backend = backend
        self._client = backend.client
        self._results = backend.result_store
        self._options = backend.task_options
        self._worker_id = f"{socket.gethostname()[:48]}:{os.getpid()}"
        self._log = logging.getLogger("delayd")

    def work(self, job: Job) -> bool:
        """Make an attempt, and tell whether it was one at a task.

        The job is left as it is if its task has returned, or if it was a result whose time is over:
        the caller acknowledges it. Raises NotATask once the job is buried, and DelaydError if the
        daemon was not told of a failure.
        """
        if job.topic == self._options.kept_in:
            return False
        reset_queries()
        close_old_connections()
        try:
            self._attempt(job, self._read(job))
        finally:
            close_old_connections()
        return True

    def _read(self, job: Job) -> AnyResult:
        """Read a job. Raises NotATask for one that is none, and buries it."""
        queue_name = job.topic.removeprefix(self._options.topic_prefix)
        try:
            return read(
                job.body,
                backend=self._backend.alias,
                queue_name=queue_name,
                result_id=job.key or f"job-{job.id}",
            )
        except NotATask as error:
            job.bury(error=str(error))
            raise

    def _attempt(self, job: Job, result: AnyResult) -> None:
        task, sender, now = result.task, type(self._backend), timezone.now()
        attempt = job.attempt or 1
        if attempt > 1 and (before := self._kept(result.id)) is not None:
            amend(result, started_at=before.started_at, errors=before.errors)
            amend(result, worker_ids=before.worker_ids)
        unknown = [UNKNOWN] * (attempt - 1 - len(result.worker_ids))
        amend(result, worker_ids=[*unknown, *result.worker_ids, self._worker_id])
        amend(result, status=TaskResultStatus.RUNNING, last_attempted_at=now)
        amend(result, started_at=result.started_at or now)
        self._keep(result)
        task_started.send_robust(sender, task_result=result)
        try:
            context = (TaskContext(task_result=result),) if task.takes_context else ()
            value = normalize_json(task.call(*context, *result.args, **result.kwargs))
            if self._results is not None:
                json_bytes(value)  # raises for what it cannot hold, such as infinity
        except BaseException as error:  # as the contract has it: SystemExit too
            if isinstance(error, KeyboardInterrupt) and current_thread() is main_thread():
                raise  # somebody ends `drain`
            error.__traceback__ = from_own(error.__traceback__, NOT_OF_THE_TASK)
            self._failed(job, result, error)
        else:
            amend(result, status=TaskResultStatus.SUCCESSFUL, _return_value=value)
            amend(result, finished_at=timezone.now())
            self._keep(result)
            task_finished.send_robust(sender, task_result=result)

    def _failed(self, job: Job, result: AnyResult, error: BaseException) -> None:
        """Report a failed attempt; called while the exception is handled, for what logs it."""
        kind = type(error)
        path, text = f"{kind.__module__}.{kind.__qualname__}", "".join(format_exception(error))
        result.errors.append(TaskError(exception_class_path=path, traceback=text))
        again = self._report(job, described(error))
        if again is not None:
            amend(result, status=TaskResultStatus.READY)
            self._keep(result, again)
            about = len(result.worker_ids), result.id, result.task.module_path
            self._log.warning(AGAIN, *about, exc_info=error)
            return
        amend(result, status=TaskResultStatus.FAILED, finished_at=timezone.now())
        self._keep(result)
        task_finished.send_robust(type(self._backend), task_result=result)

    def _report(self, job: Job, error: str) -> Became | None:
        """End the attempt as failed; return how the job goes on, or None if it is a dead letter."""
        has_rule = self._has_rule(job)
        became = job.nack(error=error, dead=not has_rule)  # else it would be ready at once
        if not has_rule:
            return None
        if became.state is None:  # on the line the reply has none
            try:
                now = self._client.get(job.id)
            except NotFound:  # another worker was faster
                return became
            became = Became(now.state, now.topic, now.due)
        return None if became.state == "buried" or became.topic != job.topic else became

    def _has_rule(self, job: Job) -> bool:
        """Tell whether a failed attempt at the job is judged by a retry rule."""
        policy = self._client.policy(job.topic).policy
        if {"retry", "max_attempts", "push"} & policy.keys():
            return True
        own = self._client.get(job.id).details
        return any(own.get(name) for name in ("retry", "max_attempts", "max-attempts"))

    # --- Results ---------------------------------------------------------------------------------

    def _keep(self, result: AnyResult, again: Became | None = None) -> None:
        """Keep a result; that it cannot be is logged, and changes nothing for the task."""
        if self._results is None:
            return
        try:
            try:
                self._results.keep(result, None if again is None else again.due)
            except BodyTooBig as error:
                self._results.keep(_shortened(result, error))
                raise
        except DelaydError as error:
            self._log.error(NOT_KEPT, result.id, result.task.module_path, error)

    def _kept(self, result_id: str) -> AnyResult | None:
        try:
            return None if self._results is None else self._results.kept(result_id)
        except (DelaydError, NotATask) as error:
            self._log.warning("what was kept of task id=%s cannot be read: %s", result_id, error)
            return None


def _shortened(result: AnyResult, error: BodyTooBig) -> AnyResult:
    """Return what is kept in place of a result that is too long; a value that is lost is said."""
    short = amend(copy(result), args=[], kwargs={}, errors=result.errors[-1:])
    if result.status == TaskResultStatus.SUCCESSFUL:
        lost = TaskError(exception_class_path=TOO_LONG, traceback=f"the task has run: {error}")
        amend(short, status=TaskResultStatus.FAILED, errors=[lost])
    return short
