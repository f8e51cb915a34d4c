"""Messages to systemd: ready, status, alive, stopping.

The protocol is one datagram of `NAME=value` lines to the socket that `NOTIFY_SOCKET` names
(sd_notify(3)); without that variable everything here does nothing. A message must never harm
serving: sending does not wait, and a failure is not an error.

`Watchdog` has the daemon checked once a minute, or as often as systemd wants to hear from it, and
says so after each check: a loop that hangs is restarted.

Sockets from systemd are taken by `delayd.net.addresses.inherited_listeners`.
"""

import contextlib
import socket
from collections.abc import Callable, Mapping

from delayd.limits import WATCHDOG_MS
from delayd.text import parse_whole


class Notifier:
    """The line to systemd, if there is one. `environment` and `pid` are this process's."""

    def __init__(self, environment: Mapping[str, str], pid: int) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        # "@" stands for the NUL of an abstract name. Other schemes (vsock:) are for machines.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        if self._address[:1] not in {"/", "\0"}:
            self._address = ""
        self.watchdog_ms = _watchdog_ms(environment, pid)
        """How long systemd waits for `watchdog()` before it restarts us; None: it does not."""

    def ready(self, status: str) -> None:
        """Say that the daemon serves."""
        self._send("READY=1", _status(status))

    def extend_start_ms(self, by_ms: int, status: str) -> None:
        """Ask for at least `by_ms` more until `ready()` or the next such call, during recovery."""
        self._send(f"EXTEND_TIMEOUT_USEC={by_ms * 1000}", _status(status))

    def watchdog(self) -> None:
        """Say that the loop still turns."""
        self._send("WATCHDOG=1")

    def stopping(self, status: str) -> None:
        """Say that the daemon has begun to stop."""
        self._send("STOPPING=1", _status(status))

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify,
        ):
            notify.setblocking(False)
            notify.sendto("\n".join(lines).encode(), self._address)


class Watchdog:
    """Checks the daemon again and again, and tells systemd that its loop turns."""

    def __init__(
        self,
        notifier: Notifier,
        check: Callable[[], object],
        call_later: Callable[[float, Callable[[], object]], object],
    ) -> None:
        """`call_later` is the one of the loop that is watched."""
        self._notifier = notifier
        self._check = check
        self._call_later = call_later
        wait_ms = min(WATCHDOG_MS, (notifier.watchdog_ms or 2 * WATCHDOG_MS) // 2)
        self._wait_s = wait_ms / 1_000

    def go(self) -> None:
        """Check, say so, and come back."""
        self._check()
        self._notifier.watchdog()
        self._call_later(self._wait_s, self.go)


def _status(status: str) -> str:
    return "STATUS=" + " ".join(status.split())  # a line break would begin another assignment


def _watchdog_ms(environment: Mapping[str, str], pid: int) -> int | None:
    interval_us = parse_whole(environment.get("WATCHDOG_USEC", ""))
    if interval_us is None:
        return None
    if environment.get("WATCHDOG_PID", str(pid)) != str(pid):
        return None
    return interval_us // 1000 or None
