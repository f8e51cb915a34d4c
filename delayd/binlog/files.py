"""beanstalkd's binlog, read: which jobs there are, and what is known about each.

A binlog is a directory of files `binlog.1`, `binlog.2`, ... Each begins with the version of its
format, an int, and then holds records without gaps; a file that was not closed ends in zeros, up to
its preallocated length. A record says how a job now is. The first about a job is full, later ones
are short; full again is the copy that beanstalkd makes when it wants to remove an old file:

    full     length of the tube's name | name | job | body with its CRLF
    short    0                         |        job

The numbers are those of a 64-bit machine, little-endian, with the holes that its compiler leaves:

    version 7    length i32, job 80 bytes, times in ns      beanstalkd 1.5 and newer
    version 5    length u64, job 77 bytes, times in µs      older

All times are the wall clock's. Nothing is checksummed, so what the bytes themselves show is
checked: lengths, states, names, the CRLF. A record that was being written when beanstalkd died is
normal, in any file, because a restarted beanstalkd begins a new one: only zeros follow it. Anything
else that is no record is damage.
"""

import enum
import struct
from collections.abc import Callable, Collection, Iterator
from typing import Final, NamedTuple, Self

from delayd.core.errors import TopicNameInvalid
from delayd.core.names import checked_name
from delayd.journal.disk import Disk, end_of_data, file_bytes, opened, read_exactly
from delayd.journal.errors import DamageError, failing
from delayd.journal.format import BINLOG_NAME
from delayd.limits import (
    BODY_BYTES_CEILING,
    DURATION_MS_MAX,
    JOURNAL_WINDOW_BYTES,
    TOPIC_NAME_BYTES_MAX,
)

LOCK_NAME: Final = "lock"
CRLF: Final = b"\r\n"
VERSION: Final = struct.Struct("<i")
BODY_BYTES_INDEX: Final = 4
DURATION_NS_MAX: Final = DURATION_MS_MAX * 1_000_000


class Layout(NamedTuple):
    """How a version lays out a record."""

    name_length: struct.Struct
    job: struct.Struct
    """Id, priority, delay, ttr, body bytes with CRLF, created, deadline, five counts, state."""
    unit_ns: int


LAYOUTS: Final = {
    5: Layout(struct.Struct("<Q"), struct.Struct("<QI4xqqi4xqqIIIIIB"), 1_000),
    7: Layout(struct.Struct("<i"), struct.Struct("<QI4xqqi4xqqIIIIIB3x"), 1),
}


class BinlogState(enum.IntEnum):
    """What a record says about a job."""

    DELETED = 0
    READY = 1
    RESERVED = 2
    BURIED = 3
    DELAYED = 4


STATES: Final = frozenset(map(int, BinlogState))


class BinlogJob(NamedTuple):
    """A job as its latest record says; times in nanoseconds, points of time on the wall clock."""

    id: int
    tube: str
    priority: int
    delay_ns: int
    ttr_ns: int
    created_ns: int
    deadline_ns: int  # when the delay ends, of a delayed job
    reserves: int
    timeouts: int
    releases: int
    buries: int
    kicks: int
    state: BinlogState
    body: bytes


class BinlogDamaged(DamageError):
    """Something in a file is neither a record nor the end of one that was cut short."""


class _Record(NamedTuple):
    """A job while the files are read: the latest record's bytes, to be unpacked once."""

    tube: str  # empty in a short record
    layout: Layout
    packed: bytes
    body: bytes


class _Bad(NamedTuple):
    """Bytes that are no record: where they begin, where a record would have ended, why not."""

    offset: int
    end: int
    why: str


class Binlog:
    """The jobs of a binlog. `Binlog.read` makes one."""

    def __init__(self) -> None:
        self.last_id = 0  # the highest id that was ever seen
        self.records = 0
        self.torn: list[BinlogDamaged] = []
        """Records that a crash cut short; they were never acknowledged."""
        self.damage: list[BinlogDamaged] = []  # what was passed over, if that was wanted
        self._kept: dict[int, _Record] = {}
        self._buried: dict[int, None] = {}

    @classmethod
    def read(
        cls,
        disk: Disk,
        directory: str,
        numbers: Collection[int],
        *,
        skip_damage: bool = False,
        on_bytes: Callable[[int], None] = lambda _: None,
    ) -> Self:
        """Read the files of these numbers, the oldest first.

        `on_bytes` gets how many bytes have been read since the last time. With `skip_damage` the
        rest of a damaged file is left out, as beanstalkd does. Raises BinlogDamaged, JournalFailed.
        """
        binlog = cls()
        expected = None
        last = max(numbers, default=0)
        for number in numbers:
            path = path_of(directory, number)
            if expected is not None and number != expected:
                missing = BinlogDamaged(path_of(directory, expected), 0, "the file is missing")
                binlog._report(missing, skip_damage=skip_damage)
            expected = number + 1
            with failing(path):
                damage = binlog._read_file(disk, path, on_bytes, is_last=number == last)
            if damage is not None:
                binlog._report(damage, skip_damage=skip_damage)
        return binlog

    def _report(self, damage: BinlogDamaged, *, skip_damage: bool) -> None:
        if not skip_damage:
            raise damage
        self.damage.append(damage)

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def tubes(self) -> list[str]:
        """The tubes that hold jobs, in the order in which their jobs were met."""
        return list(dict.fromkeys(kept.tube for kept in self._kept.values()))

    def take_jobs(self) -> Iterator[BinlogJob]:
        """Yield each job and forget it: by id, and then the buried ones as they were buried."""
        for job_id in sorted(self._kept.keys() - self._buried.keys()):
            yield _unpacked(self._kept.pop(job_id))
        for job_id in self._buried:
            yield _unpacked(self._kept.pop(job_id))
        self._buried.clear()

    def _read_file(
        self, disk: Disk, path: str, on_bytes: Callable[[int], None], *, is_last: bool
    ) -> BinlogDamaged | None:
        """Take in the records of one file; return what is wrong with it. Raises OSError."""
        with opened(disk, path) as handle:
            source = _Source(disk, handle, on_bytes)
            head = source.take(VERSION.size)
            version = VERSION.unpack(head)[0] if len(head) == VERSION.size else 0
            if version in LAYOUTS:
                bad = self._read_records(source, LAYOUTS[version])
            else:
                readable = " and ".join(map(str, LAYOUTS))
                why = f"the binlog's version is {version}, this program reads {readable}"
                bad = _Bad(0, VERSION.size, why)
            if bad is None:
                return None
            size_bytes = disk.size(handle)
            found = BinlogDamaged(path, bad.offset, bad.why)
            # Files are preallocated, so only the copy of a last file ends within a record.
            if bad.end > size_bytes and not is_last:
                return found
            if end_of_data(disk, handle, min(bad.end, size_bytes), size_bytes) > bad.end:
                return found
            if end_of_data(disk, handle, bad.offset, size_bytes) > bad.offset:
                self.torn.append(found)
            return None

    def _read_records(self, source: "_Source", layout: Layout) -> _Bad | None:
        """Take in records until there are none; return what stands there if it is not the end."""
        while True:
            record = _read_record(source, layout)
            if not isinstance(record, _Record):
                return record
            self.records += 1
            self._take(record)

    def _take(self, record: _Record) -> None:
        job_id, *_, state = record.layout.job.unpack(record.packed)
        self.last_id = max(self.last_id, job_id)
        if state == BinlogState.DELETED:
            self._kept.pop(job_id, None)
        elif record.tube:
            self._kept[job_id] = record
        elif job_id in self._kept:
            known = self._kept[job_id]
            self._kept[job_id] = record._replace(tube=known.tube, body=known.body)
        # A short record of an unknown job: the job was copied to a later file or deleted, and the
        # file with its full record is gone.
        if state == BinlogState.BURIED and job_id in self._kept:
            self._buried.setdefault(job_id)
        else:
            self._buried.pop(job_id, None)


class _Source:
    """Reads a file from its beginning to its end."""

    def __init__(self, disk: Disk, handle: int, on_bytes: Callable[[int], None]) -> None:
        self._disk = disk
        self._handle = handle
        self._on_bytes = on_bytes
        self._start = 0
        self._window = b""
        self._at = 0

    @property
    def offset(self) -> int:
        """Where the next byte comes from."""
        return self._start + self._at

    def take(self, count: int) -> bytes:
        """Return the next bytes; fewer only where the file ends. Raises OSError."""
        end = self._at + count
        if end > len(self._window):
            self._start, self._at, end = self.offset, 0, count
            wanted_bytes = max(count, JOURNAL_WINDOW_BYTES)
            self._window = read_exactly(self._disk, self._handle, wanted_bytes, self._start)
            self._on_bytes(len(self._window))
        data = self._window[self._at : end]
        self._at += len(data)
        return data


def path_of(directory: str, number: int) -> str:
    """Return the path of one file."""
    return f"{directory}/binlog.{number}"


def sized_files(disk: Disk, directory: str) -> dict[int, int]:
    """Return the numbers of the files, the oldest first, with their sizes. Raises JournalFailed."""
    with failing(directory):
        names = disk.list_directory(directory)
        numbers = sorted(int(match[1]) for match in map(BINLOG_NAME.fullmatch, names) if match)
        return {number: file_bytes(disk, path_of(directory, number)) for number in numbers}


def _read_record(source: _Source, layout: Layout) -> _Record | _Bad | None:
    """Return the next record; None at the very end of the file, `_Bad` for anything else."""
    start = source.offset
    end = start + layout.name_length.size
    head = source.take(layout.name_length.size)
    if not head:
        return None
    if source.offset < end:
        return _Bad(start, end, "a record is cut short")
    name_bytes = layout.name_length.unpack(head)[0]
    if not 0 <= name_bytes <= TOPIC_NAME_BYTES_MAX:
        return _Bad(start, end, f"a record claims a tube's name of {name_bytes} bytes")
    end += name_bytes + layout.job.size
    name, packed = source.take(name_bytes), source.take(layout.job.size)
    if source.offset < end:
        return _Bad(start, end, "a record is cut short")
    body_bytes = layout.job.unpack(packed)[BODY_BYTES_INDEX]
    body = b""
    if name_bytes and len(CRLF) <= body_bytes <= BODY_BYTES_CEILING + len(CRLF):
        end += body_bytes
        body = source.take(body_bytes)
        if source.offset < end:
            return _Bad(start, end, "a record is cut short")
    why = _what_is_wrong(layout, packed, name, body)
    if why:
        return _Bad(start, end, why)
    return _Record(name.decode("ascii"), layout, packed, body.removesuffix(CRLF))


def _what_is_wrong(layout: Layout, packed: bytes, name: bytes, body: bytes) -> str:
    """Return why these cannot be the parts of a record; empty if they can."""
    job_id, _, delay, ttr, _, created, deadline, *_, state = layout.job.unpack(packed)
    longest = DURATION_NS_MAX // layout.unit_ns
    if not job_id:
        return "no record stands here"
    if state not in STATES:
        return f"a record says that job {job_id} is in state {state}"
    if not (0 <= delay <= longest and 0 <= ttr <= longest and created >= 0 and deadline >= 0):
        return f"a record says impossible times of job {job_id}"
    if name:
        try:
            checked_name(name.decode("ascii", "backslashreplace"))
        except TopicNameInvalid as error:
            return str(error)
        if not body.endswith(CRLF):
            return f"the body of job {job_id} does not end in CRLF"
    return ""


def _unpacked(kept: _Record) -> BinlogJob:
    values = kept.layout.job.unpack(kept.packed)
    job_id, priority, delay, ttr, _, created, deadline, *counts, state = values
    unit_ns = kept.layout.unit_ns
    times_ns = (delay * unit_ns, ttr * unit_ns, created * unit_ns, deadline * unit_ns)
    end = (BinlogState(state), kept.body)
    return BinlogJob._make((job_id, kept.tube, priority, *times_ns, *counts, *end))
