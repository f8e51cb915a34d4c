"""Logs in PostgreSQL for `delayd journal`: where they are, and what a check says of them.

Everything of PostgreSQL is imported when a url was given.
"""

import sys
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from delayd.cli.journal_report import FrameSource, Played, collector_off
from delayd.cli.terminal import load_config, require_psycopg
from delayd.clock import system_wall_ms
from delayd.config import DATABASE_URL, LOG_NAME
from delayd.exits import Exit
from delayd.limits import DATABASE_ANSWER_MS
from delayd.log import LogError
from delayd.log_lines import Log
from delayd.text import visible

if TYPE_CHECKING:
    from delayd.postgres.copies import DatabaseSource
    from delayd.postgres.place import DatabasePlace
    from delayd.postgres.rows import LogRow

_US_PER_S: Final = 1_000_000


class LogOptions(NamedTuple):
    """What a command was told about the log in a database, beside its url."""

    name: str | None
    """None: the one of the configuration."""
    config_path: str | None


def is_url(text: str) -> bool:
    """Tell whether this names a database and no directory."""
    return text.startswith(("postgresql:", "postgres:"))


def check_name(option: str, name: str) -> None:
    """Raise UsageError unless it can be the name of a log or a role."""
    try:
        LOG_NAME.read(name)
    except ValueError as rule:
        raise click.UsageError(f"{option} {visible(repr(name))} {rule}") from None


def place_of(url: str, options: LogOptions) -> "DatabasePlace":
    """Return the place of the log. Raises LogError and CommandFailed."""
    config = load_config(options.config_path, {})
    name = config.postgres_name if options.name is None else options.name
    check_name("--name", name)
    try:
        DATABASE_URL.read(url)
    except ValueError as rule:  # the url may have a password, so it is not shown
        raise click.UsageError(f"the url of the database {rule} (--config FILE)") from None
    require_psycopg("a log in PostgreSQL", Exit.USAGE)
    from delayd.postgres.place import DatabasePlace

    return DatabasePlace.of(
        url,
        name=name,
        lease_ms=DATABASE_ANSWER_MS,
        address="",
        password_file=config.postgres_password_file,
    )


def source_of(url: str, options: LogOptions, *, may_be_owned: bool) -> "DatabaseSource":
    """Open the log for reading. Raises LogError and CommandFailed."""
    place = place_of(url, options)
    from delayd.postgres.copies import DatabaseSource

    return DatabaseSource(place, Log(sys.stderr, system_wall_ms), may_be_owned=may_be_owned)


def frames_of(source: "DatabaseSource") -> Iterator[FrameSource]:
    """Yield the frames that a start would replay."""
    for frame in source.frames():
        yield FrameSource(frame, is_snapshot=frame.sequence <= source.row.snapshot)


def examined(url: str, options: LogOptions) -> tuple[list[str], Exit]:
    """Do what a start does before it takes over; return the findings, and how the check ends.

    Raises LogError where the database cannot be asked.
    """
    played, refusal = Played(), None
    with closing(source_of(url, options, may_be_owned=True)) as source, collector_off():
        try:
            played.play(frames_of(source), source.shown)
        except LogError as error:
            if error.exit_code is not Exit.CORRUPT_JOURNAL:
                raise
            refusal = error
        row = source.row
    lines = [f"log        {source.shown}, {source.name}", f"owner      {_owner(row)}"]
    if row.snapshot:
        lines.append(f"snapshot   of frame {row.snapshot}, {row.snapshot_bytes} bytes")
    if played.first_of_log and played.last:
        span = f"{played.first_of_log.sequence} to {played.last.frame.sequence}"
        lines.append(f"frames     {span}, all of them durable")
    lines += [*played.times(), *played.state()]
    if refusal is not None:
        lines += (f"verdict    refuse: {refusal}", "           a start changes nothing")
        return lines, Exit.CORRUPT_JOURNAL
    whole = "the log is whole" if played.last else "there is no frame, a new log would begin"
    lines.append(f"verdict    accept: {whole}")
    return lines, Exit.OK


def _owner(row: "LogRow") -> str:
    left_s = (row.lease_us - row.now_us) / _US_PER_S
    if left_s <= 0:
        return f"none; epoch {row.epoch}"
    address = row.address or "another daemon"
    return f"{address}, for {left_s:.1f} s unless it goes on; epoch {row.epoch}"
