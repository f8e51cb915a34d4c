"""Background tasks: long operations, a slice at a time.

An operation over all jobs of a topic takes seconds where there are millions. It is *work*: an
object whose `step` does a little more, between two turns or within one. A `BackgroundTask` is work
with a client that waits for its end. `BackgroundTasks` gives each the same share, in order:

    add(search)  add(bulk)      step: search   step: bulk   step: search   step: bulk, over ─► bulk

What a clear has left (`core.cleared_jobs`) is swept beside them, what sessions held that have ended
comes back (`operations.sessions`), and what they watched is let go; for that no client waits.

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
from delayd.core.operations.sessions import give_back_some, stop_watching
from delayd.core.times import RequestMs
from delayd.limits import PASS_ACTION_COST, TASK_STEP_JOBS


class Work(Protocol):
    """An operation that is executed in steps."""

    def step(self, budget: int, now_ms: RequestMs) -> bool:
        """Look at `budget` more jobs, or do as much; return whether that was the last step."""
        ...


@final
class BackgroundTask:
    """Work, and the function that answers its client when it is over."""

    __slots__ = ("answer", "is_over", "refusal", "to_the_end", "work")

    def __init__(
        self,
        work: Work,
        answer: Callable[[Refusal | None, RequestMs], object],
        *,
        to_the_end: bool = False,
    ) -> None:
        """`answer` gets the refusal that ended the work, if one did, and the time.

        `to_the_end`: the work goes on when its client has gone.
        """
        self.work: Final = work
        self.to_the_end: Final = to_the_end
        self.answer: Callable[[Refusal | None, RequestMs], object] | None = answer
        """None when the client has gone."""
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
        """Answer the client, if it is still there: the last step has been taken."""
        if self.answer is not None:
            self.answer(self.refusal, now_ms)


@final
class BackgroundTasks:
    """The unfinished tasks of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._queue: deque[BackgroundTask] = deque()

    @property
    def has_more(self) -> bool:
        """Tell whether there is a step to take."""
        engine = self._engine
        left = engine.store.cleared.left
        return bool(self._queue or left or engine.ended_sessions or engine.watchers_gone)

    def add(self, task: BackgroundTask) -> None:
        """Add a task."""
        self._queue.append(task)

    def leave(self, task: BackgroundTask) -> None:
        """Note that the client of a task has gone: it is dropped, or goes on without.

        What it has done stays done.
        """
        if task.to_the_end:
            task.answer = None
        else:
            self._queue.remove(task)

    def step(self, now_ms: RequestMs, budget: int = TASK_STEP_JOBS) -> BackgroundTask | None:
        """Take a step of the task whose turn it is; return it if that was its last.

        Without tasks nothing happens. Sweep and returns share each step.
        """
        engine = self._engine
        if engine.store.cleared.left:
            engine.store.cleared.sweep(budget)
        if engine.ended_sessions:
            give_back_some(engine, 1 + budget // PASS_ACTION_COST, now_ms)
        if engine.watchers_gone and stop_watching(engine, engine.watchers_gone[0], budget):
            engine.watchers_gone.popleft()
        if not self._queue:
            return None
        task = self._queue.popleft()
        if task.step(budget, now_ms):
            return task
        self._queue.append(task)
        return None
