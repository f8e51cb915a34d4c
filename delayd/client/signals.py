"""Handlers of signals, for as long as something runs."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any


@contextlib.contextmanager
def handled(handler: Callable[[int, FrameType | None], Any], *numbers: int) -> Iterator[None]:
    """Have signals handled so meanwhile. In the main thread only."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
