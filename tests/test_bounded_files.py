"""Files that a path names may be pipes, devices and directories: nobody waits for them."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
import trustme

from delayd.access.signing_secrets import SECRETS_FILE
from delayd.access.token_usage import SUFFIX, days_of
from delayd.access.tokens import Tokens
from delayd.bounded_files import must_be_file, read_file
from delayd.journal.disk import RealDisk
from delayd.limits import PEM_FILE_BYTES_MAX
from delayd.net.tls import CertificateFiles, server_context

READERS: Final[dict[str, Callable[[str], object]]] = {
    "a file": lambda path: read_file(path, 10),
    "a file for others": must_be_file,
    "tokens": Tokens.load,
    "secrets": SECRETS_FILE.load,
    "certificate": lambda path: server_context(CertificateFiles(path)),
    "a file of the journal": RealDisk().open,
}
JOURNAL_NAMES: Final = ("lock", "segment-0000000001.log", "snapshot-00000000000000000001.snap")


def pipe(directory: Path) -> str:
    path = directory / "pipe"
    os.mkfifo(path)
    return str(path)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("reader", READERS)
def test_a_pipe_that_nobody_writes_to_and_a_device_without_an_end_are_refused(
    reader: str, tmp_path: Path
) -> None:
    with pytest.raises(Exception, match="it is not a file"):
        READERS[reader](pipe(tmp_path))
    with pytest.raises(Exception, match=r"it is not a file|it is longer than"):
        READERS[reader]("/dev/zero")


@pytest.mark.parametrize("reader", ["a file", "a file for others", "certificate"])
def test_a_file_that_is_too_long_is_refused(reader: str, tmp_path: Path) -> None:
    path = tmp_path / "long"
    path.touch()
    os.truncate(path, PEM_FILE_BYTES_MAX + 1)
    with pytest.raises(Exception, match="it is longer than"):
        READERS[reader](str(path))


@pytest.mark.parametrize("reader", [name for name in READERS if "journal" not in name])
def test_a_directory_is_refused(reader: str, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="Is a directory"):
        READERS[reader](str(tmp_path))


def test_certificate_key_and_authorities_are_refused_one_by_one(tmp_path: Path) -> None:
    made = trustme.CA().issue_cert("localhost")
    certificate = tmp_path / "c.pem"
    made.cert_chain_pems[0].write_to_path(certificate)
    where = pipe(tmp_path)
    for files in ((str(certificate), where, None), (str(certificate), None, where)):
        with pytest.raises(Exception, match=f"{where}: cannot be read: it is not a file"):
            server_context(CertificateFiles(*files))


@pytest.mark.timeout(20)
def test_the_days_of_tokens_are_none_where_a_pipe_lies(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"tokens{SUFFIX}")
    assert days_of(str(tmp_path / "tokens")) == {}


PIPES: Final = {
    "serve --data-dir HOME --line 127.0.0.1:0 --http off": JOURNAL_NAMES,
    "journal check HOME": JOURNAL_NAMES,
    "journal dump HOME": JOURNAL_NAMES,
    "journal backup HOME HOME-copy": JOURNAL_NAMES,
    "import-beanstalkd HOME --data-dir HOME-jobs": ("binlog.1", "lock"),
}
"""What a command may find in its directory."""


@pytest.mark.process
@pytest.mark.parametrize("command", PIPES)
def test_no_command_waits_for_a_pipe_in_its_directory(command: str, tmp_path: Path) -> None:
    for name in PIPES[command]:
        home = tmp_path / name
        home.mkdir()
        if "import" in command:
            (home / "binlog.2").touch()
        os.mkfifo(home / name)
        words = command.replace("HOME", str(home)).split()
        argv = [sys.executable, "-m", "delayd", *words]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode not in {0, 1}, (name, done.stderr)
        assert "Traceback" not in done.stderr
        assert str(home) in done.stderr
