import ssl
from pathlib import Path

import pytest

from delayd.access.scopes import Scope
from delayd.cli.connect import EXITS, URL_VARIABLE, client, exit_of, said, url_of
from delayd.cli.main import invoke
from delayd.cli.terminal import CommandFailed
from delayd.client import errors
from delayd.client.errors import DelaydError
from delayd.exits import Exit
from tests.cli.conftest import imported_by
from tests.cli.talking import Talk


def test_a_daemon_that_cannot_be_reached_is_named_with_what_to_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert invoke(["topics", "--url", "http://127.0.0.1:1"]) == Exit.UNREACHABLE
    err = capsys.readouterr().err
    assert "http://127.0.0.1:1" in err
    assert "delayd serve" in err


def test_the_url_is_that_of_the_flag_the_variable_or_the_default(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert url_of(None, None) == "http://127.0.0.1:11301"
    assert url_of("https://queue.example", None) == "https://queue.example"
    assert url_of("https://queue.example", "127.0.0.1:3") == "beanstalk://127.0.0.1:3"
    monkeypatch.setenv(URL_VARIABLE, "http://127.0.0.1:2")
    invoke(["topics"])
    assert "127.0.0.1:2" in capsys.readouterr().err


def test_a_url_that_is_none_is_refused_with_the_rule() -> None:
    with pytest.raises(CommandFailed, match="must be http://HOST:PORT") as refused:
        client("ftp://x", None)
    assert refused.value.exit_code == Exit.USAGE


def test_the_token_comes_from_a_file_or_a_variable(
    talk: Talk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk.rig.authenticator.tokens = talk.rig.authenticator.tokens or None
    path = tmp_path / "worker.token"
    path.write_text("dlyd_x\n")
    talk.has_token(Scope.STATS)
    talk.ok("topics")
    monkeypatch.delenv("DELAYD_TOKEN")
    assert "--token-file" in talk.fails(Exit.NOT_ALLOWED, "topics")
    talk.fails(Exit.NOT_ALLOWED, "topics", "--token-file", str(path))
    path.write_text("")
    assert "holds no token" in talk.fails(Exit.USAGE, "topics", "--token-file", str(path))
    talk.fails(Exit.USAGE, "topics", "--token-file", str(tmp_path / "nowhere"))


def test_a_token_without_the_scope_names_the_scope(talk: Talk) -> None:
    talk.has_token(Scope.PEEK)
    told = talk.fails(Exit.NOT_ALLOWED, "put", "mail", "x")
    assert "the token lacks the scope put: delayd token create" in told


def test_what_is_no_certificate_is_said(tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    path.write_text("x")
    with pytest.raises(CommandFailed, match="is not a certificate"):
        client("https://queue.example", None, None, str(path))
    assert ssl.OPENSSL_VERSION


def test_every_error_of_the_client_has_an_exit_code() -> None:
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, DelaydError)
    ]
    assert len(kinds) > 20
    for kind in kinds:
        assert any(issubclass(kind, row) for row, _code in EXITS)
    assert exit_of(errors.Draining("drains")) == Exit.NOT_NOW
    assert exit_of(errors.JobNotFound("none")) == Exit.NOTHING_THERE
    assert exit_of(errors.NotReserved("ended")) == Exit.REFUSED


def test_what_may_succeed_later_says_when() -> None:
    told = list(said(errors.Draining("it drains", retry_after_s=5.0)))
    assert told == ["it drains", "nothing was changed; try again in 5 s"]


def test_a_command_imports_little_and_neither_rich_nor_the_daemon() -> None:
    baseline = imported_by("click")
    imported = imported_by("delayd.cli.main", "delayd.cli.put", "delayd.client.sync") - baseline
    heavy = {
        "ssl",
        "delayd.client.line_calls",
        "rich",
        "aiohttp",
        "asyncio",
        "msgspec",
        "orjson",
        "delayd.core",
        "delayd.config",
    }
    assert not heavy & imported
    assert len(imported) <= IMPORTED_MAX


IMPORTED_MAX = 50
"""Modules beside click's that a client command may need: 1.5 times the start of click alone."""
