"""What keeps the daemon from serving ends it with a code of its own, and a sentence says why."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from delayd.exits import Exit
from delayd.journal.recovery import NO_HEADER, NO_LOG
from delayd.limits import DESCRIPTORS_MIN
from delayd.testing.daemon import Daemon, DaemonNotStarted, running_daemon
from tests.line_client import LineClient

SERVE = (sys.executable, "-m", "delayd", "serve", "--line", "127.0.0.1:0", "--http", "off")


def refusal(*flags: str, data_dir: Path) -> DaemonNotStarted:
    with pytest.raises(DaemonNotStarted) as caught, running_daemon(*flags, data_dir=data_dir):
        pass
    return caught.value


def contents(directory: Path) -> dict[str, tuple[bytes, int]]:
    """Every file of the journal, with what is in it and when that was changed."""
    return {
        path.name: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in directory.iterdir()
        if path.name not in {"lock", "log-end"}
    }


# --- The data directory --------------------------------------------------------------------------


def test_a_second_daemon_on_a_directory_exits_75_and_the_first_is_unharmed(tmp_path: Path) -> None:
    with running_daemon(data_dir=tmp_path) as daemon, LineClient(daemon.address) as client:
        client.put(b"hello")
        before = contents(tmp_path)
        second = refusal(data_dir=tmp_path)
        assert second.exit_code == Exit.DIRECTORY_LOCKED
        assert f"{tmp_path}/lock" in second.log
        assert str(daemon.pid) in second.log
        assert contents(tmp_path) == before
        client.put(b"still here")
        daemon.kill()
    with running_daemon(data_dir=tmp_path) as daemon, LineClient(daemon.address) as client:
        assert client.ask("peek 2") == "FOUND 2 10\r\nstill here"


def test_a_log_that_is_gone_begins_anew_when_nothing_tells_of_it(tmp_path: Path) -> None:
    segment = tmp_path / "segment-0000000001.log"
    segment.touch()
    with running_daemon(data_dir=tmp_path) as daemon, LineClient(daemon.address) as client:
        assert f"warning {NO_LOG} found=" in daemon.log()
        assert f'warning {NO_HEADER} found="{segment}: 0 bytes"' in daemon.log()
        client.put(b"anew")


def test_a_directory_that_is_not_ours_exits_65_at_once_and_nothing_is_made_in_it(
    tmp_path: Path,
) -> None:
    os.mkfifo(tmp_path / "lock")
    refused = refusal(data_dir=tmp_path)
    assert refused.exit_code == Exit.CORRUPT_JOURNAL
    assert f"{tmp_path}/lock is no file but a directory, pipe or device" in refused.log
    assert "journal check" not in refused.log, "there is no journal to look into"
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_a_directory_that_cannot_be_made_exits_74(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    refused = refusal(data_dir=tmp_path / "file" / "data")
    assert refused.exit_code == Exit.JOURNAL_FAILED
    assert str(tmp_path / "file" / "data") in refused.log


def test_a_damaged_journal_exits_65_and_nothing_is_touched(tmp_path: Path) -> None:
    with running_daemon(data_dir=tmp_path) as daemon, LineClient(daemon.address) as client:
        for number in range(3):
            client.put(b"body number %d" % number)
        daemon.kill()
    (segment,) = tmp_path.glob("*.log")
    damaged = bytearray(segment.read_bytes())
    damaged[damaged.index(b"body number 1")] ^= 1
    segment.write_bytes(damaged)
    before = contents(tmp_path)
    for _ in range(2):
        refused = refusal(data_dir=tmp_path)
        assert refused.exit_code == Exit.CORRUPT_JOURNAL
        assert f"{segment} at offset" in refused.log
        assert f'more="delayd journal check {tmp_path}"' in refused.log
        assert (tmp_path / "lock").read_bytes() == b"", "nobody holds it any more"
        assert contents(tmp_path) == before


# --- Disks that fail while it serves -------------------------------------------------------------


def put_until_it_ends(daemon: Daemon) -> list[int]:
    """Ids of the jobs whose put was acknowledged before the connection broke."""
    job_ids = []
    with LineClient(daemon.address) as client:
        for _ in range(10_000):
            try:
                answer = client.ask("put 0 0 60", b"x" * 1_000)
            except (OSError, EOFError):
                break
            if not answer.startswith("INSERTED "):
                break
            job_ids.append(int(answer.removeprefix("INSERTED ")))
    return job_ids


def check_all_there(directory: Path, job_ids: list[int]) -> None:
    with running_daemon(data_dir=directory) as daemon, LineClient(daemon.address) as client:
        for job_id in job_ids:
            assert client.ask(f"delete {job_id}") == "DELETED"


def test_a_write_that_fails_exits_74_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    with running_daemon("--sync", "interval", data_dir=tmp_path) as daemon:
        bystander = LineClient(daemon.address)
        assert bystander.put(b"makes the first file") == 1
        resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (200_000, 200_000))
        job_ids = put_until_it_ends(daemon)
        assert daemon.process.wait(60) == Exit.JOURNAL_FAILED
        assert "the journal failed" in daemon.log()
        assert "Traceback" not in daemon.log()
        assert bystander.reply() == b""
        bystander.close()
    assert 100 < len(job_ids) < 200
    check_all_there(tmp_path, [1, *job_ids])


# --- What the process may have -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "descriptors"), [("delayd serve", 6), ("delayd-beanstalkd", DESCRIPTORS_MIN - 1)]
)
def test_too_few_descriptors_exit_78_and_name_the_limit(
    command: str, descriptors: int, tmp_path: Path
) -> None:
    words = [*SERVE, "--data-dir", str(tmp_path / "data")]
    if command == "delayd-beanstalkd":
        script = "from delayd.__main__ import beanstalkd; beanstalkd()"
        words = [sys.executable, "-c", script, "-p", "0"]
    limited = ["sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh", *words]
    ran = subprocess.run(limited, capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == Exit.BAD_CONFIGURATION
    said = f"the process may open only {descriptors} files and connections, and needs at least"
    assert ran.stderr.startswith(f"{command.split(maxsplit=1)[0]}: {said} {DESCRIPTORS_MIN}: ")
    assert not (tmp_path / "data").exists()


def test_a_daemon_serves_with_as_few_descriptors_as_it_says(tmp_path: Path) -> None:
    words = [*SERVE[:-1], "127.0.0.1:0", "--data-dir", str(tmp_path / "data")]
    limited = ["sh", "-c", f'ulimit -n {DESCRIPTORS_MIN}; exec "$@"', "sh", *words]
    with Daemon(limited) as daemon, LineClient(daemon.address) as client:
        client.put(b"hello")
        assert daemon.stop() == Exit.OK
