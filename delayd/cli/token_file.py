"""Changing the tokens file: one writer at a time, and either the old file or the new one.

    lock FILE.lock ─► read FILE ─► write FILE.new, sync ─► rename to FILE, sync its directory

A daemon that reads meanwhile, and a machine that loses power, find one of the two whole. Only the
owner can read the new file (0600). The `Disk` is the journal's, so that a simulated one can fail
here as well. The module refuses to know what entries mean.
"""

import contextlib
import os
from collections.abc import Callable, Iterable
from typing import Final

from delayd.access.errors import TokensInvalid
from delayd.access.token_entries import Entry, from_bytes, to_bytes
from delayd.journal.disk import Disk
from delayd.limits import TOKENS_FILE_BYTES_MAX, TOKENS_MAX

LOCK_SUFFIX: Final = ".lock"
DRAFT_SUFFIX: Final = ".new"


def change(
    disk: Disk,
    path: str,
    alter: Callable[[tuple[Entry, ...]], Iterable[Entry]],
    own: Callable[[int], None] | None = None,
) -> None:
    """Put what `alter` makes of the entries into the file; it is durable when this returns.

    A missing file has no entries. `own` may give the new file, before it is renamed, to the owner
    of the old one. If `alter` or `own` raises, nothing has changed. Raises `TokensInvalid` for an
    invalid file, what the disk raises for a held lock, `OSError`.
    """
    lock = disk.lock(path + LOCK_SUFFIX)
    try:
        entries = tuple(alter(read(disk, path)))
        if len(entries) > TOKENS_MAX:
            raise TokensInvalid([f"{path}: has {TOKENS_MAX} tokens, and no more fit"])
        draft = path + DRAFT_SUFFIX
        # One that a crash left behind may be readable by others.
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(draft)
        try:
            _write(disk, draft, to_bytes(entries), own)
            disk.rename(draft, path)
        except Exception:
            with contextlib.suppress(OSError):
                disk.unlink(draft)
            raise
        disk.sync_directory(os.path.dirname(path) or ".")
    finally:
        disk.close(lock)


def read(disk: Disk, path: str) -> tuple[Entry, ...]:
    """Return the entries of the file; none if it is not there. Raises `TokensInvalid`, `OSError`.

    Its mode may be wrong: writing it again repairs that.
    """
    try:
        handle = disk.open(path)
    except FileNotFoundError:
        return ()
    data = b""
    try:
        while len(data) <= TOKENS_FILE_BYTES_MAX:
            more = disk.pread(handle, TOKENS_FILE_BYTES_MAX, len(data))
            if not more:
                return from_bytes(data, path)
            data += more
    finally:
        disk.close(handle)
    raise TokensInvalid([f"{path}: is longer than {TOKENS_FILE_BYTES_MAX} bytes"])


def _write(disk: Disk, path: str, data: bytes, own: Callable[[int], None] | None) -> None:
    handle = disk.create(path)
    try:
        if own is not None:
            own(handle)
        written_bytes = 0
        while written_bytes < len(data):
            written_bytes += disk.pwrite(handle, data[written_bytes:], written_bytes)
        disk.sync(handle)
    finally:
        disk.close(handle)
