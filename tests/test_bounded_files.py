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
from delayd.config import load
from delayd.journal.disk import RealDisk
from delayd.limits import PEM_FILE_BYTES_MAX
from delayd.net.tls import CertificateFiles, server_context

READERS: Final[dict[str, Callable[[str], object]]] = {
    "a file": lambda path: read_file(path, 10),
    "a file for others": must_be_file,
    "configuration": lambda path: load(path, {}, {}),
    "tokens": Tokens.load,
    "secrets": SECRETS_FILE.load,
    "certificate": lambda path: server_context(CertificateFiles(path)),
    "a file of the journal": RealDisk().open,
}


def pipe(directory: Path) -> str:
    path = directory / "pipe"
    os.mkfifo(path)
    return str(path)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("reader", READERS)
def test_a_pipe_that_nobody_writes_to_is_refused(reader: str, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="it is not a file"):
        READERS[reader](pipe(tmp_path))


@pytest.mark.timeout(20)
@pytest.mark.parametrize("reader", READERS)
def test_a_device_without_an_end_is_refused(reader: str) -> None:
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


BINLOG_NAMES: Final = ("binlog.1", "lock")
JOURNAL_NAMES: Final = (*("lock", "segment-0000000001.log", "snapshot-00000000000000000001.snap"),)


@pytest.mark.thorough
@pytest.mark.parametrize("name", BINLOG_NAMES)
def test_an_import_waits_for_no_pipe(name: str, tmp_path: Path) -> None:
    binlog = tmp_path / "binlog"
    binlog.mkdir()
    (binlog / "binlog.2").write_bytes(b"")
    os.mkfifo(binlog / name)
    words = ("import-beanstalkd", str(binlog), "--data-dir", str(tmp_path / "jobs"))
    command = [sys.executable, "-m", "delayd", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode not in {0, 1}
    assert "Traceback" not in done.stderr
    assert f"{binlog}" in done.stderr


@pytest.mark.process
@pytest.mark.parametrize("name", JOURNAL_NAMES)
def test_no_command_waits_for_a_pipe_in_a_data_directory(name: str, tmp_path: Path) -> None:
    home = tmp_path / "jobs"
    home.mkdir()
    os.mkfifo(home / name)
    for words in (
        ("serve", "--data-dir", str(home), "--line", "127.0.0.1:0", "--http", "off"),
        ("journal", "check", str(home)),
        ("journal", "dump", str(home)),
        ("journal", "backup", str(home), str(tmp_path / "copy")),
    ):
        command = [sys.executable, "-m", "delayd", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode not in {0, 1}, (words, done.stderr)
        assert "Traceback" not in done.stderr
