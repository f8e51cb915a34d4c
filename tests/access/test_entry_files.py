"""What holds for the file of tokens and for that of secrets: one code reads and writes them."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from delayd.access.entry_file import EntryFile
from delayd.access.scopes import Scope
from delayd.access.signing_secrets import SECRETS_FILE
from delayd.access.token_entries import TOKENS_FILE
from delayd.durations import size_text
from tests.access.samples import errors_of, made
from tests.access.secret_samples import named
from tests.rigs.written import tables_of

HERE = Path(__file__).parent


class Kind(NamedTuple):
    """A kind of file, and samples of it."""

    file: EntryFile[Any]
    golden: tuple[object, ...]
    """The entries of its golden file."""
    entry: Callable[[int], object]
    refused_modes: tuple[int, ...]
    mode: int
    """What is good enough."""

    @property
    def data(self) -> bytes:
        return (HERE / "data" / f"{self.file.plural}-1.json").read_bytes()

    def errors_of(self, data: bytes) -> list[str]:
        return errors_of(self.file, data)

    def errors_of_file(self, path: Path) -> tuple[str, ...]:
        with pytest.raises(self.file.invalid) as caught:
            self.file.load(str(path))
        return caught.value.errors


FOR_TWO_SCOPES = made(1, (Scope.RESERVE, Scope.DELETE), ("mail.*", "sms"), 2_000_000_000)[1]
KINDS = (
    Kind(
        TOKENS_FILE,
        golden=(FOR_TWO_SCOPES, made(2)[1]),
        entry=lambda number: replace(made(1)[1], id=f"{number:08x}"),
        refused_modes=(0o620, 0o602, 0o666),
        mode=0o640,  # a group that reads it is fine
    ),
    Kind(
        SECRETS_FILE,
        golden=(named("orders", 1, 2), named("mail.out-2_x", 3)),
        entry=lambda number: named(f"{number:064}", 1, 2),
        refused_modes=(0o604, 0o602, 0o620, 0o666),
        mode=0o440,  # systemd's credentials look so
    ),
)


@pytest.fixture(params=KINDS, ids=lambda kind: kind.file.plural)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


def test_the_file_of_version_1_is_read_and_written_for_ever(kind: Kind) -> None:
    assert kind.file.from_bytes(kind.data, "t") == kind.golden
    assert kind.file.to_bytes(kind.golden) == kind.data


def test_a_file_that_ends_anywhere_is_refused_or_whole(kind: Kind) -> None:
    for count in range(len(kind.data) - 1):
        assert kind.errors_of(kind.data[:count])
    assert kind.file.from_bytes(kind.data[:-1], "t") == kind.golden  # but for its last newline


@pytest.mark.parametrize(("data", "error"), tables_of(HERE / "wrong_entries.txt")["files"])
def test_a_file_of_another_kind_is_one_mistake(kind: Kind, data: str, error: str) -> None:
    (only,) = kind.errors_of(data.replace("tokens", kind.file.plural).encode("latin-1"))
    assert only.startswith(error.replace("tokens", kind.file.plural))


def test_nothing_and_what_is_nested_deeply_are_no_json(kind: Kind) -> None:
    for data in (b"", b"[" * 100_000):
        (only,) = kind.errors_of(data)
        assert only.startswith("is not JSON: ")


@pytest.mark.thorough
def test_as_many_entries_as_the_limit_says_fit_and_one_more_does_not(kind: Kind) -> None:
    plural, entries_max = kind.file.plural, kind.file.entries_max
    rows = [kind.file.row(kind.entry(number)) for number in range(entries_max + 1)]
    data = json.dumps({"version": 1, plural: rows[:-1]}).encode()
    assert len(data) < kind.file.bytes_max
    assert len(kind.file.from_bytes(data, "t")) == entries_max
    (error,) = kind.errors_of(json.dumps({"version": 1, plural: rows}).encode())
    assert error == f"{plural}: must be a list of at most {entries_max} entries"


def test_a_file_that_cannot_be_read_or_is_far_too_long_is_named(kind: Kind, tmp_path: Path) -> None:
    path = tmp_path / "entries.json"
    said = "cannot be read"
    assert kind.errors_of_file(path) == (f"{path}: {said}: No such file or directory",)
    assert kind.errors_of_file(tmp_path) == (f"{tmp_path}: {said}: Is a directory",)
    path.touch(0o600)
    os.truncate(path, kind.file.bytes_max + 1)
    longest = size_text(kind.file.bytes_max)
    assert kind.errors_of_file(path) == (f"{path}: {said}: it is longer than {longest}",)


def test_a_file_that_others_can_use_is_refused(kind: Kind, tmp_path: Path) -> None:
    path = tmp_path / "entries.json"
    path.write_bytes(kind.data)
    rule = {
        "tokens": "others may write to it, and so make tokens",
        "secrets": "others may read it or write to it, and there are secrets in it",
    }[kind.file.plural]
    for mode in kind.refused_modes:
        path.chmod(mode)
        said = f"{path}: has the mode {mode:04o}: {rule}: chmod 600"
        assert kind.errors_of_file(path) == (said,)
    path.chmod(kind.mode)
    assert kind.file.load(str(path)) == kind.golden
