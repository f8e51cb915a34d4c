"""The programs of docs/other-languages.md do what the page says, in each language that is there.

A worker gets three jobs: one that works, one that works later, one that never will. What needs a
client that neither Debian nor npm has is compiled with its signatures, which are in `signatures/`.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from delayd.testing.daemon import Daemon, running_daemon
from tests.http_client import HTTP
from tests.line_client import LineClient
from tests.pages import text_of
from tests.rigs.waiting import until

ROOT: Final = Path(__file__).parents[2]
SIGNATURES: Final = Path(__file__).parent / "signatures"
PROGRAMS: Final[dict[str, str]] = dict(
    re.findall(
        r"`([\w.]+)`:\n\n```\w+\n(.*?)^```$",
        text_of("other-languages.md"),
        re.MULTILINE | re.DOTALL,
    )
)
NODE_MODULES: Final = ROOT / "build" / "clients" / "node_modules"
"""There after `make test-clients`. Go and Java, which compile for seconds, are played only then."""
PHEANSTALK: Final = Path("/usr/share/php/Pheanstalk/autoload.php")
BEANEATER: Final = Path("/usr/lib/ruby/vendor_ruby/beaneater.rb")
PATIENCE_S: Final = 120.0
DELAY_S: Final = 10
LATER_S: Final = 60

TUBE_NAME: Final = """<?php
namespace Pheanstalk\\Values { class TubeName {
    public function __construct(private string $name) {}
    public function __toString(): string { return $this->name; }
} }
namespace { require '%s'; }
"""
"""Since pheanstalk 5 a name is an object; Debian has version 4, which takes a text."""


def needs(program: str, **files: Path) -> pytest.MarkDecorator:
    """Skip where a language is missing, or what goes by one of these names."""
    missing = [name for name, file in files.items() if not file.exists()]
    if shutil.which(program) is None:
        missing.insert(0, program)
    reason = f"needs {', '.join(missing)}, which `make test-clients` installs"
    return pytest.mark.skipif(bool(missing), reason=reason)


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with running_daemon(*HTTP, clock="virtual") as daemon:
        yield daemon


@pytest.fixture
def line(daemon: Daemon) -> Iterator[LineClient]:
    with LineClient(daemon.address) as line:
        yield line
        line.ask("clear-tube mail")


@pytest.fixture
def folder(daemon: Daemon, tmp_path: Path) -> Path:
    """A project with the programs of the page, and the clients."""
    ports = {"11300": daemon.address[1], "11301": daemon.http_address[1]}
    for name, text in PROGRAMS.items():
        here = re.sub("11300|11301", lambda found: str(ports[found[0]]), text)
        (tmp_path / name).write_text(here)
    if NODE_MODULES.is_dir():
        (tmp_path / "node_modules").symlink_to(NODE_MODULES)
    (tmp_path / "vendor").mkdir()
    (tmp_path / "vendor" / "autoload.php").write_text(TUBE_NAME % PHEANSTALK)
    (tmp_path / "go.mod").write_text(
        "module example\n\ngo 1.19\n\nrequire github.com/beanstalkd/go-beanstalk v0.0.0\n\n"
        f"replace github.com/beanstalkd/go-beanstalk => {SIGNATURES / 'go'}\n"
    )
    return tmp_path


def environment() -> dict[str, str]:
    go = {"GOCACHE": str(ROOT / "build" / "go"), "GOPROXY": "off", "GOFLAGS": "-mod=mod"}
    return {**os.environ, **go}


def run(folder: Path, *command: str) -> str:
    """Run a program, which must succeed; return what it said."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def states(line: LineClient) -> tuple[int, ...]:
    """How many jobs of the topic are ready, reserved, delayed, buried."""
    of_topic = line.stats("stats-tube mail")
    names = ("ready", "reserved", "delayed", "buried")
    return tuple(int(of_topic[f"current-jobs-{name}"]) for name in names)


def wait_for(line: LineClient, wanted: tuple[int, ...], worker: subprocess.Popen[str]) -> None:
    def is_so() -> bool:
        assert worker.poll() is None, worker.communicate()[0]
        return states(line) == wanted

    try:
        until(is_so, PATIENCE_S, seen=lambda: (states(line), wanted))
    except AssertionError:
        worker.kill()
        raise


def have_it_work(folder: Path, daemon: Daemon, line: LineClient, *command: str) -> str:
    """Let a worker have the three jobs, one of them when it is due; return what it said."""
    line.ask("use mail")
    later = line.put(b'{"to": "bob"}')
    never = line.put(b"bob")
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as worker:
        wait_for(line, (0, 0, 2, 1), worker)
        daemon.advance(DELAY_S)
        wait_for(line, (0, 0, 1, 1), worker)
        worker.terminate()
        said = worker.communicate(timeout=PATIENCE_S)[0]
    told = line.stats(f"stats-job {later}")
    assert (told["state"], told["delay"], told["releases"]) == ("delayed", str(LATER_S), "1")
    assert line.stats(f"stats-job {never}")["state"] == "buried"
    return said


@pytest.mark.parametrize(
    ("put", "work"),
    [
        pytest.param(
            ("node", "put.mjs"),
            ("node", "work.mjs"),
            marks=needs("node", jackd=NODE_MODULES / "jackd"),
            id="jackd",
        ),
        pytest.param(
            ("php", "put.php"),
            ("php", "work.php"),
            marks=needs("php", pheanstalk=PHEANSTALK),
            id="pheanstalk",
        ),
        pytest.param(
            ("ruby", "put.rb"),
            ("ruby", "work.rb"),
            marks=needs("ruby", beaneater=BEANEATER),
            id="beaneater",
        ),
    ],
)
def test_a_client_puts_a_job_and_works(
    put: Sequence[str], work: Sequence[str], folder: Path, daemon: Daemon, line: LineClient
) -> None:
    number = run(folder, *put).removeprefix("job ").strip()
    told = line.stats(f"stats-job {number}")
    wanted = ('"mail"', "delayed", "65536", str(DELAY_S), "60")
    assert tuple(told[name] for name in ("tube", "state", "pri", "delay", "ttr")) == wanted
    assert have_it_work(folder, daemon, line, *work) == "sent to ada\n"


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("node", "http.mjs"), marks=needs("node"), id="node"),
        pytest.param(("php", "http.php"), marks=needs("php"), id="php"),
        pytest.param(("ruby", "http.rb"), marks=needs("ruby"), id="ruby"),
        pytest.param(("./http",), marks=needs("go", node_modules=NODE_MODULES), id="go"),
    ],
)
def test_over_http_a_job_is_put_under_a_key_and_worked_on(
    command: Sequence[str], folder: Path, daemon: Daemon, line: LineClient
) -> None:
    if command == ("./http",):  # `go run` would not pass on that it is to end
        run(folder, "go", "build", "-o", "http", "http.go")
    said = have_it_work(folder, daemon, line, *command)
    assert re.fullmatch(r"job \d+ created\nsent to ada\n", said)


@needs("ruby", beaneater=BEANEATER)
def test_beaneater_puts_a_job_under_a_key(folder: Path, line: LineClient) -> None:
    run(folder, "ruby", "put_key.rb")
    assert line.ask("peek-key mail welcome-ada").endswith('{"to":"ada"}')


@needs("java", node_modules=NODE_MODULES)
def test_over_http_java_puts_a_job_under_a_key_and_cancels_it(
    folder: Path, line: LineClient
) -> None:
    said = run(folder, "java", "Http.java")
    assert re.search('"outcome":"created".*\n.*"id"', said), said
    assert line.ask("peek-key orders order-17") == "NOT_FOUND"


@needs("go", node_modules=NODE_MODULES)
def test_the_programs_of_go_compile_with_the_signatures_of_the_client(folder: Path) -> None:
    names = [name for name in PROGRAMS if name.endswith(".go")]
    assert run(folder, "gofmt", "-l", *names) == ""
    for name in names:
        run(folder, "go", "vet", name)


@needs("javac", node_modules=NODE_MODULES)
def test_the_programs_of_java_compile_with_the_signatures_of_the_client(folder: Path) -> None:
    names = [name for name in PROGRAMS if name.endswith(".java")]
    said = run(folder, "javac", "-Xlint:all", "-Werror", "-cp", str(SIGNATURES / "java"), *names)
    assert said == ""


def test_every_program_of_the_page_is_played() -> None:
    """A heading of the page that is written otherwise would not be found."""
    by_language = {"mjs": 3, "php": 3, "rb": 4, "go": 3, "java": 3}
    endings = [name.rpartition(".")[2] for name in PROGRAMS]
    assert {ending: endings.count(ending) for ending in endings} == by_language
    assert text_of("other-languages.md").count("```") == 2 * len(PROGRAMS)
