"""`delayd journal repair`: what it cuts, what it keeps, and where it refuses to."""

import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from delayd.cli.main import invoke
from delayd.exits import Exit
from delayd.journal.disk import RealDisk
from delayd.journal.format import HEADER_BYTES, LOCK_NAME
from delayd.journal.journal import Journal
from tests.cli.journals import SEGMENT_BYTES, Capture, contents, fill, fill_with_snapshot, flip
from tests.journal.journals import frame_ends


def repaired(directory: Path, place: str, *more: str) -> int:
    return invoke(["journal", "repair", str(directory), "--truncate-at", place, *more])


def test_repair_gives_up_what_is_behind_the_damage_and_keeps_a_copy(
    tmp_path: Path, capsys: Capture
) -> None:
    path = fill(tmp_path)
    _, first_end, *_ = frame_ends(path.read_bytes())
    flip(path, first_end + 50)
    content = path.read_bytes()
    assert repaired(tmp_path, f"{path.name}:{first_end}", "--yes") == Exit.OK
    out, err = capsys.readouterr()
    copy = tmp_path / f"{path.name}.torn-{first_end}"
    assert err == (
        f"{path} from offset {first_end} on: {len(content) - first_end} bytes in 1 file, with 2 "
        "intact frames (3 to 4)\n"
    )
    assert f"kept in {copy}" in out
    assert out.splitlines()[-1] == "verdict    accept: the log is whole"
    assert path.read_bytes() + copy.read_bytes() == content
    assert invoke(["journal", "check", str(tmp_path)]) == Exit.OK
    journal = Journal.open(str(tmp_path), disk=RealDisk(), segment_bytes=SEGMENT_BYTES)
    assert len(list(journal.replay())) == 1
    journal.close()


def test_repair_gives_up_later_segments_too(tmp_path: Path, capsys: Capture) -> None:
    fill(tmp_path, 500)
    names = sorted(path.name for path in tmp_path.glob("segment-*"))
    assert len(names) > 2
    assert repaired(tmp_path, "2:0", "--yes") == Exit.OK
    assert capsys.readouterr().out.splitlines()[-1] == "verdict    accept: the log is whole"
    copies = {f"{name}.torn-0" for name in names[1:]}
    assert {path.name for path in tmp_path.iterdir()} == {LOCK_NAME, names[0]} | copies


@pytest.mark.parametrize(
    ("place", "why"),
    [
        (lambda ends: f"1:{ends[1] + 1}", "no frame of segment 1 ends at offset"),
        (lambda ends: f"1:{ends[1] - 1}", "the nearest place before it is 80"),
        (lambda ends: "1:40", "is within the header"),
        (lambda ends: f"1:{ends[-1]}", "the log can be read only up to segment 1, offset"),
        (lambda ends: "2:80", "there is no segment 2"),
    ],
)
def test_repair_cuts_only_where_a_frame_ends_in_a_log_that_is_whole_up_to_there(
    place: Callable[[list[int]], str], why: str, tmp_path: Path, capsys: Capture
) -> None:
    path = fill(tmp_path)
    ends = frame_ends(path.read_bytes())
    flip(path, ends[2] + 20)
    before = contents(tmp_path)
    assert repaired(tmp_path, place(ends), "--yes") == Exit.USAGE
    assert why in capsys.readouterr().err
    assert contents(tmp_path) == before


@pytest.mark.parametrize("place", ["1", "1:", ":80", "one:80", "-1:80", "1:-80", "1:80 "])
def test_a_place_that_is_none_is_a_usage_error(place: str, tmp_path: Path) -> None:
    fill(tmp_path)
    assert repaired(tmp_path, place, "--yes") == Exit.USAGE


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("answer", "code"), [("y\n", Exit.OK), ("n\n", Exit.USAGE)])
def test_repair_asks_on_a_terminal(
    answer: str, code: Exit, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fill(tmp_path)
    before = contents(tmp_path)
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    assert repaired(tmp_path, "1:80") == code
    assert "Give all of this up? [y/N]" in "".join(capsys.readouterr())
    assert (contents(tmp_path) == before) == (code != Exit.OK)
    assert (path.stat().st_size == HEADER_BYTES) == (code == Exit.OK)


def test_repair_without_a_terminal_wants_to_be_told_yes(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path)
    before = contents(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert repaired(tmp_path, "1:80") == Exit.USAGE
    assert "--yes skips the question" in capsys.readouterr().err
    assert contents(tmp_path) == before


def test_repair_refuses_a_directory_that_a_daemon_holds(tmp_path: Path, capsys: Capture) -> None:
    fill(tmp_path)
    handle = RealDisk().lock(str(tmp_path / LOCK_NAME))
    before = contents(tmp_path)
    assert repaired(tmp_path, "1:80", "--yes") == Exit.DIRECTORY_LOCKED
    assert "one daemon owns a journal directory" in capsys.readouterr().err
    assert contents(tmp_path) == before
    RealDisk().close(handle)


def test_repair_refuses_a_directory_whose_lock_file_was_deleted_under_a_daemon(
    tmp_path: Path, capsys: Capture
) -> None:
    fill(tmp_path)
    journal = Journal.open(str(tmp_path), disk=RealDisk(), segment_bytes=SEGMENT_BYTES)
    (tmp_path / LOCK_NAME).unlink()
    before = contents(tmp_path)
    assert repaired(tmp_path, "1:80", "--yes") == Exit.DIRECTORY_LOCKED
    assert "one daemon owns a journal directory" in capsys.readouterr().err
    assert contents(tmp_path) == before
    journal.close()


def test_repair_leaves_the_log_as_long_as_the_snapshot_testifies(
    tmp_path: Path, capsys: Capture
) -> None:
    snapshot, log = fill_with_snapshot(tmp_path)
    ends = frame_ends(log.read_bytes())
    before = contents(tmp_path)
    for place in ("1:0", f"1:{ends[0]}", f"1:{ends[1]}"):
        assert repaired(tmp_path, place, "--yes") == Exit.USAGE
        assert "the newest snapshot goes up to frame 2" in capsys.readouterr().err
        assert contents(tmp_path) == before
    assert repaired(tmp_path, f"1:{ends[2]}", "--yes") == Exit.OK
    assert capsys.readouterr().out.splitlines()[-1] == "verdict    accept: the log is whole"
    assert snapshot.exists()


def test_repair_does_not_cut_a_log_for_what_the_snapshots_are(
    tmp_path: Path, capsys: Capture
) -> None:
    snapshot, log = fill_with_snapshot(tmp_path)
    snapshot.rename(tmp_path / snapshot.name.replace("2.snap", "3.snap"))
    end = frame_ends(log.read_bytes())[3]
    assert repaired(tmp_path, f"1:{end}", "--yes") == Exit.USAGE
    assert "a cut of the log does not mend this" in capsys.readouterr().err
