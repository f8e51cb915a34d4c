"""The command line of `delayd serve`, as `delayd.cli.daemon` and as click read it."""

import itertools
import subprocess
import sys
from collections.abc import Sequence

import click
import pytest

from delayd.cli import daemon
from delayd.cli.daemon import OPTIONS, plain_options
from delayd.cli.main import delayd, invoke
from delayd.config import BY_FLAG
from delayd.exits import Exit
from tests.cli.conftest import Service, imported_by

FEW_WORDS = (
    *("--line", "--data-dir", "--insecure-no-auth", "off", "", "-", "--", "-h", "--help", "-x"),
    *("--lin", "--lin=off", "--line=-", "=", "--=off"),
)
WORDS = (*OPTIONS, *(option + value for option in OPTIONS for value in ("=", "=off")), *FEW_WORDS)


def read_by_click(words: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str] | None:
    """What click calls the command with; None: it answers by itself."""
    runs: list[dict[str, str]] = []
    monkeypatch.setattr(daemon, "run", runs.append)
    try:
        delayd.main(["serve", *words], standalone_mode=False)
    except click.ClickException:
        assert not runs
    return runs[0] if runs else None


def test_every_setting_with_a_flag_has_its_option() -> None:
    assert {*OPTIONS} == {daemon.CONFIG_OPTION, *BY_FLAG}


def test_the_usual_command_line_needs_no_click() -> None:
    words = "--data-dir d --line=unix:l --http off --sync never --insecure-no-auth --data-dir e"
    assert plain_options(words.split()) == {
        "--data-dir": "e",
        "--line": "unix:l",
        "--http": "off",
        "--sync": "never",
        "--insecure-no-auth": "true",
    }
    assert plain_options([]) == {}


@pytest.mark.parametrize("count", range(4))
def test_what_is_read_without_click_is_what_click_reads_and_the_rest_is_left_to_it(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = 0
    for words in itertools.product(WORDS if count < 3 else FEW_WORDS, repeat=count):
        options = plain_options(words)
        if options is not None:
            by_click = read_by_click(words, monkeypatch)
            assert by_click == options, words
            assert [*by_click] == [*options], words  # mistakes are told in this order
            plain += 1
    assert plain


@pytest.mark.parametrize(
    "line",
    [
        "--line 127.0.0.1:0 --http off",
        "--line nowhere --sync sometimes",
        "--config /nonexistent --line off",
        "--data-dir d --postgres postgresql://127.0.0.1:1/jobs",
    ],
)
def test_a_command_ends_alike_with_and_without_click(
    line: str, service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    options = plain_options(line.split())
    assert options is not None
    with pytest.raises(SystemExit) as ended:
        daemon.main(options)
    without_click = capsys.readouterr()
    service.listeners.close()
    assert ended.value.code == invoke(["serve", *line.split()])
    assert capsys.readouterr() == without_click


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("line", "exit_code", "has_click"),
    [
        ("serve --line=nowhere --insecure-no-auth", Exit.BAD_CONFIGURATION, False),
        ("serve --help", Exit.OK, True),
    ],
)
def test_click_is_imported_where_it_is_needed(line: str, exit_code: Exit, has_click: bool) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "delayd", *line.split()]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == exit_code
    assert ("click.core\n" in ran.stderr) == has_click


def test_the_daemon_is_not_imported_before_it_listens() -> None:
    imported = imported_by("delayd.cli.daemon", "delayd.config")
    heavy = {"aiohttp", "asyncio", "click", "msgspec", "orjson"}
    heavy |= {"delayd.cli.main", "delayd.core.engine", "delayd.service"}
    assert not heavy & imported
