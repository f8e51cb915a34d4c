"""`delayd journal backup` and `copy`: what is no text of sessions.txt. How: tests/journal."""

import importlib.util
import resource
from pathlib import Path

import pytest

from delayd.cli.main import invoke
from delayd.exits import Exit
from delayd.journal.format import BACKUP_MARKER, LOCK_NAME
from tests.cli.journals import (
    START,
    Capture,
    contents,
    fill,
    fill_with_snapshot,
    lines_of,
)


def backed_up(source: Path, target: Path) -> int:
    return invoke(["journal", "backup", str(source), str(target)])


def test_a_backup_says_what_was_copied_and_leaves_the_directory_as_it_is(
    tmp_path: Path, capsys: Capture
) -> None:
    source, target = tmp_path / "data", tmp_path / "copy"
    snapshot, log = fill_with_snapshot(source)
    before = contents(source)
    assert backed_up(source, target) == Exit.OK
    assert contents(source) == before
    copied = contents(target)
    assert {name: before[name] for name in (snapshot.name, log.name)} == {
        name: copied[name] for name in copied if name != LOCK_NAME
    }
    copied_bytes = len(before[snapshot.name]) + len(before[log.name])
    first, *lines = lines_of(capsys)
    assert first == f"copied     2 files, {copied_bytes} bytes"
    assert lines[-1] == "verdict    accept: the log is whole"
    assert any(line.startswith("state      12 jobs in 1 topic:") for line in lines)
    assert any(line.startswith("time       ") and START[:19] in line for line in lines)
    assert invoke(["journal", "check", str(target)]) == Exit.OK
    assert lines_of(capsys) == lines


def test_a_full_target_is_an_error_and_leaves_nothing_that_looks_whole(
    tmp_path: Path, capsys: Capture
) -> None:
    source, target = tmp_path / "data", tmp_path / "copy"
    log = fill(source)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (log.stat().st_size - 1, limits[1]))
    try:
        assert backed_up(source, target) == Exit.JOURNAL_FAILED
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert f"{log}: cannot be copied to {target}: File too large" in capsys.readouterr().err
    assert set(contents(target)) == {LOCK_NAME}
    assert backed_up(source, target) == Exit.OK
    assert BACKUP_MARKER not in contents(target)


def test_without_psycopg_commands_say_which_packages_they_need(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    for arguments in (["check", "postgresql://127.0.0.1:1/jobs"], ["schema"]):
        assert invoke(["journal", *arguments]) == Exit.USAGE
        error = capsys.readouterr().err
        assert error == (
            'delayd: a log in PostgreSQL needs more packages: pip install "delayd[postgres]"\n'
        )
