import os
import re
from pathlib import Path

import pytest

from delayd.access.scopes import Scope
from delayd.access.token_entries import Entry
from delayd.access.tokens import Tokens
from delayd.cli.main import invoke
from delayd.exits import Exit

NOW_MS = 1_795_256_100_000
TOKEN = re.compile(r"dlyd_([0-9a-f]{8})_([A-Za-z0-9_-]{43})\n")

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delayd.cli.token.system_wall_ms", lambda: NOW_MS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tokens.json"


def create(path: Path, *words: str) -> int:
    return invoke(["token", "create", *words, "--tokens", str(path)])


def made(path: Path, capsys: Capture, *words: str) -> tuple[str, Entry]:
    """Create a token, which is printed once and alone; its text and its entry."""
    assert create(path, *words) == Exit.OK
    printed = capsys.readouterr()
    match = TOKEN.fullmatch(printed.out)
    assert match is not None
    assert printed.err.startswith(f"delayd: token {match[1]} was added to {path}, without its")
    assert match[2] not in path.read_text()
    (entry,) = (entry for entry in Tokens.load(str(path)).entries if entry.id == match[1])
    return match[0].strip(), entry


# --- Creating ------------------------------------------------------------------------------------


def test_a_token_may_what_was_said_and_is_recognised(path: Path, capsys: Capture) -> None:
    words = "--scope put,peek --scope stats --topic mail.*,sms --topic x --not-after 90d"
    text, entry = made(path, capsys, "mail worker", *words.split())
    assert entry == Entry(
        id=text[5:13],
        name="mail worker",
        sha256=entry.sha256,
        scopes=frozenset({Scope.PUT, Scope.PEEK, Scope.STATS}),
        topics=("mail.*", "sms", "x"),
        created_s=NOW_MS // 1_000,
        not_after_s=NOW_MS // 1_000 + 90 * 86_400,
    )
    assert Tokens.load(str(path)).find(text, NOW_MS / 1_000) is not None
    assert path.stat().st_mode & 0o777 == 0o600
    words = "w --scope all --topic * --not-after 2027-01-01T00:00:00+01:00"
    _, entry = made(path, capsys, *words.split())
    assert (entry.scopes, entry.not_after_s) == (frozenset(Scope), 1_798_758_000)


def test_an_id_that_is_taken_is_drawn_again(
    path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = iter([b"a" * 36, b"a" * 4 + b"b" * 32, b"c" * 36])
    monkeypatch.setattr(os, "urandom", lambda count: next(drawn))
    ids = [made(path, capsys, "w", "--scope", "put", "--topic", "*")[1].id for _ in range(2)]
    assert ids == ["61616161", "63636363"]


# --- Where the file is ---------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_that_root_makes_is_of_whoever_has_its_directory_and_then_stays_its_owners(
    path: Path, capsys: Capture
) -> None:
    words = ("w", "--scope", "put", "--topic", "*")
    os.chown(path.parent, 1_234, 2_345)
    made(path, capsys, *words)
    assert (path.stat().st_uid, path.stat().st_gid) == (1_234, 2_345)
    os.chown(path, 3_456, 4_567)
    made(path, capsys, *words)
    assert (path.stat().st_uid, path.stat().st_gid) == (3_456, 4_567)
    assert path.stat().st_mode & 0o777 == 0o600
