import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from standardwebhooks.webhooks import Webhook as Verifier

from delayd.cli.main import invoke
from delayd.exits import Exit
from delayd.limits import BREAKER_FAILURES
from delayd.text import shown_url
from tests.access.secret_samples import named, text, written

FAILED = "delayd would count a failed attempt and try again as the retry rule says"
OUTAGE = (
    f"{FAILED}; after {BREAKER_FAILURES} such failures in a row it would wait before it calls this "
    "host again"
)

Capture = pytest.CaptureFixture[str]


class Hook:
    """A receiver in a thread; a test says what it answers."""

    def __init__(self) -> None:
        hook = self
        self.status = 200
        self.headers: dict[str, str] = {}
        self.body = b"thanks"
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.may_answer = threading.Event()
        self.may_answer.set()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                hook.got.append((dict(self.headers.items()), self.rfile.read(length)))
                hook.may_answer.wait()
                self.send_response(hook.status)
                for name, value in hook.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(hook.body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port
        self.url = f"http://127.0.0.1:{self.port}/hook?token=canary"


@pytest.fixture
def hook() -> Iterator[Hook]:
    hook = Hook()
    thread = threading.Thread(target=hook.server.serve_forever, args=(0.01,))
    thread.start()
    yield hook
    hook.may_answer.set()
    hook.server.shutdown()
    thread.join()
    hook.server.server_close()


@pytest.fixture
def config(tmp_path: Path, hook: Hook, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "delayd.toml"
    secrets = written(tmp_path / "secrets.json", named("orders", 1, 2), named("mail", 3))
    path.write_text(
        "[push]\n"
        'private_networks = ["127.0.0.0/8"]\n'
        "allow_http = true\n"
        f"ports = [{hook.port}]\n"
        f'secrets = "{secrets}"\n'
        'sign_with = ["mail"]\n'
        # This machine may stop for longer than delayd waits.
        'timeout = "1m"\n'
        'connect_timeout = "1m"\n'
    )
    monkeypatch.setattr("delayd.push.connections.PUSH_ANSWER_MS", 60_000)
    return path


def tried(config: Path, capsys: Capture, url: str, *words: str) -> tuple[int, list[str]]:
    """The exit code, and the lines with one space between their parts."""
    code = invoke(["push", "test", url, "--config", str(config), *words])
    return code, [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_a_sample_that_is_taken_is_explained_step_by_step(
    config: Path, capsys: Capture, hook: Hook
) -> None:
    code, lines = tried(config, capsys, hook.url)
    assert code == Exit.OK
    address, took = lines.pop(1), lines.pop(2)
    assert address == "address 127.0.0.1 may be called"
    assert took.startswith("answer 200 OK after ")
    assert lines == [
        f"url {shown_url(hook.url)} may be called",
        "signed with mail",
        "begins thanks",
        "next delayd would remove the job: it is delivered",
    ]
    ((headers, body),) = hook.got
    assert Verifier(text(3)).verify(body, headers) == {
        "sample": True,
        "sent_by": "delayd push test",
    }
    assert headers["Delayd-Topic"] == "sample"
    assert headers["webhook-id"].startswith("test_")


def test_method_and_headers_of_the_sample_may_be_said(
    config: Path, capsys: Capture, hook: Hook
) -> None:
    words = ("--method", "PUT", "--header", "X-Api-Key: 7", "--header", "Content-Type:text/plain")
    code, _ = tried(config, capsys, hook.url, *words)
    assert code == Exit.UNREACHABLE, "the receiver knows no PUT"
    assert tried(config, capsys, hook.url, *words[2:])[0] == Exit.OK
    ((headers, _),) = hook.got
    assert (headers["X-Api-Key"], headers["Content-Type"]) == ("7", "text/plain")
    for wrong in (("--method", "HEAD"), ("--header", "X"), ("--header", "Host: x")):
        assert tried(config, capsys, hook.url, *wrong) == (Exit.USAGE, [])
    assert len(hook.got) == 1


def test_the_secret_of_the_sample_may_be_named(config: Path, capsys: Capture, hook: Hook) -> None:
    code, lines = tried(config, capsys, hook.url, "--secret", "orders")
    assert (code, lines[2]) == (Exit.OK, "signed with orders")
    ((headers, body),) = hook.got
    for number in (1, 2):
        assert Verifier(text(number)).verify(body, headers)
    words = ("--secret", "orders", "--secret", "nobody's", "--secret", "x")
    assert tried(config, capsys, hook.url, *words) == (Exit.BAD_CONFIGURATION, [])
    assert len(hook.got) == 1


def test_a_secret_that_is_for_some_topics_signs_a_sample_of_one_of_them(
    config: Path, capsys: Capture, hook: Hook, tmp_path: Path
) -> None:
    orders = replace(named("orders", 1), topics=("orders*",))
    written(tmp_path / "secrets.json", orders, replace(named("mail", 3), topics=("mail",)))
    assert invoke(["push", "test", hook.url, "--config", str(config), "--secret", "orders"]) == (
        Exit.BAD_CONFIGURATION
    )
    said = "secret 'orders' is for the topics orders*, and not for 'sample'"
    assert capsys.readouterr().err == f'delayd: --topic "sample": {said}\n'
    words = ("--secret", "orders", "--topic", "orders.eu")
    assert tried(config, capsys, hook.url, *words)[0] == Exit.OK
    assert tried(config, capsys, hook.url, "--topic", "mail")[1][2] == "signed with mail"
    assert tried(config, capsys, hook.url, "--topic", "a b") == (Exit.USAGE, [])
    assert [headers["Delayd-Topic"] for headers, _ in hook.got] == ["orders.eu", "mail"]


@pytest.mark.parametrize(
    ("status", "headers", "error", "next_step"),
    [
        (404, {}, "404 Not Found", FAILED),
        (503, {}, "503 Service Unavailable", OUTAGE),
        (
            429,
            {"Retry-After": "90"},
            "429 Too Many Requests",
            OUTAGE.replace("; after", ", in 1m30s at the earliest (Retry-After); after"),
        ),
        (302, {"Location": "/b"}, "302 Found: redirects are not followed", FAILED),
        (410, {}, "410 Gone", "delayd would make the job a dead letter at once"),
    ],
)
def test_another_answer_is_told_with_what_would_follow(
    config: Path,
    capsys: Capture,
    hook: Hook,
    status: int,
    headers: dict[str, str],
    error: str,
    next_step: str,
) -> None:
    hook.status, hook.headers, hook.body = status, headers, b"no\x1b[2J" + b"o" * 900
    code, lines = tried(config, capsys, hook.url)
    assert code == Exit.UNREACHABLE
    assert lines[3].startswith(f"answer {error} after ")
    assert lines[4] == f"begins no\\x1b[2J{'o' * 191}…"
    assert lines[5] == f"next {next_step}"
    assert len(hook.got) == 1


def test_no_answer_is_told(config: Path, capsys: Capture, hook: Hook) -> None:
    config.write_text(config.read_text().replace('\ntimeout = "1m"', '\ntimeout = "100ms"'))
    hook.may_answer.clear()
    code, lines = tried(config, capsys, hook.url)
    assert code == Exit.UNREACHABLE
    assert lines[3].startswith("answer none after ")
    assert lines[3].endswith("ms: no answer within 100ms")
    assert lines[4:] == [f"next {OUTAGE}"]


def test_a_refused_connection_of_a_sample_is_told(
    config: Path, capsys: Capture, hook: Hook
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        config.write_text(config.read_text().replace(str(hook.port), str(port)))
        code, lines = tried(config, capsys, f"https://127.0.0.1:{port}/")
    assert code == Exit.UNREACHABLE
    assert lines[3].endswith(f": no connection to 127.0.0.1:{port}: connection refused")


def test_a_url_that_may_not_be_called_is_refused_with_the_rule(
    config: Path, capsys: Capture, hook: Hook
) -> None:
    code, lines = tried(config, capsys, "https://me@hooks.example/")
    assert code == Exit.BAD_CONFIGURATION
    assert lines == [
        "url refused: must have no user and no password: send them in a header",
        "next delayd would refuse a job or a policy with this url",
    ]
    assert hook.got == []


def test_a_host_whose_addresses_may_not_be_called_is_told_by_address(
    config: Path, capsys: Capture, hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(*_args: object, **_options: object) -> list[tuple[object, ...]]:
        places = (("10.0.0.7", hook.port), ("169.254.169.254", hook.port))
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", where) for where in places]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    url = f"http://x.example:{hook.port}/"
    code, lines = tried(config, capsys, url)
    private = (
        "the address 10.0.0.7 of x.example is private: [push] private_networks would have to allow "
        "it"
    )
    never = (
        "the address 169.254.169.254 of x.example is where a cloud hands out credentials: it may "
        "never be called"
    )
    assert code == Exit.BAD_CONFIGURATION
    assert lines[1:3] == [f"address {private}", f"address {never}"]
    assert lines[4].endswith(f": {private}")
    code, (line,) = tried(config, capsys, url, "--json")
    assert code == Exit.BAD_CONFIGURATION
    said = json.loads(line)
    assert (said["result"], said["error"]) == ("refused", private)
    assert said["addresses"] == [
        {"address": "10.0.0.7", "refused": private},
        {"address": "169.254.169.254", "refused": never},
    ]


def test_the_daemons_own_addresses_are_those_of_the_configuration(
    config: Path, capsys: Capture, hook: Hook
) -> None:
    text = config.read_text()
    config.write_text(f'[http]\nlisten = "127.0.0.1:{hook.port}"\n{text}')
    code, lines = tried(config, capsys, hook.url)
    assert code == Exit.BAD_CONFIGURATION
    assert f"is where this daemon listens (port {hook.port})" in lines[0]


def test_programs_get_one_object(config: Path, capsys: Capture, hook: Hook) -> None:
    code, (line,) = tried(config, capsys, hook.url, "--json")
    said = json.loads(line)
    assert isinstance(said.pop("took_ms"), int)
    assert (code, said) == (
        Exit.OK,
        {
            "url": shown_url(hook.url),
            "result": "delivered",
            "error": None,
            "addresses": [{"address": "127.0.0.1", "refused": None}],
            "signed_with": ["mail"],
            "status": "200 OK",
            "answer": "thanks",
            "retry_after_ms": None,
            "next": "delayd would remove the job: it is delivered",
        },
    )
    code, (line,) = tried(config, capsys, "ftp://x.example/", "--json")
    said = json.loads(line)
    assert code == Exit.BAD_CONFIGURATION
    assert (said["url"], said["result"]) == (None, "refused")
    assert said["error"] == "must be https://HOST/PATH"


def test_nothing_is_sent_where_push_is_off(config: Path, capsys: Capture, hook: Hook) -> None:
    config.write_text(config.read_text().replace("[push]", "[push]\nenabled = false"))
    code, _ = tried(config, capsys, f"http://127.0.0.1:{hook.port}/")
    assert code == Exit.BAD_CONFIGURATION
    assert hook.got == []


def test_secrets_that_cannot_be_read_are_told_before_anything_is_sent(
    config: Path, capsys: Capture, hook: Hook, tmp_path: Path
) -> None:
    (tmp_path / "secrets.json").write_text("[]")
    assert invoke(["push", "test", hook.url, "--config", str(config)]) == Exit.BAD_CONFIGURATION
    assert "must be an object of" in capsys.readouterr().err
    assert hook.got == []
