import json
import re
from pathlib import Path

import pytest
from standardwebhooks.webhooks import Webhook

from delayd.access.signing_secrets import SECRETS_FILE, Secrets
from delayd.cli.main import invoke
from delayd.clock import system_wall_ms
from delayd.core.policy import GLOBS_RULE
from delayd.exits import Exit
from delayd.limits import SECRETS_MAX, TOKEN_GLOBS_MAX
from delayd.push.signing import signature
from tests.access.secret_samples import named, written
from tests.cli.talking import FullOutput

NOW = "2026-11-21T10:15:00Z"
NOW_MS = 1_795_256_100_000
SECRET = re.compile(r"whsec_[A-Za-z0-9+/]{43}=\n")
RELOAD = "delayd: a running daemon reads the file again on SIGHUP: systemctl reload delayd"

Capture = pytest.CaptureFixture[str]


def for_all(name: str) -> str:
    how = f"delayd secret restrict {name} --topic GLOB"
    return f"delayd: every topic may have its calls signed with secret {name}: {how}"


@pytest.fixture(autouse=True)
def _now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delayd.cli.secret.system_wall_ms", lambda: NOW_MS)


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


def complaints(path: Path, capsys: Capture, *words: str) -> list[str]:
    """What a command says that is refused."""
    before = path.read_bytes() if path.exists() else None
    assert secret(path, *words) == Exit.USAGE
    assert (path.read_bytes() if path.exists() else None) == before
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err.splitlines()


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


def test_a_secret_is_printed_once_and_alone_and_kept_for_its_owner(
    path: Path, capsys: Capture
) -> None:
    assert secret(path, "create", "orders") == Exit.OK
    printed = capsys.readouterr()
    assert SECRET.fullmatch(printed.out)
    assert printed.err.splitlines() == [
        f"delayd: secret orders was added to {path}; it is shown only here",
        RELOAD,
        for_all("orders"),
    ]
    assert path.stat().st_mode & 0o777 == 0o600
    (entry,) = SECRETS_FILE.load(str(path))
    assert (entry.name, entry.active[0].created_s) == ("orders", NOW_MS // 1_000)
    assert is_accepted(path, printed.out.strip(), "orders")


def test_a_secret_is_exchanged_without_a_break(path: Path, capsys: Capture) -> None:
    old = shown_by(path, capsys, "create", "orders")
    other = shown_by(path, capsys, "create", "mail")
    assert secret(path, "rotate", "orders") == Exit.OK
    printed = capsys.readouterr()
    new = printed.out.strip()
    assert printed.err.splitlines() == [
        f"delayd: secret orders has a second one in {path}; it is shown only here",
        RELOAD,
        "delayd: when all receivers know it: delayd secret retire orders",
    ]
    assert is_accepted(path, old, "orders")
    assert is_accepted(path, new, "orders")
    assert secret(path, "retire", "orders") == Exit.OK
    assert capsys.readouterr().err.splitlines() == [
        f"delayd: the older secret orders was removed from {path}",
        RELOAD,
    ]
    assert not is_accepted(path, old, "orders")
    assert is_accepted(path, new, "orders")
    assert is_accepted(path, other, "mail")


def test_more_secrets_than_can_be_read_are_not_written(path: Path, capsys: Capture) -> None:
    written(path, *(named(f"s{number}", 1) for number in range(SECRETS_MAX)))
    assert secret(path, "create", "one-more") == Exit.BAD_CONFIGURATION
    said = f"delayd: {path}: has {SECRETS_MAX} secrets, and no more fit\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    ("verb", "undo"), [("create", "remove a"), ("rotate", "remove a, and create it again")]
)
def test_a_secret_that_nobody_could_be_told_is_named_for_removal(
    path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, verb: str, undo: str
) -> None:
    if verb == "rotate":
        shown_by(path, capsys, "create", "a")
    monkeypatch.setattr("sys.stdout", FullOutput())
    assert secret(path, verb, "a") == Exit.OUTPUT_FAILED
    said = f"could not be printed (No space left on device): delayd secret {undo}\n"
    assert capsys.readouterr().err.endswith(said)


def test_a_secret_in_the_wrong_place_is_not_repeated(path: Path, capsys: Capture) -> None:
    text = shown_by(path, capsys, "create", "a")
    for words in (["create", text], ["rotate", text], ["remove", text], ["create", text[6:]]):
        assert secret(path, *words) != Exit.OK
        printed = capsys.readouterr()
        assert printed.err
        assert text[6:] not in printed.err + printed.out


# --- For which topics ----------------------------------------------------------------------------


def test_an_older_secret_is_restricted_without_another_one(path: Path, capsys: Capture) -> None:
    written(path, named("orders", 1))
    before = Secrets.load(str(path))
    assert before.of_all_topics == ("orders",)
    assert secret(path, "restrict", "orders", "--topic", "orders") == Exit.OK
    after = Secrets.load(str(path))
    assert after.keys(["orders"]) == before.keys(["orders"])
    assert after.of_all_topics == ()
    capsys.readouterr()
    assert secret(path, "list", "--json") == Exit.OK
    assert json.loads(capsys.readouterr().out)["topics"] == ["orders"]


def test_patterns_that_are_none_and_too_many_are_refused(path: Path, capsys: Capture) -> None:
    written(path, named("orders", 1))
    said = complaints(path, capsys, "restrict", "orders", "--topic", "a b,ok", "--topic", "")
    assert [line.partition(": must")[0] for line in said] == [
        'delayd: --topic "a b"',
        'delayd: --topic ""',
    ]
    assert "--topic is missing" in complaints(path, capsys, "restrict", "orders")[0]
    many = ",".join(f"t{number}" for number in range(TOKEN_GLOBS_MAX + 1))
    assert GLOBS_RULE in complaints(path, capsys, "restrict", "orders", "--topic", many)[0]
    assert "no such secret" in complaints(path, capsys, "restrict", "b", "--topic", "x")[0]
