"""Names of a journal that stand for something else than a file are refused unopened."""

import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from delayd.cli.journal_report import examine
from delayd.journal.backup import backup
from delayd.journal.directory import look_first, names_in, take_directory
from delayd.journal.disk import RealDisk
from delayd.journal.errors import ForeignFile, JournalFailed
from delayd.journal.format import END_NAME, LOCK_NAME, VIRTUAL_NAME, segment_name
from delayd.journal.recovery import Recovery
from delayd.journal.snapshot import snapshot_name
from tests.journal.journals import DIRECTORY, opened
from tests.rigs.disk import SimulatedDisk

NAMES = (segment_name(1), snapshot_name(1), "spare-0000000001.log", END_NAME, LOCK_NAME)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("name", [*NAMES, VIRTUAL_NAME, f"{segment_name(1)}.torn-80"])
@pytest.mark.parametrize("kind", [os.mkfifo, os.mkdir, device])
def test_a_pipe_a_device_or_a_directory_is_refused_by_name(
    tmp_path: Path, name: str, kind: Callable[[Path], object]
) -> None:
    kind(tmp_path / name)
    disk, directory = RealDisk(), str(tmp_path)
    with pytest.raises(ForeignFile, match=f"^{directory}/{name} is no file but a"):
        look_first(disk, directory)
    with pytest.raises(ForeignFile, match="is no file but a"):
        Recovery(disk, directory, names_in(disk, directory))
    with (
        pytest.raises(ForeignFile, match="is no file but a"),
        backup(disk, directory, f"{tmp_path}/backup", lambda _: nullcontext(bool)),
    ):
        pass


def test_a_link_to_a_file_and_the_directory_of_the_file_system_are_no_obstacle(
    tmp_path: Path,
) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").touch()
    home = tmp_path / "data"
    home.mkdir()
    (home / "lost+found").mkdir()
    (home / segment_name(1)).symlink_to(tmp_path / "elsewhere" / "file")
    look_first(RealDisk(), str(home))


@pytest.mark.parametrize("is_virtual", [False, True])
def test_check_says_which_clock_it_is(disk: SimulatedDisk, *, is_virtual: bool) -> None:
    opened(disk, is_virtual=is_virtual)[0].close()
    lines = examine(disk, DIRECTORY).lines()
    assert any(line.startswith("clock      virtual") for line in lines) is is_virtual


@pytest.mark.parametrize("points_to", ["file", "nothing"])
def test_what_a_link_named_as_a_lock_points_to_is_not_emptied(
    tmp_path: Path, points_to: str
) -> None:
    (tmp_path / "file").write_text("of somebody else")
    home = tmp_path / "data"
    home.mkdir()
    (home / LOCK_NAME).symlink_to(tmp_path / points_to)
    with pytest.raises(JournalFailed, match="cannot be locked: it is a link, and what it points"):
        take_directory(RealDisk(), str(home))
    assert (tmp_path / "file").read_text() == "of somebody else"
    assert not (tmp_path / "nothing").exists()
    with pytest.raises(OSError, match="it is a link"):
        RealDisk().create(f"{home}/{LOCK_NAME}")
