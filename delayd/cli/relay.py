"""`delayd relay URL`: put the rows that an application has committed to its outbox.

`delayd.outbox` does the work, which knows nothing of the daemon but its client.
"""

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import click

from delayd.cli.connect import with_patience
from delayd.cli.parameters import command
from delayd.cli.tables import JSON_OPTION, print_json
from delayd.cli.terminal import CommandFailed, complain, print_lines
from delayd.clock import system_wall_ms
from delayd.exits import Exit
from delayd.log_lines import Log
from delayd.text import parse_whole, visible

if TYPE_CHECKING:
    from delayd.client.sync import Client
    from delayd.outbox.permits import Permits
    from delayd.outbox.table import Table

TOPIC: Final = "outbox"
ALL: Final = "all"


@command(
    "delayd relay --schema postgresql | psql",
    "delayd relay postgresql://shop@db-1/shop",
    "delayd relay sqlite:///shop.db",
    "delayd relay postgresql://shop@db-1/shop --failed",
    "delayd relay postgresql://shop@db-1/shop --retry all",
)
@click.argument("database", metavar="URL", required=False, envvar="DELAYD_OUTBOX_URL")
@click.option("--schema", metavar="VENDOR", help="Print the table for postgresql or sqlite.")
@click.option(
    "--topic", default=TOPIC, help="Where the relay keeps small jobs, for itself alone: outbox."
)
@click.option("--drain", is_flag=True, help="End when no row is left that can be put now.")
@click.option("--failed", is_flag=True, help="List the rows that cannot be put, and why.")
@click.option("--retry", metavar="ROW", help="Try a row that has failed again, or all.")
@click.option("--drop", metavar="ROW", help="Delete a row that has failed.")
@JSON_OPTION
@with_patience(0.0)
def relay(
    daemon: "Client",
    database: str | None,
    *,
    schema: str | None,
    topic: str,
    drain: bool,
    failed: bool,
    retry: str | None,
    drop: str | None,
    as_json: bool,
) -> None:
    """Put the rows of the outbox in the database at URL, exactly once, and delete them.

    Waits for rows until SIGTERM or Ctrl-C, and for the database and the daemon where one of them is
    away. Several relays may run for one table: one is at work. The URL is postgresql://... or
    sqlite:///PATH; from the environment it is DELAYD_OUTBOX_URL, where a password is not seen by
    all users of the machine.
    """
    if schema is not None:
        from delayd.outbox.schema import schema as schema_of

        try:
            print_lines(schema_of(schema).splitlines())
        except ValueError as error:
            raise CommandFailed(Exit.USAGE, str(error)) from None
        return
    if database is None:
        raise click.UsageError("the url of the database is missing: postgresql://... or sqlite:///")
    if [drain, failed, retry is not None, drop is not None].count(True) > 1:
        raise click.UsageError("--drain, --failed, --retry and --drop exclude each other")
    from delayd.outbox.databases import connected
    from delayd.outbox.permits import Permits
    from delayd.outbox.table import Table

    with _table_errors():
        table, permits = Table(connected(database)), Permits(daemon, topic)
        if failed:
            _print_failed(table, as_json=as_json)
        elif retry is not None:
            tried = table.retry(None if retry == ALL else _number(retry))
            if not tried and retry != ALL:
                raise CommandFailed(Exit.NOTHING_THERE, f"no row {retry} has failed")
            print_lines([str(tried)])
        elif drop is not None:
            _drop(table, permits, drop)
        else:
            _run(table, permits, is_draining=drain)


def _drop(table: "Table", permits: "Permits", row: str) -> None:
    """Delete a row, and then its permit: a row whose permit is gone counts as put."""
    from delayd.client.errors import DelaydError

    key = table.drop(_number(row))
    if key is None:
        raise CommandFailed(Exit.NOTHING_THERE, f"no row {row} has failed")
    try:
        permits.give_back(key)
    except DelaydError as error:
        complain(f"row {row} is deleted; its permit {key} stays with the daemon: {error}")


def _run(table: "Table", permits: "Permits", *, is_draining: bool) -> None:
    from delayd.outbox.permits import DaemonUnfit
    from delayd.outbox.relay import Relay
    from delayd.outbox.stop import StopSignal

    log = Log(sys.stderr, system_wall_ms)
    with StopSignal() as stop:
        stop.on_signals()
        worker = Relay(table, permits, stop, log)
        try:
            worker.start()
            worker.run(is_draining=is_draining)
        except DaemonUnfit as error:
            raise CommandFailed(Exit.NOT_ALLOWED, str(error)) from None
        log.info("stopped")


def _print_failed(table: "Table", *, as_json: bool) -> None:
    from delayd.outbox.table import FAILED_MAX

    found = table.failed()
    rows = found[:FAILED_MAX]
    if as_json:
        print_json([row._asdict() for row in rows])
    else:
        if not rows:
            complain("no row has failed")
        lines = (f"{row.id}  {row.put_at}  {row.topic}  {row.error}" for row in rows)
        print_lines(map(visible, lines))
    if len(found) > len(rows):
        complain(f"more than {len(rows)} rows have failed: these are the oldest")


def _number(text: str) -> int:
    number = parse_whole(text)
    if number is None:
        raise click.UsageError(f"{text!r} is not the number of a row; --failed lists them")
    return number


@contextlib.contextmanager
def _table_errors() -> Iterator[None]:
    """Make the command fail where the database cannot be used, or is away."""
    from delayd.outbox.table import TableAway, TableUnfit

    try:
        yield
    except TableUnfit as error:
        raise CommandFailed(Exit.BAD_CONFIGURATION, str(error)) from None
    except TableAway as error:
        raise CommandFailed(Exit.UNREACHABLE, str(error)) from None
