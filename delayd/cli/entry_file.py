"""Changing a file of tokens or secrets: one writer at a time, and either the old file or the new.

    lock FILE.lock ─► read FILE ─► write FILE.new, sync ─► rename to FILE, sync its directory

A daemon that reads meanwhile, and a machine that loses power, find one of the two whole. Only the
owner can read the new file (0600). The `Disk` is the journal's, so that a simulated one can fail
here as well. The module does not know the meaning of entries.
"""

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterable
from typing import Final

import click

from delayd.access.entry_file import E, EntryFile
from delayd.access.errors import AccessInvalid
from delayd.cli.parameters import Run, takes
from delayd.cli.terminal import CommandFailed, load_config
from delayd.exits import Exit
from delayd.journal.disk import Disk, LockHeldError, RealDisk

LOCK_SUFFIX: Final = ".lock"
DRAFT_SUFFIX: Final = ".new"
RELOAD: Final = "a running daemon reads the file again on SIGHUP: systemctl reload delayd"


def with_file(setting: str) -> Callable[[Run], Run]:
    """Give a command the options that say where a file is, and call it with the `path`."""
    name = setting.rpartition(".")[2]
    options = (
        click.option(f"--{name}", "file_path", metavar="FILE", help=f"The {name} file."),
        click.option(
            "--config", "config_path", metavar="FILE", help="The configuration that names it."
        ),
    )

    def decorate(command: Run) -> Run:
        @functools.wraps(command)
        def run(file_path: str | None, config_path: str | None, **rest: object) -> int | None:
            if file_path is None:
                file_path = getattr(load_config(config_path, {}), setting.replace(".", "_"))
            if not file_path:
                why = f"{setting} is off" if config_path else f"no {name} file is known"
                raise CommandFailed(Exit.USAGE, f"{why}: --{name} FILE names one, or {setting}")
            # If the name is a link, change the file that it points to, and not the link.
            return command(path=os.path.realpath(file_path), **rest)

        return takes(*options)(run)

    return decorate


def print_once(secret: str, kind: str, undo: str) -> None:
    """Print a secret that is shown only once. Raises `CommandFailed`, which says how to undo it."""
    try:
        sys.stdout.write(f"{secret}\n")
        sys.stdout.flush()
    except OSError as error:
        why = f"the {kind} could not be printed ({error.strerror}): {undo}"
        raise CommandFailed(Exit.OUTPUT_FAILED, why) from error


def change_or_fail(
    form: EntryFile[E], path: str, alter: Callable[[tuple[E, ...]], Iterable[E]]
) -> None:
    """Change the file for a command, and keep its owner. Raises `CommandFailed`."""
    try:
        change(form, RealDisk(), path, alter, lambda handle: _give_away(path, handle))
    except AccessInvalid as error:
        raise CommandFailed(Exit.BAD_CONFIGURATION, *error.errors) from None
    except LockHeldError as error:
        reason = f"{path}: {error.holder} is changing it: try again"
        raise CommandFailed(Exit.DIRECTORY_LOCKED, reason) from None
    except OSError as error:
        reason = f"{path}: cannot be changed: {error.strerror or error}"
        raise CommandFailed(Exit.BAD_CONFIGURATION, reason) from None


def must_exist(path: str) -> None:
    """Refuse to change a file that is not there; before the lock, whose file would be left over.

    Raises `CommandFailed`.
    """
    if os.path.isdir(os.path.dirname(path)) and not os.path.exists(path):
        raise CommandFailed(
            Exit.BAD_CONFIGURATION, f"{path}: cannot be read: No such file or directory"
        )


def change(
    form: EntryFile[E],
    disk: Disk,
    path: str,
    alter: Callable[[tuple[E, ...]], Iterable[E]],
    own: Callable[[int], None] | None = None,
) -> None:
    """Replace the entries of the file by those that `alter` returns; durable on return.

    A missing file has no entries. `own` may give the new file, before it is renamed, to the owner
    of the old one. If `alter` or `own` raises, nothing has changed. Raises `form.invalid` for an
    invalid file, the disk's error for a held lock, `OSError`.
    """
    lock = disk.lock(path + LOCK_SUFFIX)
    try:
        entries = tuple(alter(read(form, disk, path)))
        if len(entries) > form.entries_max:
            raise form.invalid([f"{path}: has {form.entries_max} {form.plural}, and no more fit"])
        data = form.to_bytes(entries)
        if len(data) > form.bytes_max:  # no daemon would read it
            raise form.invalid([f"{path}: would be longer than {form.bytes_max} bytes"])
        draft = path + DRAFT_SUFFIX
        # One that a crash left behind may be readable by others.
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(draft)
        try:
            _write(disk, draft, data, own)
            disk.rename(draft, path)
        except Exception:
            with contextlib.suppress(OSError):
                disk.unlink(draft)
            raise
        disk.sync_directory(os.path.dirname(path) or ".")
    finally:
        disk.close(lock)


def read(form: EntryFile[E], disk: Disk, path: str) -> tuple[E, ...]:
    """Return the entries of the file; none if it is not there. Raises `form.invalid`, `OSError`.

    Its mode may be wrong: writing it again repairs that.
    """
    try:
        handle = disk.open(path)
    except FileNotFoundError:
        return ()
    data = b""
    try:
        while len(data) <= form.bytes_max:
            more = disk.pread(handle, form.bytes_max, len(data))
            if not more:
                return form.from_bytes(data, path)
            data += more
    finally:
        disk.close(handle)
    raise form.invalid([f"{path}: is longer than {form.bytes_max} bytes"])


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


def _give_away(path: str, handle: int) -> None:
    """Give a file that replaces another the same owner; raises `OSError` if that fails.

    Otherwise root, creating a token, would lock the daemon out of its file. For the same reason a
    new file of root's gets the owner of its directory.
    """
    try:
        old = os.stat(path)
    except FileNotFoundError:
        if os.geteuid() != 0:
            return
        old = os.stat(os.path.dirname(path))
    new = os.fstat(handle)
    if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
        os.fchown(handle, old.st_uid, old.st_gid)
