"""A task with its arguments, and what has become of it, as the JSON of a job.

    {"task": "shop.tasks.send", "args": ["ada"], "kwargs": {}, "id": "4Qx...", "queue": "default",
     "enqueued_at": "2030-01-01T09:00:00+00:00"}

The first three are those of `delayd.client.tasks`; they are enough, so that a schedule or a program
in any language can put one. A kept result has the other members of `RECORD` too. What stands for
nothing, such as a priority of 0, is left out; members that are not known are passed over.
"""

import datetime as dt
import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from django.utils.module_loading import import_string

from delayd.client.tasks import NotATask
from delayd.client.values import json_bytes
from delayd.django.contract import (
    AnyResult,
    AnyTask,
    InvalidTask,
    Task,
    TaskError,
    TaskResult,
    TaskResultStatus,
)

TRACEBACK_CHARS_MAX: Final = 4_000
"""Of each error that is kept: its end, which names the exception."""
ERRORS_MAX: Final = 10
"""So many errors are kept, the last ones."""
WORKERS_MAX: Final = 100
"""The same of workers, one for each attempt."""


def written(result: AnyResult) -> bytes:
    """Write a task that waits, or its result. Raises TypeError or ValueError: JSON cannot hold it.

    >>> from types import SimpleNamespace as Any_
    >>> task = Any_(module_path="shop.tasks.send", queue_name="mail", priority=0, run_after=None)
    >>> fields = dict.fromkeys(("enqueued_at", "started_at", "last_attempted_at", "finished_at"))
    >>> written(Any_(task=task, id="4Qx", args=["ada"], kwargs={}, status="READY", **fields,
    ...              worker_ids=[], errors=[], _return_value=None))
    b'{"task":"shop.tasks.send","args":["ada"],"kwargs":{},"id":"4Qx","queue":"mail"}'
    """
    task = result.task
    more = {
        "priority": task.priority,
        "run_after": _moment(task.run_after),
        "enqueued_at": _moment(result.enqueued_at),
        "status": "" if result.status == TaskResultStatus.READY else str(result.status),
        "started_at": _moment(result.started_at),
        "last_attempted_at": _moment(result.last_attempted_at),
        "finished_at": _moment(result.finished_at),
        "worker_ids": result.worker_ids[-WORKERS_MAX:],
        "errors": [_written_error(error) for error in result.errors[-ERRORS_MAX:]],
    }
    return json_bytes(
        {
            "task": task.module_path,
            "args": result.args,
            "kwargs": result.kwargs,
            "id": result.id,
            "queue": task.queue_name,
            **{name: value for name, value in more.items() if value},
            **_returned(result),
        }
    )


def read(body: bytes, *, backend: str, queue_name: str, result_id: str) -> AnyResult:
    """Read a body for the backend of that alias. Raises NotATask, with the reason.

    `queue_name` and `result_id` are those of its job, which one that another program has written
    may leave out.
    """
    data = _members(body)
    task = _task(data["task"])
    changes = {"queue_name": data["queue"] or queue_name, "run_after": data["run_after"]}
    try:
        task = task.using(priority=data["priority"], backend=backend, **changes)
    except InvalidTask as error:
        raise NotATask(f"task {data['task']!r}: {error}") from None
    try:
        status = TaskResultStatus(data["status"] or TaskResultStatus.READY)
        result: AnyResult = TaskResult(
            task=task,
            id=data["id"] or result_id,
            status=status,
            enqueued_at=data["enqueued_at"],
            started_at=data["started_at"],
            finished_at=data["finished_at"],
            last_attempted_at=data["last_attempted_at"],
            args=data["args"],
            kwargs=data["kwargs"],
            backend=backend,
            errors=[_error(each) for each in data["errors"]],
            worker_ids=[str(each) for each in data["worker_ids"]],
        )
    except (ValueError, TypeError, KeyError) as error:
        raise NotATask(f"the result of {data['task']!r} cannot be read: {error!r}") from None
    return amend(result, _return_value=data["return_value"])


def amend(result: AnyResult, **values: Any) -> AnyResult:
    """Change fields of a result, which is frozen for all but a backend; return it."""
    for name, value in values.items():
        object.__setattr__(result, name, value)
    return result


# --- Members -------------------------------------------------------------------------------------


def _moment(time: dt.datetime | None) -> str:
    return "" if time is None else time.isoformat()


def _returned(result: AnyResult) -> dict[str, Any]:
    is_done = result.status == TaskResultStatus.SUCCESSFUL
    return {"return_value": result.return_value} if is_done else {}


def _written_error(error: TaskError) -> dict[str, str]:
    text = error.traceback[-TRACEBACK_CHARS_MAX:].encode(errors="replace").decode()
    return {"exception": error.exception_class_path, "traceback": text}


def _error(members: Mapping[str, Any]) -> TaskError:
    path, text = str(members["exception"]), str(members["traceback"])
    return TaskError(exception_class_path=path, traceback=text)


def _read_moment(text: str) -> dt.datetime | None:
    return dt.datetime.fromisoformat(text) if text else None


def _plain(value: Any) -> Any:
    return value


KINDS: Final[Mapping[type, str]] = MappingProxyType(
    {str: "a text", int: "a whole number", list: "a list", dict: "an object", object: "anything"}
)
RECORD: Final[Mapping[str, tuple[type, object, Callable[[Any], Any]]]] = MappingProxyType(
    {
        "task": (str, None, _plain),
        "args": (list, (), list),
        "kwargs": (dict, MappingProxyType({}), dict),
        "id": (str, "", _plain),
        "queue": (str, "", _plain),
        "priority": (int, 0, _plain),
        "run_after": (str, "", _read_moment),
        "enqueued_at": (str, "", _read_moment),
        "status": (str, "", _plain),
        "started_at": (str, "", _read_moment),
        "last_attempted_at": (str, "", _read_moment),
        "finished_at": (str, "", _read_moment),
        "worker_ids": (list, (), list),
        "errors": (list, (), list),
        "return_value": (object, None, _plain),
    }
)
"""Members of a body: what each is in JSON, what one that is missing is, how it is read."""


def _members(body: bytes) -> dict[str, Any]:
    """Return all members. Raises NotATask for a body that is no task, or has a wrong member."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        raise NotATask("the body of the job is not JSON") from None
    if not isinstance(data, dict) or not isinstance(data.get("task"), str):
        raise NotATask('the body of the job is not {"task": "MODULE.NAME", "args": [], ...}')
    members = {}
    for name, (kind, missing, reader) in RECORD.items():
        value = data.get(name, missing)
        if name in data and not isinstance(value, kind):
            raise NotATask(f"{name!r} in the body must be {KINDS[kind]}, and is {value!r:.80}")
        try:
            members[name] = reader(value)
        except ValueError:
            time = "a time, such as 2030-01-01T09:00:00Z"
            raise NotATask(f"{name!r} in the body must be {time}, and is {value!r:.80}") from None
    return members


def _task(path: str) -> AnyTask:
    """Return the task of that path. Raises NotATask."""
    try:
        task = import_string(path)
    except ImportError as error:
        raise NotATask(f"there is no task {path!r:.200}: {error}") from None
    except (Exception, SystemExit) as error:  # it may name a program, such as `unittest.__main__`
        raise NotATask(f"task {path!r:.200} cannot be imported: {error!r:.500}") from error
    if not isinstance(task, Task):
        raise NotATask(f"{path!r:.200} is no task: decorate the function with @task")
    return task
