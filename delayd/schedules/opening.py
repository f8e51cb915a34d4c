"""Opens the schedules of a daemon: at its start where there are some, else when one is asked for.

A daemon without schedules loads nothing of this package but this module.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, final

from delayd.core.background_tasks import BackgroundTasks
from delayd.core.engine import Engine
from delayd.core.names import SCHEDULES_TOPIC
from delayd.core.times import RequestMs

if TYPE_CHECKING:
    from delayd.schedules.definition import Definition
    from delayd.schedules.schedules import Schedules


@final
class ScheduleOpener:
    """The schedules, once they are open: call it to have them."""

    def __init__(
        self,
        engine: Engine,
        tasks: BackgroundTasks,
        follow_wall: Callable[[], None],
        log: Callable[[str], None],
    ) -> None:
        """`follow_wall` looks at the wall clock; `log` tells people what was missed or refused."""
        self._engine = engine
        self._tasks = tasks
        self._follow_wall = follow_wall
        self._log = log
        self.opened: Schedules | None = None
        """None: nobody has asked yet, and there are none."""

    def __call__(self) -> "Schedules":
        """Return the schedules, opened if they are not."""
        if self.opened is None:
            from delayd.schedules.runner import Runner  # noqa: PLC0415
            from delayd.schedules.schedules import Schedules  # noqa: PLC0415

            runner = Runner(self._engine, self._tasks, self._follow_wall, self._log)
            self.opened = Schedules(runner)
        return self.opened

    def begin(
        self, configured: "Mapping[str, tuple[Definition, bytes]] | None", now_ms: RequestMs
    ) -> str:
        """Go on with what is in the log, and have those of the configuration.

        Return what that has changed, as one line for the log; empty: nothing.
        """
        if not configured and SCHEDULES_TOPIC not in self._engine.store.topics.by_name:
            return ""
        done = self().configure(configured or {}, now_ms)
        for refused in done.refused:
            self._log(refused)
        return done.sentence()

    def wall_stepped(self, step_ms: int) -> None:
        """Note that the wall clock was set by so much."""
        if self.opened is not None:
            self.opened.runner.wall_stepped(step_ms)
