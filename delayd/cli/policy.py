"""`delayd policy`: retries, dead letters, caps and rates of a topic."""

import json
from collections.abc import Iterable
from operator import itemgetter
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click

from delayd.cli.connect import known_topics, seen, with_client
from delayd.cli.parameters import Subcommands
from delayd.cli.tables import JSON_OPTION, Column, json_text, print_fields, print_found, print_json
from delayd.cli.terminal import complain
from delayd.limits import POLICY_JSON_BYTES_MAX

if TYPE_CHECKING:
    from delayd.client.results import PolicyInfo
    from delayd.client.sync import Client

SOURCES: Final = {"run_time": "set at run time", "configuration": "the configuration"}
COLUMNS: Final = (
    Column("topic", text_least=8, cell=itemgetter("topic")),
    Column("source", 1, cell=lambda found: SOURCES.get(found["source"], "")),
    Column("policy", text_least=12, cell=lambda found: json_text(found["policy"])),
)


@click.group(cls=Subcommands)
def policy() -> None:
    """List, show, set and remove the policies of topics."""


@policy.command(
    "delayd policy list",
    "delayd policy list --json | jq -r .topic",
    short_help="List the topics that have a policy, and where it comes from.",
)
@JSON_OPTION
@with_client
def list_(client: "Client", *, as_json: bool) -> None:
    """List the topics that have a policy, with the policy and where it comes from.

    Each topic is asked for by itself: with thousands of them this takes seconds. A pattern of the
    configuration shows where there is a topic that it matches.
    """
    infos = ((each.name, client.policy(each.name)) for each in client.topics())
    found = [
        {"topic": topic, "policy": info.policy, "source": info.source}
        for topic, info in infos
        if info.policy
    ]
    print_found(found, COLUMNS, dict, as_json=as_json)
    if not (found or as_json):
        complain(f"no topic{seen()} has a policy")


@policy.command(
    "delayd policy get mail",
    "delayd policy get mail --json",
    short_help="Show the policy of TOPIC, and where it comes from.",
)
@click.argument("topic", shell_complete=known_topics)
@JSON_OPTION
@with_client
def get(client: "Client", topic: str, *, as_json: bool) -> None:
    """Show the policy of TOPIC, and whether it was set at run time or in the configuration.

    The topic need not be there: its policy may be set before its first job.
    """
    show(client.policy(topic), as_json=as_json)


@policy.command(
    "delayd policy set mail retry='15s 3m 10m' max_attempts=3",
    "delayd policy set mail jobs_max=            # no cap any more",
    "delayd policy set mail --file policy.json   # in place of all fields",
    "delayd policy set mail retry=1m --dry-run",
)
@click.argument("topic", shell_complete=known_topics)
@click.argument("fields", nargs=-1, metavar="[FIELD=VALUE]...")
@click.option("--file", type=click.File("rb"), help="Replace the policy by this JSON; - is stdin.")
@click.option("--dry-run", is_flag=True, help="Change nothing, and show what it would be.")
@JSON_OPTION
@with_client
def set_(
    client: "Client",
    topic: str,
    fields: tuple[str, ...],
    *,
    file: BinaryIO | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Set fields of the policy of TOPIC; the others stay. FIELD= removes one.

    What is set takes precedence over the configuration, across restarts too, until `policy clear`.
    """
    if (file is None) == (not fields):
        raise click.UsageError("give FIELD=VALUE, or --file")
    if_tag = ""
    if file is None:
        held = client.policy(topic)
        wanted, if_tag = changed(held.policy, fields), held.policy_tag
    else:
        try:
            wanted = json.loads(file.read(POLICY_JSON_BYTES_MAX + 1))
        except ValueError as error:
            raise click.UsageError(f"--file is not JSON: {error}") from None
        if not isinstance(wanted, dict):
            raise click.UsageError("--file must hold an object")
    if dry_run:
        print_json([wanted])
        return
    show(client.set_policy(topic, wanted, if_tag=if_tag), as_json=as_json)


def changed(policy: dict[str, Any], fields: Iterable[str]) -> dict[str, Any]:
    """Return a policy with some fields changed.

    >>> changed({"jobs_max": 5, "max_attempts": 3}, ["jobs_max=", "retry=15s 3m", "reserved_max=7"])
    {'max_attempts': 3, 'retry': '15s 3m', 'reserved_max': 7}
    """
    policy = dict(policy)
    for field in fields:
        name, equals, text = field.partition("=")
        if not (name and equals):
            raise click.UsageError(f"{field!r} must be FIELD=VALUE")
        if not text:
            policy.pop(name, None)
            continue
        try:
            policy[name] = json.loads(text)
        except ValueError:
            policy[name] = text
    return policy


@policy.command("delayd policy clear mail", short_help="Remove the policy that was set for TOPIC.")
@click.argument("topic", shell_complete=known_topics)
@JSON_OPTION
@with_client
def clear(client: "Client", topic: str, *, as_json: bool) -> None:
    """Remove the policy that was set for TOPIC, so that the configuration applies."""
    show(client.clear_policy(topic), as_json=as_json)


def show(info: "PolicyInfo", *, as_json: bool) -> None:
    """Print a policy."""
    if as_json:
        shown = {"policy": info.policy, "policy_tag": info.policy_tag, "source": info.source}
        print_json([shown])
        return
    print_fields(info.policy.items())
    if not info.policy:
        complain("no policy applies to a topic of this name")
    elif info.source:
        complain(f"source: {SOURCES.get(info.source, info.source)}")
