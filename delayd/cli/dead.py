"""`delayd dead`: jobs that failed for good, why, and how they get another chance."""

import binascii
import contextlib
import json
from operator import attrgetter, methodcaller
from typing import TYPE_CHECKING

import click

from delayd.cli.connect import known_groups, known_topics, seen, with_client
from delayd.cli.jobs import failed_at, failure_text, job_fields, listing, print_job
from delayd.cli.ndjson import (
    Read,
    ahead,
    check_lines,
    checker,
    invalid,
    job_of,
    json_body,
    lines_of,
    put_lines,
)
from delayd.cli.parameters import DEAD_JOB, DRY_RUN, YES, Subcommands
from delayd.cli.selection import filter_of
from delayd.cli.tables import (
    JSON_OPTION,
    Column,
    cut_here,
    print_found,
    print_json,
    shown,
)
from delayd.cli.terminal import CommandFailed, agreed, complain, print_lines
from delayd.client.errors import FieldProblem, Invalid, JobNotFound
from delayd.client.results import TEXTS
from delayd.exits import Exit
from delayd.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from delayd.client.results import JobInfo, TopicInfo
    from delayd.client.sync import Client
    from delayd.client.values import Filter, NewJob

TEXT_COLUMNS = 40
COUNTS = (
    Column("topic", text_least=8, cell=attrgetter("name")),
    Column("dead letters", cell=attrgetter("buried")),
)
REASONS = (
    *(Column("topic", text_least=8), Column("jobs"), Column("id"), Column("last", 2)),
    Column("job", 3, cell=lambda group: group.job or ""),
    Column("why", 1, text_least=12, cell=lambda group: group.reason or OTHERS),
)
OTHERS = "(other reasons)"
HIDDEN = "***"
"""Stands for what is secret of a job's target, where the token is not for admins."""
REASON_OPTION = click.option(
    "--reason", metavar="ID", help="Only those that are dead for this, of dead reasons."
)
GROUP_OPTION = click.option(
    "--group", metavar="GROUP", shell_complete=known_groups, help="Only those of this group."
)
COLUMNS = (
    Column("id"),
    Column("failed at", 2, cell=lambda job: (job.failure and job.failure.at) or failed_at(job)),
    Column("attempts", 5),
    Column("why", 1, text_least=12, cell=lambda job: cut_here(failure_text(job), TEXT_COLUMNS)),
    Column("key", 3, text_least=6),
    Column("body", 4, text_least=8, cell=lambda job: cut_here(shown(job.body), TEXT_COLUMNS)),
)


@click.group(cls=Subcommands)
def dead() -> None:
    """List dead letters, group them by reason, redrive them, export and import them."""


@dead.command(
    "delayd dead list", "delayd dead list mail --limit 20", "delayd dead list mail --json"
)
@click.argument("topic", required=False, shell_complete=known_topics)
@click.option("--limit", type=click.IntRange(1), default=100, help="How many at most: 100.")
@click.option("--all", "are_all", is_flag=True, help="All dead letters of TOPIC, page by page.")
@REASON_OPTION
@GROUP_OPTION
@JSON_OPTION
@with_client
def list_(
    client: "Client",
    topic: str | None,
    *,
    limit: int,
    are_all: bool,
    reason: str | None,
    group: str | None,
    as_json: bool,
) -> int:
    """List the dead letters of TOPIC, or the topics that have any."""
    options = {"--reason": reason is not None, "--group": group is not None, "--all": are_all}
    if topic is None and any(options.values()):
        option = next(name for name, is_given in options.items() if is_given)
        raise click.UsageError(f"{option} is for the dead letters of a TOPIC")
    none = f"there are no dead letters{seen()}"
    if topic is None:
        topics = [each for each in client.topics() if each.buried]
        print_found(topics, COUNTS, buried_fields, as_json=as_json)
        if not topics:
            complain(none)
        return Exit.OK
    limit = 0 if are_all else limit
    # One more than is shown tells whether there are more.
    found = client.jobs(topic, limit=limit + 1 if limit else None, bodies=True, **of(reason, group))
    page, note, code = listing(found, limit, none, "", is_part=False)
    if page is not None:
        print_found(page, COLUMNS, job_fields, as_json=as_json)
    if text := note():
        complain(text)
    return code


@dead.command(
    "delayd dead reasons",
    "delayd dead reasons mail --json",
    short_help="Count all dead letters by topic and reason.",
)
@click.argument("topics", nargs=-1, metavar="[TOPIC]...", shell_complete=known_topics)
@JSON_OPTION
@with_client
def reasons(client: "Client", topics: tuple[str, ...], *, as_json: bool) -> None:
    """Count all dead letters, of the TOPICs or of all topics, by why they failed.

    What differs from job to job is left aside: # stands for each word with a digit, but codes as
    in "exit code 137" or "HTTP 503" stay. The ID is for --reason of redrive, list, cancel and
    others.
    """
    groups = client.dead_reasons(*topics)
    print_found(groups, REASONS, methodcaller("_asdict"), as_json=as_json)
    if not groups:
        complain(f"there are no dead letters{seen()}")


def of(reason: str | None, group: str | None) -> "Filter":
    """Return which jobs are meant: buried ones."""
    return filter_of(states=("buried",), reason=reason, group=group)


def buried_fields(topic: "TopicInfo") -> dict[str, object]:
    """Return how many dead letters a topic has, for JSON."""
    return {"topic": topic.name, "buried": topic.buried}


@dead.command(
    "delayd dead show 17", short_help="Show why and when dead letters failed, and their bodies."
)
@click.argument("ids", nargs=-1, required=True, type=DEAD_JOB, metavar="ID...")
@JSON_OPTION
@with_client
def show(client: "Client", ids: tuple[int, ...], *, as_json: bool) -> None:
    """Show a dead letter: why and when it failed, how often, and its body."""
    for job_id in ids:
        job = client.get(job_id)
        if job.state != "buried":
            complain(f"job {job_id} is {job.state}, no dead letter")
        if as_json:
            print_json([job_fields(job)])
        else:
            print_job(job)


@dead.command(
    "delayd dead redrive mail --dry-run",
    "delayd dead redrive mail --reason 4f2a90c1",
    "delayd dead redrive webhooks --group acme",
    "delayd dead redrive mail --count 100 --per-second 5 --yes",
    short_help="Make the dead letters of TOPIC ready again.",
)
@click.argument("topic", shell_complete=known_topics)
@click.option(
    "--count",
    type=click.IntRange(1),
    help="How many at most, the longest buried first; by default all.",
)
@click.option("--per-second", type=float, help="How many a second; by default all at once.")
@REASON_OPTION
@GROUP_OPTION
@DRY_RUN
@YES
@with_client
def redrive(
    client: "Client",
    topic: str,
    *,
    count: int | None,
    per_second: float | None,
    reason: str | None,
    group: str | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Make the dead letters of TOPIC ready again; their retries start anew."""
    if reason is None and group is None:
        buried = client.topic(topic).buried
    else:
        buried = client.kick_many(topic, dry_run=True, **of(reason, group))
        if not buried:
            why = f"no dead job of {topic} is of the group {group}"
            if reason is not None:
                why = f"no dead job of {topic} has the reason {reason}; dead reasons lists them"
            raise CommandFailed(Exit.NOTHING_THERE, why)
    wanted = buried if count is None else min(count, buried)
    jobs = f"{counted(wanted, 'job')} of {topic}"
    is_sure = yes or not wanted
    if agreed("redriven", jobs, dry_run=dry_run, yes=is_sure, will="handed out again"):
        kicked = client.redrive(topic, count, per_second=per_second, reason=reason, group=group)
        print_lines([f"redriven: {counted(kicked, 'job')}"])


# --- To a file and back --------------------------------------------------------------------------


@dead.command(
    "delayd dead export > dead.ndjson",
    "delayd dead export mail --reason 4f2a90c1 > dead.ndjson",
    short_help="Write dead letters as NDJSON, one a line, for dead import.",
)
@click.argument("topics", nargs=-1, metavar="[TOPIC]...", shell_complete=known_topics)
@REASON_OPTION
@GROUP_OPTION
@with_client
def export(
    client: "Client", topics: tuple[str, ...], *, reason: str | None, group: str | None
) -> int:
    """Write the dead letters of the TOPICs, or of all topics, to standard output; they stay.

    Each line has the topic, the fields of `put --ndjson`, and under `dead` why the job failed.
    """
    names = topics or [each.name for each in client.topics() if each.buried]
    left_out: list[int] = []

    def lines() -> "Iterator[dict[str, object]]":
        for name in names:
            for listed in client.jobs(name, **of(reason, group)):
                with contextlib.suppress(JobNotFound):  # since it was listed
                    job = client.get(listed.id)
                    if HIDDEN in json.dumps([job.details.get("url"), job.details.get("headers")]):
                        left_out.append(job.id)
                    else:
                        yield exported(job)

    print_json(lines())
    for job_id in left_out:
        complain(f"job {job_id} was left out: only the scope admin shows its url and headers whole")
    return Exit.NOT_ALLOWED if left_out else Exit.OK


def exported(job: "JobInfo") -> dict[str, object]:
    """Return a dead letter as `dead import` and `put --ndjson` read it, but for two fields."""
    named = ("priority", "ttr", "key", *TEXTS, "retry", "max_attempts", "jitter_percent")
    fields = {name: job.details.get(name) for name in (*named, "url", "method", "headers")}
    fields |= {name: getattr(job, name) for name in ("ttr", "priority", "key", *TEXTS)}
    about = {name: job.details.get(name) for name in ("id", "attempts", "failure")}
    return {
        "topic": job.topic,
        **exact_body(job.body or b""),
        **{name: value for name, value in fields.items() if value is not None and value != ""},
        "dead": about,
    }


def exact_body(body: bytes) -> dict[str, object]:
    """Return a body from which `put --ndjson` makes the same bytes: as JSON, or in base64.

    >>> exact_body(b'{"to":"ada"}'), exact_body(b"5 kg")
    ({'body': {'to': 'ada'}}, {'body_base64': 'NSBrZw=='})
    """
    try:
        value = json.loads(body)
        if json_body(value) == body:
            return {"body": value}
    except (ValueError, RecursionError):
        pass
    return {"body_base64": binascii.b2a_base64(body, newline=False).decode()}


@dead.command(
    "delayd dead import dead.ndjson",
    "delayd dead import dead.ndjson --from-line 1001",
    "delayd dead import - < dead.ndjson",
    short_help="Put exported dead letters into their topics again.",
)
@click.argument("file", type=click.File("rb"))
@click.option(
    "--from-line",
    type=click.IntRange(1),
    default=1,
    metavar="N",
    help="Begin with line N, to continue a file.",
)
@with_client
def import_(client: "Client", file: "BinaryIO", from_line: int) -> int:
    """Put the jobs of a FILE of `dead export` into their topics: they are handed out again.

    Each is a new job. Dead letters that are still there stay: cancel or redrive those instead. All
    lines are looked at before the first is put. A topic that is full stops it, and the line to go
    on with is printed.
    """
    file = ahead(file)
    start = file.tell()
    read = dead_letter_reader()
    check_lines(lines_of(file, read, from_line))
    file.seek(start)
    topics = "their topics"
    return put_lines(client, file, read, from_line, where=topics, tell=lambda *_: None)


def dead_letter_reader() -> Read:
    """Return what reads lines of `dead export`."""
    check = checker()

    def read(text: bytes) -> "tuple[str, NewJob | Invalid]":
        try:
            fields = json.loads(text)
            topic = fields.pop("topic")
            fields.pop("dead", None)
            if isinstance(topic, str):
                return topic, job_of(json.dumps(fields).encode(), {}, check)
        except Invalid as error:
            return "", error
        except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
            pass
        return "", invalid(FieldProblem("", "is no dead letter: an object with a topic"))

    return read
