"""The tokens file: JSON with one entry for each token, and never a token's secret.

    {"version": 1, "tokens": [
      {"id": "0a1b2c3d", "name": "mail worker", "sha256": "9f86d081…0a08",
       "scopes": ["reserve", "delete"], "topics": ["mail.*"],
       "created": "2026-11-21T10:15:00Z", "not_after": "2027-11-21T00:00:00Z"}]}

`sha256` is the hash, in hexadecimal, of the 43 characters that are the token's secret. That is
enough: the secret is 256 random bits and cannot be found from the hash, and a slow hash would only
let unauthenticated clients keep the daemon busy. `not_after` may be missing. The module
knows no clocks.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from delayd.access.entry_file import NOT_WRITTEN_BY_OTHERS, EntryFile
from delayd.access.errors import TokensInvalid
from delayd.access.scopes import Scope
from delayd.core.policy import checked_globs
from delayd.limits import (
    TOKEN_NAME_CHARACTERS_MAX,
    TOKENS_FILE_BYTES_MAX,
    TOKENS_MAX,
)
from delayd.text import did_you_mean, parse_time_s, time_text

NAME_RULE: Final = f"must be 1 to {TOKEN_NAME_CHARACTERS_MAX} printable characters"
SCOPE_RULE: Final = "must be one of " + ", ".join(Scope)

_HEXADECIMAL: Final = re.compile(r"[0-9a-f]*")


@dataclass(frozen=True, slots=True)
class Entry:
    """What is kept of a token."""

    id: str
    name: str
    sha256: str
    scopes: frozenset[Scope]
    topics: tuple[str, ...]
    created_s: int
    not_after_s: int | None = None
    """The last second in which it is valid; None: it never expires."""

    def is_over(self, epoch_s: float) -> bool:
        """Tell whether it has expired."""
        return self.not_after_s is not None and epoch_s > self.not_after_s

    def fields(self) -> dict[str, Any]:
        """Return it as in the file."""
        fields: dict[str, Any] = {
            "id": self.id,
            "name": self.name,
            "sha256": self.sha256,
            "scopes": [scope.value for scope in Scope if scope in self.scopes],
            "topics": list(self.topics),
            "created": time_text(self.created_s),
        }
        if self.not_after_s is not None:
            fields["not_after"] = time_text(self.not_after_s)
        return fields


def checked_name(value: object) -> str:
    """Read a token's name. Raises ValueError with the rule."""
    if not isinstance(value, str) or not value.isprintable() or value.isspace():
        raise ValueError(NAME_RULE)
    if not 1 <= len(value) <= TOKEN_NAME_CHARACTERS_MAX:
        raise ValueError(NAME_RULE)
    return value


def checked_scope(value: object) -> Scope:
    """Read a scope. Raises ValueError with the rule."""
    try:
        return Scope(value)  # type: ignore[arg-type]  # the enum refuses anything else
    except ValueError:
        raise ValueError(SCOPE_RULE + did_you_mean(str(value), Scope)) from None


def _digits(value: object, count: int) -> str:
    if isinstance(value, str) and len(value) == count and _HEXADECIMAL.fullmatch(value):
        return value
    raise ValueError(f"must be {count} hexadecimal digits")


def _scopes(value: object) -> list[Scope]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"must be a list; each {SCOPE_RULE}")
    return [checked_scope(each) for each in value]


def _made(values: Mapping[str, Any]) -> Entry:
    return Entry(
        values["id"],
        values["name"],
        values["sha256"],
        frozenset(values["scopes"]),
        tuple(values["topics"]),
        values["created"],
        values.get("not_after"),
    )


TOKENS_FILE: Final = EntryFile(
    plural="tokens",
    key="id",
    required=("id", "name", "sha256", "scopes", "topics", "created"),
    readers={
        "id": partial(_digits, count=8),
        "name": checked_name,
        "sha256": partial(_digits, count=64),
        "scopes": _scopes,
        "topics": checked_globs,
        "created": parse_time_s,
        "not_after": lambda value: None if value is None else parse_time_s(value),
    },
    unsaid=frozenset({"sha256"}),
    make=_made,
    invalid=TokensInvalid,
    entries_max=TOKENS_MAX,
    bytes_max=TOKENS_FILE_BYTES_MAX,
    mode=NOT_WRITTEN_BY_OTHERS,
)
