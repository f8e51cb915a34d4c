"""Background tasks: long operations, a slice at a time.

An operation over all jobs of a topic takes seconds where there are millions. It is *work*: an
object whose `step` does a little more, between two turns or within one. A `BackgroundTask` is work
with a client that waits for its end. `BackgroundTasks` gives each the same share, in order:

    add(search)  add(bulk)      step: search   step: bulk   step: search   step: bulk, over ─► bulk

What a clear has left (`core.cleared`) is swept beside them; for that no client waits.

Work depends on the engine's state, its budget and the time argument only. The owner decides how
often steps are taken, and concludes the task that is over:

    tasks = BackgroundTasks(engine)
    search = Search(engine, "mail", Wanted(), limit=100)   # or Calendar, Bulk, Clear
    tasks.add(BackgroundTask(search, answer))
    while tasks.has_more:                     # in each turn, for TASK_SLICE_US at most,
        over = tasks.step(now_ms)             # before its records are committed
        if over is not None: over.conclude(now_ms)    # calls answer(refusal or None, now_ms)
"""

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, final

from delayd.core.engine import Engine
from delayd.core.errors import Refusal
from delayd.core.times import RequestMs
from delayd.limits import TASK_STEP_JOBS


class Work(Protocol):
    """An operation that is executed in steps."""

    def step(self, budget: int, now_ms: RequestMs) -> bool:
        """Look at `budget` more jobs, or do as much; return whether that was the last step."""
        ...


@final
class BackgroundTask:
    """Work, and whom to answer when it is over."""

    __slots__ = ("_answer", "is_over", "refusal", "work")

    def __init__(self, work: Work, answer: Callable[[Refusal | None, RequestMs], object]) -> None:
        """`answer` is told of the end: the refusal, if it was one, and the time."""
        self.work: Final = work
        self._answer = answer
        self.refusal: Refusal | None = None
        self.is_over = False

    def step(self, budget: int, now_ms: RequestMs) -> bool:
        """Take a step of the work; return whether it was the last. A refusal ends the work."""
        try:
            self.is_over = self.work.step(budget, now_ms)
        except Refusal as refusal:
            self.refusal = refusal
            self.is_over = True
        return self.is_over

    def conclude(self, now_ms: RequestMs) -> None:
        """Answer: the last step has been taken."""
        self._answer(self.refusal, now_ms)


@final
class BackgroundTasks:
    """The unfinished tasks of one engine."""

    __slots__ = ("_engine", "_queue")

    def __init__(self, engine: Engine) -> None:
        """Start with none."""
        self._engine = engine
        self._queue: deque[BackgroundTask] = deque()

    @property
    def has_more(self) -> bool:
        """Tell whether there is a step to take."""
        return bool(self._queue or self._engine.store.cleared)

    def add(self, task: BackgroundTask) -> None:
        """Add a task."""
        self._queue.append(task)

    def drop(self, task: BackgroundTask) -> None:
        """Drop a task whose result is not needed any more. What it has done stays done."""
        self._queue.remove(task)

    def step(self, now_ms: RequestMs, budget: int = TASK_STEP_JOBS) -> BackgroundTask | None:
        """Take a step of the task whose turn it is; return it if that was its last.

        Without tasks nothing happens. The sweep shares each step.
        """
        store = self._engine.store
        if store.cleared:
            store.sweep(budget)
        if not self._queue:
            return None
        task = self._queue.popleft()
        if task.step(budget, now_ms):
            return task
        self._queue.append(task)
        return None
