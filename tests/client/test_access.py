"""Tokens, TLS and unix sockets, against the daemon; both kinds of client."""

import asyncio
import contextlib
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from delayd.access.scopes import Scope
from delayd.client import AsyncClient, Client, Forbidden, Unauthorized, Unreachable
from delayd.testing.daemon import Daemon, running_daemon
from tests.access.handshakes import Authority
from tests.access.samples import made, written
from tests.client.worlds import Waiting

TEXT, ENTRY = made(2, (Scope.PUT, Scope.RESERVE, Scope.DELETE), ("mail",))
OTHERS_TEXT, OTHERS_ENTRY = made(4, (Scope.STATS, Scope.PEEK), ("others",))
OLD_TEXT, OLD_ENTRY = made(3, not_after_s=1_700_000_000)


@contextlib.contextmanager
def client_of(kind: str, url: str, **how: Any) -> Iterator[Any]:  # noqa: ANN401 - options of either
    if kind == "plain":
        with Client(url, **how) as client:
            yield client
        return
    loop = asyncio.new_event_loop()

    async def made_client() -> AsyncClient:
        return AsyncClient(url, **how)

    asynchronous = loop.run_until_complete(made_client())
    try:
        yield Waiting(loop, asynchronous)
    finally:
        loop.run_until_complete(asynchronous.close())
        loop.close()


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


def url_of(daemon: Daemon, protocol: str) -> str:
    if protocol == "http":
        return f"https://{daemon.http_listens_on}"
    return f"beanstalks://{daemon.listens_on}"


@pytest.mark.parametrize("kind", ["plain", "asyncio"])
@pytest.mark.parametrize("protocol", ["http", "line"])
def test_a_client_shows_its_token_over_tls(
    guarded: tuple[Daemon, ssl.SSLContext], kind: str, protocol: str
) -> None:
    daemon, tls = guarded
    with client_of(kind, url_of(daemon, protocol), token=TEXT, tls=tls) as client:
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


@pytest.mark.parametrize("kind", ["plain", "asyncio"])
@pytest.mark.parametrize("protocol", ["http", "line"])
def test_without_a_token_or_trust_there_is_nothing(
    guarded: tuple[Daemon, ssl.SSLContext], kind: str, protocol: str
) -> None:
    daemon, tls = guarded
    url = url_of(daemon, protocol)
    with client_of(kind, url, tls=tls) as client, pytest.raises(Unauthorized):
        client.put("mail", "x")
    with client_of(kind, url, token=f"{TEXT}x", tls=tls) as client, pytest.raises(Unauthorized):
        client.put("mail", "x")
    with client_of(kind, url, token=TEXT) as client, pytest.raises(Unreachable, match="verif"):
        client.put("mail", "x")


@pytest.mark.parametrize("kind", ["plain", "asyncio"])
@pytest.mark.parametrize("protocol", ["http", "line"])
def test_what_a_token_lacks_is_said_in_the_same_words_over_both_protocols(
    guarded: tuple[Daemon, ssl.SSLContext], kind: str, protocol: str
) -> None:
    daemon, tls = guarded
    url = url_of(daemon, protocol)
    with client_of(kind, url, token=TEXT, tls=tls) as client:
        with pytest.raises(Forbidden) as lacks_scope:
            client.pause("mail", 1)
        with pytest.raises(Forbidden) as other_topic:
            client.put("sms", "x", key="k")
        with pytest.raises(Forbidden) as watched:
            client.reserve(["mail", "sms"], timeout=0)
    assert str(lacks_scope.value) == "the token lacks the scope pause"
    assert lacks_scope.value.scope == "pause"
    for caught in (other_topic, watched):
        verb = "put" if caught is other_topic else "reserve"
        assert (
            str(caught.value) == f"the token allows {verb} for the topics mail, and not for 'sms'"
        )
        assert caught.value.scope == ""
    told = client_of(kind, url, token=OLD_TEXT, tls=tls)
    with told as client, pytest.raises(Unauthorized) as expired:
        client.put("mail", "x")
    assert str(expired.value) == "the token expired at 2023-11-14T22:13:20Z"
    told = client_of(kind, url, token=f"{OLD_TEXT[:-1]}A", tls=tls)
    with told as client, pytest.raises(Unauthorized) as guessed:
        client.put("mail", "x")
    assert "expired" not in str(guessed.value)


@pytest.mark.parametrize("kind", ["plain", "asyncio"])
@pytest.mark.parametrize("protocol", ["http", "line"])
def test_a_token_that_may_see_no_topic_is_not_told_that_there_is_none(
    guarded: tuple[Daemon, ssl.SSLContext], kind: str, protocol: str
) -> None:
    daemon, tls = guarded
    with client_of(kind, url_of(daemon, protocol), token=TEXT, tls=tls) as client:
        client.put("mail", "x")
        for call, scope in ((client.topics, "stats"), (client.calendar, "peek")):
            with pytest.raises(Forbidden) as refused:
                call()
            assert refused.value.scope == scope
    with client_of(kind, url_of(daemon, protocol), token=OTHERS_TEXT, tls=tls) as client:
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
