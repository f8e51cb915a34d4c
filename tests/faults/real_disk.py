"""File systems that are attacked: on loop devices that lose power, and small ones in memory.

    with loop_disk(tmp_path) as disk:
        ...a daemon works in disk.home...
        disk.cut_power()          # whatever was not synced is gone
        daemon.kill()
        disk.power_on()           # mounts again: the file system replays its own journal

The cut is the file system's own SHUTDOWN request: from that moment on nothing reaches the device,
neither data nor, unless asked for, the file system's log. Before it, `scatter` has the system write
back some pages of some files at random, as it does by itself all the time: so later pages are on
the disk and earlier ones are not.

It needs root. Everything is unmounted and detached in the end, whatever happens. The module refuses
to know what is in the files.
"""

import contextlib
import ctypes
import enum
import fcntl
import os
import random
import re
import struct
import subprocess
import time
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.faults.real_daemon import need, need_root

SHUTDOWN_REQUEST: Final = 0x8004587D
"""_IOR('X', 125, __u32): ext4, XFS and others understand it."""

IMAGE_BYTES: Final = {"ext4": 256 << 20, "xfs": 320 << 20}
"""The images are sparse and lie in memory."""

MAKE: Final = {
    "ext4": ("mkfs.ext4", "-q", "-F", "-b", "4096", "-J", "size=4", "-E", "lazy_itable_init=0"),
    "xfs": ("mkfs.xfs", "-q", "-f"),
}
PUNCH_HOLE_AND_KEEP_SIZE: Final = 3
THROTTLE: Final = Path("/sys/fs/cgroup/blkio/blkio.throttle.write_iops_device")
SPACE_BESIDE_BYTES: Final = 1 << 20
"""Beside an image that has all its space: for the ballast."""

UNMOUNT_S_MAX: Final = 60.0
PAGE_BYTES: Final = 4096
SYNC_FILE_RANGE_WRITE: Final = 2


class Cut(enum.IntEnum):
    """How the power goes, as far as the file system's own log is concerned."""

    AFTER_LOG = 1
    """Its log is written out: names and lengths are new, data may be missing."""

    AT_ONCE = 2
    """Nothing more is written: a real power cut."""


def run(*command: str, fine: Container[int] = (0,)) -> str:
    """Run a command of the system and return what it says; an error quotes it."""
    words = [need(command[0]), *command[1:]]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode not in fine:
        raise OSError(f"{' '.join(words)} exited with {done.returncode}: {done.stderr.strip()}")
    return done.stdout.strip()


def write_back(path: Path, offset: int, count: int) -> None:
    """Have the system begin to write these bytes of the file to the device."""
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = (ctypes.c_int64(offset), ctypes.c_int64(count))
    with contextlib.suppress(OSError), path.open("rb") as file:
        libc.sync_file_range(file.fileno(), *arguments, SYNC_FILE_RANGE_WRITE)


def punch_hole(handle: int, offset: int, count: int) -> None:
    """Give the place of these bytes back."""
    libc = ctypes.CDLL(None, use_errno=True)
    where = (ctypes.c_int64(offset), ctypes.c_int64(count))
    if libc.fallocate(handle, PUNCH_HOLE_AND_KEEP_SIZE, *where):
        raise OSError(ctypes.get_errno(), "a hole cannot be punched")


def fill(path: Path) -> None:
    """Take all the space that is left."""
    with contextlib.suppress(OSError), path.open("ab", buffering=0) as file:
        while file.write(bytes(PAGE_BYTES)):
            pass


def extents_of(path: Path) -> list[tuple[int, int, int]]:
    """Return (offset in the file, offset on the device, length) of its pieces, in bytes."""
    said = run("filefrag", "-e", "-b1", str(path))
    found = re.findall(r"^ *\d+: +(\d+)\.\. *\d+: +(\d+)\.\. *\d+: +(\d+):", said, re.MULTILINE)
    return [(int(logical), int(physical), int(length)) for logical, physical, length in found]


class LoopDisk:
    """A file system on a loop device; `loop_disk` makes it and takes it away."""

    def __init__(self, folder: Path, kind: str, options: str, solid_bytes: int) -> None:
        self.is_solid = bool(solid_bytes)
        self.image_bytes = solid_bytes or IMAGE_BYTES[kind]
        self.kind = kind
        self.options = options
        self.image = folder / "image"
        self.mount_point = folder / "disk"
        self.device = ""
        self.is_mounted = False
        self.cuts = 0

    @property
    def home(self) -> Path:
        """The directory for a daemon."""
        return self.mount_point / "data"

    def make(self) -> None:
        """Make the image and its file system, and mount it."""
        self.mount_point.mkdir()
        self.image.touch()
        os.truncate(self.image, self.image_bytes)
        run(*MAKE[self.kind], str(self.image))
        if self.is_solid:
            with self.image.open("r+b") as image:
                os.posix_fallocate(image.fileno(), 0, self.image_bytes)
        self.device = run("losetup", "--find", "--show", str(self.image))
        if self.is_solid:
            # The loop driver takes a write that ends in the middle for a good one: so each write is
            # of one page, which has a place or has none.
            queue = Path("/sys/block") / Path(self.device).name / "queue"
            (queue / "max_sectors_kb").write_text(f"{PAGE_BYTES // 1024}\n")
        self.power_on()

    def power_on(self) -> None:
        """Mount it: the file system recovers."""
        run("mount", "-t", self.kind, "-o", self.options, self.device, str(self.mount_point))
        self.is_mounted = True

    def cut_power(self, cut: Cut = Cut.AT_ONCE) -> None:
        """From now on nothing reaches the device; whoever syncs hears of an error."""
        handle = os.open(self.mount_point, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(handle, SHUTDOWN_REQUEST, struct.pack("I", cut))
        finally:
            os.close(handle)
        self.cuts += 1

    def power_off(self) -> None:
        """Unmount what has lost its power; whoever had files open there has ended."""
        until_s = time.monotonic() + UNMOUNT_S_MAX
        while True:
            try:
                run("umount", str(self.mount_point))
            except OSError:
                if time.monotonic() > until_s:
                    raise
                time.sleep(0.005)
            else:
                self.is_mounted = False
                return

    def scatter(self, rng: random.Random, directory: Path) -> None:
        """Have some pages of some files in the directory written back."""
        with contextlib.suppress(OSError):
            for path in sorted(directory.iterdir()):
                if rng.random() < 0.5:
                    page = rng.randrange(1 + path.stat().st_size // PAGE_BYTES)
                    write_back(path, page * PAGE_BYTES, PAGE_BYTES * rng.choice((1, 1, 4, 64)))

    def lose(self, path: Path, first_byte: int) -> int:
        """Let the device have no place for what is written to the file from a byte on.

        What stands in the file before its next page is as good as ever. Returns how many bytes; 0,
        and nothing has changed, where the file has no page behind that byte.
        The image lies on a file system that is full: a write to a hole in it fails, as on a disk
        with bad sectors, and the system hears of it when it has long said that the write was done.

        Whoever writes to the file must stand still meanwhile: what is written behind the byte
        before its place is taken away, and synced, is lost without anybody's fault but ours. That
        this happened looks just like a sync that lied.
        """
        lost = 0
        for logical, physical, length in extents_of(path):
            begin = max(logical, -(-first_byte // PAGE_BYTES) * PAGE_BYTES)
            if begin < logical + length:
                with self.image.open("r+b") as image:
                    punch_hole(image.fileno(), physical + begin - logical, logical + length - begin)
                lost += logical + length - begin
        if lost:
            fill(self.image.with_name("ballast"))
        return lost

    def find_again(self) -> None:
        """Let the device take everything again."""
        self.image.with_name("ballast").unlink()

    def slow_down(self, operations_per_s: int) -> None:
        """Let the device do no more than this; 0 for as fast as it can."""
        device = os.stat(self.device).st_rdev
        line = f"{os.major(device)}:{os.minor(device)} {operations_per_s}\n"
        try:
            THROTTLE.write_text(line)
        except OSError as error:
            pytest.skip(f"devices cannot be slowed down here: {error}")

    def remove(self) -> None:
        """Take everything away, in whatever state it is."""
        with contextlib.suppress(OSError):
            if self.is_mounted:
                run("umount", "--lazy", str(self.mount_point))
        if self.device:
            run("losetup", "--detach", self.device)
        self.image.unlink(missing_ok=True)
        self.mount_point.rmdir()


@contextlib.contextmanager
def loop_disk(
    folder: Path, kind: str = "ext4", *, options: str = "rw", solid_bytes: int = 0
) -> Iterator[LoopDisk]:
    """A file system of its own on a loop device, or a skip with the reason.

    With `solid_bytes` the image has this size, and all its space from the beginning.
    """
    need_root()
    need(MAKE[kind][0])
    with contextlib.ExitStack() as stack:
        size = f"size={solid_bytes + SPACE_BESIDE_BYTES}" if solid_bytes else "size=1g"
        folder = stack.enter_context(small_disk(folder, size, "memory"))
        disk = LoopDisk(folder, kind, options, solid_bytes)
        stack.callback(disk.remove)
        try:
            disk.make()
        except OSError as error:
            pytest.skip(f"a file system cannot be mounted on a loop device here: {error}")
        yield disk


@contextlib.contextmanager
def small_disk(folder: Path, options: str, name: str = "small") -> Iterator[Path]:
    """A file system in memory, of this size (`size=2m,nr_inodes=20`), or a skip."""
    need_root()
    path = folder / name
    path.mkdir()
    try:
        run("mount", "-t", "tmpfs", "-o", options, "delayd-test", str(path))
    except OSError as error:
        path.rmdir()
        pytest.skip(f"a small file system cannot be mounted here: {error}")
    try:
        yield path
    finally:
        run("umount", "--lazy", str(path))
        path.rmdir()
