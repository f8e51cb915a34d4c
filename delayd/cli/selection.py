"""The jobs of a command: by number, by topic and key, or all of a topic that match.

    delayd cancel 17 18                                  these jobs
    delayd cancel --topic orders --key order-17          the job that has the key
    delayd cancel --topic orders --prefix order- --dry-run      all that match
    delayd cancel --topic orders --all                   all of the topic

A command for many jobs counts them first, and asks at a terminal before it changes them.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import click

from delayd.cli.connect import exit_of, explained, known_groups, known_keys, known_topics
from delayd.cli.parameters import BOUND, DRY_RUN, JOB, YES, Run, takes
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
FILTER_NAMES: Final = ("states", "prefix", "reason", "group", "due_from", "due_to")
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

    def checked(self) -> Self:
        """Return it, if it is one selection. Raises `click.UsageError`."""
        if self.ids and (self.topic or self.key or self.which or self.are_all):
            raise click.UsageError("give IDs, or --topic and what it takes, not both")
        if not self.ids and self.topic is None:
            raise click.UsageError("which jobs? Give IDs, or --topic with --key or a filter")
        if self.key is not None and (self.which or self.are_all):
            raise click.UsageError("--key names one job, and takes no filter")
        if self.are_all and self.which:
            raise click.UsageError("--all is for jobs without a filter")
        if not (self.ids or self.key or self.which or self.are_all):
            raise click.UsageError("--topic needs --key, a filter, or --all")
        return self


def filter_of(*, states: Sequence[str] = (), group: str | None = None, **fields: Any) -> "Filter":
    """Return the filter of the options, by their names."""
    fields |= {"state": [*states], "key_prefix": fields.pop("prefix", None)}
    which: Filter = {name: value for name, value in fields.items() if value}  # type: ignore[assignment]
    if group is not None:
        which["group"] = group  # an empty one is refused, and does not stand for all jobs
    return which


def with_filter(run: Run) -> Run:
    """Give a command the options of a filter, and call it with it: `which`."""

    @functools.wraps(run)
    def filtered(**given: Any) -> int | None:
        fields = {name: given.pop(name) for name in FILTER_NAMES}
        return run(which=filter_of(**fields), **given)

    return takes(*FILTERS)(filtered)


def with_selection(*options: Callable[..., Any]) -> Callable[[Run], Run]:
    """Give a command the options that choose jobs, and these, and call it with what is `chosen`."""

    def decorate(run: Run) -> Run:
        @functools.wraps(run)
        def chose(**given: Any) -> int | None:
            chosen = Selection(**{name: given.pop(name) for name in Selection._fields})
            return run(chosen=chosen.checked(), **given)

        return takes(*WHICH, *options, with_filter, *MANY)(chose)

    return decorate


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


def each_of(names: Iterable[str], one: Callable[[str], object]) -> int:
    """Carry out an operation on each, and report refusals; return the exit code."""
    return each(((name,) for name in names), one)[1]
