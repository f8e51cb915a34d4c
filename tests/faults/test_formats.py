"""T-U1: what an older delayd wrote is read for ever, and what a newer one wrote is not touched.

`golden/` holds, for each version, a directory as a daemon of that version left it: all kinds of
records in a log, and two snapshots beside the log; `state` says which jobs it held. Such a
directory is never changed. A new version, or one that has more kinds of records or parts of jobs,
gets one by
`python -m tests.faults.test_formats`.
"""

import json
import re
import sys
from pathlib import Path
from typing import Final
from zlib import crc32

import pytest

from delayd.core.dump import Dump
from delayd.core.engine import Engine
from delayd.core.job_parts import Flag, Reason
from delayd.core.log_records import Kind
from delayd.journal.errors import JournalVersion
from delayd.journal.format import END_NAME, FORMAT_VERSION
from delayd.journal.recovery import Recovery
from delayd.journal.snapshot import SNAPSHOT_VERSION
from tests.faults.bytes_of_a_log import recovered, snapshots_of
from tests.faults.conftest import Runs
from tests.faults.parts import seen_in
from tests.journal.journals import DIRECTORY, contents_of, disk_of
from tests.rigs.disk import SimulatedDisk

GOLDEN: Final = Path(__file__).parent / "golden"
NAME: Final = (
    f"log-{FORMAT_VERSION}-snapshot-{SNAPSHOT_VERSION}-kinds-{max(Kind)}-flags-{sum(Flag)}"
)
STATE: Final = "state"
KNOWN_BEFORE_LOG_END: Final = re.compile(
    r"lock|lost\+found|virtual-clock|spare-[0-9]{10}\.log|snapshot-[0-9]{20}\.snap(\.new)?"
    r"|segment-[0-9]{10}\.log(\.new|\.torn-[0-9]+(-[0-9]+)?)?"
)
"""What a delayd took for files of its own before it had `log-end`. Never changed: it refuses any
other, says that it is not delayd's, and advises to move it away."""
TURNS: Final = 30


def golden_disk(home: Path) -> SimulatedDisk:
    return disk_of({path.name: path.read_bytes() for path in home.iterdir() if path.name != STATE})


def jobs_of(engine: Engine) -> str:
    jobs = [
        (seen.job_id, seen.state, seen.due_ms, seen.priority, seen.body.hex())
        for seen in sorted(seen_in(engine))
    ]
    return "".join(f"{json.dumps(job)}\n" for job in jobs)


def test_there_is_a_golden_directory_of_this_version() -> None:
    """T-U1."""
    assert (GOLDEN / NAME).is_dir()


@pytest.mark.parametrize("home", sorted(GOLDEN.iterdir()), ids=lambda home: home.name)
def test_what_an_older_version_wrote_is_read(home: Path, runs: Runs) -> None:
    """T-U1; that of this version has every kind of record."""
    engine, _ = recovered(golden_disk(home))
    assert jobs_of(engine) == (home / STATE).read_text()
    runs.count("T-U1", what="directories of other versions")
    disk = golden_disk(home)
    recovery = Recovery(disk, DIRECTORY, disk.list_directory(DIRECTORY))
    dump = Dump()
    records = [record for frame in recovery.frames() for record in dump.records(frame.payload)]
    kinds = {record.kind for record in records}
    said = {name for record in records for name in record.fields}
    reasons = {record.fields.get("reason") for record in records}
    is_pushed = any("push" in str(record.fields.get("policy")) for record in records)
    assert kinds >= {Kind.TURN, Kind.TOPIC, Kind.PUT, Kind.RESERVE, Kind.LAST}
    if home.name == NAME:
        assert kinds == set(Kind)
        assert said >= {"target", "retry", "key", "wall_ms", "rank", "group"}
        assert Reason.PUSH_FAILED.name.lower() in reasons
        assert is_pushed


@pytest.mark.parametrize("which", ["segment-", "snapshot-"])
def test_what_a_newer_version_wrote_is_refused_untouched(which: str, runs: Runs) -> None:
    """T-U1: the version is the u32 behind the magic; a snapshot's must be intact to be newer."""
    disk, _ = snapshots_of(TURNS)
    name = max(name for name in contents_of(disk) if name.startswith(which))
    path = f"{DIRECTORY}/{name}"
    content = bytearray(disk.file_bytes(path))
    content[8:12] = (99).to_bytes(4, "little")
    header_bytes = 76 if which == "segment-" else 52
    content[header_bytes : header_bytes + 4] = crc32(content[:header_bytes]).to_bytes(4, "little")
    disk.put_file(path, bytes(content))
    before = contents_of(disk)
    with pytest.raises(JournalVersion, match="version is 99"):
        recovered(disk)
    assert contents_of(disk) == before
    runs.count("T-U1", what="directories of other versions")


def test_an_older_delayd_knows_all_files_but_one_and_needs_not_that_one(runs: Runs) -> None:
    """T-U1: so its advice to move that away costs no job; docs/sizing.md says the same."""
    disk, _ = snapshots_of(TURNS)
    whole, journal = recovered(disk)
    time_ms = whole.store.time_ms
    journal.append(b"", time_ms, time_ms)
    journal.close()
    names = {*disk.list_directory(DIRECTORY)}
    unknown = {name for name in names if not KNOWN_BEFORE_LOG_END.fullmatch(name)}
    assert unknown == {END_NAME}, "a new kind of file needs a way back to older versions"
    older = {name: disk.file_bytes(f"{DIRECTORY}/{name}") for name in names - unknown}
    engine, _ = recovered(disk_of(older))
    assert jobs_of(engine) == jobs_of(whole) != ""
    runs.count("T-U1", what="directories of other versions")


def write_golden() -> None:
    """Write the directory of this version, which must not be there yet."""
    home = GOLDEN / NAME
    home.mkdir(parents=True)
    disk, _ = snapshots_of(TURNS)
    for name, content in contents_of(disk).items():
        (home / name).write_bytes(content)
    engine, _ = recovered(disk)
    (home / STATE).write_text(jobs_of(engine))


if __name__ == "__main__":
    write_golden()
    sys.exit(0)
