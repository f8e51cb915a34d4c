"""`manage.py delayd_worker`: work on the tasks of a project.

The first SIGTERM or Ctrl-C ends the reserving, and tasks that run may finish within `--grace`
seconds. After that, or at the second signal, their jobs are given back without counting an attempt,
and the process ends at once.
"""

import logging
import signal
import sys
from argparse import ArgumentParser, BooleanOptionalAction
from types import FrameType
from typing import Any, Final

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.utils.autoreload import get_child_arguments

from delayd.client.errors import DelaydError, Forbidden
from delayd.client.reloader import Reloader
from delayd.client.signals import handled
from delayd.client.work_loop import PASSING
from delayd.client.worker import Worker
from delayd.django.backend import DelaydBackend
from delayd.django.contract import LIBRARY, task_backends
from delayd.django.options import near
from delayd.django.runner import TaskRunner

CONCURRENCY_MAX: Final = 1_000
GRACE_S: Final = 25.0
"""Below the 30 s that Kubernetes grants; systemd grants 90."""
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)
CUT_SHORT: Final = 130
"""The exit code after tasks were given back, as after Ctrl-C."""


class WorkerCommand(BaseCommand):  # type: ignore[misc]  # Django has no types
    """Work on tasks until SIGTERM or Ctrl-C."""

    help = (
        "Work on the tasks of a backend delayd.django.DelaydBackend. SIGTERM or Ctrl-C lets tasks"
        " finish; the second one gives their jobs back, without counting an attempt."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        add = parser.add_argument
        add("--backend", default="default", metavar="ALIAS", help="Of TASKS: default.")
        add("--queue", action="append", default=[], help="Only this queue; may be repeated.")
        add("--concurrency", type=int, default=8, help="Tasks at once, in threads: 8.")
        add(
            "--grace",
            type=float,
            default=GRACE_S,
            metavar="SECONDS",
            help=f"How long tasks may finish after the first signal: {GRACE_S:g}.",
        )
        add(
            "--reload",
            action=BooleanOptionalAction,
            default=settings.DEBUG,
            help="Start again when a Python file has changed; by default where DEBUG is on.",
        )

    def handle(self, *_arguments: object, **options: Any) -> None:
        """Work, or have a child process work. Raises CommandError with what is wrong."""
        backend = _backend_of(options["backend"])
        queues, concurrency, grace_s = options["queue"], options["concurrency"], options["grace"]
        if not 1 <= concurrency <= CONCURRENCY_MAX:
            raise CommandError(f"--concurrency is 1 to {CONCURRENCY_MAX}, and not {concurrency}")
        if grace_s < 0:
            raise CommandError(f"--grace is 0 or more seconds, and not {grace_s:g}")
        topics = _topics_of(backend, queues)
        if options["reload"]:
            command = [*get_child_arguments(), "--no-reload"]
            sys.exit(Reloader(command, self.stderr.write).run())
        _log_to_stderr()
        _check_scopes(backend, topics)
        self.stdout.write(f"working on {', '.join(topics)} with {concurrency} threads")
        self.stdout.flush()
        worker = Worker(backend.client, topics, TaskRunner(backend).work, concurrency=concurrency)
        try:
            _run(worker, grace_s)
        except KeyboardInterrupt:
            sys.exit(CUT_SHORT)
        except DelaydError as error:
            raise CommandError(str(error)) from error


Command = WorkerCommand  # the name under which Django looks for it


def _backend_of(alias: str) -> DelaydBackend:
    """Return a backend whose settings are right. Raises CommandError."""
    if alias not in task_backends.settings:
        there = ", ".join(task_backends.settings)
        raise CommandError(f"TASKS has no backend {alias!r}; there are {there}")
    backend = task_backends[alias]
    if not isinstance(backend, DelaydBackend):
        kind = f"{type(backend).__module__}.{type(backend).__qualname__}"
        raise CommandError(f"BACKEND of TASKS[{alias!r}] is {kind}, and not {DelaydBackend.PATH}")
    if backend.problems:
        where = f"TASKS[{alias!r}]['OPTIONS']"
        raise CommandError("\n".join(f"{where}: {each}" for each in backend.problems))
    return backend


def _topics_of(backend: DelaydBackend, queues: list[str]) -> list[str]:
    """Return the topics of these queues, or of all. Raises CommandError."""
    for queue in queues:
        if backend.queues and queue not in backend.queues:
            hint = near(queue, backend.queues) or f"; there are {', '.join(sorted(backend.queues))}"
            raise CommandError(f"QUEUES of TASKS[{backend.alias!r}] has no {queue!r}{hint}")
    try:
        return backend.topics(queues)
    except ImproperlyConfigured as error:
        raise CommandError(f"{error}, each with --queue") from None


def _check_scopes(backend: DelaydBackend, topics: list[str]) -> None:
    """Check that a failed task can be judged by its topic's policy. Raises CommandError."""
    try:
        for topic in topics:
            backend.client.policy(topic)
            backend.client.peek(topic)
    except Forbidden as error:
        needs = "reserve, delete, release, bury, peek, stats, and with results_ttl put"
        raise CommandError(f"{error}. The token of a worker needs {needs}.") from None
    except PASSING:
        return  # the worker waits for the daemon, and says so
    except DelaydError as error:
        raise CommandError(str(error)) from error


def _run(worker: Worker, grace_s: float) -> None:
    """Work until a signal. Raises KeyboardInterrupt when tasks were given back."""
    is_stopping = False

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal is_stopping
        if is_stopping:  # the second signal, or the end of the grace
            for each in SIGNALS:
                signal.signal(each, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise KeyboardInterrupt
        is_stopping = True
        worker.stop()
        signal.setitimer(signal.ITIMER_REAL, max(grace_s, 0.001))
        text = "stopping: tasks may finish for %g s; a second signal gives them back at once"
        logging.getLogger("delayd").warning(text, grace_s)

    with handled(stop, *SIGNALS):
        try:
            worker.run()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


def _log_to_stderr() -> None:
    """Have what becomes of tasks on standard error, where the settings have no place for it.

    Django's own settings show what its library logs only where DEBUG is on.
    """
    root = logging.getLogger()
    for name in ("delayd", LIBRARY):
        logger = logging.getLogger(name)
        is_shown = name.startswith("django.") and settings.DEBUG
        if not (logger.handlers or root.handlers or is_shown):
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
            logger.addHandler(handler)
            logger.setLevel(logging.INFO)
