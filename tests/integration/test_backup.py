"""Backing up a daemon that works, and restoring, as docs/operations.md says."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from delayd.exits import Exit
from delayd.testing.daemon import DaemonNotStarted, running_daemon
from tests.line_client import LineClient
from tests.rigs.process import client_beside, put_standing, standing_jobs

PAGE: Final = Path(__file__).parents[2] / "docs" / "operations.md"
BODY: Final = b"x" * 400
STANDING: Final = 50
BACKUPS: Final = 5


def documented(heading: str) -> list[str]:
    """The commands under a heading of the page."""
    section = PAGE.read_text(encoding="utf-8").split(f"\n### {heading}\n")[1].split("\n#")[0]
    return re.findall(r"^    (\w.*)$", section, re.MULTILINE)


def run(command: str, directory: Path, data: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of the page on directories of the test."""
    for written, meant in (("/var/lib/delayd", data), ("/backup", directory)):
        command = command.replace(written, str(meant))
    words = command.split()
    if words[0] == "delayd":
        words[:1] = [sys.executable, "-m", "delayd"]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def put_and_delete(client: LineClient) -> None:
    """Put jobs and delete them again: files come and go."""
    client.send(b"put 0 0 60 %d\r\n%b\r\n" % (len(BODY), BODY) * 50)
    numbers = [client.reply().split()[1] for _ in range(50)]
    client.send(b"".join(b"delete %b\r\n" % number for number in numbers))
    assert {client.reply() for _ in numbers} == {b"DELETED\r\n"}


def test_backups_of_a_daemon_under_load_hold_what_was_acknowledged_and_are_restored_as_documented(
    tmp_path: Path,
) -> None:
    data, config = tmp_path / "data", tmp_path / "delayd.toml"
    config.write_text('[journal]\nsegment_bytes = "64KiB"\n')
    how_to_back_up = documented("Backing up")[0]
    copies: list[Path] = []
    with running_daemon("--config", str(config), data_dir=data) as daemon:
        with client_beside(daemon, put_and_delete):
            for number in range(BACKUPS):
                put_standing(daemon, STANDING, BODY)
                place = tmp_path / f"backup-{number}"
                place.mkdir()
                ran = run(how_to_back_up, place, data)
                assert ran.returncode == Exit.OK, ran.stderr
                assert ran.stdout.startswith("copied     ")
                assert ran.stdout.splitlines()[-1] == "verdict    accept: the log is whole"
                copies.append(place)
        assert "a snapshot was taken" in daemon.log()
        assert daemon.stop() == 0
    for number, place in enumerate(copies, 1):
        for command in documented("Restoring"):
            if not command.startswith(("systemctl", "chown")):
                ran = run(command, place, data)
                assert ran.returncode == Exit.OK, ran.stderr
        with running_daemon(data_dir=data) as daemon:
            assert standing_jobs(daemon) == number * STANDING
            assert daemon.stop() == 0
        shutil.rmtree(f"{data}.old")


def test_an_archive_of_a_stopped_daemon_is_a_backup(tmp_path: Path) -> None:
    data, restored = tmp_path / "data", tmp_path / "restored"
    with running_daemon(data_dir=data) as daemon:
        put_standing(daemon, STANDING, BODY)
        assert daemon.stop() == 0
    archive = tmp_path / "delayd.tar"
    subprocess.run(["tar", "-C", data, "-cf", archive, "."], check=True)
    restored.mkdir()
    subprocess.run(["tar", "-C", restored, "-xf", archive], check=True)
    with running_daemon(data_dir=restored) as daemon:
        assert standing_jobs(daemon) == STANDING
    assert run("delayd journal backup /var/lib/delayd /backup/copy", tmp_path, data).returncode == 0
    with running_daemon(data_dir=tmp_path / "copy") as daemon:
        assert standing_jobs(daemon) == STANDING


def test_no_daemon_starts_on_a_backup_that_was_killed(tmp_path: Path) -> None:
    data, place = tmp_path / "data", tmp_path / "copy"
    with running_daemon(data_dir=data) as daemon:
        put_standing(daemon, STANDING, BODY)
        place.mkdir()
        (place / "backup-unfinished").touch()
        shutil.copy(data / "segment-0000000001.log", place)
        with (
            pytest.raises(DaemonNotStarted, match="unfinished backup"),
            running_daemon(data_dir=place),
        ):
            pass
        ran = run("delayd journal backup /var/lib/delayd /backup/copy", tmp_path, data)
        assert ran.returncode == Exit.OK, ran.stderr
    with running_daemon(data_dir=place) as daemon:
        assert standing_jobs(daemon) == STANDING
