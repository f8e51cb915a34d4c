"""`delayd import-beanstalkd`: what is no text of sessions.txt; tests/compat has the real thing."""

import errno
import os
import pwd
from pathlib import Path

import pytest

from delayd.cli.main import invoke
from delayd.exits import Exit
from tests.binlog.binlogs import BURIED, file_of, full

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def binlog_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "binlog"
    directory.mkdir()
    records = full(1, b"one", "mail"), full(2, b"two", "mail", state=BURIED)
    (directory / "binlog.1").write_bytes(file_of(*records, zeros=100))
    (directory / "lock").touch()
    return directory


def imported(binlog_dir: Path, data_dir: Path, *more: str) -> int:
    return invoke(["import-beanstalkd", str(binlog_dir), "--data-dir", str(data_dir), *more])


def test_the_files_are_given_to_the_user_who_is_to_work_on_them(
    binlog_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    given: dict[Path, tuple[int, int]] = {}
    monkeypatch.setattr(os, "chown", lambda path, *owner: given.update({Path(path): owner}))
    me = pwd.getpwuid(os.getuid())
    data_dir = tmp_path / "data"
    assert imported(binlog_dir, data_dir, "--user", me.pw_name) == Exit.OK
    assert given == dict.fromkeys([data_dir, *data_dir.iterdir()], (me.pw_uid, me.pw_gid))


def test_files_that_cannot_be_given_away_are_named(
    binlog_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def chown(path: str, _uid: int, _gid: int) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", path)

    monkeypatch.setattr(os, "chown", chown)
    words = "--user", pwd.getpwuid(os.getuid()).pw_name
    assert imported(binlog_dir, tmp_path / "data", *words) == Exit.JOURNAL_FAILED
    told = f"{tmp_path}/data cannot be given to that user: Operation not permitted"
    assert told in capsys.readouterr().err


def test_its_first_line_says_where_the_jobs_go_by_an_absolute_path(
    binlog_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke(["import-beanstalkd", str(binlog_dir)]) == Exit.OK
    first, *_ = capsys.readouterr().err.splitlines()
    assert first == f"delayd: the jobs go to {tmp_path}/delayd-data"
    assert (tmp_path / "delayd-data" / "segment-0000000001.log").exists()
    assert invoke(["import-beanstalkd", "nothing"]) == Exit.USAGE
    assert "the jobs go to" not in capsys.readouterr().err
