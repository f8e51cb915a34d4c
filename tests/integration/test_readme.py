"""What README.md tells a newcomer to type does what it says, with shorter delays."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from delayd.testing.daemon import Daemon, running_daemon

README: Final = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def section(heading: str) -> str:
    return README.split(f"## {heading}\n")[1].split("\n## ")[0]


def typed(text: str, daemon: Daemon, data_dir: Path) -> str:
    """What a reader types, for this daemon in this directory."""
    for written, meant in (
        ("11300", str(daemon.address[1])),
        ("localhost:11301", daemon.http_listens_on),
        ("127.0.0.1:11301", daemon.http_listens_on),
        ("data/lock", f"{data_dir}/lock"),
        ("put 0 20 ", "put 0 1 "),
        ("delay=10", "delay=1"),
        ('"delay": "10s"', '"delay": "1s"'),
    ):
        text = text.replace(written, meant)
    return text


def test_a_job_outlives_the_kill_that_the_readme_proposes(tmp_path: Path) -> None:
    before, after = re.findall(r"(?:^    .*\n)+", section("Kill it"), re.MULTILINE)
    shell = subprocess.Popen(
        ["bash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with shell:
        assert shell.stdin is not None
        assert shell.stdout is not None
        with running_daemon(data_dir=tmp_path) as daemon:
            shell.stdin.write(typed(before, daemon, tmp_path))
            shell.stdin.flush()
            assert daemon.process.wait(60) == -9
            assert shell.stdout.readline() == "INSERTED 1\n"
        with running_daemon(data_dir=tmp_path) as daemon:
            out, err = shell.communicate(typed(after, daemon, tmp_path), timeout=60)
    assert out == "WATCHING 2\nWATCHING 1\nRESERVED 1 5\nhello\nDELETED\n"
    assert not err


@pytest.mark.parametrize("number", [0, 1])
def test_the_programs_of_the_readme_work(tmp_path: Path, number: int) -> None:
    program = re.findall(r"```python\n(.*?)```", section("From a program"), re.DOTALL)[number]
    with running_daemon("--http", "127.0.0.1:0", data_dir=tmp_path) as daemon:
        ran = subprocess.run(
            [sys.executable, "-c", typed(program, daemon, tmp_path)],
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert ran.stdout == "hello, ten seconds later\n"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_job_over_http_comes_and_is_acknowledged(tmp_path: Path) -> None:
    blocks = re.findall(r"(?:^    .*\n)+", section("Over HTTP"), re.MULTILINE)
    with running_daemon("--http", "127.0.0.1:0", data_dir=tmp_path) as daemon:
        ran = subprocess.run(
            [
                "bash",
                "-c",
                typed("\n".join(blocks).replace("curl ", "curl -sS "), daemon, tmp_path),
            ],
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert not ran.stderr
    put, got, done = map(json.loads, ran.stdout.splitlines())
    (job,) = got["jobs"]
    assert put["id"] == job["id"] == done["id"] == 1
    assert job["body"] == {"to": "ada"}
    assert job["lateness"] >= 0
