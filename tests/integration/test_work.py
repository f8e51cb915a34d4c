"""`delayd work`: a worker in a process of its own, with commands in theirs, on a real daemon."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from delayd.cli.main import invoke
from delayd.client.sync import Client
from delayd.exits import Exit
from delayd.testing.daemon import Daemon, running_daemon
from tests.http_client import HTTP
from tests.rigs.waiting import until

WITHIN_S = 60.0
BODY_BYTES_MAX: Final = 1 << 20
"""More than a pipe takes."""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    config = tmp_path_factory.mktemp("daemon") / "delayd.toml"
    config.write_text(f"[jobs]\nbody_bytes_max = {BODY_BYTES_MAX}\n")
    with running_daemon("--config", str(config), *HTTP) as found:
        yield found


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    with Client(f"http://{daemon.http_listens_on}") as found:
        yield found


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return str(request.node.name).replace("[", "-").replace("]", "")


def work(url: str, *words: str) -> "subprocess.Popen[str]":
    return started(url, "-m", "delayd", "work", *words)


def started(url: str, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, *arguments],
        env={**os.environ, "DELAYD_URL": url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def drain(daemon: Daemon) -> Callable[..., int]:
    """Returns a worker in this process, whose commands have processes of their own."""
    url = f"http://{daemon.http_listens_on}"
    return lambda *words: invoke(["work", "--drain", "--url", url, *words])


def is_idle(client: Client) -> bool:
    found = [each for each in client.topics() if each.name == "mail"]
    return [(each.waiting, each.jobs) for each in found] == [(1, 0)]


LEFT: Final = {
    # With the standard input, which is longer than a pipe, and with standard error.
    "exec 3<&0; setsid sleep 20 2>&- & echo $! > {}": Exit.OK,
    "echo gone on >&2; (setsid sleep 99 >/dev/null <&- & echo $! > {}); exit 3": Exit.JOBS_FAILED,
}


@pytest.mark.parametrize("script", LEFT)
def test_a_command_ends_though_what_it_started_keeps_its_streams_open(
    script: str, drain: Callable[..., int], client: Client, tmp_path: Path
) -> None:
    job = client.put("left", "x" * BODY_BYTES_MAX, retry="2h")
    here = script.format(tmp_path / "left")
    assert drain("left", "--", "sh", "-c", here) == LEFT[script]
    left = int((tmp_path / "left").read_text())
    assert Path(f"/proc/{left}/cmdline").read_bytes(), "the worker waited for its end"
    os.kill(left, signal.SIGKILL)
    if LEFT[script] != Exit.OK:
        failure = client.get(job.id).failure
        assert failure is not None
        assert failure.error == "exit code 3: gone on"


def test_a_job_that_outlives_its_ttr_stays_with_its_command(tmp_path: Path) -> None:
    """The worker touches it by its own clock; the daemon's waits for that, as no machine would."""
    with running_daemon("--http", "127.0.0.1:0", clock="virtual") as daemon:
        url = f"http://{daemon.http_listens_on}"
        script = f"until [ -e {tmp_path}/go ]; do sleep 0.02; done; echo done"
        with Client(url) as client:
            job = client.put("mail", "x", ttr=1)
            worker = work(url, "--drain", "mail", "--", "sh", "-c", script)

            def has_its_whole_ttr() -> bool:
                found, now = client.get(job.id), client.advance_clock(0)
                return found.expires is not None and (found.expires - now).total_seconds() == 1

            for _ in range(5):
                until(has_its_whole_ttr)
                daemon.advance(0.5)
            assert client.get(job.id).state == "reserved"
            (tmp_path / "go").touch()
            assert worker.communicate(timeout=WITHIN_S) == ("done\n", "")
            assert "mail" not in [each.name for each in client.topics()]


def test_so_many_commands_run_at_once_as_was_said(
    drain: Callable[..., int], client: Client, tmp_path: Path
) -> None:
    client.put_many("many", [{"body": str(number)} for number in range(4)])
    # Each waits until all four are there: with fewer at once it would never end.
    all_there = f"[ $(ls {tmp_path} | wc -l) -ge 4 ]"
    script = f"touch {tmp_path}/$DELAYD_JOB_ID; until {all_there}; do sleep 0.02; done"
    assert drain("many", "--concurrency", "4", "--", "sh", "-c", script) == Exit.OK
    assert len(list(tmp_path.iterdir())) == 4


def test_sigterm_lets_the_command_finish_and_takes_no_more_jobs(
    daemon: Daemon, client: Client, topic: str, tmp_path: Path
) -> None:
    client.put_many(topic, [{"body": "1"}, {"body": "2"}])
    script = f"touch {tmp_path}/began; while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; echo done"
    worker = work(f"http://{daemon.http_listens_on}", topic, "--", "sh", "-c", script)
    until((tmp_path / "began").exists)
    worker.send_signal(signal.SIGTERM)
    assert worker.stderr is not None
    assert "1 running" in worker.stderr.readline()
    (tmp_path / "go").touch()
    out, _err = worker.communicate(timeout=WITHIN_S)
    assert (worker.returncode, out) == (Exit.OK, "done\n")
    assert client.topic(topic).ready == 1


def test_a_second_signal_kills_what_runs_and_no_attempt_is_counted(
    daemon: Daemon, client: Client, topic: str, tmp_path: Path
) -> None:
    job = client.put(topic, "x", retry="2h")
    script = f"touch {tmp_path}/began; sleep 600"
    worker = work(f"http://{daemon.http_listens_on}", topic, "--", "sh", "-c", script)
    until((tmp_path / "began").exists)
    worker.send_signal(signal.SIGTERM)
    assert worker.stderr is not None
    worker.stderr.readline()
    worker.send_signal(signal.SIGINT)
    worker.communicate(timeout=WITHIN_S)
    assert worker.returncode == 128 + signal.SIGINT
    found = client.get(job.id)
    assert (found.state, found.attempts, found.history) == ("ready", 0, ())


def test_a_worker_waits_for_a_daemon_that_is_not_there_yet() -> None:
    worker = work("http://127.0.0.1:1", "mail", "--", "true")
    assert worker.stderr is not None
    assert "127.0.0.1:1" in worker.stderr.readline()
    worker.send_signal(signal.SIGINT)
    worker.communicate(timeout=WITHIN_S)
    assert worker.returncode == Exit.OK


ASYNCIO: Final = """
import asyncio, os, signal
from delayd.client import AsyncClient, AsyncWorker

async def handle(job):
    print(job.text, end="", flush=True)

async def main():
    async with AsyncClient(os.environ["DELAYD_URL"]) as client:
        worker = AsyncWorker(client, "mail", handle, concurrency=8)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
        await worker.run()

asyncio.run(main())
"""
WORKERS: Final = {
    "command": ("-m", "delayd", "work", "mail", "--concurrency", "8", "--", "cat"),
    "asyncio": ("-c", ASYNCIO),
}


@pytest.mark.parametrize(("kind", "protocol"), [("command", "http+unix"), ("asyncio", "unix")])
def test_an_outage_is_told_once_and_its_end_once(kind: str, protocol: str, tmp_path: Path) -> None:
    sockets = {"http+unix": f"{tmp_path}/http", "unix": f"{tmp_path}/line"}
    flags = ("--http", f"unix:{tmp_path}/http", "--line", f"unix:{tmp_path}/line")
    url = f"{protocol}:{sockets[protocol]}"
    with running_daemon(*flags, data_dir=tmp_path / "data") as daemon, Client(url) as client:
        worker = started(url, *WORKERS[kind])
        assert worker.stdout is not None
        assert worker.stderr is not None
        client.put("mail", "x")
        assert worker.stdout.read(1) == "x"
        until(lambda: is_idle(client))
        client.put("other", "x")  # now the end of the first job is on disk, and was answered
        daemon.kill()
    away = worker.stderr.readline()
    with running_daemon(*flags, data_dir=tmp_path / "data"), Client(url) as client:
        back = worker.stderr.readline()
        client.put("mail", "y")
        assert worker.stdout.read(1) == "y"
        worker.terminate()
        with worker:
            rest = worker.stderr.read()
    assert sockets[protocol] in away
    assert "trying again" in away
    assert back.removeprefix("delayd: ") == "the daemon is back\n"
    assert [line for line in rest.splitlines() if "delayd: stopping" not in line] == []
    assert worker.returncode == Exit.OK
