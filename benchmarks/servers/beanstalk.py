"""The beanstalk protocol, which delayd and beanstalkd speak, for the load generator."""

import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from benchmarks.line import RECEIVE_BYTES, UnexpectedReplyError, ask, statistic, whole_replies
from benchmarks.registry import NotMeasuredError
from benchmarks.servers.peer import NUMBER_DIGITS, Heard, filler

TTR_S: Final = 600
"""Far from the last second of a reservation, in which a server answers DEADLINE_SOON."""
COUNTS: Final = (b"ready", b"reserved", b"delayed", b"buried")


@lru_cache(maxsize=4_096)
def put_template(delay_ms: int, body_bytes: int, extension: bytes = b"") -> bytes:
    r"""Return a put with places for the number in its body, and in the extension if it has one.

    >>> put_template(1_500, 12) % 7
    b'put 0 1.5 600 12\r\n0000000007xx\r\n'
    """
    delay = b"%.3f" % (delay_ms / 1_000)
    delay = delay.rstrip(b"0").rstrip(b".")  # stock servers know whole seconds only
    letters = filler(body_bytes - NUMBER_DIGITS)
    head = b"put 0 %b %d %d%b\r\n" % (delay, TTR_S, body_bytes, extension)
    return head + b"%0" + b"%d" % NUMBER_DIGITS + b"d" + letters + b"\r\n"


class BeanstalkDialect:
    r"""Puts, reserves and deletes.

    >>> dialect = BeanstalkDialect(12)
    >>> dialect.hear(b"RESERVED 7 12\r\n0000000003xx\r\nDELETED\r\nINS")
    Heard(put=0, taken=[(3, b'7')], acknowledged=1, empty=0, follow=b'')
    >>> dialect.acknowledgements([b"7"])
    b'delete 7\r\n'
    """

    answers_acknowledgements = True

    def __init__(
        self, body_bytes: int, *, has_keys: bool = False, tube: bytes = b"default"
    ) -> None:
        self._body_bytes = body_bytes
        self._has_keys = has_keys
        self._tube = tube
        self._reserved = re.compile(rb"RESERVED (\d+) %d\r\n(\d{%d})" % (body_bytes, NUMBER_DIGITS))
        self._pending = b""

    def greet(self, sock: socket.socket) -> None:
        """Use and watch the tube, which need not be said of `default`."""
        if self._tube != b"default":
            for command in (b"use %b\r\n", b"watch %b\r\n", b"ignore default\r\n"):
                sock.sendall(command % self._tube if b"%" in command else command)
                sock.recv(RECEIVE_BYTES)

    def puts(self, first: int, count: int, delay_ms: int) -> bytes:
        """Return so many puts."""
        one = put_template(delay_ms, self._body_bytes)
        return one * count % tuple(range(first, first + count))

    def keyed_puts(self, first: int, count: int, delay_ms: int) -> bytes:
        """Return so many puts, each with a key, which only delayd knows."""
        if not self._has_keys:
            raise NotMeasuredError("beanstalkd has no keys")
        one = put_template(delay_ms, self._body_bytes, b" key=order-%d")
        numbers = range(first, first + count)
        return one * count % tuple(number for number in numbers for _ in range(2))

    def takes(self, count: int) -> bytes:
        """Return so many reserves, which wait until there is a job."""
        return b"reserve\r\n" * count

    def acknowledgements(self, handles: Sequence[bytes]) -> bytes:
        """Return so many deletes."""
        return b"delete " + b"\r\ndelete ".join(handles) + b"\r\n"

    def hear(self, data: bytes) -> Heard:
        """Count whole replies; anything but INSERTED, RESERVED and DELETED is an error."""
        data = self._pending + data
        put = data.count(b"INSERTED ")
        if put == data.count(b"\n") and data.endswith(b"\n"):  # a third of the time, for puts
            self._pending = b""
            return Heard(put=put)
        end = whole_replies(data)
        replies, self._pending = data[:end], data[end:]
        lines = replies.count(b"\n")
        put = replies.count(b"INSERTED ")
        taken = [(int(number), job) for job, number in self._reserved.findall(replies)]
        acknowledged = replies.count(b"DELETED\r\n")
        if put + 2 * len(taken) + acknowledged != lines:
            raise UnexpectedReplyError(f"a command was answered {replies[:80]!r}")
        return Heard(put, taken, acknowledged)


class DrawnBodies(BeanstalkDialect):
    """The same with bodies that differ from job to job behind their number, as texts do."""

    def __init__(self, body_bytes: int, draw: Callable[[int], bytes]) -> None:
        """Take what draws so many bytes of a body."""
        super().__init__(body_bytes)
        self._draw = draw

    def puts(self, first: int, count: int, delay_ms: int) -> bytes:
        """Return so many puts."""
        letters = filler(self._body_bytes - NUMBER_DIGITS)
        head, tail = put_template(delay_ms, self._body_bytes).split(letters)
        return b"".join(
            head % number + self._draw(len(letters)) + tail
            for number in range(first, first + count)
        )


@dataclass(frozen=True, slots=True)
class Reachable:
    """A server of the line protocol as clients reach it that work in one tube."""

    port: int
    tube: bytes = b"default"
    draw: Callable[[int], bytes] | None = None
    """What draws so many bytes of a body; None: they are the same for all jobs."""

    def dialect(self, body_bytes: int) -> BeanstalkDialect:
        """Return the way of speaking of a new connection."""
        if self.draw:
            return DrawnBodies(body_bytes, self.draw)
        return BeanstalkDialect(body_bytes, tube=self.tube)


def standing_jobs(port: int, tube: bytes = b"", states: Sequence[bytes] = COUNTS) -> int:
    """Ask a server how many jobs it has, or a tube of it has, in these states."""
    reply = ask(port, b"stats-tube %b\r\n" % tube if tube else b"stats\r\n")
    found = [statistic(reply, b"current-jobs-" + state) for state in states]
    if None in found:
        raise UnexpectedReplyError(f"stats were answered {reply[:80]!r}")
    return sum(filter(None, found))
