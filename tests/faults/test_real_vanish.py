"""T-V: files and directories that vanish below a daemon, or while it is stopped."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from delayd.exits import Exit
from delayd.limits import LOOK_MS
from delayd.testing.daemon import Daemon
from tests.faults.conftest import Runs
from tests.faults.real_daemon import refused, wait_for_exit
from tests.faults.real_load import wait_for_log_end
from tests.http_client import HTTP, HttpClient
from tests.journal.journals import frame_ends
from tests.line_client import LineClient
from tests.rigs.process import daemon_of

JOBS: Final = 30
Damage = Callable[[Path], object]
INTERVAL: Final = pytest.param("interval", marks=pytest.mark.long)
NEVER: Final = pytest.param("never", marks=pytest.mark.long)
ENDS: Final = (Daemon.stop, Daemon.kill)


def with_ends(*damages: Callable[..., object]) -> list[object]:
    """Each damage with each end; in the short run with one of them, by turns."""
    return [
        pytest.param(damage, end, marks=pytest.mark.long if (place + which) % 2 else ())
        for place, damage in enumerate(damages)
        for which, end in enumerate(ENDS)
    ]


def newest(directory: Path) -> Path:
    """The file of the log that is written to."""
    return max(directory.glob("segment-*.log"))


def put(client: LineClient, jobs: int) -> int:
    """Put jobs until that is no longer acknowledged; return the highest id that was."""
    last_id = 0
    for number in range(jobs):
        try:
            client.send(b"put 0 0 60 6\r\n%06d\r\n" % number)
            reply = client.reply()
        except OSError:
            reply = b""
        if not reply.startswith(b"INSERTED "):
            break
        last_id = int(reply.split()[1])
    return last_id


def jobs_in(daemon: Daemon) -> int:
    with LineClient(daemon.address) as client:
        return int(client.stats()["current-jobs-ready"])


def ready(daemon: Daemon) -> int:
    with HttpClient(daemon.http_address) as client:
        return client.ask("GET", "/readyz").status


# --- Below a running daemon ----------------------------------------------------------------------


def removed(directory: Path) -> None:
    newest(directory).unlink()


def all_removed(directory: Path) -> None:
    for path in directory.iterdir():
        path.unlink(missing_ok=True)  # the daemon may have begun to write others


def replaced(directory: Path) -> None:
    copy = directory / "copy"
    shutil.copyfile(newest(directory), copy)
    copy.rename(newest(directory))


def cut(directory: Path) -> None:
    with newest(directory).open("r+b") as file:
        file.truncate(500)


def overwritten(directory: Path) -> None:
    with newest(directory).open("r+b") as file:
        file.seek(500)
        file.write(bytes(100_000))


@pytest.mark.parametrize("policy", ["always", INTERVAL, NEVER])
@pytest.mark.parametrize(
    ("damage", "end"), with_ends(removed, all_removed, replaced, cut, overwritten)
)
def test_v1_files_that_vanish_below_a_daemon_are_written_again(
    tmp_path: Path, runs: Runs, damage: Damage, policy: str, end: Callable[[Daemon], int]
) -> None:
    """T-V1: what was acknowledged before, while and after a file vanished is there."""
    with daemon_of(tmp_path, "--sync", policy) as daemon, LineClient(daemon.address) as client:
        put(client, JOBS)
        time.sleep(LOOK_MS / 1_000)
        put(client, 1)  # the look that has seen the file whole
        damage(tmp_path)
        put(client, JOBS)
        time.sleep(LOOK_MS / 1_000)
        last_id = put(client, JOBS)
        assert "error the journal is not whole" in daemon.log()
        end(daemon)
    assert last_id == 3 * JOBS + 1
    with daemon_of(tmp_path) as daemon:
        assert jobs_in(daemon) == last_id
    runs.count("T-V1", 1, "damaged files")


def test_v1_a_daemon_at_rest_is_asked_whether_it_is_ready(tmp_path: Path) -> None:
    """T-V1: /readyz looks itself, and is 200 again when everything was written again."""
    with daemon_of(tmp_path, *HTTP) as daemon, LineClient(daemon.address) as client:
        put(client, JOBS)
        removed(tmp_path)
        # Unless its own look, a second after a job, has come first.
        assert ready(daemon) == 503 or "error the journal is not whole" in daemon.log()
        while ready(daemon) == 503:
            time.sleep(0.01)
        assert put(client, 1) == JOBS + 1
        daemon.kill()
    with daemon_of(tmp_path) as daemon:
        assert jobs_in(daemon) == JOBS + 1


def directory_removed(directory: Path) -> None:
    shutil.rmtree(directory)


def moved(directory: Path) -> None:
    directory.rename(directory.with_name("moved"))


def another(directory: Path) -> None:
    moved(directory)
    directory.mkdir()


@pytest.mark.parametrize("damage", [directory_removed, moved, another])
def test_v2_a_daemon_whose_directory_vanishes_acknowledges_nothing_more(
    tmp_path: Path, runs: Runs, damage: Damage
) -> None:
    """T-V2: exit code 74; what was acknowledged is where its directory is now."""
    directory = tmp_path / "data"
    with daemon_of(directory) as daemon, LineClient(daemon.address) as client:
        put(client, JOBS)
        damage(directory)
        time.sleep(LOOK_MS / 1_000)
        assert put(client, 1) == 0
        assert wait_for_exit(daemon) == Exit.JOURNAL_FAILED
        assert "error the journal failed" in daemon.log()
    assert not directory.exists() or not list(directory.iterdir())
    if (there := tmp_path / "moved").exists():
        with daemon_of(there) as daemon:
            assert jobs_in(daemon) >= JOBS
    runs.count("T-V2", 1, "directories")


# --- While no daemon runs ------------------------------------------------------------------------


def older(directory: Path, copy: Path) -> None:
    """Put an older copy of the newest file in its place."""
    shutil.copyfile(copy, newest(directory))


def gone(directory: Path, _copy: Path) -> None:
    newest(directory).unlink()


def emptied(directory: Path, _copy: Path) -> None:
    newest(directory).write_bytes(b"")


@pytest.mark.parametrize("policy", ["always", INTERVAL])
@pytest.mark.parametrize(("damage", "end"), with_ends(gone, older, emptied))
def test_v3_a_log_that_ends_too_early_is_refused(
    tmp_path: Path,
    runs: Runs,
    damage: Callable[[Path, Path], object],
    policy: str,
    end: Callable[[Daemon], int],
) -> None:
    """T-V3: by name, until somebody accepts the loss; a kill comes when `log-end` was written."""
    directory, copy = tmp_path / "data", tmp_path / "copy"
    with daemon_of(directory, "--sync", policy) as daemon, LineClient(daemon.address) as client:
        put(client, JOBS)
        shutil.copyfile(newest(directory), copy)
        copied_frames = len(frame_ends(copy.read_bytes())) - 1
        put(client, JOBS)
        wait_for_log_end(client, directory, copied_frames + 1)
        end(daemon)
    damage(directory, copy)
    before = {path: path.read_bytes() for path in directory.iterdir() if path.name != "lock"}
    assert f"{directory}/log-end" in refused(directory, Exit.CORRUPT_JOURNAL)
    assert all(path.read_bytes() == content for path, content in before.items())
    (directory / "log-end").unlink()
    with daemon_of(directory) as daemon:
        assert jobs_in(daemon) == (JOBS if damage is older else 0)
    runs.count("T-V3", 1, "damaged logs")


@pytest.mark.parametrize("kind", [os.mkfifo, os.mkdir])
def test_v4_what_is_no_file_is_refused_by_name(
    tmp_path: Path, runs: Runs, kind: Callable[[Path], object]
) -> None:
    """T-V4: with the jobs of a daemon beside it, which are there when it was removed."""
    with daemon_of(tmp_path) as daemon, LineClient(daemon.address) as client:
        put(client, JOBS)
        daemon.kill()
    wrong = tmp_path / "segment-0000000002.log"
    kind(wrong)
    assert f"{wrong} is no file" in refused(tmp_path, Exit.CORRUPT_JOURNAL)
    wrong.unlink() if kind is os.mkfifo else wrong.rmdir()
    with daemon_of(tmp_path) as daemon:
        assert jobs_in(daemon) == JOBS
    runs.count("T-V4", 1, "names")
