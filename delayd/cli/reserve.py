"""`delayd reserve`, and the commands for a reservation: `ack`, `nack`, `touch`, `bury`.

A reservation is named by its token, which `reserve` prints. It belongs to no connection and no
process, so that the commands of a script can share it. On the line protocol it belongs to its
connection, so there `reserve` works with `--ack` alone.
"""

import binascii
import sys
from typing import TYPE_CHECKING, Any, Final

import click

from delayd.cli.connect import known_topics, with_client
from delayd.cli.parameters import DRY_RUN, DURATION, PRIORITY, command, takes
from delayd.cli.selection import WHICH, Selection, each_named, each_of
from delayd.cli.tables import JSON_OPTION, print_answer, print_json, time_shown
from delayd.cli.terminal import CommandFailed, cannot_write, complain, print_lines
from delayd.client.results import TEXTS
from delayd.exits import Exit
from delayd.text import counted, visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from delayd.client.sync import Client, Job

TOKENS: Final = click.argument("tokens", nargs=-1, required=True, metavar="TOKEN...")

NOT_TAKEN: Final = "{}: job {} was not taken, {} given back"


@command(
    "delayd reserve mail --wait 30s",
    "delayd reserve mail sms --count 10 --json",
    "delayd reserve mail --wait 1m --ack > job.txt      # take it, and be done",
    "token=$(delayd reserve mail --json | jq -r .token); delayd ack $token",
)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...", shell_complete=known_topics)
@click.option(
    "--wait", type=DURATION, default="0", help="How long to wait for a job; by default not at all."
)
@click.option("--count", type=click.IntRange(1, 1000), default=1, help="How many at most.")
@click.option("--ack", "is_acked", is_flag=True, help="Acknowledge at once what is printed.")
@JSON_OPTION
@with_client
def reserve(
    client: "Client",
    topics: tuple[str, ...],
    *,
    wait: str,
    count: int,
    is_acked: bool,
    as_json: bool,
) -> None:
    """Reserve the most urgent ready job of the TOPICs, and print its body.

    Without --ack the job is yours until its ttr ends: acknowledge it with the token that is printed
    on standard error, or that is in the JSON. Into a pipe or a file the body goes byte for byte;
    with --count each body ends a line. Exit code 66 if no job was ready in time.
    """
    wanted: str | Sequence[str] = topics[0] if len(topics) == 1 else topics
    jobs = client.reserve_many(wanted, limit=count, timeout=wait)
    for number, job in enumerate(jobs):
        if not (job.token or is_acked):  # it is given back when the connection closes
            raise CommandFailed(
                Exit.USAGE,
                "on the line protocol a reservation ends with its connection: use --ack or --url",
            )
        if why := not_printed(job, as_json=as_json, is_one=count == 1):
            for left in jobs[number:]:  # they were not printed
                left.release()
            back = counted(len(jobs) - number, "job")
            raise CommandFailed(Exit.OUTPUT_FAILED, NOT_TAKEN.format(why, job.id, back))
        if not (as_json or is_acked):
            reserved = f"job {job.id} of {job.topic}, attempt {job.attempt}"
            until = "" if job.expires is None else f" until {time_shown(job.expires)}"
            complain(f"{reserved}{until}: delayd ack {job.token}")
        if is_acked:
            job.ack()
    if not jobs:
        raise CommandFailed(Exit.NOTHING_THERE, f"no job of {', '.join(topics)} was ready in time")


def not_printed(job: "Job", *, as_json: bool, is_one: bool) -> str:
    """Print a job in hand; return why it could not be, empty if it was."""
    try:
        if as_json:
            is_taken = print_json([reservation(job)])
        else:
            is_taken = print_body(job.body, is_one=is_one)
    except CommandFailed as failed:
        return str(failed)
    return "" if is_taken else "the output is not read"


def reservation(job: "Job") -> dict[str, Any]:
    """Return a job in hand, for JSON."""
    fields = job.reservation._asdict()
    del fields["body"], fields["link"]
    fields |= {name: fields[name] or None for name in ("key", *TEXTS)}
    if (failure := job.failure) is not None:
        fields["failure"] = {"reason": failure.reason, "error": failure.error}
    return {**fields, **body_fields(job.body)}


def body_fields(body: bytes) -> dict[str, Any]:
    """Return a body for JSON: as text, or in base64 if it is none."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": binascii.b2a_base64(body, newline=False).decode()}


def print_body(body: bytes, *, is_one: bool) -> bool:
    """Print a body; tell whether the output is read. Raises CommandFailed.

    Into a pipe or a file a single body goes byte for byte; of several each ends a line. On a
    terminal it ends a line too, and invisible characters are escaped.
    """
    if sys.stdout.isatty():
        text = body.decode(errors="replace")
        return print_lines([visible(text, keeps="\n\t")])
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(body)
        sys.stdout.buffer.write(b"" if is_one or body.endswith(b"\n") else b"\n")
        sys.stdout.flush()
    except BrokenPipeError:
        return False
    except OSError as error:
        raise cannot_write(error) from error
    return True


@command(
    "delayd ack 1-1a1ff7acb80-1", "delayd reserve ... --json | jq -r .token | xargs delayd ack"
)
@TOKENS
@with_client
def ack(client: "Client", tokens: tuple[str, ...]) -> int:
    """Acknowledge jobs by the TOKENs of their reservations: they are done and deleted."""
    return each_of(tokens, client.ack)


@command("delayd nack 1-1a1ff7acb80-1 --error 'no route to host' --delay 5m")
@TOKENS
@click.option(
    "--delay",
    type=DURATION,
    help="How long until it is tried again; by default as its retry rule says.",
)
@click.option("--error", default="", metavar="TEXT", help="Why; it is kept with the job.")
@click.option("--priority", type=PRIORITY, help="Give it another priority.")
@click.option("--dead", is_flag=True, help="Do not try it again: make it a dead letter.")
@JSON_OPTION
@with_client
def nack(client: "Client", tokens: tuple[str, ...], *, as_json: bool, **how: Any) -> int:
    """Report that the attempt failed, by TOKEN; print what becomes of the job."""

    def one(token: str) -> None:
        became = client.nack(token, **how)
        due = "" if became.due is None else f" until {time_shown(became.due)}"
        line = f"{token.partition('-')[0]} {became.state}{due} in {became.topic}"
        print_answer({"token": token, **became._asdict()}, line, as_json=as_json)

    return each_of(tokens, one)


@command("delayd touch 1-1a1ff7acb80-1")
@TOKENS
@with_client
def touch(client: "Client", tokens: tuple[str, ...]) -> int:
    """Extend reservations by a full ttr from now, by TOKEN; print when they end."""

    def one(token: str) -> None:
        expires = client.touch(token)
        if expires is not None:
            print_lines([time_shown(expires)])

    return each_of(tokens, one)


@command(
    "delayd bury 1-1a1ff7acb80-1 --error 'no such user'",
    "delayd bury 17 18 --error 'wrong amount'",
    "delayd bury --topic orders --key order-17 --dry-run",
)
@click.argument("names", nargs=-1, metavar="[TOKEN|ID]...")
@takes(*WHICH[1:])
@click.option("--error", default="", metavar="TEXT", help="Why; it is kept with the job.")
@DRY_RUN
@with_client
def bury(
    client: "Client",
    names: tuple[str, ...],
    topic: str | None,
    key: str | None,
    *,
    error: str,
    dry_run: bool,
) -> int:
    """Set jobs aside until they are kicked or redriven.

    Those in hand by the TOKENs of their reservations, those that wait by ID or by key.
    """

    def one(*name: Any) -> None:
        client.bury(*name, error=error)

    ids = tuple(int(name) if name.isdecimal() else name for name in names)
    chosen = Selection(ids, topic, key, dry_run=dry_run).checked()
    if names and not dry_run and all(isinstance(name, str) for name in ids):
        return each_of(names, one)
    return each_named(chosen, "buried", one)
