"""`delayd put`: one job from the command line, or many from NDJSON (`delayd.cli.ndjson`)."""

import sys
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click

from delayd.cli.connect import known_topics, with_client
from delayd.cli.job_options import BODY_FILE, OF_NEW, body_of, fields_of
from delayd.cli.ndjson import (
    ahead,
    body_bytes_max,
    check_lines,
    lines_of,
    print_ids,
    print_outcomes,
    put_lines,
    reader_for,
)
from delayd.cli.parameters import DURATION, MOMENT, command, takes
from delayd.cli.tables import JSON_OPTION, print_answer, time_shown
from delayd.cli.terminal import CommandFailed, complain
from delayd.exits import Exit

if TYPE_CHECKING:
    import datetime as dt

    from delayd.client.sync import Client

PAST_MS: Final = 1_000
"""By more than any tick: a time is rounded up to the next one."""
OTHERS: Final = "; --keep-going puts the others"


def no_such_option(_ctx: click.Context, option: click.Parameter, value: str | None) -> None:
    """Refuse an option for the body, and say how to give one. Raises `click.UsageError`."""
    if value is not None:
        raise click.UsageError(
            f"put has no {option.opts[0]}: the body is an argument, --file FILE or standard input,"
            " as in: delayd put TOPIC 'hello'"
        )


@command(
    "delayd put mail 'hello' --delay 15s",
    "delayd put orders close --delay 30m --key order-17 --on-conflict extend",
    "delayd put orders close --delay 30m --call https://example.com/due",
    "delayd put reports --file report.json --at 2030-01-01T09:00:00Z",
    'echo \'{"to": "ada"}\' | delayd put mail',
    'delayd put mail --ndjson jobs.ndjson    # {"body": ..., "delay": "1h", "key": ...}',
)
@click.argument("topic", shell_complete=known_topics)
@click.argument("body", required=False)
@click.option(
    *("no_body", "--body", "--data"),
    callback=no_such_option,
    expose_value=False,
    hidden=True,
    help="There is none: the body is an argument.",
)
@BODY_FILE
@click.option(
    "--ndjson", type=click.File("rb"), help="Put many jobs: one JSON object a line; - is stdin."
)
@click.option(
    "--keep-going",
    is_flag=True,
    help="With --ndjson: report wrong lines and put the others, as they are read.",
)
@click.option(
    "--from-line",
    type=click.IntRange(1),
    metavar="N",
    help="With --ndjson: begin with line N, to continue a file.",
)
@click.option("--delay", type=DURATION, help="How long until it is due: 15s, 30m, 1h30m, 7d.")
@click.option("--at", type=MOMENT, help="When it is due: 2030-01-01T09:00:00Z.")
@click.option("--key", metavar="KEY", help="A name of yours, unique in the topic.")
@click.option(
    "--on-conflict",
    type=click.Choice(["reject", "keep", "replace", "preserve", "extend"]),
    help="What to do if a job has the key already; by default reject.",
)
@takes(*OF_NEW)
@click.option(
    "--instead-of",
    metavar="TOPIC:ID",
    help="End that job in the same step; no job is put if it is not there.",
)
@click.option("--idempotency-key", metavar="TEXT", help="Makes it safe to repeat this command.")
@JSON_OPTION
@with_client
def put(
    client: "Client",
    topic: str,
    body: str | None,
    *,
    file: BinaryIO | None,
    ndjson: BinaryIO | None,
    keep_going: bool,
    from_line: int | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Put a job into TOPIC: BODY, a file, or standard input.

    Prints the id of the job. When the command ends, the job is on the daemon's disk.

    With --ndjson the options apply to each line that does not set them itself. All lines are looked
    at before the first is put, of a pipe up to 64 MiB: their form, and the length of their bodies
    if the token has the scope stats. With --keep-going each is looked at when its turn comes.
    """
    job = fields_of(**options)
    if ndjson is not None:
        if body is not None or file is not None:
            raise click.UsageError("with --ndjson the bodies are in its lines")
        if "idempotency_key" in job:
            raise click.UsageError("--idempotency-key is for one job; give each line a key")
        read, first = reader_for(topic, job), from_line or 1
        if not keep_going:
            ndjson = ahead(ndjson, ", or --keep-going")
            start = ndjson.tell()
            longest = check_lines(lines_of(ndjson, read, first), otherwise=OTHERS)
            ndjson.seek(start)
            if longest > (most := body_bytes_max(client, topic)):
                check_lines(lines_of(ndjson, read, first), most, OTHERS)
        tell = print_outcomes if as_json else print_ids
        return put_lines(client, ndjson, read, first, where=topic, tell=tell)
    if keep_going or from_line is not None:
        raise click.UsageError("--keep-going and --from-line are for --ndjson")
    result = client.put(topic, body_of(body, file), **job)
    warn_of_past(job.get("at"), result.due)
    try:
        print_answer(result._asdict(), str(result.id), as_json=as_json)
    except CommandFailed as failed:
        raise CommandFailed(failed.exit_code, f"job {result.id} was put: {failed}") from failed
    if sys.stdout.isatty() and not as_json:
        due = "" if result.due is None else f", due {time_shown(result.due)}"
        complain(f"{result.outcome}{due}")
    return Exit.OK


def warn_of_past(at: str | None, due: "dt.datetime | None") -> None:
    """Say that a job is due now, because the time that was given has passed."""
    from delayd.moments import parse_moment_ms

    if (
        at is not None
        and due is not None
        and due.timestamp() * 1_000 > parse_moment_ms(at) + PAST_MS
    ):
        complain(f"{at} is in the past: the job is due at once")
