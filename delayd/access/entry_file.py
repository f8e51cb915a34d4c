"""A file of entries that a command writes and a daemon reads: tokens, and secrets of webhooks.

    {"version": 1, "tokens": [
      {"id": "0a1b2c3d", …},
      {"id": "4e5f6a7b", …}]}

JSON, with one entry to a line so that differences can be read. Reading gives either every entry or
every mistake, each with its place and the rule, and repeats nothing that could be a secret. An
`EntryFile` says what is special to one kind of file; the module does not know what entries mean.
"""

import json
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from delayd.access.errors import AccessInvalid, shown
from delayd.files import read_with_mode

VERSION: Final = 1

NOT_WRITTEN_BY_OTHERS: Final = (
    stat.S_IWGRP | stat.S_IWOTH,
    "others may write to it, and so make tokens",
)
"""Bits of the mode that a file must not have, and why."""
NOT_READ_BY_OTHERS: Final = (
    stat.S_IWGRP | stat.S_IROTH | stat.S_IWOTH,
    "others may read it or write to it, and there are secrets in it",
)


class HasFields(Protocol):
    """An entry."""

    def fields(self) -> dict[str, Any]:
        """Return it as in the file."""
        ...


E = TypeVar("E", bound=HasFields)


class EntryFile(NamedTuple, Generic[E]):
    """A kind of file."""

    plural: str
    """Of its entries: the name of their list."""
    key: str
    """The field in which no two entries are equal."""
    required: tuple[str, ...]
    readers: Mapping[str, Callable[[object], Any]]
    """For each field what reads it, or raises `ValueError` with the rule."""
    unsaid: frozenset[str]
    """Fields whose wrong values are not repeated: they may be a secret, in pieces."""
    make: Callable[[Mapping[str, Any]], E]
    """Makes the entry of what was read; raises `ValueError` with the rule about several fields."""
    invalid: type[AccessInvalid]
    entries_max: int
    bytes_max: int
    mode: tuple[int, str]

    def to_bytes(self, entries: Iterable[E]) -> bytes:
        """Write the file."""
        lines = ",\n".join(f"  {json.dumps(entry.fields())}" for entry in entries)
        return f'{{"version": {VERSION}, "{self.plural}": [\n{lines}\n]}}\n'.encode()

    def from_bytes(self, data: bytes, where: str) -> tuple[E, ...]:
        """Read the file. Raises `invalid` with everything that is wrong, named after `where`."""
        try:
            document = json.loads(data.decode(), object_pairs_hook=_without_repeats)
        except (ValueError, RecursionError) as error:
            raise self.invalid([f"{where}: is not JSON: {error}"]) from None
        errors: list[str] = []
        rows = self._rows(document, errors)
        entries = [self._entry(row, f"{self.plural}[{n}]", errors) for n, row in enumerate(rows)]
        seen: set[object] = set()
        for index, entry in enumerate(entries):
            if entry is not None:
                value = getattr(entry, self.key)
                if value in seen:
                    said = f'{self.plural}[{index}].{self.key} = "{value}"'
                    noun = self.plural.removesuffix("s")
                    errors.append(f"{said}: is the {self.key} of another {noun} too")
                seen.add(value)
        if errors:
            raise self.invalid(f"{where}: {error}" for error in errors)
        return tuple(entry for entry in entries if entry is not None)

    def load(self, path: str) -> tuple[E, ...]:
        """Read the file of that path. Raises `invalid` with everything that is wrong with it."""
        try:
            data, mode = read_with_mode(path, self.bytes_max)
        except (OSError, ValueError) as error:  # a path with a NUL
            reason = getattr(error, "strerror", None) or str(error)
            raise self.invalid([f"{path}: cannot be read: {reason}"]) from None
        forbidden, rule = self.mode
        if mode & forbidden:
            said = f"{path}: has the mode {stat.S_IMODE(mode):04o}: {rule}: chmod 600"
            raise self.invalid([said])
        return self.from_bytes(data, path)

    def _rows(self, document: object, errors: list[str]) -> list[object]:
        if not isinstance(document, dict) or document.keys() != {"version", self.plural}:
            errors.append(f'must be an object of "version" and "{self.plural}"')
            return []
        version, rows = document["version"], document[self.plural]
        if version != VERSION or isinstance(version, bool):
            errors.append(f"version = {shown(version)}: must be {VERSION}, the one of this delayd")
            return []
        if not isinstance(rows, list) or len(rows) > self.entries_max:
            errors.append(f"{self.plural}: must be a list of at most {self.entries_max} entries")
            return []
        return rows

    def _entry(self, row: object, where: str, errors: list[str]) -> E | None:
        """Read one entry, or add what is wrong with it to the errors."""
        if not isinstance(row, dict):
            errors.append(f"{where}: must be an object")
            return None
        before = len(errors)
        unknown = [name for name in row if name not in self.readers]
        errors += [f"{where}.{shown(name)[1:-1]}: there is no such field" for name in unknown]
        errors += [f"{where}.{name}: is missing" for name in self.required if name not in row]
        values = dict(self._values(row, where, errors))
        if len(errors) > before:
            return None
        return self.make(values)

    def _values(
        self, row: Mapping[str, object], where: str, errors: list[str]
    ) -> Iterator[tuple[str, Any]]:
        for name, read in self.readers.items():
            if name not in row:
                continue
            value = row[name]
            try:
                yield name, read(value)
            except ValueError as error:
                said = "" if name in self.unsaid else f" = {shown(value)}"
                errors.append(f"{where}.{name}{said}: {error}")


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a name is given twice in one object")
    return fields
