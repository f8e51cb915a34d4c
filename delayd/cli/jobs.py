"""Jobs that are not reserved: `jobs` lists them, `peek` shows one; the others change them."""

import contextlib
import heapq
import itertools
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from delayd.cli.connect import known_topics, seen, with_client
from delayd.cli.job_options import OF_CHANGED, OWN_TEXTS, REMOVABLE, body_of, fields_of
from delayd.cli.parameters import DURATION, MOMENT, command, takes
from delayd.cli.put import warn_of_past
from delayd.cli.reserve import body_fields
from delayd.cli.selection import WHICH, Selection, carried_out, with_filter, with_selection
from delayd.cli.tables import (
    JSON_OPTION,
    Column,
    cut_here,
    print_fields,
    print_found,
    print_json,
    shown,
    time_shown,
)
from delayd.cli.terminal import CommandFailed, complain, print_lines
from delayd.client.errors import TopicNotFound
from delayd.client.results import TEXTS
from delayd.durations import duration_text
from delayd.exits import Exit
from delayd.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import BinaryIO

    from delayd.client.results import Attempt, JobInfo, TopicInfo
    from delayd.client.sync import Client
    from delayd.client.values import Filter, State

BODY_COLUMNS = 40
TOPICS_MAX = 100
WATCH_S = 2.0
WAITING: "Sequence[State]" = ("delayed", "ready")
BOUNDS = frozenset(("due_from", "due_to"))
COLUMNS = (
    *(Column("id"), Column("topic", 1, text_least=6), Column("state", 3), Column("due")),
    *(Column("priority", 6, default="65536"), Column("key", 2, text_least=6)),
    *(Column("group", 8, text_least=6), Column("attempts", 7, cell=lambda job: job.attempts or "")),
    Column("failure", 5, text_least=12, cell=lambda job: cut_here(failure_text(job), BODY_COLUMNS)),
    Column("body", 4, text_least=8, cell=lambda job: cut_here(shown(job.body), BODY_COLUMNS)),
)
TIMES = (
    click.option("--delay", type=DURATION, help="How long until they are due: 15s, 30m, 7d."),
    click.option("--at", type=MOMENT, help="When they are due: 2030-01-01T09:00:00Z."),
)


class Listing(NamedTuple):
    """What `jobs` lists."""

    page: "Iterable[JobInfo] | None"
    note: "Callable[[], str]"
    """What is to be said after the page; called when all of it was read."""
    code: Exit


# --- Looking -------------------------------------------------------------------------------------


@command(
    "delayd jobs orders",
    "delayd jobs orders --state delayed --to 1h --bodies",
    "delayd jobs orders --prefix order- --all --json | jq -r .key",
    "delayd jobs --prefix order- --all    # of all topics, in any state",
    "delayd jobs webhooks --group acme",
    "delayd jobs    # what comes next, of all topics",
)
@click.argument("topic", required=False, shell_complete=known_topics)
@with_filter
@click.option(
    "--limit",
    type=click.IntRange(0),
    default=100,
    help="How many at most, 100 by default; a note says if there are more.",
)
@click.option("--all", "are_all", is_flag=True, help="All jobs, of all topics, page by page.")
@click.option("--bodies", is_flag=True, help="Show the bodies too.")
@click.option("--watch", "is_watched", is_flag=True, help="List them again every 2 seconds.")
@JSON_OPTION
@with_client
def jobs(
    client: "Client",
    topic: str | None,
    *,
    which: "Filter",
    limit: int,
    are_all: bool,
    bodies: bool,
    is_watched: bool,
    as_json: bool,
) -> int:
    """List the jobs of TOPIC in the order in which they are due.

    Without TOPIC those of all topics: the delayed and ready ones, and with --prefix or --all in
    any state. Of more than 100 topics only those with most jobs are searched, except with --all.
    """
    limit = 0 if are_all else limit
    if topic is None and not are_all and which.keys() <= BOUNDS:
        which["state"] = WAITING
    states = which.get("state", ())
    none = f"there is no such job{seen()}"  # a thread does not know of the token

    def fetch() -> Listing:
        searched, is_part = "", False
        # One more than is shown tells whether there are more.
        limit_asked = limit + 1 if limit else None
        if topic is None:
            topics = with_jobs(client, states)
            of_these = topics if are_all else topics[:TOPICS_MAX]
            is_part = len(of_these) < len(topics)
            searched = searched_text(states, len(of_these), len(topics))
            found = of_topics(client, of_these, limit_asked, which, bodies=bodies)
        else:
            found = client.jobs(topic, limit=limit_asked, bodies=bodies, **which)
        return listing(found, limit, none, searched, is_part=is_part)

    def show(page: "Iterable[JobInfo] | None") -> None:
        if page is not None:
            columns = columns_of(bodies=bodies, topics=topic is None)
            print_found(page, columns, job_fields, as_json=as_json)

    if is_watched:
        return watch(client, fetch, show)
    page, note, code = fetch()
    show(page)
    if text := note():
        complain(text)
    return code


def listing(
    found: "Iterator[JobInfo]", limit: int, none: str, searched: str, *, is_part: bool
) -> "Listing":
    """Return what is listed of the jobs that were found; `none` says that there are none."""
    first = next(found, None)
    if first is None:
        code = Exit.NOTHING_THERE if is_part else Exit.OK
        return Listing(None, lambda: f"{none}{searched}", code)

    def note() -> str:
        if limit and next(found, None) is not None:
            return f"there are more than {limit}: --all prints all of them; or use a filter"
        return f"there may be more{searched}" if is_part else ""

    page = itertools.islice(itertools.chain((first,), found), limit or None)
    return Listing(page, note, Exit.OK)


def watch(
    client: "Client",
    fetch: "Callable[[], Listing]",
    show: "Callable[[Iterable[JobInfo] | None], None]",
) -> int:
    """Show the list on a cleared terminal when it has changed, until q or Ctrl-C.

    Raises CommandFailed.
    """
    from delayd.cli import asking as live

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CommandFailed(Exit.USAGE, "--watch needs a terminal")

    def fetched() -> "tuple[list[JobInfo] | None, str]":
        page, note, _code = fetch()
        return None if page is None else list(page), note()

    with live.asked_again(client, fetched, WATCH_S) as asking:
        drawn, key = None, ""
        while key != live.QUIT:
            picture = (asking.seen, asking.trouble(live.now_s()))
            if picture != drawn:
                drawn = picture
                (page, note), trouble = picture
                click.clear()
                show(page)
                for text in filter(None, (note, trouble)):
                    complain(text)
            if asking.refusal is not None:
                raise asking.refusal
            key = live.key_within(live.LOOK_S)
    return Exit.OK


def with_jobs(client: "Client", states: "Sequence[str]") -> "list[TopicInfo]":
    """Return the topics with jobs in these states, those with most first; none: in any state."""

    def jobs_of(topic: "TopicInfo") -> int:
        return sum(getattr(topic, state) for state in states) if states else topic.jobs

    return sorted(filter(jobs_of, client.topics()), key=lambda topic: -jobs_of(topic))


def searched_text(states: "Sequence[str]", searched: int, topics: int) -> str:
    """Say what was searched, and how all of it is.

    >>> searched_text(("delayed", "ready"), 3, 3)
    '; searched: 3 topics, jobs that are delayed or ready'
    >>> searched_text((), 100, 2_300)
    '; searched: the 100 topics with most jobs, of 2300; --all searches all'
    """
    of_states = f", jobs that are {' or '.join(states)}" if states else ""
    if searched < topics:
        most = f"the {searched} topics with most jobs, of {topics}"
        return f"; searched: {most}{of_states}; --all searches all"
    return f"; searched: {counted(topics, 'topic')}{of_states}"


def of_topics(
    client: "Client",
    topics: "Sequence[TopicInfo]",
    limit: int | None,
    which: "Filter",
    *,
    bodies: bool,
) -> "Iterator[JobInfo]":
    """Yield jobs of topics in the order in which they are due; `limit` is that of each topic.

    The daemon has lists of single topics. At most TOPICS_MAX are merged: each has a page in memory.
    More come one topic after the other.
    """

    def of_one(topic: str) -> "Iterator[JobInfo]":
        with contextlib.suppress(TopicNotFound):  # since it was listed
            yield from client.jobs(topic, limit=limit, bodies=bodies, **which)

    lists = (of_one(each.name) for each in topics)
    if len(topics) > TOPICS_MAX:
        return itertools.chain.from_iterable(lists)
    return heapq.merge(*lists, key=lambda job: (job.due is not None, job.due, job.id))


def failure_text(job: "JobInfo") -> str:
    """Return why a job failed last; nothing if it has not failed."""
    failure = job.failure
    return "" if failure is None else f"{failure.reason}: {failure.error}".removesuffix(": ")


def columns_of(*, bodies: bool, topics: bool) -> list[Column]:
    """Return the columns of a table of jobs."""
    left_out = {name for name, is_said in (("topic", topics), ("body", bodies)) if not is_said}
    return [column for column in COLUMNS if column.name not in left_out]


@command("delayd find order-17", "delayd find order-17 --json | jq .topic")
@click.argument("key")
@JSON_OPTION
@with_client
def find(client: "Client", key: str, *, as_json: bool) -> None:
    """Find the jobs that have KEY, in all topics and states."""
    found = client.find_key(key)
    first = next(found, None)
    if first is None:
        raise CommandFailed(Exit.NOTHING_THERE, no_key(key))
    jobs = itertools.chain((first,), found)
    print_found(jobs, columns_of(bodies=False, topics=True), job_fields, as_json=as_json)


def no_key(key: str) -> str:
    """Say that no job has the key."""
    return f"no job of any topic{seen()} has the key {key!r}"


def job_fields(job: "JobInfo") -> dict[str, Any]:
    """Return all details of a job, for JSON: under the names of HTTP, also over the line."""
    known = {
        "id": job.id,
        "state": job.state,
        "due": job.due,
        "priority": job.priority,
        "ttr": job.ttr,
        "key": job.key or None,
        **{name: getattr(job, name) or None for name in TEXTS},
    }
    named = {name: value for name, value in known.items() if value is not None}
    body = {} if job.body is None else body_fields(job.body)
    # Values that HTTP has under these names stay as they are, in their order.
    return {"topic": job.topic, **job.details, **named, **job.details, **body}


@command(
    "delayd peek 17",
    "delayd peek --key order-17    # of whichever topics",
    "delayd peek --topic orders --key order-17 --json",
    "delayd peek --topic orders --state buried    # the first",
)
@takes(*WHICH)
@click.option(
    "--state",
    type=click.Choice(["delayed", "ready", "reserved", "buried"]),
    default="ready",
    help="Without --key: show the first job in this state, by default ready.",
)
@click.option(
    "--body", "only_body", is_flag=True, help="Print the body and nothing else, byte for byte."
)
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
) -> None:
    """Show a job with its body, and why it failed if it did; nothing is changed."""
    from delayd.cli.reserve import print_body

    if bool(ids) == bool(topic or key):
        raise click.UsageError("which job? Give IDs, --key, or --topic with --key or --state")
    found: list[JobInfo | None]
    if ids:
        found = [client.get(job_id) for job_id in ids]
    elif topic is None:
        found = [client.get(job.id) for job in client.find_key(str(key))]
        if not found:
            raise CommandFailed(Exit.NOTHING_THERE, no_key(str(key)))
    elif key is not None:
        found = [client.find(topic, key)]
    else:
        found = [client.peek(topic, state)]  # type: ignore[arg-type]
    for job in found:
        if job is None:
            raise CommandFailed(Exit.NOTHING_THERE, f"no job of {topic} is {state}")
        if as_json:
            print_json([job_fields(job)])
        elif only_body:
            print_body(job.body or b"", is_one=len(found) == 1)
        else:
            print_job(job)


def print_job(job: "JobInfo") -> None:
    """Print a job for a person."""
    failure = job.failure
    print_fields(
        [
            *(("id", job.id), ("topic", job.topic), ("state", job.state), ("key", job.key)),
            *((name, getattr(job, name)) for name in TEXTS),
            *(("due", job.due), ("created", job.created), ("expires", job.expires)),
            *(("url", job.details.get("url")), ("method", job.details.get("method"))),
            *(("priority", job.priority), ("ttr", job.ttr and f"{job.ttr:g} s")),
            ("attempts", attempts_text(job)),
            ("failed", failure and f"{failure.reason} {failed_at(job)}"),
            ("error", failure and failure.error),
            ("moved from", failure and failure.origin),
            *(("attempt", attempt_text(each)) for each in job.history),
            ("body", job.body),
        ]
    )


def attempts_text(job: "JobInfo") -> str:
    """Write how many attempts there were, and if the history has only the last of them, or none.

    >>> from delayd.client.results import Attempt, JobInfo
    >>> job = JobInfo(1, "mail", "buried", attempts=12)
    >>> attempts_text(job), attempts_text(job._replace(history=5 * (Attempt("nacked", "ready"),)))
    ('12; how they ended is not kept', '12; below are the last 5 of 12')
    """
    kept = len(job.history)
    ended = job.attempts - (job.state == "reserved")
    if ended > 0 and not kept:
        return f"{job.attempts}; how they ended is not kept"
    is_part = kept < ended
    return f"{job.attempts}" + (f"; below are the last {kept} of {job.attempts}" if is_part else "")


def attempt_text(attempt: "Attempt") -> str:
    """Write an attempt of the history on one line.

    >>> from delayd.client.results import Attempt
    >>> attempt_text(Attempt("nacked", "delayed", lasted=1.5, who="10.0.0.7", error="busy", age=60))
    'by 10.0.0.7 for 1.5 s, ended 1m ago: nacked, then delayed: busy'
    >>> attempt_text(Attempt("ttr_ran_out", "ready", lasted=60.0, age=60))
    'for 60 s, ended 1m ago: ttr ran out, then ready'
    """
    by = f"by {attempt.who}" if attempt.who else ""
    lasted = "" if attempt.lasted is None else f"for {attempt.lasted:g} s"
    ended = f"ended {time_shown(attempt.ended)}" if attempt.ended is not None else ""
    if attempt.age is not None:
        ended = f"ended {duration_text(attempt.age * 1_000)} ago"
    about = ", ".join(filter(None, (" ".join(filter(None, (by, lasted))), ended)))
    then = "" if attempt.outcome == attempt.reason else f", then {attempt.outcome}"  # buried
    error = f": {attempt.error}" if attempt.error else ""
    return f"{about}: {attempt.reason.replace('_', ' ')}{then}{error}"


def failed_at(job: "JobInfo") -> str:
    """Write when a job failed: a time, or on the line, which has only its age, how long ago."""
    at = None if job.failure is None else job.failure.at
    if at is not None:
        return f"at {time_shown(at)}"
    age_s = job.details.get("failure-age")
    return f"{duration_text(age_s * 1_000)} ago" if isinstance(age_s, int) else ""


# --- Changing ------------------------------------------------------------------------------------


@command(
    "delayd cancel 17 18",
    "delayd cancel --topic orders --key order-17",
    "delayd cancel --topic orders --prefix order- --dry-run",
    "delayd cancel --topic webhooks --group acme --yes",
)
@with_selection()
@with_client
def cancel(client: "Client", chosen: Selection) -> int:
    """Delete jobs that wait or are buried: by ID, by key, or all of a topic that match."""
    return carried_out(chosen, "cancelled", client.cancel, client.cancel_many)


@command(
    "delayd kick 17",
    "delayd kick --topic orders --key order-17",
    "delayd kick --topic mail --state buried --yes",
)
@with_selection()
@with_client
def kick(client: "Client", chosen: Selection) -> int:
    """Make delayed or buried jobs ready now: by ID, by key, or all of a topic that match."""
    return carried_out(chosen, "kicked", client.kick, client.kick_many)


@command(
    "delayd reschedule 17 --delay 1h",
    "delayd reschedule --topic orders --key order-17 --at 2030-01-01T09:00:00Z",
    "delayd reschedule --topic mail --to 1h --delay 2h --dry-run",
)
@with_selection(*TIMES)
@with_client
def reschedule(client: "Client", chosen: Selection, *, delay: str | None, at: str | None) -> int:
    """Give waiting jobs another time: by ID, by key, or all of a topic that match."""
    if (delay is None) == (at is None):
        raise click.UsageError("when? Give --delay or --at")
    timing: Any = {"delay": delay} if at is None else {"at": at}

    def many(topic: str, **which: Any) -> int:
        return client.reschedule_many(topic, timing, **which)

    def one(*name: Any) -> None:
        warn_of_past(at, client.reschedule(*name, **timing))

    return carried_out(chosen, "rescheduled", one, many)


@command(
    "delayd change 17 --priority 10",
    "delayd change --topic orders --key order-17 --body 'close at once' --delay 5m",
    "delayd change 17 --call https://example.com/due",
)
@takes(*WHICH, *TIMES, *OF_CHANGED)
@with_client
def change(
    client: "Client",
    ids: tuple[int, ...],
    topic: str | None,
    key: str | None,
    *,
    body: str | None,
    file: "BinaryIO | None",
    **options: Any,
) -> None:
    """Change a waiting or buried job in one step; what is not given stays as it is."""
    chosen = Selection(ids, topic, key).checked()
    changes = fields_of(**options)
    if body is not None or file is not None:
        changes["body"] = body_of(body, file)
    changes |= {name: None for name in REMOVABLE if changes.get(name) == ""}
    if not changes:
        names = ("delay", "at", *OWN_TEXTS, "priority", "ttr", "body", "call")
        raise click.UsageError(f"what is to change? {', '.join(f'--{name}' for name in names)}")
    for name in chosen.names:
        due = client.change(*name, **changes)
        warn_of_past(changes.get("at"), due)
        print_lines(["changed" if due is None else f"changed: due {time_shown(due)}"])
