"""The jobs that wait: `jobs` lists them, `peek` shows one; the others change them."""

import itertools
from typing import TYPE_CHECKING, Any

import click

from delayd.cli.connect import with_client
from delayd.cli.help import examples
from delayd.cli.parameters import DURATION, MOMENT, PRIORITY, takes
from delayd.cli.put import body_of
from delayd.cli.reserve import body_fields
from delayd.cli.selection import FILTERS, MANY, WHICH, carried_out, filter_of, selection
from delayd.cli.tables import (
    JSON_OPTION,
    cut,
    print_fields,
    print_json,
    print_table,
    shown,
    time_shown,
)
from delayd.cli.terminal import CommandFailed, complain, print_lines
from delayd.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import BinaryIO

    from delayd.client.results import JobInfo
    from delayd.client.sync import Client

BODY_COLUMNS = 40
TIMES = (
    click.option("--delay", type=DURATION, help="How long until they are due: 15s, 30m, 7d."),
    click.option("--at", type=MOMENT, help="When they are due: 2030-01-01T09:00:00Z."),
)


# --- Looking -------------------------------------------------------------------------------------


@click.command(
    epilog=examples(
        "delayd jobs orders",
        "delayd jobs orders --state delayed --to 1h --bodies",
        "delayd jobs orders --prefix order- --limit 0 --json | jq -r .key",
    )
)
@click.argument("topic")
@takes(*FILTERS)
@click.option("--limit", type=click.IntRange(0), default=100, help="How many at most; 0: all. 100.")
@click.option("--bodies", is_flag=True, help="Show the bodies too.")
@JSON_OPTION
@with_client
def jobs(
    client: "Client",
    topic: str,
    states: tuple[str, ...],
    prefix: str | None,
    due_from: str | None,
    due_to: str | None,
    *,
    limit: int,
    bodies: bool,
    as_json: bool,
) -> int:
    """List the jobs of TOPIC in the order in which they are due."""
    which = filter_of(states, prefix, due_from, due_to)
    # One more than is shown tells whether there are more.
    found = client.jobs(topic, limit=limit + 1 if limit else None, bodies=bodies, **which)
    page = list(itertools.islice(found, limit)) if limit else found
    if as_json:
        print_json(map(job_fields, page))
    else:
        print_jobs(page, bodies=bodies)
    if limit and next(found, None) is not None:
        complain(f"there are more than {limit}: --limit, or a filter")
    return Exit.OK


def print_jobs(found: "Iterable[JobInfo]", *, bodies: bool) -> None:
    """Print a table of jobs."""
    columns = ["id", "state", "due", "priority", "key", "attempts", "failure"]
    rows = [
        [
            *(job.id, job.state, job.due, job.priority, job.key, job.attempts or ""),
            job.failure and cut(f"{job.failure.reason}: {job.failure.error}", BODY_COLUMNS),
            *([cut(shown(job.body), BODY_COLUMNS)] if bodies else []),
        ]
        for job in found
    ]
    if rows:
        print_table([*columns, *(["body"] if bodies else [])], rows)
    else:
        complain("there is no such job")


def job_fields(job: "JobInfo") -> dict[str, Any]:
    """Return all that is known of a job, for JSON."""
    body = {} if job.body is None else body_fields(job.body)
    return {"topic": job.topic, **job.details, **body}


@click.command(
    epilog=examples(
        "delayd peek 17",
        "delayd peek --topic orders --key order-17 --json",
        "delayd peek --topic orders --state buried    # the first",
    )
)
@takes(*WHICH)
@click.option(
    "--state",
    type=click.Choice(["delayed", "ready", "reserved", "buried"]),
    default="ready",
    help="The first of the topic in this state; without --key. ready.",
)
@click.option("--body", "only_body", is_flag=True, help="Print the body and nothing else.")
@JSON_OPTION
@with_client
def peek(
    client: "Client",
    ids: tuple[int, ...],
    topic: str | None,
    key: str | None,
    *,
    state: str,
    only_body: bool,
    as_json: bool,
) -> int:
    """Show a job with its body, and why it failed if it did; nothing is changed."""
    from delayd.cli.reserve import print_body

    if bool(ids) == bool(topic):
        raise click.UsageError("which job? Give IDs, or --topic with --key or --state")
    found: list[JobInfo | None]
    if ids:
        found = [client.get(job_id) for job_id in ids]
    elif topic is not None and key is not None:
        found = [client.find(topic, key)]
    else:
        found = [client.peek(str(topic), state)]  # type: ignore[arg-type]
    for job in found:
        if job is None:
            raise CommandFailed(Exit.NOTHING_THERE, f"no job of {topic} is {state}")
        if as_json:
            print_json([job_fields(job)])
        elif only_body:
            print_body(job.body or b"")
        else:
            print_job(job)
    return Exit.OK


def print_job(job: "JobInfo") -> None:
    """Print a job for a person."""
    failure = job.failure
    print_fields(
        [
            *(("id", job.id), ("topic", job.topic), ("state", job.state), ("key", job.key)),
            *(("due", job.due), ("created", job.created), ("expires", job.expires)),
            *(("priority", job.priority), ("ttr", job.ttr and f"{job.ttr:g} s")),
            ("attempts", job.attempts),
            ("failed", failure and f"{failure.reason} at {failure.at and time_shown(failure.at)}"),
            ("error", failure and failure.error),
            ("moved from", failure and failure.origin),
            ("body", job.body),
        ]
    )


# --- Changing ------------------------------------------------------------------------------------


@click.command(
    epilog=examples(
        "delayd cancel 17 18",
        "delayd cancel --topic orders --key order-17",
        "delayd cancel --topic orders --prefix order- --dry-run",
    )
)
@takes(*WHICH, *FILTERS, *MANY)
@with_client
def cancel(
    client: "Client", ids: tuple[int, ...], topic: str | None, key: str | None, **rest: Any
) -> int:
    """Delete jobs that wait or are buried: by ID, by key, or all of a topic that match."""
    chosen = selection(ids, topic, key, **rest)
    return carried_out(chosen, "cancelled", client.cancel, client.cancel_many)


@click.command(
    epilog=examples(
        "delayd kick 17",
        "delayd kick --topic orders --key order-17",
        "delayd kick --topic mail --state buried --yes",
    )
)
@takes(*WHICH, *FILTERS, *MANY)
@with_client
def kick(
    client: "Client", ids: tuple[int, ...], topic: str | None, key: str | None, **rest: Any
) -> int:
    """Make delayed or buried jobs ready now: by ID, by key, or all of a topic that match."""
    chosen = selection(ids, topic, key, **rest)
    return carried_out(chosen, "kicked", client.kick, client.kick_many)


@click.command(
    epilog=examples(
        "delayd reschedule 17 --delay 1h",
        "delayd reschedule --topic orders --key order-17 --at 2030-01-01T09:00:00Z",
        "delayd reschedule --topic mail --to 1h --delay 2h --dry-run",
    )
)
@takes(*WHICH, *TIMES, *FILTERS, *MANY)
@with_client
def reschedule(
    client: "Client",
    ids: tuple[int, ...],
    topic: str | None,
    key: str | None,
    *,
    delay: str | None,
    at: str | None,
    **rest: Any,
) -> int:
    """Give waiting jobs another time: by ID, by key, or all of a topic that match."""
    if (delay is None) == (at is None):
        raise click.UsageError("when? Give --delay or --at")
    timing: Any = {"delay": delay} if at is None else {"at": at}

    def many(topic: str, **which: Any) -> int:
        return client.reschedule_many(topic, timing, **which)

    def one(*name: Any) -> None:
        client.reschedule(*name, **timing)

    return carried_out(selection(ids, topic, key, **rest), "rescheduled", one, many)


@click.command(
    epilog=examples(
        "delayd change 17 --priority 10",
        "delayd change --topic orders --key order-17 --body 'close at once' --delay 5m",
    )
)
@takes(*WHICH, *TIMES)
@click.option("--priority", type=PRIORITY, help="0 is the most urgent.")
@click.option("--ttr", type=DURATION, help="How long a worker may hold it.")
@click.option("--body", metavar="TEXT", help="Another body; - reads standard input.")
@click.option("--file", type=click.File("rb"), help="Read the body from a file.")
@with_client
def change(
    client: "Client",
    ids: tuple[int, ...],
    topic: str | None,
    key: str | None,
    *,
    body: str | None,
    file: "BinaryIO | None",
    **given: Any,
) -> int:
    """Change a waiting or buried job in one step; what is not given stays."""
    chosen = selection(ids, topic, key)
    changes = {name: said for name, said in given.items() if said is not None}
    if "delay" in changes and "at" in changes:
        raise click.UsageError("--delay and --at exclude each other")
    if body is not None or file is not None:
        changes["body"] = body_of(body, file)
    if not changes:
        raise click.UsageError("what is to change? --delay, --at, --priority, --ttr, --body")
    for name in chosen.names:
        due = client.change(*name, **changes)
        print_lines(["changed" if due is None else f"changed: due {time_shown(due)}"])
    return Exit.OK
