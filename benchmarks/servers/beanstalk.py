"""The beanstalk protocol, which delayd and beanstalkd speak, for the load generator."""

import re
import socket
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from benchmarks.load import UnexpectedReplyError, whole_replies
from benchmarks.peers import ask, statistic
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

    def __init__(self, body_bytes: int, *, has_keys: bool = False) -> None:
        self._body_bytes = body_bytes
        self._has_keys = has_keys
        self._reserved = re.compile(rb"RESERVED (\d+) %d\r\n(\d{%d})" % (body_bytes, NUMBER_DIGITS))
        self._pending = b""

    def greet(self, sock: socket.socket) -> None:
        """Do nothing: a connection uses and watches `default` from the start."""

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


def standing_jobs(port: int) -> int:
    """Ask a server how many jobs it has, in all states."""
    reply = ask(port, b"stats\r\n")
    found = [statistic(reply, b"current-jobs-" + state) for state in COUNTS]
    if None in found:
        raise UnexpectedReplyError(f"stats were answered {reply[:80]!r}")
    return sum(filter(None, found))
