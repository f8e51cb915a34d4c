"""Backing up a daemon that works, and restoring, as docs/operations.md says."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from delayd.cli.main import invoke
from delayd.exits import Exit
from delayd.testing.daemon import running_daemon
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


def run(command: str, directory: Path, data: Path) -> None:
    """Do what a command of the page does, on directories of the test."""
    for written, meant in (("/var/lib/delayd", data), ("/backup", directory)):
        command = command.replace(written, str(meant))
    program, *words = command.split()
    if program == "delayd":
        assert invoke(words) == Exit.OK
    else:
        subprocess.run([program, *words], check=True)


def put_and_delete(client: LineClient) -> None:
    """Put jobs and delete them again: files come and go."""
    client.send(b"put 0 0 60 %d\r\n%b\r\n" % (len(BODY), BODY) * 50)
    numbers = [client.reply().split()[1] for _ in range(50)]
    client.send(b"".join(b"delete %b\r\n" % number for number in numbers))
    assert {client.reply() for _ in numbers} == {b"DELETED\r\n"}


def test_backups_of_a_daemon_under_load_hold_what_was_acknowledged_and_are_restored_as_documented(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, config = tmp_path / "data", tmp_path / "delayd.toml"
    config.write_text('[journal]\nsegment_bytes = "64KiB"\n')
    how_to_back_up = documented("Backing up")[0]
    places = [tmp_path / f"backup-{number}" for number in range(BACKUPS)]
    with running_daemon("--config", str(config), data_dir=data) as daemon:
        with client_beside(daemon, put_and_delete):
            for place in places:
                put_standing(daemon, STANDING, BODY)
                place.mkdir()
                run(how_to_back_up, place, data)
                said = capsys.readouterr().out
                assert said.startswith("copied     ")
                assert said.splitlines()[-1] == "verdict    accept: the log is whole"
        assert "a snapshot was taken" in daemon.log()
        assert daemon.stop() == 0
    archive = tmp_path / "delayd.tar"
    subprocess.run(["tar", "-C", data, "-cf", archive, "."], check=True)
    for number, place in enumerate(places, 1):
        for command in documented("Restoring"):
            if not command.startswith(("systemctl", "chown")):
                run(command, place, data)
        with running_daemon(data_dir=data) as daemon:
            assert standing_jobs(daemon) == number * STANDING
            assert daemon.stop() == 0
        shutil.rmtree(f"{data}.old")
    restored = tmp_path / "restored"
    restored.mkdir()
    subprocess.run(["tar", "-C", restored, "-xf", archive], check=True)
    with running_daemon(data_dir=restored) as daemon:
        assert standing_jobs(daemon) == BACKUPS * STANDING, "an archive is a backup too"
