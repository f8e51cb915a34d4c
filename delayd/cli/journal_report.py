"""A journal for people and programs: its records as lines, and the outcome of a start.

    12 2026-11-21T10:15:00.123Z 2026-11-21T10:15:00.124Z RELEASE id=7 due=... delay=15s priority=0

First come the frame's number, the delayd time and the wall-clock time of its commit; records of a
snapshot have the number of the last frame that it covers, as `snapshot-12`. In the text, times are
dates, durations have units, and nothing in a body or a name can drive a terminal. In JSON the
fields keep their names and units, and bodies are whole, in base64.

The outcome of a start is found by doing it in memory: `recovery` reads snapshot and log, and they
are replayed into an engine, exactly as by `delayd serve`. A start would then cut, write and remove
files; that part is left out here.
"""

import contextlib
import functools
import gc
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import orjson

from delayd.cli.terminal import progress
from delayd.core.dump import MOMENTS, Dump, Dumped
from delayd.core.engine import Engine
from delayd.core.log_records import Kind, UnknownRecord
from delayd.core.replay import Replay
from delayd.durations import duration_text
from delayd.exits import Exit
from delayd.journal.directory import holder, names_in
from delayd.journal.disk import Disk
from delayd.journal.errors import DamageError, JournalCorrupt, JournalFailed
from delayd.journal.format import FRAME_OVERHEAD_BYTES, VIRTUAL_NAME, Frame, check_names
from delayd.journal.recovery import LogVerdict, Recovery, StartWarning, start_warnings
from delayd.journal.repair import Rest, rest_after
from delayd.journal.snapshot import Damage
from delayd.limits import BACKUP_ATTEMPTS_MAX, WALL_MS_MAX
from delayd.moments import moment_text
from delayd.text import counted, in_json, visible

BODY_BYTES_SHOWN: Final = 60

CLOSED: Final = "CLOSED"  # replaces the records of a closing frame: the daemon stopped cleanly


class FrameSource(NamedTuple):
    """A frame, of the log or of a snapshot that covers the log up to that sequence."""

    frame: Frame
    is_snapshot: bool


def text_line(source: FrameSource, record: Dumped | None) -> str:
    """Write a record for people; None stands for a closing frame.

    >>> record = Dumped(Kind.PAUSE, {"topic_number": 1, "pause_ms": 1_500, "topic": "mail"}, None)
    >>> text_line(FrameSource(Frame(12, 0, 60_000, b""), is_snapshot=False), record)
    '12 1970-01-01T00:00:00.000Z 1970-01-01T00:01:00.000Z PAUSE pause=1s500ms topic=mail'
    """
    frame = source.frame
    number = f"snapshot-{frame.sequence}" if source.is_snapshot else str(frame.sequence)
    words = [number, moment(frame.time_ms), moment(frame.wall_ms)]
    if record is None:
        words.append(CLOSED)
    else:
        words += (record.kind.name, *_fields(record))
        if record.body is not None:
            words.append(f"body={shown_body(record.body)}")
    return " ".join(words)


def _fields(record: Dumped) -> Iterator[str]:
    for name, value in record.fields.items():
        if isinstance(value, str):
            yield f"{name}={visible(value)}"
        elif name in MOMENTS:
            yield f"{name.removesuffix('_ms')}={moment(value)}"
        elif name.endswith("_ms"):
            yield f"{name.removesuffix('_ms')}={duration_text(value)}"
        elif name != "topic_number" or record.kind is Kind.TOPIC:
            yield f"{name}={value}"


def json_line(source: FrameSource, record: Dumped | None) -> str:
    """Write a record for programs."""
    frame = source.frame
    line: dict[str, object] = {
        "snapshot" if source.is_snapshot else "frame": frame.sequence,
        "time_ms": frame.time_ms,
        "wall_ms": frame.wall_ms,
        "kind": CLOSED if record is None else record.kind.name,
    }
    if record is not None:
        # A TURN has a time of its own, which is not that of its frame.
        line["fields"] = record.fields
        if record.body is not None:
            line["body_base64"] = b64encode(record.body).decode("ascii")
    return visible(orjson.dumps(line).decode(), write=in_json)


@functools.lru_cache(maxsize=1_000)
def moment(time_ms: int) -> str:
    """Write a point of time as a date, or as the number it is where there is no such date.

    >>> moment(1_700_000_000_123), moment(2**64 - 1)
    ('2023-11-14T22:13:20.123Z', '18446744073709551615')
    """
    return moment_text(time_ms) if time_ms <= WALL_MS_MAX else str(time_ms)


def shown_body(body: bytes) -> str:
    r"""Write a body in printable ASCII, and how long it is if that is not all of it.

    >>> print(shown_body(b"caf\xc3\xa9\n\x1b[2J"))
    "caf\xc3\xa9\n\x1b[2J"
    >>> print(shown_body(b"x" * 61)[-12:])
    x"(61 bytes)
    """
    text = body[:BODY_BYTES_SHOWN].decode("latin-1").replace("\\", r"\\").replace('"', r"\"")
    shown = "".join(c if " " <= c <= "~" else ascii(c)[1:-1] for c in text)
    rest = f"({len(body)} bytes)" if len(body) > BODY_BYTES_SHOWN else ""
    return f'"{shown}"{rest}'


def lines(sources: Iterable[FrameSource], directory: str, *, as_json: bool) -> Iterator[str]:
    """Write each record of the frames, which come in the order in which a start plays them.

    Raises JournalCorrupt where an intact frame holds something else.
    """
    write = json_line if as_json else text_line
    dump = Dump()
    for source in sources:
        frame = source.frame
        if not frame.payload and not source.is_snapshot:
            yield write(source, None)
        try:
            for record in dump.records(frame.payload):
                yield write(source, record)
        except UnknownRecord as error:
            raise JournalCorrupt(directory, 0, f"frame {frame.sequence} holds {error}") from error


@dataclass(slots=True)
class Played:
    """Where the frames of a log lead, as far as they can be read."""

    frames: int = 0  # how many were replayed, those of the snapshot included
    first: FrameSource | None = None
    first_of_log: Frame | None = None
    last: FrameSource | None = None
    engine: Engine | None = None

    def play(self, sources: Iterator[FrameSource], directory: str) -> None:
        """Replay them. Raises JournalCorrupt where one holds what cannot be played."""
        replay = None
        for source in sources:
            frame = source.frame
            if replay is None:
                self.first = source
                replay = Replay(Engine(start_ms=frame.time_ms))
                self.engine = replay.engine
            if self.first_of_log is None and not source.is_snapshot:
                self.first_of_log = frame
            self.last = source
            self.frames += 1
            try:
                replay.play(frame.payload)
            except UnknownRecord as error:
                why = f"frame {frame.sequence} holds {error}"
                raise JournalCorrupt(directory, 0, why) from error

    def times(self) -> Iterator[str]:
        """Write from when to when they are."""
        if self.first and self.last:
            start, stop = moment(self.first.frame.time_ms), moment(self.last.frame.time_ms)
            wall = moment(self.last.frame.wall_ms)
            yield f"time       {start} to {stop}, by the wall clock {wall}"

    def state(self) -> Iterator[str]:
        """Write what a start would have."""
        if self.engine:
            yield f"state      {jobs_of(self.engine)}"


@dataclass(slots=True)
class Examination:
    """The findings of a check; `lines` writes them."""

    recovery: Recovery
    played: Played = field(default_factory=Played)
    is_virtual: bool = False  # the directory is one of a virtual clock
    rest: Rest = field(default_factory=Rest)
    refusal: DamageError | None = None
    warnings: list[StartWarning] = field(default_factory=list)
    unused: list[Damage] = field(default_factory=list)  # of what a start does not read

    @property
    def damaged(self) -> list[Damage]:
        """What a start does without."""
        return self.recovery.base.damaged + self.unused

    @property
    def exit_code(self) -> Exit:
        """Return what tells a directory that is whole from one of which a file is damaged."""
        return Exit.CORRUPT_JOURNAL if self.refusal or self.damaged else Exit.OK

    def lines(self) -> Iterator[str]:
        """Write the findings for people."""
        recovery = self.recovery
        for damage in recovery.base.damaged:
            yield f"snapshot   damaged, not used: {damage}"
        if recovery.base.snapshot:
            yield f"snapshot   {recovery.base.snapshot}"
        yield f"segments   {len(recovery.segments)}, {log_bytes(recovery)} bytes"
        first, last = self.played.first_of_log, self.played.last
        if first and last:
            span = f"{first.sequence} to {last.frame.sequence}"
            end = "closed in good order" if not last.frame.payload else "not closed"
            yield f"frames     {span}, durable for certain to {recovery.synced}, {end}"
        yield from self.played.times()
        if self.is_virtual:
            yield "clock      virtual: only `delayd serve --clock virtual` takes this directory"
        yield from self.played.state()
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
            whole = "what a start needs" if self.damaged else "the log"
            yield f"verdict    accept: {whole} is whole"
        for damage in self.unused:
            yield f"damaged    {damage}: a start does not need it today"
        for doubt in self.warnings:
            yield f"warning    {doubt}"


def frames_of(recovery: Recovery, on_bytes: Callable[[int], None]) -> Iterator[FrameSource]:
    """Yield the frames that a start would replay, and report the length of each."""
    for frame in recovery.frames():
        on_bytes(len(frame.payload) + FRAME_OVERHEAD_BYTES)
        yield FrameSource(frame, is_snapshot=frame.sequence <= recovery.base.sequence)


def examine(disk: Disk, directory: str, names: list[str] | None = None) -> Examination:
    """Do what a start does before it changes anything, and read the rest. Raises JournalFailed.

    Reads only the files `names`, if there is a list; else a daemon may be writing to the log. Takes
    the time and memory of a start.
    """
    may_grow = names is None
    names = names_in(disk, directory) if names is None else names
    recovery = Recovery(disk, directory, names, may_grow=may_grow)
    examination = Examination(recovery, is_virtual=VIRTUAL_NAME in names)
    try:
        check_names(directory, names)
        with collector_off(), progress("checking", log_bytes(recovery)) as on_bytes:
            examination.played.play(frames_of(recovery, on_bytes), directory)
            examination.unused = list(recovery.unused_damage())
        examination.warnings = start_warnings(recovery, names)
    except DamageError as error:
        examination.refusal = error
    if recovery.place and recovery.verdict is not LogVerdict.ACCEPT:
        examination.rest = rest_after(recovery, recovery.place)
    return examination


def examine_live(disk: Disk, directory: str) -> Examination:
    """Do the same where a daemon may be at work, which makes and removes files all the time.

    Begins again where a file is gone, and what is refused has to be found twice. Raises
    JournalFailed.
    """
    refusal = ""
    for _ in range(BACKUP_ATTEMPTS_MAX):
        try:
            examination = examine(disk, directory)
        except JournalFailed as error:
            # Its context: in the compiled package `raise from` gives an error no cause.
            if isinstance(error.__context__, FileNotFoundError) and holder(disk, directory):
                continue
            raise
        before, refusal = refusal, str(examination.refusal or "")
        if refusal in {"", before} or not holder(disk, directory):
            return examination
    raise JournalFailed(directory, "its files change faster than they can be read")


@contextlib.contextmanager
def collector_off() -> Iterator[None]:
    """Keep the garbage collector from traversing the tables of many jobs repeatedly."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def log_bytes(recovery: Recovery) -> int:
    """Return how long the files of the log are."""
    return sum(segment.size_bytes for segment in recovery.segments)


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
