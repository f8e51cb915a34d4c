"""`delayd journal check` and `dump` on directories that a daemon might have left."""

import json
import subprocess
import sys
from base64 import b64decode
from pathlib import Path

import pytest

from delayd.cli import terminal
from delayd.cli.main import invoke
from delayd.core.engine import Engine
from delayd.exits import Exit
from delayd.journal.disk import RealDisk
from delayd.journal.format import END_NAME, HEADER_BYTES, LOCK_NAME
from delayd.journal.journal import Journal
from delayd.journal.recovery import NO_HEADER, NO_LOG
from tests.cli.journals import (
    SEGMENT_BYTES,
    START,
    START_MS,
    Capture,
    contents,
    fill,
    fill_with_snapshot,
    flip,
    lines_of,
    work,
)
from tests.journal.journals import frame_ends
from tests.servers import executable

# --- check ---------------------------------------------------------------------------------------


def test_check_accepts_a_whole_log_and_counts_what_is_in_it(
    tmp_path: Path, capsys: Capture
) -> None:
    size_bytes = len(fill(tmp_path, 1).read_bytes())
    assert invoke(["journal", "check", str(tmp_path)]) == Exit.OK
    assert lines_of(capsys) == [
        f"segments   1, {size_bytes} bytes",
        "frames     1 to 2, durable for certain to 1, closed in good order",
        f"time       {START} to {START}, by the wall clock {START}",
        "state      4 jobs in 1 topic: 1 ready, 1 delayed, 1 reserved, 1 buried",
        "verdict    accept: the log is whole",
    ]


def test_check_of_a_killed_daemon_says_so(tmp_path: Path, capsys: Capture) -> None:
    fill(tmp_path, is_closed=False)
    assert invoke(["journal", "check", str(tmp_path)]) == Exit.OK
    assert "frames     1 to 3, durable for certain to 2, not closed" in lines_of(capsys)


def test_check_of_an_empty_directory_finds_nothing_to_object_to(
    tmp_path: Path, capsys: Capture
) -> None:
    assert invoke(["journal", "check", str(tmp_path)]) == Exit.OK
    assert lines_of(capsys) == [
        "segments   0, 0 bytes",
        "verdict    accept: there is no log, a new one would begin",
    ]
    assert contents(tmp_path) == {}


def test_check_of_a_used_directory_without_a_log_says_what_that_may_mean(
    tmp_path: Path, capsys: Capture
) -> None:
    for name in (LOCK_NAME, "spare-0000000001.log"):
        (tmp_path / name).touch()
    assert invoke(["journal", "check", str(tmp_path)]) == Exit.OK
    assert lines_of(capsys)[1:] == [
        "verdict    accept: there is no log, a new one would begin",
        f"warning    {NO_LOG} ({tmp_path} holds spare-0000000001.log)",
    ]


def test_check_of_an_emptied_log_says_what_that_may_mean(tmp_path: Path, capsys: Capture) -> None:
    path = fill(tmp_path)
    path.write_bytes(b"")
    assert invoke(["journal", "check", str(tmp_path)]) == Exit.CORRUPT_JOURNAL
    assert f"{tmp_path}/{END_NAME}" in capsys.readouterr().out
    (tmp_path / END_NAME).unlink()
    assert invoke(["journal", "check", str(tmp_path)]) == Exit.OK
    assert lines_of(capsys) == [
        "segments   1, 0 bytes",
        f"verdict    cut: {path} at offset 0: the segment has no header",
        "           a start removes the file: there is nothing in it",
        f"warning    {NO_HEADER} ({path}: 0 bytes)",
        f"warning    {NO_LOG} ({tmp_path} holds {path.name})",
    ]
    assert path.exists()


def test_check_announces_the_cut_that_a_start_then_makes(tmp_path: Path, capsys: Capture) -> None:
    path = fill(tmp_path, is_closed=False)
    end = frame_ends(path.read_bytes())[-2]
    flip(path, end + 50)
    before = contents(tmp_path)
    assert invoke(["journal", "check", str(tmp_path)]) == Exit.OK
    *_, verdict, what = lines_of(capsys)
    assert contents(tmp_path) == before
    assert verdict == (
        f"verdict    cut: {path} at offset {end}: a frame does not match its checksum"
    )
    journal = Journal.open(str(tmp_path), disk=RealDisk(), segment_bytes=SEGMENT_BYTES)
    assert len(list(journal.replay())) == 2
    (tail,) = journal.torn_tails
    journal.close()
    assert (tail.file, tail.offset) == (str(path), end)
    assert what == (
        f"           a start copies what stands there and cuts it off: {tail.cut_bytes} bytes in "
        "1 file, without an intact frame"
    )


def test_check_refuses_what_a_start_refuses_and_says_what_is_behind(
    tmp_path: Path, capsys: Capture
) -> None:
    path = fill(tmp_path)
    content = path.read_bytes()
    flip(path, HEADER_BYTES + 50)
    before = contents(tmp_path)
    assert invoke(["journal", "check", str(tmp_path)]) == Exit.CORRUPT_JOURNAL
    *_, verdict, what, rest = lines_of(capsys)
    assert contents(tmp_path) == before
    assert verdict == (
        f"verdict    refuse: {path} at offset 80: a frame does not match its checksum; what "
        "follows it shows that it had been durable"
    )
    assert what == "           a start changes nothing and exits with 65"
    assert rest == (
        f"           behind {path} at offset 80: {len(content) - 80} bytes in 1 file, with 3 "
        "intact frames (2 to 4)"
    )


def test_check_refuses_records_that_no_engine_can_play(tmp_path: Path, capsys: Capture) -> None:
    journal = Journal.open(str(tmp_path), disk=RealDisk(), segment_bytes=SEGMENT_BYTES)
    assert not list(journal.replay())
    journal.append(b"\xff", START_MS, START_MS)
    journal.close()
    for command in ("check", "dump"):
        assert invoke(["journal", command, str(tmp_path)]) == Exit.CORRUPT_JOURNAL
        said = "".join(capsys.readouterr())
        assert "frame 1 holds no record of this version" in said
        assert "its kind is 255" in said


@pytest.mark.parametrize("command", ["check", "dump"])
def test_a_directory_that_is_not_there_is_a_usage_error(command: str, tmp_path: Path) -> None:
    assert invoke(["journal", command, str(tmp_path / "nothing")]) == Exit.USAGE
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("command", ["check", "dump"])
def test_looking_needs_no_lock_and_warns_where_a_daemon_holds_it(
    command: str, tmp_path: Path, capsys: Capture
) -> None:
    fill(tmp_path)
    (tmp_path / LOCK_NAME).unlink()
    assert invoke(["journal", command, str(tmp_path)]) == Exit.OK
    assert not capsys.readouterr().err
    assert not (tmp_path / LOCK_NAME).exists()
    handle = RealDisk().lock(str(tmp_path / LOCK_NAME))
    assert invoke(["journal", command, str(tmp_path)]) == Exit.OK
    out, err = capsys.readouterr()
    assert out
    assert "holds" in err
    assert "what was read may be incomplete" in err
    RealDisk().close(handle)


def test_looking_warns_where_a_daemon_runs_whose_lock_file_was_deleted(
    tmp_path: Path, capsys: Capture
) -> None:
    fill(tmp_path)
    (tmp_path / LOCK_NAME).unlink()
    handle = RealDisk().lock_directory(str(tmp_path))
    assert invoke(["journal", "check", str(tmp_path)]) == Exit.OK
    assert "another process holds" in capsys.readouterr().err
    RealDisk().close(handle)


def test_a_long_check_shows_its_progress_on_a_terminal(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path)
    monkeypatch.setattr(terminal, "LONG_BYTES", 1)
    assert invoke(["journal", "check", str(tmp_path)]) == Exit.OK
    assert not capsys.readouterr().err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert invoke(["journal", "check", str(tmp_path)]) == Exit.OK
    assert "checking" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["check"], ["dump"], ["repair", "--truncate-at=1:0"]])
def test_a_directory_of_somebody_else_is_refused_and_left_as_it_is(
    command: list[str], tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "notes.txt").touch()
    assert invoke(["journal", *command, str(tmp_path)]) == Exit.CORRUPT_JOURNAL
    assert f"{tmp_path}/notes.txt is not delayd's" in "".join(capsys.readouterr())
    assert contents(tmp_path) == {"notes.txt": b""}


# --- dump ----------------------------------------------------------------------------------------


def test_dump_writes_a_line_for_each_record(tmp_path: Path, capsys: Capture) -> None:
    fill(tmp_path, 1)
    assert invoke(["journal", "dump", str(tmp_path)]) == Exit.OK
    head = f"1 {START} {START}"
    put = f"{head} PUT id={{}} due={{}} created={START} ttr=1m priority={{}} state={{}} topic=mail "
    later = "2023-11-14T22:13:29.000Z"
    deadline = "2023-11-14T22:14:20.000Z"
    assert lines_of(capsys) == [
        f"{head} TURN time={START}",
        f"{head} TOPIC topic_number=2 topic=mail",
        *(put.format(number, START, 0, "ready") + 'body="hello"' for number in (1, 2, 3)),
        put.format(4, later, 9, "delayed") + 'body="hello"',
        f"{head} RESERVE id=1 deadline={deadline}",
        f"{head} BURY id=1 priority=5",
        f"{head} RESERVE id=2 deadline={deadline}",
        f"2 {START} {START} CLOSED",
    ]


def test_dump_writes_json_with_whole_bodies(tmp_path: Path, capsys: Capture) -> None:
    engine = Engine(start_ms=START_MS)
    journal = Journal.open(str(tmp_path), disk=RealDisk(), segment_bytes=SEGMENT_BYTES)
    assert not list(journal.replay())
    work(engine, bytes(range(256)))
    journal.append(b"".join(engine.take_log()[0]), START_MS, START_MS - 5)
    journal.close()
    assert invoke(["journal", "dump", "--json", str(tmp_path)]) == Exit.OK
    records = [json.loads(line) for line in lines_of(capsys)]
    kinds = ["TURN", "TOPIC", "PUT", "PUT", "PUT", "PUT", "RESERVE", "BURY", "RESERVE", "CLOSED"]
    assert [record["kind"] for record in records] == kinds
    assert {record["wall_ms"] - record["time_ms"] for record in records} == {-5}
    assert records[-1]["frame"] == 2
    assert b64decode(records[2]["body_base64"]) == bytes(range(256))
    assert records[5]["fields"] == {
        "id": 4,
        "due_ms": START_MS + 9_000,
        "created_ms": START_MS,
        "ttr_ms": 60_000,
        "priority": 9,
        "topic_number": 2,
        "topic": "mail",
        "state": "delayed",
    }


def test_dump_shows_what_stands_before_damage_and_then_says_where_it_is(
    tmp_path: Path, capsys: Capture
) -> None:
    path = fill(tmp_path)
    _, first_end, *_ = frame_ends(path.read_bytes())
    flip(path, first_end + 50)
    assert invoke(["journal", "dump", str(tmp_path)]) == Exit.CORRUPT_JOURNAL
    out, err = capsys.readouterr()
    assert {line.split()[0] for line in out.splitlines()} == {"1"}
    assert f"{path} at offset {first_end}: a frame does not match its checksum" in err


def test_dump_of_an_empty_directory_says_that_there_is_nothing(
    tmp_path: Path, capsys: Capture
) -> None:
    assert invoke(["journal", "dump", str(tmp_path)]) == Exit.OK
    assert capsys.readouterr() == ("", f"delayd: there is no log in {tmp_path}\n")


def test_a_strange_file_beside_a_log_is_refused_and_a_dump_prints_the_log_and_then_names_it(
    tmp_path: Path, capsys: Capture
) -> None:
    fill(tmp_path, 1)
    (tmp_path / "notes.txt").touch()
    assert invoke(["journal", "check", str(tmp_path)]) == Exit.CORRUPT_JOURNAL
    assert f"refuse: {tmp_path}/notes.txt is unknown to this delayd" in "".join(lines_of(capsys))
    assert invoke(["journal", "dump", str(tmp_path)]) == Exit.CORRUPT_JOURNAL
    out, err = capsys.readouterr()
    assert out.endswith("CLOSED\n")
    assert f"{tmp_path}/notes.txt is unknown to this delayd" in err


def test_dump_into_a_pipe_that_is_closed_ends_without_a_word(tmp_path: Path) -> None:
    fill(tmp_path, 500)
    words = [executable("delayd"), "journal", "dump", str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert not process.stderr.read()


# --- Snapshots -----------------------------------------------------------------------------------


def test_check_goes_on_from_the_snapshot_as_a_start_does(tmp_path: Path, capsys: Capture) -> None:
    snapshot, log = fill_with_snapshot(tmp_path)
    before = contents(tmp_path)
    assert invoke(["journal", "check", str(tmp_path)]) == Exit.OK
    assert contents(tmp_path) == before
    first, segments, frames, time, state, verdict = lines_of(capsys)
    assert first == (
        f"snapshot   {snapshot}: 8 jobs up to frame 2, {snapshot.stat().st_size} bytes"
    )
    assert segments == f"segments   1, {log.stat().st_size} bytes"
    assert frames == "frames     3 to 4, durable for certain to 3, closed in good order"
    assert time.startswith("time       2023-11-14T22:13:20.005Z to 2023-11-14T22:13:20.012Z")
    assert state.startswith("state      12 jobs in 1 topic: ")
    assert verdict == "verdict    accept: the log is whole"


def test_check_names_a_damaged_snapshot_and_what_stands_in_for_it(
    tmp_path: Path, capsys: Capture
) -> None:
    snapshot, _ = fill_with_snapshot(tmp_path)
    flip(snapshot, 100)
    assert invoke(["journal", "check", str(tmp_path)]) == Exit.OK
    first, _, frames, _, state, _ = lines_of(capsys)
    assert first.startswith(f"snapshot   damaged, not used: {snapshot} at offset ")
    assert frames == "frames     1 to 4, durable for certain to 3, closed in good order"
    assert state.startswith("state      12 jobs in 1 topic: ")


def test_dump_begins_with_the_records_of_the_snapshot(tmp_path: Path, capsys: Capture) -> None:
    fill_with_snapshot(tmp_path)
    assert invoke(["journal", "dump", str(tmp_path)]) == Exit.OK
    lines = [line.split() for line in lines_of(capsys)]
    assert sorted({words[0] for words in lines}) == ["3", "4", "snapshot-2"]
    of_snapshot = [words[3] for words in lines if words[0] == "snapshot-2"]
    assert of_snapshot.count("PUT") == 8
    assert of_snapshot[:2] == ["TURN", "LAST"]
    assert all("topic=mail" in words for words in lines if words[3] == "PUT")
    assert invoke(["journal", "dump", "--json", str(tmp_path)]) == Exit.OK
    records = [json.loads(line) for line in lines_of(capsys)]
    assert [record.get("snapshot") for record in records].count(2) == len(of_snapshot)
    assert {record.get("frame") for record in records} == {None, 3, 4}
