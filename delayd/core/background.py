"""Long operations, done a slice at a time: what a pass is, and who takes the next step.

Whatever goes through all jobs of a topic takes seconds where there are millions. Such an operation
is a *pass*: an object that is asked, between two turns or within one, to do a little more.

    add(search)  add(bulk)      step: search   step: bulk   step: search   step: bulk, over ─► bulk

`BackgroundTasks` gives each the same share, in the order in which they came. What a clear has left
behind (`core.scans.clear`) is swept away beside them, as one more pass that nobody waits for.

A pass is a function of the engine's state, its budget and the time that it is told; it asks no
clock. How often steps are taken, and what the result is good for, is the owner's business:

    passes = Passes(engine.state)
    passes.add(Search(engine.state, "mail", Wanted(), limit=100))   # or Calendar, Bulk, Clear
    while passes.has_more:                    # in each turn, for TASK_SLICE_US at most,
        over = passes.step(now_ms)            # before its records are committed
        if over is not None: answer(over)     # over.result, over.page, over.counts

Where several front ends share one queue, what they add is an `BackgroundTask`: it knows whom to
answer.
"""

from collections import deque
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from delayd.limits import TASK_STEP_JOBS

if TYPE_CHECKING:
    from delayd.core.state import EngineState


class Task(Protocol):
    """An operation that is carried out in steps."""

    def step(self, budget: int, now_ms: int) -> bool:
        """Look at so many more jobs, or do what takes as long; tell whether the pass is over."""
        ...


class BackgroundTask(Task, Protocol):
    """A pass with somebody who waits for what it finds."""

    def conclude(self, now_ms: int) -> None:
        """Answer: the last step has been taken."""
        ...


TaskT = TypeVar("TaskT", bound=Task)


class BackgroundTasks(Generic[TaskT]):
    """The passes of one engine that are not over."""

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
        """Have this done too."""
        self._queue.append(a_pass)

    def drop(self, a_pass: TaskT) -> None:
        """Forget a pass: nobody wants its result any more. What it has done stays done."""
        self._queue.remove(a_pass)

    def step(self, now_ms: int, budget: int = TASK_STEP_JOBS) -> TaskT | None:
        """Take a step of the pass whose turn it is; return it if that was its last.

        At rest nothing happens. What is swept away waits for nobody, and nobody waits for it: it
        shares each step.
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
