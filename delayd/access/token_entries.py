"""The tokens file: JSON with one entry for each token, and never a token's secret.

    {"version": 1, "tokens": [
      {"id": "0a1b2c3d", "name": "mail worker", "sha256": "9f86d081…0a08",
       "scopes": ["reserve", "delete"], "topics": ["mail.*"],
       "created": "2026-11-21T10:15:00Z", "not_after": "2027-11-21T00:00:00Z"}]}

`sha256` is the hash, in hexadecimal, of the 43 characters that are the token's secret. That is
enough: the secret is 256 random bits and cannot be found from the hash, and a slow hash would only
let unauthenticated clients keep the daemon busy. `not_after` may be missing.
"""

from dataclasses import dataclass
from typing import Final

from delayd.access.entry_file import NOT_WRITTEN_BY_OTHERS, EntryFile
from delayd.access.errors import TokensInvalid
from delayd.access.scopes import Scope
from delayd.core.policy import PATTERNS
from delayd.fields import TIME, Field, ValueKind, list_of, matching, or_null
from delayd.limits import TOKEN_NAME_CHARACTERS_MAX, TOKENS_FILE_BYTES_MAX, TOKENS_MAX
from delayd.text import did_you_mean

NAME_RULE: Final = f"must be 1 to {TOKEN_NAME_CHARACTERS_MAX} printable characters"
SCOPE_RULE: Final = "must be one of " + ", ".join(Scope)


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


def _read_name(value: object) -> str:
    if not isinstance(value, str) or not value.isprintable() or value.isspace():
        raise ValueError(NAME_RULE)
    if not 1 <= len(value) <= TOKEN_NAME_CHARACTERS_MAX:
        raise ValueError(NAME_RULE)
    return value


def _read_scope(value: object) -> Scope:
    try:
        return Scope(value)  # type: ignore[arg-type]  # the enum refuses anything else
    except ValueError:
        raise ValueError(SCOPE_RULE + did_you_mean(str(value), Scope)) from None


def _digits(count: int) -> ValueKind:
    return matching(f"[0-9a-f]{{{count}}}", f"must be {count} hexadecimal digits")


NAME: Final = ValueKind(_read_name)
SCOPE: Final = ValueKind(_read_scope)
_SCOPES: Final = list_of(SCOPE, f"must be a list; each {SCOPE_RULE}", 1)

TOKENS_FILE: Final = EntryFile(
    plural="tokens",
    key="id",
    fields=(
        Field("id", "id", _digits(8), is_needed=True),
        Field("name", "name", NAME, is_needed=True),
        Field("sha256", "sha256", _digits(64), is_secret=True, is_needed=True),
        Field(
            *("scopes", "scopes"),
            ValueKind(
                lambda value: frozenset(_SCOPES.read(value)),
                lambda scopes: [scope.value for scope in Scope if scope in scopes],
            ),
            is_needed=True,
        ),
        Field("topics", "topics", PATTERNS, is_needed=True),
        Field("created", "created_s", TIME, is_needed=True),
        Field("not_after", "not_after_s", or_null(TIME)),
    ),
    make=Entry,
    invalid=TokensInvalid,
    entries_max=TOKENS_MAX,
    bytes_max=TOKENS_FILE_BYTES_MAX,
    mode=NOT_WRITTEN_BY_OTHERS,
)
