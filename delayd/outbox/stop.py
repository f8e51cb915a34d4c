"""Waiting that a signal ends: no signal is missed between the look and the wait."""

import contextlib
import os
import select
import signal
from types import FrameType
from typing import Protocol, Self


class Readable(Protocol):
    """What has a descriptor."""

    def fileno(self) -> int:
        """Return it."""


class StopSignal:
    """Whether the relay is to end, and waits that end then."""

    def __init__(self) -> None:
        self.is_wanted = False
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        os.close(self._read)
        os.close(self._write)

    def on_signals(self) -> None:
        """End at SIGTERM and SIGINT; a second one ends the process, whatever it waits for."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signalled)

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        if self.is_wanted:
            raise SystemExit(128 + number)
        self.want()

    def want(self) -> None:
        """Have it end."""
        self.is_wanted = True
        with contextlib.suppress(OSError):  # the process ends already
            os.write(self._write, b"x")

    def wait(self, seconds: float, *others: Readable) -> bool:
        """Wait so long, until it is to end, or one of these is readable; tell whether one is."""
        descriptors = [other.fileno() for other in others]
        readable, _, _ = select.select([self._read, *descriptors], [], [], seconds)
        return any(descriptor in readable for descriptor in descriptors)
