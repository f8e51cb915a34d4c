import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from delayd.exits import Exit
from delayd.testing.daemon import Daemon
from tests.line_client import LineClient
from tests.servers import HOST, START_S_MAX, executable, free_port, launch

LISTENS_CPU_S_MAX = 1.0
"""Generous: benchmarks measure it, and 100 ms is the aim. Others who are at work do not count."""


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """The daemon's working directory, where it would leave files if it left any."""
    path = tmp_path / "here"
    path.mkdir()
    yield path
    assert not list(path.iterdir())


def drop_in(directory: Path, *flags: str) -> Daemon:
    command = (executable("delayd-beanstalkd"), "-l", HOST, "-p", "0", *flags)
    return Daemon(command, directory=str(directory))


def test_without_a_directory_nothing_is_kept_on_disk(directory: Path) -> None:
    with drop_in(directory) as daemon:
        with LineClient(daemon.address) as client:
            client.put(b"hello")
            files = os.listdir(f"/proc/{daemon.pid}/fd")
            names = [os.readlink(f"/proc/{daemon.pid}/fd/{file}") for file in files]
            assert not [name for name in names if name.endswith((".log", "lock"))]
        assert daemon.stop() == Exit.OK
    with drop_in(directory) as daemon, LineClient(daemon.address) as client:
        assert client.ask("peek 1") == "NOT_FOUND"


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


def test_it_listens_soon_after_it_was_started(directory: Path) -> None:
    command = (executable("delayd-beanstalkd"), "-l", HOST, "-p")
    with free_port() as port:
        server = launch("delayd-beanstalkd", (*command, str(port)))
        begun_s = time.monotonic()
        try:
            while not is_listening(port):
                assert time.monotonic() - begun_s < START_S_MAX, server.output()
            assert cpu_s(server.process.pid) < LISTENS_CPU_S_MAX
        finally:
            server.stop()


def cpu_s(pid: int) -> float:
    """How long the process has been at work."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0
