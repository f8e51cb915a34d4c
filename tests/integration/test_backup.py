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
from tests.rigs.process import put_standing, standing_jobs

PAGE: Final = Path(__file__).parents[2] / "docs" / "operations.md"
STANDING: Final = 5


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


def test_backups_of_a_daemon_at_work_are_made_and_restored_as_the_page_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    places = [tmp_path / "first", tmp_path / "second"]
    with running_daemon(data_dir=data) as daemon:
        for place in places:
            put_standing(daemon, STANDING, b"waits")
            place.mkdir()
            run(documented("Backing up")[0], place, data)
            assert capsys.readouterr().out.endswith("verdict    accept: the log is whole\n")
    archive, again = tmp_path / "delayd.tar", tmp_path / "again"
    again.mkdir()
    for words in (("-C", data, "-cf", archive, "."), ("-C", again, "-xf", archive)):
        subprocess.run(["tar", *words], check=True)
    with running_daemon(data_dir=again) as daemon:
        assert standing_jobs(daemon) == 2 * STANDING, "an archive is a backup too"
    for number, place in enumerate(places, 1):
        for command in documented("Restoring"):
            if not command.startswith(("systemctl", "chown")):
                run(command, place, data)
        with running_daemon(data_dir=data) as daemon:
            assert standing_jobs(daemon) == number * STANDING
        shutil.rmtree(f"{data}.old")
