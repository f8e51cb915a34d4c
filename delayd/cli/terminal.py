"""What the tools say to a person: complaints, questions and how far a long piece of work is.

All of it goes to standard error, so that a tool's output can go into a file or a pipe. Progress is
shown on a terminal only, and only where somebody would wait for it. The module refuses to know what
is being worked on.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Final

import click

LONG_BYTES: Final = 32 << 20
"""What a tool reads in about half a second."""

STEP_BYTES: Final = 1 << 20
"""How much must be done before a bar is drawn again."""


def complain(message: str) -> None:
    """Say what is wrong."""
    click.echo(f"delayd: {message}", err=True)


@contextlib.contextmanager
def progress(label: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """Give out a function that is told how many bytes more have been done."""
    if total_bytes < LONG_BYTES or not sys.stderr.isatty():
        yield lambda _: None
        return
    with click.progressbar(
        length=total_bytes, label=label, file=sys.stderr, update_min_steps=STEP_BYTES
    ) as bar:
        yield bar.update
