"""A real daemon on a virtual clock: a kill on its way, and the program of docs/testing.md."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from delayd.testing.daemon import running_daemon
from tests.line_client import LineClient

TESTING: Final = (Path(__file__).parents[2] / "docs" / "testing.md").read_text(encoding="utf-8")


def test_killed_on_its_way_it_has_lost_no_job_and_fired_none_early(tmp_path: Path) -> None:
    jobs = 3_000
    with (
        running_daemon(data_dir=tmp_path, clock="virtual") as daemon,
        LineClient(daemon.address) as client,
        LineClient(daemon.address) as worker,
    ):
        start_s = daemon.advance(0)
        for delay_s in range(1, jobs + 1):
            client.send(b"put 0 %d 60 1\r\nx\r\n" % delay_s)
        for _ in range(jobs):
            assert client.reply().startswith(b"INSERTED ")
        worker.send(b"reserve\r\ndelete 1\r\n" + b"reserve\r\n" * jobs)
        client.send(b"advance-clock %d\r\n" % (2 * jobs))
        assert worker.reply() == b"RESERVED 1 1\r\nx\r\n"
        assert worker.reply() == b"DELETED\r\n"
        daemon.kill()
    with (
        running_daemon(data_dir=tmp_path, clock="virtual") as daemon,
        LineClient(daemon.address) as client,
    ):
        passed_s = daemon.advance(0) - start_s
        assert 1 <= passed_s <= 2 * jobs
        stats = client.stats()
        assert int(stats["current-jobs-delayed"]) == max(0, jobs - int(passed_s + 0.0005))
        daemon.advance(2 * jobs + 60)
        assert client.stats()["current-jobs-ready"] == str(jobs - 1)


def test_the_program_of_the_page_works() -> None:
    program = re.findall(r"```python\n(.*?)```", TESTING, re.DOTALL)[0]
    ran = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=120
    )
    assert ran.stdout == "not yet\nreview order 4711\n"
