"""How long after exec the first reply comes: the chapter `start`.

Test suites of beanstalk clients start a server for each test and connect 100 ms later. Each program
is started on a fresh unix socket, and the time from just before exec to the reply to a `stats` is
taken, which is sent at the first connect that succeeds; beside it the processor time until that
reply, which other work on the machine does not change. The floor is a Python that imports sockets
and a selector, and ends. One case is without any bytecode, neither of delayd nor of Python's
library, as in an image whose Python writes none. A reading is the median of several starts, after
one that warms the caches.
"""

import contextlib
import functools
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.registry import Bench, Case, NotMeasuredError, Values

STARTS_MAX: Final = 10
"""Of one reading."""
GIVE_UP_S: Final = 10.0
FLOOR: Final = "import socket, selectors"
ENVIRONMENT: Final = {
    name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
}
"""As it is for users: what the first start compiles is kept for the others."""
NO_BYTECODE: Final = {
    **ENVIRONMENT,
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONPYCACHEPREFIX": "/nonexistent",
}
UNCOMPILED: Final = "without bytecode"


class Start(NamedTuple):
    """One start, in milliseconds."""

    reply: float
    processor: float


def floor() -> Start:
    """Start a Python that does nothing but import what a server cannot do without."""
    began = time.perf_counter()
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", FLOOR], ENVIRONMENT)
    used = os.wait4(pid, 0)[2]
    took = (time.perf_counter() - began) * 1_000
    return Start(took, (used.ru_utime + used.ru_stime) * 1_000)


def started(command: Sequence[str], path: Path, environment: Mapping[str, str]) -> Start:
    """Start the command, which listens on `path`; stop it once it has answered."""
    began = time.perf_counter()
    nowhere = subprocess.DEVNULL
    with subprocess.Popen(command, stdout=nowhere, stderr=nowhere, env=environment) as process:
        try:
            while time.perf_counter() - began < GIVE_UP_S:
                with socket.socket(socket.AF_UNIX) as client, contextlib.suppress(OSError):
                    client.connect(str(path))
                    client.sendall(b"stats\r\n")
                    client.recv(4_096)
                    reply = time.perf_counter() - began
                    on_processor = Path(f"/proc/{process.pid}/schedstat").read_text().split()[0]
                    return Start(reply * 1_000, int(on_processor) / 1e6)
                time.sleep(0.0005)
        finally:
            process.kill()
    raise TimeoutError(f"{command[0]} does not listen on {path}")


DROP_IN: Final = "delayd-beanstalkd -l unix:{}"
COMMANDS: Final[Mapping[str, str]] = {
    "delayd-beanstalkd": DROP_IN,
    "delayd-beanstalkd, compiled": DROP_IN,
    f"delayd-beanstalkd {UNCOMPILED}": DROP_IN,
    "delayd-beanstalkd -b": DROP_IN + " -b {}.data",
    "delayd serve": "delayd serve --http off --line unix:{} --data-dir {}.data",
    "beanstalkd": "beanstalkd -l unix:{}",
}


def one_start(subject: str, bench: Bench) -> Start:
    """Start a subject once."""
    if subject == FLOOR:
        return floor()
    name, *words = COMMANDS[subject].split()
    beside = Path(sys.executable).parent / name
    program = str(beside) if beside.exists() else shutil.which(name)
    if program is None:
        raise NotMeasuredError(f"there is no {name}")
    environment = NO_BYTECODE if subject.endswith(UNCOMPILED) else ENVIRONMENT
    environment = environment | bench.python_path(compiled=subject.endswith("compiled"))
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "line.sock"
        return started([program, *(word.format(path) for word in words)], path, environment)


def reading(subject: str, bench: Bench) -> Values:
    """Return the median of several starts."""
    starts = [one_start(subject, bench) for _ in range(1 + bench.entries(STARTS_MAX))][1:]
    return {
        "p50_ms": statistics.median(start.reply for start in starts),
        "cpu_ms": statistics.median(start.processor for start in starts),
    }


def cases() -> Sequence[Case]:
    """Return the chapter: one operation, by several programs."""
    return [
        Case(
            chapter="start",
            operation="first reply after exec",
            size={},
            subject=subject,
            measure=functools.partial(reading, subject),
            settings=COMMANDS.get(subject, f"python -c {FLOOR!r}"),
        )
        for subject in (FLOOR, *COMMANDS)
    ]
