"""Tokens, their file and certificates, as somebody who runs the daemon meets them."""

import contextlib
import os
import re
import signal
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from delayd.access.scopes import Scope
from delayd.access.token_entries import TOKENS_FILE
from delayd.exits import Exit
from delayd.testing.daemon import Daemon, DaemonNotStarted, running_daemon
from tests.access.handshakes import Authority
from tests.access.samples import made, written
from tests.line_client import LineClient
from tests.pages import Reader, text_of
from tests.rigs.waiting import until

TEXT, ENTRY = made(1)
SECRET: Final = TEXT[-43:]
WAIT_S_MAX: Final = 60.0


@pytest.fixture
def configured(tmp_path: Path) -> Callable[[str], str]:
    """Write a configuration with a tokens file beside it; return the path."""
    written(tmp_path / "tokens.json", ENTRY)

    def configure(more: str = "") -> str:
        path = tmp_path / "delayd.toml"
        path.write_text(f'auth.tokens = "{tmp_path}/tokens.json"\n{more}')
        return str(path)

    return configure


@pytest.fixture
def daemon(configured: Callable[[str], str], tmp_path: Path) -> Iterator[Daemon]:
    with running_daemon("--config", configured(""), data_dir=tmp_path / "data") as daemon:
        yield daemon
        assert SECRET not in daemon.log()


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


def test_a_client_without_a_token_may_nothing_and_with_one_what_it_says(
    configured: Callable[[str], str], tmp_path: Path
) -> None:
    text, entry = made(2, (Scope.PUT, Scope.STATS), ("mail.*",))
    path = configured("")
    written(tmp_path / "tokens.json", entry)
    with (
        running_daemon("--config", path, data_dir=tmp_path / "data") as daemon,
        LineClient(daemon.address) as client,
    ):
        assert client.ask("stats-tube default") == "UNAUTHORIZED"
        assert client.ask(f"auth {text[:-1]}") == "UNAUTHORIZED"
        assert client.ask(f"auth {text}") == "OK"
        assert client.ask("use mail.out") == "USING mail.out"
        assert client.ask("put 0 0 60", b"hi") == "INSERTED 1"
        assert client.ask("put-in-tube default 0 0 60", b"hi") == (
            "FORBIDDEN the token allows put for the topics mail.*, and not for 'default'"
        )
        assert (
            client.ask("delete 1") == "NOT_FOUND"
        )  # who may not look is not told that it is there
        assert client.ask("reserve-with-timeout 0").startswith("FORBIDDEN the token lacks")


def test_a_token_that_is_made_is_known_after_a_reload_and_a_revoked_one_no_more(
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


def test_a_bad_file_changes_nothing_and_the_log_says_why_without_its_secrets(
    daemon: Daemon, tmp_path: Path
) -> None:
    path = tmp_path / "tokens.json"
    path.write_text(path.read_text().replace(ENTRY.sha256, TEXT))
    said = reloaded(daemon)
    assert "error the tokens are not read again: the old ones stay" in said
    assert "tokens[0].sha256: must be 64 hexadecimal digits" in said
    with LineClient(daemon.address) as client:
        assert client.ask(f"auth {TEXT}") == "OK"


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_no_token_is_ever_in_the_log(
    log_format: str, configured: Callable[[str], str], tmp_path: Path
) -> None:
    path = configured('log.level = "debug"')
    flags = ("--config", path, "--log-format", log_format)
    with running_daemon(*flags, data_dir=tmp_path / "data") as daemon:
        for said in (f"auth {TEXT}", f"auth {TEXT}x", f"put {TEXT}", TEXT, f"auth  {TEXT}"):
            with LineClient(daemon.address) as client:
                client.ask(said)
        (tmp_path / "tokens.json").write_text(f'"{TEXT}"')
        reloaded(daemon)
        daemon.stop()
        assert daemon.log()
        assert SECRET not in daemon.log()


def test_the_day_of_a_use_is_written_when_the_daemon_stops(daemon: Daemon, tmp_path: Path) -> None:
    with LineClient(daemon.address) as client:
        client.ask(f"auth {TEXT}")
    daemon.stop()
    used = (tmp_path / "tokens.json.used").read_text()
    assert re.search(rf'"{ENTRY.id}": "20\d\d-\d\d-\d\d"', used)


# --- The start -----------------------------------------------------------------------------------


def test_files_that_are_wrong_are_all_told_and_nothing_is_started(tmp_path: Path) -> None:
    config = tmp_path / "delayd.toml"
    missing = tmp_path / "missing"
    config.write_text(
        f'auth.tokens = "{missing}"\ntls.certificate = "{missing}"\nline.tls = true\n'
    )
    with (
        pytest.raises(DaemonNotStarted) as caught,
        running_daemon("--config", str(config), data_dir=tmp_path / "data"),
    ):
        pass
    assert caught.value.exit_code == Exit.BAD_CONFIGURATION
    tokens, certificate = caught.value.log.splitlines()
    assert f"auth.tokens = {missing}: cannot be read: No such file or directory" in tokens
    assert f"tls.certificate = {missing}: cannot be read" in certificate
    assert not (tmp_path / "data").exists()


def test_tokens_open_an_address_that_others_reach_with_a_warning(
    configured: Callable[[str], str], tmp_path: Path
) -> None:
    words = ("--line", "0.0.0.0:0")
    with (
        pytest.raises(DaemonNotStarted) as caught,
        running_daemon(*words, data_dir=tmp_path / "data"),
    ):
        pass
    assert caught.value.exit_code == Exit.BAD_CONFIGURATION
    flags = ("--config", configured(""), *words)
    with running_daemon(*flags, data_dir=tmp_path / "data") as daemon:
        assert (
            f'tokens are sent in clear: this address has no TLS address="line {daemon.listens_on}"'
            in (daemon.log())
        )


def test_users_of_a_unix_socket_who_are_on_the_list_need_no_token(
    configured: Callable[[str], str], tmp_path: Path
) -> None:
    path = tmp_path / "line.sock"
    for uid, said in ((os.geteuid(), b"INSERTED 1\r\n"), (os.geteuid() + 1, b"UNAUTHORIZED\r\n")):
        flags = ("--config", configured(f"auth.unix_uids = [{uid}]"), "--line", f"unix:{path}")
        with (
            running_daemon(*flags, data_dir=tmp_path / f"data-{uid}"),
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client,
        ):
            client.settimeout(WAIT_S_MAX)
            client.connect(str(path))
            client.sendall(b"put 0 0 60 2\r\nhi\r\n")
            assert client.makefile("rb").readline() == said


# --- TLS -----------------------------------------------------------------------------------------


def line_over_tls(daemon: Daemon, context: ssl.SSLContext, name: str, said: bytes) -> bytes:
    with (
        socket.create_connection(daemon.address, timeout=WAIT_S_MAX) as connection,
        context.wrap_socket(connection, server_hostname=name) as client,
    ):
        client.sendall(said + b"\r\nquit\r\n")
        return b"".join(iter(lambda: client.recv(4_096), b""))


def test_a_renewed_certificate_is_shown_after_a_reload(
    configured: Callable[[str], str], tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    files = authority.files("old.example.net")
    config = configured(
        f'line.tls = true\ntls.certificate = "{files.certificate}"\ntls.key = "{files.key}"'
    )
    with running_daemon("--config", config, data_dir=tmp_path / "data") as daemon:
        said = f"auth {TEXT}\r\nlist-tube-used".encode()
        client = authority.client()
        assert line_over_tls(daemon, client, "old.example.net", said) == b"OK\r\nUSING default\r\n"
        authority.files("new.example.net")
        told = reloaded(daemon)
        deadline_s = time.monotonic() + WAIT_S_MAX
        while "the certificate was read again" not in told:
            assert time.monotonic() < deadline_s
            told = daemon.log()
        assert line_over_tls(daemon, client, "new.example.net", said) == b"OK\r\nUSING default\r\n"
        with pytest.raises(ssl.SSLCertVerificationError):
            line_over_tls(daemon, client, "old.example.net", said)
        assert SECRET not in daemon.log()


def test_nobody_gets_in_without_a_certificate_where_one_is_required(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.files()
    config = tmp_path / "delayd.toml"
    config.write_text(
        f'line.tls = true\ntls.certificate = "{files.certificate}"\ntls.key = "{files.key}"\n'
        f'tls.client_ca = "{authority.path}"\n'
    )
    flags = ("--config", str(config), "--line", "0.0.0.0:0")
    with running_daemon(*flags, data_dir=tmp_path / "data") as daemon:
        known = authority.client("worker.example.net")
        assert line_over_tls(daemon, known, "localhost", b"list-tube-used") == b"USING default\r\n"
        with pytest.raises(OSError, match=r"(?i)certificate required|reset|EOF|broken pipe"):
            line_over_tls(daemon, authority.client(), "localhost", b"list-tube-used")
        with pytest.raises(OSError, match=r"(?i)certificate required|reset|EOF|broken pipe"):
            line_over_tls(daemon, authority.client(), "localhost", b"list-tube-used")
        said = 'warning a TLS handshake failed address="127.0.0.1" reason="peer did not return'
        assert daemon.log().count(said) == 1, "the second one is counted, and told a minute later"


def test_a_user_of_a_unix_socket_who_is_on_no_list_is_told_once_and_counted(
    tmp_path: Path,
) -> None:
    paths = {name: tmp_path / name for name in ("line", "http")}
    config = tmp_path / "delayd.toml"
    config.write_text(
        f'auth.unix_uids = [{os.getuid() + 1}]\nhttp.listen = "unix:{paths["http"]}"\n'
    )
    flags = ("--config", str(config), "--line", f"unix:{paths['line']}")
    with running_daemon(
        *flags, "--http", f"unix:{paths['http']}", data_dir=tmp_path / "d"
    ) as daemon:
        for name, said in (
            ("line", b"stats\r\n"),
            ("http", b"GET /v1/topics HTTP/1.0\r\nHost: a\r\n\r\n"),
        ):
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(WAIT_S_MAX)
                client.connect(str(paths[name]))
                with contextlib.suppress(OSError):
                    client.sendall(said)
                    client.recv(4_096)
        assert daemon.log().count("a user of a unix socket was turned away") == 1
        assert f"uid={os.getuid()} gid={os.getgid()}" in daemon.log()
