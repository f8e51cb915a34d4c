"""Directories as a daemon might have left them, for the tests of `delayd journal`."""

from pathlib import Path
from typing import Final

import pytest

from delayd.core.engine import Engine
from delayd.core.operations.attempts import bury
from delayd.core.operations.reserve import reserve
from delayd.core.operations.sessions import open_session, use, watch
from delayd.core.snapshot_copy import SnapshotCopy
from delayd.core.times import RequestMs
from delayd.journal.disk import RealDisk
from delayd.journal.format import END_NAME, segment_name
from delayd.journal.journal import Journal
from tests.rigs.engine import put

START_MS: Final = 1_700_000_000_000
START: Final = "2023-11-14T22:13:20.000Z"
SEGMENT_BYTES: Final = 1 << 16

Capture = pytest.CaptureFixture[str]


def work(engine: Engine, body: bytes = b"hello") -> None:
    """Leave one job in each state."""
    session = open_session(engine)
    use(engine, session, "mail")
    watch(engine, session, "mail")
    assert session.used is not None
    for delay_ms in (0, 0, 0, 9_000):
        put(
            engine,
            session.used,
            priority=delay_ms // 1000,
            delay_ms=delay_ms,
            ttr_ms=60_000,
            body=body,
            now_ms=START_MS,
        )
    job = reserve(engine, session, RequestMs(START_MS))
    assert job is not None
    bury(engine, session, job[0], 5, RequestMs(engine.store.time_ms))
    reserve(engine, session, RequestMs(START_MS))


def fill(directory: Path, frames: int = 3, *, is_closed: bool = True) -> Path:
    """Make a journal in which each frame holds the same work done once more; return its log."""
    engine = Engine(start_ms=START_MS)
    journal = Journal.open(str(directory), disk=RealDisk(), segment_bytes=SEGMENT_BYTES)
    assert not list(journal.replay())
    for number in range(frames):
        work(engine)
        log, _ = engine.take_log()
        journal.append(b"".join(log), START_MS + number, START_MS - number)
        journal.sync()
    path = directory / segment_name(1)
    content = path.read_bytes()
    journal.close()
    if not is_closed:
        path.write_bytes(content)
        (directory / END_NAME).unlink()
    return path


def fill_with_snapshot(directory: Path) -> tuple[Path, Path]:
    """Make a journal whose snapshot covers two frames of three; return the snapshot and the log."""
    engine = Engine(start_ms=START_MS)
    journal = Journal.open(str(directory), disk=RealDisk(), segment_bytes=SEGMENT_BYTES)
    assert not list(journal.replay())
    snapshot = directory
    for number in range(3):
        if number == 2:
            writer = journal.begin_snapshot(2, START_MS + 5, START_MS)
            copy = SnapshotCopy(engine.store)
            while not copy.is_over:
                writer.write(copy.take(slice_jobs=100, slice_bytes=1 << 20))
            snapshot = Path(writer.finish(copy.jobs).path)
        work(engine)
        log, _ = engine.take_log()
        journal.append(b"".join(log), START_MS + 10 + number, START_MS)
        journal.sync()
    journal.close()
    return snapshot, directory / segment_name(1)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def lines_of(capsys: Capture) -> list[str]:
    return capsys.readouterr().out.splitlines()


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)
