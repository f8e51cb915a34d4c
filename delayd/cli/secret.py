"""`delayd secret`: the secrets that calls are signed with.

A secret is printed once, alone and on standard output, for the receivers that verify signatures
with it; messages go to standard error. The file is that of `--secrets`, or the one of a daemon with
the same configuration. A running daemon uses the secrets that it has until it is told to reload.

To exchange one without a break: `rotate`, reload, give the new one to the receivers, `retire`.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import click

from delayd.access.errors import SecretsInvalid, shown
from delayd.access.signing_secrets import (
    ACTIVE_MAX,
    SECRET_BYTES,
    SECRETS_FILE,
    Active,
    NamedSecret,
    secret_text,
)
from delayd.cli.entry_file import RELOAD, change_or_fail, must_exist
from delayd.cli.help import examples
from delayd.cli.parameters import takes
from delayd.cli.tables import print_json
from delayd.cli.terminal import CommandFailed, columns, complain, load_config, print_lines
from delayd.clock import system_wall_ms
from delayd.core.policy import GLOBS_RULE, PATTERN
from delayd.core.targets import NAME
from delayd.exits import Exit
from delayd.limits import TOKEN_GLOBS_MAX
from delayd.moments import time_text

_WHERE: Final = (
    click.option("--secrets", "secrets_path", metavar="FILE", help="The secrets file."),
    click.option(
        "--config", "config_path", metavar="FILE", help="The configuration with its path."
    ),
)


@click.group()
def secret() -> None:
    """Create and exchange the secrets that calls are signed with."""


_TOPIC: Final = click.option(
    "--topic", "globs", multiple=True, metavar="GLOB", help="orders, mail.*, ...; '*' for all."
)


@secret.command(epilog=examples("delayd secret create orders --topic 'orders*'"))
@click.argument("name")
@takes(_TOPIC, *_WHERE)
def create(
    name: str, globs: tuple[str, ...], secrets_path: str | None, config_path: str | None
) -> int:
    """Create a secret of that NAME and print it, only this once.

    It signs calls of the topics that --topic says, which can be repeated, or have several values
    separated by commas; without it those of every topic.
    """
    path = _secrets_path(secrets_path, config_path)
    try:
        NAME.read(name)
    except ValueError as error:
        raise CommandFailed(Exit.USAGE, f"NAME {shown(name)}: {error}") from None
    topics = _topics(globs)
    drawn = _drawn()

    def add(entries: tuple[NamedSecret, ...]) -> tuple[NamedSecret, ...]:
        if any(entry.name == name for entry in entries):
            said = f"NAME {shown(name)}: is in {path} already: `delayd secret rotate` makes another"
            raise CommandFailed(Exit.USAGE, said)
        return (*entries, NamedSecret(name, (drawn,), topics))

    change_or_fail(SECRETS_FILE, path, add)
    _print(drawn, f"remove {name}")
    complain(f"secret {name} was added to {path}; it is shown only here")
    complain(RELOAD)
    if topics is None:
        complain(_for_all(name))
    return Exit.OK


@secret.command(epilog=examples("delayd secret restrict orders --topic 'orders*'"))
@click.argument("name")
@takes(_TOPIC, *_WHERE)
def restrict(
    name: str, globs: tuple[str, ...], secrets_path: str | None, config_path: str | None
) -> int:
    """Limit the secret of that NAME to the topics that --topic says.

    --topic can be repeated, or have several values separated by commas; it replaces what was said
    before. Jobs of other topics that are to be signed with it then fail by their retry rules.
    """
    topics = _topics(globs)
    if topics is None:
        said = "--topic is missing: whose calls it signs, such as --topic 'mail.*'"
        raise CommandFailed(Exit.USAGE, said)
    path = _change_one(name, secrets_path, config_path, lambda entry: replace(entry, topics=topics))
    complain(f"secret {name} in {path} is for the topics {', '.join(topics)} from now on")
    complain(RELOAD)
    return Exit.OK


@secret.command(epilog=examples("delayd secret rotate orders --secrets secrets.json"))
@click.argument("name")
@takes(*_WHERE)
def rotate(name: str, secrets_path: str | None, config_path: str | None) -> int:
    """Add a second secret to that NAME and print it, only this once.

    Calls are then signed with both, until the older one is retired.
    """
    drawn = _drawn()

    def rotated(entry: NamedSecret) -> NamedSecret:
        if len(entry.active) == ACTIVE_MAX:
            said = f"NAME {shown(name)}: has {ACTIVE_MAX} secrets: `delayd secret retire` the older"
            raise CommandFailed(Exit.USAGE, said)
        return replace(entry, active=(*entry.active, drawn))

    path = _change_one(name, secrets_path, config_path, rotated)
    # The newest is the one that could not be told, and `retire` would drop the other.
    _print(drawn, f"remove {name}, and create it again")
    complain(f"secret {name} has a second one in {path}; it is shown only here")
    complain(RELOAD)
    complain(f"when all receivers know it: delayd secret retire {name}")
    return Exit.OK


@secret.command(epilog=examples("delayd secret retire orders --secrets secrets.json"))
@click.argument("name")
@takes(*_WHERE)
def retire(name: str, secrets_path: str | None, config_path: str | None) -> int:
    """Drop the older of the two secrets of that NAME."""

    def retired(entry: NamedSecret) -> NamedSecret:
        if len(entry.active) == 1:
            said = f"NAME {shown(name)}: has only one secret: `delayd secret remove` drops the name"
            raise CommandFailed(Exit.USAGE, said)
        return replace(entry, active=entry.active[1:])

    path = _change_one(name, secrets_path, config_path, retired)
    complain(f"the older secret {name} was removed from {path}")
    complain(RELOAD)
    return Exit.OK


@secret.command(epilog=examples("delayd secret remove orders --secrets secrets.json"))
@click.argument("name")
@takes(*_WHERE)
def remove(name: str, secrets_path: str | None, config_path: str | None) -> int:
    """Remove all secrets of that NAME; calls that name it then fail."""
    path = _change_one(name, secrets_path, config_path, lambda _: None)
    complain(f"secret {name} was removed from {path}: calls to targets that name it will fail")
    complain(RELOAD)
    return Exit.OK


@secret.command("list", epilog=examples("delayd secret list --secrets secrets.json"))
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each name.")
@takes(*_WHERE)
def list_secrets(*, as_json: bool, secrets_path: str | None, config_path: str | None) -> int:
    """List names, topics and ages, never the secrets."""
    path = _secrets_path(secrets_path, config_path)
    try:
        entries = SECRETS_FILE.load(path)
    except SecretsInvalid as error:
        raise CommandFailed(Exit.BAD_CONFIGURATION, *error.errors) from None
    rows = [
        (entry.name, entry.topics, [time_text(each.created_s) for each in entry.active])
        for entry in entries
    ]
    if as_json:
        print_json(
            {"name": name, "topics": topics, "created": created} for name, topics, created in rows
        )
    else:
        cells = (
            (name, ",".join(topics or ("*",)), *(*reversed(created), "-")[:2])
            for name, topics, created in rows
        )
        print_lines(columns(("NAME", "TOPICS", "CREATED", "OLDER ONE"), cells))
    for name, topics, _ in rows:
        if topics is None:
            complain(_for_all(name))
    return Exit.OK


def _change_one(
    name: str,
    secrets_path: str | None,
    config_path: str | None,
    change_entry: Callable[[NamedSecret], NamedSecret | None],
) -> str:
    """Put another entry in place of the one of that name, or none. Return the path of the file.

    Raises `CommandFailed`.
    """
    path = _secrets_path(secrets_path, config_path)
    must_exist(path)

    def alter(entries: tuple[NamedSecret, ...]) -> list[NamedSecret]:
        if all(entry.name != name for entry in entries):
            said = f"NAME {shown(name)}: there is no such secret in {path}"
            raise CommandFailed(Exit.USAGE, said)
        changed = (change_entry(entry) if entry.name == name else entry for entry in entries)
        return [entry for entry in changed if entry is not None]

    change_or_fail(SECRETS_FILE, path, alter)
    return path


def _topics(globs: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the patterns of topics; None: none is given. Raises `CommandFailed`."""
    given = [part for value in globs for part in value.split(",")]
    errors = []
    for glob in given:
        try:
            PATTERN.read(glob)
        except ValueError as error:
            errors.append(f"--topic {shown(glob)}: {error}")
    if len(given) > TOKEN_GLOBS_MAX:
        errors.append(f"--topic: {GLOBS_RULE}")
    if errors:
        raise CommandFailed(Exit.USAGE, *errors)
    return tuple(given) or None


def _for_all(name: str) -> str:
    """Warn of a secret of which nobody has said for which topics it is."""
    how = f"delayd secret restrict {name} --topic GLOB"
    return f"every topic may have its calls signed with secret {name}: {how}"


def _drawn() -> Active:
    return Active(os.urandom(SECRET_BYTES), system_wall_ms() // 1_000)


def _print(active: Active, undo: str) -> None:
    """Write the secret to standard output. Raises `CommandFailed`, which says how to undo it."""
    try:
        sys.stdout.write(f"{secret_text(active.key)}\n")
        sys.stdout.flush()
    except OSError as error:
        said = f"the secret could not be printed ({error.strerror}): delayd secret {undo}"
        raise CommandFailed(Exit.OUTPUT_FAILED, said) from error


def _secrets_path(secrets_path: str | None, config_path: str | None) -> str:
    """Return the path of the secrets file. Raises `CommandFailed`."""
    if secrets_path is None:
        secrets_path = load_config(config_path, {}).push_secrets
    if not secrets_path:
        said = "push.secrets is off" if config_path else "no secrets file is known"
        raise CommandFailed(Exit.USAGE, f"{said}: --secrets FILE names one, or push.secrets")
    # If the name is a link, change the file that it points to, and not the link.
    return os.path.realpath(secrets_path)
