"""`delayd dead`: jobs that failed for good, why, and how they get another chance."""

from typing import TYPE_CHECKING

import click

from delayd.cli.connect import known_topics, seen, with_client
from delayd.cli.jobs import failed_at, job_fields, print_job
from delayd.cli.tables import JSON_OPTION, Column, cut, print_json, print_table, shown
from delayd.cli.terminal import CommandFailed, complain, confirmed, examples, print_lines
from delayd.exits import Exit
from delayd.text import counted

if TYPE_CHECKING:
    from delayd.client.results import JobInfo
    from delayd.client.sync import Client

TEXT_COLUMNS = 40
COUNTS = (Column("topic", text_least=8), Column("dead letters"))
COLUMNS = (
    *(Column("id"), Column("failed at", 2), Column("attempts", 5)),
    *(Column("why", 1, text_least=12), Column("key", 3, text_least=6)),
    Column("body", 4, text_least=8),
)


@click.group()
def dead() -> None:
    """List dead letters, show why they failed, and redrive them."""


@dead.command(
    "list",
    epilog=examples(
        "delayd dead list", "delayd dead list mail --limit 20", "delayd dead list mail --json"
    ),
)
@click.argument("topic", required=False, shell_complete=known_topics)
@click.option("--limit", type=click.IntRange(1), default=100, help="How many at most: 100.")
@JSON_OPTION
@with_client
def list_(client: "Client", topic: str | None, *, limit: int, as_json: bool) -> int:
    """List the dead letters of TOPIC, or the topics that have any."""
    if topic is None:
        counts = [(each.name, each.buried) for each in client.topics() if each.buried]
        if as_json:
            print_json({"topic": name, "buried": buried} for name, buried in counts)
        elif counts:
            print_table(COUNTS, counts)
    else:
        jobs = list(client.dead_letters(topic, limit=limit))
        counts = [(str(job.id), 1) for job in jobs]
        if as_json:
            print_json(map(job_fields, jobs))
        elif jobs:
            print_table(COLUMNS, map(row, jobs))
    if not counts:
        complain(f"there are no dead letters{seen()}")
    return Exit.OK


def row(job: "JobInfo") -> list[object]:
    """Return what the list shows of a dead letter."""
    failure = job.failure
    why = "" if failure is None else f"{failure.reason}: {failure.error}".removesuffix(": ")
    body = cut(shown(job.body), TEXT_COLUMNS)
    at = (failure and failure.at) or failed_at(job)
    return [job.id, at, job.attempts, cut(why, TEXT_COLUMNS), job.key, body]


@dead.command(
    short_help="Show why and when dead letters failed, and their bodies.",
    epilog=examples("delayd dead show 17"),
)
@click.argument("ids", nargs=-1, required=True, type=int, metavar="ID...")
@JSON_OPTION
@with_client
def show(client: "Client", ids: tuple[int, ...], *, as_json: bool) -> int:
    """Show a dead letter: why and when it failed, how often, and its body."""
    for job_id in ids:
        job = client.get(job_id)
        if job.state != "buried":
            complain(f"job {job_id} is {job.state}, no dead letter")
        if as_json:
            print_json([job_fields(job)])
        else:
            print_job(job)
    return Exit.OK


@dead.command(
    short_help="Make the dead letters of TOPIC ready again.",
    epilog=examples(
        "delayd dead redrive mail --dry-run",
        "delayd dead redrive mail --count 100 --per-second 5 --yes",
    ),
)
@click.argument("topic", shell_complete=known_topics)
@click.option(
    "--count",
    type=click.IntRange(1),
    help="How many at most, the longest buried first; by default all.",
)
@click.option("--per-second", type=float, help="How many a second; by default all at once.")
@click.option("--dry-run", is_flag=True, help="Change nothing; say how many jobs would be changed.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@with_client
def redrive(
    client: "Client",
    topic: str,
    *,
    count: int | None,
    per_second: float | None,
    dry_run: bool,
    yes: bool,
) -> int:
    """Make the dead letters of TOPIC ready again; their retries start anew."""
    buried = client.topic(topic).buried
    jobs = f"{counted(buried if count is None else min(count, buried), 'job')} of {topic}"
    if dry_run:
        print_lines([f"would be redriven: {jobs}"])
        return Exit.OK
    if not confirmed(f"{jobs} will be handed out again. Go on?", yes=yes):
        raise CommandFailed(Exit.USAGE, f"nothing was changed; {jobs} would be redriven")
    kicked = client.redrive(topic, count, per_second=per_second)
    print_lines([f"redriven: {counted(kicked, 'job')}"])
    return Exit.OK
