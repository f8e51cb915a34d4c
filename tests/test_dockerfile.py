"""The Dockerfile, read as text: who runs, what is copied, and how its health is asked for."""

import json
import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
TEXT: Final = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text(encoding="utf-8"))
STEPS: Final = [
    tuple(line.split(" ", 1)) for line in TEXT.splitlines() if line and not line.startswith("#")
]
LAST_STAGE: Final = STEPS[max(at for at, step in enumerate(STEPS) if step[0] == "FROM") :]
IMAGE: Final = "python:3.11-slim"


def said(instruction: str) -> list[str]:
    """What the last stage says behind it."""
    return [rest for name, rest in LAST_STAGE if name == instruction]


def test_the_daemon_runs_as_a_user_without_rights_who_owns_the_jobs() -> None:
    assert [rest for name, rest in STEPS if name == "FROM"] == [f"{IMAGE} AS build", IMAGE]
    assert said("USER") == ["65532:65532"]
    assert any("--owner 65532" in run and run.endswith("/var/lib/delayd") for run in said("RUN"))
    assert said("VOLUME") == said("WORKDIR") == ["/var/lib/delayd"]
    assert [*json.loads(said("ENTRYPOINT")[0]), *json.loads(said("CMD")[0])] == ["delayd", "serve"]
    (environment,) = said("ENV")  # nothing is written outside of the volume
    assert "PYTHONDONTWRITEBYTECODE=1" in environment
    assert "DELAYD_DATA_DIR=/var/lib/delayd" in environment


def test_bytecode_is_in_the_image_for_a_daemon_that_writes_none() -> None:
    compiled = [
        command.split()
        for name, rest in STEPS
        for command in rest.split(" && ")
        if name == "RUN" and command.startswith("python -m compileall ")
    ]
    assert [words[-1] for words in compiled] == ["/opt/delayd/lib", "/usr/local/lib/python3.*"]
    for words in compiled:
        assert "unchecked-hash" in words
    assert compiled[1] in [each.split() for run in said("RUN") for each in run.split(" && ")]


def test_nothing_that_builds_or_installs_is_left() -> None:
    assert any(
        run.startswith("python -m pip uninstall --yes setuptools wheel pip") for run in said("RUN")
    )
    assert any("rm -r /usr/local/lib/python3.*/ensurepip" in run for run in said("RUN"))
    assert said("COPY") == ["--from=build /opt/delayd /opt/delayd"]
    assert any("venv --without-pip /opt/delayd" in rest for name, rest in STEPS if name == "RUN")


def test_what_is_installed_is_locked() -> None:
    for name, rest in STEPS:
        for command in rest.split(" && ") if name == "RUN" else ():
            if " install " in f" {command} " and "pip" in command.split("install")[0]:
                assert "--require-hashes" in command or "--no-index" in command, command


def test_all_that_is_copied_exists_and_is_sent_to_the_builder() -> None:
    sent = [line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line[0] == "!"]
    copied = [rest.split()[:-1] for name, rest in STEPS if name == "COPY" and "--from" not in rest]
    for path in (each for paths in copied for each in paths):
        assert (ROOT / path).exists()
        assert any(path == each or path.startswith(f"{each}/") for each in sent), path
    assert all((ROOT / each).exists() for each in sent)
