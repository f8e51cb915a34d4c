"""What the commands print, where nobody reads it to the end, or it cannot be written."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from delayd.exits import Exit
from tests.cli.journals import fill
from tests.cli.test_sessions import full, unread
from tests.servers import executable

COMMANDS = (
    "delayd-beanstalkd -h",
    "delayd --help",
    "delayd version",
    "delayd journal check {}",
    "delayd journal dump {}",
)
UNBUFFERED = {"delayd-beanstalkd -h", "delayd version", "delayd journal dump {}"}
"""Also where Python writes through."""


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("streams") / "journal"
    fill(made, 500)
    return made


def ran(command: str, stdout: int, *, is_unbuffered: bool) -> subprocess.CompletedProcess[str]:
    name, *words = command.split()
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    environment |= {"PYTHONUNBUFFERED": "1"} if is_unbuffered else {}
    return subprocess.run(
        [executable(name), *words],
        stdout=stdout,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
        check=False,
    )


@pytest.mark.process
@pytest.mark.parametrize("command", COMMANDS)
def test_output_that_is_not_read_is_no_failure_and_one_that_cannot_be_written_is_told(
    command: str, journal: Path
) -> None:
    typed = command.format(journal)
    name, *words = typed.split()
    told = f"{name}: the output cannot be written: "
    failed = (Exit.OUTPUT_FAILED, f"{told}No space left on device\n")
    for is_unbuffered in (False, True)[: 1 + (command in UNBUFFERED)]:
        for output, outcome in (
            (unread(), (Exit.OK, "")),
            (full(), failed),
        ):
            done = ran(typed, output, is_unbuffered=is_unbuffered)
            os.close(output)
            assert (done.returncode, done.stderr) == outcome
    shell = ["bash", "-c", 'exec "$@" >&-', "bash", executable(name), *words]
    done = subprocess.run(shell, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (Exit.OUTPUT_FAILED, f"{told}Bad file descriptor\n")


@pytest.mark.process
def test_a_closed_standard_input_has_nothing_in_it() -> None:
    words = [executable("delayd"), "put", "mail", "--url", "http://127.0.0.1:1"]
    shell = ["bash", "-c", 'exec "$@" <&-', "bash", *words]
    done = subprocess.run(shell, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == Exit.UNREACHABLE
    assert done.stderr.startswith("delayd: no delayd answers")


@pytest.mark.process
def test_what_the_encoding_of_a_locale_lacks_is_written_as_json_does() -> None:
    program = (
        "from delayd.cli.terminal import complete; complete(); print('\u00fc\u20ac\U0001f600')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        stdout=subprocess.PIPE,
        check=True,
    )
    assert done.stdout == b"\xfc\\u20ac\\ud83d\\ude00\n"


@pytest.mark.thorough
def test_the_verdict_of_a_check_is_in_its_exit_code_whoever_reads_on(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    output = unread()
    done = ran(f"delayd journal check {tmp_path}", output, is_unbuffered=True)
    os.close(output)
    assert done.returncode == Exit.CORRUPT_JOURNAL


def test_a_complaint_that_cannot_be_written_does_not_decide_the_exit_code() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [executable("delayd"), "topics", "--url", "http://127.0.0.1:1"],
            stderr=full,
            check=False,
        )
    assert done.returncode == Exit.UNREACHABLE
