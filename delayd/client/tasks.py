"""Tasks: functions that a worker calls later, in another process.

    app = Tasks(Client("http://127.0.0.1:11301"))

    @app.task("mail", retry="15s 3m", ttr="5m")
    def send(to: str, subject: str = "Hello") -> None: ...

    send.put("ada")                                         # as soon as a worker is free
    send.put("ada", subject="Hi", delay="1h", key="ada")    # in an hour
    send("ada")                                             # now, in this process

`delayd worker MODULE:app` works on them. The body of a job is JSON and names the task with its
arguments, so that other programs can put tasks too:

>>> written("mail", ("ada",), {"subject": "Hi"})
b'{"task":"mail","args":["ada"],"kwargs":{"subject":"Hi"}}'

The client may be either kind, and so may the functions: a `Client` has threads, which run coroutine
functions to their end; an `AsyncClient` awaits them, and has threads for the others.
"""

import contextlib
import inspect
import logging
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextvars import ContextVar, copy_context
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    NoReturn,
    ParamSpec,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from delayd.client.jobs import Reserved
from delayd.client.results import PutResult, ScheduleInfo
from delayd.client.signals import handled
from delayd.client.steps import Steps, awaited, carried_out
from delayd.client.sync import Client, Job
from delayd.client.values import Duration, Moment, PutOptions, ScheduleOptions, json_bytes

if TYPE_CHECKING:  # without asyncio none of it is imported
    from types import FrameType

    from delayd.client.aio import AsyncClient, AsyncJob
    from delayd.client.worker import AsyncWorker, Trouble, Worker

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
J = TypeVar("J")
Later = Coroutine[Any, Any, PutResult]
Middleware = Callable[[Any], contextlib.AbstractContextManager[object]]
OPTIONS: Final = frozenset(PutOptions.__annotations__)
SCHEDULE_OPTIONS: Final = frozenset(ScheduleOptions.__annotations__)
ELSEWHERE: Final = frozenset(
    ("delay", "apply_async", "send", "send_with_options", "enqueue", "defer")
)
"""What other libraries call the put of a task."""


class NotATask(ValueError):
    """A job that no task can work on: an unknown task, or wrong arguments. It is buried."""


class Task(Generic[P, R, A]):
    """A function with a name under which it can be put. A call of it is a call of the function."""

    def __init__(
        self, app: "Tasks[A, Any]", name: str, topic: str, function: Callable[P, R]
    ) -> None:
        self.name = name
        self.topic = topic
        self.function = function
        self._app = app
        self._signature = inspect.signature(function)
        self._options: PutOptions = {}
        self.__doc__ = function.__doc__

    def __repr__(self) -> str:
        return f"<task {self.name!r}>"

    def __call__(self, *arguments: P.args, **named: P.kwargs) -> R:
        """Call the function now."""
        return self.function(*arguments, **named)

    @overload
    def put(self, *arguments: P.args, **named: P.kwargs) -> A: ...
    @overload
    def put(self, *arguments: object, delay: Duration, **named: object) -> A: ...
    @overload
    def put(self, *arguments: object, at: Moment, **named: object) -> A: ...
    @overload
    def put(self, *arguments: object, key: str, **named: object) -> A: ...
    def put(self, *arguments: Any, **named: Any) -> A:
        """Put a job for a call with these arguments: `send.put("ada", delay="1h", key="ada")`.

        Names of `PutOptions` that are not parameters of the function are options of the put; a type
        checker does not check the arguments beside them, so use `options` with one. Raises
        TypeError for arguments that the function does not take, or that JSON cannot hold.
        """
        options = {**self._options, **self._taken(OPTIONS, named)}
        body = self._body(arguments, named)
        answer: A = self._app.client.put(self.topic, body, **options)
        return answer

    @overload
    def schedule(
        self: "Task[P, R, PutResult]", name: str, /, *arguments: object, **named: object
    ) -> ScheduleInfo: ...
    @overload
    def schedule(
        self: "Task[P, R, Later]", name: str, /, *arguments: object, **named: object
    ) -> Coroutine[Any, Any, ScheduleInfo]: ...
    def schedule(self, name: str, /, *arguments: Any, **named: Any) -> Any:
        """Make a schedule of calls: `report.schedule("nightly", "all", cron="30 2 * * *")`.

        Names of `ScheduleOptions` that are not parameters of the function are options of the
        schedule. Of the task's own options those hold that a schedule has. Raises as `put` does.
        """
        own = {name: value for name, value in self._options.items() if name in SCHEDULE_OPTIONS}
        options = {**own, **self._taken(SCHEDULE_OPTIONS, named)}
        body = self._body(arguments, named)
        return self._app.client.put_schedule(name, self.topic, body, **options)

    def _taken(self, options: frozenset[str], named: dict[str, Any]) -> dict[str, Any]:
        """Take the options out of named arguments."""
        names = options & named.keys() - self._signature.parameters.keys()
        return {name: named.pop(name) for name in names}

    def _body(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> bytes:
        """Return the body of a job that calls the function. Raises TypeError."""
        try:
            bound = self._signature.bind(*arguments, **named)
        except TypeError as error:
            raise TypeError(f"task {self.name!r}: {error}") from None
        return written(self.name, bound.args, bound.kwargs)

    if not TYPE_CHECKING:  # to a type checker a class with this method has every attribute

        def __getattr__(self, name: str) -> NoReturn:
            if name in ELSEWHERE:
                raise AttributeError(
                    f"a task has no {name}: use put with the arguments of the function, as in"
                    f" {self.function.__name__}.put(...), and delay='1h' or at=... for later"
                )
            return super().__getattribute__(name)  # raises Python's own sentence

    def options(self, **options: Unpack[PutOptions]) -> "Task[P, R, A]":
        """Return it with these options for its puts: `send.options(delay="1h").put("ada")`."""
        other: Task[P, R, A] = Task(self._app, self.name, self.topic, self.function)
        other._options = {**self._options, **options}
        return other

    def check(self, arguments: list[Any], named: dict[str, Any]) -> None:
        """Check the arguments of a job. Raises NotATask."""
        try:
            self._signature.bind(*arguments, **named)
        except TypeError as error:
            raise NotATask(f"task {self.name!r}: {error}") from None


class Tasks(Generic[A, J]):
    """The tasks of a program, and its client; `client` can be set to another one, for tests."""

    @overload
    def __init__(self: "Tasks[PutResult, Job]", client: Client) -> None: ...
    @overload
    def __init__(self: "Tasks[Later, AsyncJob]", client: "AsyncClient") -> None: ...
    def __init__(self, client: "Client | AsyncClient") -> None:
        self.client: Any = client
        self.tasks: dict[str, Task[Any, Any, A]] = {}
        """By their names."""
        self._middleware: list[Middleware] = []
        self._job: ContextVar[J] = ContextVar("delayd_job")

    def task(
        self, name: str, *, topic: str = "", **options: Unpack[PutOptions]
    ) -> Callable[[Callable[P, R]], Task[P, R, A]]:
        """Make a function a task, whose jobs are in the topic of its name, or in `topic`.

        The options are those of each put; an option of the put itself wins.
        """
        if name in self.tasks:
            raise ValueError(f"there is a task {name!r} already: {self.tasks[name].function!r}")

        def decorate(function: Callable[P, R]) -> Task[P, R, A]:
            made: Task[P, R, A] = Task(self, name, topic or name, function)
            self.tasks[name] = made.options(**options)
            return self.tasks[name]

        return decorate

    def middleware(self, around: Middleware) -> Middleware:
        """Enter a context manager around each call: `around(job)` returns it. The first is outer.

        An exception that it lets pass is a failed attempt.
        """
        self._middleware.append(around)
        return around

    @property
    def job(self) -> J:
        """The job of the task that is running: its id, attempt, expires, `touch()`.

        Raises LookupError outside of a task.
        """
        try:
            return self._job.get()
        except LookupError:
            raise LookupError("no task is running here, so there is no job") from None

    @property
    def topics(self) -> list[str]:
        """The topics of all tasks."""
        return sorted({task.topic for task in self.tasks.values()})

    # --- Working ---------------------------------------------------------------------------------

    @overload
    def worker(
        self: "Tasks[PutResult, Job]",
        *,
        concurrency: int = 1,
        topics: list[str] | None = None,
        on_error: "Trouble | None" = None,
    ) -> "Worker": ...
    @overload
    def worker(
        self: "Tasks[Later, AsyncJob]",
        *,
        concurrency: int = 1,
        topics: list[str] | None = None,
        on_error: "Trouble | None" = None,
    ) -> "AsyncWorker": ...
    def worker(
        self,
        *,
        concurrency: int = 1,
        topics: list[str] | None = None,
        on_error: "Trouble | None" = None,
    ) -> "Worker | AsyncWorker":
        """Return a worker on the jobs of these topics, or of all tasks; `run` works."""
        from delayd.client.worker import AsyncWorker, Worker  # noqa: PLC0415 - producers need none

        wanted, how = topics or self.topics, {"concurrency": concurrency, "on_error": on_error}
        if isinstance(self.client, Client):
            return Worker(self.client, wanted, self._work, **cast("Any", how))
        return AsyncWorker(self.client, wanted, self._work_async, **cast("Any", how))

    def run(self, *, concurrency: int = 1, topics: list[str] | None = None) -> None:
        """Work until SIGTERM or Ctrl-C, let what runs finish, and close the client.

        A second one gives the jobs back, without counting an attempt, and raises KeyboardInterrupt;
        a third ends the process. In the main thread only.
        """
        worker: Any = self.worker(concurrency=concurrency, topics=topics)  # type: ignore[misc]
        if isinstance(self.client, Client):
            with _on_term(worker, worker.stop), self.client:
                worker.run()
            return
        import asyncio  # noqa: PLC0415 - with an AsyncClient only

        async def run() -> None:
            loop = asyncio.get_running_loop()
            with _on_term(worker, lambda: worker.stop_soon(loop)):
                async with self.client:
                    await worker.run()

        asyncio.run(run())

    @overload
    def drain(self: "Tasks[PutResult, Job]") -> int: ...
    @overload
    def drain(self: "Tasks[Later, AsyncJob]") -> Coroutine[Any, Any, int]: ...
    def drain(self) -> Any:
        """Work on all jobs that are ready, and on those that they put; return how many.

        For tests, with a `FakeDelayd`. The first exception of a task is raised, once its attempt is
        reported. To be awaited with an `AsyncClient`.
        """
        return self._drain() if isinstance(self.client, Client) else self._drain_async()

    def _drain(self) -> int:
        count = 0
        while jobs := self.client.reserve_many(self.topics, limit=1, timeout=0):
            with jobs[0] as job:
                self._work(job)
            count += 1
        return count

    async def _drain_async(self) -> int:
        count = 0
        while jobs := await self.client.reserve_many(self.topics, limit=1, timeout=0):
            async with jobs[0] as job:
                await self._work_async(job)
            count += 1
        return count

    def _work(self, job: Job) -> None:
        call = carried_out(self._call_of(job))
        with self._around(job):
            result = call()
            if inspect.isawaitable(result):
                import asyncio  # noqa: PLC0415 - for coroutine functions only

                asyncio.run(_finished(result))

    async def _work_async(self, job: "AsyncJob") -> None:
        call = await awaited(self._call_of(job))
        with self._around(job):
            if inspect.iscoroutinefunction(call.task.function):
                await call()
                return
            result = await _in_thread(call)
            if inspect.isawaitable(result):
                await result

    @contextlib.contextmanager
    def _around(self, job: Any) -> Any:  # noqa: ANN401 - a job of either kind
        """Enter all middleware, and let `job` be this one."""
        before = self._job.set(job)
        try:
            with contextlib.ExitStack() as stack:
                for around in self._middleware:
                    stack.enter_context(around(job))
                yield
        finally:
            self._job.reset(before)

    def _call_of(self, job: Reserved[Any]) -> "Steps[_Call]":
        """Read a job. One that no task can work on is buried, and raises NotATask."""
        try:
            return self._read(job)
        except NotATask as error:
            yield job.client.bury(job, error=str(error))
            raise

    def _read(self, job: Reserved[Any]) -> "_Call":
        try:
            body = job.json()
        except (ValueError, RecursionError):
            raise NotATask("the body of the job is not JSON") from None
        name, arguments, named = (
            (body.get("task"), body.get("args", []), body.get("kwargs", {}))
            if isinstance(body, dict)
            else (None, [], {})
        )
        if not (isinstance(name, str) and isinstance(arguments, list) and isinstance(named, dict)):
            raise NotATask('the body of the job is not {"task": NAME, "args": [], "kwargs": {}}')
        if (task := self.tasks.get(name)) is None:
            known = ", ".join(sorted(self.tasks))
            raise NotATask(f"there is no task {name!r:.200}; there are {known:.500}")
        task.check(arguments, named)
        return _Call(task, arguments, named)


class _Call:
    """A task with the arguments of a job."""

    def __init__(
        self, task: Task[Any, Any, Any], arguments: list[Any], named: dict[str, Any]
    ) -> None:
        self.task = task
        self._arguments = arguments
        self._named = named

    def __call__(self) -> Any:  # noqa: ANN401 - the function tells
        return self.task.function(*self._arguments, **self._named)


@contextlib.contextmanager
def _on_term(worker: Any, stop: Callable[[], object]) -> Iterator[None]:  # noqa: ANN401 - of either kind
    """Stop at the first SIGTERM; at the second do as at a Ctrl-C; the third has its former effect.

    A Ctrl-C before counts as the first.
    """
    before = signal.getsignal(signal.SIGTERM)

    def stopped(_number: int, _frame: "FrameType | None") -> None:
        from delayd.client.worker import STOPPING  # noqa: PLC0415 - it is there: a worker runs

        if not worker.is_stopping:
            stop()
            logging.getLogger("delayd").warning(STOPPING)
            return
        signal.signal(signal.SIGTERM, before)
        if not callable(signal.getsignal(signal.SIGINT)):  # ignored, as below nohup
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    with handled(stopped, signal.SIGTERM):
        yield


async def _in_thread(call: Callable[[], object]) -> object:
    """Return what a call returns, made in a thread that the end of the process does not wait for.

    That of `asyncio.to_thread` is waited for, and there are few of them.
    """
    import asyncio  # noqa: PLC0415 - it is running

    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[tuple[object, BaseException | None]] = loop.create_future()
    context = copy_context()

    def settle(result: object, error: BaseException | None) -> None:
        if not outcome.done():  # else it was cancelled
            outcome.set_result((result, error))

    def run() -> None:
        result, failure = None, None
        try:
            result = context.run(call)
        except BaseException as error:  # noqa: BLE001 - raised below
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, name="delayd-task", daemon=True).start()
    result, failure = await outcome
    if failure is not None:
        raise failure
    return result


async def _finished(result: Awaitable[object]) -> None:
    await result


def written(name: str, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> bytes:
    """Write the body of a job. Raises TypeError for what JSON cannot hold, with its place."""
    try:
        _check_keys((arguments, named))
        return json_bytes({"task": name, "args": arguments, "kwargs": named})
    except (TypeError, ValueError, RecursionError):
        for place, value in (*enumerate(arguments, 1), *named.items()):
            try:
                _check_keys(value)
                json_bytes(value)
            except (TypeError, ValueError, RecursionError) as error:
                raise TypeError(f"task {name!r}, argument {place}: {error}") from None
        raise


def _check_keys(value: object) -> None:
    """Raise TypeError for a key of a dict that would arrive as another one, as a text."""
    if isinstance(value, dict):
        for key, held in value.items():
            if not isinstance(key, str):
                raise TypeError(f"{key!r} is a key of a dict, and only strings can be")
            _check_keys(held)
    elif isinstance(value, list | tuple):
        for held in value:
            _check_keys(held)
