"""How far the log went: a small file beside it, so that a log which ends earlier is refused.

A file of the log says where its frames end, and an older copy of that file says it as well. So the
last frame that was durable is written into another file, in place: at the end of a clean stop, and
about once a second while there is something new. A start refuses a log that ends before it.

    identity | last durable frame | number of this very file, 0 after a clean stop | checksum

The copy that a backup makes has one too, as after a clean stop (`backup`).

The number in it (the inode's) tells whether the file is a copy. A copy of a running daemon's
directory may have the log as it was first, and this file as it was a moment later: what it says
would be too much for that log, so a copy counts only when a clean stop has written it.

>>> end = LogEnd(identity=bytes(range(16)), sequence=60, file_number=0)
>>> data = pack_log_end(end)
>>> len(data), unpack_log_end(data) == end
(48, True)

It is evidence and no more. A log is as good without it, so nothing fails when it cannot be written,
and a file that is not there, empty or damaged proves nothing. One that is there and cannot be read
is told; one that is not there may never have been.
"""

import contextlib
import struct
from typing import Final, NamedTuple
from zlib import crc32

from delayd.journal.disk import NO_SPACE, Disk, opened, read_exactly, write_all
from delayd.journal.format import CHECKSUM, END_NAME, IDENTITY_BYTES

END_VERSION: Final = 1
END_MAGIC: Final = b"delayen\n"
END: Final = struct.Struct(f"<8sI{IDENTITY_BYTES}sQQ")


class LogEnd(NamedTuple):
    """What the file says."""

    identity: bytes
    sequence: int  # the frames up to this one were durable
    file_number: int  # of the file it was written to; 0: by a clean stop, or a backup


def pack_log_end(end: LogEnd) -> bytes:
    """Return the bytes of the file."""
    data = END.pack(END_MAGIC, END_VERSION, *end)
    return data + CHECKSUM.pack(crc32(data))


def unpack_log_end(data: bytes) -> LogEnd | None:
    """Return what the file says; None when it is damaged or of another version."""
    if len(data) < END.size + CHECKSUM.size:
        return None
    magic, version, identity, sequence, file_number = END.unpack_from(data)
    is_whole = CHECKSUM.unpack_from(data, END.size)[0] == crc32(data[: END.size])
    if (magic, version) != (END_MAGIC, END_VERSION) or not is_whole:
        return None
    return LogEnd(identity, sequence, file_number)


PROVES_NOTHING: Final = LogEnd(b"", 0, 0)


def read_log_end(disk: Disk, path: str) -> LogEnd | None:
    """Return what the file proves; None when it is damaged. Raises OSError."""
    with opened(disk, path) as handle:
        end = unpack_log_end(read_exactly(disk, handle, END.size + CHECKSUM.size, 0))
        if end is not None and end.file_number not in {0, disk.status(handle).number}:
            return PROVES_NOTHING
    return end


class LogEndFile:
    """The file, while a journal is open."""

    def __init__(self, disk: Disk, directory: str, identity: bytes) -> None:
        self._disk = disk
        self._directory = directory
        self._identity = identity
        self._handle: int | None = None
        self._file_number = 0
        self._sequence = 0  # what was written last
        self._has_failed = False

    def note(self, sequence: int, *, is_closed: bool = False) -> str:
        """Write that the frames up to this one are durable; with `is_closed` durably, as the last.

        An error leaves what was there: less is proved then. Returns it, in a sentence, unless it
        was the same the last time, or there is no space; else empty.
        """
        if sequence == self._sequence and not is_closed:
            return ""
        try:
            self.write(sequence, is_closed=is_closed)
        except OSError as error:
            had_failed, self._has_failed = self._has_failed, error.errno not in NO_SPACE
            is_new = self._has_failed and not had_failed
            return f"{self._directory}/{END_NAME}: {error.strerror}" if is_new else ""
        self._has_failed = False
        return ""

    def write(self, sequence: int, *, is_closed: bool) -> None:
        """Write it, durably with `is_closed`. Raises OSError."""
        disk = self._disk
        handle = self._opened()
        file_number = 0 if is_closed else self._file_number
        write_all(disk, handle, pack_log_end(LogEnd(self._identity, sequence, file_number)), 0)
        self._sequence = sequence
        if is_closed:
            disk.sync(handle)
            disk.sync_directory(self._directory)

    def _opened(self) -> int:
        """Return the file under its name, made if it is not there. Raises OSError."""
        disk, path = self._disk, f"{self._directory}/{END_NAME}"
        try:
            if self._handle is not None:
                if disk.status(path).number == self._file_number:
                    return self._handle
                self.close()
            self._handle = disk.open(path, write=True)
        except FileNotFoundError:
            self.close()
            self._handle = disk.create(path)
        self._file_number = disk.status(self._handle).number
        return self._handle

    def close(self) -> None:
        """Close the file."""
        handle, self._handle = self._handle, None
        if handle is not None:
            with contextlib.suppress(OSError):
                self._disk.close(handle)
