"""What the commands print, where nobody reads it to the end, or it cannot be written."""

import os
import subprocess
from pathlib import Path

import pytest

from delayd.access.scopes import Scope
from delayd.exits import Exit
from tests.cli.journals import fill
from tests.servers import executable

COMMANDS = (
    "delayd-beanstalkd -h",
    "delayd-beanstalkd -v",
    "delayd --help",
    "delayd --version",
    "delayd version",
    "delayd serve --help",
    "delayd token list --tokens {tokens}",
    "delayd token list --json --tokens {tokens}",
    "delayd journal --help",
    "delayd journal check {journal}",
    "delayd journal dump {journal}",
    "delayd journal dump --json {journal}",
)
UNBUFFERED = (False, True)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    home = tmp_path_factory.mktemp("streams")
    journal, tokens = home / "journal", home / "tokens.json"
    fill(journal, 500)
    words = ["token", "create", "x", "--scope", Scope.PUT, "--topic", "*", "--tokens", str(tokens)]
    subprocess.run([executable("delayd"), *words], check=True, capture_output=True)
    return {"journal": str(journal), "tokens": str(tokens)}


def ran(
    command: str, places: dict[str, str], stdout: int, *, is_unbuffered: bool
) -> subprocess.CompletedProcess[str]:
    name, *words = command.format(**places).split()
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


@pytest.mark.parametrize("is_unbuffered", UNBUFFERED)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_reader_who_has_seen_enough_is_no_failure_and_nothing_is_said(
    command: str, places: dict[str, str], *, is_unbuffered: bool
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = ran(command, places, writer, is_unbuffered=is_unbuffered)
    os.close(writer)
    assert (done.returncode, done.stderr) == (Exit.OK, "")


def test_the_verdict_of_a_check_is_in_its_exit_code_whoever_reads_on(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    reader, writer = os.pipe()
    os.close(reader)
    command = f"delayd journal check {tmp_path}"
    assert ran(command, {}, writer, is_unbuffered=True).returncode == Exit.CORRUPT_JOURNAL
    os.close(writer)


@pytest.mark.parametrize("is_unbuffered", UNBUFFERED)
@pytest.mark.parametrize("command", COMMANDS)
def test_output_that_cannot_be_written_is_told_in_a_sentence(
    command: str, places: dict[str, str], *, is_unbuffered: bool
) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    done = ran(command, places, full, is_unbuffered=is_unbuffered)
    os.close(full)
    assert done.returncode == Exit.USAGE
    name = command.split(maxsplit=1)[0]
    assert done.stderr == f"{name}: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_an_output_that_is_closed_is_told_in_a_sentence(
    command: str, places: dict[str, str]
) -> None:
    name, *words = command.format(**places).split()
    shell = ["bash", "-c", 'exec "$@" >&-', "bash", executable(name), *words]
    done = subprocess.run(shell, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == Exit.USAGE
    assert done.stderr == f"{name}: the output cannot be written: Bad file descriptor\n"


def test_a_token_that_could_not_be_printed_is_named_so_that_it_can_be_revoked(
    tmp_path: Path,
) -> None:
    words = ["token", "create", "x", "--scope", "put", "--topic", "*"]
    where = ["--tokens", str(tmp_path / "tokens.json")]
    shell = ["bash", "-c", 'exec "$@" >&-', "bash", executable("delayd"), *words, *where]
    done = subprocess.run(shell, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == Exit.USAGE
    assert "the token could not be printed (Bad file descriptor): revoke " in done.stderr
