"""Every setting with values of other kinds and beyond its bounds, from each place they come from.

Nothing wrong is taken for something else without a word: each is one error, which names the value
and the rule. What a kind of values refuses that others have too is in `test_fields.py`.
"""

import json
import re
import tomllib
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from delayd.config import BY_FLAG, SETTINGS, load
from tests.config_files import errors_of, written

OTHER_KINDS: Final = (
    *("1979-05-27", "nan", "inf", "[]", "[[]]", '["x"]', "{ x = 1 }", "-1", '"\\u0000"', '""'),
)
"""In TOML: no setting may be any of these."""


class Wrong(NamedTuple):
    """What a kind of setting must refuse, beside `OTHER_KINDS`, and the rule it then names."""

    rule: str
    in_file: tuple[str, ...]
    """As TOML."""
    as_text: tuple[str, ...]
    """In a variable and a flag."""


PATH: Final = Wrong("must be the path of a ", ("1",), ("", "a\0b"))
FLAG: Final = Wrong("must be true or false", ("1", '"true"'), ("", "1", "True"))
ADDRESS: Final = Wrong(
    "must ",
    ('""', "11300", "false", '"11300"', '"host:65536"', '"::1:5"', '"unix:"', '":1"'),
    ("", "11300", "host:65536", "host:-1", "::1:5", "unix:", ":1", "a b:1", "Off"),
)
MODE: Final = Wrong(
    "must be a file mode in octal digits",
    ('""', "432", "true", '"0999"', '"1000"', '"00660"', '"0o660"', '"-1"', '"rw"'),
    ("", "0999", "1000", "0o660", "-1", "rw"),
)
HOSTS: Final = Wrong(
    "must be names of hosts",
    (
        *('"x"', '""', '"a,b"', "true", "1", '[""]', '["a b"]', '["a:1"]', '["http://a"]', "[1]"),
        '["a*"]',
    ),
    ("a:1", "http://a", "[::1]", "a*", "a\0b"),
)
HOST_GLOBS: Final = Wrong(
    "must be hosts or patterns",
    ('"*"', '""', "true", "1", '[""]', '["a b"]', '["a:1"]', '["https://a"]', "[1]", '["a/b"]'),
    ("a:1", "https://a", "[::1]", "a/b", "a\0b"),
)
NETWORKS: Final = Wrong(
    "must be networks",
    ('"10.0.0.0/8"', '""', "1", '["x"]', "[1]", '["10.0.0.1/8"]', '["10.0.0.0/33"]', '[""]'),
    ("x", "10.0.0.1/8", "fe80::/129", "10.0.0.0/8,y", "1"),
)
PORTS: Final = Wrong(
    "must be a list of whole numbers from 1 to 65535",
    ("443", '"443"', "[0]", "[65536]", '["443"]', "[443.0]", "[true]"),
    ("0", "65536", "443,x", "-1", "*"),
)
SECRETS: Final = Wrong(
    "must be at most 2 names of secrets",
    ('"a"', "1", '[""]', "[1]", '["a b"]', '["a", "b", "c"]', '["a/b"]'),
    ("a/b", "a,b,c", "a\0b"),
)
IDS: Final = Wrong(
    "must be a list of whole numbers from 0 to 4294967294",
    (
        *('"1000"', '"1000,1001"', "1000", "true", "[-1]", "[1.0]", '["1000"]', "[4294967295]"),
        "[true]",
    ),
    ("", "root", "1,,2", "-1", "1.5", "4294967295", "[1000]", "1000 1001"),
)
CHOICE: Final = Wrong("must be one of ", ("1", '"ALWAYS"'), ("", "ALWAYS"))


def whole(lowest: int, highest: int) -> Wrong:
    beyond = (str(lowest - 1), str(highest + 1))
    return Wrong(f"must be a whole number from {lowest} to {highest}", beyond, beyond)


def duration(below: str, above: str) -> Wrong:
    return Wrong("must be ", (f'"{below}"', f'"{above}"', "1e400"), (below, above))


def size(lowest: int, highest: int) -> Wrong:
    beyond = (str(lowest - 1), str(highest + 1))
    return Wrong("must be ", (*beyond, f'"{lowest - 1}"'), beyond)


TOPICS: Final = Wrong(
    "must ",
    ('""', "true", "1", '"{}"', "[{}]", "{ a = 1 }", '{ "a b" = {} }', "{ a = { ttr = 0 } }"),
    ("", "a", "[]", "1", "null", '{"a": 1}', '{"a b": {}}', '{"a": {"ttr": 0}}', "{}{}"),
)
SINKS: Final = Wrong(
    "",
    ('"{}"', "true", '{ a = "secret" }', "{ a = {} }", '{ "a b" = {} }', "{ a = { kind = 5 } }"),
    ("", "a", "[]", "null", '{"a": "secret"}', '{"a": {}}', '{"a": {"kind": 5}}', '{"a b": {}}'),
)
PUSH_CALLS: Final = whole(1, 10_000)
PUSH_TIMEOUT: Final = duration("99ms", "601s")
HTTP_TIMEOUT: Final = duration("999ms", "3601s")
CONNECTIONS: Final = whole(1, 1_000_000)
WRITE_BUFFER: Final = size(4 << 10, 1 << 30)
WRONG: Final = {
    "data_dir": PATH,
    "clock": CHOICE,
    "insecure_no_auth": FLAG,
    "busy_poll": FLAG,
    "line.listen": ADDRESS,
    "line.unix_mode": MODE,
    "line.tls": FLAG,
    "line.connections_max": CONNECTIONS,
    "line.write_buffer_bytes_max": WRITE_BUFFER,
    "http.listen": ADDRESS,
    "http.unix_mode": MODE,
    "http.tls": FLAG,
    "http.hosts": HOSTS,
    "http.ui": FLAG,
    "http.connections_max": CONNECTIONS,
    "http.connections_per_ip_max": CONNECTIONS,
    "http.strangers_per_ip_max": CONNECTIONS,
    "http.header_timeout": HTTP_TIMEOUT,
    "http.body_timeout": HTTP_TIMEOUT,
    "http.idle_timeout": HTTP_TIMEOUT,
    "http.body_bytes_max": size(1 << 10, 64 << 20),
    "http.held_bytes_max": size(1 << 20, 16 << 30),
    "http.write_buffer_bytes_max": WRITE_BUFFER,
    "http.idempotency_keys_max": whole(1, 2**62),
    "auth.tokens": PATH,
    "auth.unix_uids": IDS,
    "auth.unix_gids": IDS,
    "tls.certificate": PATH,
    "tls.key": PATH,
    "tls.client_ca": PATH,
    "journal.sync": CHOICE,
    "journal.sync_interval": duration("0.9ms", "3600001ms"),
    "journal.sync_in_turn": FLAG,
    "journal.segment_bytes": size(4 << 10, 4 << 30),
    "wheel.tick": duration("0.1ms", "1000.1ms"),
    "wheel.size": whole(2, 65_536),
    "jobs.body_bytes_max": size(1, 1 << 30),
    "jobs.jobs_max": whole(1, 2**62),
    "jobs.bytes_max": size(1, 2**62),
    "topics": TOPICS,
    "push.enabled": FLAG,
    "push.hosts": HOST_GLOBS,
    "push.private_networks": NETWORKS,
    "push.allow_http": FLAG,
    "push.ports": PORTS,
    "push.secrets": PATH,
    "push.sign_with": SECRETS,
    "push.calls_max": PUSH_CALLS,
    "push.calls_per_host_max": PUSH_CALLS,
    "push.timeout": PUSH_TIMEOUT,
    "push.connect_timeout": PUSH_TIMEOUT,
    "push.stop_grace": duration("-1s", "30.1"),
    "sinks": SINKS,
    "log.format": CHOICE,
    "log.level": CHOICE,
}
NAMES: Final = [setting.name for setting in SETTINGS]
TAKEN: Final = {
    *((name, "[]") for name in ("push.private_networks", "push.ports", "push.sign_with")),
    *((name, value) for name in ("http.hosts", "push.hosts") for value in ("[]", '["x"]')),
    ("push.sign_with", '["x"]'),
}
"""What is a good value of these, though not of others."""


def test_every_setting_is_in_the_table() -> None:
    assert list(WRONG) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_what_the_file_says_wrong_is_refused_with_value_and_rule(tmp_path: Path, name: str) -> None:
    for value in (*OTHER_KINDS, *WRONG[name].in_file):
        if (name, value) in TAKEN:
            continue
        shown = json.dumps(tomllib.loads(f"x = {value}")["x"], default=str)
        refused(errors_of(written(tmp_path, f"{name} = {value}")), name, shown, WRONG[name].rule)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_variable_says_wrong_is_refused_with_value_and_rule(name: str) -> None:
    variable = "DELAYD_" + name.replace(".", "_").upper()
    for value in WRONG[name].as_text:
        errors = errors_of(environment={variable: value})
        refused(errors, f"environment: {variable}", json.dumps(value), WRONG[name].rule)


@pytest.mark.parametrize("flag", sorted(BY_FLAG))
def test_what_a_flag_says_wrong_is_refused_with_value_and_rule(flag: str) -> None:
    wrong = WRONG[BY_FLAG[flag].name]
    for value in wrong.as_text:
        refused(
            errors_of(flags={flag: value}), f"command line: {flag}", json.dumps(value), wrong.rule
        )


def refused(errors: list[str], said_as: str, shown: str, rule: str) -> None:
    """Check that there is one error with value and rule; of topics it is about a part.

    Of sinks it has no values, which may be secret.
    """
    (only,) = errors
    if "sinks" in said_as.lower():
        assert re.match(rf"{re.escape(said_as)}[.:]", only)
        assert "secret" not in only
    elif "topics" in said_as.lower():
        assert only.startswith(said_as)
    else:
        assert only.startswith(f"{said_as} = {shown}: {rule}")
    assert rule in only


@pytest.mark.parametrize(
    ("name", "in_file", "as_text"),
    [
        ("wheel.tick", '"1ms"', "1ms"),
        ("wheel.tick", "1", "1s"),
        ("wheel.tick", "0.001", "0.001"),
        ("journal.sync_interval", '"3600000ms"', "1h"),
        ("http.idle_timeout", '"1h"', "3600"),
        ("http.hosts", '["a.example", "b_2"]', "a.example,b_2"),
        ("http.hosts", "[]", ""),
        ("push.hosts", "[]", ""),
        ("push.ports", "[1, 65535]", "1,65535"),
        ("push.private_networks", '["::1"]', "::1/128"),
        ("auth.unix_uids", "[0, 4294967294]", "0,4294967294"),
        ("wheel.size", "65536", "65536"),
        ("jobs.body_bytes_max", '"1GiB"', "1073741824"),
    ],
)
def test_the_bounds_themselves_are_good_in_the_file_and_in_a_variable(
    tmp_path: Path, name: str, in_file: str, as_text: str
) -> None:
    variable = "DELAYD_" + name.replace(".", "_").upper()
    of_file = load(written(tmp_path, f"{name} = {in_file}"), {}, {})
    assert of_file == load(None, {variable: as_text}, {})
