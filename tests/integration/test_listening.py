import os
import re
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from delayd.build_kind import is_compiled
from delayd.client import Client, Unreachable
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
        client = LineClient(("127.0.0.1", int(ready[1])))
        client.put(b"others")
        pasted = process.stdout.readline().partition(": ")[2].replace("--delay 5s", "--delay 0")
        pasted = pasted.replace("delayd ", f"{sys.executable} -m delayd ")
        ran = [
            subprocess.run(["sh", "-c", pasted], capture_output=True, check=True, timeout=60)
            for _ in range(2)
        ]
        assert client.stats("stats-job 1")["reserves"] == "0"
        client.close()
        process.terminate()
    assert [each.stdout for each in ran] == [b"2\nhello", b"3\nhello"]
    assert process.returncode == Exit.OK


@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", "2>/dev/full", "> >(true) 2> >(true)"])
def test_it_serves_though_nobody_wants_to_hear_it(tmp_path: Path, closed: str) -> None:
    path = tmp_path / "line.sock"
    where = ("--data-dir", str(tmp_path / "data"), "--line", f"unix:{path}")
    silenced = ("bash", "-c", f'exec "$@" {closed}', "bash", *SERVE, *where)
    with subprocess.Popen(silenced, stderr=subprocess.DEVNULL) as process:
        until(lambda: takes_a_job(path))
        standard = [os.readlink(f"/proc/{process.pid}/fd/{number}") for number in range(3)]
        assert not [name for name in standard if name.startswith(str(tmp_path))]
        process.terminate()
    assert process.returncode == Exit.OK
    assert not path.exists(), "its socket is removed"


def takes_a_job(path: Path) -> bool:
    with suppress(Unreachable), Client(f"unix:{path}") as client:
        return bool(client.put("mail", "hi").id)
    return False


def test_a_socket_of_systemd_is_served_in_place_of_the_configured_one_and_waits_for_the_next_daemon(
    tmp_path: Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        given, where = listening.fileno(), listening.getsockname()
        launcher = (sys.executable, "-c", ACTIVATE, str(given), *SERVE, "--data-dir", str(tmp_path))

        def activated() -> Daemon:
            return Daemon(launcher, environment={"LISTEN_FDS": "1"}, inherited_fds=[given])

        with activated() as daemon, LineClient(where) as client:
            assert daemon.address == where
            client.put(b"hello")
        with LineClient(where) as early:
            early.send(b"peek 1\r\n")
            with activated():
                assert early.reply() == b"FOUND 1 5\r\nhello\r\n"


def told(notify: socket.socket, word: bytes) -> list[bytes]:
    """All that systemd is told until this was said."""
    said: list[bytes] = []
    while word not in said:
        said += notify.recv(4_096).split(b"\n")
    return said


def test_systemd_is_told_when_it_is_ready_and_when_it_stops(tmp_path: Path) -> None:
    command = (*SERVE, "--data-dir", str(tmp_path / "data"), "--line", "127.0.0.1:0")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(str(tmp_path / "notify.sock"))
        notify.settimeout(60)
        with Daemon(command, environment={"NOTIFY_SOCKET": notify.getsockname()}) as daemon:
            said = told(notify, b"READY=1")
            assert b"STATUS=serving on line " + daemon.listens_on.encode() in said
        told(notify, b"STOPPING=1")
