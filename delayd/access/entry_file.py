"""A file of entries that a command writes and a daemon reads: tokens, and secrets of webhooks.

    {"version": 1, "tokens": [
      {"id": "0a1b2c3d", …},
      {"id": "4e5f6a7b", …}]}

JSON, with one entry to a line so that differences can be read. Reading gives either every entry or
every mistake, each with its place and the rule, and repeats nothing that could be a secret. An
`EntryFile` describes one kind of file.
"""

import json
import stat
from collections.abc import Callable, Iterable
from typing import Any, Final, Generic, NamedTuple, TypeVar

from delayd.access.errors import AccessInvalid, shown, without_secrets
from delayd.bounded_files import OPEN_TO_OTHERS, read_with_mode
from delayd.fields import Field, Invalid, Wrong, read_all, read_json, written

VERSION: Final = 1

NOT_WRITTEN_BY_OTHERS: Final = (
    stat.S_IWGRP | stat.S_IWOTH,
    "others may write to it, and so make tokens",
)
"""Bits of the mode that a file must not have, and why."""
NOT_READ_BY_OTHERS: Final = (
    OPEN_TO_OTHERS,
    "others may read it or write to it, and there are secrets in it",
)


E = TypeVar("E")


class EntryFile(NamedTuple, Generic[E]):
    """A kind of file."""

    plural: str
    """Of its entries: the name of their list."""
    key: str
    """The field in which no two entries are equal."""
    fields: tuple[Field, ...]
    make: Callable[..., E]
    invalid: type[AccessInvalid]
    entries_max: int
    bytes_max: int
    mode: tuple[int, str]

    def row(self, entry: E) -> dict[str, Any]:
        """Return an entry as in the file."""
        return written(self.fields, entry)

    def to_bytes(self, entries: Iterable[E]) -> bytes:
        """Write the file."""
        lines = ",\n".join(f"  {json.dumps(self.row(entry))}" for entry in entries)
        return f'{{"version": {VERSION}, "{self.plural}": [\n{lines}\n]}}\n'.encode()

    def from_bytes(self, data: bytes, where: str) -> tuple[E, ...]:
        """Read the file. Raises `invalid` with everything that is wrong, named after `where`."""
        try:
            document, twice = read_json(data.decode())
        except ValueError as error:
            raise self.invalid([f"{where}: is not JSON: {error}"]) from None
        errors = [each._replace(place=without_secrets(each.place)) for each in twice]
        entries: list[E] = []
        seen: set[object] = set()
        for index, row in enumerate(self._rows(document, errors)):
            place = f"{self.plural}[{index}]"
            try:
                entry = self._entry(row)
            except Invalid as wrong:
                errors += [each.below(place) for each in wrong.errors]
                continue
            value = getattr(entry, self.key)
            if value in seen:
                rule = f"is the {self.key} of another {self.plural.removesuffix('s')} too"
                errors.append(Wrong(f"{place}.{self.key}", rule, shown(value)))
            seen.add(value)
            entries.append(entry)
        if errors:
            raise self.invalid(f"{where}: {error}" for error in errors)
        return tuple(entries)

    def load(self, path: str) -> tuple[E, ...]:
        """Read the file of that path. Raises `invalid` with everything that is wrong with it."""
        try:
            data, mode = read_with_mode(path, self.bytes_max)
        except (OSError, ValueError) as error:  # a path with a NUL
            reason = getattr(error, "strerror", None) or str(error)
            raise self.invalid([f"{path}: cannot be read: {reason}"]) from None
        forbidden, rule = self.mode
        if mode & forbidden:
            problem = f"{path}: has the mode {stat.S_IMODE(mode):04o}: {rule}: chmod 600"
            raise self.invalid([problem])
        return self.from_bytes(data, path)

    def _rows(self, document: object, errors: list[Wrong]) -> list[object]:
        if not isinstance(document, dict) or document.keys() != {"version", self.plural}:
            errors.append(Wrong("", f'must be an object of "version" and "{self.plural}"'))
            return []
        version, rows = document["version"], document[self.plural]
        if version != VERSION or isinstance(version, bool):
            rule = f"must be {VERSION}, the one of this delayd"
            errors.append(Wrong("version", rule, shown(version)))
            return []
        if not isinstance(rows, list) or len(rows) > self.entries_max:
            rule = f"must be a list of at most {self.entries_max} entries"
            errors.append(Wrong(self.plural, rule))
            return []
        return rows

    def _entry(self, row: object) -> E:
        """Read one entry. Raises `Invalid`."""
        if not isinstance(row, dict):
            raise Invalid([Wrong("", "must be an object")])
        return self.make(**read_all(row, self.fields, redact=without_secrets))
