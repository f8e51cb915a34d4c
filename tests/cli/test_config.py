import json
from pathlib import Path

import pytest

from delayd.cli.main import invoke
from delayd.config import BY_NAME, load
from delayd.exits import Exit
from tests.config_files import every_setting


def test_every_setting_is_shown_with_another_value_than_its_default(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, again = tmp_path / "one\u202e.toml", tmp_path / "again.toml"
    path.write_text(every_setting())
    given = load(str(path), {}, {})
    assert invoke(["config", "show", "--config", str(path)]) == Exit.OK
    shown = capsys.readouterr().out
    assert all(map(str.isprintable, shown.splitlines()))
    again.write_text(shown.replace("https://h/?***", "https://h/?q=1"))
    assert load(str(again), {}, {}) == given
    assert invoke(["config", "show", "--config", str(path), "--json"]) == Exit.OK
    shown = capsys.readouterr().out
    assert shown.removesuffix("\n").isprintable()
    settings = json.loads(shown, parse_constant=pytest.fail)["settings"]
    assert settings.keys() == BY_NAME.keys()
    for name, setting in BY_NAME.items():
        assert settings[name]["source"] == str(path)
        if name not in {"sinks", "topics"}:
            assert setting.read(settings[name]["value"]) == getattr(given, setting.inside)


def test_secrets_are_not_shown_and_a_file_without_them_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "delayd.toml"
    call = 'url = "https://h/?s3cret"\nheaders = {Authorization = "s3cret"}'
    path.write_text(
        f"[topics.a.push]\n{call}\n"
        f'[schedules.a]\ntopic = "t"\nevery = 5\nbody = "https://h/?*** ***"\n{call}\n'
        '[sinks.a]\nkind = "redis"\nurl = "redis://:s3cret@h/0"\npassword = "s3cret"\nlist = "a"'
    )
    assert invoke(["config", "show", "--config", str(path), "--json"]) == Exit.OK
    assert "s3cret" not in capsys.readouterr().out
    assert invoke(["config", "show", "--config", str(path)]) == Exit.OK
    path.write_text(capsys.readouterr().out)
    assert 'body = "https://h/?*** ***"' in path.read_text()
    assert invoke(["config", "check", "--config", str(path)]) == Exit.BAD_CONFIGURATION
    rule = "has *** in place of a secret, as `delayd config show` writes it: put the secret in"
    places = ("sinks.a.url", "sinks.a.password", 'topics."a".push', "schedules.a.url")
    assert capsys.readouterr().err.splitlines() == [
        f"delayd: {place}: {rule}" for place in (*places, "schedules.a.headers")
    ]
