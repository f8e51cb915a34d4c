"""Waiting for what another process does, which nothing tells: asked again and again, with a limit.

    until(lambda: client.stats()["current-waiting"] == "1")
    until(lambda: "read again" in daemon.log(), seen=daemon.log)
    line_with("relaying", relay.stderr)

A test that asks without a pause takes the processor from the process that it waits for.
"""

import time
from collections.abc import Callable
from typing import IO, Final

WITHIN_S: Final = 60.0
"""On a busy machine."""

PAUSE_S: Final = 0.005


def until(
    is_so: Callable[[], object], within_s: float = WITHIN_S, *, seen: Callable[[], object] = str
) -> None:
    """Wait until it is so. Raises AssertionError with what is `seen` if it is not in time."""
    ends_s = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < ends_s, f"it is not so in time: {seen()}"
        time.sleep(PAUSE_S)


def line_with(text: str, output: IO[str] | None) -> str:
    """Read what a process prints up to a line with this text, and return that."""
    assert output is not None
    said = []
    for line in output:
        said.append(line)
        if text in line:
            return line
    raise AssertionError(f"it ended without saying {text!r}: {said}")
