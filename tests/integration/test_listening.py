import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from delayd.build_kind import is_compiled
from delayd.exits import Exit
from delayd.testing.daemon import Daemon, running_daemon
from tests.line_client import LineClient
from tests.rigs.waiting import until

SERVE = (sys.executable, "-m", "delayd", "serve", "--http", "off")

ACTIVATE = """\
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ["LISTEN_PID"] = str(os.getpid())
os.execv(sys.argv[2], sys.argv[2:])
"""
"""What systemd does: the socket becomes descriptor 3, and the process is told that it is for it."""


def ask(address: str | tuple[str, int], data: bytes) -> bytes:
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as client:
        client.settimeout(60)
        client.connect(address)
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: client.recv(4_096), b""))


def test_the_log_tells_what_is_served_and_not_once_more_where(tmp_path: Path) -> None:
    with running_daemon(data_dir=tmp_path) as daemon:
        daemon.stop()
        compiled = "true" if is_compiled() else "false"
        assert f'serving data_dir="{tmp_path}" jobs=0 compiled={compiled}' in daemon.log()
        assert str(daemon.address[1]) not in daemon.log()  # it was told on standard output


def test_a_line_for_newcomers_works_when_pasted_and_touches_no_job_of_others(
    tmp_path: Path,
) -> None:
    with subprocess.Popen(
        [*SERVE, "--data-dir", str(tmp_path), "--line", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        ready = re.fullmatch(
            r"delayd \S+ ready: line 127\.0\.0\.1:(\d+)\n", process.stdout.readline()
        )
        assert ready
        address = ("127.0.0.1", int(ready[1]))
        assert ask(address, b"put 0 0 60 6\r\nothers\r\n") == b"INSERTED 1\r\n"
        pasted = process.stdout.readline().partition(": ")[2].replace("--delay 5s", "--delay 0")
        pasted = pasted.replace("delayd ", f"{sys.executable} -m delayd ")
        ran = [
            subprocess.run(["sh", "-c", pasted], capture_output=True, check=True, timeout=60)
            for _ in range(2)
        ]
        assert b"\nreserves: 0\n" in ask(address, b"stats-job 1\r\n")
        process.terminate()
    assert [each.stdout for each in ran] == [b"2\nhello", b"3\nhello"]
    assert process.returncode == Exit.OK


@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", "2>/dev/full", "> >(true) 2> >(true)"])
def test_it_serves_though_nobody_wants_to_hear_it(tmp_path: Path, closed: str) -> None:
    path = tmp_path / "line.sock"
    where = ("--data-dir", str(tmp_path / "data"), "--line", f"unix:{path}")
    silenced = ("bash", "-c", f'exec "$@" {closed}', "bash", *SERVE, *where)
    with subprocess.Popen(silenced, stderr=subprocess.DEVNULL) as process:
        wait_until_listening(path)
        assert ask(str(path), b"put 0 0 60 2\r\nhi\r\n") == b"INSERTED 1\r\n"
        standard = [os.readlink(f"/proc/{process.pid}/fd/{number}") for number in range(3)]
        assert not [name for name in standard if name.startswith(str(tmp_path))]
        process.terminate()
    assert process.returncode == Exit.OK


def wait_until_listening(path: Path) -> None:
    def is_listening() -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            return probe.connect_ex(str(path)) == 0

    until(is_listening)


def test_a_unix_socket_is_served_and_removed_in_the_end(tmp_path: Path) -> None:
    path = tmp_path / "line.sock"
    command = (*SERVE, "--data-dir", str(tmp_path / "data"), "--line", f"unix:{path}")
    put = b"put 0 0 60 2\r\nhi\r\n"
    with Daemon(command) as daemon:
        assert daemon.listens_on == f"unix:{path}"
        assert path.stat().st_mode & 0o777 == 0o660
        assert ask(str(path), put) == b"INSERTED 1\r\n"
        daemon.kill()
    assert path.exists()
    with Daemon(command) as daemon:
        assert ask(str(path), put + b"peek 1\r\n") == b"INSERTED 2\r\nFOUND 1 2\r\nhi\r\n"
    assert not path.exists()


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def test_a_socket_of_systemd_is_served_in_place_of_the_configured_one_and_waits_for_the_next_daemon(
    tmp_path: Path, listening: socket.socket
) -> None:
    command = (*SERVE, "--data-dir", str(tmp_path))
    launcher = (sys.executable, "-c", ACTIVATE, str(listening.fileno()), *command)
    where = listening.getsockname()

    def activated() -> Daemon:
        environment = {"LISTEN_FDS": "1"}
        return Daemon(launcher, environment=environment, inherited_fds=[listening.fileno()])

    with activated() as daemon, LineClient(where) as client:
        assert daemon.address == where
        client.put(b"hello")
    with LineClient(where) as early:
        early.send(b"peek 1\r\n")
        with activated():
            assert early.reply() == b"FOUND 1 5\r\nhello\r\n"
