"""Standard input, output and error, where whoever started us has closed some of them.

The next file or socket would get the number that is free, and what the interpreter has to say in
its last moment (it writes to descriptor 2) would end up in it: in the journal, say.
"""

import os
import sys


def complete() -> None:
    """Put what swallows everything in place of each standard stream that is missing."""
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(handle)
    # Python has looked before, and made None of what was missing.
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")
