import shutil
import subprocess
import sys

import pytest

from delayd.cli.completion import SHELLS, VARIABLE
from delayd.cli.main import COMMANDS, invoke
from delayd.exits import Exit
from tests.cli.conftest import imported_by


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_each_shell_asks_by_the_variable(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["completion", shell]) == Exit.OK
    assert f"{VARIABLE}={shell}_complete" in capsys.readouterr().out


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_is_one_that_its_shell_reads(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    invoke(["completion", shell])
    script = capsys.readouterr().out
    subprocess.run([shell, "-n"], input=script, check=True, text=True, capture_output=True)


def completed(words: str) -> list[str]:
    ran = subprocess.run(
        [sys.executable, "-m", "delayd"],
        env={VARIABLE: "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))},
        check=True,
        capture_output=True,
        text=True,
    )
    return [line.partition(",")[2] for line in ran.stdout.split()]


def test_commands_and_their_flags_are_completed() -> None:
    assert completed("delayd ") == list(COMMANDS)
    assert completed("delayd config ch") == ["check"]
    assert completed("delayd serve --sy") == ["--sync"]


def test_no_module_of_rich_is_needed_for_it() -> None:
    assert "rich" not in imported_by("delayd.cli.main", "delayd.cli.completion")
