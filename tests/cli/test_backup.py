"""`delayd journal backup` and `copy`: what they say, and how they end. How: tests/journal."""

import importlib.util
import os
import resource
from pathlib import Path

import pytest

from delayd.cli.main import invoke
from delayd.exits import Exit
from delayd.journal.disk import RealDisk
from delayd.journal.format import BACKUP_MARKER, HEADER_BYTES, LOCK_NAME
from delayd.journal.journal import Journal
from tests.cli.journals import (
    SEGMENT_BYTES,
    START,
    Capture,
    contents,
    fill,
    fill_with_snapshot,
    flip,
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


def test_a_directory_that_a_daemon_holds_is_backed_up_without_a_warning(
    tmp_path: Path, capsys: Capture
) -> None:
    source, target = tmp_path / "data", tmp_path / "copy"
    fill(source)
    journal = Journal.open(str(source), disk=RealDisk(), segment_bytes=SEGMENT_BYTES)
    assert len(list(journal.replay())) == 4
    assert backed_up(source, target) == Exit.OK
    out, err = capsys.readouterr()
    assert "copied     1 file, " in out
    assert not err
    journal.close()


@pytest.mark.parametrize("inside", ["", "copy", "copy/deeper"])
def test_a_target_within_the_directory_is_refused(
    inside: str, tmp_path: Path, capsys: Capture
) -> None:
    source = tmp_path / "data"
    fill(source)
    before = contents(source)
    (tmp_path / "link").symlink_to(source)
    assert backed_up(source, tmp_path / "link" / inside) == Exit.USAGE
    assert "no daemon would start there" in capsys.readouterr().err
    assert contents(source) == before


def test_a_target_that_is_not_empty_is_refused_and_left_as_it_is(
    tmp_path: Path, capsys: Capture
) -> None:
    source, target = tmp_path / "data", tmp_path / "copy"
    fill(source)
    target.mkdir()
    (target / "notes.txt").write_text("precious")
    assert backed_up(source, target) == Exit.USAGE
    assert f"{target} holds notes.txt: choose a directory" in capsys.readouterr().err
    assert contents(target) == {"notes.txt": b"precious"}


def test_a_damaged_directory_is_not_backed_up(tmp_path: Path, capsys: Capture) -> None:
    source, target = tmp_path / "data", tmp_path / "copy"
    snapshot, log = fill_with_snapshot(source)
    snapshot.unlink()
    (source / "segment-0000000002.log").write_bytes(log.read_bytes())
    assert backed_up(source, target) == Exit.CORRUPT_JOURNAL
    err = capsys.readouterr().err
    assert "the copy was removed: " in err
    assert "`delayd journal check`" in err
    assert set(contents(target)) == {LOCK_NAME}
    flip(log, HEADER_BYTES + 50)
    (source / "segment-0000000002.log").unlink()
    assert backed_up(source, target) == Exit.CORRUPT_JOURNAL
    assert set(contents(target)) == {LOCK_NAME}


def test_a_backup_into_a_directory_that_a_daemon_holds_is_refused(
    tmp_path: Path, capsys: Capture
) -> None:
    source, target = tmp_path / "data", tmp_path / "copy"
    fill(source)
    daemon = Journal.open(str(target), disk=RealDisk(), segment_bytes=SEGMENT_BYTES)
    assert backed_up(source, target) == Exit.DIRECTORY_LOCKED
    assert f"is held by process {os.getpid()}" in capsys.readouterr().err
    daemon.close()


def test_a_target_that_cannot_be_made_is_named_with_the_reason(
    tmp_path: Path, capsys: Capture
) -> None:
    fill(tmp_path / "data")
    assert backed_up(tmp_path / "data", tmp_path / "no" / "copy") == Exit.JOURNAL_FAILED
    assert f"there is no directory {tmp_path}/no, make that first" in capsys.readouterr().err


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


def test_a_copy_says_what_was_copied_and_is_refused_where_it_must_be(
    tmp_path: Path, capsys: Capture
) -> None:
    source, target = tmp_path / "data", tmp_path / "copy"
    fill_with_snapshot(source)
    before = contents(source)
    assert invoke(["journal", "copy", str(source), str(target)]) == Exit.OK
    assert lines_of(capsys) == ["copied 12 jobs, up to frame 4"]
    assert contents(source) == before
    assert invoke(["journal", "check", str(target)]) == Exit.OK
    assert any(line.startswith("state      12 jobs in 1 topic:") for line in lines_of(capsys))
    for arguments, code, message in (
        (("nowhere", "new"), Exit.USAGE, "Directory 'nowhere' does not exist"),
        ((str(source), str(target)), Exit.USAGE, "choose a directory that is new"),
        ((str(source), f"{source}/in"), Exit.USAGE, "must not be in"),
        (("postgresql:", "new", "--name", 'a"b'), Exit.USAGE, "must be a name of a schema"),
        (("postgresql://[?#", "new"), Exit.USAGE, "must be a url such as postgresql://"),
        (
            ("postgresql://canary@127.0.0.1:1/jobs", "new"),
            Exit.JOURNAL_FAILED,
            "postgresql://127.0.0.1:1/jobs cannot be reached",
        ),
        (
            ("postgresql://canary:secret@127.0.0.1:1/jobs", "new"),
            Exit.USAGE,
            "without a password",
        ),
    ):
        assert invoke(["journal", "copy", *arguments]) == code
        error = capsys.readouterr().err
        assert message in error
        assert "canary" not in error
        assert "secret" not in error
