"""A real daemon on a file system of two megabytes that others fill up."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from delayd.limits import SPACE_RETRY_MS
from delayd.testing.daemon import running_daemon
from tests.line_client import LineClient

BODY = b"x" * 100
UNMOUNT_S_MAX = 60.0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A directory with a file system of its own."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    path = tmp_path / "small"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "delayd-test", str(path)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield path
    finally:
        # Files of a process that has ended may be closed by the kernel a moment later.
        ends_s = time.monotonic() + UNMOUNT_S_MAX
        while subprocess.run(["umount", str(path)], check=False).returncode:
            assert time.monotonic() < ends_s
            time.sleep(0.05)


def fill(client: LineClient) -> int:
    """Put jobs until that is refused; count them."""
    jobs = 0
    while (reply := client.ask("put 0 0 60", BODY)) != "OUT_OF_MEMORY":
        assert reply.startswith("INSERTED")
        jobs += 1
    return jobs


def use_up(path: Path) -> Path:
    """Let somebody else take the rest of the space."""
    other = path / "other"
    with other.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                continue
    stat = os.statvfs(path)
    assert not stat.f_bavail
    return other


def test_a_full_disk_refuses_puts_is_drained_and_takes_puts_again(small_disk: Path) -> None:
    home = small_disk / "data"
    home.mkdir()
    with running_daemon(data_dir=home) as daemon, LineClient(daemon.address) as client:
        jobs = fill(client)
        assert jobs > 1_000
        other = use_up(small_disk)
        assert client.ask("put 0 0 60", BODY) == "OUT_OF_MEMORY"
        assert client.ask("reserve-with-timeout 0").startswith("RESERVED 1 ")
        assert client.ask("touch 1") == "TOUCHED"
        assert client.ask("bury 1 0") == "BURIED"
        assert client.ask("kick 1") == "KICKED 1"
        assert client.ask("delete 2") == "DELETED"
        assert client.ask("stats-job 2") == "NOT_FOUND"
        daemon.kill()
    with running_daemon(data_dir=home) as daemon, LineClient(daemon.address) as client:
        assert client.ask("put 0 0 60", BODY) == "OUT_OF_MEMORY"
        drained = 0
        while (reply := client.ask("reserve-with-timeout 0")) != "TIMED_OUT":
            assert client.ask(f"delete {reply.split()[1]}") == "DELETED"
            drained += 1
        assert drained == jobs - 1
        other.unlink()
        time.sleep(SPACE_RETRY_MS / 1_000)
        assert client.ask("put 0 0 60", BODY).startswith("INSERTED")
        assert fill(client) > 100


def test_a_daemon_stopped_on_a_full_disk_keeps_its_space(small_disk: Path) -> None:
    home = small_disk / "data"
    home.mkdir()
    with running_daemon(data_dir=home) as daemon, LineClient(daemon.address) as client:
        jobs = fill(client)
        use_up(small_disk)
    use_up(small_disk)
    with running_daemon(data_dir=home) as daemon, LineClient(daemon.address) as client:
        for job_id in range(1, jobs + 1):
            assert client.ask(f"delete {job_id}") == "DELETED"
