"""Where commands begin and end in what arrives: lines, bodies, and what is discarded.

Lines end as beanstalkd ends them: in a window of 224 bytes from where the last command ended, the
*first* CR must be followed by LF. Failing that, the window is discarded when it is full, and so
are the next ones until one has an end in it; the whole gets one BAD_FORMAT. Commands that
beanstalkd does not know end with their first CRLF and may have 1,024 bytes; of a longer one
everything goes up to that CRLF, and the body that it announces.

    receive ─► bytes not yet a command ─► line ─► command
                    │                       └─ expect ─► body, once it is all there
                    └─ too long a line, or a body without use: discarded as it comes

The same bytes give the same commands whole or one at a time. This module refuses to know what any
command means, but for the beginnings of those that may be long.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

from delayd.core.errors import Refusal
from delayd.limits import LINE_BYTES_MAX, LONG_LINE_BYTES_MAX
from delayd.line import replies
from delayd.line.grammar import LONG_LINE, announced_bytes

Then = Callable[[bytes, int], bytes]
"""What to do with a body and the time, and what to reply; it may raise a `Refusal`."""


class Framing(ABC):
    """The input of one connection."""

    __slots__ = (
        "_body",
        "_expected",
        "_is_odd",
        "_missing_bytes",
        "_overlong",
        "_rest",
        "_skipping",
        "_swallow_bytes",
        "_swallow_reply",
        "is_bound",
        "is_choked",
        "is_closing",
        "is_waiting",
        "out",
    )

    def __init__(self) -> None:
        """Begin with nothing read."""
        self.out: list[bytes] = []
        self.is_bound = False
        """Something in `out` says what a job is or was made to be: it may leave when the log is on
        disk. The rest, what a connection says of itself and statistics, depends on nothing."""
        self.is_choked = False
        """The long replies in `out` are as much as may wait for a client."""
        self.is_closing = False
        """Nothing more is executed; the connection closes when `out` has been sent."""
        self.is_waiting = False
        """A reserve, or a command that takes long, has not been answered yet."""
        self._rest = b""
        self._is_odd = False
        """Something else than a line may have been begun: one thing to look at after each read."""
        self._skipping = False
        self._overlong: bytes | None = None
        """The begin and the end so far of a command of ours whose line is too long, until it ends:
        its announcement of a body may be on either side of what makes it too long."""
        self._swallow_bytes = 0
        self._swallow_reply = b""
        self._expected: tuple[int, Then] | None = None
        self._body: list[bytes] = []
        self._missing_bytes = 0

    @property
    def is_listening(self) -> bool:
        """Tell whether more input would be executed now."""
        return not (self.is_waiting or self.is_choked or self.is_closing)

    @property
    def incomplete_bytes(self) -> int | None:
        """Return of what was begun and not ended how many bytes of a body are missing.

        0 where it is a line; None where nothing was begun. None too while nothing is executed:
        the rest may be there without having been looked at.
        """
        if self.is_waiting or self.is_choked or self.is_closing:
            return None
        if self._swallow_bytes:
            return self._swallow_bytes
        if self._expected is not None:
            return self._missing_bytes or self._expected[0] + 2
        return 0 if self._rest or self._skipping or self._overlong is not None else None

    def receive(self, data: bytes, now_ms: int) -> bool:
        """Take in what has arrived and execute every command that is complete.

        Returns whether something is half said.
        """
        if self._missing_bytes > len(data):
            self._body.append(data)
            self._missing_bytes -= len(data)
            return True
        if self._body:
            data = b"".join((*self._body, data))
            self._body.clear()
            self._missing_bytes = 0
        elif self._rest:
            data = self._rest + data
        if self.is_waiting or self.is_choked or self.is_closing:
            self._rest = data
            return False
        at = self._run(data, now_ms)
        self._rest = data[at:] if at else data
        if self._is_odd:
            self._is_odd = (
                self._expected is not None
                or self._swallow_bytes > 0
                or self._skipping
                or self._overlong is not None
            )
            return self._is_odd or self._rest != b""
        return self._rest != b""

    def resume(self, now_ms: int) -> None:
        """Continue with what had arrived before a wait or a full `out` stopped the reading."""
        self.receive(b"", now_ms)

    # --- What commands ask for -------------------------------------------------------------------

    def expect(self, body_bytes: int, then: Then) -> bytes:
        """Let a body of that length and its CRLF follow; no reply before."""
        self._is_odd = True
        self._expected = (body_bytes, then)
        return b""

    def discard_body(self, body_bytes: int, reply: bytes) -> bytes:
        """Discard a body of that length and its CRLF, and then reply."""
        self._is_odd = True
        self._swallow_bytes = body_bytes + 2
        self._swallow_reply = reply
        return b""

    # --- Through the input -----------------------------------------------------------------------

    @abstractmethod
    def _line(self, data: bytes, at: int, end: int, now_ms: int) -> int:
        """Execute the command of one line, or a run of them; return where the input continues."""

    @abstractmethod
    def _is_foreign(self, data: bytes, at: int) -> bool:
        """Tell whether a line, however long, belongs to another protocol."""

    @abstractmethod
    def refuse(self, reply: bytes, times: int = 1) -> bytes:
        """Return a reply that refuses something, having counted it."""

    def _run(self, data: bytes, now_ms: int) -> int:
        """Execute the complete commands; return where the first incomplete one begins."""
        at = self._skip(data, 0) if self._swallow_bytes else 0
        if self._overlong is not None:
            at = self._throw_away(data, at, self._overlong)
        while True:
            if self._expected is not None:
                at = self._take_body(data, at, now_ms)
                if at == len(data) or self.is_waiting or self._expected is not None:
                    return at
            end = data.find(b"\r", at, at + LINE_BYTES_MAX - 1)
            if end < 0 or data[end + 1 : end + 2] != b"\n":
                is_ours = self._is_ours(data, at, end)
                window_bytes = LONG_LINE_BYTES_MAX if is_ours else LINE_BYTES_MAX
                end = data.find(b"\r\n", at, at + window_bytes) if is_ours else -1
                if end < 0:
                    if len(data) - at < window_bytes:
                        return at
                    if is_ours:
                        at = self._throw_away(data, at, b"")
                        if at == len(data):
                            return at
                    elif not self._skipping and self._is_foreign(data, at):
                        self.is_closing = True
                        return at
                    else:
                        self._skipping = self._is_odd = True
                        at += window_bytes
                    continue
            at = self._line(data, at, end, now_ms)
            if at == len(data) and not self._swallow_bytes:
                return at
            if self._swallow_bytes:
                at = self._skip(data, at)
                if self._swallow_bytes:
                    return at
            elif self.is_waiting or self.is_choked or self.is_closing:
                return at

    def _is_ours(self, data: bytes, at: int, cr: int) -> bool:
        """Tell whether a line is a command of ours that does not end in beanstalkd's window.

        That is known when the window is full, or has a CR that is not followed by LF.
        """
        known = at + LINE_BYTES_MAX if cr < 0 else cr + 2
        if self._skipping or known > len(data):
            return False
        return LONG_LINE.match(data, at, known) is not None

    def _throw_away(self, data: bytes, at: int, line: bytes) -> int:
        """Discard a line of ours that is too long, and its body; then reply.

        `line` is what is known of it from before.
        """
        end = data.find(b"\r\n", at)
        if end < 0:
            stop = len(data) - data.endswith(b"\r")
            self._is_odd = True
            self._overlong = _ends_of(line + data[at:stop])
            return stop
        self._overlong = None
        body_bytes = announced_bytes(_ends_of(line + data[at:end]))
        if body_bytes is None:
            self.out.append(self.refuse(replies.BAD_FORMAT))
            return end + 2
        self.discard_body(body_bytes, self.refuse(replies.BAD_FORMAT))
        return self._skip(data, end + 2)

    def _skip(self, data: bytes, at: int) -> int:
        """Discard a body that is not used, as much of it as is there."""
        skipped = min(self._swallow_bytes, len(data) - at)
        if skipped:
            self._swallow_bytes -= skipped
            if not self._swallow_bytes:
                self.out.append(self._swallow_reply)
        return at + skipped

    def _take_body(self, data: bytes, at: int, now_ms: int) -> int:
        """Pass the body on when it is all there; return where the input continues."""
        assert self._expected is not None
        body_bytes, then = self._expected
        end = at + body_bytes
        if end + 2 > len(data):
            self._missing_bytes = end + 2 - len(data)
            self._body.append(data[at:])
            return len(data)
        self._expected = None
        self.is_bound = True
        if data[end : end + 2] == b"\r\n":
            try:
                reply = then(data[at:end], now_ms)
            except Refusal as refusal:
                reply = self.refuse(replies.refused(refusal))
        else:
            reply = self.refuse(replies.EXPECTED_CRLF)
        self.out.append(reply)
        return end + 2


def _ends_of(line: bytes) -> bytes:
    """Return a line without its middle, if it is that long.

    >>> len(_ends_of(b"x" * 100_000)), _ends_of(b"list-tubes")
    (1248, b'list-tubes')
    """
    return line[:LONG_LINE_BYTES_MAX] + line[LONG_LINE_BYTES_MAX:][-LINE_BYTES_MAX:]
