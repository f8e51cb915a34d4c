"""`delayd top` on a terminal, while its daemon stops to answer."""

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from typing import Final

from delayd.client.sync import Client
from delayd.exits import Exit
from delayd.testing.daemon import running_daemon
from tests.client.worlds import http_url

WAIT_S: Final = 60.0


class Screen:
    """What a program writes to its terminal of 80 x 24."""

    def __init__(self, *words: str, term: str = "xterm") -> None:
        self._terminal, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        environment = {**os.environ, "TERM": term}
        command = [sys.executable, "-m", "delayd", *words]
        self._process = subprocess.Popen(
            command, stdin=inner, stdout=inner, stderr=inner, env=environment, close_fds=True
        )
        os.close(inner)

    def shows(self, text: str) -> None:
        """Wait until it writes this."""
        ends_s = time.monotonic() + WAIT_S
        seen = b""
        while text.encode() not in seen:
            assert time.monotonic() < ends_s, f"no {text!r} in {seen[-4_000:].decode()}"
            if select.select([self._terminal], [], [], 1.0)[0]:
                seen = seen[-10_000:] + os.read(self._terminal, 65_536)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def type(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def ends(self) -> int:
        """Return its exit code."""
        while self._process.poll() is None:
            with contextlib.suppress(OSError):  # it has closed the terminal
                if select.select([self._terminal], [], [], 0.1)[0]:
                    os.read(self._terminal, 65_536)
        return self._process.wait(WAIT_S)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)


def test_top_says_that_the_daemon_does_not_answer_that_it_does_again_and_why_it_is_gone() -> None:
    with (
        running_daemon("--http", "127.0.0.1:0") as daemon,
        contextlib.closing(Screen("top", "--url", http_url(daemon))) as screen,
    ):
        with Client(http_url(daemon)) as client:
            for number in range(300):
                client.put(f"orders.{number}", "x")
        screen.shows("more topics")
        os.kill(daemon.pid, signal.SIGSTOP)
        screen.shows("the daemon has not answered for")
        os.kill(daemon.pid, signal.SIGCONT)
        screen.shows("300 jobs in 301 topics")
        daemon.kill()
        screen.shows("Connection refused")
        screen.type("q")
        assert screen.ends() == 0


def test_sigterm_gives_the_terminal_back_as_it_was() -> None:
    with (
        running_daemon("--http", "127.0.0.1:0") as daemon,
        contextlib.closing(Screen("top", "--url", http_url(daemon))) as screen,
    ):
        screen.shows("0 jobs in 1 topic")
        screen.signal(signal.SIGTERM)
        screen.shows("\x1b[?1049l")  # the end of the alternate screen
        assert screen.ends() == 0


def test_a_terminal_that_nothing_can_be_drawn_on_is_none_for_top() -> None:
    with contextlib.closing(Screen("top", "--url", "http://127.0.0.1:1", term="dumb")) as screen:
        screen.shows("top needs a terminal; use --once, or --json")
        assert screen.ends() == Exit.USAGE
