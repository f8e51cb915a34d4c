"""`delayd push`: try a url as the daemon would call it.

The call is made from this machine, by this user, under the egress rules of the configuration; the
daemon need not run. Every step is printed, which shows why a receiver is not reached.
"""

from typing import TYPE_CHECKING

import click

from delayd.access.errors import SecretsInvalid, shown
from delayd.cli.job_options import named
from delayd.cli.parameters import Subcommands
from delayd.cli.tables import json_text
from delayd.cli.terminal import CommandFailed, load_config, print_lines
from delayd.clock import system_wall_ms
from delayd.core.errors import NotForTopic, TopicNameInvalid
from delayd.core.names import checked_name
from delayd.core.targets import HEADERS, METHODS, Target
from delayd.exits import Exit
from delayd.text import visible

if TYPE_CHECKING:
    from delayd.access.signing_secrets import Secrets
    from delayd.config import Config


@click.group(cls=Subcommands)
def push() -> None:
    """Test the calls that deliver jobs."""


@push.command(
    "delayd push test https://hooks.example.com/jobs --config delayd.toml",
    "delayd push test https://hooks.example.com/jobs --secret orders --json",
)
@click.argument("url")
@click.option(
    "--method", type=click.Choice(METHODS), default="POST", help="The method; by default POST."
)
@click.option(
    "--header", metavar="NAME:VALUE", multiple=True, help="A header of the request; repeatable."
)
@click.option(
    "--secret", "names", multiple=True, metavar="NAME", help="Sign with this secret; repeatable."
)
@click.option("--topic", metavar="TOPIC", default="sample", help="Sign it as a call of this topic.")
@click.option(
    "--config",
    "config_path",
    metavar="FILE",
    help="The configuration: what may be called, and the secrets.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def test(
    url: str,
    *,
    method: str,
    header: tuple[str, ...],
    names: tuple[str, ...],
    topic: str,
    config_path: str | None,
    as_json: bool,
) -> int:
    """Send one signed sample to URL, and explain the result.

    Without --secret it is signed as push.sign_with says. Exit code 69: the receiver did not take
    the sample; 78: the configuration does not allow the call.
    """
    from delayd.net.addresses import TcpAddress
    from delayd.push.opening import Push
    from delayd.push.try_url import try_url
    from delayd.push.webhook import Webhook

    try:
        headers = HEADERS.read(named(header))
    except ValueError as error:
        raise click.UsageError(f"--header: {error}") from None
    config = load_config(config_path, {})
    if not config.push_enabled:
        off = "push.enabled is false: the daemon would call nothing"
        raise CommandFailed(Exit.BAD_CONFIGURATION, off)
    secrets, names = _signers(config, topic, names)
    listens = (config.line_listen, config.http_listen)
    own = [address for address in listens if isinstance(address, TcpAddress)]
    rules = Push(config, secrets, own, {}).egress
    webhook = Webhook(rules, secrets=secrets, connect_timeout_ms=config.push_connect_timeout_ms)
    trial = try_url(
        Target(url=url, method=method, headers=headers, secrets=names),
        *(rules, webhook),
        wall_ms=system_wall_ms(),
        timeout_ms=config.push_timeout_ms,
        topic=topic,
    )
    rows = trial.explained()
    lines = [f"{subject:<8} {visible(text)}" for subject, text in rows]
    print_lines([json_text(trial.fields())] if as_json else lines)
    if trial.is_refused:
        return Exit.BAD_CONFIGURATION
    return Exit.OK if trial.is_delivered else Exit.UNREACHABLE


def _signers(
    config: "Config", topic: str, names: tuple[str, ...]
) -> "tuple[Secrets, tuple[str, ...]]":
    """Return the secrets, and those that sign a sample of the topic. Raises `CommandFailed`."""
    from delayd.access.signing_secrets import Secrets

    try:
        secrets = Secrets() if config.push_secrets is None else Secrets.load(config.push_secrets)
    except SecretsInvalid as error:
        raise CommandFailed(Exit.BAD_CONFIGURATION, *error.errors) from None
    if unknown := secrets.unknown(names or config.push_sign_with):
        where = config.push_secrets or "push.secrets, which is off"
        errors = [f"--secret {shown(name)}: there is no such secret in {where}" for name in unknown]
        raise CommandFailed(Exit.BAD_CONFIGURATION, *errors)
    try:
        return secrets, secrets.to_sign_with(checked_name(topic), names, config.push_sign_with)
    except NotForTopic as refusal:
        raise CommandFailed(Exit.BAD_CONFIGURATION, f"--topic {shown(topic)}: {refusal}") from None
    except TopicNameInvalid as refusal:
        raise click.UsageError(f"--topic: {refusal}") from None
