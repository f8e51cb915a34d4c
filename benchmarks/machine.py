"""What figures depend on: the commit, the machine, its disk, and the versions of the peers."""

import os
import platform
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from delayd import __version__

SYNC_SAMPLES: Final = 100
BLOCK: Final = bytes(4096)
ROOT: Final = Path(__file__).parent.parent
PEERS: Final = ("beanstalkd", "redis-server", "rabbitmq-server", "postgresql-1?")
"""Debian's packages of the peers."""


def fdatasync_ms(directory: Path) -> float:
    """Return the median time of a synced 4 KiB append on the disk that is measured."""
    samples: list[float] = []
    with tempfile.TemporaryFile(dir=directory) as file:
        for _ in range(SYNC_SAMPLES):
            began = time.perf_counter()
            os.write(file.fileno(), BLOCK)
            os.fdatasync(file.fileno())
            samples.append(time.perf_counter() - began)
    return statistics.median(samples) * 1e3


def file_system(directory: Path) -> str:
    """Return the type of the file system that a folder is on."""
    fits: list[tuple[int, str]] = []
    for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines():
        _, mounted, kind, *_ = line.split()
        if directory.resolve().is_relative_to(mounted):
            fits.append((len(mounted), kind))
    return max(fits, default=(0, "unknown"))[1]


def processor() -> str:
    """Return what the processor calls itself."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def peers() -> list[str]:
    """Return the peers that are installed: `beanstalkd 1.12-2`."""
    if shutil.which("dpkg-query") is None:
        return []
    command = ["dpkg-query", "--show", "--showformat", "${Package} ${Version}\n", *PEERS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return [line for line in done.stdout.splitlines() if not line.endswith(" ")]


def commit() -> str:
    """Return the commit that is measured, with `+` if files differ from it."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(ROOT), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", "delayd")
    return git("rev-parse", "--short=10", "HEAD") + ("+" if changed else "")


def describe(directory: Path) -> dict[str, Any]:
    """Return all of it; measures the disk under `directory`."""
    return {
        "commit": commit(),
        "delayd": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": processor(),
        "processors": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "disk": file_system(directory),
        "synced_append_ms": round(fdatasync_ms(directory), 3),
        "load_before": round(os.getloadavg()[0], 2),
        "peers": peers(),
    }
