"""`delayd token create`: what is no text of sessions.txt."""

import os
from pathlib import Path

import pytest

from delayd.access.tokens import Tokens
from delayd.cli.main import invoke
from delayd.exits import Exit


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tokens.json"


def create(path: Path) -> None:
    words = ("token", "create", "w", "--scope", "put", "--topic", "*", "--tokens", str(path))
    assert invoke(words) == Exit.OK


def test_an_id_that_is_taken_is_drawn_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter([b"a" * 36, b"a" * 4 + b"b" * 32, b"c" * 36])
    monkeypatch.setattr(os, "urandom", lambda count: next(drawn))
    for _ in range(2):
        create(path)
    assert [entry.id for entry in Tokens.load(str(path)).entries] == ["61616161", "63636363"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_that_root_makes_is_of_whoever_has_its_directory_and_then_stays_its_owners(
    path: Path,
) -> None:
    os.chown(path.parent, 1_234, 2_345)
    create(path)
    assert (path.stat().st_uid, path.stat().st_gid) == (1_234, 2_345)
    os.chown(path, 3_456, 4_567)
    create(path)
    assert (path.stat().st_uid, path.stat().st_gid) == (3_456, 4_567)
    assert path.stat().st_mode & 0o777 == 0o600
