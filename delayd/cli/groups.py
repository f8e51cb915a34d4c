"""`delayd group`: the groups of a topic's jobs: what each has, what holds it back, its pause."""

from operator import attrgetter
from typing import TYPE_CHECKING, Final

import click

from delayd.cli.connect import known_groups, known_topics, with_client
from delayd.cli.parameters import DURATION, Subcommands
from delayd.cli.tables import (
    JSON_OPTION,
    Column,
    duration_shown,
    print_fields,
    print_found,
    print_json,
)
from delayd.cli.terminal import complain, print_lines
from delayd.limits import GROUPS_SHOWN_MAX
from delayd.text import counted

if TYPE_CHECKING:
    from delayd.client.results import GroupInfo
    from delayd.client.sync import Client
    from delayd.client.values import GroupOrder

ORDERS: Final = ("name", "ready", "oldest", "reserved")
SHOWN: Final = 10
"""Of the groups of a topic among its other figures."""


def age_shown(group: "GroupInfo") -> str | None:
    """Write how long the job that comes next has been ready; None: there is none."""
    return None if group.ready_age is None else duration_shown(group.ready_age)


COLUMNS: Final = (
    *(Column("group", text_least=8, cell=attrgetter("name")), Column("jobs", 4), Column("ready")),
    Column("oldest", 1, cell=age_shown),
    *(Column("reserved", 3), Column("retrying", 5)),
    *(Column("weight", 7, default="1"), Column("blocked", 2), Column("paused until", 6)),
)
TOPIC: Final = click.argument("topic", shell_complete=known_topics)
NAME: Final = click.argument("name", metavar="GROUP", shell_complete=known_groups)


@click.group(cls=Subcommands)
def group() -> None:
    """List and show the groups of a topic's jobs; pause and resume one."""


@group.command(
    "delayd group list webhooks",
    "delayd group list webhooks --order oldest --limit 10",
    "delayd group list webhooks --json | jq -r .name",
    short_help="List the groups of TOPIC, and what holds them back.",
)
@TOPIC
@click.option(
    "--order",
    type=click.Choice(ORDERS),
    default=ORDERS[0],
    help="By name, or first those with most ready jobs, the oldest ready job, most reserved ones.",
)
@click.option(
    "--limit", type=click.IntRange(1, GROUPS_SHOWN_MAX), default=100, help="How many at most: 100."
)
@click.option(
    "--after", metavar="GROUP", default="", help="Begin behind it, in the order of names."
)
@JSON_OPTION
@with_client
def list_(
    client: "Client", topic: str, *, order: "GroupOrder", limit: int, after: str, as_json: bool
) -> None:
    """List the groups of TOPIC: jobs by state, and what holds a group back.

    OLDEST is how long the job that comes next has been ready, RETRYING jobs wait for another
    attempt. BLOCKED is why a group hands out nothing: paused, or the field of the policy.
    """
    page = client.groups(topic, order=order, limit=limit, after=after)
    print_found(page.groups, COLUMNS, group_fields, as_json=as_json)
    if not page.groups:
        behind = f" behind {after}" if after else ""
        complain(f"no job of {topic} has a group{behind}")
    elif page.total > len(page.groups):
        more = f"; --after {page.after} goes on" if page.after else ""
        complain(f"these are {len(page.groups)} of {counted(page.total, 'group')}{more}")


def group_fields(group: "GroupInfo") -> dict[str, object]:
    """Return a group, for JSON: under the names of HTTP."""
    return {name: each for name, each in group._asdict().items() if name != "blocked" or each}


@group.command(
    "delayd group show webhooks acme",
    "delayd group show webhooks acme --json",
    short_help="Show everything about GROUP of TOPIC.",
)
@TOPIC
@NAME
@JSON_OPTION
@with_client
def show(client: "Client", topic: str, name: str, *, as_json: bool) -> None:
    """Show what GROUP of TOPIC has; of one that no job has all is 0."""
    found = client.group(topic, name)
    if as_json:
        print_json([group_fields(found)])
        return
    print_fields(
        [
            *(("name", found.name), ("jobs", found.jobs), ("ready", found.ready)),
            *(("reserved", found.reserved), ("retrying", found.retrying)),
            ("next job ready for", age_shown(found)),
            *(("weight", found.weight), ("blocked", found.blocked)),
            ("paused until", found.paused_until),
        ]
    )


@group.command(
    "delayd group pause webhooks acme 1h", short_help="Hand out no jobs of GROUP for DURATION."
)
@TOPIC
@NAME
@click.argument("duration", type=DURATION)
@with_client
def pause(client: "Client", topic: str, name: str, duration: str) -> None:
    """Hand out no jobs of GROUP for DURATION; they still come due, and other groups go on."""
    client.pause_group(topic, name, duration)
    ends = f"delayd group resume {topic} {name} ends it"
    print_lines([f"{name} of {topic} is paused for {duration}; {ends}"])


@group.command("delayd group resume webhooks acme", short_help="End the pause of GROUP.")
@TOPIC
@NAME
@with_client
def resume(client: "Client", topic: str, name: str) -> None:
    """End the pause of GROUP."""
    client.resume_group(topic, name)
    print_lines([f"{name} of {topic} hands out jobs again"])
