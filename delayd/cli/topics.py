"""Topics as a whole: counts, pauses, `clear`."""

from operator import attrgetter
from typing import TYPE_CHECKING, Final

import click

from delayd.cli.connect import known_topics, seen, with_client
from delayd.cli.parameters import DRY_RUN, DURATION, YES, command
from delayd.cli.tables import JSON_OPTION, Column, print_fields, print_found, print_table
from delayd.cli.terminal import CommandFailed, agreed, complain, print_lines
from delayd.exits import Exit
from delayd.text import counted

if TYPE_CHECKING:
    from delayd.client.sync import Client

ORDERS: Final = ("name", "jobs", "ready", "delayed", "reserved", "buried", "waiting")
COLUMNS = (
    *(Column("topic", text_least=8, cell=attrgetter("name")), Column("ready"), Column("delayed")),
    *(Column("reserved", 3), Column("buried", 1), Column("waiting", 4), Column("paused until", 2)),
)


@command(
    "delayd topics",
    "delayd topics --sort buried",
    "delayd topics mail",
    "delayd topics --json | jq -r .name",
)
@click.argument("topic", required=False, shell_complete=known_topics)
@click.option(
    "--sort",
    "order",
    type=click.Choice(ORDERS),
    default=ORDERS[0],
    help="By name, or by one of these numbers, the highest first.",
)
@JSON_OPTION
@with_client
def topics(client: "Client", topic: str | None, *, order: str, as_json: bool) -> None:
    """List the topics with their jobs by state, or show everything about one TOPIC.

    Of its groups of jobs the ten with most ready ones are shown; `group list` has all.
    """
    found = client.topics() if topic is None else [client.topic(topic)]
    if order != ORDERS[0]:
        found.sort(key=lambda info: getattr(info, order), reverse=True)
    if topic is None or as_json:
        print_found(found, COLUMNS, attrgetter("details"), as_json=as_json)
        if not (found or as_json):
            complain(f"there are no topics{seen() or ': no job was put yet'}")
    else:
        print_fields(flattened(found[0].details))
        if found[0].groups:
            show_groups(client, topic)


def show_groups(client: "Client", topic: str) -> None:
    """Print the groups of a topic that have most ready jobs."""
    from delayd.cli.groups import COLUMNS, SHOWN

    print_lines(["", "groups with most ready jobs:"])
    print_table(COLUMNS, client.groups(topic, order="ready", limit=SHOWN).groups)


def flattened(fields: object, before: str = "") -> "list[tuple[str, object]]":
    """Return fields within fields as one list.

    >>> flattened({"name": "mail", "rates": {"put": 0.5}})
    [('name', 'mail'), ('rates.put', 0.5)]
    >>> flattened({"standbys": [{"lag": 0.25}, {"lag": 7}]})
    [('standbys.1.lag', 0.25), ('standbys.2.lag', 7)]
    """
    if isinstance(fields, list) and fields and all(isinstance(each, dict) for each in fields):
        fields = {str(number): each for number, each in enumerate(fields, 1)}
    if not isinstance(fields, dict) or not fields:
        return [(before, fields)]
    return [
        pair
        for name, value in fields.items()
        for pair in flattened(value, f"{before}.{name}" if before else name)
    ]


WHICH_ONES: Final = click.option(
    "--dry-run", is_flag=True, help="Change nothing; say which topics would be changed."
)


@command("delayd pause mail 10m", "delayd pause 'mail.*' 1h --dry-run", "delayd pause 'mail.*' 1h")
@click.argument("topic", shell_complete=known_topics)
@click.argument("duration", type=DURATION)
@WHICH_ONES
@with_client
def pause(client: "Client", topic: str, duration: str, *, dry_run: bool) -> int:
    """Hand out no jobs of TOPIC for DURATION; they still come due.

    TOPIC may be a pattern: * is any text, ? any character. It stands for the topics that exist now.
    """
    from delayd.cli.selection import each_of

    def one(name: str) -> None:
        if dry_run:
            print_lines([f"would be paused for {duration}: {client.topic(name).name}"])
            return
        client.pause(name, duration)
        print_lines([f"{name} is paused for {duration}; delayd resume {name} ends it"])

    return each_of(named(client, topic), one)


@command("delayd resume mail", "delayd resume 'mail.*' --dry-run", "delayd resume 'mail.*'")
@click.argument("topic", shell_complete=known_topics)
@WHICH_ONES
@with_client
def resume(client: "Client", topic: str, *, dry_run: bool) -> int:
    """End the pause of TOPIC, or of all paused topics that a pattern such as 'mail.*' matches."""
    from delayd.cli.selection import each_of

    def one(name: str) -> None:
        if dry_run:
            print_lines([f"would be resumed: {client.topic(name).name}"])
            return
        client.resume(name)
        print_lines([f"{name} hands out jobs again"])

    return each_of(named(client, topic, are_paused=True), one)


def named(client: "Client", topic: str, *, are_paused: bool = False) -> list[str]:
    """Return the topic, or those that match a pattern. Raises CommandFailed if none does."""
    if "*" not in topic and "?" not in topic:
        return [topic]
    from delayd.core.name_patterns import Matcher
    from delayd.core.names import INTERNAL_TOPICS
    from delayd.core.policy import PATTERN

    try:
        matcher = Matcher([PATTERN.read(topic)], known_max=1)
    except ValueError as error:
        raise click.UsageError(f"{topic!r} {error}") from None
    found = [
        info.name
        for info in client.topics()
        if matcher.first(info.name) == 0
        and info.name not in INTERNAL_TOPICS
        and not (are_paused and info.paused_until is None)
    ]
    if not found:
        paused = "paused " * are_paused
        raise CommandFailed(Exit.NOTHING_THERE, f"no {paused}topic{seen()} matches {topic!r}")
    return found


@command("delayd clear mail --dry-run", "delayd clear mail --yes")
@click.argument("topic", shell_complete=known_topics)
@DRY_RUN
@YES
@with_client
def clear(client: "Client", topic: str, *, dry_run: bool, yes: bool) -> None:
    """Delete every job of TOPIC that is not reserved."""
    found = client.topic(topic)
    wanted = found.jobs - found.reserved
    jobs = f"{counted(wanted, 'job')} of {topic}"
    if agreed("deleted", jobs, dry_run=dry_run, yes=yes or not wanted):
        print_lines([f"deleted: {counted(client.clear(topic), 'job')}"])
