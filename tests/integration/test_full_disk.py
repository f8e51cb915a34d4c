"""A real daemon on a file system of two megabytes that others fill up, and what it says of that."""

import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from delayd.limits import SPACE_RETRY_MS
from delayd.testing.daemon import Daemon, running_daemon
from tests.http_client import HTTP, HttpClient
from tests.line_client import LineClient

BODY = b"x" * 100
UNMOUNT_S_MAX = 60.0
SHORT = re.compile(
    r"warning no space is left (?:beyond what is kept for removals and snapshots|for long bodies): "
    r"(puts are refused|only puts of short bodies are accepted) "
    r'directory="(?P<directory>[^"]*)" free_bytes=(?P<free>\d+) needed_bytes=(?P<needed>\d+)'
    r"( body_bytes_max=(?P<fits>\d+))?\n"
)


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


def told_of(daemon: Daemon) -> re.Match[str]:
    """What the log says of the space."""
    figures = SHORT.search(daemon.log())
    assert figures, daemon.log()
    return figures


def is_ready(client: HttpClient) -> bool:
    answer = client.ask("GET", "/readyz")
    if answer.status == 200:
        return True
    assert (answer.status, answer.json["word"]) == (503, "NOT_READY")
    return False


def test_a_full_disk_refuses_puts_is_drained_and_takes_puts_again(small_disk: Path) -> None:
    home = small_disk / "data"
    with (
        running_daemon(*HTTP, data_dir=home) as daemon,
        LineClient(daemon.address) as client,
        HttpClient(daemon.http_address) as http,
    ):
        jobs = fill(client)
        assert jobs > 1_000
        other = use_up(small_disk)
        assert client.ask("put 0 0 60", BODY) == "OUT_OF_MEMORY"
        assert not is_ready(http)
        figures = told_of(daemon)
        assert figures["directory"] == str(home)
        assert int(figures["free"]) < int(figures["needed"])
        disk = http.ask("GET", "/v1/stats").json["disk"]
        assert disk["free_bytes"] < disk["needed_bytes"]
        assert client.ask("reserve-with-timeout 0").startswith("RESERVED 1 ")
        assert client.ask("touch 1") == "TOUCHED"
        assert client.ask("bury 1 0") == "BURIED"
        assert client.ask("kick 1") == "KICKED 1"
        assert client.ask("delete 2") == "DELETED"
        assert client.ask("stats-job 2") == "NOT_FOUND"
        daemon.kill()
    with (
        running_daemon(*HTTP, data_dir=home) as daemon,
        LineClient(daemon.address) as client,
        HttpClient(daemon.http_address) as http,
    ):
        told_of(daemon)  # before anybody puts
        assert not is_ready(http)
        assert client.ask("put 0 0 60", BODY) == "OUT_OF_MEMORY"
        drained = 0
        while (reply := client.ask("reserve-with-timeout 0")) != "TIMED_OUT":
            assert client.ask(f"delete {reply.split()[1]}") == "DELETED"
            drained += 1
        assert drained == jobs - 1
        other.unlink()
        time.sleep(SPACE_RETRY_MS / 1_000)
        assert is_ready(http), "it asks though nobody puts"
        assert fill(client) > 100
        assert "there is space again" in daemon.log()


def test_the_log_says_which_puts_are_still_accepted(small_disk: Path) -> None:
    with (
        running_daemon(data_dir=small_disk / "data") as daemon,
        LineClient(daemon.address) as client,
    ):
        client.ask("put 0 0 60", BODY)
        use_up(small_disk)
        long = b"x" * 60_000
        while client.ask("put 0 0 60", long) != "OUT_OF_MEMORY":
            pass
        figures = told_of(daemon)
        assert figures[1] == "only puts of short bodies are accepted"
        fits = int(figures["fits"])
        assert fits < len(long)
        assert client.ask("put 0 0 60", b"x" * (fits + 1)) == "OUT_OF_MEMORY"
        assert client.ask("put 0 0 60", b"x" * fits).startswith("INSERTED")
