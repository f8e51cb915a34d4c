"""Tokens, their file and certificates, as somebody who runs the daemon meets them."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from delayd.access.scopes import Scope
from delayd.access.token_entries import TOKENS_FILE
from delayd.client import Client, DelaydError
from delayd.testing.daemon import Daemon, running_daemon
from tests.access.handshakes import Authority
from tests.access.samples import made, written
from tests.line_client import LineClient
from tests.pages import Reader, text_of
from tests.rigs.process import daemon_of, token_flags
from tests.rigs.waiting import until
from tests.servers import executable

TEXT, ENTRY = made(1)
SECRET: Final = TEXT[-43:]
WAIT_S_MAX: Final = 60.0


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    flags = token_flags(tmp_path, ENTRY, more='log.level = "debug"')
    with daemon_of(tmp_path / "data", *flags) as daemon:
        yield daemon


def reloaded(daemon: Daemon) -> str:
    """Send SIGHUP and return what the log says from then on, as soon as the tokens are in it."""
    before = daemon.log()
    os.kill(daemon.pid, signal.SIGHUP)
    until(lambda: re.search(r"read again.*\n", daemon.log().removeprefix(before)))
    return daemon.log().removeprefix(before)


def test_what_the_page_tells_to_type_does_what_it_says(tmp_path: Path) -> None:
    typed, *_ = re.findall(r"```sh\n(.*?)```", text_of("security.md"), re.DOTALL)
    create, list_tokens, revoke = typed.splitlines()
    reader = Reader(tmp_path)
    reader.said("sh", "-ec", create)
    assert (tmp_path / "worker.token").stat().st_mode & 0o077 == 0
    text = (tmp_path / "worker.token").read_text().strip()
    (entry,) = TOKENS_FILE.from_bytes((tmp_path / "tokens.json").read_bytes(), "t")
    assert entry.scopes == {Scope.RESERVE, Scope.DELETE, Scope.RELEASE, Scope.BURY}
    assert f"{entry.id}  mail worker" in reader.said("sh", "-ec", list_tokens)
    secret = text.removeprefix(f"dlyd_{entry.id}_")
    hashed = reader.said("sh", "-c", f"printf %s '{secret}' | sha256sum")  # as the page says
    assert hashed.split()[0] == entry.sha256
    reader.said("sh", "-ec", revoke.replace("0a1b2c3d", entry.id))
    assert TOKENS_FILE.from_bytes((tmp_path / "tokens.json").read_bytes(), "t") == ()


def test_a_new_token_is_known_after_a_reload_and_a_revoked_one_no_more_and_the_day_of_use_is_kept(
    daemon: Daemon, tmp_path: Path
) -> None:
    text, entry = made(2)
    with LineClient(daemon.address) as old, LineClient(daemon.address) as new:
        assert old.ask(f"auth {TEXT}") == "OK"
        written(tmp_path / "tokens.json", entry)
        assert new.ask(f"auth {text}") == "UNAUTHORIZED"
        assert "info the tokens were read again tokens=1" in reloaded(daemon)
        assert new.ask(f"auth {text}") == "OK"
        assert new.ask("put 0 0 60", b"hi") == "INSERTED 1"
        assert old.rest() == b""  # the connection is closed
    with LineClient(daemon.address) as client:
        assert client.ask(f"auth {TEXT}") == "UNAUTHORIZED"
    daemon.stop()
    used = (tmp_path / "tokens.json.used").read_text()
    assert re.search(rf'"{entry.id}": "20\d\d-\d\d-\d\d"', used)


def test_no_token_is_ever_in_the_log(daemon: Daemon, tmp_path: Path) -> None:
    for said in (f"auth {TEXT}", f"auth {TEXT}x", f"put {TEXT}", TEXT, f"auth  {TEXT}"):
        with LineClient(daemon.address) as client:
            client.ask(said)
    (tmp_path / "tokens.json").write_text(f'"{TEXT}"')
    assert SECRET not in reloaded(daemon)
    daemon.stop()
    assert SECRET not in daemon.log()


def test_a_start_warns_of_tokens_that_are_sent_in_clear(tmp_path: Path) -> None:
    with daemon_of(
        tmp_path / "data", *token_flags(tmp_path, ENTRY), "--line", "0.0.0.0:0"
    ) as daemon:
        said = "warning tokens are sent in clear: this address has no TLS"
        assert f'{said} address="line {daemon.listens_on}"' in daemon.log()


def test_a_command_shows_its_certificate_where_the_daemon_wants_one_and_so_does_what_it_runs(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    files = authority.files("127.0.0.1")
    config = tmp_path / "tls.toml"
    config.write_text(
        "line.tls = true\nhttp.tls = true\n[tls]\n"
        f'certificate = "{files.certificate}"\nkey = "{files.key}"\n'
        f'client_ca = "{authority.path}"\n'
    )
    with running_daemon("--config", str(config), "--http", "127.0.0.1:0") as daemon:
        where = ["--ca-file", "ca.pem", "--cert-file", "cert.pem", "--key-file", "key.pem"]
        http = ["--url", f"https://{daemon.http_listens_on}", *where]
        line = f"beanstalks://{daemon.listens_on}"

        def said(*words: str) -> str:
            return subprocess.check_output([executable("delayd"), *words], cwd=tmp_path, text=True)

        assert said("put", "mail", "x", *where, "--url", line) == "1\n"
        ran = [executable("delayd"), "put", "next", "x"]
        assert said("work", "mail", *http, "--drain", "--", *ran) == "2\n"
        with Client(line, tls=authority.client(), patience=0) as client, suppress(DelaydError):
            assert not client.topics(), "nobody is let in without a certificate"
        until(lambda: "handshake failed" in daemon.log() and "peer did not return" in daemon.log())
