"""`delayd token`: create, list and revoke tokens.

A token is printed once, alone and on standard output, so that it can go straight to where secrets
are kept; the tokens file has only its hash. Messages go to standard error. The file is that of
`--tokens`, or the one of a daemon with the same configuration. A running daemon uses the tokens
that it has until it reloads them.
"""

import os
from collections.abc import Iterable, Sequence
from typing import Any, Final

import click

from delayd.access.errors import TokensInvalid, shown
from delayd.access.scopes import Scope
from delayd.access.token_entries import NAME, SCOPE, TOKENS_FILE, Entry
from delayd.access.token_usage import days_of
from delayd.access.tokens import TOKEN, TOKEN_BYTES, Tokens, issue
from delayd.cli.entry_file import RELOAD, change_or_fail, must_exist, print_once, with_file
from delayd.cli.parameters import Subcommands, parts_of
from delayd.cli.tables import json_text, plain
from delayd.cli.terminal import CommandFailed, complain, print_lines
from delayd.clock import system_wall_ms
from delayd.core.policy import PATTERN
from delayd.durations import parse_duration_ms
from delayd.exits import Exit
from delayd.limits import WALL_MS_MAX
from delayd.moments import TIME_RULE, parse_time_s
from delayd.text import visible

ALL: Final = "all"

_with_file: Final = with_file("auth.tokens")


@click.group(cls=Subcommands)
def token() -> None:
    """Create, list and revoke the tokens of clients."""


@token.command(
    "delayd token create mailer --scope reserve,delete,release,bury --topic 'mail.*'",
    "delayd token create ops --scope all --topic '*' --not-after 90d",
)
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    metavar="SCOPE",
    help="What it may do: put, reserve, ...; or all.",
)
@click.option(
    "--topic",
    "globs",
    multiple=True,
    metavar="GLOB",
    help="For which topics: mail.*, ...; '*': all.",
)
@click.option(
    "--not-after", metavar="TIME", help="When it expires: 2027-01-31T12:00:00Z, or 90d from now."
)
@_with_file
def create(
    name: str, scopes: tuple[str, ...], globs: tuple[str, ...], not_after: str | None, path: str
) -> None:
    """Create a token for NAME and print it, only this once.

    --scope says what it may do, --topic for which topics; both can be repeated, or have several
    values separated by commas. There are no defaults: what is not named, a token may not do.
    """
    wanted = _wanted(name, scopes, globs, not_after)
    text, entry = issue(os.urandom(TOKEN_BYTES), **wanted)

    def add(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        nonlocal text, entry
        while entry.id in {each.id for each in entries}:
            text, entry = issue(os.urandom(TOKEN_BYTES), **wanted)
        return (*entries, entry)

    change_or_fail(TOKENS_FILE, path, add)
    print_once(text, "token", f"revoke {entry.id}")
    complain(f"token {entry.id} was added to {path}, without its secret, which is shown only here")
    complain(RELOAD)


@token.command("delayd token list --json")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each token.")
@_with_file
def list_(*, as_json: bool, path: str) -> None:
    """List the tokens, never their secrets."""
    try:
        entries = Tokens.load(path).entries
    except TokensInvalid as error:
        raise CommandFailed(Exit.BAD_CONFIGURATION, *error.errors) from None
    days = days_of(path)
    now_s = system_wall_ms() / 1_000
    rows = [_row(entry, days.get(entry.id), now_s) for entry in entries]
    print_lines(map(json_text, rows) if as_json else _table(rows))


@token.command("delayd token revoke 3f2a9c")
@click.argument("token_id", metavar="ID")
@_with_file
def revoke(token_id: str, path: str) -> None:
    """Revoke the token with that ID."""
    match = TOKEN.fullmatch(token_id)
    wanted = match[1] if match else token_id  # a whole token contains its id
    must_exist(path)
    gone: list[Entry] = []

    def remove(entries: tuple[Entry, ...]) -> list[Entry]:
        gone.extend(entry for entry in entries if entry.id == wanted)
        if not gone:
            raise CommandFailed(Exit.USAGE, f"ID {shown(wanted)}: there is no such token in {path}")
        return [entry for entry in entries if entry.id != wanted]

    change_or_fail(TOKENS_FILE, path, remove)
    complain(f"token {gone[0].id} ({gone[0].name}) was removed from {path}")
    complain(RELOAD)


def _wanted(
    name: str, scopes: Sequence[str], globs: Sequence[str], not_after: str | None
) -> dict[str, Any]:
    """Read the arguments of `issue`. Raises `CommandFailed` with every mistake."""
    errors: list[str] = []
    now_s = system_wall_ms() // 1_000

    def end_s(text: str) -> int:
        return _end_s(text, now_s)

    read: dict[str, list[Any]] = {}
    for option, values, reader in (
        ("NAME", [name], NAME.read),
        ("--scope", parts_of(scopes), _scopes),
        ("--topic", parts_of(globs), PATTERN.read),
        ("--not-after", [not_after] if not_after is not None else [], end_s),
    ):
        read[option] = []
        for value in values:
            try:
                read[option].append(reader(value))
            except ValueError as error:
                errors.append(f"{option} {shown(value)}: {error}")
    if not parts_of(scopes):
        errors.append("--scope is missing: what the token may do, such as --scope put,reserve")
    if not parts_of(globs):
        errors.append("--topic is missing: for which topics, such as --topic 'mail.*'")
    if errors:
        raise CommandFailed(Exit.USAGE, *errors)
    return {
        "name": read["NAME"][0],
        "scopes": set().union(*read["--scope"]),
        "topics": read["--topic"],
        "created_s": now_s,
        "not_after_s": read["--not-after"][0] if read["--not-after"] else None,
    }


def _scopes(text: str) -> set[Scope]:
    return set(Scope) if text == ALL else {SCOPE.read(text)}


def _end_s(text: str, now_s: int) -> int:
    """Read a future time, or a duration from now. Raises ValueError with the rule."""
    try:
        end_s = parse_time_s(text)
    except ValueError:
        try:
            end_s = now_s + parse_duration_ms(text) // 1_000
        except ValueError:
            raise ValueError(f"{TIME_RULE}, or a duration such as 90d") from None
    if not now_s < end_s <= WALL_MS_MAX // 1_000:
        raise ValueError("must be in the future, and before the year 10000")
    return end_s


def _row(entry: Entry, last_used: str | None, now_s: float) -> dict[str, Any]:
    fields = TOKENS_FILE.row(entry)
    del fields["sha256"]
    fields.setdefault("not_after", None)
    return fields | {"last_used": last_used, "is_over": entry.is_over(now_s)}


def _table(rows: Sequence[dict[str, Any]]) -> Iterable[str]:
    cells = (
        (
            row["id"],
            row["name"],
            ",".join(row["scopes"]),
            ",".join(row["topics"]),
            row["created"],
            f"{row['not_after'] or '-'}{' (over)' if row['is_over'] else ''}",
            row["last_used"] or "-",
        )
        for row in rows
    )
    titles = ("id", "name", "scopes", "topics", "created", "not after", "last used")
    return plain(titles, [list(map(visible, row)) for row in cells])
