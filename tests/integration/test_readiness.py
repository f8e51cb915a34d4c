"""A real daemon says whether it takes jobs: while it drains, and while its disk is full."""

import http.client
import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

from delayd.limits import SPACE_RETRY_MS
from delayd.testing.daemon import Daemon, running_daemon
from tests.integration.test_full_disk import BODY, fill, small_disk, use_up
from tests.line_client import LineClient

__all__ = ("small_disk",)

HTTP = ("--http", "127.0.0.1:0")
SHORT = re.compile(
    r"warning no space is left (?:beyond what is kept for removals and snapshots|for long bodies): "
    r"(puts are refused|only puts of short bodies are accepted) "
    r'directory="(?P<directory>[^"]*)" free_bytes=(?P<free>\d+) needed_bytes=(?P<needed>\d+)'
    r"( body_bytes_max=(?P<fits>\d+))?\n"
)
WAIT_S_MAX = 60.0


def get(daemon: Daemon, path: str) -> tuple[int, Any]:
    """Ask on a connection of its own; status and JSON."""
    connection = http.client.HTTPConnection(*daemon.http_address, timeout=WAIT_S_MAX)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def test_a_daemon_that_drains_lives_and_takes_no_jobs() -> None:
    with running_daemon(*HTTP) as daemon:
        assert get(daemon, "/readyz") == (200, {"status": "ready"})
        os.kill(daemon.process.pid, signal.SIGUSR1)
        deadline = time.monotonic() + WAIT_S_MAX
        while (told := get(daemon, "/readyz"))[0] == 200:
            assert time.monotonic() < deadline
        assert (told[0], told[1]["word"]) == (503, "DRAINING")
        assert get(daemon, "/healthz") == (200, {"status": "ok"})
        status, stats = get(daemon, "/v1/stats")
        assert (status, stats["draining"], stats["pid"]) == (200, True, daemon.process.pid)
        # Its waits end when they are over, and not up to 50 µs later.
        assert Path(f"/proc/{stats['pid']}/timerslack_ns").read_text() == "1\n"


def test_the_figures_tell_what_is_free_where_jobs_are_kept(tmp_path: Path) -> None:
    with running_daemon(*HTTP, data_dir=tmp_path / "data") as daemon:
        disk = get(daemon, "/v1/stats")[1]["disk"]
        assert 0 < disk["needed_bytes"] < disk["free_bytes"]
        assert disk["free_bytes"] % os.statvfs(tmp_path).f_frsize == 0


def test_a_daemon_whose_disk_is_full_is_ready_again_when_there_is_space(small_disk: Path) -> None:
    home = small_disk / "data"
    home.mkdir()
    with running_daemon(*HTTP, data_dir=home) as daemon, LineClient(daemon.address) as client:
        ours = small_disk / "ours"
        ours.write_bytes(bytes(5 << 18))  # more than what a snapshot of the rest would take
        fill(client)
        use_up(small_disk)
        assert client.ask("put 0 0 60", BODY) == "OUT_OF_MEMORY"
        status, problem = get(daemon, "/readyz")
        assert (status, problem["word"]) == (503, "NOT_READY")
        figures = SHORT.search(daemon.log())
        assert figures, daemon.log()
        assert figures["directory"] == str(home)
        assert int(figures["free"]) < int(figures["needed"])
        disk = get(daemon, "/v1/stats")[1]["disk"]
        assert disk["free_bytes"] < disk["needed_bytes"]
        ours.unlink()
        time.sleep(SPACE_RETRY_MS / 1_000)
        assert get(daemon, "/readyz") == (200, {"status": "ready"}), "it asks though nobody puts"


def test_a_start_on_a_full_disk_says_so_before_anybody_puts(small_disk: Path) -> None:
    home = small_disk / "data"
    home.mkdir()
    use_up(small_disk)
    with running_daemon(*HTTP, data_dir=home) as daemon:
        figures = SHORT.search(daemon.log())
        assert figures, daemon.log()
        assert get(daemon, "/readyz")[0] == 503
        (small_disk / "other").unlink()
        time.sleep(SPACE_RETRY_MS / 1_000)
        assert get(daemon, "/readyz") == (200, {"status": "ready"})
        assert "there is space again" in daemon.log()


def test_the_log_says_which_puts_are_still_accepted(small_disk: Path) -> None:
    home = small_disk / "data"
    home.mkdir()
    with running_daemon(*HTTP, data_dir=home) as daemon, LineClient(daemon.address) as client:
        client.ask("put 0 0 60", BODY)
        use_up(small_disk)
        long = b"x" * 60_000
        while client.ask("put 0 0 60", long) != "OUT_OF_MEMORY":
            pass
        figures = SHORT.search(daemon.log())
        assert figures, daemon.log()
        assert figures[1] == "only puts of short bodies are accepted"
        fits = int(figures["fits"])
        assert fits < len(long)
        assert client.ask("put 0 0 60", b"x" * (fits + 1)) == "OUT_OF_MEMORY"
        assert client.ask("put 0 0 60", b"x" * fits).startswith("INSERTED")
