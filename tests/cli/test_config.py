import json
import tomllib
from pathlib import Path
from typing import Final

import pytest

from delayd.cli.main import invoke
from delayd.config import SETTINGS, load
from delayd.exits import Exit

FILE: Final = """
data_dir = "jobs"
[http]
listen = "unix:/run/x.sock"
unix_mode = "0600"
hosts = ["jobs.example.com"]
[auth]
unix_uids = [0, 1000]
[journal]
sync = "interval"
sync_interval = 1.5
segment_bytes = "1MiB"
[jobs]
jobs_max = 10
bytes_max = "1GB"
[log]
level = "warning"
[topics."mail.*"]
retry = "15s 3m"
jobs_max = 100
[topics.sms]
rate_per_s = 2.5
[sinks."a.b"]
kind = "odd"
path = "x"
depth = 3
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("DELAYD_CONFIG", raising=False)
    path = tmp_path / "delayd.toml"
    path.write_text(FILE)
    return path


def test_show_prints_a_file_that_says_the_same(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["config", "show", "--config", str(file)]) == Exit.OK
    again = tmp_path / "again.toml"
    again.write_text(capsys.readouterr().out)
    assert load(str(again), {}, {}) == load(str(file), {}, {})


def test_show_names_every_setting_of_the_defaults(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("DELAYD_CONFIG", raising=False)
    assert invoke(["config", "show", "--json"]) == Exit.OK
    shown = json.loads(capsys.readouterr().out)["settings"]
    assert set(shown) == {setting.name for setting in SETTINGS}
    assert shown["journal.sync_interval"] == {"value": "50ms", "source": "default"}


def test_show_says_where_a_value_comes_from(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DELAYD_CONFIG", str(file))
    monkeypatch.setenv("DELAYD_LOG_LEVEL", "debug")
    assert invoke(["config", "show"]) == Exit.OK
    lines = capsys.readouterr().out.splitlines()
    assert f'data_dir = "jobs"  # {file}' in lines
    assert 'level = "debug"  # environment' in lines
    assert "tick = " + '"1ms"' in lines


def test_the_output_for_programs_is_one_object_with_sources(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["config", "show", "--config", str(file), "--json"]) == Exit.OK
    settings = json.loads(capsys.readouterr().out)["settings"]
    assert settings["jobs.bytes_max"] == {"value": "1000000000B", "source": str(file)}
    assert settings["auth.unix_uids"]["value"] == [0, 1000]
    topics = settings["topics"]["value"]
    assert topics == tomllib.loads(FILE)["topics"] | {
        "mail.*": {"retry": ["15s", "3m"], "jobs_max": 100}
    }


def test_show_has_sinks_without_their_passwords(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text('[sinks.a]\nkind = "redis"\nurl = "redis://ada:s3c@ret@h"\npassword_file = "f"')
    monkeypatch.setenv("DELAYD_SINKS_A_PASSWORD", "s3cret")
    for json_or_toml in (["--json"], []):
        assert invoke(["config", "show", "--config", str(file), *json_or_toml]) == Exit.OK
        shown = capsys.readouterr().out
        assert "s3c" not in shown
        assert "redis://***@h" in shown
        assert '"f"' in shown


def test_check_says_that_a_file_is_valid(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(FILE.partition("[sinks")[0])
    assert invoke(["config", "check", "--config", str(file)]) == Exit.OK
    assert capsys.readouterr().out == f"{file}: the configuration is valid\n"


def test_check_reports_all_errors_and_those_of_the_files_it_names(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text('[line]\nlisten = 7\n[wheel]\ntik = "1ms"\n')
    assert invoke(["config", "check", "--config", str(file)]) == Exit.BAD_CONFIGURATION
    assert len(capsys.readouterr().err.splitlines()) == 2
    file.write_text('[auth]\ntokens = "/nowhere/tokens.json"\n')
    assert invoke(["config", "check", "--config", str(file)]) == Exit.BAD_CONFIGURATION
    assert "/nowhere/tokens.json" in capsys.readouterr().err
    file.write_text('[auth]\ntokens = "/nowhere/t.json"\n[sinks.a]\nkind = "no such kind"\n')
    assert invoke(["config", "check", "--config", str(file)]) == Exit.BAD_CONFIGURATION
    tokens, sink = capsys.readouterr().err.splitlines()
    assert "/nowhere/t.json" in tokens
    assert 'sinks.a.kind = "no such kind": there is no such kind' in sink


@pytest.mark.parametrize("name", ["DELAYD_URL", "DELAYD_TOKEN", "DELAYD_TOKEN_FILE"])
def test_a_variable_of_the_clients_is_no_wrong_setting(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "x")
    assert invoke(["config", "check"]) == Exit.OK
