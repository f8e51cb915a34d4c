import contextlib
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from delayd.exits import Exit
from tests.line_client import LineClient
from tests.servers import HOST, START_S_MAX, Server, executable, launch

SERVING = re.compile(rb'serving on="line (?P<host>[0-9.]+):(?P<port>[0-9]+)"')
"""What its log says when it is ready."""


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """The daemon's working directory, where it would leave files if it left any."""
    path = tmp_path / "here"
    path.mkdir()
    yield path
    assert not list(path.iterdir())


def drop_in(directory: Path, *flags: str) -> Server:
    command = (executable("delayd-beanstalkd"), "-l", HOST, "-p", "0", *flags)
    server = launch("delayd-beanstalkd", command, directory=directory)
    server.wait_until(ready=SERVING)
    return server


def test_without_a_directory_nothing_is_kept_on_disk(directory: Path) -> None:
    with drop_in(directory) as daemon:
        with LineClient(daemon.address) as client:
            client.put(b"hello")
            names = [*files_of(daemon.process.pid)]
            assert names
            assert not [name for name in names if name.endswith((".log", "lock"))]
        daemon.stop()
        assert daemon.process.returncode == Exit.OK
    with drop_in(directory) as daemon, LineClient(daemon.address) as client:
        assert client.ask("peek 1") == "NOT_FOUND"


def files_of(pid: int) -> Iterator[str]:
    """What the process has open; something may be closed while it is looked at."""
    for number in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            yield os.readlink(f"/proc/{pid}/fd/{number}")


def test_with_a_directory_jobs_survive_a_kill(tmp_path: Path, directory: Path) -> None:
    flags = ("-b", str(tmp_path / "data"), "-F")
    with drop_in(directory, *flags) as daemon, LineClient(daemon.address) as client:
        client.put(b"hello")
        daemon.kill()
    with drop_in(directory, *flags) as daemon, LineClient(daemon.address) as client:
        assert client.ask("reserve") == "RESERVED 1 5\r\nhello"


def test_it_prints_nothing_on_standard_output(directory: Path, tmp_path: Path) -> None:
    path = str(tmp_path / "line.sock")
    command = (executable("delayd-beanstalkd"), "-V", "-l", f"unix:{path}")
    with subprocess.Popen(
        command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        while b" serving on=" not in process.stderr.readline():
            pass
        process.terminate()
        printed, logged = process.communicate(timeout=START_S_MAX)
    assert not printed
    assert b" stopped exit=0" in logged
