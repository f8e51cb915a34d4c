"""`delayd push test`: what is no text of sessions.txt."""

import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from standardwebhooks.webhooks import Webhook as Verifier

from delayd.cli.main import invoke
from delayd.exits import Exit
from delayd.text import shown_url
from tests.access.secret_samples import named, text, written
from tests.cli.hook import Hook

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hook]:
    monkeypatch.setattr("delayd.push.connections.PUSH_ANSWER_MS", 60_000)
    with Hook() as made:
        yield made


@pytest.fixture
def config(tmp_path: Path, hook: Hook) -> Path:
    return hook.configure(tmp_path)


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


def test_of_an_answer_the_beginning_is_shown(config: Path, capsys: Capture, hook: Hook) -> None:
    hook.status, hook.body = 404, b"no\x1b[2J" + b"o" * 900
    code, lines = tried(config, capsys, hook.url)
    assert (code, lines[4]) == (
        Exit.UNREACHABLE,
        f"begins no\\x1b[2J{'o' * 191}\N{HORIZONTAL ELLIPSIS}",
    )


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
