"""A real daemon says whether it takes jobs while it drains; `test_full_disk`: and without space."""

import os
import signal
from pathlib import Path

from delayd.testing.daemon import running_daemon
from tests.http_client import HTTP, HttpClient
from tests.rigs.waiting import until


def test_a_daemon_that_drains_lives_and_takes_no_jobs(tmp_path: Path) -> None:
    with (
        running_daemon(*HTTP, data_dir=tmp_path) as daemon,
        HttpClient(daemon.http_address) as client,
    ):
        assert client.ask("GET", "/readyz").json == {"status": "ready"}
        daemon.process.send_signal(signal.SIGUSR1)
        until(lambda: client.ask("GET", "/readyz").status != 200)
        told = client.ask("GET", "/readyz")
        assert (told.status, told.json["word"]) == (503, "DRAINING")
        assert client.ask("GET", "/healthz").json == {"status": "ok"}
        stats = client.ask("GET", "/v1/stats").json
        assert (stats["draining"], stats["pid"]) == (True, daemon.process.pid)
        # Its waits end when they are over, and not up to 50 µs later.
        assert Path(f"/proc/{stats['pid']}/timerslack_ns").read_text() == "1\n"
        assert 0 < stats["disk"]["needed_bytes"] < stats["disk"]["free_bytes"]
        assert stats["disk"]["free_bytes"] % os.statvfs(tmp_path).f_frsize == 0
