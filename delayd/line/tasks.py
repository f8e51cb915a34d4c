"""Commands that take long, executed in slices between those of other clients.

    command ─► begin ─► the connection waits ─► step, turn, step, turn … ─► answer ─► it continues

Each is a task of the core (`core.background`) and a connection that waits for its result. One whose
connection closes is dropped where it is.

This module refuses to know what a pass does, and how much time there is for steps.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from delayd.core.background import BackgroundTask, BackgroundTasks, Task
from delayd.core.errors import Refusal
from delayd.core.virtual_clock import StandingClock
from delayd.line import replies

if TYPE_CHECKING:
    from delayd.line.connection import Connection


class LineTask:
    """A pass that a connection waits for."""

    __slots__ = ("_commands", "_say", "_work", "connection", "reply")

    def __init__(
        self,
        commands: "LineTasks",
        connection: "Connection",
        work: Task,
        say: Callable[[], bytes],
    ) -> None:
        """Execute the work; `say` makes the reply of it in the end."""
        self.connection = connection
        self.reply = b""
        self._commands = commands
        self._work = work
        self._say = say

    def step(self, budget: int, now_ms: int) -> bool:
        """Take a step; tell whether the reply is there."""
        try:
            if not self._work.step(budget, now_ms):
                return False
            self.reply = self._say()
        except Refusal as refusal:
            self.reply = self.connection.refuse(replies.refused(refusal))
        return True

    def conclude(self, now_ms: int) -> None:
        """Answer the connection, which continues."""
        self._commands.conclude(self, now_ms)


class LineTasks:
    """All of them that are under way."""

    __slots__ = ("_listen_again", "_passes", "_waiting", "clock")

    def __init__(
        self,
        passes: BackgroundTasks[BackgroundTask],
        clock: StandingClock | None = None,
        listen_again: Callable[["Connection"], object] | None = None,
    ) -> None:
        """Have them executed with these passes, which others may use as well.

        `clock` is there if clients may advance it; `listen_again` is called with each connection
        that has been answered.
        """
        self.clock = clock
        self._passes = passes
        self._listen_again = listen_again
        self._waiting: dict[Connection, LineTask] = {}

    def begin(self, connection: "Connection", work: Task, say: Callable[[], bytes]) -> None:
        """Carry this out for the connection, which waits for the answer."""
        command = self._waiting[connection] = LineTask(self, connection, work, say)
        self._passes.add(command)

    def forget(self, connection: "Connection") -> None:
        """Drop the tasks for which no connection waits."""
        command = self._waiting.pop(connection, None)
        if command is not None:
            self._passes.drop(command)

    def conclude(self, command: LineTask, now_ms: int) -> None:
        """Answer the connection that has waited for this."""
        del self._waiting[command.connection]
        command.connection.answer(command.reply, now_ms)
        if self._listen_again is not None:
            self._listen_again(command.connection)
