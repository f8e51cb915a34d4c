"""The contract of tasks: Django's own from 6.0 on, and before that of django-tasks.

They are the same classes under the same names, but for the error of a task that is refused.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from django import VERSION
from django.core.exceptions import ImproperlyConfigured

NOT_INSTALLED: Final = (
    "Django {version} has no tasks of its own: install django-tasks 0.12 or later, or Django 6.0"
)
TOO_OLD: Final = "delayd.django needs django-tasks 0.12 or later, and an older one is installed"


def _library() -> str:
    """Return the name of the package that has the contract. Raises ImproperlyConfigured."""
    if VERSION >= (6, 0):
        return "django.tasks"
    try:
        base: Any = import_module("django_tasks.base")
    except ModuleNotFoundError as error:
        if error.name != "django_tasks":
            raise
        version = ".".join(map(str, VERSION[:2]))
        raise ImproperlyConfigured(NOT_INSTALLED.format(version=version)) from None
    if not hasattr(base.TaskResultStatus, "SUCCESSFUL"):
        raise ImproperlyConfigured(TOO_OLD)
    return "django_tasks"


LIBRARY: Final = _library()
"""`django.tasks` or `django_tasks`; its logger has the same name."""

if TYPE_CHECKING:
    from django_tasks import task_backends
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django_tasks.exceptions import InvalidTaskError as InvalidTask
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued, task_finished, task_started
    from django_tasks.utils import normalize_json

    AnyTask = Task[Any, Any]
    AnyResult = TaskResult[Any]
else:
    BaseTaskBackend = import_module(f"{LIBRARY}.backends.base").BaseTaskBackend
    task_backends = import_module(LIBRARY).task_backends
    _base, _errors = import_module(f"{LIBRARY}.base"), import_module(f"{LIBRARY}.exceptions")
    Task, TaskContext, TaskError = _base.Task, _base.TaskContext, _base.TaskError
    TaskResult, TaskResultStatus = _base.TaskResult, _base.TaskResultStatus
    AnyTask, AnyResult = Task, TaskResult  # Django's are not generic
    normalize_json = _base.normalize_json
    InvalidTask = getattr(_errors, "InvalidTask", None) or _errors.InvalidTaskError
    TaskResultDoesNotExist = _errors.TaskResultDoesNotExist
    _signals = import_module(f"{LIBRARY}.signals")
    task_enqueued, task_started = _signals.task_enqueued, _signals.task_started
    task_finished = _signals.task_finished

__all__ = [
    "LIBRARY",
    "AnyResult",
    "AnyTask",
    "BaseTaskBackend",
    "InvalidTask",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "normalize_json",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
]
