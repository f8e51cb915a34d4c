import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from delayd.cli.main import invoke
from delayd.config import BY_NAME, SETTINGS, load
from delayd.exits import Exit
from tests.access import samples
from tests.access.secret_samples import named, written
from tests.config_files import every_setting

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
def file(tmp_path: Path) -> Path:
    path = tmp_path / "delayd.toml"
    path.write_text(FILE)
    return path


def test_show_names_every_setting_of_the_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["config", "show", "--json"]) == Exit.OK
    shown = json.loads(capsys.readouterr().out)["settings"]
    assert set(shown) == {setting.name for setting in SETTINGS}
    assert shown["journal.sync_interval"] == {"value": "50ms", "source": "default"}


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


def test_every_setting_is_shown_with_another_value_than_its_default(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, again = tmp_path / "one\u202e.toml", tmp_path / "again.toml"
    path.write_text(every_setting())
    given = load(str(path), {}, {})
    assert invoke(["config", "show", "--config", str(path)]) == Exit.OK
    shown = capsys.readouterr().out
    assert all(map(str.isprintable, shown.splitlines()))
    again.write_text(shown)
    assert load(str(again), {}, {}) == given
    assert invoke(["config", "show", "--config", str(path), "--json"]) == Exit.OK
    shown = capsys.readouterr().out
    assert shown.removesuffix("\n").isprintable()
    settings = json.loads(shown, parse_constant=pytest.fail)["settings"]
    for name, setting in BY_NAME.items():
        assert settings[name]["source"] == str(path)
        if name not in {"sinks", "topics"}:
            assert setting.read(settings[name]["value"]) == getattr(given, setting.inside)


def test_check_judges_the_urls_of_schedules(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schedule = '[schedules.a]\ntopic = "t"\nevery = 5\nbody = ""\nurl = "https://{}/"\n'
    for text, said in (
        (schedule.format("x.example"), ""),
        (
            schedule.format("127.0.0.1"),
            "delayd: schedules.a: url 'https://127.0.0.1/': the address 127.0.0.1 is",
        ),
        (
            schedule.format("x.example") + "[push]\nenabled = false\n",
            "delayd: schedules.a.url: needs push.enabled = true\n",
        ),
    ):
        file.write_text(text)
        is_right = invoke(["config", "check", "--config", str(file)]) == Exit.OK
        assert is_right is (not said)
        assert capsys.readouterr().err.startswith(said)


def test_check_judges_the_targets_of_policies_and_warns_of_what_is_for_all_topics(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secrets = written(tmp_path / "s.json", replace(named("b", 1), topics=("b*",)), named("old", 2))
    tokens = samples.written(tmp_path / "t.json", samples.made(1, topics=("a",))[1])
    settings = f'[push]\nsecrets = "{secrets}"\n[auth]\ntokens = "{tokens}"\n'
    policy = '[topics."{}"]\npush = {{url = "https://x.example/", secrets = ["b"]}}\n'
    file.write_text(settings + policy.format("b1"))
    assert invoke(["config", "check", "--config", str(file)]) == Exit.OK
    said = "delayd: warning: every topic may use the secret old; see docs/security.md\n"
    assert capsys.readouterr().err == said
    file.write_text(settings + policy.format("a"))
    assert invoke(["config", "check", "--config", str(file)]) == Exit.BAD_CONFIGURATION
    assert capsys.readouterr().err == (
        "delayd: topics.\"a\".push: secret 'b' is for the topics b*, and not for 'a'\n"
    )
