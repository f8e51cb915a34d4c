"""What tests of the configuration share: good values of every setting, a file, and its errors."""

import datetime as dt
import math
from ipaddress import ip_network
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from delayd.config import ClockKind, ConfigErrors, SinkSection, SyncPolicy, load
from delayd.core.policy import Patterns, Policy
from delayd.core.targets import Target
from delayd.log_lines import LogFormat, LogLevel
from delayd.net.addresses import TcpAddress, UnixAddress

PROJECT = Path(__file__).parent.parent
EXAMPLE = PROJECT / "config.example.toml"


def written(directory: Path, text: str) -> str:
    """Write a configuration file and return its path."""
    path = directory / "delayd.toml"
    path.write_text(text)
    return str(path)


def errors_of(
    path: str | None = None,
    environment: dict[str, str] | None = None,
    flags: dict[str, object] | None = None,
) -> list[str]:
    with pytest.raises(ConfigErrors) as caught:
        load(path, environment or {}, flags or {})
    errors = [str(error) for error in caught.value.errors]
    assert str(caught.value) == "\n".join(errors)
    return [error.removeprefix(f"{path}: ") for error in errors]


class Sample(NamedTuple):
    """A good value of a setting, in the file not the default, and another in its variable."""

    in_file: str
    """As TOML."""
    of_file: object
    in_variable: str
    of_variable: object


PUSHED: Final = Policy(ttr_ms=120_000, push=Target(url="https://h/?q=1"))
ODD: Final = {'an "option"': [1, {"on": dt.date(2030, 1, 1), "at": dt.time(9)}], "end": math.inf}
SAMPLES: Final = {
    "data_dir": Sample('"jobs\\u202e😀"', "jobs\u202e😀", "d", "d"),
    "clock": Sample('"virtual"', ClockKind.VIRTUAL, "virtual", ClockKind.VIRTUAL),
    "insecure_no_auth": Sample("true", True, "true", True),
    "busy_poll": Sample("false", False, "false", False),
    "line.listen": Sample(
        '"unix:/run/delayd/line.sock"',
        UnixAddress("/run/delayd/line.sock"),
        "192.0.2.7:1",
        TcpAddress("192.0.2.7", 1),
    ),
    "line.unix_mode": Sample('"0600"', 0o600, "666", 0o666),
    "line.tls": Sample("true", True, "true", True),
    "line.connections_max": Sample("5", 5, "7", 7),
    "line.write_buffer_bytes_max": Sample('"64KiB"', 65_536, "1MB", 1_000_000),
    "http.listen": Sample('"off"', None, "[::1]:0", TcpAddress("::1", 0)),
    "http.unix_mode": Sample('"666"', 0o666, "0600", 0o600),
    "http.tls": Sample("true", True, "false", False),
    "http.hosts": Sample(
        '["jobs.example.com"]', ("jobs.example.com",), "a.example,B", ("a.example", "b")
    ),
    "http.ui": Sample("false", False, "false", False),
    "http.connections_max": Sample("50", 50, "8", 8),
    "http.connections_per_ip_max": Sample("20", 20, "6", 6),
    "http.strangers_per_ip_max": Sample("10", 10, "4", 4),
    "http.header_timeout": Sample('"5s"', 5_000, "1500ms", 1_500),
    "http.body_timeout": Sample("30", 30_000, "2", 2_000),
    "http.idle_timeout": Sample('"2m"', 120_000, "1h", 3_600_000),
    "http.body_bytes_max": Sample('"8MiB"', 8 << 20, "1KiB", 1 << 10),
    "http.held_bytes_max": Sample('"32MiB"', 32 << 20, "1MiB", 1 << 20),
    "http.write_buffer_bytes_max": Sample('"512KiB"', 512 << 10, "4KiB", 4_096),
    "http.idempotency_keys_max": Sample("7", 7, "1", 1),
    "auth.tokens": Sample("'t\"\\.json'", 't"\\.json', "t", "t"),
    "auth.unix_uids": Sample("[0, 1000]", frozenset({0, 1000}), "1000,0", frozenset({0, 1000})),
    "auth.unix_gids": Sample("[33]", frozenset({33}), "33", frozenset({33})),
    "tls.certificate": Sample('"cert.pem"', "cert.pem", "c", "c"),
    "tls.key": Sample('"key.pem"', "key.pem", "k", "k"),
    "tls.client_ca": Sample('"ca.pem"', "ca.pem", "a", "a"),
    "journal.sync": Sample('"interval"', SyncPolicy.INTERVAL, "never", SyncPolicy.NEVER),
    "journal.sync_interval": Sample("0.2", 200, "1s", 1_000),
    "journal.sync_in_turn": Sample("false", False, "false", False),
    "journal.segment_bytes": Sample("1048576", 1 << 20, "4096", 4_096),
    "wheel.tick": Sample('"10ms"', 10, "0.005", 5),
    "wheel.size": Sample("20", 20, "64", 64),
    "jobs.body_bytes_max": Sample('"1GiB"', 1 << 30, "10", 10),
    "jobs.jobs_max": Sample("1000000", 1_000_000, "7", 7),
    "jobs.bytes_max": Sample('"2GiB"', 2 << 30, "1GB", 10**9),
    "topics": Sample(
        '{"mail.*" = {ttr = "2m", push = {url = "https://h/?q=1"}}}',
        Patterns({"mail.*": PUSHED}),
        '{"a?": {"retry": "15s,3m"}}',
        Patterns({"a?": Policy(retry_ms=(15_000, 180_000))}),
    ),
    "push.enabled": Sample("false", False, "true", True),
    "push.hosts": Sample(
        '["*.Example.com", "::1"]',
        ("*.example.com", "::1"),
        "hooks.example,10.1.?.*",
        ("hooks.example", "10.1.?.*"),
    ),
    "push.private_networks": Sample(
        '["10.1.0.0/16", "fd00::/8", "127.0.0.1"]',
        (ip_network("10.1.0.0/16"), ip_network("fd00::/8"), ip_network("127.0.0.1")),
        "10.1.0.0/16,127.0.0.1",
        (ip_network("10.1.0.0/16"), ip_network("127.0.0.1")),
    ),
    "push.allow_http": Sample("true", True, "false", False),
    "push.ports": Sample("[443, 8443]", (443, 8_443), "8080", (8_080,)),
    "push.secrets": Sample('"secrets.json"', "secrets.json", "s", "s"),
    "push.sign_with": Sample(
        '["orders", "orders.old"]', ("orders", "orders.old"), "orders", ("orders",)
    ),
    "push.calls_max": Sample("10000", 10_000, "1", 1),
    "push.calls_per_host_max": Sample("1", 1, "9", 9),
    "push.timeout": Sample('"100ms"', 100, "10m", 600_000),
    "push.connect_timeout": Sample("50", 50_000, "2", 2_000),
    "push.stop_grace": Sample("0", 0, "30s", 30_000),
    "sinks": Sample(
        '{a = {kind = "k", "an \\"option\\"" = [1, {on = 2030-01-01, at = 09:00:00}], end = inf}}',
        {"a": SinkSection("k", ODD)},
        '{"a": {"kind": "amqp", "url": "amqp://x"}}',
        {"a": SinkSection("amqp", {"url": "amqp://x"})},
    ),
    "log.format": Sample('"json"', LogFormat.JSON, "json", LogFormat.JSON),
    "log.level": Sample('"warning"', LogLevel.WARNING, "error", LogLevel.ERROR),
}
"""Of every setting, in the order of the file."""


def every_setting() -> str:
    """Return a file with every setting: what is in no section, and then each section."""
    lines: list[str] = []
    for name, sample in sorted(SAMPLES.items(), key=lambda item: item[0].rpartition(".")[0]):
        section, _, key = name.rpartition(".")
        if section and f"[{section}]" not in lines:
            lines.append(f"[{section}]")
        lines.append(f"{key} = {sample.in_file}")
    return "\n".join(lines)
