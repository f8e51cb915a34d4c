"""Push with a real daemon and a real endpoint: ladders, outages, stops, and what is refused."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from delayd.exits import Exit
from delayd.testing.daemon import Daemon, DaemonNotStarted
from tests.config_files import written
from tests.http_client import HTTP, HttpClient
from tests.line_client import LineClient
from tests.rigs.process import daemon_of
from tests.rigs.waiting import until
from tests.servers import HOST, free_port

WAIT_S_MAX: Final = 60.0
TIMEOUT_S: Final = 120
PATIENT: Final = f'timeout = "{TIMEOUT_S}s"\nconnect_timeout = "{TIMEOUT_S}s"\n'
"""Of calls that must not end before their test wants them to, should the machine stop."""
SECRET: Final = "whsec_" + "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="


class Received(NamedTuple):
    """One call."""

    path: str
    body: bytes
    headers: dict[str, str]


class Endpoint:
    """An endpoint that can be killed and come back at the same port."""

    def __init__(self, port: int) -> None:
        self.status_of: Callable[[Received], int] = lambda _: 204
        self.calls: list[Received] = []
        self._server: ThreadingHTTPServer | None = None
        self.port = port
        self.comes_back()

    def comes_back(self) -> None:
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                call = Received(self.path, body, {k.lower(): v for k, v in self.headers.items()})
                endpoint.calls.append(call)
                self.send_response(endpoint.status_of(call))
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

        self._server = Server((HOST, self.port), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def is_killed(self) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()
        self._server = None

    def url(self, path: str = "/due") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def bodies(self) -> list[Any]:
        return [json.loads(call.body) for call in self.calls]


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with free_port() as port:
        endpoint = Endpoint(port)
        yield endpoint
        with contextlib.suppress(AssertionError):
            endpoint.is_killed()


def config_for(directory: Path, port: int, more: str = "") -> str:
    secrets = {
        "version": 1,
        "secrets": [
            {"name": "orders", "active": [{"secret": SECRET, "created": "2026-11-21T10:15:00Z"}]}
        ],
    }
    file = directory / "secrets.json"
    file.write_text(json.dumps(secrets))
    file.chmod(0o600)
    text = f"""
        [push]
        secrets = "{file}"
        sign_with = ["orders"]
        private_networks = ["127.0.0.0/8"]
        allow_http = true
        ports = [{port}]
        """
    return written(directory, text + more)


@contextlib.contextmanager
def daemon_for(
    directory: Path, port: int, more: str = "", *flags: str
) -> Iterator[tuple[Daemon, HttpClient]]:
    config = config_for(directory, port, more)
    with (
        daemon_of(directory / "data", "--config", config, *HTTP, *flags) as daemon,
        HttpClient(daemon.http_address) as client,
    ):
        yield daemon, client


def toml_of(push: dict[str, object]) -> str:
    return "{ " + ", ".join(f"{name} = {json.dumps(value)}" for name, value in push.items()) + " }"


def put(client: HttpClient, given: dict[str, object], topic: str = "orders") -> int:
    answer = client.ask("POST", f"/v1/topics/{topic}/jobs", given)
    assert answer.status == 201, answer
    return int(answer.json["id"])


# --- The story -----------------------------------------------------------------------------------


def test_a_receiver_that_fails_twice_gets_the_third_call_by_the_ladder_and_signed(
    tmp_path: Path, endpoint: Endpoint
) -> None:
    endpoint.status_of = lambda _: 204 if len(endpoint.calls) == 3 else 503
    with daemon_for(tmp_path, endpoint.port) as (_, client):
        began_s = time.monotonic()
        put(client, {"body": {"n": 1}, "url": endpoint.url("/a?b=c"), "retry": "500ms 1s"})
        until(lambda: len(endpoint.calls) == 3)
        assert time.monotonic() - began_s >= 1.5
        until(lambda: client.ask("GET", "/v1/jobs/1").status == 404)
    assert {(call.path, call.body) for call in endpoint.calls} == {("/a?b=c", b'{"n": 1}')}
    assert [call.headers["delayd-attempt"] for call in endpoint.calls] == ["1", "2", "3"]
    assert len({call.headers["webhook-id"] for call in endpoint.calls}) == 1
    for call in endpoint.calls:
        Webhook(SECRET).verify(call.body, call.headers)


def test_a_receiver_that_was_down_gets_all_jobs_when_it_is_back(
    tmp_path: Path, endpoint: Endpoint
) -> None:
    with daemon_for(tmp_path, endpoint.port, PATIENT) as (_, client):
        endpoint.is_killed()
        job = {"delay": "1s", "url": endpoint.url(), "retry": "1s" + " 1s" * 19}
        jobs = [{"body": number, **job} for number in range(1_000)]
        assert client.ask("POST", "/v1/topics/orders/jobs", {"jobs": jobs}).status == 201
        until(lambda: bool(client.ask("GET", "/v1/topics/orders").json["ready"]))
        time.sleep(1)
        endpoint.comes_back()
        until(lambda: len(set(endpoint.bodies())) == 1_000, seen=lambda: len(endpoint.calls))
        until(lambda: client.ask("GET", "/v1/topics/orders").status == 404)
    assert sorted(endpoint.bodies()) == list(range(1_000))


def test_jobs_of_a_topic_with_a_target_go_there_whoever_puts_them(
    tmp_path: Path, endpoint: Endpoint
) -> None:
    push = toml_of({"url": endpoint.url(), "secrets": ["orders"], "concurrency": 2})
    more = f"\n[topics.invoices]\npush = {push}"
    with daemon_for(tmp_path, endpoint.port, more) as (daemon, client):
        with LineClient(daemon.address) as line:
            line.ask("use invoices")
            line.put(b"1")
        put(client, {"body": 2}, "invoices")
        until(lambda: sorted(endpoint.bodies()) == [1, 2])
        refused = client.ask(
            "POST", "/v1/topics/invoices/jobs", {"body": 3, "url": endpoint.url("/other")}
        )
        assert refused.status == 422
        assert "'invoices'" in refused.json["detail"]


def test_after_a_rotation_calls_are_signed_with_both_secrets_and_after_a_retirement_with_one(
    tmp_path: Path, endpoint: Endpoint
) -> None:
    def changed(what: str) -> str:
        file = str(tmp_path / "secrets.json")
        command = [sys.executable, "-m", "delayd", "secret", what, "orders", "--secrets", file]
        shown = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
        before = daemon.log().count("read again")
        os.kill(daemon.pid, signal.SIGHUP)
        until(lambda: daemon.log().count("read again") > before, seen=daemon.log)
        return shown.stdout.strip()

    def called() -> Received:
        calls = len(endpoint.calls)
        put(client, {"body": 1, "url": endpoint.url()})
        until(lambda: len(endpoint.calls) > calls)
        return endpoint.calls[-1]

    with daemon_for(tmp_path, endpoint.port) as (daemon, client):
        new = changed("rotate")
        call = called()
        for secret in (SECRET, new):
            Webhook(secret).verify(call.body, call.headers)
        changed("retire")
        call = called()
        Webhook(new).verify(call.body, call.headers)
        with pytest.raises(WebhookVerificationError):
            Webhook(SECRET).verify(call.body, call.headers)
        assert new not in daemon.log()


# --- Crashes and stops ---------------------------------------------------------------------------


def answered_after(event: threading.Event) -> int:
    event.wait(60)
    return 204


def test_a_call_that_was_under_way_at_a_kill_is_made_again_with_the_same_id(
    tmp_path: Path, endpoint: Endpoint
) -> None:
    may_answer = threading.Event()
    endpoint.status_of = lambda _: answered_after(may_answer)
    is_virtual = ("--clock", "virtual")
    with daemon_for(tmp_path, endpoint.port, PATIENT, *is_virtual) as (daemon, client):
        put(client, {"body": 1, "url": endpoint.url(), "retry": "100ms"})
        until(lambda: len(endpoint.calls) == 1)
        daemon.kill()
    may_answer.set()
    with daemon_for(tmp_path, endpoint.port, PATIENT, *is_virtual) as (daemon, client):
        daemon.advance((TIMEOUT_S + 60) / 2)
        assert len(endpoint.calls) == 1, "it may still be under way, as far as anybody knows"
        daemon.advance(TIMEOUT_S)
        until(lambda: client.ask("GET", "/v1/jobs/1").status == 404)
    first, second = endpoint.calls
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert [first.headers["delayd-attempt"], second.headers["delayd-attempt"]] == ["1", "2"]


def test_a_call_that_a_stop_cut_off_was_no_attempt(tmp_path: Path, endpoint: Endpoint) -> None:
    may_answer = threading.Event()
    endpoint.status_of = lambda _: answered_after(may_answer)
    more = f'{PATIENT}stop_grace = "100ms"\n'
    with daemon_for(tmp_path, endpoint.port, more) as (daemon, client):
        put(client, {"body": 1, "url": endpoint.url()})
        until(lambda: len(endpoint.calls) == 1)
        assert daemon.stop() == Exit.OK
    may_answer.set()
    with daemon_for(tmp_path, endpoint.port) as (_, client):
        until(lambda: len(endpoint.calls) == 2)
        until(lambda: client.ask("GET", "/v1/jobs/1").status == 404)
    assert [call.headers["delayd-attempt"] for call in endpoint.calls] == ["1", "1"]


# --- What is refused -----------------------------------------------------------------------------


NOT_THERE: Final[dict[str, dict[str, object]]] = {
    "nowhere": {"sink": "nowhere"},
    "unknown": {"url": "https://example.com/", "secrets": ["unknown"]},
}


@pytest.mark.parametrize("names", NOT_THERE)
def test_a_daemon_does_not_start_with_a_target_that_is_not_there(
    tmp_path: Path, endpoint: Endpoint, names: str
) -> None:
    more = "\n[topics.invoices]\npush = " + toml_of(NOT_THERE[names])
    with pytest.raises(DaemonNotStarted) as caught, daemon_for(tmp_path, endpoint.port, more):
        pass
    assert caught.value.exit_code == Exit.BAD_CONFIGURATION
    assert names in caught.value.log


def test_push_can_be_switched_off(tmp_path: Path, endpoint: Endpoint) -> None:
    with daemon_for(tmp_path, endpoint.port, "enabled = false\n") as (_, client):
        refused = client.ask("POST", "/v1/topics/a/jobs", {"body": 1, "url": endpoint.url()})
        assert (refused.status, refused.json["word"]) == (422, "PUSH_IS_OFF")


# --- delayd push test ----------------------------------------------------------------------------


def push_test(directory: Path, url: str) -> subprocess.CompletedProcess[str]:
    config = str(directory / "delayd.toml")
    command = [sys.executable, "-m", "delayd", "push", "test", url, "--config", config]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)


def test_push_test_sends_one_signed_sample_and_explains_the_outcome(
    tmp_path: Path, endpoint: Endpoint
) -> None:
    config_for(tmp_path, endpoint.port)
    good = push_test(tmp_path, endpoint.url())
    assert good.returncode == Exit.OK, good
    assert "204" in good.stdout
    (call,) = endpoint.calls
    Webhook(SECRET).verify(call.body, call.headers)
    endpoint.status_of = lambda _: 503
    bad = push_test(tmp_path, endpoint.url())
    assert bad.returncode != Exit.OK
    assert "503" in bad.stdout + bad.stderr
    refused = push_test(tmp_path, "http://10.0.0.1/")
    assert refused.returncode != Exit.OK
    assert "private" in refused.stdout + refused.stderr


def test_a_secret_that_becomes_another_topics_signs_no_call_of_this_one_any_more(
    tmp_path: Path, endpoint: Endpoint
) -> None:
    """Neither by a policy of before, nor by default, nor for a job that was moved here."""
    file = str(tmp_path / "secrets.json")

    def job(topic: str, body: object) -> dict[str, Any]:
        return {"body": body} if topic == "set" else {"body": body, "url": endpoint.url()}

    with daemon_for(tmp_path, endpoint.port) as (daemon, client):
        push = {"url": endpoint.url(), "secrets": ["orders"]}
        rule = {"retry": "1ms", "max_attempts": 1, "exhausted": "bury"}
        assert client.ask("PUT", "/v1/topics/set/policy", {**rule, "push": push}).status == 200
        moves = {**rule, "exhausted": "set"}
        for topic in ("set", "other"):
            put(client, job(topic, topic), topic)
        until(lambda: sorted(map(str, endpoint.bodies())) == ["other", "set"])
        command = (sys.executable, "-m", "delayd", "secret", "restrict", "orders", "--topic")
        subprocess.run(
            [*command, "ord*", "--secrets", file], check=True, capture_output=True, timeout=60
        )
        os.kill(daemon.pid, signal.SIGHUP)
        said = "secret 'orders' is for the topics ord*, and not for 'set'"
        until(lambda: said in daemon.log(), seen=daemon.log)
        refused = client.ask("PUT", "/v1/topics/more/policy", {"push": push})
        assert (refused.status, refused.json["word"]) == (422, "NOT_FOR_TOPIC")
        refused = client.ask("POST", "/v1/topics/other/jobs", job("other", 1))
        assert (refused.status, refused.json["word"]) == (422, "NOT_FOR_TOPIC")
        failed = put(client, job("set", "late"), "set")
        until(lambda: client.ask("GET", f"/v1/jobs/{failed}").json["state"] == "buried")
        assert said in str(client.ask("GET", f"/v1/jobs/{failed}").json)
        endpoint.status_of = lambda _: 500
        assert client.ask("PUT", "/v1/topics/orders/policy", moves).status == 200
        moved = put(client, job("orders", "moved"), "orders")
        until(lambda: client.ask("GET", f"/v1/jobs/{moved}").json["state"] == "buried")
        assert said in str(client.ask("GET", f"/v1/jobs/{moved}").json)
    assert sorted(map(str, endpoint.bodies())) == ["moved", "other", "set"]
