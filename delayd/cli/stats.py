"""`delayd stats`: the daemon's figures, once."""

from typing import TYPE_CHECKING

import click

from delayd.cli.connect import with_client
from delayd.cli.parameters import command
from delayd.cli.tables import JSON_OPTION, print_fields, print_json
from delayd.cli.terminal import print_lines
from delayd.cli.topics import flattened

if TYPE_CHECKING:
    from delayd.client.sync import Client


@command("delayd stats", "delayd stats --json | jq .jobs", "delayd stats --metrics | grep lag")
@click.option("--metrics", is_flag=True, help="Print the figures in the format of Prometheus.")
@JSON_OPTION
@with_client
def stats(client: "Client", *, metrics: bool, as_json: bool) -> None:
    """Show the daemon's figures; `delayd top` shows them live."""
    if metrics:
        print_lines(client.metrics().splitlines())
    elif as_json:
        print_json([client.stats()])
    else:
        print_fields(flattened(client.stats()))
