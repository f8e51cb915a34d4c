"""`delayd import-beanstalkd`: from a beanstalkd's binlog to a delayd's journal, in one command."""

import os

import click

from delayd.binlog.convert import held, topic_for, write
from delayd.binlog.files import Binlog, sized_files
from delayd.cli.journal_report import collector_off, jobs_of
from delayd.cli.parameters import command
from delayd.cli.terminal import (
    CommandFailed,
    complain,
    journal_errors,
    load_config,
    print_lines,
    progress,
)
from delayd.clock import SystemClock
from delayd.core.engine import Engine
from delayd.core.names import INTERNAL_TOPICS
from delayd.exits import Exit
from delayd.journal.disk import Disk, RealDisk
from delayd.journal.format import IMPORT_MARKER
from delayd.journal.new import new_journal


@command(
    "delayd import-beanstalkd /var/lib/beanstalkd --data-dir /var/lib/delayd",
    "delayd import-beanstalkd /var/lib/beanstalkd --data-dir /srv/jobs --user beanstalkd",
)
@click.argument("binlog_dir", type=click.Path(exists=True, file_okay=False))
@click.option("--config", "path", metavar="FILE", help="TOML file; see config.example.toml.")
@click.option("--data-dir", metavar="DIR", help="The directory for the jobs, new or empty.")
@click.option("--skip-damage", is_flag=True, help="Skip what cannot be read.")
@click.option("--user", metavar="USER", help="Who is to own the files: the user of -u.")
def import_beanstalkd(
    binlog_dir: str, path: str | None, data_dir: str | None, *, skip_damage: bool, user: str | None
) -> None:
    """Import the jobs of a stopped beanstalkd from BINLOG_DIR (its -b).

    The binlog is only read. The data directory must be empty or missing. Jobs keep their
    ids, tubes, priorities, times, counters and states.
    """
    disk = RealDisk()
    config = load_config(path, {"--data-dir": data_dir})
    if config.postgres_url is not None and data_dir is None:
        rule = "name a --data-dir, and copy it with `delayd journal copy DIR URL`"
        raise click.UsageError(
            f"the configuration keeps jobs in the database of postgres.url: {rule}"
        )
    directory = str(config.data_dir)
    if os.path.realpath(directory) == os.path.realpath(binlog_dir):
        raise click.UsageError("the data directory must be another one than the binlog's")
    owner = None if user is None else account(user)
    # Before anything else: without --data-dir the command line does not show the target.
    complain(f"the jobs go to {os.path.abspath(directory)}")
    with journal_errors(), collector_off(), held(disk, binlog_dir):
        binlog = read(disk, binlog_dir, skip_damage=skip_damage)
        for tube in sorted(INTERNAL_TOPICS.intersection(binlog.tubes)):
            name = topic_for(tube, binlog.tubes)
            complain(f"the jobs of the tube {tube}, which delayd uses itself, go to {name}")
        clock = SystemClock()
        engine = Engine(
            start_ms=clock.now_ms(), tick_ms=config.tick_ms, wheel_size=config.wheel_size
        )
        with new_journal(disk, directory, config.segment_bytes, IMPORT_MARKER) as journal:
            write(binlog, journal, engine, clock.wall_ms())
        if owner is not None:
            give(directory, owner)
    print_lines([f"{directory} now holds {jobs_of(engine)}"])


def account(user: str) -> tuple[int, int]:
    """Return the numbers of a user and its group. Raises CommandFailed."""
    import pwd

    try:
        found = pwd.getpwnam(user)
    except KeyError:
        raise CommandFailed(Exit.USAGE, f"--user {user}: there is no such user") from None
    return found.pw_uid, found.pw_gid


def give(directory: str, owner: tuple[int, int]) -> None:
    """Make a user the owner of the directory and its files. Raises CommandFailed."""
    try:
        names = RealDisk().list_directory(directory)
        for path in (directory, *(os.path.join(directory, name) for name in names)):
            os.chown(path, *owner)
    except OSError as error:
        why = f"{error.filename} cannot be given to that user: {error.strerror}"
        raise CommandFailed(Exit.JOURNAL_FAILED, f"the jobs are imported, but {why}") from error


def read(disk: Disk, binlog_dir: str, *, skip_damage: bool) -> Binlog:
    """Read the binlog, and report the parts that were left out. Raises `JournalError`."""
    files = sized_files(disk, binlog_dir)
    if not files:
        raise click.UsageError(f"{binlog_dir} holds no binlog of beanstalkd: no file binlog.1")
    with progress("reading", sum(files.values())) as on_bytes:
        binlog = Binlog.read(disk, binlog_dir, files, skip_damage=skip_damage, on_bytes=on_bytes)
    for place in binlog.torn:
        complain(f"{place}: beanstalkd had not finished writing it; left out, as it would do")
    for place in binlog.damage:
        complain(f"{place}: left out, with the rest of the file")
    return binlog
