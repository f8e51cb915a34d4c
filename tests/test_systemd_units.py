"""The shipped units stay as closed as they were written, and agree with the daemon."""

import configparser
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from delayd.exits import Exit
from delayd.net.addresses import HTTP_LISTEN_DEFAULT, LINE_LISTEN_DEFAULT

UNITS: Final = Path(__file__).parent.parent / "systemd"
EXPOSURE_MAX_TENTHS: Final = 12  # Debian's redis-server scores 12, a unit without hardening 96


def read_unit(name: str) -> configparser.RawConfigParser:
    unit = configparser.RawConfigParser(strict=False, delimiters=("=",), comment_prefixes=("#",))
    unit.read(UNITS / name, encoding="utf-8")
    return unit


def analyzed(*words: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    command = ("systemd-analyze", *words)
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_systemd_finds_the_service_hardly_exposed() -> None:
    most = f"--threshold={EXPOSURE_MAX_TENTHS}"
    unit = str(UNITS / "delayd.service")
    scoring = analyzed("security", "--offline=true", "--no-pager", most, unit)
    if "unrecognized option" in scoring.stderr:
        pytest.skip("this systemd-analyze cannot score a unit file offline")
    assert scoring.returncode == 0, scoring.stdout + scoring.stderr


def test_the_service_is_not_restarted_where_that_would_not_help_and_reads_tokens_again() -> None:
    service = read_unit("delayd.service")["Service"]
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert service["RestartPreventExitStatus"].split() == ["64", "65", "75", "78"]
    assert service["Restart"] == "on-failure"  # so that it stands by after FENCED and HANDED_OVER
    assert read_unit("delayd.service")["Unit"]["StartLimitIntervalSec"] == "0"


def test_with_a_database_it_is_restarted_without_end_and_reaches_other_machines(
    tmp_path: Path,
) -> None:
    page = (UNITS.parent / "docs" / "two-machines.md").read_text(encoding="utf-8")
    added = page.split("```ini\n")[1].split("```")[0]
    drop_in = configparser.RawConfigParser(strict=False, delimiters=("=",))
    drop_in.read_string(added)
    shipped = read_unit("delayd.service")["Service"]
    for name in ("IPAddressDeny", "IPAddressAllow"):
        assert shipped[name]
        assert drop_in["Service"][name] == ""
    never = shipped["RestartPreventExitStatus"].split()
    assert not {str(int(code)) for code in (Exit.FENCED, Exit.JOURNAL_FAILED)} & {*never}
    name, _, _ = drop_in["Service"]["LoadCredential"].partition(":")
    assert f"\nEnvironment=DELAYD_POSTGRES_PASSWORD_FILE=%d/{name}\n" in added
    unit = (UNITS / "delayd.service").read_text().replace("/usr/bin/delayd", "/bin/true")
    (tmp_path / "delayd.service").write_text(unit)
    (tmp_path / "delayd.service.d").mkdir()
    (tmp_path / "delayd.service.d" / "override.conf").write_text(added)
    verified = analyzed("verify", "--man=no", str(tmp_path / "delayd.service"))
    assert "override.conf" not in verified.stderr
    assert "Unknown" not in verified.stderr


def test_the_sockets_are_the_default_addresses() -> None:
    line, http = (read_unit(name)["Socket"] for name in ("delayd.socket", "delayd-http.socket"))
    assert line["ListenStream"] == str(LINE_LISTEN_DEFAULT)
    assert http["ListenStream"] == str(HTTP_LISTEN_DEFAULT)
    assert "FileDescriptorName" not in line
    assert http["FileDescriptorName"] == "http"
    assert http["Service"] == "delayd.service"
