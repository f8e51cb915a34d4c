"""`delayd journal backup` and `copy`: what is no text of sessions.txt. How: tests/journal."""

import importlib.util
import resource
from pathlib import Path

import pytest

from delayd.cli.main import invoke
from delayd.exits import Exit
from delayd.journal.format import BACKUP_MARKER, LOCK_NAME
from tests.cli.journals import Capture, contents, fill


def backed_up(source: Path, target: Path) -> int:
    return invoke(["journal", "backup", str(source), str(target)])


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
