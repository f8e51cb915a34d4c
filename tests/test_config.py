import dataclasses
import itertools
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from delayd.cli.beanstalkd import FLAGS
from delayd.config import (
    BY_NAME,
    BY_VARIABLE,
    SETTINGS,
    ClockKind,
    Config,
    ConfigErrors,
    SyncPolicy,
    load,
)
from delayd.core import limits
from delayd.core.durations import DURATION_RULE
from delayd.core.policy import FIELDS, PATTERN_RULE, Patterns, Policy
from delayd.exits import Exit
from delayd.logs import LogFormat, LogLevel
from delayd.sockets import TcpAddress, UnixAddress

PROJECT = Path(__file__).parent.parent
EXAMPLE = PROJECT / "config.example.toml"
OPERATIONS = PROJECT / "docs" / "operations.md"

Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    path = tmp_path / "delayd.toml"

    def write_text(text: str) -> str:
        path.write_text(text)
        return str(path)

    return write_text


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
    assert sorted(setting.field for setting in SETTINGS) == sorted(
        field.name for field in dataclasses.fields(Config)
    )


def test_names_variables_and_flags_are_unique() -> None:
    flags = [setting.flag for setting in SETTINGS if setting.flag]
    assert len(set(flags)) == len(flags)
    assert len(BY_NAME) == len(BY_VARIABLE) == len(SETTINGS)


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().wheel_size = 7  # type: ignore[misc]


# --- Sources -------------------------------------------------------------------------------------


def test_every_setting_can_be_in_the_file(write: Write) -> None:
    path = write(
        """
        data_dir = "/var/lib/delayd"
        clock = "virtual"
        insecure_no_auth = true
        [line]
        listen = "unix:/run/delayd/line.sock"
        unix_mode = "0600"
        connections_max = 5
        write_buffer_bytes_max = "64KiB"
        [http]
        listen = "off"
        [journal]
        sync = "interval"
        sync_interval = 0.2
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
        [log]
        format = "json"
        level = "warning"
        """
    )
    assert load(path, {}, {}) == Config(
        data_dir="/var/lib/delayd",
        clock=ClockKind.VIRTUAL,
        insecure_no_auth=True,
        line_listen=UnixAddress("/run/delayd/line.sock"),
        line_unix_mode=0o600,
        line_connections_max=5,
        line_write_buffer_bytes_max=65_536,
        http_listen=None,
        sync=SyncPolicy.INTERVAL,
        sync_interval_ms=200,
        segment_bytes=1 << 20,
        tick_ms=10,
        wheel_size=20,
        body_bytes_max=1 << 30,
        jobs_max=1_000_000,
        bytes_max=2 << 30,
        topics=Patterns({"mail.*": Policy(ttr_ms=120_000)}),
        log_format=LogFormat.JSON,
        log_level=LogLevel.WARNING,
    )


def test_every_setting_can_be_a_variable() -> None:
    environment = {
        "DELAYD_DATA_DIR": "d",
        "DELAYD_CLOCK": "virtual",
        "DELAYD_INSECURE_NO_AUTH": "true",
        "DELAYD_LINE_LISTEN": "0.0.0.0:1",
        "DELAYD_LINE_UNIX_MODE": "666",
        "DELAYD_LINE_CONNECTIONS_MAX": "7",
        "DELAYD_LINE_WRITE_BUFFER_BYTES_MAX": "1MB",
        "DELAYD_HTTP_LISTEN": "off",
        "DELAYD_JOURNAL_SYNC": "never",
        "DELAYD_JOURNAL_SYNC_INTERVAL": "1s",
        "DELAYD_JOURNAL_SEGMENT_BYTES": "4096",
        "DELAYD_WHEEL_TICK": "0.005",
        "DELAYD_WHEEL_SIZE": "64",
        "DELAYD_JOBS_BODY_BYTES_MAX": "10",
        "DELAYD_JOBS_JOBS_MAX": "7",
        "DELAYD_JOBS_BYTES_MAX": "1GB",
        "DELAYD_TOPICS": '{"a?": {"retry": "15s,3m"}}',
        "DELAYD_LOG_FORMAT": "json",
        "DELAYD_LOG_LEVEL": "error",
    }
    assert set(environment) == set(BY_VARIABLE)
    assert load(None, environment, {}) == Config(
        data_dir="d",
        clock=ClockKind.VIRTUAL,
        insecure_no_auth=True,
        line_listen=TcpAddress("0.0.0.0", 1),  # noqa: S104 - only parsed
        line_unix_mode=0o666,
        line_connections_max=7,
        line_write_buffer_bytes_max=1_000_000,
        sync=SyncPolicy.NEVER,
        sync_interval_ms=1_000,
        segment_bytes=4_096,
        tick_ms=5,
        wheel_size=64,
        body_bytes_max=10,
        jobs_max=7,
        bytes_max=10**9,
        topics=Patterns({"a?": Policy(retry_ms=(15_000, 180_000))}),
        log_format=LogFormat.JSON,
        log_level=LogLevel.ERROR,
    )


def test_flags_win_over_variables_over_the_file_over_defaults(write: Write) -> None:
    path = write('data_dir = "file"\njournal.sync = "never"\nlog.format = "json"')
    environment = {"DELAYD_DATA_DIR": "variable", "DELAYD_JOURNAL_SYNC": "interval"}
    config = load(path, environment, {"--data-dir": "flag"})
    assert config.data_dir == "flag"
    assert config.sync is SyncPolicy.INTERVAL
    assert config.log_format is LogFormat.JSON
    assert config.wheel_size == limits.WHEEL_SIZE_DEFAULT


def test_a_value_that_is_overridden_must_be_valid_all_the_same(write: Write) -> None:
    path = write('journal.sync = "sometimes"')
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


def test_all_errors_of_all_sources_are_told_at_once_in_order(write: Write) -> None:
    path = write('data_dir = 7\nwheel.tik = 1\n[line]\nlisten = "11300"\n[lines]\n')
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
        'command line: --http = ":1": must be off: this version speaks the line protocol only',
    ]


def test_everything_that_is_wrong_with_the_policies_of_topics_is_told_at_once(write: Write) -> None:
    text = """
        [topics."mail.*"]
        retry = "15s soon"
        jobs_max = 0
        [topics.orders]
        atempts_max = 3
        exhausted = "a b"
        [topics."?"]
        rate_per_s = 5
        """
    assert errors_of(write(text)) == [
        f'topics."mail.*".retry = "15s soon": step 2, "soon", {DURATION_RULE}',
        f'topics."mail.*".jobs_max = 0: must be a whole number from 1 to {2**62}',
        'topics."orders".atempts_max: there is no such field; did you mean attempts_max?',
        'topics."orders".exhausted = "a b": must be "bury" or the name of a topic',
    ]


def test_what_is_wrong_below_a_wrong_pattern_is_told_with_it(write: Write) -> None:
    assert errors_of(write('[topics."bad name"]\njobs_max = 0\nx = 1')) == [
        f'topics."bad name": {PATTERN_RULE}',
        f'topics."bad name".jobs_max = 0: must be a whole number from 1 to {2**62}',
        'topics."bad name".x: there is no such field',
    ]


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("retry=15s", '= "retry=15s": must be JSON such as {"mail.*": {"retry": "15s 3m"}}: Expec'),
        ("[]", '= "[]": must be JSON such as {"mail.*": {"retry": "15s 3m"}}'),
        ("5", '= "5": must be JSON such as {"mail.*": {"retry": "15s 3m"}}'),
        ('{"retry": "15s"}', '."retry" = "15s": must be an object such as {"retry": "15s 3m"}'),
        ('{"a": {"ttr": 0}}', '."a".ttr = 0: must be more than 0'),
    ],
)
def test_wrong_policies_in_the_variable_are_named_with_an_example(said: str, error: str) -> None:
    (only,) = errors_of(environment={"DELAYD_TOPICS": said})
    assert only.startswith("environment: DELAYD_TOPICS" + ("" if error[0] == "." else " ") + error)


@pytest.mark.parametrize(
    ("said", "name"), [('{"a": {"ttr": 1, "ttr": 2}}', "ttr"), ('{"a": {}, "b": {}, "a": {}}', "a")]
)
def test_what_the_variable_says_twice_is_refused(said: str, name: str) -> None:
    (only,) = errors_of(environment={"DELAYD_TOPICS": said})
    assert only.endswith(f'": {{"retry": "15s 3m"}}}}: "{name}" is given twice')


def test_the_policies_in_the_example_can_be_uncommented(write: Write) -> None:
    _, _, section = EXAMPLE.read_text().partition("\n[topics]\n")
    rows = itertools.takewhile(lambda row: row.startswith("# "), section.splitlines())
    policies = load(write("\n".join(row[2:] for row in rows)), {}, {}).topics
    assert policies is not None
    policy = policies.of("mail.welcome")
    assert policy is not None
    given = {row.name for row in FIELDS if getattr(policy, row.field) is not None}
    assert given == {row.name for row in FIELDS} - {"exhausted"}  # to bury says nothing


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("insecure_no_auth = 1", "insecure_no_auth = 1: must be true or false"),
        ('data_dir = ""', 'data_dir = "": must be the path of a directory'),
        ("line = 5", "line = 5: must be a section"),
        ("line.listen = 5", "line.listen = 5: must be HOST:PORT, unix:PATH or off"),
        ("line.listen = {}", "line.listen = {}: must be HOST:PORT, unix:PATH or off"),
        ("line.listen.x = 1", 'line.listen = {"x": 1}: must be HOST:PORT, unix:PATH or off'),
        ("qqq = 1", "qqq: there is no such setting"),
        ("qqq = {}", "[qqq]: there is no such section"),
        ("data_dir = 1979-05-27", 'data_dir = "1979-05-27": must be the path of a directory'),
        (
            'line.unix_mode = "1000"',
            'line.unix_mode = "1000": must be a file mode in octal digits, such as "0660"',
        ),
        (
            "line.unix_mode = 432",
            'line.unix_mode = 432: must be a file mode in octal digits, such as "0660"',
        ),
        ("wheel.size = true", "wheel.size = true: must be a whole number from 2 to 65536"),
        ("wheel.size = 1", "wheel.size = 1: must be a whole number from 2 to 65536"),
        ("wheel.size = 65537", "wheel.size = 65537: must be a whole number from 2 to 65536"),
        ("wheel.tick = 0", 'wheel.tick = 0: must be from "1ms" to "1s"'),
        ('wheel.tick = "1001ms"', 'wheel.tick = "1001ms": must be from "1ms" to "1s"'),
        (
            'journal.sync_interval = "soon"',
            'journal.sync_interval = "soon": must be seconds, or a duration such as "50ms"',
        ),
        (
            "journal.sync_interval = nan",
            "journal.sync_interval = NaN: must be from 0 to 4294967295 s",
        ),
        (
            "journal.segment_bytes = 4095",
            "journal.segment_bytes = 4095: must be from 4096 to 4294967296 bytes",
        ),
        (
            'jobs.body_bytes_max = "1025MiB"',
            'jobs.body_bytes_max = "1025MiB": must be from "1B" to "1GiB"',
        ),
        (
            'journal.segment_bytes = "1 kB"',
            'journal.segment_bytes = "1 kB": must be from "4KiB" to "4GiB"',
        ),
        (
            'journal.segment_bytes = "100"',
            'journal.segment_bytes = "100": must be from 4096 to 4294967296 bytes',
        ),
        (
            "jobs.body_bytes_max = 0",
            "jobs.body_bytes_max = 0: must be from 1 to 1073741824 bytes",
        ),
        (
            "line.connections_max = 0",
            "line.connections_max = 0: must be a whole number from 1 to 1000000",
        ),
        (
            "line.write_buffer_bytes_max = 1",
            "line.write_buffer_bytes_max = 1: must be from 4096 to 1073741824 bytes",
        ),
        (
            "jobs.jobs_max = 0",
            f"jobs.jobs_max = 0: must be a whole number from 1 to {2**62}, or off",
        ),
        ('jobs.bytes_max = "x"', 'jobs.bytes_max = "x": must be bytes, or a size such as "64KiB"'),
        ("topics = 5", 'topics = 5: must be sections such as [topics."mail.*"]'),
        ("topics.a = 5", 'topics."a" = 5: must be a section'),
        ('[topics."a b"]', f'topics."a b": {PATTERN_RULE}'),
        ('topics = "{"', 'topics = "{": must be JSON such as {"mail.*": {"retry": "15s 3m"}}: '),
        ('[topic."x"]', "[topic]: there is no such section; did you mean topics?"),
        ("[topic]", "[topic]: there is no such section; did you mean topics?"),
        ('log.level = "INFO"', 'log.level = "INFO": must be one of debug, info, warning, error'),
        ('log.format = "xml"', 'log.format = "xml": must be one of text, json'),
        ('http.listen = ""', 'http.listen = "": must be off: this version speaks the line'),
    ],
)
def test_a_wrong_value_is_named_with_the_rule(write: Write, text: str, error: str) -> None:
    (only,) = errors_of(write(text))
    assert only.startswith(error)


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
def test_a_file_that_is_not_toml_is_one_error(write: Write, text: str) -> None:
    (only,) = errors_of(write(text))
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


# --- Rules that concern several settings ---------------------------------------------------------


def test_something_must_be_listened_on() -> None:
    (only,) = errors_of(flags={"--line": "off"})
    assert only == "line.listen and http.listen: must not both be off"


@pytest.mark.parametrize("address", ["0.0.0.0:11300", "[::]:11300", "example.net:1", "10.0.0.1:1"])
def test_addresses_that_others_reach_need_the_users_word(address: str) -> None:
    (only,) = errors_of(flags={"--line": address})
    assert only.startswith(f'line.listen = "{address}": must be a loopback address')
    assert "--insecure-no-auth" in only
    config = load(None, {}, {"--line": address, "--insecure-no-auth": True})
    assert str(config.line_listen) == address


@pytest.mark.parametrize("address", ["127.0.0.1:0", "[::1]:11300", "localhost:1", "unix:/x"])
def test_addresses_of_this_machine_need_nothing(address: str) -> None:
    assert str(load(None, {}, {"--line": address}).line_listen) == address


# --- The page for operators ----------------------------------------------------------------------


def test_the_page_names_every_setting_variable_flag_and_exit_code() -> None:
    page = OPERATIONS.read_text()
    for setting in SETTINGS:
        assert f"| `{setting.name}` | `{setting.variable}` |" in page
        assert f"| `{setting.flag}" in page
    for code in Exit:
        assert f"| {code.value} | `{code.name}` |" in page
    for letter in FLAGS:
        assert f"`-{letter}" in page
