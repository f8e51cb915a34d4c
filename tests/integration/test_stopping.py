import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from delayd.exits import Exit
from delayd.limits import RETURNS_PER_STOP_TURN
from delayd.testing.daemon import Daemon, running_daemon
from tests.http_client import HTTP, HttpClient
from tests.line_client import LineClient
from tests.rigs.process import serve_command
from tests.rigs.waiting import until


def limited_daemon(limits: str, data_dir: Path, *flags: str) -> Daemon:
    """A daemon on which this program has set limits of its own."""
    script = f"from delayd import service; {limits}; from delayd.__main__ import main; main()"
    return Daemon([sys.executable, "-c", script, *serve_command(data_dir, *flags)[3:]])


def patient_daemon(data_dir: Path, *flags: str) -> Daemon:
    """A daemon whose stop takes as long as it has to, should the machine stop as well."""
    return limited_daemon("service.STOP_MS_MAX = 60_000", data_dir, *flags)


def test_ctrl_c_stops_it_and_what_clients_held_is_ready_again_whoever_waits_for_it(
    tmp_path: Path,
) -> None:
    with running_daemon(data_dir=tmp_path) as daemon, ExitStack() as stack:
        clients = [stack.enter_context(LineClient(daemon.address)) for _ in range(6)]
        holder, *waiters = clients
        assert holder.ask("set-policy default", b'{"max_attempts": 1}') == "POLICY_SET"
        holder.put(b"held", ttr=3_600)
        assert holder.ask("reserve") == "RESERVED 1 4\r\nheld"
        for waiter in waiters:
            waiter.send(b"list-tube-used\r\nreserve-batch 5 60\r\nput 0 0 60 1\r\nx\r\n")
            assert waiter.reply() == b"USING default\r\n"
        daemon.process.send_signal(signal.SIGINT)
        assert daemon.process.wait(60) == Exit.OK
        assert {client.reply() for client in clients} == {b""}
        assert "stopped" in daemon.log()
        assert "Traceback" not in daemon.log()
    with running_daemon(data_dir=tmp_path) as daemon, LineClient(daemon.address) as client:
        assert client.ask("reserve-with-timeout 0") == "RESERVED 1 4\r\nheld"


@pytest.mark.parametrize("http", ["off", "127.0.0.1:0"])
def test_more_signals_change_nothing(tmp_path: Path, http: str) -> None:
    """They come until the process is gone, also when nobody handles them any more."""
    for number in range(4):
        with running_daemon("--http", http, data_dir=tmp_path / str(number)) as daemon:
            while daemon.process.poll() is None:
                daemon.process.send_signal(signal.SIGTERM)
                time.sleep(0.0002)
            assert daemon.process.returncode == Exit.OK, daemon.log()


def test_replies_that_were_promised_arrive_before_the_end(tmp_path: Path) -> None:
    body = b"x" * (24 << 20)  # more than the kernel takes off the daemon's hands at once
    file = tmp_path / "delayd.toml"
    file.write_text('[jobs]\nbody_bytes_max = "32MiB"\n')
    flags = ("--config", str(file))
    with patient_daemon(tmp_path / "data", *flags) as daemon, LineClient(daemon.address) as client:
        client.put(body)
        client.send(b"peek 1\r\nlist-tube-used\r\n")
        assert client.something_came(within_s=60)
        daemon.process.send_signal(signal.SIGTERM)
        assert client.reply() == b"FOUND 1 %d\r\n%b\r\n" % (len(body), body)
        assert client.rest() in {b"", b"USING default\r\n"}
        assert daemon.process.wait(60) == Exit.OK


def test_who_reads_nothing_does_not_keep_it_from_stopping(tmp_path: Path) -> None:
    with running_daemon(data_dir=tmp_path) as daemon, LineClient(daemon.address) as client:
        client.put(b"x" * 60_000)
        client.send(b"peek 1\r\n" * 1_000)
        assert client.something_came(within_s=60)
        assert daemon.stop() == Exit.OK, "and was not killed"


EARLY = """
import os, signal, sys

WHEN = {
    "delayd.cli.daemon": signal.SIGUSR1,
    "delayd.cli.beanstalkd": signal.SIGUSR1,
    "delayd.service": signal.SIGHUP,
}

def send(event, arguments):
    if event == "import" and (number := WHEN.pop(arguments[0], None)):
        os.kill(os.getpid(), number)

sys.addaudithook(send)
from delayd.__main__ import beanstalkd, main
"""
"""Sends itself a signal before the first import that takes time, and another before the last."""
DROP_IN = (sys.executable, "-c", f"{EARLY}beanstalkd()", "-p", "0")
SERVE = (sys.executable, "-c", f"{EARLY}main()", "serve", "--line", "127.0.0.1:0", "--http")


@contextmanager
def saying(
    command: Sequence[str], directory: Path
) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[], str]]]:
    """A daemon that need not serve yet, and what it has said so far; it ends as it should."""
    said = directory / "said"
    with said.open("wb") as output:
        process = subprocess.Popen(command, cwd=directory, stdout=output, stderr=output)
    try:
        yield process, said.read_text
    finally:
        process.terminate()
        assert process.wait(60) == Exit.OK


@pytest.mark.parametrize(
    "command", [DROP_IN, (*SERVE, "off"), (*SERVE, "127.0.0.1:0")], ids=("drop-in", "line", "http")
)
def test_a_signal_that_comes_before_it_serves_does_what_it_does_later(
    command: Sequence[str], tmp_path: Path
) -> None:
    with saying(command, tmp_path) as (process, said):
        until(lambda: "draining: " in said() and "nothing to reload" in said(), seen=said)
        assert not signal_is_held(process.pid, signal.SIGUSR1)


@pytest.mark.parametrize(
    ("program", "words", "number", "sentence"),
    [
        ("beanstalkd()", ("-p", "0"), signal.SIGUSR1, "draining: new jobs are refused"),
        ("main()", (*SERVE[3:], "off"), signal.SIGHUP, "serving"),
    ],
)
def test_a_signal_that_is_blocked_from_the_beginning_is_remembered(
    program: str, words: Sequence[str], number: signal.Signals, sentence: str, tmp_path: Path
) -> None:
    script = f"from delayd.__main__ import beanstalkd, main; {program}"
    with ExitStack() as stack:
        former = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
        try:
            command = (sys.executable, "-c", script, *words)
            process, said = stack.enter_context(saying(command, tmp_path))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, former)
        process.send_signal(number)  # before Python has begun
        until(lambda: sentence in said(), seen=said)
        assert not signal_is_held(process.pid, number)


@pytest.mark.parametrize("program", ["beanstalkd()", "main()"])
def test_an_interrupt_during_the_start_ends_it_without_a_traceback(
    program: str, tmp_path: Path
) -> None:
    early = EARLY.replace("SIGUSR1", "SIGINT").replace("SIGHUP", "SIGINT")
    # Python has no handler where it is ignored, as in the background of a shell.
    handled = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    script = f"{handled}{early}{program}"
    ran = subprocess.run(
        (sys.executable, "-c", script, "serve"), check=False, capture_output=True, cwd=tmp_path
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (-signal.SIGINT, b"", b"")


def signal_is_held(pid: int, number: signal.Signals) -> bool:
    """Whether the process lets signals of this number wait."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    blocked = int(status.split("SigBlk:")[1].split()[0], 16)
    return bool(blocked >> (number - 1) & 1)


def test_a_tool_ends_by_the_signals_that_a_daemon_handles() -> None:
    script = (
        "import atexit, os, signal; from delayd.__main__ import main; "
        "signal.signal(signal.SIGHUP, signal.SIG_DFL); "  # nohup has it ignored
        "atexit.register(os.kill, os.getpid(), signal.SIGHUP); main()"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, "version"], check=False, capture_output=True
    )
    assert ran.returncode == -signal.SIGHUP


def hold(daemon: Daemon, jobs: int) -> LineClient:
    """Return a client that has reserved so many jobs."""
    holder = LineClient(daemon.address)
    holder.send(b"put 0 0 3600 1\r\nx\r\n" * jobs)
    holder.send(b"reserve-batch 1000 0\r\n" * (1 + jobs // 1_000))
    assert [holder.reply()[:9] for _ in range(jobs)] == [b"INSERTED "] * jobs
    with LineClient(daemon.address) as other:
        reserved = "current-jobs-reserved"
        until(lambda: other.stats("stats-tube default")[reserved] == str(jobs))
    return holder


def test_many_jobs_of_one_client_are_ready_after_the_stop(tmp_path: Path) -> None:
    jobs = 2 * RETURNS_PER_STOP_TURN + 100
    with patient_daemon(tmp_path) as daemon:
        holder = hold(daemon, jobs)
        assert daemon.stop() == Exit.OK
        holder.close()
    with running_daemon(data_dir=tmp_path) as daemon, LineClient(daemon.address) as client:
        assert client.stats("stats-tube default")["current-jobs-ready"] == str(jobs)


def test_what_a_stop_has_no_time_to_give_back_stays_reserved_and_is_counted(tmp_path: Path) -> None:
    jobs = 3 * RETURNS_PER_STOP_TURN
    limits = "service.STOP_MS_MAX = service.STOP_CLOSE_MS; service.STOP_RETURNS_MS = 0"
    with limited_daemon(limits, tmp_path) as daemon:
        holder = hold(daemon, jobs)
        assert daemon.stop() == Exit.OK
        told = re.search(
            "jobs stay reserved until their ttr runs out.* jobs=([0-9]+)", daemon.log()
        )
        assert told is not None, daemon.log()
        left = int(told[1])
        assert 0 < left <= jobs - RETURNS_PER_STOP_TURN, "some have come back"
        holder.close()
    with running_daemon(data_dir=tmp_path) as daemon, LineClient(daemon.address) as client:
        found = client.stats("stats-tube default")
        assert int(found["current-jobs-reserved"]) == left
        assert int(found["current-jobs-ready"]) == jobs - left


def test_a_daemon_that_drains_lives_and_takes_no_jobs(tmp_path: Path) -> None:
    with (
        running_daemon(*HTTP, data_dir=tmp_path) as daemon,
        HttpClient(daemon.http_address) as client,
        LineClient(daemon.address) as line,
    ):
        line.put(b"before")
        assert line.stats()["draining"] == "false"
        assert client.ask("GET", "/readyz").json == {"status": "ready"}
        for said in ("info draining: new jobs are refused\n", "info already draining\n"):
            daemon.process.send_signal(signal.SIGUSR1)
            until(lambda: said in daemon.log())  # noqa: B023 - within the turn
        assert line.stats()["draining"] == "true"
        assert line.ask("put 0 0 60", b"after") == "DRAINING"
        assert line.ask("reserve") == "RESERVED 1 6\r\nbefore"
        told = client.ask("GET", "/readyz")
        assert (told.status, told.json["word"]) == (503, "DRAINING")
        assert client.ask("GET", "/healthz").json == {"status": "ok"}
        stats = client.ask("GET", "/v1/stats").json
        assert (stats["draining"], stats["pid"]) == (True, daemon.process.pid)
        # Its waits end when they are over, and not up to 50 µs later.
        assert Path(f"/proc/{stats['pid']}/timerslack_ns").read_text() == "1\n"
        assert 0 < stats["disk"]["needed_bytes"] < stats["disk"]["free_bytes"]
        assert stats["disk"]["free_bytes"] % os.statvfs(tmp_path).f_frsize == 0
