import json
from pathlib import Path

import pytest

from delayd.access.token_usage import DAY_MS, TokenUsage, days_of

FIRST, SECOND = "1970-01-01", "1970-01-02"


def test_the_latest_day_is_kept_and_written_for_those_that_are_there(tmp_path: Path) -> None:
    path = str(tmp_path / "tokens.json")
    usage = TokenUsage({"gone": FIRST})
    for token, time_ms in (("a", 5), ("a", DAY_MS - 1), ("b", DAY_MS), ("b", 0)):
        usage.note(token, time_ms)
    kept = {"a": FIRST, "b": SECOND}
    assert usage.days == kept | {"gone": FIRST}
    usage.write(path, {"a", "b"})
    assert usage.days == days_of(path) == kept
    assert (tmp_path / "tokens.json.used").stat().st_mode & 0o777 == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["tokens.json.used"]


def test_nothing_is_written_twice_a_day(tmp_path: Path) -> None:
    path = str(tmp_path / "tokens.json")
    usage = TokenUsage()
    usage.write(path, {"a"})
    assert not list(tmp_path.iterdir())
    usage.note("a", 0)
    usage.write(path, {"a"})
    (tmp_path / "tokens.json.used").unlink()
    usage.note("a", DAY_MS - 1)
    usage.write(path, {"a"})
    assert not list(tmp_path.iterdir())
    usage.note("a", DAY_MS)
    usage.write(path, {"a"})
    assert days_of(path) == {"a": SECOND}


def test_what_another_daemon_has_written_stays(tmp_path: Path) -> None:
    path = str(tmp_path / "tokens.json")
    one, other = TokenUsage(), TokenUsage()
    one.note("a", DAY_MS)
    other.note("a", 0)
    other.note("b", 0)
    one.write(path, {"a", "b"})
    other.write(path, {"a", "b"})
    assert days_of(path) == {"a": SECOND, "b": FIRST}


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"a": 7}', '{"a": "today"}', '{"a": "19700101"}', "\xff", "[" * 99999]
)
def test_a_file_that_says_nothing_sensible_is_begun_anew(tmp_path: Path, text: str) -> None:
    path = str(tmp_path / "tokens.json")
    (tmp_path / "tokens.json.used").write_text(text, encoding="latin-1")
    assert days_of(path) == {}
    usage = TokenUsage(days_of(path))
    usage.note("b", 0)
    usage.write(path, {"a", "b"})
    assert json.loads((tmp_path / "tokens.json.used").read_text()) == {"b": FIRST}


def test_a_place_that_cannot_be_written_to_is_said_and_left_as_it_was(tmp_path: Path) -> None:
    usage = TokenUsage()
    usage.note("a", 0)
    with pytest.raises(FileNotFoundError):
        usage.write(str(tmp_path / "missing" / "tokens.json"), {"a"})
    (tmp_path / "tokens.json.used").mkdir()
    usage.note("a", DAY_MS)
    with pytest.raises(IsADirectoryError):
        usage.write(str(tmp_path / "tokens.json"), {"a"})
    assert [file.name for file in tmp_path.iterdir()] == ["tokens.json.used"]
