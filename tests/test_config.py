import itertools
import os
import re
import tomllib
from pathlib import Path
from typing import Final

import pytest

from delayd import limits
from delayd.cli.beanstalkd import FLAGS
from delayd.config import (
    BY_NAME,
    BY_VARIABLE,
    SETTINGS,
    Config,
    ConfigErrors,
    SinkSection,
    SyncPolicy,
    load,
    variable_of,
)
from delayd.core.policy import FIELDS
from delayd.exits import Exit
from delayd.log_lines import LogFormat
from tests.config_files import EXAMPLE, OPERATIONS, errors_of, written
from tests.pages import is_as_told

ROOT: Final = Path(__file__).parent.parent
PAGES: Final = sorted((ROOT / "docs").glob("*.md"))
TOLD: Final = (Path(__file__).parent / "config_errors.txt").read_text(encoding="utf-8")
FACTS: Final = [
    fact
    for block in re.sub(r"(?m)^#.*\n", "", TOLD).split("\n\n")
    for fact in (block.splitlines() if " # " in block else filter(None, [block.strip()]))
]

# --- The table and the example -------------------------------------------------------------------


def test_the_example_is_the_defaults() -> None:
    found = load(str(EXAMPLE), {}, {})
    assert found._replace(data_dir=Config().data_dir) == load(None, {}, {}) == Config()
    assert found.data_dir == str(EXAMPLE.with_name("delayd-data"))


def test_the_example_has_every_setting() -> None:
    document = tomllib.loads(EXAMPLE.read_text())
    names = {
        f"{key}.{inner}" if inner else key
        for key, value in document.items()
        for inner in ((isinstance(value, dict) and value) or [""])
    }
    assert names == set(BY_NAME)


def test_each_field_is_filled_by_one_setting_with_names_of_its_own() -> None:
    assert tuple(setting.inside for setting in SETTINGS) == Config._fields
    flags = [setting.flag for setting in SETTINGS if setting.flag]
    assert len(set(flags)) == len(flags)
    assert len(BY_NAME) == len(BY_VARIABLE) == len(SETTINGS)


# --- Sources -------------------------------------------------------------------------------------


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


def test_a_sink_says_which_topics_may_use_it(tmp_path: Path) -> None:
    text = '[sinks.a]\nkind = "redis"\ntopics = ["b*", "mail"]\n[sinks.b]\nkind = "redis"\n'
    sinks = load(written(tmp_path, text), {"DELAYD_SINKS_B_TOPICS": "c*, d"}, {}).sinks
    assert sinks == {
        "a": SinkSection("redis", {}, ("b*", "mail")),
        "b": SinkSection("redis", {}, ("c*", "d")),
    }
    assert sinks["a"].without_secrets() == {"kind": "redis", "topics": ["b*", "mail"]}


def test_paths_in_the_file_count_from_its_directory(tmp_path: Path) -> None:
    text = """
data_dir = "jobs"
line.listen = "unix:line.sock"
auth.tokens = "/etc/tokens.json"
push.secrets = "off"
tls = {certificate = "tls/cert.pem", key = "../key.pem"}
line.tls = true
[sinks.a]
kind = "redis"
password_file = "a.password"
list = "due"
ca = 7
"""
    config = load(written(tmp_path, text.replace("line.tls = true", "http.tls = true")), {}, {})
    assert config.data_dir == f"{tmp_path}/jobs"
    assert str(config.line_listen) == f"unix:{tmp_path}/line.sock"
    assert (config.auth_tokens, config.push_secrets) == ("/etc/tokens.json", None)
    assert (config.tls_certificate, config.tls_key) == (
        *(f"{tmp_path}/tls/cert.pem", f"{tmp_path}/../key.pem"),
    )
    sink = {"password_file": f"{tmp_path}/a.password", "list": "due", "ca": 7}
    assert config.sinks["a"].options == sink


def test_paths_in_variables_and_flags_count_from_the_working_directory(tmp_path: Path) -> None:
    environment = {"DELAYD_AUTH_TOKENS": "t", "DELAYD_SINKS_A_CA": "c"}
    config = load(written(tmp_path, SINKS), environment, {"--data-dir": "jobs"})
    assert (config.auth_tokens, config.data_dir) == ("t", "jobs")
    assert config.sinks["a"].options["ca"] == "c"


def test_a_data_directory_where_it_counted_from_before_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here" / "jobs").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    (error,) = errors_of(path := written(tmp_path, 'data_dir = "jobs"'))
    assert error.startswith('data_dir = "jobs": counts from the directory of this file')
    assert f'write "{tmp_path}/here/jobs" if that is meant' in error
    (tmp_path / "jobs").mkdir()
    assert load(path, {}, {}).data_dir == f"{tmp_path}/jobs"


def test_flags_win_over_variables_over_the_file_over_defaults(tmp_path: Path) -> None:
    path = written(tmp_path, 'data_dir = "file"\njournal.sync = "never"\nlog.format = "json"')
    environment = {"DELAYD_DATA_DIR": "variable", "DELAYD_JOURNAL_SYNC": "interval"}
    config = load(path, environment, {"--data-dir": "flag"})
    assert config.data_dir == "flag"
    assert config.sync is SyncPolicy.INTERVAL
    assert config.log_format is LogFormat.JSON
    assert config.wheel_size == limits.WHEEL_SIZE_DEFAULT


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


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{page.name}" for page in PAGES)])
def test_a_variable_that_a_document_names_for_anything_keeps_no_daemon_from_starting(
    page: str,
) -> None:
    named = set(re.findall(r"\bDELAYD_[A-Z_]+\b(?!…)", (ROOT / page).read_text(encoding="utf-8")))
    for name in named - {"DELAYD_SINKS_NAME_OPTION", "DELAYD_SINKS_ORDERS_PASSWORD"}:
        try:
            load(None, {name: "x"}, {})
        except ConfigErrors as errors:
            assert "no such variable" not in str(errors)  # noqa: PT017 - if there are any


@pytest.mark.parametrize("address", ["0.0.0.0:11300", "[::]:11300", "example.net:1", "10.0.0.1:1"])
def test_addresses_that_others_reach_need_the_users_word(address: str) -> None:
    for front_end in ("line", "http"):
        flags = {"--line": "off", "--http": "off", f"--{front_end}": address}
        (only,) = errors_of(flags=dict(flags))
        assert only.startswith(f'{front_end}.listen = "{address}": must be a loopback address')
        assert "--insecure-no-auth" in only
        config = load(None, {}, {**flags, "--insecure-no-auth": True})
        assert str(config.line_listen or config.http_listen) == address


@pytest.mark.parametrize("address", ["127.0.0.1:0", "[::1]:11300", "localhost:1", "unix:/x"])
def test_addresses_of_this_machine_need_nothing(address: str) -> None:
    for front_end in ("line", "http"):
        config = load(None, {}, {"--line": "off", "--http": "off", f"--{front_end}": address})
        assert str(config.line_listen or config.http_listen) == address


def test_two_front_ends_may_share_what_is_no_address_yet_and_be_reached_with_tokens() -> None:
    for address, other in (("127.0.0.1:0", "127.0.0.1:0"), ("10.0.0.1:1", "10.0.0.1:2")):
        flags = {"--line": address, "--http": other}
        config = load(None, {"DELAYD_AUTH_TOKENS": "tokens.json"}, flags)
        assert [str(config.line_listen), str(config.http_listen)] == [address, other]


# --- Errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fact", FACTS)
def test_what_is_wrong_is_said(tmp_path: Path, fact: str) -> None:
    text, _, rule = fact.partition(" # ")
    lines = f"{text}\n> {text}: {rule}" if rule else fact
    said = {sign: re.findall(rf"^\{sign} (.*)$", lines, re.MULTILINE) for sign in "$>"}
    given = dict(line.replace("\\n", "\n").split("=", 1) for line in said["$"])
    environment = {name: text for name, text in given.items() if name.startswith("DELAYD_")}
    flags: dict[str, object] = {name: given[name] for name in given.keys() - environment.keys()}
    file = written(tmp_path, re.sub(r"(?m)^[$>] .*$", "", lines))
    errors = errors_of(file, environment, flags)
    for error, told in zip(errors, said[">"], strict=True):
        assert is_as_told(told, error), error
        assert "s3cret" not in error


@pytest.mark.parametrize(
    "text", [b"= 1", b"a = [" * 5_000, b'a = "\x00"', "a = 'é".encode(), b"[a]\n[a]", b'a = "\xe9"']
)
def test_a_file_that_is_not_toml_or_not_utf_8_is_one_error(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "delayd.toml"
    path.write_bytes(text)
    (only,) = errors_of(str(path))
    assert only.startswith("is not TOML: ")


def test_what_cannot_be_read_is_one_error_which_hides_no_other_and_is_not_waited_for(
    tmp_path: Path,
) -> None:
    missing = str(tmp_path / "missing.toml")
    assert errors_of(missing, flags={"--sync": "x"}) == [
        "cannot be read: No such file or directory",
        'command line: --sync = "x": must be one of always, interval, never',
    ]
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert errors_of(str(pipe)) == ["cannot be read: it is not a file"]
    assert errors_of(str(tmp_path)) == ["cannot be read: Is a directory"]
    assert errors_of("/dev/zero") == ["cannot be read: it is longer than 1MiB"]
    longest = written(tmp_path, "#" * limits.CONFIG_BYTES_MAX)
    assert load("/dev/null", {}, {}) == load(longest, {}, {}) == Config()
    longer = written(tmp_path, "#" * (limits.CONFIG_BYTES_MAX + 1))
    assert errors_of(longer) == ["cannot be read: it is longer than 1MiB"]


# --- Policies and schedules ----------------------------------------------------------------------


def uncommented(section: str, directory: Path) -> Config:
    """The configuration with what the example has in comments below a heading."""
    _, _, text = EXAMPLE.read_text().partition(f"\n[{section}]\n")
    rows = itertools.takewhile(lambda row: row.startswith("# "), text.splitlines())
    return load(written(directory, "\n".join(row[2:] for row in rows)), {}, {})


def test_the_policies_and_the_schedule_in_the_example_can_be_uncommented(tmp_path: Path) -> None:
    policies = uncommented("topics", tmp_path).topics
    assert policies is not None
    policy = policies.of("mail.welcome")
    assert policy is not None
    given = {row.name for row in FIELDS if getattr(policy, row.inside) is not None}
    assert given == {row.name for row in FIELDS} - {"exhausted", "on_close"}  # say nothing
    schedules = uncommented("schedules", tmp_path).schedules
    assert schedules is not None
    definition, body = schedules["nightly"]
    assert (definition.topic, definition.limit, body) == ("reports", 100, b"all of yesterday")


SCHEDULES: Final = """
text.body = "5 kg"
json.body = '{"a": 1}'
table.body.at = 2030-01-01T00:00:00Z
bytes.body_base64 = "/w=="
"""


def test_the_body_of_a_schedule_is_a_text_as_it_is_or_a_value_as_json(tmp_path: Path) -> None:
    text = re.sub(r"(?m)^(\w+)\..*$", r'\g<0>\n\1.topic = "t"\n\1.every = 5', SCHEDULES)
    read = load(written(tmp_path, f"[schedules]{text}"), {}, {}).schedules
    assert read is not None
    assert {name: body for name, (_, body) in read.items()} == {
        "text": b"5 kg",
        "json": b'{"a": 1}',
        "table": b'{"at":"2030-01-01T00:00:00Z"}',
        "bytes": b"\xff",
    }


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
