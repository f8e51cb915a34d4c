"""What keeps the daemon from serving ends it with a code of its own, and a sentence says why.

What is wrong with a directory, and disks that fail while it serves, are in `tests/faults`; a
directory that another daemon has is in `test_runbook.py`.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from delayd.exits import Exit
from delayd.journal.recovery import NO_HEADER, NO_LOG
from delayd.limits import DESCRIPTORS_MIN
from delayd.testing.daemon import Daemon, DaemonNotStarted, running_daemon
from tests.config_files import written
from tests.line_client import LineClient
from tests.rigs.process import daemon_of

SERVE = (sys.executable, "-m", "delayd", "serve", "--line", "127.0.0.1:0", "--http", "off")


# --- The data directory --------------------------------------------------------------------------


def test_a_log_that_is_gone_begins_anew_when_nothing_tells_of_it(tmp_path: Path) -> None:
    segment = tmp_path / "segment-0000000001.log"
    segment.touch()
    with running_daemon(data_dir=tmp_path) as daemon, LineClient(daemon.address) as client:
        assert f"warning {NO_LOG} found=" in daemon.log()
        assert f'warning {NO_HEADER} found="{segment}: 0 bytes"' in daemon.log()
        client.put(b"anew")


def refusal(data_dir: Path, *flags: str) -> DaemonNotStarted:
    with pytest.raises(DaemonNotStarted) as caught:
        daemon_of(data_dir, *flags)
    return caught.value


def test_a_damaged_journal_exits_65_and_names_what_looks_into_it(tmp_path: Path) -> None:
    segment = tmp_path / "segment-0000000001.log"
    segment.write_bytes(b"x" * 500)
    refused = refusal(tmp_path)
    assert refused.exit_code == Exit.CORRUPT_JOURNAL
    assert f"{segment} at offset 0" in refused.log
    assert f'more="delayd journal check {tmp_path}"' in refused.log
    assert (tmp_path / "lock").read_bytes() == b"", "nobody holds it any more"


def test_a_directory_that_cannot_be_made_exits_74(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    refused = refusal(tmp_path / "file" / "data")
    assert refused.exit_code == Exit.JOURNAL_FAILED
    assert str(tmp_path / "file" / "data") in refused.log


# --- What the configuration names ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            'auth.tokens = "gone"\ntls.certificate = "gone"\nline.tls = true',
            ["/gone: cannot be read: No such file", "tls.certificate = "],
        ),
        (
            '[topics]\nmail.push = {sink = "gone"}\nbulk.push = {url = "https://10.0.0.1/"}',
            ["sink 'gone'", "10.0.0.1"],
        ),
    ],
    ids=("files", "targets"),
)
def test_all_that_cannot_be_used_is_told_and_exits_78(
    text: str, told: list[str], tmp_path: Path
) -> None:
    refused = refusal(tmp_path / "data", "--config", written(tmp_path, text))
    assert refused.exit_code == Exit.BAD_CONFIGURATION
    for line, said in zip(refused.log.splitlines(), told, strict=True):
        assert said in line
    assert not (tmp_path / "data").exists()


# --- What the process may have -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "descriptors"), [("delayd serve", 6), ("delayd-beanstalkd", DESCRIPTORS_MIN - 1)]
)
def test_too_few_descriptors_exit_78_and_name_the_limit(
    command: str, descriptors: int, tmp_path: Path
) -> None:
    words = [*SERVE, "--data-dir", str(tmp_path / "data")]
    if command == "delayd-beanstalkd":
        script = "from delayd.__main__ import beanstalkd; beanstalkd()"
        words = [sys.executable, "-c", script, "-p", "0"]
    limited = ["sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh", *words]
    ran = subprocess.run(limited, capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == Exit.BAD_CONFIGURATION
    said = f"the process may open only {descriptors} files and connections, and needs at least"
    assert ran.stderr.startswith(f"{command.split(maxsplit=1)[0]}: {said} {DESCRIPTORS_MIN}: ")
    assert not (tmp_path / "data").exists()


def test_a_daemon_serves_with_as_few_descriptors_as_it_says(tmp_path: Path) -> None:
    words = [*SERVE[:-1], "127.0.0.1:0", "--data-dir", str(tmp_path / "data")]
    limited = ["sh", "-c", f'ulimit -n {DESCRIPTORS_MIN}; exec "$@"', "sh", *words]
    with Daemon(limited) as daemon, LineClient(daemon.address) as client:
        client.put(b"hello")
        assert daemon.stop() == Exit.OK
