"""`delayd secret`: the secrets that calls are signed with.

A secret is printed once, alone and on standard output, for the receivers that verify signatures
with it; messages go to standard error. The file is that of `--secrets`, or the one of a daemon with
the same configuration. A running daemon uses the secrets that it has until it reloads them.

To exchange one without a break: `rotate`, reload, give the new one to the receivers, `retire`.
"""

import os
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
from delayd.cli.entry_file import RELOAD, change_or_fail, must_exist, print_once, with_file
from delayd.cli.parameters import Subcommands, parts_of
from delayd.cli.tables import plain, print_json
from delayd.cli.terminal import CommandFailed, complain, print_lines
from delayd.clock import system_wall_ms
from delayd.core.policy import GLOBS_RULE, PATTERN
from delayd.core.targets import NAME
from delayd.exits import Exit
from delayd.limits import TOKEN_GLOBS_MAX
from delayd.moments import time_text
from delayd.text import visible

_with_file: Final = with_file("push.secrets")


@click.group(cls=Subcommands)
def secret() -> None:
    """Create and exchange the secrets that calls are signed with."""


_TOPIC: Final = click.option(
    "--topic",
    "globs",
    multiple=True,
    metavar="GLOB",
    help="Whose calls it signs: mail.*, ...; '*': all.",
)


@secret.command("delayd secret create orders --topic 'orders*'")
@click.argument("name")
@_TOPIC
@_with_file
def create(name: str, globs: tuple[str, ...], path: str) -> None:
    """Create a secret of that NAME and print it, only this once.

    It signs calls of the topics that --topic says, which can be repeated, or have several values
    separated by commas; without it those of every topic.
    """
    try:
        NAME.read(name)
    except ValueError as error:
        raise CommandFailed(Exit.USAGE, f"NAME {shown(name)}: {error}") from None
    topics = _topics(globs)
    drawn = _drawn()

    def add(entries: tuple[NamedSecret, ...]) -> tuple[NamedSecret, ...]:
        if any(entry.name == name for entry in entries):
            why = f"NAME {shown(name)}: is in {path} already: `delayd secret rotate` makes another"
            raise CommandFailed(Exit.USAGE, why)
        return (*entries, NamedSecret(name, (drawn,), topics))

    change_or_fail(SECRETS_FILE, path, add)
    print_once(secret_text(drawn.key), "secret", f"delayd secret remove {name}")
    complain(f"secret {name} was added to {path}; it is shown only here")
    complain(RELOAD)
    if topics is None:
        complain(_for_all(name))


@secret.command("delayd secret restrict orders --topic 'orders*'")
@click.argument("name")
@_TOPIC
@_with_file
def restrict(name: str, globs: tuple[str, ...], path: str) -> None:
    """Limit the secret of that NAME to the topics that --topic says.

    --topic can be repeated, or have several values separated by commas; it replaces what was said
    before. Jobs of other topics that are to be signed with it then fail by their retry rules.
    """
    topics = _topics(globs)
    if topics is None:
        why = "--topic is missing: whose calls it signs, such as --topic 'mail.*'"
        raise CommandFailed(Exit.USAGE, why)
    _change_one(name, path, lambda entry: replace(entry, topics=topics))
    complain(f"secret {name} in {path} is for the topics {', '.join(topics)} from now on")
    complain(RELOAD)


@secret.command("delayd secret rotate orders --secrets secrets.json")
@click.argument("name")
@_with_file
def rotate(name: str, path: str) -> None:
    """Add a second secret to that NAME and print it, only this once.

    Calls are then signed with both, until the older one is retired.
    """
    drawn = _drawn()

    def rotated(entry: NamedSecret) -> NamedSecret:
        if len(entry.active) == ACTIVE_MAX:
            why = f"NAME {shown(name)}: has {ACTIVE_MAX} secrets: `delayd secret retire` the older"
            raise CommandFailed(Exit.USAGE, why)
        return replace(entry, active=(*entry.active, drawn))

    _change_one(name, path, rotated)
    # The newest is the one that could not be printed, and `retire` would drop the other.
    undo = f"delayd secret remove {name}, and create it again"
    print_once(secret_text(drawn.key), "secret", undo)
    complain(f"secret {name} has a second one in {path}; it is shown only here")
    complain(RELOAD)
    complain(f"when all receivers know it: delayd secret retire {name}")


@secret.command("delayd secret retire orders --secrets secrets.json")
@click.argument("name")
@_with_file
def retire(name: str, path: str) -> None:
    """Drop the older of the two secrets of that NAME."""

    def retired(entry: NamedSecret) -> NamedSecret:
        if len(entry.active) == 1:
            why = f"NAME {shown(name)}: has only one secret: `delayd secret remove` drops the name"
            raise CommandFailed(Exit.USAGE, why)
        return replace(entry, active=entry.active[1:])

    _change_one(name, path, retired)
    complain(f"the older secret {name} was removed from {path}")
    complain(RELOAD)


@secret.command("delayd secret remove orders --secrets secrets.json")
@click.argument("name")
@_with_file
def remove(name: str, path: str) -> None:
    """Remove all secrets of that NAME; calls that name it then fail."""
    _change_one(name, path, lambda _: None)
    complain(f"secret {name} was removed from {path}: calls to targets that name it will fail")
    complain(RELOAD)


@secret.command("delayd secret list --secrets secrets.json")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each name.")
@_with_file
def list_(*, as_json: bool, path: str) -> None:
    """List names, topics and ages, never the secrets."""
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
        cells_shown = [list(map(visible, row)) for row in cells]
        print_lines(plain(("name", "topics", "created", "older one"), cells_shown))
    for name, topics, _ in rows:
        if topics is None:
            complain(_for_all(name))


def _change_one(
    name: str, path: str, change_entry: Callable[[NamedSecret], NamedSecret | None]
) -> None:
    """Put another entry in place of the one of that name, or none. Raises `CommandFailed`."""
    must_exist(path)

    def alter(entries: tuple[NamedSecret, ...]) -> list[NamedSecret]:
        if all(entry.name != name for entry in entries):
            why = f"NAME {shown(name)}: there is no such secret in {path}"
            raise CommandFailed(Exit.USAGE, why)
        changed = (change_entry(entry) if entry.name == name else entry for entry in entries)
        return [entry for entry in changed if entry is not None]

    change_or_fail(SECRETS_FILE, path, alter)


def _topics(globs: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the patterns of topics; None: there are none. Raises `CommandFailed`."""
    patterns = parts_of(globs)
    errors = []
    for glob in patterns:
        try:
            PATTERN.read(glob)
        except ValueError as error:
            errors.append(f"--topic {shown(glob)}: {error}")
    if len(patterns) > TOKEN_GLOBS_MAX:
        errors.append(f"--topic: {GLOBS_RULE}")
    if errors:
        raise CommandFailed(Exit.USAGE, *errors)
    return tuple(patterns) or None


def _for_all(name: str) -> str:
    """Return the warning about a secret without topics, which every topic may use."""
    how = f"delayd secret restrict {name} --topic GLOB"
    return f"every topic may have its calls signed with secret {name}: {how}"


def _drawn() -> Active:
    return Active(os.urandom(SECRET_BYTES), system_wall_ms() // 1_000)
