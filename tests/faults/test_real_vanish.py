"""T-V: files and directories that vanish below a daemon, or while it is stopped."""

import os
import subprocess
import time
from collections.abc import Callable, Iterable
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
INTERVAL: Final = pytest.param("interval", marks=pytest.mark.long)
NEVER: Final = pytest.param("never", marks=pytest.mark.long)
End = Callable[[Daemon], int]
ENDS: Final[tuple[End, ...]] = (Daemon.stop, Daemon.kill)

# What befalls a directory, in the words of a shell in it; $F is the file of the log that is written
# to, and $OLD an older copy of that.
BELOW: Final = {
    "removed": "rm $F",
    "all removed": "rm -f *",  # the daemon may have begun to write others
    "replaced": "cp $F copy && mv copy $F",
    "cut": "truncate -s 500 $F",
    "overwritten": "dd if=/dev/zero of=$F seek=5 bs=100 count=1000 conv=notrunc status=none",
}
DIRECTORIES: Final = {
    "removed": "rm -r $PWD",
    "moved": "mv $PWD ../moved",
    "another": "mv $PWD ../moved && mkdir $PWD",
}
WHILE_STOPPED: Final = {"gone": "rm $F", "older": "cp $OLD $F", "emptied": "truncate -s 0 $F"}


def damage(directory: Path, words: str) -> None:
    names = {"F": str(newest(directory)), "OLD": f"{directory}-old"}
    subprocess.run(["sh", "-ec", words], cwd=directory, env=os.environ | names, check=True)


def with_ends(damages: Iterable[str]) -> list[object]:
    """Each damage with each end; in the short run with one of them, by turns."""
    return [
        pytest.param(each, end, marks=pytest.mark.long if (place + which) % 2 else ())
        for place, each in enumerate(damages)
        for which, end in enumerate(ENDS)
    ]


def newest(directory: Path) -> Path:
    """The file of the log that is written to."""
    return max(directory.glob("segment-*.log"))


def put(client: LineClient, jobs: int) -> int:
    """Put jobs until that is no longer acknowledged; return the highest id that was."""
    last_id = 0
    for _ in range(jobs):
        try:
            reply = client.ask("put 0 0 60", b"000000")
        except OSError:
            break
        if not reply.startswith("INSERTED "):
            break
        last_id = int(reply.split()[1])
    return last_id


def jobs_in(directory: Path) -> int:
    """How many a daemon finds there."""
    with daemon_of(directory) as daemon, LineClient(daemon.address) as client:
        return int(client.stats()["current-jobs-ready"])


def ready(daemon: Daemon) -> int:
    with HttpClient(daemon.http_address) as client:
        return client.ask("GET", "/readyz").status


# --- Below a running daemon ----------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["always", INTERVAL, NEVER])
@pytest.mark.parametrize(("how", "end"), with_ends(BELOW))
def test_v1_files_that_vanish_below_a_daemon_are_written_again(
    tmp_path: Path, runs: Runs, how: str, policy: str, end: End
) -> None:
    """T-V1: what was acknowledged before, while and after a file vanished is there."""
    with daemon_of(tmp_path, "--sync", policy) as daemon, LineClient(daemon.address) as client:
        put(client, JOBS)
        time.sleep(LOOK_MS / 1_000)
        put(client, 1)  # the look that has seen the file whole
        damage(tmp_path, BELOW[how])
        put(client, JOBS)
        time.sleep(LOOK_MS / 1_000)
        last_id = put(client, JOBS)
        assert "error the journal is not whole" in daemon.log()
        end(daemon)
    assert jobs_in(tmp_path) == last_id == 3 * JOBS + 1
    runs.count("T-V1", 1, "damaged files")


def test_v1_a_daemon_at_rest_is_asked_whether_it_is_ready(tmp_path: Path) -> None:
    """T-V1: /readyz looks itself, and is 200 again when everything was written again."""
    with daemon_of(tmp_path, *HTTP) as daemon, LineClient(daemon.address) as client:
        put(client, JOBS)
        newest(tmp_path).unlink()
        # Unless its own look, a second after a job, has come first.
        assert ready(daemon) == 503 or "error the journal is not whole" in daemon.log()
        while ready(daemon) == 503:
            time.sleep(0.01)
        assert put(client, 1) == JOBS + 1
        daemon.kill()
    assert jobs_in(tmp_path) == JOBS + 1


@pytest.mark.parametrize("how", DIRECTORIES)
def test_v2_a_daemon_whose_directory_vanishes_acknowledges_nothing_more(
    tmp_path: Path, runs: Runs, how: str
) -> None:
    """T-V2: exit code 74; what was acknowledged is where its directory is now."""
    directory = tmp_path / "data"
    with daemon_of(directory) as daemon, LineClient(daemon.address) as client:
        put(client, JOBS)
        damage(directory, DIRECTORIES[how])
        time.sleep(LOOK_MS / 1_000)
        assert put(client, 1) == 0
        assert wait_for_exit(daemon) == Exit.JOURNAL_FAILED
        assert "error the journal failed" in daemon.log()
    assert not directory.exists() or not list(directory.iterdir())
    if how != "removed":
        assert jobs_in(tmp_path / "moved") >= JOBS
    runs.count("T-V2", 1, "directories")


# --- While no daemon runs ------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["always", INTERVAL])
@pytest.mark.parametrize(("how", "end"), with_ends(WHILE_STOPPED))
def test_v3_a_log_that_ends_too_early_is_refused(
    tmp_path: Path, runs: Runs, how: str, policy: str, end: End
) -> None:
    """T-V3: by name, until somebody accepts the loss; a kill comes when `log-end` was written."""
    directory = tmp_path / "data"
    with daemon_of(directory, "--sync", policy) as daemon, LineClient(daemon.address) as client:
        put(client, JOBS)
        copy = newest(directory).read_bytes()
        (tmp_path / "data-old").write_bytes(copy)
        put(client, JOBS)
        wait_for_log_end(client, directory, len(frame_ends(copy)))
        end(daemon)
    damage(directory, WHILE_STOPPED[how])
    before = {path: path.read_bytes() for path in directory.iterdir() if path.name != "lock"}
    assert f"{directory}/log-end" in refused(directory, Exit.CORRUPT_JOURNAL)
    assert all(path.read_bytes() == content for path, content in before.items())
    (directory / "log-end").unlink()
    assert jobs_in(directory) == (JOBS if how == "older" else 0)
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
    assert jobs_in(tmp_path) == JOBS
    runs.count("T-V4", 1, "names")
