"""The backend: puts a job for each task, and finds results.

queue_name   the topic, with the prefix of the options
run_after    when it is due
priority     100, the most urgent, to -100: 65436 to 65636 as the daemon counts
id           the key of the job, so that a put whose answer was lost is safe to repeat
"""

import datetime as dt
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

from django.apps import apps
from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils import timezone
from django.utils.crypto import get_random_string

from delayd import outbox
from delayd.client.errors import NotOnThisProtocol
from delayd.client.sync import Client
from delayd.client.tasks import NotATask
from delayd.django.bodies import written
from delayd.django.contract import (
    AnyResult,
    AnyTask,
    BaseTaskBackend,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_enqueued,
)
from delayd.django.options import client_of, read_options
from delayd.django.results import KeptResults

if TYPE_CHECKING:
    from delayd.client.values import PutOptions

NO_APP: Final = (
    '"delayd.django" is not in INSTALLED_APPS, so there is no manage.py delayd_worker, and what'
    " becomes of tasks may not be logged"
)
NO_TABLE: Final = (
    '"delayd.outbox.django" is not in INSTALLED_APPS, so manage.py migrate does not make the table'
    " of the outbox"
)
PRIORITY: Final = 65_536
"""Of a job whose task has the priority 0: what a put without one has."""


class DelaydBackend(BaseTaskBackend):
    """Tasks as jobs of a delayd daemon."""

    PATH = "delayd.django.DelaydBackend"
    """What BACKEND in `TASKS` says."""

    supports_defer = True
    supports_async_task = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.task_options, self.problems = read_options(
            self.options, queues=self.queues, databases=settings.DATABASES
        )
        """`problems` has a sentence for each mistake in OPTIONS: what uses them raises it."""
        self.supports_get_result = bool(self.task_options.kept_in)

    @property
    def client(self) -> Client:
        """The client of the daemon. Raises ImproperlyConfigured if OPTIONS has mistakes."""
        self._raise_problems()
        options = self.task_options
        url = options.url if isinstance(options.url, str) else tuple(options.url)
        return options.client or client_of(url, options.token)

    def _raise_problems(self) -> None:
        if self.problems:
            raise ImproperlyConfigured(f"TASKS[{self.alias!r}]: {'; '.join(self.problems)}")

    @property
    def result_store(self) -> KeptResults | None:
        """Where results are; None: they are not kept."""
        if not self.supports_get_result:
            return None
        return KeptResults(self.client, self.task_options, self.alias)

    def topics(self, queues: Collection[str] = ()) -> list[str]:
        """Return the topics that a worker on these queues, or on all, reserves from.

        That of results is among them, for those whose time is over. Raises ImproperlyConfigured if
        QUEUES is empty, which allows queues of all names, and none is given.
        """
        names = queues or self.queues
        if not names:
            raise ImproperlyConfigured(f"TASKS[{self.alias!r}]: QUEUES is empty: name the queues")
        topics = sorted(map(self.task_options.topic_of, names))
        return [*topics, self.task_options.kept_in] if self.supports_get_result else topics

    def enqueue(self, task: AnyTask, args: Any, kwargs: Mapping[str, Any]) -> AnyResult:
        """Put a job for the task; when it returns, the job is on the daemon's disk.

        It is put at once, also within a transaction of the database; with the option `outbox` it is
        a row of that transaction, and put when that is committed. Raises InvalidTask, TypeError or
        ValueError for arguments that JSON cannot hold, and DelaydError: then the task is not
        enqueued, or with `ConnectionLost` it is not known.
        """
        self.validate_task(task)
        result: AnyResult = TaskResult(
            task=task,
            id=get_random_string(32),
            status=TaskResultStatus(TaskResultStatus.READY),
            enqueued_at=timezone.now(),
            started_at=None,
            last_attempted_at=None,
            finished_at=None,
            args=args,
            kwargs=dict(kwargs),
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        self._put(task, result)
        task_enqueued.send(type(self), task_result=result)
        return result

    def _put(self, task: AnyTask, result: AnyResult) -> None:
        topic, body = self.task_options.topic_of(task.queue_name), written(result)
        options: PutOptions = {"key": result.id, "on_conflict": "keep"}
        options["priority"] = PRIORITY - task.priority
        if self.task_options.ttr is not None:
            options["ttr"] = self.task_options.ttr
        if (due := task.run_after) is not None:
            options["at"] = due = due if timezone.is_aware(due) else timezone.make_aware(due)
        if (database := self.task_options.outbox) is not None:
            self._raise_problems()
            with connections[database].cursor() as cursor:
                outbox.put(cursor, topic, body, **options)
            return
        try:
            self.client.put(topic, body, **options)
        except NotOnThisProtocol:  # the line protocol takes a delay only
            assert due is not None
            del options["at"]
            options["delay"] = max(dt.timedelta(0), due - dt.datetime.now(dt.UTC))
            self.client.put(topic, body, **options)

    def get_result(self, result_id: str) -> AnyResult:
        """Return a result. Raises NotImplementedError where `results_ttl` is not set.

        Raises TaskResultDoesNotExist for one whose time is over, or that never was.
        """
        if self.result_store is None:
            return super().get_result(result_id)
        try:
            return self.result_store.find(result_id)
        except NotATask as error:
            raise TaskResultDoesNotExist(f"{result_id}: {error}") from None

    def check(self, **_options: Any) -> list[checks.CheckMessage]:
        """Return an error for each mistake in OPTIONS, and a warning for each app that is missing.

        Asks no daemon.
        """
        where = f"TASKS[{self.alias!r}]['OPTIONS']"
        found = [checks.Error(f"{where}: {each}", id="delayd.E001") for each in self.problems]
        if not apps.is_installed("delayd.django"):
            found.append(checks.Warning(NO_APP, id="delayd.W001"))
        if self.task_options.outbox is not None and not apps.is_installed("delayd.outbox.django"):
            found.append(checks.Warning(NO_TABLE, id="delayd.W002"))
        return found
