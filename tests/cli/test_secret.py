import re
from pathlib import Path

import pytest
from standardwebhooks.webhooks import Webhook

from delayd.access.signing_secrets import Secrets
from delayd.cli.main import invoke
from delayd.clock import system_wall_ms
from delayd.exits import Exit
from delayd.push.signing import signature

SECRET = re.compile(r"whsec_[A-Za-z0-9+/]{43}=\n")

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "secrets.json"


def secret(path: Path, *words: str) -> int:
    return invoke(["secret", *words, "--secrets", str(path)])


def shown_by(path: Path, capsys: Capture, *words: str) -> str:
    """The secret that the command prints."""
    assert secret(path, *words) == Exit.OK
    out = capsys.readouterr().out
    assert SECRET.fullmatch(out)
    return out.strip()


def is_accepted(path: Path, text: str, *names: str) -> bool:
    """Whether a receiver with this secret accepts a call that is signed with these names."""
    epoch_s = system_wall_ms() // 1_000
    signed = signature(Secrets.load(str(path)).keys(names), "m", epoch_s, b"{}")
    headers = {"webhook-id": "m", "webhook-timestamp": str(epoch_s), "webhook-signature": signed}
    try:
        Webhook(text).verify(b"{}", headers)
    except Exception:  # noqa: BLE001 - whatever the library says
        return False
    return True


def test_a_secret_is_kept_for_its_owner_and_exchanged_without_a_break(
    path: Path, capsys: Capture
) -> None:
    old = shown_by(path, capsys, "create", "orders")
    assert path.stat().st_mode & 0o777 == 0o600
    other = shown_by(path, capsys, "create", "mail")
    new = shown_by(path, capsys, "rotate", "orders")
    assert is_accepted(path, old, "orders")
    assert is_accepted(path, new, "orders")
    assert secret(path, "retire", "orders") == Exit.OK
    assert not is_accepted(path, old, "orders")
    assert Secrets.load(str(path)).of_all_topics == ("orders", "mail")
    assert secret(path, "restrict", "orders", "--topic", "orders") == Exit.OK
    assert Secrets.load(str(path)).of_all_topics == ("mail",)
    assert is_accepted(path, new, "orders")
    assert is_accepted(path, other, "mail")
