"""The tokens file: JSON with one entry for each token, and never a token's secret.

    {"version": 1, "tokens": [
      {"id": "0a1b2c3d", "name": "mail worker", "sha256": "9f86d081…0a08",
       "scopes": ["reserve", "delete"], "topics": ["mail.*"],
       "created": "2026-11-21T10:15:00Z", "not_after": "2027-11-21T00:00:00Z"}]}

`sha256` is the hash, in hexadecimal, of the 43 characters that are the token's secret. That is
enough: the secret is 256 random bits and cannot be found from the hash, and a slow hash would only
let unauthenticated clients keep the daemon busy. `not_after` may be missing. Reading the file gives
either every entry or every mistake in it. The module refuses to know files and clocks.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from delayd.access.errors import TokensInvalid, shown
from delayd.access.scopes import Scope
from delayd.core.policy import PATTERN_RULE, is_pattern
from delayd.limits import TOKEN_GLOBS_MAX, TOKEN_NAME_CHARACTERS_MAX, TOKENS_MAX
from delayd.text import did_you_mean, parse_time_s, time_text

VERSION: Final = 1

NAME_RULE: Final = f"must be 1 to {TOKEN_NAME_CHARACTERS_MAX} printable characters"
SCOPE_RULE: Final = "must be one of " + ", ".join(Scope)
GLOBS_RULE: Final = f"must be a list of 1 to {TOKEN_GLOBS_MAX} patterns of topics"

_HEXADECIMAL: Final = re.compile(r"[0-9a-f]*")
_REQUIRED: Final = ("id", "name", "sha256", "scopes", "topics", "created")
_FIELDS: Final = (*_REQUIRED, "not_after")


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


def checked_glob(value: object) -> str:
    """Read a pattern of topic names. Raises ValueError with the rule."""
    if isinstance(value, str) and is_pattern(value):
        return value
    raise ValueError(PATTERN_RULE)


def to_bytes(entries: Iterable[Entry]) -> bytes:
    """Write the file, one entry to a line so that differences can be read."""
    lines = ",\n".join(f"  {json.dumps(entry.fields())}" for entry in entries)
    return f'{{"version": {VERSION}, "tokens": [\n{lines}\n]}}\n'.encode()


def from_bytes(data: bytes, where: str) -> tuple[Entry, ...]:
    """Read the file. Raises `TokensInvalid` with everything that is wrong, named after `where`."""
    try:
        document = json.loads(data.decode(), object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise TokensInvalid([f"{where}: is not JSON: {error}"]) from None
    errors: list[str] = []
    rows = _rows(document, errors)
    entries = [_entry(row, f"tokens[{index}]", errors) for index, row in enumerate(rows)]
    read = tuple(entry for entry in entries if entry is not None)
    seen: set[str] = set()
    for index, entry in enumerate(entries):
        if entry is not None and entry.id in seen:
            errors.append(f'tokens[{index}].id = "{entry.id}": is the id of another token too')
        seen |= {entry.id} if entry is not None else set()
    if errors:
        raise TokensInvalid(f"{where}: {error}" for error in errors)
    return read


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a name is given twice in one object")
    return fields


def _rows(document: object, errors: list[str]) -> list[object]:
    if not isinstance(document, dict) or document.keys() != {"version", "tokens"}:
        errors.append('must be an object of "version" and "tokens"')
        return []
    version, rows = document["version"], document["tokens"]
    if version != VERSION or isinstance(version, bool):
        errors.append(f"version = {shown(version)}: must be {VERSION}, the one of this delayd")
        return []
    if not isinstance(rows, list) or len(rows) > TOKENS_MAX:
        errors.append(f"tokens: must be a list of at most {TOKENS_MAX} entries")
        return []
    return rows


def _entry(row: object, where: str, errors: list[str]) -> Entry | None:
    """Read one entry, or add what is wrong with it to the errors."""
    if not isinstance(row, dict):
        errors.append(f"{where}: must be an object")
        return None
    before = len(errors)
    unknown = [name for name in row if name not in _FIELDS]
    errors += [f"{where}.{shown(name)[1:-1]}: there is no such field" for name in unknown]
    errors += [f"{where}.{name}: is missing" for name in _REQUIRED if name not in row]
    values = dict(_values(row, where, errors))
    if len(errors) > before:
        return None
    return Entry(
        values["id"],
        values["name"],
        values["sha256"],
        frozenset(values["scopes"]),
        tuple(values["topics"]),
        values["created"],
        values.get("not_after"),
    )


def _values(row: Mapping[str, object], where: str, errors: list[str]) -> Iterator[tuple[str, Any]]:
    for name, read in _READERS.items():
        if name not in row:
            continue
        value = row[name]
        try:
            yield name, read(value)
        except ValueError as error:
            # A text in place of a hash may be the secret itself, in pieces.
            said = "" if name == "sha256" else f" = {shown(value)}"
            errors.append(f"{where}.{name}{said}: {error}")


def _digits(value: object, count: int) -> str:
    if isinstance(value, str) and len(value) == count and _HEXADECIMAL.fullmatch(value):
        return value
    raise ValueError(f"must be {count} hexadecimal digits")


def _scopes(value: object) -> list[Scope]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"must be a list; each {SCOPE_RULE}")
    return [checked_scope(each) for each in value]


def _globs(value: object) -> list[str]:
    if not isinstance(value, list) or not 1 <= len(value) <= TOKEN_GLOBS_MAX:
        raise ValueError(GLOBS_RULE)
    return [checked_glob(each) for each in value]


_READERS: Final[Mapping[str, Callable[[object], Any]]] = {
    "id": partial(_digits, count=8),
    "name": checked_name,
    "sha256": partial(_digits, count=64),
    "scopes": _scopes,
    "topics": _globs,
    "created": parse_time_s,
    "not_after": lambda value: None if value is None else parse_time_s(value),
}
