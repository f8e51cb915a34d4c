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
from delayd.exits import Exit
from delayd.log_lines import LogFormat
from delayd.net.addresses import TcpAddress
from tests.config_files import EXAMPLE, OPERATIONS, errors_of, written

ROOT: Final = Path(__file__).parent.parent
PAGES: Final = sorted((ROOT / "docs").glob("*.md"))

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


# --- Errors --------------------------------------------------------------------------------------


def test_all_errors_of_all_sources_are_told_at_once_in_order(tmp_path: Path) -> None:
    path = written(tmp_path, 'data_dir = 7\nwheel.tik = 1\n[line]\nlisten = "11300"\n[lines]\n')
    errors = errors_of(
        path, {"DELAYD_JOURNAL_SYNC": "some\ntimes", "DELAYD_LOG_LEVL": "x"}, {"--http": ":1"}
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


def test_the_nearest_variable_is_suggested() -> None:
    # What all names begin with makes none of them similar.
    for name, nearest in (("SYNC", "JOURNAL_SYNC"), ("CONFIG_FILE", "CONFIG"), ("FOO", "")):
        (only,) = errors_of(environment={f"DELAYD_{name}": "x"})
        hint = f"; did you mean DELAYD_{nearest}?" if nearest else ""
        assert only == f"environment: DELAYD_{name}: there is no such variable{hint}"


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
