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
