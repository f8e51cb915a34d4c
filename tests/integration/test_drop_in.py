import contextlib
import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from delayd.exits import Exit
from tests.line_client import LineClient
from tests.servers import HOST, START_S_MAX, Server, executable, free_port, launch

LISTENS_CPU_S_MAX = 1.0
"""Generous: benchmarks measure it, and 100 ms is the aim. Others who are at work do not count, but
what a machine below this one takes away may: the best of a few starts is judged."""
STARTS_MAX = 10

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


@pytest.mark.parametrize("sync", [(), ("-f", "0"), ("-F",), ("-f", "1000")])
def test_with_a_directory_jobs_survive_a_kill(
    tmp_path: Path, directory: Path, sync: tuple[str, ...]
) -> None:
    flags = ("-b", str(tmp_path / "data"), *sync)
    with drop_in(directory, *flags) as daemon, LineClient(daemon.address) as client:
        client.put(b"hello")
        daemon.kill()
    with drop_in(directory, *flags) as daemon, LineClient(daemon.address) as client:
        assert client.ask("reserve") == "RESERVED 1 5\r\nhello"


def test_a_directory_in_use_exits_75(tmp_path: Path, directory: Path) -> None:
    flags = ("-b", str(tmp_path / "data"))
    with drop_in(directory, *flags):
        second = launch("second", (executable("delayd-beanstalkd"), "-l", HOST, "-p", "0", *flags))
        assert second.process.wait(START_S_MAX) == Exit.DIRECTORY_LOCKED
        assert b"is held by" in second.output()
        second.stop()


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


def test_it_listens_soon_after_it_was_started(directory: Path) -> None:
    taken_s: list[float] = []
    while not taken_s or taken_s[-1] >= LISTENS_CPU_S_MAX:
        assert len(taken_s) < STARTS_MAX, taken_s
        taken_s.append(listens_after_cpu_s())


def listens_after_cpu_s() -> float:
    """How long a daemon was at work when it began to listen."""
    command = (executable("delayd-beanstalkd"), "-l", HOST, "-p")
    with free_port() as port:
        server = launch("delayd-beanstalkd", (*command, str(port)))
        begun_s = time.monotonic()
        try:
            while not is_listening(port):
                assert time.monotonic() - begun_s < START_S_MAX, server.output()
            return cpu_s(server.process.pid)
        finally:
            server.stop()


def cpu_s(pid: int) -> float:
    """How long the process has been at work."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0
