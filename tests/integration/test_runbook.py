"""docs/runbook.md, where it takes processes: a daemon that is not there or does not start, and a
machine that is gone.

The other situations are played in memory, in `tests/cli/test_runbook.py`.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from delayd.testing.daemon import Daemon, running_daemon
from tests.config_files import written
from tests.http_client import HTTP
from tests.pages import Reader, text_of
from tests.rigs.process import put_standing, standing_jobs
from tests.servers import HOST, free_port

PAGE: Final = "runbook.md"
JOBS: Final = 6
IN_THE_SECOND_FRAME: Final = 200
WRONG: Final = '[line]\nlisten = "11300"\n[wheel]\ntik = 1\n'
GONE: Final = "The machine is gone"


class Machine(NamedTuple):
    """A daemon, and the directory of its jobs."""

    daemon: Daemon
    data: Path


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    data = tmp_path_factory.mktemp("machine") / "data"
    with running_daemon(*HTTP, data_dir=data) as daemon:
        put_standing(daemon, JOBS, b"waits")
        yield Machine(daemon, data)


Elsewhere = dict[str, str]
"""What stands on the page, and what it is here."""


def not_there(_machine: Machine, _directory: Path) -> Elsewhere:
    with free_port() as port:
        return {"127.0.0.1:11301": f"{HOST}:{port}"}


def damaged(machine: Machine, directory: Path) -> Elsewhere:
    copy = Path(shutil.copytree(machine.data, directory / "copy"))
    (segment,) = copy.glob("segment-*.log")
    with segment.open("r+b") as file:
        file.seek(IN_THE_SECOND_FRAME)
        file.write(b"XXXX")
    return {"/var/lib/delayd": str(copy)}


def is_elsewhere(machine: Machine, directory: Path) -> Elsewhere:
    return {"/var/lib/delayd": str(machine.data), "/srv/other": f"{directory}/other"}


def misspelt(_machine: Machine, directory: Path) -> Elsewhere:
    return {"/etc/delayd/delayd.toml": written(directory, WRONG)}


STARTS: Final[dict[str, Callable[[Machine, Path], Elsewhere]]] = {
    "No daemon answers": not_there,
    "Exit code 65: the journal is damaged": damaged,
    "Exit code 71: the port is taken": is_elsewhere,
    "Exit code 75: another daemon has the directory": is_elsewhere,
    "Exit code 78: the configuration is wrong": misspelt,
}
OF_PROCESSES: Final = (*STARTS, GONE)


@pytest.mark.parametrize("symptom", STARTS)
def test_who_sees_this_is_told_what_the_page_says(
    symptom: str, machine: Machine, tmp_path: Path
) -> None:
    also = STARTS[symptom](machine, tmp_path)
    reader = Reader(tmp_path, machine.daemon, also)
    reader.environment["DELAYD_URL"] = f"http://{reader.here('127.0.0.1:11301')}"
    reader.follow(PAGE, symptom)


def test_old_backups_are_removed_when_a_new_one_was_made_and_not_before(
    machine: Machine, tmp_path: Path
) -> None:
    (script,) = re.findall("```sh\n(.*?)```", text_of(PAGE, GONE), re.DOTALL)
    elsewhere, nowhere = tmp_path / "elsewhere", str(tmp_path / "nowhere")
    old = [f"2000-01-01T00-{number:03}" for number in range(290)]
    for name in old:
        (elsewhere / name).mkdir(parents=True)
    path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for data, kept in ((nowhere, old), (str(machine.data), old[3:])):
        here = script.replace("/mnt/elsewhere", str(elsewhere)).replace("/var/lib/delayd", data)
        done = subprocess.run(["sh", "-c", here], env=path, capture_output=True, check=False)
        assert (done.returncode == 0) is (kept != old)
        assert sorted(file.name for file in elsewhere.iterdir())[: len(kept)] == kept
    assert len(list(elsewhere.iterdir())) == 288


def test_who_has_a_backup_elsewhere_starts_again_on_another_machine(
    machine: Machine, tmp_path: Path
) -> None:
    before, then = re.findall("```console\n(.*?)```", text_of(PAGE, GONE), re.DOTALL)
    elsewhere, new = tmp_path / "elsewhere", tmp_path / "new"
    elsewhere.mkdir()
    reader = Reader(
        tmp_path,
        machine.daemon,
        {"/mnt/elsewhere": str(elsewhere), "/var/lib/delayd": str(machine.data)},
    )
    reader.type(before)
    reader.elsewhere["/var/lib/delayd"] = str(new)
    reader.type(then)
    with running_daemon(data_dir=new) as daemon:
        assert standing_jobs(daemon) == JOBS
