"""`delayd schedule`: recurring jobs, by their names.

Times are shown in UTC, as everywhere, and in a preview also as the clock of the time zone shows
them: there it is told what becomes of a run when that clock is set.
"""

import datetime as dt
import sys
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

import click

from delayd.cli.calendar import moment_of
from delayd.cli.connect import known_schedules, known_topics, seen, with_client
from delayd.cli.job_options import BODY_FILE, OF_NEW, body_of, fields_of
from delayd.cli.parameters import BOUND, DURATION, INTERVAL, MOMENT, YES, Subcommands, takes
from delayd.cli.policy import SOURCES
from delayd.cli.selection import each, each_of
from delayd.cli.tables import (
    JSON_OPTION,
    Column,
    duration_shown,
    print_answer,
    print_fields,
    print_found,
    print_json,
    print_table,
    time_shown,
)
from delayd.cli.terminal import CommandFailed, agreed, complain, print_lines
from delayd.client.errors import Forbidden, NotFound, ScheduleNotFound
from delayd.client.values import seconds
from delayd.exits import Exit
from delayd.limits import SCHEDULE_BACKFILL_MAX, SCHEDULE_PREVIEW_DEFAULT, SCHEDULE_PREVIEW_MAX
from delayd.text import counted

if TYPE_CHECKING:
    from delayd.client.results import ScheduleInfo, SchedulePreview
    from delayd.client.sync import Client


def when(info: "ScheduleInfo") -> str:
    """Write when a schedule runs: its expression and its time zone."""
    cron, zone = info.definition.get("cron"), info.definition.get("timezone")
    if cron is None:
        return f"every {info.definition.get('every')}"
    return f"{cron} {zone}" if zone else str(cron)


COLUMNS: Final = (
    *(Column("name", text_least=8), Column("when", 3, text_least=20, cell=when)),
    Column("next", cell=lambda info: info.next or info.state),
    Column("last", 2, cell=lambda info: info.last and info.last.outcome),
    *(Column("runs", 4), Column("missed", 1)),
    *(Column("skipped", 5, default="0"), Column("refused", 6, default="0")),
    *(Column("late", 8, default="0"), Column("topic", 7, text_least=6)),
)
RUNS: Final = (
    *(Column("local time", cell=attrgetter("local")), Column("UTC", cell=attrgetter("at"))),
    Column("note", 1, text_least=20),
)
TIMES: Final = ("cron", "every", "timezone", "start", "end")
COUNTERS: Final = ("runs", "missed", "skipped", "refused", "late")
NAME: Final = click.argument("name", shell_complete=known_schedules)
NAMES: Final = click.argument(
    "names", nargs=-1, required=True, metavar="NAME...", shell_complete=known_schedules
)
WHEN: Final = (
    click.option("--cron", metavar="FIELDS", help="'30 2 * * *', '*/15 9-17 * * MON-FRI', @daily."),
    click.option("--every", type=INTERVAL, help="Or the time from run to run: 15m, 1h30m, 7d."),
    click.option(
        *("--timezone", "--tz", "timezone"),
        metavar="ZONE",
        help="Whose clock cron goes by: America/New_York; by default UTC.",
    ),
    click.option("--start", type=MOMENT, help="No run before it: 2030-01-01T00:00:00Z."),
    click.option("--end", type=MOMENT, help="No run after it."),
    click.option("--limit", type=click.IntRange(1), metavar="N", help="At most N runs."),
)
RULES: Final = (
    click.option(
        "--missed",
        type=click.Choice(["latest", "none", "all"]),
        help="Which missed runs to put late: the latest (the default), none or all.",
    ),
    click.option("--window", type=DURATION, help="Put no missed run that is later than this."),
    click.option(
        "--overlap",
        type=click.Choice(["allow", "skip", "queue_one"]),
        help="What to do if the run before is neither done nor dead; by default allow.",
    ),
    click.option("--jitter", type=DURATION, help="Delay all runs by the same time, below this."),
)
COUNT: Final = click.option(
    "--count",
    type=click.IntRange(1, SCHEDULE_PREVIEW_MAX),
    default=SCHEDULE_PREVIEW_DEFAULT,
    help=f"How many runs; by default {SCHEDULE_PREVIEW_DEFAULT}.",
)


@click.group(cls=Subcommands)
def schedule() -> None:
    """Recurring jobs: make, list, preview, pause, run and remove their schedules.

    Each run of a schedule puts a job, as `delayd put` does, under the key NAME@TIME. A run that is
    due while the daemon is stopped is put when it is back. See docs/schedules.md.
    """


# --- Making --------------------------------------------------------------------------------------


@schedule.command(
    "delayd schedule put nightly '{}' --topic reports --cron '30 2 * * *' --tz Europe/Paris",
    "delayd schedule put pulse ping --topic pulse --every 15m --overlap skip",
    "delayd schedule put invoices --file body.json --topic invoices --cron '0 6 1 * *'",
    "delayd schedule put hook '{}' --topic hooks --cron @daily --call https://example.com/due",
    "delayd schedule put nightly '{}' --topic reports --cron '30 3 * * *' --dry-run",
    short_help="Make the schedule NAME, or change it.",
)
@NAME
@click.argument("body", required=False)
@click.option(
    "--topic",
    metavar="TOPIC",
    required=True,
    shell_complete=known_topics,
    help="Where jobs are put.",
)
@BODY_FILE
@takes(*WHEN, *RULES, *OF_NEW)
@click.option("--dry-run", is_flag=True, help="Change nothing, and show when it would run.")
@JSON_OPTION
@with_client
def put(
    client: "Client",
    name: str,
    body: str | None,
    *,
    topic: str,
    file: BinaryIO | None,
    dry_run: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Make the schedule NAME: each run puts BODY, a file, or standard input into the topic.

    If there is one of that name it is changed, and its counts stay. What is not given has its
    default again. The same command twice changes nothing.
    """
    wanted = fields_of(**options)
    read = body_of(body, file)
    if dry_run:
        definition: Any = {"topic": topic, "body": read, **wanted}
        found = client.preview_schedule(definition, name=name)
        show_runs(found, name, wanted, SCHEDULE_PREVIEW_DEFAULT, as_json=as_json)
        return Exit.OK
    return show_change(client.put_schedule(name, topic, read, **wanted), as_json=as_json)


def show_change(info: "ScheduleInfo", *, as_json: bool = False) -> int:
    """Say what was done to a schedule, and when its next run is."""
    done = f"{info.name} {info.change}".rstrip()
    if info.next is None:
        line = f"{done}: it is {info.state}" if info.change else f"{done} is {info.state}"
    else:
        zone = str(info.definition.get("timezone", "UTC"))
        local = "" if zone == "UTC" else local_shown(info.next, zone)
        where = f", {local} in {zone}" if local else ""
        line = f"{done}: next run {time_shown(info.next)}{where}"
    print_answer(info.details, line, as_json=as_json)
    return Exit.OK


# --- Looking -------------------------------------------------------------------------------------


@schedule.command(
    "delayd schedule list",
    "delayd schedule list --topic reports",
    "delayd schedule list --json | jq -r .name",
    short_help="List the schedules, the next one first.",
)
@click.option(
    "--topic",
    metavar="TOPIC",
    default="",
    shell_complete=known_topics,
    help="Only those of this topic.",
)
@click.option("--prefix", metavar="TEXT", default="", help="Only those whose names begin so.")
@JSON_OPTION
@with_client
def list_(client: "Client", *, topic: str, prefix: str, as_json: bool) -> None:
    """List the schedules in the order of their next runs, with how the last run has ended.

    LAST is the state of the job of the last run: running (neither done nor dead yet), done, dead,
    cancelled, ended (it is not known how), or refused (it was not put). MISSED counts runs that
    were due while no daemon ran, and were not put later.
    """
    found = sorted(client.schedules(topic, prefix=prefix), key=by_next)
    print_found(found, COLUMNS, attrgetter("details"), as_json=as_json)
    if not (found or as_json):
        complain(f"there are no schedules{seen()}")


def by_next(info: "ScheduleInfo") -> tuple[bool, float, str]:
    """Return what schedules are sorted by: their next runs."""
    at = info.next
    return at is None, 0.0 if at is None else at.timestamp(), info.name


@schedule.command(
    "delayd schedule show nightly",
    "delayd schedule show nightly --json",
    short_help="Show everything about the schedule NAME.",
)
@NAME
@JSON_OPTION
@with_client
def show(client: "Client", name: str, *, as_json: bool) -> None:
    """Show what the schedule NAME is, when it runs next, and what has become of its runs.

    missed: due while no daemon ran, and not put later. skipped: due while the run before was under
    way. refused: the daemon refused the job. late: put more than a second late.
    """
    info = client.schedule(name)
    if as_json:
        print_json([info.details])
    else:
        print_fields(fields(info))


def fields(info: "ScheduleInfo") -> Iterator[tuple[str, object]]:
    """Yield what is shown of one schedule."""
    yield from (("name", info.name), ("state", info.state), ("note", info.note))
    yield from info.definition.items()
    yield "body", info.body
    zone = str(info.definition.get("timezone", "UTC"))
    yield "next", info.next
    if info.next is not None and zone != "UTC":
        yield "next local", local_shown(info.next, zone)
    yield "waits", info.queued
    yield from ((name, getattr(info, name)) for name in COUNTERS)
    if (last := info.last) is not None:
        yield from (("last", last.outcome), ("last due", last.due), ("last job", last.id))
        yield from (("last key", last.key), ("last error", last.error))
    yield from (("created", info.created), ("changed", info.changed))
    yield from (("source", SOURCES.get(info.source, info.source)), ("tzdata", info.tzdata))


# --- When runs are -------------------------------------------------------------------------------


@schedule.command(
    "delayd schedule preview nightly --count 30",
    "delayd schedule preview --cron '30 2 * * *' --tz America/New_York",
    "delayd schedule preview --cron '30 2 * * *' --tz America/New_York"
    " --start 2030-03-08T00:00:00Z",
    "delayd schedule preview --every 15m --start 2030-01-01T00:00:00Z --json",
    short_help="Show the next runs, of a schedule or before there is one.",
)
@click.argument("name", required=False, shell_complete=known_schedules)
@takes(*WHEN)
@click.option(
    "--topic", metavar="TOPIC", shell_complete=known_topics, help="A topic that the token is for."
)
@COUNT
@JSON_OPTION
@with_client
def preview(
    client: "Client",
    name: str | None,
    *,
    topic: str | None,
    count: int,
    as_json: bool,
    **options: Any,
) -> None:
    """Show when the next runs are, of the schedule NAME, or of one with these options.

    Nothing is made. Each run is shown by the clock of the time zone, and in UTC. A note says when
    that clock is set forward or back, and what happens to a run then. If --start is past, the
    first run is the first one from now on.
    """
    wanted = fields_of(**options)
    if name is None:
        if not wanted:
            raise click.UsageError("give the NAME of a schedule, or --cron, or --every")
        definition: Any = {"topic": topic or "default", **wanted}
        found = client.preview_schedule(definition, count)
        now = found.now
        if now is not None and "start" in wanted and moment_of(wanted["start"], now) < now:
            complain("--start is past: these are the runs from now on")
    elif wanted or topic:
        raise click.UsageError(
            f"{name!r} has its own times: leave the options out to see them, or leave the name out"
        )
    else:
        info = client.schedule(name)
        wanted = {**info.definition}
        if info.state != "active":
            complain(f"no runs: {name} is {info.state}")
            return
        found = client.preview_schedule(name, count)
    show_runs(found, name or "", wanted, count, as_json=as_json)


def show_runs(
    found: "SchedulePreview", name: str, wanted: dict[str, Any], count: int, *, as_json: bool
) -> None:
    """Print when runs are."""
    put_off_ms = jitter_ms_of(name, wanted)
    runs = [*local_runs(found.runs, found.timezone, wanted.get("cron"), put_off_ms)]
    if as_json:
        zone = {"timezone": found.timezone, "tzdata": found.tzdata}
        print_json({"run": at, "local": local, "note": note, **zone} for at, local, note in runs)
        return
    print_table(RUNS, runs)
    if found.timezone != "UTC":
        complain(f"by the time zones of {found.tzdata}")
    if len(runs) < count:
        complain(f"{counted(len(runs), 'run')}, and no more")


def jitter_ms_of(name: str, wanted: Mapping[str, Any]) -> int:
    """Return by how much the runs of a schedule are put off."""
    from delayd.schedules.recurrence import jitter_ms

    return jitter_ms(name, round(1_000 * seconds(wanted.get("jitter", 0))))


class LocalRun(NamedTuple):
    """When a run is, as the clock of its time zone shows it."""

    at: dt.datetime
    local: str
    note: str
    """What the clock does then."""


def local_shown(at: dt.datetime, timezone: str) -> str:
    """Write a time as the clock of a zone shows it; empty where this machine has no such zone."""
    from delayd.schedules.zones import zone_named

    try:
        return f"{at.astimezone(zone_named(timezone)):%a %Y-%m-%d %H:%M:%S %Z}"
    except ValueError:
        return ""


def local_runs(
    runs: Iterable[dt.datetime], timezone: str, cron: str | None, put_off_ms: int = 0
) -> Iterator[LocalRun]:
    """Yield runs with what their clock shows, and what it does.

    >>> nights = [dt.datetime(2030, 3, 9, 7, 30), dt.datetime(2030, 3, 10, 7)]
    >>> nights = [night.replace(tzinfo=dt.UTC) for night in nights]
    >>> for run in local_runs(nights, "America/New_York", "30 2 * * *"): print(run[1:])
    ('Sat 2030-03-09 02:30:00 EST', '')
    ('Sun 2030-03-10 03:00:00 EDT', 'clocks go forward 1h: the run of 02:30 follows at once')
    """
    from delayd.schedules.zones import zone_named

    try:
        zone = zone_named(timezone)
    except ValueError:  # this machine has other zones than the daemon's
        yield from (LocalRun(at, "", "") for at in runs)
        return
    put_off = dt.timedelta(milliseconds=put_off_ms)
    offset: dt.timedelta | None = None
    for at in runs:
        local = at.astimezone(zone)
        before, offset = offset, local.utcoffset()
        notes = [
            *([] if before is None or before == offset else [_set_by(before, offset)]),
            *_notes((at - put_off).astimezone(zone), timezone, cron),
        ]
        yield LocalRun(at, local_shown(at, timezone), ": ".join(notes))


def _set_by(before: dt.timedelta, after: dt.timedelta | None) -> str:
    step_s = ((after or before) - before).total_seconds()
    return f"clocks go {'forward' if step_s > 0 else 'back'} {duration_shown(abs(step_s))}"


def _notes(nominal: dt.datetime, timezone: str, cron: str | None) -> Iterator[str]:
    """Yield what becomes of the run of a time that the clock skips, or shows twice."""
    from delayd.schedules.cron import cron_times
    from delayd.schedules.zones import period_at

    if cron is None:
        return
    times = cron_times(cron)
    nominal_s = milliseconds(nominal) // 1_000
    period = period_at(timezone, nominal_s)
    shown_s, would_s = nominal_s + period.offset_s, nominal_s + period.before_s
    if nominal_s == period.begin_s and times.is_fixed and would_s < shown_s:
        skipped = next(times.clock_times(would_s, shown_s), None)
        if skipped is not None:
            yield f"the run of {_clock(skipped)} follows at once"
            return
    if nominal.replace(fold=0).utcoffset() == nominal.replace(fold=1).utcoffset():
        return
    if times.is_fixed:
        yield f"{_clock(shown_s)} comes twice, and runs once"
    else:
        yield f"{_clock(shown_s)} comes twice: the {'second' if nominal.fold else 'first'} time"


def _clock(clock_s: int) -> str:
    """Write what a clock shows: hours and minutes."""
    return f"{clock_s // 3_600 % 24:02}:{clock_s // 60 % 60:02}"


# --- Changing ------------------------------------------------------------------------------------


@schedule.command(
    "delayd schedule pause nightly --note 'the database moves'",
    short_help="Pause schedules: no runs until they are resumed.",
)
@NAMES
@click.option(
    "--note",
    metavar="TEXT",
    default="",
    help="Why, for others to see. Without it a note that is there stays.",
)
@with_client
def pause(client: "Client", names: tuple[str, ...], *, note: str) -> int:
    """Pause schedules: they have no runs until `delayd schedule resume`.

    Jobs that were put stay. Runs that would have been due meanwhile are not put later.
    """

    def one(name: str) -> None:
        client.pause_schedule(name, note)
        print_lines([f"{name} is paused; delayd schedule resume {name} ends it"])

    return each_of(names, one)


@schedule.command(
    "delayd schedule resume nightly",
    short_help="Go on with paused schedules, from the next run on.",
)
@NAMES
@with_client
def resume(client: "Client", names: tuple[str, ...]) -> int:
    """Go on with paused schedules: their next runs are those that come after now."""
    return each_of(names, lambda name: show_change(client.resume_schedule(name)))


@schedule.command(
    "delayd schedule run nightly",
    "delayd schedule run nightly --json",
    short_help="Put the job of the schedule NAME now.",
)
@NAME
@JSON_OPTION
@with_client
def run(client: "Client", name: str, *, as_json: bool) -> None:
    """Put one more job of the schedule NAME now; print its id.

    It counts for --limit, and its outcome is shown as that of the last run. A paused schedule can
    be run too. There is one run in a millisecond: on a virtual clock that stands still, the second
    time prints the id of the first job.
    """
    result = client.run_schedule(name)
    print_answer(result._asdict(), str(result.id), as_json=as_json)
    if not as_json and result.outcome == "kept":
        complain("that run is there already: its time is this very millisecond")
    if not as_json and sys.stdout.isatty():
        complain(f"key {result.key}")


@schedule.command(
    "delayd schedule backfill nightly --from 2026-11-01T00:00:00Z --dry-run",
    "delayd schedule backfill nightly --from -7d --to now --yes",
    short_help="Put the jobs of past runs of the schedule NAME.",
)
@NAME
@click.option("--from", "begin", type=BOUND, required=True, help="Runs from then on: -7d, a time.")
@click.option("--to", "end", type=BOUND, help="And up to then; by default now.")
@click.option("--dry-run", is_flag=True, help="Change nothing; say how many runs there were.")
@YES
@JSON_OPTION
@with_client
def backfill(
    client: "Client",
    name: str,
    *,
    begin: str,
    end: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Put the jobs of the runs that the schedule NAME has between two past times.

    Both ends are included. A run whose job is still there is left alone. --missed and --overlap of
    the schedule do not matter. There are no runs before its --start; with --every and without a
    --start there are none before the schedule was made.

    With a token that has no scope peek --yes is needed, and -7d is by the clock of this machine.
    """
    info = _seen_schedule(client, name, is_needed=dry_run or not yes)
    now = (client.preview_schedule(name, 1).now if info else None) or dt.datetime.now(dt.UTC)
    due_from, due_to = moment_of(begin, now), None if end is None else moment_of(end, now)
    runs = ""
    if info and (dry_run or not yes):
        if due_to is not None and due_to > now:
            raise CommandFailed(Exit.USAGE, f"--to must not be after now, {time_shown(now)}")
        keys = past_runs(info, due_from, due_to or now)
        kept = _jobs_there(client, info, keys)
        runs = f"{counted(len(keys) - kept, 'run')} of {name}{_kept_shown(kept)}"
    how = "put, but for those whose job is there"
    if not agreed("put", runs, dry_run=dry_run, yes=yes, will=how):
        return
    result = client.backfill_schedule(name, due_from, due_to)
    line = f"put: {counted(result.put, 'run')}{_kept_shown(result.kept)}"
    print_answer(result._asdict(), line, as_json=as_json)
    if not result.put + result.kept:
        complain(f"{name} had no run then: delayd schedule show {name} says when it begins")


def _seen_schedule(client: "Client", name: str, *, is_needed: bool) -> "ScheduleInfo | None":
    """Return a schedule; None if it is not needed and the token may not look at it."""
    try:
        return client.schedule(name)
    except (Forbidden, ScheduleNotFound):  # its runs can be put all the same
        if not is_needed:
            return None
        if seen():
            complain("only a token with the scope peek can count the runs; --yes puts them at once")
        raise


def _jobs_there(client: "Client", info: "ScheduleInfo", keys: set[str]) -> int:
    """Return how many runs have a job under their keys."""
    try:
        return sum(job.key in keys for job in client.jobs(info.topic, key_prefix=f"{info.name}@"))
    except NotFound:  # no job has been put to the topic yet
        return 0


def _kept_shown(kept: int) -> str:
    return f"; {kept} had a job" if kept else ""


def past_runs(info: "ScheduleInfo", due_from: dt.datetime, due_to: dt.datetime) -> set[str]:
    """Return the keys of the runs between two times, by the time zones of this machine.

    Raises CommandFailed if this has none of that name, or if there are more than may be put.
    """
    from delayd.core.errors import ScheduleInvalid
    from delayd.schedules.definition import Definition
    from delayd.schedules.runner import run_key

    times = {name: info.definition[name] for name in TIMES if name in info.definition}
    try:
        definition, _ = Definition.from_fields({"topic": info.topic, "body": "", **times})
    except ScheduleInvalid as wrong:
        why = f"this machine cannot count the runs of {info.name}, --yes puts them: {wrong}"
        raise CommandFailed(Exit.REFUSED, why) from None
    recurrence = definition.recurrence(milliseconds(info.created or due_from))
    after_ms, until_ms = milliseconds(due_from) - 1, milliseconds(due_to)
    if info.created and "every" in times and "start" not in times:
        after_ms = max(after_ms, milliseconds(info.created))  # no run was due when it was made
    count = recurrence.count(after_ms, until_ms)
    if count > SCHEDULE_BACKFILL_MAX:
        why = f"there are {count} runs then, more than {SCHEDULE_BACKFILL_MAX} at once"
        raise CommandFailed(Exit.USAGE, why)
    runs_ms = recurrence.first(after_ms, until_ms, count) if count else []
    return {run_key(info.name, nominal_ms).decode() for nominal_ms in runs_ms}


def milliseconds(at: dt.datetime) -> int:
    """Return a time in milliseconds since 1970, rounded down.

    >>> milliseconds(dt.datetime(1970, 1, 1, 0, 0, 1, 999_999, tzinfo=dt.UTC))
    1999
    """
    return (at - dt.datetime.fromtimestamp(0, dt.UTC)) // dt.timedelta(milliseconds=1)


@schedule.command(
    "delayd schedule remove nightly", short_help="Remove schedules; the jobs of their runs stay."
)
@NAMES
@with_client
def remove(client: "Client", names: tuple[str, ...]) -> int:
    """Remove the schedules; the jobs that their runs have put stay.

    Those of the configuration are removed there.
    """
    count, code = each(((name,) for name in names), client.remove_schedule)
    if count or code == Exit.OK:
        print_lines([f"removed: {counted(count, 'schedule')}"])
    return code
