"""Tokens, TLS and unix sockets, against the daemon; both kinds of client."""

import contextlib
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from delayd.access.scopes import Scope
from delayd.client import Forbidden, Unauthorized, Unreachable
from delayd.testing.daemon import Daemon, running_daemon
from tests.access.handshakes import Authority
from tests.access.samples import made, written
from tests.client.worlds import client_of

TEXT, ENTRY = made(2, (Scope.PUT, Scope.RESERVE, Scope.DELETE), ("mail",))
OTHERS_TEXT, OTHERS_ENTRY = made(4, (Scope.STATS, Scope.PEEK), ("others",))
OLD_TEXT, OLD_ENTRY = made(3, not_after_s=1_700_000_000)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("d")


@pytest.fixture(scope="module")
def guarded(home: Path) -> Iterator[tuple[Daemon, ssl.SSLContext]]:
    """A daemon that wants tokens, over TLS, and what its clients trust."""
    authority = Authority(home)
    files = authority.files("127.0.0.1")
    written(home / "tokens.json", ENTRY, OTHERS_ENTRY, OLD_ENTRY)
    (home / "delayd.toml").write_text(
        f'auth.tokens = "{home}/tokens.json"\nline.tls = true\nhttp.tls = true\n'
        f'tls.certificate = "{files.certificate}"\ntls.key = "{files.key}"\n'
    )
    flags = ("--config", str(home / "delayd.toml"), "--http", "127.0.0.1:0")
    with running_daemon(*flags, data_dir=home / "data") as daemon:
        yield daemon, authority.client()


Connect = Callable[..., contextlib.AbstractContextManager[Any]]


@pytest.fixture(params=["http plain", "http asyncio", "line plain", "line asyncio"])
def connect(guarded: tuple[Daemon, ssl.SSLContext], request: pytest.FixtureRequest) -> Connect:
    """Make a client of either kind over either protocol; it trusts the daemon unless told not."""
    daemon, tls = guarded
    protocol, kind = request.param.split()
    is_http = protocol == "http"
    url = f"https://{daemon.http_listens_on}" if is_http else f"beanstalks://{daemon.listens_on}"
    return lambda **how: client_of(kind, url, **{"tls": tls, **how})


def test_a_client_shows_its_token_over_tls(connect: Connect) -> None:
    with connect(token=TEXT) as client:
        client.put("mail", "hello")
        with client.reserve("mail", timeout=0) as job:
            assert job.text == "hello"
        client.put("mail", "again")
        (job,) = client.reserve_many(["mail"], limit=1, timeout=0)
        job.ack()
        with pytest.raises(Forbidden) as caught:
            client.set_policy("mail", {"jobs_max": 1})
        assert caught.value.scope == "admin"
        with client.batch() as batch:
            batch.put("mail", "x")
        assert len(batch.results) == 1
        client.cancel(batch.results[0].id)


def test_without_a_token_or_trust_there_is_nothing(connect: Connect) -> None:
    for token in ("", f"{TEXT}x"):
        with connect(token=token) as client, pytest.raises(Unauthorized):
            client.put("mail", "x")
    with connect(token=TEXT, tls=None) as client, pytest.raises(Unreachable, match="verif"):
        client.put("mail", "x")


def test_what_a_token_lacks_is_said_in_the_same_words_over_both_protocols(connect: Connect) -> None:
    with connect(token=TEXT) as client:
        allows = "the token allows {} for the topics mail, and not for 'sms'"
        refused: tuple[tuple[Callable[[], object], str, str], ...] = (
            (lambda: client.pause("mail", 1), "the token lacks the scope pause", "pause"),
            (lambda: client.put("sms", "x", key="k"), allows.format("put"), ""),
            (lambda: client.reserve(["mail", "sms"], timeout=0), allows.format("reserve"), ""),
        )
        for call, said, scope in refused:
            with pytest.raises(Forbidden) as lacks:
                call()
            assert (str(lacks.value), lacks.value.scope) == (said, scope)
    with connect(token=OLD_TEXT) as client, pytest.raises(Unauthorized) as expired:
        client.put("mail", "x")
    assert str(expired.value) == "the token expired at 2023-11-14T22:13:20Z"
    with connect(token=f"{OLD_TEXT[:-1]}A") as client, pytest.raises(Unauthorized) as guessed:
        client.put("mail", "x")
    assert "expired" not in str(guessed.value)


def test_a_token_that_may_see_no_topic_is_not_told_that_there_is_none(connect: Connect) -> None:
    with connect(token=TEXT) as client:
        client.put("mail", "x")
        for call, scope in ((client.topics, "stats"), (client.calendar, "peek")):
            with pytest.raises(Forbidden) as refused:
                call()
            assert refused.value.scope == scope
    with connect(token=OTHERS_TEXT) as client:
        assert (client.topics(), client.calendar().topics) == ([], {})


@pytest.mark.process
@pytest.mark.parametrize("kind", ["plain", "asyncio"])
def test_a_daemon_on_unix_sockets_is_reached(tmp_path: Path, kind: str) -> None:
    line, http = f"{tmp_path}/l", f"{tmp_path}/h"
    flags = ("--line", f"unix:{line}", "--http", f"unix:{http}")
    with running_daemon(*flags, data_dir=tmp_path / "data"):
        with client_of(kind, f"http+unix:{http}") as client:
            put = client.put("mail", "hello")
        with client_of(kind, f"unix:{line}") as client:
            assert client.get(put.id).text == "hello"
    with client_of(kind, f"unix:{line}") as client, pytest.raises(Unreachable, match=line):
        client.stats()
