import datetime as dt
import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from delayd.access.errors import AccessInvalid
from delayd.access.principal import EVERYBODY
from delayd.access.reload import AccessControl
from delayd.access.scopes import Scope
from delayd.config import Config, SinkSection
from delayd.limits import NAMES_LOGGED_MAX
from delayd.log_lines import Log
from delayd.net.addresses import Listener, Listeners, TcpAddress, open_listener
from tests.access import secret_samples
from tests.access.handshakes import Authority, shake_hands
from tests.access.samples import made, written

TEXT, ENTRY = made(1)
PEER = "192.0.2.7"


class Told:
    """A log, and its lines without their times."""

    def __init__(self) -> None:
        self._stream = io.StringIO()
        self.log = Log(self._stream, lambda: 0)

    def lines(self) -> list[str]:
        lines = [line.partition(" ")[2] for line in self._stream.getvalue().splitlines()]
        self._stream.truncate(0)
        self._stream.seek(0)
        return lines


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def settings(tmp_path: Path) -> Config:
    """With tokens, and TLS everywhere."""
    files = Authority(tmp_path).files()
    return Config(
        auth_tokens=written(tmp_path / "tokens.json", ENTRY),
        tls_certificate=files.certificate,
        tls_key=files.key,
        line_tls=True,
        http_tls=True,
    )


def test_doors_have_tls_and_need_tokens_as_the_settings_say(settings: Config) -> None:
    entrance = AccessControl.open(Config())
    assert entrance.authenticator.identify(None) is EVERYBODY
    assert (entrance.line_tls, entrance.http_tls) == (None, None)
    for line, http in ((True, True), (True, False), (False, True)):
        entrance = AccessControl.open(settings._replace(line_tls=line, http_tls=http))
        assert (entrance.line_tls is not None, entrance.http_tls is not None) == (line, http)
    keeper = AccessControl.open(settings._replace(auth_unix_uids=frozenset({7}))).authenticator
    assert keeper.identify(None) is None
    assert keeper.login(TEXT, PEER, 0) is not None


def test_only_where_nobody_needs_anything_a_newcomer_is_told_what_to_paste(
    settings: Config,
) -> None:
    without_tokens = settings._replace(auth_tokens=None)
    for each in (Config(), without_tokens._replace(line_tls=False)):
        assert AccessControl.open(each).is_open
    for each in (
        without_tokens,
        settings._replace(line_tls=False),
        Config(auth_unix_uids=frozenset({7})),
    ):
        assert not AccessControl.open(each).is_open


def test_all_that_is_wrong_with_all_files_is_told_at_once(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    settings = Config(auth_tokens=missing, tls_certificate=missing, push_secrets=missing)
    settings = settings._replace(tls_key=str(tmp_path), tls_client_ca=missing, line_tls=True)
    with pytest.raises(AccessInvalid) as caught:
        AccessControl.open(settings)
    said = dict.fromkeys(
        ("auth.tokens", "tls.certificate", "tls.key", "tls.client_ca", "push.secrets"),
        f"{missing}: cannot be read: No such file or directory",
    )
    said["tls.key"] = f"{tmp_path}: cannot be read: Is a directory"
    assert caught.value.errors == tuple(f"{name} = {why}" for name, why in said.items())


# --- Reading again -------------------------------------------------------------------------------


def test_a_reload_reads_tokens_and_certificate_and_says_so(
    settings: Config, told: Told, tmp_path: Path
) -> None:
    entrance = AccessControl.open(settings)
    text, entry = made(2)
    written(tmp_path / "tokens.json", ENTRY, entry)
    authority = Authority(tmp_path)
    authority.files("new.example.net")
    entrance.reload(told.log)
    assert told.lines() == [
        "info the tokens were read again tokens=2",
        f'info the certificate was read again certificate="{settings.tls_certificate}"',
    ]
    assert entrance.authenticator.login(text, PEER, 0) is not None
    for context in (entrance.line_tls, entrance.http_tls):
        assert context is not None
        met = shake_hands(context, authority.client(), "new.example.net")
        assert met.server_name == "new.example.net"


def test_of_two_files_the_good_one_is_taken_and_the_bad_one_is_named(
    settings: Config, told: Told, tmp_path: Path
) -> None:
    entrance = AccessControl.open(settings)
    written(tmp_path / "tokens.json")
    (tmp_path / "key.pem").unlink()
    missing = f"tls.key = {settings.tls_key}: cannot be read: No such file or directory"
    entrance.reload(told.log)
    assert told.lines() == [
        "info the tokens were read again tokens=0",
        f'error the certificate is not read again: the old one stays reason="{missing}"',
    ]
    assert entrance.authenticator.login(TEXT, PEER, 0) is None
    Authority(tmp_path).files()
    written(tmp_path / "tokens.json", made(2)[1])
    entrance.authenticator.reload()
    (tmp_path / "tokens.json").write_text("[]")
    entrance.reload(told.log)
    bad, good = told.lines()
    assert bad.startswith(
        "error the tokens are not read again: the old ones stay"
        f' reason="{settings.auth_tokens}: must be an object of '
    )
    assert entrance.authenticator.login(made(2)[0], PEER, 0) is not None
    assert good.startswith("info the certificate was read again")
    AccessControl.open(Config()).reload(told.log)
    assert told.lines() == [
        "info nothing to reload: only tokens, secrets and certificates are read again"
    ]


# --- Warnings ------------------------------------------------------------------------------------


@pytest.fixture
def listeners() -> Iterator[Listeners]:
    opened = Listeners(
        (open_listener(TcpAddress("127.0.0.1", 0)),), (open_listener(TcpAddress("127.0.0.1", 0)),)
    )
    yield opened
    opened.close()


def told_as(listener: Listener, address: TcpAddress) -> tuple[Listener]:
    """The listener as if others could reach it."""
    return (Listener(listener.socket, address),)


OUTSIDE = TcpAddress("192.0.2.1", 1)


def test_tokens_that_travel_in_clear_are_warned_of(
    settings: Config, told: Told, listeners: Listeners
) -> None:
    AccessControl.open(settings).warn(listeners, told.log)
    open_line = listeners._replace(line=told_as(listeners.line[0], OUTSIDE))
    open_http = listeners._replace(http=told_as(listeners.http[0], OUTSIDE))
    for both in (open_line, open_http):
        AccessControl.open(settings).warn(both, told.log)
    assert told.lines() == []
    without = settings._replace(line_tls=False, http_tls=False, tls_certificate=None)
    for both in (listeners, open_line, open_http):
        AccessControl.open(without).warn(both, told.log)
    assert told.lines() == [
        f'warning tokens are sent in clear: this address has no TLS address="{name} 192.0.2.1:1"'
        for name in ("line", "http")
    ]
    AccessControl.open(Config()).warn(open_line, told.log)
    assert told.lines() == []  # without tokens there are none to be read


def test_days_of_use_that_cannot_be_kept_are_warned_of(
    settings: Config, told: Told, tmp_path: Path
) -> None:
    (tmp_path / "tokens.json.used").mkdir()
    entrance = AccessControl.open(settings, wall_ms=lambda: 0)
    entrance.authenticator.login(TEXT, PEER, 0)
    entrance.keep_days(told.log)
    entrance.keep_days(told.log)
    assert told.lines() == [
        'warning the days on which tokens are used are not kept reason="Is a directory"'
    ]
    (tmp_path / "tokens.json.used").rmdir()
    entrance = AccessControl.open(settings, wall_ms=lambda: 0)
    entrance.authenticator.login(TEXT, PEER, 0)
    entrance.keep_days(told.log)
    assert told.lines() == []
    assert (tmp_path / "tokens.json.used").exists()


# --- Secrets -------------------------------------------------------------------------------------


def test_no_line_of_the_log_repeats_a_token(settings: Config, told: Told, tmp_path: Path) -> None:
    secret = TEXT.rpartition("_" + ENTRY.id + "_")[2]
    path = tmp_path / "tokens.json"
    entrance = AccessControl.open(settings)
    entrance.authenticator.login(TEXT, PEER, 0)
    entrance.authenticator.login(TEXT + "x", PEER, 0)
    for pasted in (f'{{"{TEXT}": 1}}', path.read_text().replace(ENTRY.sha256, TEXT), TEXT):
        path.write_text(pasted)
        entrance.reload(told.log)
    entrance.keep_days(told.log)
    lines = told.lines()
    assert len(lines) == 6
    assert not [line for line in lines if secret in line]
    assert secret not in repr(entrance.authenticator.login(TEXT, PEER, 0))


SOON = "the certificate expires soon"


@pytest.mark.parametrize(
    ("until", "now", "sentence"),
    [
        ("12-31", "2025-12-31T23:59:59", "the certificate is not valid yet: clients refuse it"),
        *(("12-31", f"2026-{now}", "") for now in ("01-01T00:00:00", "12-17T00:00:00")),
        *(("12-31", f"2026-{now}", SOON) for now in ("12-17T00:00:01", "12-31T00:00:00")),
        ("12-31", "2026-12-31T00:00:01", "the certificate has expired: clients refuse it"),
        ("01-02", "2026-01-01T16:00:00", ""),  # of a short-lived one it is the last third
        ("01-02", "2026-01-01T17:00:00", SOON),
    ],
)
def test_a_certificate_that_clients_refuse_now_or_soon_is_warned_of_at_start_and_reload(
    until: str, now: str, sentence: str, settings: Config, told: Told, tmp_path: Path
) -> None:
    Authority(tmp_path).files(
        not_before=dt.datetime(2026, 1, 1),  # noqa: DTZ001 (as trustme takes it)
        not_after=dt.datetime.fromisoformat(f"2026-{until}"),
    )
    now_ms = int(dt.datetime.fromisoformat(f"{now}+00:00").timestamp()) * 1_000
    where = f'certificate="{settings.tls_certificate}"'
    expected = [
        f'warning {sentence} {where} from="2026-01-01T00:00:00Z" until="2026-{until}T00:00:00Z"'
    ]
    entrance = AccessControl.open(settings, lambda: now_ms)
    entrance.warn(Listeners(), told.log)
    assert told.lines() == (expected if sentence else [])
    entrance.reload(told.log)
    assert told.lines()[2:] == (expected if sentence else [])


# --- Secrets of webhooks -------------------------------------------------------------------------


def test_secrets_are_opened_with_the_tokens_and_reloaded_with_them(
    tmp_path: Path, told: Told
) -> None:
    path = tmp_path / "secrets.json"
    settings = Config(
        push_secrets=secret_samples.written(path, secret_samples.named("a", 1)),
        push_sign_with=("a",),
    )
    access = AccessControl.open(settings)
    assert access.secrets is not None
    assert access.secrets.keys(["a"]) == (secret_samples.key(1),)
    secret_samples.written(path, secret_samples.named("a", 1, 2))
    access.reload(told.log)
    assert told.lines() == ["info the secrets were read again secrets=1"]
    assert access.secrets.keys(["a"]) == (secret_samples.key(2), secret_samples.key(1))
    path.write_text("[]")
    access.reload(told.log)
    (line,) = told.lines()
    assert line.startswith("error the secrets are not read again: the old ones stay reason=")
    assert len(access.secrets.keys(["a"])) == 2
    secret_samples.written(path, secret_samples.named("b", 1))
    access.reload(told.log)
    assert told.lines() == [
        "info the secrets were read again secrets=1",
        'error calls cannot be signed: the secret is not in the file secret="a"',
    ]
    assert AccessControl.open(Config()).secrets is None


def test_a_secret_that_is_to_sign_and_not_there_keeps_the_daemon_from_starting(
    tmp_path: Path,
) -> None:
    path = secret_samples.written(tmp_path / "secrets.json", secret_samples.named("a", 1))
    with pytest.raises(AccessInvalid) as caught:
        AccessControl.open(Config(push_secrets=path, push_sign_with=("a", "b")))
    assert caught.value.errors == (f'push.sign_with = ["b"]: there is no such secret in {path}',)


def test_what_a_token_for_some_topics_may_use_for_all_is_warned_of(
    tmp_path: Path, told: Told
) -> None:
    path = tmp_path / "secrets.json"
    settings = Config(
        auth_tokens=written(
            tmp_path / "tokens.json", made(1, (Scope.WEBHOOK, Scope.ADMIN), ("a",))[1]
        ),
        push_secrets=secret_samples.written(
            path, *(secret_samples.named(f"s{number}", 1) for number in range(NAMES_LOGGED_MAX + 1))
        ),
        sinks={"out": SinkSection("redis", {}), "b": SinkSection("redis", {}, ("b*",))},
    )
    access = AccessControl.open(settings)
    access.warn(Listeners(), told.log)
    secrets, sinks = told.lines()
    said = "warning every topic may have its calls signed with these: `delayd secret restrict` them"
    assert secrets.startswith(f'{said} secrets="s0, s1, ')
    assert secrets.endswith('s19, ..."')
    assert sinks == (
        'warning every topic may use these sinks: say topics = [...] in their sections sinks="out"'
    )
    secret_samples.written(path, replace(secret_samples.named("a", 1), topics=("a",)))
    access.reload(told.log)
    assert not [line for line in told.lines() if "have its calls signed" in line]
    every = written(tmp_path / "every.json", made(1)[1], made(2, (Scope.PUT,), ("a",))[1])
    access = AccessControl.open(settings._replace(auth_tokens=every, push_secrets=None))
    access.warn(Listeners(), told.log)
    assert told.lines() == [], "nobody could use them but who may use every topic"
