"""How long after exec a client can connect: `python -m benchmarks.start`.

Test suites of beanstalk clients start the server and connect 100 ms later, so delayd-beanstalkd
listens before it imports the daemon. Each program is started on a fresh unix socket, and the time
from just before exec to the first connect that succeeds is taken; the median of eleven starts
counts, after one that warms the caches. beanstalkd runs in the same round where it is installed.
"""

import contextlib
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

STARTS: Final = 11
GIVE_UP_S: Final = 10.0


def exec_to_listening_ms(command: Sequence[str], path: Path) -> float:
    """Start the command, which listens on `path`; stop it once somebody could connect."""
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            while time.perf_counter() - began < GIVE_UP_S:
                with socket.socket(socket.AF_UNIX) as client, contextlib.suppress(OSError):
                    client.connect(str(path))
                    return (time.perf_counter() - began) * 1000
                time.sleep(0.0005)
        finally:
            process.kill()
    raise TimeoutError(f"{command[0]} does not listen on {path}")


def measure(name: str, command: Sequence[str]) -> str:
    """Start the command many times; one row of the table. `{}` stands for the socket's path."""
    times_ms = []
    for _ in range(STARTS + 1):
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "line.sock"
            words = [word.format(path) for word in command]
            times_ms.append(exec_to_listening_ms(words, path))
    del times_ms[0]
    return f"{name:<20} {statistics.median(times_ms):>8.1f} {max(times_ms):>8.1f}"


def main() -> None:
    """Print the table."""
    beside = Path(sys.executable).parent
    commands = {
        "delayd-beanstalkd": [str(beside / "delayd-beanstalkd"), "-l", "unix:{}"],
        "delayd serve": [
            *(str(beside / "delayd"), "serve", "--http", "off"),
            *("--line", "unix:{}", "--data-dir", "{}.data"),
        ],
        "bare Python": [
            # The floor: nothing but the interpreter and the two calls.
            *(sys.executable, "-I", "-c"),
            "import _socket; s = _socket.socket(1); s.bind('{}'); s.listen(); s._accept()",
        ],
    }
    peer = shutil.which("beanstalkd")
    if peer:
        commands["beanstalkd"] = [peer, "-l", "unix:{}"]
    print(f"{'exec to listening':<20} {'median':>8} {'max':>8}  (ms, {STARTS} starts)")
    for name, command in commands.items():
        print(measure(name, command))


if __name__ == "__main__":
    main()
