import os
import tomllib
from ipaddress import ip_network
from pathlib import Path

import pytest

from delayd import limits
from delayd.cli.beanstalkd import FLAGS
from delayd.config import (
    BY_NAME,
    BY_VARIABLE,
    SETTINGS,
    ClockKind,
    Config,
    ConfigErrors,
    SinkSection,
    SyncPolicy,
    load,
    variable_of,
)
from delayd.core.policy import Patterns, Policy
from delayd.exits import Exit
from delayd.logs import LogFormat, LogLevel
from delayd.net.addresses import TcpAddress, UnixAddress
from delayd.text import DURATION_RULE
from tests.config_files import EXAMPLE, PROJECT, errors_of, written

OPERATIONS = PROJECT / "docs" / "operations.md"


# --- The table and the example -------------------------------------------------------------------


def test_nothing_said_gives_the_defaults() -> None:
    assert load(None, {}, {}) == Config()


def test_the_example_is_the_defaults() -> None:
    assert load(str(EXAMPLE), {}, {}) == Config()


def test_the_example_has_every_setting() -> None:
    document = tomllib.loads(EXAMPLE.read_text())
    names = {
        f"{key}.{inner}" if inner else key
        for key, value in document.items()
        for inner in ((isinstance(value, dict) and value) or [""])
    }
    assert names == set(BY_NAME)


def test_each_field_is_filled_by_one_setting() -> None:
    assert tuple(setting.inside for setting in SETTINGS) == Config._fields


def test_names_variables_and_flags_are_unique() -> None:
    flags = [setting.flag for setting in SETTINGS if setting.flag]
    assert len(set(flags)) == len(flags)
    assert len(BY_NAME) == len(BY_VARIABLE) == len(SETTINGS)


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Config().wheel_size = 7  # type: ignore[misc]


# --- Sources -------------------------------------------------------------------------------------


OF_THE_FILE = Config(
    data_dir="/var/lib/delayd",
    clock=ClockKind.VIRTUAL,
    insecure_no_auth=True,
    busy_poll=False,
    line_listen=UnixAddress("/run/delayd/line.sock"),
    line_unix_mode=0o600,
    line_tls=True,
    line_connections_max=5,
    line_write_buffer_bytes_max=65_536,
    http_listen=None,
    http_unix_mode=0o666,
    http_tls=True,
    http_hosts=("jobs.example.com",),
    http_ui=False,
    http_connections_max=50,
    http_connections_per_ip_max=20,
    http_strangers_per_ip_max=10,
    http_header_ms=5_000,
    http_body_ms=30_000,
    http_idle_ms=120_000,
    http_body_bytes_max=8 << 20,
    http_held_bytes_max=32 << 20,
    http_write_buffer_bytes_max=512 << 10,
    http_idempotency_keys_max=7,
    auth_tokens="tokens.json",
    auth_unix_uids=frozenset({0, 1000}),
    auth_unix_gids=frozenset({33}),
    tls_certificate="cert.pem",
    tls_key="key.pem",
    tls_client_ca="ca.pem",
    sync=SyncPolicy.INTERVAL,
    sync_interval_ms=200,
    sync_in_turn=False,
    segment_bytes=1 << 20,
    tick_ms=10,
    wheel_size=20,
    body_bytes_max=1 << 30,
    jobs_max=1_000_000,
    bytes_max=2 << 30,
    topics=Patterns({"mail.*": Policy(ttr_ms=120_000)}),
    push_enabled=False,
    push_hosts=("*.example.com", "::1"),
    push_private_networks=(ip_network("127.0.0.0/8"), ip_network("fd00::/8")),
    push_allow_http=True,
    push_ports=(443, 8_443),
    push_secrets="secrets.json",
    push_sign_with=("orders", "orders.old"),
    push_calls_max=10_000,
    push_calls_per_host_max=1,
    push_timeout_ms=100,
    push_connect_timeout_ms=50_000,
    push_stop_grace_ms=0,
    sinks={"a.b": SinkSection("redis", {"url": "redis://x", "maxlen": 7})},
    log_format=LogFormat.JSON,
    log_level=LogLevel.WARNING,
)
OF_VARIABLES = Config(
    data_dir="d",
    clock=ClockKind.VIRTUAL,
    insecure_no_auth=True,
    busy_poll=False,
    line_listen=TcpAddress("0.0.0.0", 1),  # noqa: S104 - only parsed
    line_unix_mode=0o666,
    line_tls=True,
    line_connections_max=7,
    line_write_buffer_bytes_max=1_000_000,
    http_listen=TcpAddress("::1", 0),
    http_unix_mode=0o600,
    http_hosts=("a.example", "b"),
    http_ui=False,
    http_connections_max=8,
    http_connections_per_ip_max=6,
    http_strangers_per_ip_max=4,
    http_header_ms=1_500,
    http_body_ms=2_000,
    http_idle_ms=3_600_000,
    http_body_bytes_max=1 << 10,
    http_held_bytes_max=1 << 20,
    http_write_buffer_bytes_max=4_096,
    http_idempotency_keys_max=1,
    auth_tokens="t",
    auth_unix_uids=frozenset({0, 1000}),
    auth_unix_gids=frozenset({33}),
    tls_certificate="c",
    tls_key="k",
    tls_client_ca="a",
    sync=SyncPolicy.NEVER,
    sync_interval_ms=1_000,
    sync_in_turn=False,
    segment_bytes=4_096,
    tick_ms=5,
    wheel_size=64,
    body_bytes_max=10,
    jobs_max=7,
    bytes_max=10**9,
    topics=Patterns({"a?": Policy(retry_ms=(15_000, 180_000))}),
    push_hosts=("hooks.example", "10.1.?.*"),
    push_private_networks=(ip_network("10.1.0.0/16"), ip_network("127.0.0.1")),
    push_ports=(8_080,),
    push_secrets="s",
    push_sign_with=("orders",),
    push_calls_max=1,
    push_calls_per_host_max=9,
    push_timeout_ms=600_000,
    push_connect_timeout_ms=2_000,
    push_stop_grace_ms=30_000,
    sinks={"a": SinkSection("amqp", {"url": "amqp://x"})},
    log_format=LogFormat.JSON,
    log_level=LogLevel.ERROR,
)


EVERY_SETTING = """
data_dir = "/var/lib/delayd"
clock = "virtual"
insecure_no_auth = true
busy_poll = false
[line]
listen = "unix:/run/delayd/line.sock"
unix_mode = "0600"
tls = true
connections_max = 5
write_buffer_bytes_max = "64KiB"
[http]
listen = "off"
unix_mode = "666"
tls = true
hosts = ["jobs.example.com"]
ui = false
connections_max = 50
connections_per_ip_max = 20
strangers_per_ip_max = 10
header_timeout = "5s"
body_timeout = 30
idle_timeout = "2m"
body_bytes_max = "8MiB"
held_bytes_max = "32MiB"
write_buffer_bytes_max = "512KiB"
idempotency_keys_max = 7
[auth]
tokens = "tokens.json"
unix_uids = [0, 1000]
unix_gids = [33]
[tls]
certificate = "cert.pem"
key = "key.pem"
client_ca = "ca.pem"
[journal]
sync = "interval"
sync_interval = 0.2
sync_in_turn = false
segment_bytes = 1048576
[wheel]
tick = "10ms"
size = 20
[jobs]
body_bytes_max = "1GiB"
jobs_max = 1000000
bytes_max = "2GiB"
[topics."mail.*"]
ttr = "2m"
[push]
enabled = false
hosts = ["*.Example.com", "::1"]
private_networks = ["127.0.0.0/8", "fd00::/8"]
allow_http = true
ports = [443, 8443]
secrets = "secrets.json"
sign_with = ["orders", "orders.old"]
calls_max = 10000
calls_per_host_max = 1
timeout = "100ms"
connect_timeout = 50
stop_grace = 0
[sinks."a.b"]
kind = "redis"
url = "redis://x"
maxlen = 7
[log]
format = "json"
level = "warning"
"""


def test_every_setting_can_be_in_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, EVERY_SETTING)
    assert load(path, {}, {}) == OF_THE_FILE


def test_every_setting_can_be_a_variable() -> None:
    environment = {
        "DELAYD_DATA_DIR": "d",
        "DELAYD_CLOCK": "virtual",
        "DELAYD_INSECURE_NO_AUTH": "true",
        "DELAYD_BUSY_POLL": "false",
        "DELAYD_LINE_LISTEN": "0.0.0.0:1",
        "DELAYD_LINE_UNIX_MODE": "666",
        "DELAYD_LINE_TLS": "true",
        "DELAYD_LINE_CONNECTIONS_MAX": "7",
        "DELAYD_LINE_WRITE_BUFFER_BYTES_MAX": "1MB",
        "DELAYD_HTTP_LISTEN": "[::1]:0",
        "DELAYD_HTTP_UNIX_MODE": "0600",
        "DELAYD_HTTP_TLS": "false",
        "DELAYD_HTTP_HOSTS": "a.example,B",
        "DELAYD_HTTP_UI": "false",
        "DELAYD_HTTP_CONNECTIONS_MAX": "8",
        "DELAYD_HTTP_CONNECTIONS_PER_IP_MAX": "6",
        "DELAYD_HTTP_STRANGERS_PER_IP_MAX": "4",
        "DELAYD_HTTP_HEADER_TIMEOUT": "1500ms",
        "DELAYD_HTTP_BODY_TIMEOUT": "2",
        "DELAYD_HTTP_IDLE_TIMEOUT": "1h",
        "DELAYD_HTTP_BODY_BYTES_MAX": "1KiB",
        "DELAYD_HTTP_HELD_BYTES_MAX": "1MiB",
        "DELAYD_HTTP_WRITE_BUFFER_BYTES_MAX": "4KiB",
        "DELAYD_HTTP_IDEMPOTENCY_KEYS_MAX": "1",
        "DELAYD_AUTH_TOKENS": "t",
        "DELAYD_AUTH_UNIX_UIDS": "1000,0",
        "DELAYD_AUTH_UNIX_GIDS": "33",
        "DELAYD_TLS_CERTIFICATE": "c",
        "DELAYD_TLS_KEY": "k",
        "DELAYD_TLS_CLIENT_CA": "a",
        "DELAYD_JOURNAL_SYNC": "never",
        "DELAYD_JOURNAL_SYNC_INTERVAL": "1s",
        "DELAYD_JOURNAL_SYNC_IN_TURN": "false",
        "DELAYD_JOURNAL_SEGMENT_BYTES": "4096",
        "DELAYD_WHEEL_TICK": "0.005",
        "DELAYD_WHEEL_SIZE": "64",
        "DELAYD_JOBS_BODY_BYTES_MAX": "10",
        "DELAYD_JOBS_JOBS_MAX": "7",
        "DELAYD_JOBS_BYTES_MAX": "1GB",
        "DELAYD_TOPICS": '{"a?": {"retry": "15s,3m"}}',
        "DELAYD_PUSH_ENABLED": "true",
        "DELAYD_PUSH_HOSTS": "hooks.example,10.1.?.*",
        "DELAYD_PUSH_PRIVATE_NETWORKS": "10.1.0.0/16,127.0.0.1",
        "DELAYD_PUSH_ALLOW_HTTP": "false",
        "DELAYD_PUSH_PORTS": "8080",
        "DELAYD_PUSH_SECRETS": "s",
        "DELAYD_PUSH_SIGN_WITH": "orders",
        "DELAYD_PUSH_CALLS_MAX": "1",
        "DELAYD_PUSH_CALLS_PER_HOST_MAX": "9",
        "DELAYD_PUSH_TIMEOUT": "10m",
        "DELAYD_PUSH_CONNECT_TIMEOUT": "2",
        "DELAYD_PUSH_STOP_GRACE": "30s",
        "DELAYD_SINKS": '{"a": {"kind": "amqp", "url": "amqp://x"}}',
        "DELAYD_LOG_FORMAT": "json",
        "DELAYD_LOG_LEVEL": "error",
    }
    assert set(environment) == set(BY_VARIABLE)
    assert load(None, environment, {}) == OF_VARIABLES


SINKS = """
[sinks.a]
kind = "redis"
password = "of the file"
[sinks."a.b-c"]
kind = "amqp"
"""


def test_an_option_of_a_sink_can_be_a_variable_which_wins_over_the_file(tmp_path: Path) -> None:
    environment = {"DELAYD_SINKS_A_PASSWORD": "p", "DELAYD_SINKS_A_B_C_URL": "u"}
    assert load(written(tmp_path, SINKS), environment, {}).sinks == {
        "a": SinkSection("redis", {"password": "p"}),
        "a.b-c": SinkSection("amqp", {"url": "u"}),
    }


def test_a_variable_of_a_sink_that_is_not_configured_is_refused(tmp_path: Path) -> None:
    environment = {"DELAYD_SINKS_A_": "p", "DELAYD_SINKS_B_URL": "u"}
    rule = "must be DELAYD_SINKS_NAME_OPTION, of a sink that is configured"
    assert errors_of(written(tmp_path, SINKS), environment) == [
        f"environment: DELAYD_SINKS_A_: {rule}",
        f"environment: DELAYD_SINKS_B_URL: {rule}",
    ]


def test_a_sink_says_which_topics_may_use_it(tmp_path: Path) -> None:
    text = '[sinks.a]\nkind = "redis"\ntopics = ["b*", "mail"]\n[sinks.b]\nkind = "redis"\n'
    sinks = load(written(tmp_path, text), {"DELAYD_SINKS_B_TOPICS": "c*, d"}, {}).sinks
    assert sinks == {
        "a": SinkSection("redis", {}, ("b*", "mail")),
        "b": SinkSection("redis", {}, ("c*", "d")),
    }
    assert sinks["a"].without_secrets() == {"kind": "redis", "topics": ["b*", "mail"]}
    for wrong in ('["a b"]', "[]", '"b*"', "7"):
        with pytest.raises(ConfigErrors, match=r"sinks\.a\.topics: must be"):
            load(written(tmp_path, f'[sinks.a]\nkind = "redis"\ntopics = {wrong}\n'), {}, {})
    with pytest.raises(ConfigErrors, match='DELAYD_SINKS_A_TOPICS = "": must be'):
        load(written(tmp_path, text), {"DELAYD_SINKS_A_TOPICS": ""}, {})


def test_two_sinks_cannot_have_the_same_variables(tmp_path: Path) -> None:
    text = '[sinks.a-b]\nkind = "redis"\n[sinks.A_b]\nkind = "redis"'
    assert errors_of(written(tmp_path, text)) == [
        "sinks.A_b: must differ from a-b in more than case and . _ -"
    ]


def test_flags_win_over_variables_over_the_file_over_defaults(tmp_path: Path) -> None:
    path = written(tmp_path, 'data_dir = "file"\njournal.sync = "never"\nlog.format = "json"')
    environment = {"DELAYD_DATA_DIR": "variable", "DELAYD_JOURNAL_SYNC": "interval"}
    config = load(path, environment, {"--data-dir": "flag"})
    assert config.data_dir == "flag"
    assert config.sync is SyncPolicy.INTERVAL
    assert config.log_format is LogFormat.JSON
    assert config.wheel_size == limits.WHEEL_SIZE_DEFAULT


@pytest.mark.parametrize(
    ("value", "said"),
    [("-1", "must be "), ("nan", "must be "), ("1e99", "must be "), ('"x"', f"{DURATION_RULE}, ")],
)
def test_a_duration_out_of_every_range_is_told_the_range_of_its_setting(
    value: str, said: str, tmp_path: Path
) -> None:
    (error,) = errors_of(written(tmp_path, f"http.body_timeout = {value}"))
    assert error.endswith(f': {said}from "1s" to "1h"')


@pytest.mark.parametrize("address", ["127.0.0.1:11399", "unix:/run/x.sock"])
def test_the_two_protocols_need_two_addresses(address: str) -> None:
    rule = "must not be the same address; each protocol needs its own"
    assert errors_of(flags={"--line": address, "--http": address}) == [
        f'line.listen and http.listen = "{address}": {rule}'
    ]
    any_port = TcpAddress("127.0.0.1", 0)
    config = load(None, {}, {"--line": str(any_port), "--http": str(any_port)})
    assert config.line_listen == config.http_listen == any_port


def test_a_value_that_is_overridden_must_be_valid_all_the_same(tmp_path: Path) -> None:
    path = written(tmp_path, 'journal.sync = "sometimes"')
    assert errors_of(path, flags={"--sync": "never"}) == [
        'journal.sync = "sometimes": must be one of always, interval, never'
    ]


def test_variables_of_others_are_not_ours() -> None:
    environment = {
        "PATH": "/bin",
        "DELAYD_CONFIG": "/etc/delayd.toml",
        # Kubernetes, for a service called delayd:
        "DELAYD_SERVICE_HOST": "10.0.0.1",
        "DELAYD_PORT": "tcp://10.0.0.1:11300",
        "DELAYD_PORT_11300_TCP_ADDR": "10.0.0.1",
    }
    assert load(None, environment, {}) == Config()


# --- Errors --------------------------------------------------------------------------------------


def test_all_errors_of_all_sources_are_told_at_once_in_order(tmp_path: Path) -> None:
    path = written(tmp_path, 'data_dir = 7\nwheel.tik = 1\n[line]\nlisten = "11300"\n[lines]\n')
    errors = errors_of(
        path,
        {"DELAYD_JOURNAL_SYNC": "some\ntimes", "DELAYD_LOG_LEVL": "x"},
        {"--http": ":1"},
    )
    assert errors == [
        "data_dir = 7: must be the path of a directory",
        "wheel.tik: there is no such setting; did you mean wheel.tick?",
        'line.listen = "11300": must be HOST:PORT or unix:PATH',
        "[lines]: there is no such section; did you mean line?",
        'environment: DELAYD_JOURNAL_SYNC = "some\\ntimes": must be one of always, interval, never',
        "environment: DELAYD_LOG_LEVL: there is no such variable; did you mean DELAYD_LOG_LEVEL?",
        'command line: --http = ":1": must have a host before the port, by name or number',
    ]


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("DELAYD_SYNC", "DELAYD_JOURNAL_SYNC"),
        ("DELAYD_DIR", "DELAYD_DATA_DIR"),
        ("DELAYD_LISTEN", "DELAYD_LINE_LISTEN"),
        ("DELAYD_CONFIG_FILE", "DELAYD_CONFIG"),
        # What all names begin with makes none of them similar.
        ("DELAYD_FOO", None),
    ],
)
def test_the_nearest_variable_is_suggested(name: str, nearest: str | None) -> None:
    (only,) = errors_of(environment={name: "x"})
    hint = f"; did you mean {nearest}?" if nearest else ""
    assert only == f"environment: {name}: there is no such variable{hint}"


@pytest.mark.parametrize(
    "text", ["= 1", "a = [" * 5_000, 'a = "\x00"', "data_dir = 'é", "[a]\n[a]"]
)
def test_a_file_that_is_not_toml_is_one_error(tmp_path: Path, text: str) -> None:
    (only,) = errors_of(written(tmp_path, text))
    assert only.startswith("is not TOML: ")


def test_a_file_that_is_not_utf_8_is_one_error(tmp_path: Path) -> None:
    path = tmp_path / "latin.toml"
    path.write_bytes(b'data_dir = "\xe9"')
    (only,) = errors_of(str(path))
    assert only.startswith("is not TOML: ")


def test_a_file_that_cannot_be_read_does_not_hide_other_errors(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.toml")
    assert errors_of(missing, flags={"--sync": "x"}) == [
        "cannot be read: No such file or directory",
        'command line: --sync = "x": must be one of always, interval, never',
    ]
    assert errors_of(str(tmp_path)) == ["cannot be read: Is a directory"]


def test_what_is_no_file_or_has_no_end_is_one_error_and_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert errors_of(str(pipe)) == ["cannot be read: it is not a file"]
    assert errors_of("/dev/zero") == ["cannot be read: it is longer than 1MiB"]
    assert load("/dev/null", {}, {}) == Config()
    longest = written(tmp_path, "#" * limits.CONFIG_BYTES_MAX)
    assert load(longest, {}, {}) == Config()
    longer = written(tmp_path, "#" * (limits.CONFIG_BYTES_MAX + 1))
    assert errors_of(longer) == ["cannot be read: it is longer than 1MiB"]


# --- The page for operators ----------------------------------------------------------------------


def test_the_page_names_every_setting_variable_flag_and_exit_code() -> None:
    page = OPERATIONS.read_text()
    for setting in SETTINGS:
        assert f"| `{setting.name}` | `{variable_of(setting.name)}` |" in page
        assert f"| `{setting.flag}" in page
    for code in Exit:
        assert f"| {code.value} | `{code.name}` |" in page
    for letter in FLAGS:
        assert f"`-{letter}" in page
