"""What is built from this checkout can be installed, and then is all there.

Built by the locked build backend, without network, and installed into a new environment that finds
the libraries, but not delayd, where the tests have them.
"""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import tarfile
import urllib.request
import venv
import zipfile
from pathlib import Path
from typing import Final

import pytest

from delayd import __version__
from delayd.testing.daemon import Daemon, running_daemon
from tests.http_client import HTTP
from tests.rigs.process import serve_command
from tests.rigs.waiting import until

ROOT: Final = Path(__file__).parents[2]
HERE: Final = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
"""Without PYTHONPATH, which would let the checkout be found."""


def ran(*command: str | Path, directory: Path) -> str:
    result = subprocess.run(
        [*map(str, command)],
        check=False,
        capture_output=True,
        text=True,
        cwd=directory,
        env=HERE,
        timeout=300,
    )
    assert result.returncode == 0, result
    return result.stdout


def built(kind: str, source: Path, target: Path) -> Path:
    ran(sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", target, directory=source)
    (found,) = target.iterdir()
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environment in which it is installed."""
    home = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(home)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", home)
    ran(*pip, "install", "--no-index", "--no-deps", wheel, directory=home)
    (site,) = home.glob("lib/python*/site-packages")
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    return home


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_has_every_file_of_the_package_and_names_its_commands_and_sinks(
    wheel: Path,
) -> None:
    here = [path for path in (ROOT / "delayd").rglob("*") if "__pycache__" not in path.parts]
    names = names_in(wheel)
    packaged = {name for name in names if name.startswith("delayd/")}
    assert packaged == {path.relative_to(ROOT).as_posix() for path in here if path.is_file()}
    assert {"delayd/py.typed", "delayd/ui/index.html", "delayd/ui/app.js"} <= names
    (name,) = (each for each in names if each.endswith("entry_points.txt"))
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(name).decode()
    for line in ("delayd =", "delayd-beanstalkd =", "amqp =", "redis ="):
        assert f"\n{line}" in text


def test_a_wheel_of_the_source_distribution_is_the_same(wheel: Path, tmp_path: Path) -> None:
    sdist = built("sdist", ROOT, tmp_path / "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "source")  # noqa: S202 (our own; Debian 12 has no filters)
    (source,) = (tmp_path / "source").iterdir()
    again = built("wheel", source, tmp_path / "again")
    assert again.name == wheel.name
    assert names_in(again) == names_in(wheel)


def test_what_is_installed_is_of_the_wheel_has_its_bytecode_and_serves_the_dashboard(
    installed: Path, tmp_path: Path
) -> None:
    """With its bytecode a daemon whose Python writes none compiles nothing."""
    programs = installed / "bin"
    assert __version__ in ran(programs / "delayd", "--version", directory=installed)
    assert ran(programs / "delayd-beanstalkd", "-v", directory=installed)
    asked = "import delayd; print(delayd.__file__)"
    said = ran(programs / "python", "-c", asked, directory=installed)
    package = Path(said.strip()).parent
    assert package.is_relative_to(installed)
    bytecode = [importlib.util.cache_from_source(str(path)) for path in package.rglob("*.py")]
    assert not [path for path in bytecode if not Path(path).exists()]
    _, *words = serve_command(tmp_path / "data", *HTTP)
    with (
        Daemon([str(programs / "python"), *words], environment={"PYTHONPATH": ""}) as daemon,
        urllib.request.urlopen(f"http://{daemon.http_listens_on}/ui/") as answer,
    ):
        assert b"<title>delayd</title>" in answer.read()


def test_the_container_is_healthy_also_while_it_drains() -> None:
    """By the very command of the Dockerfile, also where Docker names a proxy to each container."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    found = re.search(r"^HEALTHCHECK .*\\\n\s*CMD (\[.*\])$", text, re.MULTILINE)
    assert found is not None
    python, *arguments = json.loads(found[1])
    proxied = {**os.environ, "http_proxy": "http://127.0.0.1:9", "no_proxy": ""}
    assert python == "python"
    with running_daemon("--http", "127.0.0.1:0") as daemon:
        here = [each.replace("127.0.0.1:11301", daemon.http_listens_on) for each in arguments]

        def is_healthy() -> bool:
            asked = subprocess.run(
                [sys.executable, *here], check=False, capture_output=True, env=proxied
            )
            return asked.returncode == 0

        until(is_healthy)  # it asks for four seconds, for which a machine may stop
        daemon.process.send_signal(signal.SIGUSR1)
        until(lambda: "draining" in daemon.log())
        until(is_healthy)
        daemon.stop()
        assert not is_healthy()
