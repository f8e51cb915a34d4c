"""`delayd journal`: read a journal, report what a start would do with it, copy it, cut it by hand.

`check` and `dump` only read and need no lock, so they work on a copy and on a read-only mount;
where a daemon runs they say so, because it continues writing. `backup` copies what a running daemon
writes, and takes the lock of the copy alone. `repair` takes the lock, and cuts only where a frame
ends and everything before it is whole.
"""

import contextlib
import functools
import os
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import click

from delayd.cli.config import CONFIG_OPTION
from delayd.cli.database import LogOptions, check_name, examined, is_url, place_of, source_of
from delayd.cli.database import frames_of as database_frames
from delayd.cli.journal_report import (
    collector_off,
    examine,
    examine_live,
    frames_of,
    lines,
    log_bytes,
)
from delayd.cli.parameters import YES, Checked, Run, Subcommands, takes
from delayd.cli.terminal import (
    CommandFailed,
    complain,
    confirmed,
    journal_errors,
    print_lines,
    progress,
    require_psycopg,
)
from delayd.exits import Exit
from delayd.journal.backup import backup as copied
from delayd.journal.copies import DirectorySource, DirectoryTarget
from delayd.journal.directory import holder, names_in
from delayd.journal.disk import Disk, RealDisk
from delayd.journal.format import IDENTITY_BYTES, check_names
from delayd.journal.recovery import Recovery
from delayd.journal.repair import NoSuchPlace, prepared
from delayd.limits import JOURNAL_SEGMENT_BYTES_DEFAULT
from delayd.net.accept import raise_descriptor_limit
from delayd.text import counted, visible

if TYPE_CHECKING:
    from delayd.log_copy import CopySource, CopyTarget

DIRECTORY: Final = click.Path(exists=True, file_okay=False)


class LogParameter(click.ParamType[str]):
    """A directory that is there, or the url of a database."""

    name = "log"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """Return the path or the url."""
        text = str(value)
        return text if is_url(text) else str(DIRECTORY.convert(text, param, ctx))


LOG: Final = LogParameter()
NAME: Final = click.option(
    "--name", help="Name of a log in a database (postgres.name of the configuration: delayd)."
)


def with_options(run: Run) -> Run:
    """Give a command what says which log of a database it is about, and call it with `options`."""

    @functools.wraps(run)
    def told(*, name: str | None, path: str | None, **rest: object) -> int | None:
        return run(options=LogOptions(name, path), **rest)

    return takes(NAME, CONFIG_OPTION)(told)


def _place(text: str) -> tuple[int, int]:
    """Read a place as in the messages of a refusal: the number of the segment, and the offset."""
    if (match := re.fullmatch(r"(?:segment-)?([0-9]{1,10})(?:\.log)?:([0-9]{1,19})", text)) is None:
        raise ValueError("is not SEGMENT:OFFSET, such as 3:4711")
    return int(match[1]), int(match[2])


@click.group(cls=Subcommands)
def journal() -> None:
    """Inspect a journal, copy it, or cut it by hand."""


@journal.command(
    "delayd journal check /var/lib/delayd",
    "delayd journal check postgresql://delayd@db-1/jobs",
    short_help="Report what a start would do with LOG.",
)
@click.argument("directory", metavar="LOG", type=LOG)
@with_options
def check(directory: str, *, options: LogOptions) -> int:
    """Report what a start of the daemon would do with LOG, and change nothing.

    LOG is a directory or the url of a PostgreSQL database. Files that a start does not need today
    are read as well. The exit code is 0 if it would start, and 65 if it would refuse or one of the
    files is damaged: the verdict says which.
    """
    if is_url(directory):
        with journal_errors():
            findings, code = examined(directory, options)
        print_lines(map(visible, findings))
        return code
    disk = RealDisk()
    with journal_errors(), attended(disk, directory):
        examination = examine_live(disk, directory)
    print_lines(map(visible, examination.lines()))
    return examination.exit_code


@journal.command(
    "delayd journal dump /var/lib/delayd --json | head",
    short_help="Print the records in LOG, one per line.",
)
@click.argument("directory", metavar="LOG", type=LOG)
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each record.")
@with_options
def dump(directory: str, *, as_json: bool, options: LogOptions) -> None:
    """Print the records in LOG, a directory or the url of a database, in their order.

    A line has the number of its frame, delayd time and wall-clock time of the commit, the record's
    kind and its fields. Bodies are shortened and escaped, with --json whole and in base64.
    """
    if is_url(directory):
        with (
            journal_errors(),
            contextlib.closing(source_of(directory, options, may_be_owned=True)) as source,
        ):
            print_lines(lines(database_frames(source), source.shown, as_json=as_json))
        return
    disk = RealDisk()
    with journal_errors():
        names = names_in(disk, directory)
        recovery = Recovery(disk, directory, names, may_grow=True)
        # On a terminal the lines themselves are the progress.
        total_bytes = 0 if sys.stdout.isatty() else log_bytes(recovery)
        with attended(disk, directory), progress("dumping", total_bytes) as on_bytes:
            print_lines(lines(frames_of(recovery, on_bytes), directory, as_json=as_json))
        check_names(directory, names)
    if not recovery.segments:
        complain(f"there is no log in {directory}")


@journal.command(
    "delayd journal backup /var/lib/delayd /backup/2026-11-21",
    short_help="Copy LOG to the directory TARGET, whether a daemon uses it or not.",
)
@click.argument("directory", metavar="LOG", type=LOG)
@click.argument("target", type=click.Path(file_okay=False))
@with_options
def backup(directory: str, target: str, *, options: LogOptions) -> int:
    """Copy LOG to TARGET, a new or empty directory, whether a daemon uses LOG or not.

    LOG is a directory or the url of a PostgreSQL database.

    The copy holds everything that was acknowledged before the command began. It is on disk and was
    checked as by `delayd journal check` when the exit code is 0; otherwise no daemon starts on what
    is left.
    """
    if is_url(directory):
        return _copied(directory, target, options, may_be_owned=True)
    _check_apart(directory, target)
    disk = RealDisk()
    raise_descriptor_limit()  # all files are open at one time
    with (
        journal_errors(),
        copied(disk, directory, target, functools.partial(progress, "copying")) as copy,
    ):
        examination = examine(disk, target, copy.names)
        if examination.refusal:
            hint = f"is {directory} damaged? See `delayd journal check`"
            raise CommandFailed(
                Exit.CORRUPT_JOURNAL, f"the copy was removed: {examination.refusal}", hint
            )
        copy.verify(examination.recovery)
    for damage in examination.damaged:
        complain(f"damaged in {directory} as well, and not needed by a start: {damage}")
    size = f"{counted(len(copy.names), 'file')}, {counted(copy.copied_bytes, 'byte')}"
    print_lines([f"copied     {size}", *map(visible, examination.lines())])
    return Exit.OK


@journal.command(
    "delayd journal copy /var/lib/delayd postgresql://delayd@db-1,db-2/jobs",
    "delayd journal copy postgresql://delayd@db-1/jobs /var/lib/delayd-again",
    short_help="Copy the log at SOURCE to TARGET: directories, or databases.",
)
@click.argument("source", type=LOG)
@click.argument("target")
@with_options
def copy(source: str, target: str, *, options: LogOptions) -> int:
    """Copy the log at SOURCE to TARGET, each a directory or the url of a PostgreSQL database.

    No daemon may use the source meanwhile; it is not changed. The target has no log yet. Jobs keep
    ids, keys, times, attempts and dead letters, policies and pauses stay; the copy is read again
    and compared with the source. When the exit code is not 0, no daemon starts on what is left; a
    database that did not answer at the end may have all of it, and the message says so then.
    The password is in the postgres.password_file of the configuration, or where psql finds it:
    PGPASSFILE, PGPASSWORD or ~/.pgpass.
    """
    if not (is_url(source) or is_url(target)):
        _check_apart(source, target)
    return _copied(source, target, options, may_be_owned=False)


@journal.command(
    "delayd journal schema --role delayd | psql -d jobs",
    short_help="Print the SQL that makes the tables of a log in PostgreSQL.",
)
@click.option("--name", default="delayd", help="The schema of the log (delayd).")
@click.option("--role", default="delayd", help="The role of the daemon (delayd).")
def schema(name: str, role: str) -> None:
    """Print the SQL that makes the tables of a log in PostgreSQL, for a role that may not do so.

    A daemon makes them at its first start if its role has CREATE on the database. The SQL lets the
    role read and append, and not change the tables themselves. Where the tables are there it only
    grants, so it can be run again, for another role too.
    """
    for option, value in (("--name", name), ("--role", role)):
        check_name(option, value)
    require_psycopg("a log in PostgreSQL", Exit.USAGE)
    from delayd.postgres.statements import Statements

    print_lines(Statements(name).schema_for(os.urandom(IDENTITY_BYTES), role).splitlines())


def _source(text: str, options: LogOptions, *, may_be_owned: bool) -> "CopySource":
    if is_url(text):
        return source_of(text, options, may_be_owned=may_be_owned)
    return DirectorySource(RealDisk(), text)


def _target(text: str, options: LogOptions) -> "CopyTarget":
    if is_url(text):
        place = place_of(text, options)
        from delayd.postgres.copies import DatabaseTarget

        return DatabaseTarget(place)
    return DirectoryTarget(RealDisk(), text, JOURNAL_SEGMENT_BYTES_DEFAULT)


def _copied(source: str, target: str, options: LogOptions, *, may_be_owned: bool) -> int:
    from delayd.log_copy import copy_log

    with journal_errors(), collector_off():
        opened = _source(source, options, may_be_owned=may_be_owned)
        made = copy_log(opened, _target(target, options))
    print_lines([f"copied {counted(made.jobs, 'job')}, up to frame {made.sequence}"])
    return Exit.OK


def _check_apart(directory: str, target: str) -> None:
    paths = [os.path.realpath(path) for path in (directory, target)]
    if os.path.commonpath(paths) == paths[0]:
        raise click.UsageError(f"{target} must not be in {directory}: no daemon would start there")


@journal.command(
    "delayd journal repair /var/lib/delayd --truncate-at 3:4711",
    short_help="Cut the log of DIRECTORY where it cannot be read.",
)
@click.argument("directory", type=DIRECTORY)
@click.option(
    "--truncate-at",
    "place",
    type=Checked("place", _place),
    metavar="SEGMENT:OFFSET",
    required=True,
    help="Discard everything after this place; a copy is kept.",
)
@YES
def repair(directory: str, place: tuple[int, int], *, yes: bool) -> int:
    """Cut the log of DIRECTORY where it can no longer be read, and keep a copy of the rest.

    This discards jobs and changes that had been acknowledged. See `delayd journal check`.
    """
    disk = RealDisk()
    try:
        with journal_errors(), prepared(disk, directory, *place) as operation:
            where = f"{operation.path} from offset {place[1]} on: {operation.rest}"
            click.echo(visible(where), err=True)
            if not confirmed("Give all of this up?", yes=yes):
                raise CommandFailed(Exit.USAGE, "nothing was changed")
            print_lines([visible(f"cut: {tail}") for tail in operation.cut()])
    except NoSuchPlace as error:
        raise CommandFailed(Exit.USAGE, str(error)) from error
    with journal_errors():
        examination = examine(disk, directory)
    print_lines(map(visible, examination.lines()))
    return Exit.CORRUPT_JOURNAL if examination.refusal else Exit.OK


@contextlib.contextmanager
def attended(disk: Disk, directory: str) -> Iterator[None]:
    """Warn if a daemon writes to the directory while it is read."""
    warning = "holds {} and is writing to it: what was read may be incomplete"
    before = holder(disk, directory)
    if before:
        complain(f"{before} {warning.format(directory)}")
    yield
    after = holder(disk, directory)
    if after and not before:
        complain(f"{after} {warning.format(directory)}")
