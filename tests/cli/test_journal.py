"""`delayd journal check` and `dump`: what is no text of sessions.txt."""

import json
from base64 import b64decode
from pathlib import Path

from delayd.cli.main import invoke
from delayd.core.engine import Engine
from delayd.exits import Exit
from delayd.journal.disk import RealDisk
from delayd.journal.journal import Journal
from tests.cli.journals import SEGMENT_BYTES, START_MS, Capture, fill_with_snapshot, lines_of, work

# --- check ---------------------------------------------------------------------------------------


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


# --- dump ----------------------------------------------------------------------------------------


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


# --- Snapshots -----------------------------------------------------------------------------------


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
