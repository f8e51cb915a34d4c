"""Real daemons that deliver: over HTTP, to what hangs, and to sinks that do not end."""

import json
import re
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from delayd.cli.main import invoke
from delayd.client import Client, Invalid
from delayd.exits import Exit
from delayd.testing.daemon import Daemon
from tests.faults.receiver import Receiver
from tests.http_client import HTTP
from tests.line_client import LineClient
from tests.rigs.process import serve_command
from tests.rigs.waiting import until

ARRIVE_S_MAX: Final = 60.0
GRACE_S: Final = 1.0
HANG_S: Final = 600
"""When a delivery that hangs would be given up: much later than a stop is by `Daemon.stop`."""

DEAF: Final = """
import asyncio

class Deaf:
    async def deliver(self, job):
        while True:
            try:
                await asyncio.sleep(3_600)
            except asyncio.CancelledError:
                pass

    async def close(self):
        await asyncio.sleep(3_600)

def deaf(name, options):
    return Deaf()
"""


@contextmanager
def delivering(data: Path, receiver: Receiver, *flags: str, **settings: str) -> Iterator[Daemon]:
    variables = {**receiver.settings, "DELAYD_PUSH_STOP_GRACE": f"{GRACE_S:.0f}s", **settings}
    with Daemon(serve_command(data, *flags), environment=variables) as daemon:
        yield daemon


def send_to(client: LineClient, tube: str, push: dict[str, object]) -> None:
    policy = json.dumps({"retry": ["200ms"] * 50, "push": push}).encode()
    assert client.ask(f"set-policy {tube}", policy) == "POLICY_SET"


def wait_for(receiver: Receiver, arrivals: int) -> None:
    until(lambda: len(receiver.arrivals()) >= arrivals, ARRIVE_S_MAX, seen=receiver.arrivals)


def imported(daemon: Daemon) -> set[str]:
    """What a daemon has imported so far that was started with `-X importtime`."""
    return {line.rpartition("|")[2].strip() for line in daemon.log().splitlines()}


def test_a_daemon_without_http_imports_what_delivers_when_the_first_job_is_due(
    tmp_path: Path,
) -> None:
    _, *words = serve_command(tmp_path / "data")
    command = [sys.executable, "-X", "importtime", *words]
    with Receiver(tmp_path) as receiver:
        settings = {**receiver.settings, "DELAYD_PUSH_STOP_GRACE": "1s"}
        with Daemon(command, environment=settings) as daemon, LineClient(daemon.address) as client:
            assert client.put(b"none of these goes anywhere", delay=3600) == 1
            assert not imported(daemon) & {"asyncio", "ssl", "delayd.push.egress"}
            send_to(client, "out", {"url": receiver.url})
            client.ask("use out")
            client.put(b"later", delay=3600)
            assert "asyncio" not in imported(daemon)
            client.put(b"now")
            wait_for(receiver, 1)
            assert "asyncio" in imported(daemon)
            assert client.put(b"and now") == 4
            wait_for(receiver, 2)
            assert daemon.kill() < 0
        with Daemon(command, environment=settings) as daemon, LineClient(daemon.address) as client:
            client.ask("use out")
            client.ask("kick-job 2")
            wait_for(receiver, 3)
            assert daemon.stop() == Exit.OK


NO_THREAD: Final = """
import runpy, sys, threading

start = threading.Thread.start

def refuse(thread):
    if thread.name == "import":
        raise RuntimeError("can't start new thread")
    start(thread)

threading.Thread.start = refuse
sys.argv[0] = "delayd"
runpy.run_module("delayd", run_name="__main__")
"""


def test_in_one_advance_a_receiver_is_called_more_often_than_would_open_a_breaker(
    tmp_path: Path,
) -> None:
    with (
        Receiver(tmp_path, fails_percent=100) as receiver,
        delivering(tmp_path / "data", receiver, "--clock", "virtual") as daemon,
        LineClient(daemon.address) as client,
    ):
        policy = {"retry": "15s 1h 1d 1d 1d 1d", "push": {"url": receiver.url}}
        assert client.ask("set-policy default", json.dumps(policy).encode()) == "POLICY_SET"
        client.put(b"in a day", delay=86_400)
        daemon.advance(7 * 86_400)
        assert [arrival.attempt for arrival in receiver.arrivals()] == [1, 2, 3, 4, 5, 6, 7]
        assert client.stats("stats-job 1")["state"] == "buried"


def test_where_the_system_allows_no_more_threads_it_imports_what_delivers_without_one(
    tmp_path: Path,
) -> None:
    words = serve_command(tmp_path / "data")
    command = [sys.executable, "-c", NO_THREAD, *words[words.index("serve") :]]
    with (
        Receiver(tmp_path) as receiver,
        Daemon(command, environment=receiver.settings) as daemon,
        LineClient(daemon.address) as client,
    ):
        send_to(client, "out", {"url": receiver.url})
        client.ask("use out")
        client.put(b"now")
        wait_for(receiver, 1)
        assert daemon.stop() == Exit.OK


def test_a_start_and_a_reload_tell_of_targets_that_the_configuration_does_not_allow(
    tmp_path: Path,
) -> None:
    said = "jobs of this topic cannot be delivered"
    with Receiver(tmp_path) as receiver:
        data = tmp_path / "data"
        with delivering(data, receiver) as daemon, LineClient(daemon.address) as client:
            send_to(client, "out", {"url": f"{receiver.url}?key=s3cret"})
            assert said not in daemon.log()
        with delivering(data, receiver, DELAYD_PUSH_HOSTS="example.com") as daemon:
            assert (daemon.log().count(said), daemon.log().count("s3cret")) == (1, 0)
            daemon.process.send_signal(signal.SIGHUP)
            until(lambda: daemon.log().count(said) >= 2, ARRIVE_S_MAX)
        with (
            delivering(data, receiver, *HTTP, DELAYD_PUSH_ENABLED="false") as daemon,
            LineClient(daemon.address) as client,
        ):
            assert 'reason="push.enabled is false"' in daemon.log()
            client.ask("use out")
            client.put(b"waits")
            with Client(f"http://{daemon.http_listens_on}") as http:
                assert http.topic("out").details["blocks"] == ["push_off"]
        assert receiver.arrivals() == []


def test_a_receiver_that_hangs_holds_up_no_stop_and_its_job_is_there_again(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hangs, Receiver(tmp_path) as receiver:
        port = hangs.getsockname()[1]
        settings = {
            "DELAYD_PUSH_PORTS": f"{receiver.port},{port}",
            "DELAYD_PUSH_TIMEOUT": f"{HANG_S}s",
        }
        with delivering(tmp_path / "data", receiver, **settings) as daemon:
            with LineClient(daemon.address) as client:
                send_to(client, "default", {"url": f"http://127.0.0.1:{port}/"})
                client.put(b"x")
                taken = hangs.accept()[0]
                send_to(client, "default", {"url": receiver.url})
            assert daemon.stop() == Exit.OK, "and was not killed"
            taken.close()
        with delivering(tmp_path / "data", receiver, **settings):
            wait_for(receiver, 1)
            assert [arrival.attempt for arrival in receiver.arrivals()] == [1], "none had counted"


def test_a_sink_that_never_ends_holds_up_neither_a_stop_nor_others(tmp_path: Path) -> None:
    info = tmp_path / "deaf-1.0.dist-info"
    info.mkdir()
    (tmp_path / "deaf_sink.py").write_text(DEAF)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: deaf\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[delayd.sinks]\ndeaf = deaf_sink:deaf\n")
    config = tmp_path / "delayd.toml"
    config.write_text('[sinks.nobody]\nkind = "deaf"\n')
    path = ":".join([str(tmp_path), *sys.path])
    flags = ("--config", str(config))
    with (
        Receiver(tmp_path) as receiver,
        delivering(tmp_path / "data", receiver, *flags, PYTHONPATH=path) as daemon,
        LineClient(daemon.address) as client,
    ):
        send_to(client, "stuck", {"sink": "nobody"})
        send_to(client, "out", {"url": receiver.url})
        for tube in ("stuck", "out"):
            client.ask(f"use {tube}")
            client.put(b"x")
        wait_for(receiver, 1)
        assert daemon.stop() == Exit.OK, "and was not killed"
        assert "a sink did not end when it was told to" in daemon.log()


def test_a_secret_that_becomes_another_topics_signs_no_call_of_this_one_any_more(
    tmp_path: Path,
) -> None:
    """Neither by a policy of before, nor by default."""
    where = ("--secrets", str(tmp_path / "secrets.json"))
    said = "is for the topics ord*, and not for"
    assert invoke(["secret", "create", "orders", *where]) == Exit.OK
    signed = {"DELAYD_PUSH_SECRETS": where[1], "DELAYD_PUSH_SIGN_WITH": "orders"}
    with (
        Receiver(tmp_path) as receiver,
        delivering(tmp_path / "data", receiver, *HTTP, **signed) as daemon,
        LineClient(daemon.address) as client,
        Client(f"http://{daemon.http_listens_on}") as http,
    ):
        push = {"url": receiver.url, "secrets": ["orders"]}
        http.set_policy("set", {"retry": "1ms", "max_attempts": 1, "push": push})
        http.put("set", "before")
        http.put("other", "before", url=receiver.url)
        wait_for(receiver, 2)
        assert invoke(["secret", "restrict", "orders", "--topic", "ord*", *where]) == Exit.OK
        daemon.process.send_signal(signal.SIGHUP)
        until(lambda: f"{said} 'set'" in daemon.log(), seen=daemon.log)
        with pytest.raises(Invalid, match=re.escape(said)):
            http.set_policy("more", {"push": push})
        with pytest.raises(Invalid, match=re.escape(said)):
            http.put("other", "x", url=receiver.url)
        late = http.put("set", "late")
        until(lambda: http.get(late.id).state == "buried")
        assert said in str(http.get(late.id).failure)
        assert client.stats()["current-jobs-buried"] == "1"
        assert len(receiver.arrivals()) == 2
