"""Long operations, a slice at a time: what a background task is, and which takes the next step.

An operation over all jobs of a topic takes seconds where there are millions. It is a *background
task*: an object whose `step` does a little more, between two turns or within one.

    add(search)  add(bulk)      step: search   step: bulk   step: search   step: bulk, over ─► bulk

`BackgroundTasks` gives each the same share, in the order in which they came. What a clear has left
(`core.scans.clear`) is swept beside them, as one more task, for which no client waits.

A task depends on the engine's state, its budget and the time argument only. The owner decides how
often steps are taken and what happens with the result:

    passes = Passes(engine.state)
    passes.add(Search(engine.state, "mail", Wanted(), limit=100))   # or Calendar, Bulk, Clear
    while passes.has_more:                    # in each turn, for TASK_SLICE_US at most,
        over = passes.step(now_ms)            # before its records are committed
        if over is not None: answer(over)     # over.result, over.page, over.counts

Where several front ends share one queue, they add a `BackgroundTask`, which also knows whom to
answer.
"""

from collections import deque
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from delayd.limits import TASK_STEP_JOBS

if TYPE_CHECKING:
    from delayd.core.state import EngineState


class Task(Protocol):
    """An operation that is executed in steps."""

    def step(self, budget: int, now_ms: int) -> bool:
        """Look at `budget` more jobs, or do as much work; tell whether the task is over."""
        ...


class BackgroundTask(Task, Protocol):
    """A task with a client that waits for the result."""

    def conclude(self, now_ms: int) -> None:
        """Answer: the last step has been taken."""
        ...


TaskT = TypeVar("TaskT", bound=Task)


class BackgroundTasks(Generic[TaskT]):
    """The unfinished tasks of one engine."""

    __slots__ = ("_queue", "_state")

    def __init__(self, state: "EngineState") -> None:
        """Start with none."""
        self._state = state
        self._queue: deque[TaskT] = deque()

    @property
    def has_more(self) -> bool:
        """Tell whether there is a step to take."""
        return bool(self._queue or self._state.store.cleared)

    def add(self, a_pass: TaskT) -> None:
        """Add a task."""
        self._queue.append(a_pass)

    def drop(self, a_pass: TaskT) -> None:
        """Drop a task whose result is not needed any more. What it has done stays done."""
        self._queue.remove(a_pass)

    def step(self, now_ms: int, budget: int = TASK_STEP_JOBS) -> TaskT | None:
        """Take a step of the task whose turn it is; return it if that was its last.

        Without tasks nothing happens. The sweep shares each step.
        """
        store = self._state.store
        if store.cleared:
            store.sweep(budget)
        if not self._queue:
            return None
        a_pass = self._queue.popleft()
        if a_pass.step(budget, now_ms):
            return a_pass
        self._queue.append(a_pass)
        return None
