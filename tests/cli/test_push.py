"""`delayd push test`: what is no text of sessions.txt."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from standardwebhooks.webhooks import Webhook as Verifier

from delayd.cli.main import invoke
from delayd.exits import Exit
from tests.access.secret_samples import text
from tests.cli.hook import Hook
from tests.cli.journals import Capture, lines_of


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hook]:
    monkeypatch.setattr("delayd.push.connections.PUSH_ANSWER_MS", 60_000)
    with Hook() as made:
        yield made


@pytest.mark.parametrize(("words", "keys"), [((), (3,)), (("--secret", "orders"), (1, 2))])
def test_receivers_accept_the_signature_of_a_sample_by_each_secret_of_its_name(
    tmp_path: Path, hook: Hook, words: tuple[str, ...], keys: tuple[int, ...]
) -> None:
    config = str(hook.configure(tmp_path))
    assert invoke(["push", "test", hook.url, "--config", config, *words]) == Exit.OK
    ((headers, body),) = hook.got
    for number in keys:
        sample = Verifier(text(number)).verify(body, headers)
        assert sample == {"sample": True, "sent_by": "delayd push test"}


def test_of_an_answer_the_beginning_is_shown(tmp_path: Path, hook: Hook, capsys: Capture) -> None:
    hook.status, hook.body = 404, b"no\x1b[2J" + b"o" * 900
    config = str(hook.configure(tmp_path))
    assert invoke(["push", "test", hook.url, "--config", config]) == Exit.UNREACHABLE
    said = lines_of(capsys)[4].split()
    assert said == ["begins", f"no\\x1b[2J{'o' * 191}\N{HORIZONTAL ELLIPSIS}"]
