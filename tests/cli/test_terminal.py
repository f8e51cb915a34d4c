"""What the commands print, where nobody reads it to the end, or it cannot be written."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from delayd.exits import Exit
from tests.cli.journals import fill
from tests.cli.talking import Talk
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


def unread() -> int:
    """A pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


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
            (os.open("/dev/full", os.O_WRONLY), failed),
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


# --- Commands that talk to a daemon --------------------------------------------------------------

TALKING = (
    *("put mail x", "put mail x --json", "put mail --ndjson {jobs}", "jobs mail"),
    *("jobs mail --json", "peek 1", "peek 1 --body", "peek 1 --json", "topics", "topics --json"),
    *("topics mail", "calendar", "calendar --json", "pause mail 1m"),
    *("resume mail", "clear mail --yes", "dead list", "dead list mail", "dead show 3"),
    *("dead redrive mail --yes", "stats", "stats --json", "top --once"),
    *("kick 2", "cancel 2", "reschedule 2 --delay 1h", "change 2 --priority 1"),
    *("cancel --topic mail --all --yes", "policy set mail jobs_max=9"),
)
TAKING = (
    *("reserve mail", "reserve mail --json", "reserve mail --count 2 --ack"),
    "reserve mail --count 2 --ack --json",
)


def said_into(talk: Talk, monkeypatch: pytest.MonkeyPatch, handle: int, *words: str) -> str:
    """Run a command with this output; the exit code, and what it said on standard error."""
    with contextlib.suppress(OSError), os.fdopen(handle, "w") as output:
        monkeypatch.setattr("sys.stdout", output)
        code, _out, err = talk.run(*words)
    return f"{Exit(code).name} {err}"


@pytest.fixture
def mail(talk: Talk, tmp_path: Path) -> tuple[Talk, str]:
    """A job that is ready, one that is delayed, one that is buried; and a file of NDJSON."""
    talk.ok("put", "mail", "x")
    talk.ok("put", "mail", "x", "--delay", "1h")
    talk.ok("put", "mail", "x", "--priority", "0")
    talk.ok("bury", talk.reserved("mail"))
    path = tmp_path / "jobs.ndjson"
    path.write_text('{"body": 1}\n{"body": 2}\n')
    return talk, str(path)


@pytest.mark.parametrize("command", TALKING)
def test_a_command_whose_output_is_full_says_so_under_one_exit_code(
    command: str, mail: tuple[Talk, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    talk, jobs = mail
    full = os.open("/dev/full", os.O_WRONLY)
    said = said_into(talk, monkeypatch, full, *command.format(jobs=jobs).split())
    assert said.startswith("OUTPUT_FAILED delayd: ")
    assert "the output cannot be written: No space left on device\n" in said
    if command.startswith("put"):
        assert "job 4 was put: " in said or "2 put, 0 refused" in said


@pytest.mark.parametrize("command", TALKING)
def test_a_command_whose_output_nobody_reads_has_done_its_work(
    command: str, mail: tuple[Talk, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    talk, jobs = mail
    said = said_into(talk, monkeypatch, unread(), *command.format(jobs=jobs).split())
    assert said.startswith("OK")


@pytest.mark.parametrize("is_full", [True, False])
@pytest.mark.parametrize("command", TAKING)
def test_jobs_that_could_not_be_printed_are_given_back(
    command: str, mail: tuple[Talk, str], monkeypatch: pytest.MonkeyPatch, *, is_full: bool
) -> None:
    talk, _jobs = mail
    talk.ok("put", "mail", "y")
    output = os.open("/dev/full", os.O_WRONLY) if is_full else unread()
    said = said_into(talk, monkeypatch, output, *command.split())
    why = "the output cannot be written: No space left on device"
    back = "2 jobs" if "2" in command else "1 job"
    told = f"{why if is_full else 'the output is not read'}: job 1 was not taken, {back} given back"
    assert said == f"OUTPUT_FAILED delayd: {told}\n"
    monkeypatch.undo()


def test_a_complaint_that_cannot_be_written_does_not_decide_the_exit_code() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [executable("delayd"), "topics", "--url", "http://127.0.0.1:1"],
            stderr=full,
            check=False,
        )
    assert done.returncode == Exit.UNREACHABLE
