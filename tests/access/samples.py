"""Tokens for tests: drawn from a number, so that they are the same in every run."""

import json
from pathlib import Path
from typing import Any

import pytest

from delayd.access.entry_file import EntryFile
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


def errors_of(file: EntryFile[Any], data: bytes) -> list[str]:
    """The mistakes of a file of entries, which are told for the place `t`."""
    with pytest.raises(file.invalid) as caught:
        file.from_bytes(data, "t")
    assert str(caught.value) == "\n".join(caught.value.errors)
    assert all(error.startswith("t: ") for error in caught.value.errors)
    return [error[3:] for error in caught.value.errors]


def errors_of_rows(file: EntryFile[Any], *rows: object) -> list[str]:
    return errors_of(file, json.dumps({"version": 1, file.plural: rows}).encode())
