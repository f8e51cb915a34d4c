"""Tokens for tests: drawn from a number, so that they are the same in every run."""

from pathlib import Path

from delayd.access.scopes import Scope
from delayd.access.token_entries import TOKENS_FILE, Entry
from delayd.access.tokens import TOKEN_BYTES, issue


def drawn(number: int) -> bytes:
    """Bytes of which the first four and all the others tell the number."""
    return bytes((number + index) % 256 for index in range(TOKEN_BYTES))


def made(
    number: int = 1,
    scopes: tuple[Scope, ...] = tuple(Scope),
    topics: tuple[str, ...] = ("*",),
    not_after_s: int | None = None,
) -> tuple[str, Entry]:
    """A token's text and its entry."""
    return issue(
        drawn(number),
        f"holder {number}",
        set(scopes),
        topics,
        created_s=1_000,
        not_after_s=not_after_s,
    )


def written(path: Path, *entries: Entry) -> str:
    """Write a tokens file as `delayd token` does and return its path."""
    path.write_bytes(TOKENS_FILE.to_bytes(entries))
    path.chmod(0o600)
    return str(path)
