"""docs/push.md is true: a newcomer who follows it to the end sees what it says.

Its port is another one here, and the daemon listens elsewhere. `...` stands for what varies.
"""

import contextlib
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from delayd.config import load
from delayd.testing.daemon import Daemon
from tests.config_files import written
from tests.pages import Reader, examples, is_as_told, is_same_answer, needs_curl, text_of
from tests.rigs.waiting import until
from tests.servers import free_port

PAGE: Final = "push.md"
BLOCK: Final = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PORT: Final = "8080"


def blocks(kind: str) -> list[str]:
    return [text for found, text in BLOCK.findall(text_of(PAGE)) if found == kind]


@contextlib.contextmanager
def receiver(reader: Reader, command: str) -> Iterator[Path]:
    """Start it as the page says; what it prints is in the file."""
    output = reader.directory / "received"
    with (
        output.open("wb") as file,
        subprocess.Popen(
            ["bash", "-ec", f"exec env {command}"],
            stdout=file,
            cwd=reader.directory,
            env=reader.environment,
        ) as process,
    ):
        try:
            until(lambda: is_listening(int(reader.here(PORT))))
            yield output
        finally:
            process.kill()


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return not probe.connect_ex(("127.0.0.1", port))


@needs_curl
def test_who_follows_the_page_sees_what_it_says(tmp_path: Path) -> None:
    with free_port() as port:
        follow(Reader(tmp_path, also={PORT: str(port)}))


def follow(reader: Reader) -> None:
    def typed(command: str) -> str:
        return reader.said("bash", "-ec", reader.here(command).replace("curl ", "curl -sS ", 1))

    def is_answered(command: str, told: str) -> bool:
        return is_same_answer(reader.here(told), typed(command))

    make_secret, start_receiver, serve, try_it = blocks("sh")
    typed(make_secret)
    for name, kind in (("delayd.toml", "toml"), ("receiver.py", "python")):
        (reader.directory / name).write_text(reader.here(blocks(kind)[0]))
    received, explained = blocks("text")
    (put, told), *others = examples(PAGE)
    words = [sys.executable, "-m", *shlex.split(serve)]
    elsewhere = ["--line", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    with (
        receiver(reader, start_receiver) as output,
        Daemon([*words, *elsewhere], directory=str(reader.directory)) as daemon,
    ):
        reader.finds(daemon)
        assert is_answered(put, told)
        until(lambda: output.read_text() == received, seen=output.read_text)
        until(lambda: '"status":404' in typed("curl localhost:11301/v1/jobs/1"))
        for command, told in others:
            if " --json " in command or " -X " in command:
                assert is_answered(command, told), command
            else:  # who only looks does so again, as a call takes a moment
                until(lambda: is_answered(command, told), seen=lambda: command)  # noqa: B023
        answered = typed(f"if {try_it.strip()}; then exit 1; else test $? = 69; fi; echo right")
        assert is_as_told(f"{reader.here(explained)}right\n", answered), answered


def test_the_examples_of_the_configuration_are_good(tmp_path: Path) -> None:
    for text in blocks("toml"):
        load(written(tmp_path, text), {}, {})
