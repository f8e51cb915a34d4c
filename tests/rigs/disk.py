"""A disk in memory that forgets what was not synced, and fails on request.

Every file has two copies. The volatile one is what programs see; the durable one is what is left
after a power cut. Between them are the un-synced changes, each of which may reach the platter or
not, by itself and in any order: a sector of a write, a new length, a name made or removed.

>>> disk = SimulatedDisk()
>>> disk.make_directory("d")
>>> handle = disk.create("d/file")
>>> disk.pwrite(handle, b"kept", 0)
4
>>> disk.sync(handle)
>>> disk.sync_directory("d")
>>> disk.pwrite(handle, b"lost", 0)
4
>>> disk.crash()
>>> disk.file_bytes("d/file")
b'kept'

It is stricter than any real file system: a name is not durable until its directory is synced, and
after a failed sync the changes are counted as clean and never reach the platter, however often the
file is synced again. Where there is too little space for an allocation, the file takes all of it
and the call fails. It does not know what is in the files.
"""

import errno
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from delayd.journal.disk import FileStatus, LockHeldError

SECTOR_BYTES: Final = 512  # a write reaches the platter in such pieces, each whole or not at all


class PowerCut(BaseException):
    """The machine stops before the call has any effect, and every later call too until `crash`.

    Not an `Exception`, so that nothing which handles errors can continue as if it had not happened.
    """


class Piece(NamedTuple):
    """An un-synced change, as `crash` asks about it."""

    kind: str  # "bytes", "length" or "names"
    name: str  # the file's, or the directory's path
    offset: int


class _Write(NamedTuple):
    offset: int
    data: bytes


@dataclass(slots=True)
class _File:
    name: str
    number: int = 0
    volatile: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    is_regular: bool = True
    unsynced: list[_Write | int] = field(default_factory=list)
    """Writes and new lengths, oldest first."""


@dataclass(slots=True)
class _Directory:
    node: _File
    volatile: dict[str, _File] = field(default_factory=dict)
    durable: dict[str, _File] = field(default_factory=dict)
    unsynced: list[dict[str, _File | None]] = field(default_factory=list)
    """Names set or removed together, oldest first."""


@dataclass(slots=True, frozen=True)
class _Fault:
    error: BaseException | None
    short_bytes: int = 0


class SimulatedDisk:
    """Keeps what `delayd.journal.disk.Disk` promises, and no more.

    `capacity_bytes` bounds the sum of all file lengths; above it there is no space left.
    """

    def __init__(self, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.call_count = 0
        """Calls of all verbs so far, and of each: what `fail` and `cut_power` count by."""
        self.verb_counts: Counter[str] = Counter()
        self._faults: dict[tuple[str, int], _Fault] = {}
        self._directories: dict[str, _Directory] = {}
        self._handles: dict[int, tuple[_File, bool]] = {}
        self._locks: dict[str, int] = {}
        self._shares: dict[int, str] = {}
        self._next_handle = 3
        self._identities = 0
        self._last_number = 0
        self._is_off = False

    # --- what a test may do -------------------------------------------------------------------

    def fail(self, number: int, error: BaseException, verb: str = "") -> None:
        """Raise the error at the n-th call from the start; of this verb, if one is given.

        The call has no effect. A failed `sync` also loses what it should have synced, for good.
        """
        self._faults[verb, number] = _Fault(error)

    def shorten(self, number: int, verb: str, short_bytes: int) -> None:
        """Let the n-th `pread` or `pwrite` handle only so many bytes."""
        self._faults[verb, number] = _Fault(None, short_bytes)

    def heal(self) -> None:
        """Forget the faults that are still planned."""
        self._faults.clear()

    def kill(self) -> None:
        """End the process: handles and locks are gone, the page cache is not."""
        self._handles.clear()
        self._locks.clear()
        self._shares.clear()
        self._is_off = False

    def crash(self, survives: Callable[[Piece], bool] | None = None) -> None:
        """Cut the power; un-synced pieces are lost unless `survives` says otherwise."""
        self.kill()
        for path, directory in self._directories.items():
            files = {id(file): file for file in directory.volatile.values()}
            files.update((id(file), file) for file in directory.durable.values())
            for names in directory.unsynced:
                files.update((id(file), file) for file in names.values() if file)
            for file in files.values():
                self._crash_file(file, survives)
            for number, names in enumerate(directory.unsynced):
                if survives and survives(Piece("names", path, number)):
                    _rename(directory.durable, names)
            directory.volatile = dict(directory.durable)
            directory.unsynced.clear()

    @staticmethod
    def _crash_file(file: _File, survives: Callable[[Piece], bool] | None) -> None:
        for change in file.unsynced if survives else ():
            for piece in _sectors(change):
                if survives is not None and survives(_piece_of(file, piece)):
                    _carry_out(file.durable, piece)
        file.volatile = bytearray(file.durable)
        file.unsynced.clear()

    def file_bytes(self, path: str) -> bytes:
        """Return what a program would read in the file now."""
        return bytes(self._find(path)[2].volatile)

    def file_sizes(self, path: str) -> dict[str, int]:
        """Return how long each file of the directory is now, in bytes."""
        return {name: len(file.volatile) for name, file in self._directory(path).volatile.items()}

    def put_file(self, path: str, data: bytes) -> None:
        """Set a file, durably, making it and its directory if needed."""
        parent, _, name = path.rpartition("/")
        directory = self._made_directory(parent)
        file = self._new_file(name)
        file.volatile[:] = file.durable[:] = data
        directory.volatile[name] = directory.durable[name] = file

    def move_directory(self, path: str, new_path: str) -> None:
        """Give a directory another path, durably, as somebody beside the program would."""
        self._directories[new_path] = self._directories.pop(path)

    # --- the protocol, as `Disk` describes it --------------------------------------------------

    def make_directory(self, path: str) -> None:
        self._call("make_directory")
        self._made_directory(path)

    def list_directory(self, path: str) -> list[str]:
        self._call("list_directory")
        return list(self._directory(path).volatile)

    def sync_directory(self, path: str) -> None:
        self._call("sync_directory")
        directory = self._directory(path)
        for names in directory.unsynced:
            _rename(directory.durable, names)
        directory.unsynced.clear()

    def lock(self, path: str) -> int:
        self._call("lock")
        for handle, shared in self._shares.items():
            if shared == path:
                raise LockHeldError(handle)
        if path in self._locks:
            raise LockHeldError(self._locks[path])
        directory, name = self._locate(path)
        if name not in directory.volatile:
            self._set_names(directory, {name: self._new_file(name)})
        handle = self._handle(directory.volatile[name], write=True)
        self._locks[path] = handle
        return handle

    def share_lock(self, path: str) -> int:
        self._call("share_lock")
        _, _, file = self._find(path)
        if path in self._locks:
            raise LockHeldError(self._locks[path])
        handle = self._handle(file, write=False)
        self._shares[handle] = path
        return handle

    def lock_directory(self, path: str, *, is_shared: bool = False) -> int:
        self._call("lock_directory")
        node = self._directory(path).node
        if path in self._locks or (not is_shared and path in self._shares.values()):
            raise LockHeldError(None)
        handle = self._handle(node, write=False)
        if is_shared:
            self._shares[handle] = path
        else:
            self._locks[path] = handle
        return handle

    def open(self, path: str, *, write: bool = False) -> int:
        self._call("open")
        return self._handle(self._find(path)[2], write=write)

    def create(self, path: str) -> int:
        self._call("create")
        directory, name = self._locate(path)
        if name in directory.volatile:
            self._set_length(directory.volatile[name], 0)
        else:
            self._set_names(directory, {name: self._new_file(name)})
        return self._handle(directory.volatile[name], write=True)

    def close(self, handle: int, /) -> None:
        try:
            self._call("close")
        finally:
            # As on Linux: a close that fails has closed nonetheless.
            self._file(handle)
            del self._handles[handle]
            self._locks = {path: held for path, held in self._locks.items() if held != handle}
            self._shares.pop(handle, None)

    def size(self, handle: int) -> int:
        self._call("size")
        return len(self._file(handle).volatile)

    def status(self, file: int | str, /) -> FileStatus:
        self._call("status")
        if isinstance(file, str) and file in self._directories:
            return FileStatus(self._directories[file].node.number, is_regular=False, size_bytes=0)
        found = self._file(file) if isinstance(file, int) else self._find(file)[2]
        return FileStatus(found.number, found.is_regular, len(found.volatile))

    def pread(self, handle: int, count: int, offset: int, /) -> bytes:
        fault = self._call("pread")
        count = min(count, fault.short_bytes) if fault else count
        return bytes(self._file(handle).volatile[offset : offset + count])

    def pwrite(self, handle: int, data: bytes, offset: int, /) -> int:
        fault = self._call("pwrite")
        file = self._file(handle, write=True)
        written = data[: fault.short_bytes] if fault else bytes(data)
        space = max(0, len(file.volatile) - offset) + self._space()
        if len(written) > space:
            written = written[:space]
            if not written:
                raise _error(errno.ENOSPC, file.name)
        _overwrite(file.volatile, written, offset)
        file.unsynced.append(_Write(offset, written))
        return len(written)

    def allocate(self, handle: int, size: int) -> None:
        self._call("allocate")
        file = self._file(handle, write=True)
        space = self._space()
        if size - len(file.volatile) > space:
            # As on ext4: the file keeps what it got.
            self._set_length(file, len(file.volatile) + space)
            raise _error(errno.ENOSPC, file.name)
        if size > len(file.volatile):
            self._set_length(file, size)

    def free_bytes(self, path: str) -> int:
        self._directory(path)
        return self._space()

    def truncate(self, handle: int, size: int, /) -> None:
        self._call("truncate")
        self._set_length(self._file(handle, write=True), size)

    def sync(self, handle: int, /) -> None:
        file = self._file(handle)
        self.end_sync(file, len(file.unsynced))

    def end_sync(self, file: _File, covered: int) -> None:
        """Make so many of the changes durable, those before the sync began, or lose them."""
        try:
            self._call("sync")
        except OSError:
            del file.unsynced[:covered]
            raise
        for change in file.unsynced[:covered]:
            _carry_out(file.durable, change)
        del file.unsynced[:covered]

    def rename(self, old_path: str, new_path: str) -> None:
        """Give the file another name in the same directory, replacing what had it."""
        self._call("rename")
        directory, old_name, file = self._find(old_path)
        _, new_name = self._locate(new_path)
        file.name = new_name
        self._set_names(directory, {old_name: None, new_name: file})

    def unlink(self, path: str) -> None:
        self._call("unlink")
        directory, name, _ = self._find(path)
        self._set_names(directory, {name: None})
        # A lock is on the file, not on its name: a new file of that name can be locked.
        self._locks.pop(path, None)
        self._shares = {held: shared for held, shared in self._shares.items() if shared != path}

    def unique_bytes(self, count: int, /) -> bytes:
        """Return bytes that no other journal on this disk has got; the same in every run."""
        self._call("unique_bytes")
        self._identities += 1
        return self._identities.to_bytes(count, "little")

    # --- the inside ---------------------------------------------------------------------------

    def _call(self, verb: str) -> _Fault | None:
        """Count the call; raise or return the fault planned for it."""
        if self._is_off:
            raise PowerCut
        self.call_count += 1
        self.verb_counts[verb] += 1
        fault = self._faults.pop(("", self.call_count), None)
        fault = self._faults.pop((verb, self.verb_counts[verb]), fault)
        if fault and fault.error is not None:
            self._is_off = isinstance(fault.error, PowerCut)
            raise fault.error
        return fault

    def _space(self) -> int:
        if self.capacity_bytes is None:
            return 1 << 62
        used = sum(
            len(file.volatile)
            for directory in self._directories.values()
            for file in directory.volatile.values()
        )
        return max(0, self.capacity_bytes - used)

    def _directory(self, path: str) -> _Directory:
        if path not in self._directories:
            raise _error(errno.ENOENT, path)
        return self._directories[path]

    def _made_directory(self, path: str) -> _Directory:
        if path not in self._directories:
            node = self._new_file(path)
            node.is_regular = False
            self._directories[path] = _Directory(node)
        return self._directories[path]

    def _new_file(self, name: str) -> _File:
        self._last_number += 1
        return _File(name, self._last_number)

    def _locate(self, path: str) -> tuple[_Directory, str]:
        parent, _, name = path.rpartition("/")
        return self._directory(parent), name

    def _find(self, path: str) -> tuple[_Directory, str, _File]:
        directory, name = self._locate(path)
        if name not in directory.volatile:
            raise _error(errno.ENOENT, path)
        return directory, name, directory.volatile[name]

    def _handle(self, file: _File, *, write: bool) -> int:
        self._next_handle += 1
        self._handles[self._next_handle] = (file, write)
        return self._next_handle

    def _file(self, handle: int, *, write: bool = False) -> _File:
        file, may_write = self._handles.get(handle, (None, False))
        if file is None or (write and not may_write):
            raise _error(errno.EBADF, f"handle {handle}")
        return file

    @staticmethod
    def _set_length(file: _File, size: int) -> None:
        _resize(file.volatile, size)
        file.unsynced.append(size)

    @staticmethod
    def _set_names(directory: _Directory, names: dict[str, _File | None]) -> None:
        _rename(directory.volatile, names)
        directory.unsynced.append(names)


def _error(number: int, path: str) -> OSError:
    return OSError(number, errno.errorcode[number], path)


def _rename(entries: dict[str, _File], names: dict[str, _File | None]) -> None:
    for name, file in names.items():
        if file is None:
            entries.pop(name, None)
        else:
            entries[name] = file


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def _carry_out(content: bytearray, change: _Write | int) -> None:
    if isinstance(change, int):
        _resize(content, change)
    else:
        _overwrite(content, change.data, change.offset)


def _sectors(change: _Write | int) -> Iterator[_Write | int]:
    """Cut a write where sectors end; a new length is whole."""
    if isinstance(change, int):
        yield change
        return
    start, end = change.offset, change.offset + len(change.data)
    while start < end:
        stop = min(end, (start // SECTOR_BYTES + 1) * SECTOR_BYTES)
        yield _Write(start, change.data[start - change.offset : stop - change.offset])
        start = stop


def _piece_of(file: _File, change: _Write | int) -> Piece:
    if isinstance(change, int):
        return Piece("length", file.name, change)
    return Piece("bytes", file.name, change.offset)


def _overwrite(content: bytearray, data: bytes, offset: int) -> None:
    if offset > len(content):
        _resize(content, offset)
    content[offset : offset + len(data)] = data
