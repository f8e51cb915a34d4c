"""T-N and T-E3: real daemons without space, without names, and with a limit on their files.

That a call says so is in `test_real_errors`.
"""

import random
import resource
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Final

from delayd.exits import Exit
from tests.faults.conftest import Runs
from tests.faults.real_daemon import need, refused, standing_still, wait_for_exit
from tests.faults.real_disk import loop_disk, run, small_disk
from tests.faults.real_load import Record, Worker, life, load, look_at_all, look_at_the_rest
from tests.journal.journals import frame_ends
from tests.rigs.waiting import until

BALLAST_BYTES: Final = 1 << 20
LIMITED_BYTES: Final = 128 << 10
"""The smallest file of the reserve: below that, there is no space at all."""

SEGMENTS: Final = "256KiB"


def refusals(crew: list[Worker]) -> Counter[str]:
    return sum((worker.refused for worker in crew), Counter[str]())


def has_refused(crew: list[Worker]) -> bool:
    return refusals(crew)["put"] > 0


def wait_for_puts(record: Record) -> None:
    known = record.last_id
    until(lambda: record.last_id > known + 20)


def work_without_space(home: Path, rng: random.Random, ballast: Path | None) -> None:
    """Work until puts are refused and on; be killed; work without space; then get some."""
    record = Record(has_space=False)
    with life(home, record, segment_bytes=SEGMENTS) as daemon:
        with load(daemon.address, record, str(rng.random())) as crew:
            until(partial(has_refused, crew), 60)
            time.sleep(rng.uniform(0.0, 0.3))
            daemon.kill()
        had_no_space = refusals(crew)
    with life(home, record, segment_bytes=SEGMENTS) as daemon:
        look_at_all(daemon, record, "by a kill without space")
        with load(daemon.address, record, str(rng.random())) as crew:
            time.sleep(0.3)
            assert not any(worker.has_lost_it for worker in crew)
            if ballast is not None:
                ballast.unlink()
                wait_for_puts(record)
            daemon.kill()
    assert had_no_space["put"]
    assert not (had_no_space + refusals(crew))["delete"], "a delete was refused"
    look_at_the_rest(home, record)


def test_n1_the_disk_is_full(tmp_path: Path, runs: Runs) -> None:
    """T-N1: puts are refused and nothing else is; removals are durable; it goes on by itself.

    Snapshots and new files of the log fail meanwhile.
    """
    for rng in runs.rng("T-N1 full disk", 1, 20):
        with small_disk(tmp_path, f"size={rng.choice((3, 3, 4))}m") as path:
            ballast = path / "ballast"
            ballast.write_bytes(bytes(BALLAST_BYTES))
            work_without_space(path / "data", rng, ballast)


def test_n2_there_are_no_names_left(tmp_path: Path, runs: Runs) -> None:
    """T-N2: no file can be made any more: as without space, and no harm to what is there."""
    for rng in runs.rng("T-N2 inodes", 1, 10):
        with small_disk(tmp_path, f"size=32m,nr_inodes={rng.randint(9, 12)}") as path:
            work_without_space(path / "data", rng, None)


def test_n2_the_file_system_turns_read_only(tmp_path: Path, runs: Runs) -> None:
    """T-N2: ext4 finds a fault in itself and takes no more writes: exit 74, nothing is lost.

    The daemon stands still meanwhile, and what it has written so far is synced by us. A sync that
    is under way in that very moment is answered with success (Linux 6.18), though the transaction
    is given up that would have made the pages part of the file: ext4_sync_file_exit says 0 two
    milliseconds after ext4_error. Nobody can promise more than the file system does.
    """
    record = Record()
    with loop_disk(tmp_path, options="errors=remount-ro") as disk:
        # What was written and not synced is gone.
        with life(disk.home, record, how="power") as daemon:
            with load(daemon.address, record, "read-only"):
                time.sleep(0.2)
                trigger = Path("/sys/fs/ext4") / Path(disk.device).name / "trigger_fs_error"
                with standing_still(daemon):
                    run("sync", "--file-system", str(disk.mount_point))
                    trigger.write_text("a test of delayd")
                assert wait_for_exit(daemon) == Exit.JOURNAL_FAILED, daemon.log()
            assert "the journal failed" in daemon.log()
        assert "Read-only file system" in refused(disk.home, Exit.JOURNAL_FAILED)
        disk.power_off()
        run("e2fsck", "-f", "-p", disk.device, fine=(0, 1))
        disk.power_on()
        look_at_the_rest(disk.home, record)
    runs.count("T-N2 read-only", 1, "runs")


def test_e3_files_have_a_limit(quick_path: Path, runs: Runs) -> None:
    """T-E3: files cannot grow beyond a limit: puts are refused once there is one, and no more."""
    for rng in runs.rng("T-E3 limit", 1, 10):
        home = quick_path / str(rng.random())
        record = Record(has_space=False)
        limit = rng.choice((50_000, 140_000, 250_000))
        before = (need("prlimit"), f"--fsize={limit}:unlimited")
        with (
            life(home, record, segment_bytes="1MiB", before=before) as daemon,
            load(daemon.address, record, str(rng.random())) as crew,
        ):
            if limit < LIMITED_BYTES:
                until(partial(has_refused, crew))
            time.sleep(0.2)
            resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (-1, -1))
            wait_for_puts(record)
            assert not any(worker.has_lost_it for worker in crew), daemon.log()
            assert not refusals(crew)["delete"], "a delete was refused"
            daemon.kill()
        look_at_the_rest(home, record)


def test_e3_a_limit_falls_on_what_is_being_written(quick_path: Path, runs: Runs) -> None:
    """T-E3: a write ends in the middle, with EFBIG for the rest, in space that was there before.

    Nothing that this concerns is acknowledged: it goes on, or ends with 74.
    """
    for rng in runs.rng("T-E3 falls", 1, 20):
        home = quick_path / str(rng.random())
        record = Record(has_space=False)
        with (
            life(home, record, segment_bytes=SEGMENTS) as daemon,
            load(daemon.address, record, str(rng.random())),
        ):
            time.sleep(rng.uniform(0.05, 0.2))
            written = frame_ends(max(home.glob("segment-*")).read_bytes())[-1]
            limit = written + rng.randrange(200)
            resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (limit, -1))
            time.sleep(0.2)
            code = daemon.process.poll()
            assert code in {None, Exit.JOURNAL_FAILED}, daemon.log()
            daemon.kill()
        look_at_the_rest(home, record)
