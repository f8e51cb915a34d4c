"""What a start would make of a journal, found out by doing what a start does, in memory.

Snapshot and log are read by `recovery` and played into an engine, exactly as `delayd serve` does
it; only then are files cut, written and removed, and that part is left out here.
"""

import contextlib
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from delayd.cli.journal_lines import Source, moment
from delayd.cli.terminal import progress
from delayd.core.engine import Engine
from delayd.core.records import UnknownRecord
from delayd.core.replay import Replay
from delayd.journal.directory import names_in
from delayd.journal.disk import Disk
from delayd.journal.errors import DamageError, JournalCorrupt
from delayd.journal.format import FRAME_OVERHEAD_BYTES, VIRTUAL_NAME, Frame, check_names
from delayd.journal.recovery import LogVerdict, Recovery, StartWarning, start_warnings
from delayd.journal.repair import Rest, rest_behind
from delayd.text import counted


@dataclass(slots=True)
class Examination:
    """What was found, in the end said by `lines`."""

    recovery: Recovery
    frames: int = 0
    """How many were played, those of the snapshot included."""
    first: Source | None = None
    first_of_log: Frame | None = None
    last: Source | None = None
    engine: Engine | None = None
    is_virtual: bool = False
    """The directory is one of a virtual clock."""
    rest: Rest = field(default_factory=Rest)
    refusal: DamageError | None = None
    warnings: list[StartWarning] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        """Say it to a person."""
        recovery = self.recovery
        for damage in recovery.base.damaged:
            yield f"snapshot   damaged, not used: {damage}"
        if recovery.base.snapshot:
            yield f"snapshot   {recovery.base.snapshot}"
        yield f"segments   {len(recovery.segments)}, {log_bytes(recovery)} bytes"
        if self.first_of_log and self.last:
            span = f"{self.first_of_log.sequence} to {self.last.frame.sequence}"
            end = "closed in good order" if not self.last.frame.payload else "not closed"
            yield f"frames     {span}, durable for certain to {recovery.synced}, {end}"
        if self.first and self.last:
            start, stop = moment(self.first.frame.time_ms), moment(self.last.frame.time_ms)
            wall = moment(self.last.frame.wall_ms)
            yield f"time       {start} to {stop}, by the wall clock {wall}"
        if self.is_virtual:
            yield "clock      virtual: only `delayd serve --clock virtual` takes this directory"
        if self.engine:
            yield f"state      {jobs_of(self.engine)}"
        yield from self._verdict()

    def _verdict(self) -> Iterator[str]:
        place = self.recovery.place
        where = ""
        if place:
            segment = self.recovery.segments[place.segment_index]
            where = f"{segment.path} at offset {place.offset}"
        if self.refusal:
            yield f"verdict    refuse: {self.refusal}"
            yield "           a start changes nothing and exits with 65"
            if place:
                yield f"           behind {where}: {self.rest}"
        elif self.recovery.verdict is LogVerdict.CUT:
            assert place is not None
            yield f"verdict    cut: {where}: {place.why}"
            if self.rest.data_bytes:
                yield f"           a start copies what stands there and cuts it off: {self.rest}"
            else:
                yield "           a start removes the file: there is nothing in it"
        elif place is None:
            yield "verdict    accept: there is no log, a new one would begin"
        else:
            yield "verdict    accept: the log is whole"
        for doubt in self.warnings:
            yield f"warning    {doubt}"


def frames_of(recovery: Recovery, on_bytes: Callable[[int], None]) -> Iterator[Source]:
    """Yield the frames that a start would play, and tell of each how long it is."""
    for frame in recovery.frames():
        on_bytes(len(frame.payload) + FRAME_OVERHEAD_BYTES)
        yield Source(frame, is_snapshot=frame.sequence <= recovery.base.sequence)


def examine(disk: Disk, directory: str) -> Examination:
    """Do what a start does before it changes anything. Raises JournalFailed.

    Takes the time and the memory of a start.
    """
    names = names_in(disk, directory)
    recovery = Recovery(disk, directory, names)
    examination = Examination(recovery, is_virtual=VIRTUAL_NAME in names)
    try:
        check_names(directory, names)
        with collector_off(), progress("checking", log_bytes(recovery)) as on_bytes:
            _play(examination, frames_of(recovery, on_bytes), directory)
        examination.warnings = start_warnings(directory, names, recovery)
    except DamageError as error:
        examination.refusal = error
    if recovery.place and recovery.verdict is not LogVerdict.ACCEPT:
        examination.rest = rest_behind(disk, recovery, recovery.place)
    return examination


@contextlib.contextmanager
def collector_off() -> Iterator[None]:
    """Keep the garbage collector from walking the tables of many jobs again and again."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def log_bytes(recovery: Recovery) -> int:
    """Return how long the files of the log are."""
    return sum(segment.size_bytes for segment in recovery.segments)


def _play(examination: Examination, sources: Iterator[Source], directory: str) -> None:
    replay = None
    for source in sources:
        frame = source.frame
        if replay is None:
            examination.first = source
            replay = Replay(Engine(start_ms=frame.time_ms))
            examination.engine = replay.engine
        if examination.first_of_log is None and not source.is_snapshot:
            examination.first_of_log = frame
        examination.last = source
        examination.frames += 1
        try:
            replay.play(frame.payload)
        except UnknownRecord as error:
            raise JournalCorrupt(directory, 0, f"frame {frame.sequence} holds {error}") from error


def jobs_of(engine: Engine) -> str:
    """Count the jobs by state."""
    topics = engine.store.topics.listing
    counts = {
        "ready": sum(len(topic.queues.ready) for topic in topics),
        "delayed": sum(topic.delayed for topic in topics),
        "reserved": sum(topic.reserved for topic in topics),
        "buried": sum(len(topic.queues.buried) for topic in topics),
    }
    by_state = ", ".join(f"{count} {state}" for state, count in counts.items())
    in_use = sum(bool(topic.jobs) for topic in topics)
    return f"{counted(sum(counts.values()), 'job')} in {counted(in_use, 'topic')}: {by_state}"
