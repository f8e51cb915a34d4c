"""Running a worker again when a Python file has changed, for development.

The worker is a child process. A change ends it by SIGTERM, so that its tasks may finish, and then
it is started again. One that ends by itself, after a mistake in a file for example, is started
again with the next change.
"""

import contextlib
import os
import select
import signal
import subprocess
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import FrameType

LOOK_S: Final = 1.0
FILES_MAX: Final = 10_000
"""So many files are looked at; a tree of programs has fewer."""
NOT_OURS: Final = frozenset(("__pycache__", "node_modules", "site-packages"))


class Reloader:
    """Runs a worker in a child process, and another one when a file has changed.

    Files are those of Python below the working directory; `tell` is called with a sentence each
    time that one has.
    """

    def __init__(self, command: Sequence[str], tell: Callable[[str], object]) -> None:
        self._command = command
        self._tell = tell
        self._child: subprocess.Popen[bytes] | None = None
        self._is_ending = False
        """The child was told to stop."""
        self._is_stopping = False
        self._reads, self._wakes = os.pipe()

    def run(self) -> int:
        """Run until SIGTERM or Ctrl-C; return the exit code of the last worker."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        while True:
            stamps = python_files(os.getcwd())
            # In a group of its own, so that a Ctrl-C comes to it once, from here.
            child = subprocess.Popen(self._command, process_group=0)  # noqa: S603 - ours
            self._child, self._is_ending = child, False
            while not self._is_stopping and python_files(os.getcwd()) == stamps:
                select.select((self._reads,), (), (), LOOK_S)
            self._end_child()
            code = child.wait()
            if self._is_stopping:
                return code
            self._tell("a file has changed: the worker starts again")

    def _stop(self, _number: int, _frame: "FrameType | None") -> None:
        """End at the first signal; at the second the worker gives its jobs back."""
        if self._is_stopping and self._child is not None:
            self._child.send_signal(signal.SIGINT)
        self._is_stopping = True
        os.write(self._wakes, b"\n")
        self._end_child()

    def _end_child(self) -> None:
        if self._child is not None and not self._is_ending:
            self._is_ending = True
            self._child.terminate()


def python_files(directory: str) -> dict[str, int]:
    """Return when each Python file below a directory was changed, in ns; hidden ones are not ours.

    A directory with a `pyvenv.cfg` is an environment, and passed over.
    """
    stamps: dict[str, int] = {}
    for path, directories, files in os.walk(directory):
        if "pyvenv.cfg" in files:
            directories.clear()
            continue
        directories[:] = [d for d in directories if d not in NOT_OURS and d[:1] != "."]
        for name in files:
            if name.endswith(".py") and len(stamps) < FILES_MAX:
                with contextlib.suppress(OSError):
                    stamps[os.path.join(path, name)] = os.stat(os.path.join(path, name)).st_mtime_ns
    return stamps
