"""`delayd push test`: what is no text of sessions.txt."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from standardwebhooks.webhooks import Webhook as Verifier

from delayd.cli.main import invoke
from delayd.exits import Exit
from tests.access.secret_samples import text
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


@pytest.mark.parametrize(("words", "keys"), [((), (3,)), (("--secret", "orders"), (1, 2))])
def test_receivers_accept_the_signature_of_a_sample_by_each_secret_of_its_name(
    config: Path, capsys: Capture, hook: Hook, words: tuple[str, ...], keys: tuple[int, ...]
) -> None:
    assert tried(config, capsys, hook.url, *words)[0] == Exit.OK
    ((headers, body),) = hook.got
    for number in keys:
        sample = Verifier(text(number)).verify(body, headers)
        assert sample == {"sample": True, "sent_by": "delayd push test"}


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
