"""What all commands share: standard streams, how a command fails, and its configuration.

Complaints and progress go to standard error, so that a tool's output can go into a file or a pipe.
Progress is shown on a terminal only, and only for work that takes a while.

If the process was started with some of the streams closed, the next file or socket would get the
free number, and the interpreter's error messages (written to descriptor 2) would go into it, for
example into the journal. So `complete` opens them on /dev/null; standard output for reading only,
because a tool whose output goes nowhere must say so.

A stream that cannot be written any more, because of a full disk or a pipe whose reader has gone,
must not decide the exit code: the interpreter turns every exit code into 120 when it cannot flush.
The module is imported before the daemon listens, and so imports little.
"""

import atexit
import codecs
import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from delayd.exits import Exit
from delayd.text import visible

if TYPE_CHECKING:
    from delayd.config import Config

LONG_BYTES: Final = 32 << 20  # a tool reads so much in about half a second
STEP_BYTES: Final = 1 << 20  # a bar is drawn again after so much
ESCAPED: Final = "delayd.escaped"


def complain(message: str) -> None:
    """Print an error, if it can be printed; otherwise only the exit code tells of it.

    It may quote texts of others, so invisible characters are escaped.
    """
    with contextlib.suppress(OSError):
        print("delayd:", visible(message, keeps="\t"), file=sys.stderr, flush=True)


def complain_at_once(message: str) -> None:
    """Print an error from a handler of signals, which may come while another is half printed."""
    with contextlib.suppress(OSError):
        os.write(2, f"delayd: {message}\n".encode())


@contextlib.contextmanager
def progress(label: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """Show a bar; yield a function to be called with the number of bytes done since."""
    if total_bytes < LONG_BYTES or not sys.stderr.isatty():
        yield lambda _: None
        return
    import click

    with click.progressbar(
        length=total_bytes, label=label, file=sys.stderr, update_min_steps=STEP_BYTES
    ) as bar:
        yield bar.update


def coloured(text: str, colour: str | None) -> str:
    """Colour a text, if it goes to a terminal and NO_COLOR is not set."""
    if colour is None or os.environ.get("NO_COLOR") or not sys.stdout.isatty():
        return text
    import click

    return click.style(text, fg=colour)


class CommandFailed(Exception):
    """The command ends with an exit code, after one complaint for each of its errors."""

    def __init__(self, exit_code: Exit, *errors: str) -> None:
        super().__init__("\n".join(errors))
        self.exit_code = exit_code
        self.errors = errors

    def complain(self) -> Exit:
        """Print the errors, and return the exit code. A token in the arguments is not repeated."""
        from delayd.access.errors import redacted

        for error in self.errors:
            complain(redacted(error))
        return self.exit_code


def confirmed(question: str, *, yes: bool) -> bool:
    """Ask the person at the terminal, unless `yes` says so; without one the answer is no."""
    if yes:
        return True
    if not sys.stdin.isatty():
        complain("no terminal to ask for confirmation; --yes skips the question")
        return False
    import click

    return click.confirm(question, err=True)


def agreed(done: str, what: str, *, dry_run: bool, yes: bool, will: str = "") -> bool:
    """Tell whether to go on with a change; a dry run prints `what` would be `done`, and does not.

    `will` is what becomes of it, if that is more than `done`. Raises CommandFailed for a no.
    """
    if dry_run:
        print_lines([f"would be {done}: {what}"])
        return False
    if not confirmed(f"{what} will be {will or done}. Go on?", yes=yes):
        raise CommandFailed(Exit.USAGE, f"nothing was changed; {what} would be {done}")
    return True


def print_lines(lines: Iterable[str]) -> bool:
    """Write lines to standard output; tell whether all of them were. Raises CommandFailed.

    If the reader stops early, as `head` does, this is no failure: the rest is left out.
    """
    try:
        for line in lines:
            sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        return False
    except OSError as error:
        raise cannot_write(error) from error
    return True


def cannot_write(error: OSError) -> CommandFailed:
    """Return the failure of a command that could not write its output."""
    return CommandFailed(Exit.OUTPUT_FAILED, f"the output cannot be written: {error.strerror}")


def complete() -> None:
    """Open each standard stream that is missing on /dev/null; writing to the output then fails."""
    for handle, mode in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(handle)
        except OSError:
            os.open(os.devnull, mode)  # gets the lowest free number, which is this one
    # Python has checked before, and set missing ones to None.
    sys.stdin = sys.stdin or os.fdopen(0)
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")
    codecs.register_error(ESCAPED, _escaped)
    if isinstance(sys.stdout, io.TextIOWrapper):
        with contextlib.suppress(OSError):  # it was a file, and is a pipe now that cannot seek
            sys.stdout.reconfigure(errors=ESCAPED)
    atexit.register(_discard_what_cannot_be_written)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """Write what the encoding of a locale lacks as JSON does, so that JSON stays what it is."""
    import json

    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def _discard_what_cannot_be_written() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            handle = os.open(os.devnull, os.O_WRONLY)
            os.dup2(handle, stream.fileno())
            os.close(handle)
            stream.flush()


def load_config(path: str | None, flags: Mapping[str, object]) -> "Config":
    """Return the configuration of this file, or of the one that the environment names.

    Flags that are None are not set. Raises CommandFailed.
    """
    from delayd.config import CONFIG_FILE_VARIABLE, ConfigErrors, load

    flags = {flag: value for flag, value in flags.items() if value is not None}
    try:
        return load(path or os.environ.get(CONFIG_FILE_VARIABLE) or None, os.environ, flags)
    except ConfigErrors as wrong:
        raise CommandFailed(Exit.BAD_CONFIGURATION, *map(str, wrong.errors)) from None


def require_psycopg(subject: str, exit_code: Exit) -> None:
    """Raise CommandFailed unless the packages for a log in PostgreSQL are installed."""
    from importlib.util import find_spec

    if find_spec("psycopg") is None:
        rule = f'{subject} needs more packages: pip install "delayd[postgres]"'
        raise CommandFailed(exit_code, rule)


@contextlib.contextmanager
def journal_errors() -> Iterator[None]:
    """Make the command fail on a log's error, with the exit code of a daemon for it."""
    from delayd.log import LogError

    try:
        yield
    except LogError as error:
        raise CommandFailed(error.exit_code, str(error)) from error
