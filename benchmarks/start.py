"""How long after exec the first reply comes: `python -m benchmarks.start`.

Test suites of beanstalk clients start a server for each test and connect 100 ms later. Each program
is started on a fresh unix socket, and the times from just before exec are taken: to the first
connect that succeeds, and to the reply to the `stats` that is sent then. Beside them the processor
time until that reply, which other work on the machine does not change. The floor is a Python that
imports sockets and a selector, and ends; beanstalkd runs in the same rounds where it is installed.
One row is without any bytecode, neither of delayd nor of Python's library, as in an image whose
Python writes none. All take turns, and the medians of twenty rounds count, after one that warms the
caches.
"""

import contextlib
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

ROUNDS: Final = 20
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

    listening: float
    reply: float
    processor: float


def floor() -> Start:
    """Start a Python that does nothing but import what a server cannot do without."""
    began = time.perf_counter()
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", FLOOR], ENVIRONMENT)
    used = os.wait4(pid, 0)[2]
    took = (time.perf_counter() - began) * 1_000
    return Start(took, took, (used.ru_utime + used.ru_stime) * 1_000)


def started(command: Sequence[str], path: Path, environment: Mapping[str, str]) -> Start:
    """Start the command, which listens on `path`; stop it once it has answered."""
    began = time.perf_counter()
    nowhere = subprocess.DEVNULL
    with subprocess.Popen(command, stdout=nowhere, stderr=nowhere, env=environment) as process:
        try:
            while time.perf_counter() - began < GIVE_UP_S:
                with socket.socket(socket.AF_UNIX) as client, contextlib.suppress(OSError):
                    client.connect(str(path))
                    listening = time.perf_counter() - began
                    client.sendall(b"stats\r\n")
                    client.recv(4_096)
                    reply = time.perf_counter() - began
                    on_processor = Path(f"/proc/{process.pid}/schedstat").read_text().split()[0]
                    return Start(listening * 1_000, reply * 1_000, int(on_processor) / 1e6)
                time.sleep(0.0005)
        finally:
            process.kill()
    raise TimeoutError(f"{command[0]} does not listen on {path}")


def main() -> None:
    """Print the table."""
    beside = Path(sys.executable).parent
    drop_in = str(beside / "delayd-beanstalkd")
    commands = {
        "delayd-beanstalkd": [drop_in, "-l", "unix:{}"],
        f"… {UNCOMPILED}": [drop_in, "-l", "unix:{}"],
        "delayd-beanstalkd -b": [drop_in, "-l", "unix:{}", "-b", "{}.data"],
        "delayd serve": [
            *(str(beside / "delayd"), "serve", "--http", "off"),
            *("--line", "unix:{}", "--data-dir", "{}.data"),
        ],
    }
    if peer := shutil.which("beanstalkd"):
        commands["beanstalkd"] = [peer, "-l", "unix:{}"]
    starts: dict[str, list[Start]] = {name: [] for name in (*commands, FLOOR)}
    for _ in range(ROUNDS + 1):
        starts[FLOOR].append(floor())
        for name, command in commands.items():
            with tempfile.TemporaryDirectory() as directory:
                path = Path(directory) / "line.sock"
                words = [word.format(path) for word in command]
                environment = NO_BYTECODE if name.endswith(UNCOMPILED) else ENVIRONMENT
                starts[name].append(started(words, path, environment))
    print(f"{f'ms from exec, medians of {ROUNDS}':<26} {'listening':>10} {'reply':>8} {'CPU':>8}")
    for name, taken in starts.items():
        of_each = zip(*taken[1:], strict=True)
        listening, reply, processor = (statistics.median(times) for times in of_each)
        print(f"{name:<26} {listening:>10.1f} {reply:>8.1f} {processor:>8.1f}")


if __name__ == "__main__":
    main()
