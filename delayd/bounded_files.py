"""Files that a path names, which may be anything: they are read whole, within a bound.

A pipe that nobody writes to, a terminal and an endless device would hold up the daemon, or fill its
memory. So what is no file is refused before it is waited for.

>>> read_file("/dev/null", 10)
b''
"""

import errno
import os
import stat

from delayd.durations import size_text
from delayd.limits import PEM_FILE_BYTES_MAX

NO_FILE = "it is not a file"
OPEN_TO_OTHERS = stat.S_IWGRP | stat.S_IROTH | stat.S_IWOTH
"""Bits of the mode that a file with secrets must not have."""


def read_file(path: str, bytes_max: int) -> bytes:
    """Return what is in a file. Raises OSError, and ValueError for a path with a NUL.

    /dev/null is an empty file. What is longer than `bytes_max` is an OSError.
    """
    return read_with_mode(path, bytes_max)[0]


def read_with_mode(path: str, bytes_max: int) -> tuple[bytes, int]:
    """Return what is in a file, and its mode. Raises what `read_file` does."""
    handle = open_file(path)
    with open(handle, "rb") as file:
        data = file.read(bytes_max + 1) or b""
        _check_length(len(data), bytes_max, path)
        return data, os.fstat(handle).st_mode


def open_file(path: str) -> int:
    """Open a file for reading, without waiting. Raises OSError and ValueError."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(handle).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISCHR(mode)):
        os.close(handle)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        raise OSError(errno.EINVAL, NO_FILE, path)
    return handle


def must_be_file(path: str) -> None:
    """Raise OSError or ValueError unless it is a regular file, which may be read.

    For what OpenSSL opens itself, and reads to the end: so it has a bound (`PEM_FILE_BYTES_MAX`).
    """
    handle = open_file(path)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, NO_FILE, path)
        _check_length(status.st_size, PEM_FILE_BYTES_MAX, path)
    finally:
        os.close(handle)


def _check_length(file_bytes: int, bytes_max: int, path: str) -> None:
    if file_bytes > bytes_max:
        raise OSError(errno.EFBIG, f"it is longer than {size_text(bytes_max)}", path)
