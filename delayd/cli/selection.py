"""The jobs of a command: by number, by topic and key, or all of a topic that match.

    delayd cancel 17 18                                  these jobs
    delayd cancel --topic orders --key order-17          the job that has the key
    delayd cancel --topic orders --prefix order- --dry-run      all that match
    delayd cancel --topic orders --all                   all of the topic

A command for many jobs counts them first, and asks at a terminal before it changes them.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from delayd.cli.connect import exit_of, explained, known_groups, known_keys, known_topics
from delayd.cli.parameters import BOUND, DRY_RUN, JOB, YES
from delayd.cli.terminal import agreed, complain, print_lines
from delayd.client.errors import Refused
from delayd.exits import Exit
from delayd.text import counted

if TYPE_CHECKING:
    from delayd.client.values import Filter

FILTERS: Final = (
    click.option(
        "--state",
        "states",
        multiple=True,
        type=click.Choice(["delayed", "ready", "reserved", "buried"]),
        help="Only jobs in this state; may be repeated.",
    ),
    click.option("--prefix", metavar="TEXT", help="Only jobs whose key begins with this."),
    click.option(
        "--reason", metavar="ID", help="Only jobs that failed for this: see dead reasons."
    ),
    click.option(
        "--group", metavar="GROUP", shell_complete=known_groups, help="Only jobs of this group."
    ),
    click.option(
        "--from", "due_from", type=BOUND, help="Only jobs due then or later: -15m, 1h, a time."
    ),
    click.option("--to", "due_to", type=BOUND, help="Only jobs due before then."),
)
WHICH: Final = (
    click.argument("ids", nargs=-1, type=JOB, metavar="[ID]..."),
    click.option(
        "--topic",
        metavar="TOPIC",
        shell_complete=known_topics,
        help="The topic of the job or jobs.",
    ),
    click.option(
        "--key", metavar="KEY", shell_complete=known_keys, help="The job that has this key."
    ),
)
MANY: Final = (
    click.option("--all", "are_all", is_flag=True, help="All jobs of the topic."),
    DRY_RUN,
    YES,
)


class Selection(NamedTuple):
    """The jobs that the arguments choose."""

    ids: tuple[int | str, ...] = ()
    topic: str | None = None
    key: str | None = None
    which: "Filter" = {}  # noqa: RUF012 - never changed
    are_all: bool = False
    dry_run: bool = False
    yes: bool = False

    @property
    def names(self) -> Iterator[tuple[Any, ...]]:
        """The arguments of the client's methods, for each single job."""
        yield from ((job_id,) for job_id in self.ids)
        if self.key is not None:
            yield (self.topic, self.key)


def filter_of(
    states: tuple[str, ...],
    prefix: str | None,
    due_from: str | None,
    due_to: str | None,
    reason: str | None = None,
    group: str | None = None,
) -> "Filter":
    """Return the filter of the options."""
    fields = {
        "state": list(states) or None,
        "key_prefix": prefix,
        "reason": reason,
        "due_from": due_from,
        "due_to": due_to,
    }
    which: Filter = {name: value for name, value in fields.items() if value}  # type: ignore[assignment]
    if group is not None:
        which["group"] = group  # an empty one is refused, and does not stand for all jobs
    return which


def selection(
    ids: tuple[int | str, ...],
    topic: str | None,
    key: str | None,
    *,
    states: tuple[str, ...] = (),
    prefix: str | None = None,
    reason: str | None = None,
    group: str | None = None,
    due_from: str | None = None,
    due_to: str | None = None,
    are_all: bool = False,
    dry_run: bool = False,
    yes: bool = False,
) -> Selection:
    """Check that the arguments are one selection. Raises `click.UsageError`."""
    which = filter_of(states, prefix, due_from, due_to, reason, group)
    if ids and (topic or key or which or are_all):
        raise click.UsageError("give IDs, or --topic and what it takes, not both")
    if not ids and topic is None:
        raise click.UsageError("which jobs? Give IDs, or --topic with --key or a filter")
    if key is not None and (which or are_all):
        raise click.UsageError("--key names one job, and takes no filter")
    if are_all and which:
        raise click.UsageError("--all is for jobs without a filter")
    if not (ids or key or which or are_all):
        raise click.UsageError("--topic needs --key, a filter, or --all")
    return Selection(ids, topic, key, which, are_all, dry_run, yes)


def carried_out(
    chosen: Selection, done: str, one: Callable[..., object], many: Callable[..., int]
) -> int:
    """Carry out an operation on the chosen jobs, and print how many they were.

    `done` is its word: `cancelled`. There is no question about jobs that are named, nor about none.
    """
    if chosen.ids or chosen.key is not None:
        return each_named(chosen, done, one)
    count = None
    if chosen.dry_run or not chosen.yes:
        count = many(chosen.topic, dry_run=True, **chosen.which)
        matched = f"{counted(count, 'job')} of {chosen.topic}"
        is_asked = count > 0 or chosen.dry_run
        if is_asked and not agreed(done, matched, dry_run=chosen.dry_run, yes=False):
            return Exit.OK
    if count != 0:  # what has come since was in no question
        count = many(chosen.topic, **chosen.which)
    print_lines([f"{done}: {counted(count, 'job')}"])
    if not count:
        complain("no job matched")
    return Exit.OK


def each_named(chosen: Selection, done: str, one: Callable[..., object]) -> int:
    """Carry out an operation on named jobs, and print how many they were."""
    names = list(chosen.names)
    if chosen.dry_run:
        print_lines([f"would be {done}: {counted(len(names), 'job')}"])
        return Exit.OK
    count, code = each(names, one)
    if count or code == Exit.OK:
        print_lines([f"{done}: {counted(count, 'job')}"])
    return code


def each(names: Iterable[tuple[Any, ...]], one: Callable[..., object]) -> tuple[int, int]:
    """Carry out an operation on each, and report refusals; return how many succeeded.

    And the exit code, which is that of the first refusal.
    """
    code: int = Exit.OK
    count = 0
    for name in names:
        try:
            one(*name)
            count += 1
        except Refused as error:
            code = code or exit_of(error)
            for line in explained(error):
                complain(line)
    return count, code
