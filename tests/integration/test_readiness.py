"""A real daemon that drains takes no jobs, and says so; `test_full_disk`: and without space."""

import os
import signal
from pathlib import Path

from delayd.testing.daemon import running_daemon
from tests.http_client import HTTP, HttpClient
from tests.line_client import LineClient
from tests.rigs.waiting import until


def test_a_daemon_that_drains_lives_and_takes_no_jobs(tmp_path: Path) -> None:
    with (
        running_daemon(*HTTP, data_dir=tmp_path) as daemon,
        HttpClient(daemon.http_address) as client,
        LineClient(daemon.address) as line,
    ):
        line.put(b"before")
        assert line.stats()["draining"] == "false"
        assert client.ask("GET", "/readyz").json == {"status": "ready"}
        for said in ("info draining: new jobs are refused\n", "info already draining\n"):
            daemon.process.send_signal(signal.SIGUSR1)
            until(lambda: said in daemon.log())  # noqa: B023 - within the turn
        assert line.stats()["draining"] == "true"
        assert line.ask("put 0 0 60", b"after") == "DRAINING"
        assert line.ask("reserve") == "RESERVED 1 6\r\nbefore"
        told = client.ask("GET", "/readyz")
        assert (told.status, told.json["word"]) == (503, "DRAINING")
        assert client.ask("GET", "/healthz").json == {"status": "ok"}
        stats = client.ask("GET", "/v1/stats").json
        assert (stats["draining"], stats["pid"]) == (True, daemon.process.pid)
        # Its waits end when they are over, and not up to 50 µs later.
        assert Path(f"/proc/{stats['pid']}/timerslack_ns").read_text() == "1\n"
        assert 0 < stats["disk"]["needed_bytes"] < stats["disk"]["free_bytes"]
        assert stats["disk"]["free_bytes"] % os.statvfs(tmp_path).f_frsize == 0
