"""Standard input, output and error, where whoever started us has closed some of them.

The next file or socket would get the number that is free, and what the interpreter has to say in
its last moment (it writes to descriptor 2) would end up in it: in the journal, say.

Nor must a stream that takes nothing any more, a full disk or a pipe whose reader has gone, decide
how we exit: the interpreter makes 120 of every exit code when it cannot write the last of it.
"""

import atexit
import os
import sys
from collections.abc import Iterable


class CannotTell(Exception):
    """Standard output takes nothing more, though somebody still wants it; the message says why."""


def tell(lines: Iterable[str]) -> None:
    """Write lines to standard output. Raises CannotTell.

    Whoever stops reading, as `head` does, has got what was wanted: the rest is left out, and that
    is no failure.
    """
    try:
        for line in lines:
            sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        pass
    except OSError as error:
        raise CannotTell(f"the output cannot be written: {error.strerror}") from error


def complete() -> None:
    """Put what swallows everything in place of each standard stream that is missing."""
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(handle)
    # Python has looked before, and made None of what was missing.
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")
    atexit.register(_give_up_what_nobody_takes)


def _give_up_what_nobody_takes() -> None:
    """Let what a stream still holds be swallowed, where it cannot be written."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            handle = os.open(os.devnull, os.O_WRONLY)
            os.dup2(handle, stream.fileno())
            os.close(handle)
            stream.flush()
