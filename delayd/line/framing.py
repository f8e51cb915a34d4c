"""Where commands begin and end in what arrives: lines, bodies, and what is discarded.

Lines end as beanstalkd ends them: in a window of 224 bytes from where the last command ended, the
*first* CR must be followed by LF. Failing that, the window is discarded when it is full, and so
are the next ones until one has an end in it; the whole gets one BAD_FORMAT. Commands that
beanstalkd does not know end with their first CRLF and may have 1,024 bytes; of a longer one
everything goes up to that CRLF, and the body that it announces.

    receive ─► incomplete bytes ─► line ─► on_line
                    │               └─ expect ─► body, once it is all there ─► on_body
                    └─ too long a line, or the body of a refused command: discarded as it comes

The same bytes give the same commands whole or one at a time.
"""

import re
from collections.abc import Callable
from typing import Final, final

from delayd.core.times import RequestMs
from delayd.limits import LINE_BYTES_MAX, LONG_LINE_BYTES_MAX
from delayd.line import replies
from delayd.line.grammar import LONG_LINE

Then = Callable[[bytes, RequestMs], bytes]
"""What to do with a body and the time, and what to reply; it may raise a `Refusal`."""

_INCOMPLETE: Final = -1
_NOT_YET: Final = -2
"""There is no line here, but one may follow."""


@final
class Framing:
    """The input of one connection, taken apart."""

    __slots__ = (
        *("_body", "_discard_bytes", "_discard_reply", "_expected_bytes", "_is_foreign", "_is_odd"),
        *("_missing_bytes", "_on_body", "_on_line", "_out", "_overlong"),
        *("_refuse", "_refuse_command", "_rest", "_skipping", "_then"),
    )

    def __init__(
        self,
        on_line: Callable[[bytes, int, int, RequestMs], int],
        on_body: Callable[[Then, bytes | None, RequestMs], bool],
        refuse: Callable[[bytes], bytes],
        refuse_command: Callable[[bytes], bytes],
        is_foreign: Callable[[bytes, int], bool],
        out: list[bytes],
    ) -> None:
        """Begin with nothing read.

        `on_line` executes the command of one line, or a run of them, from `at` to `end` in the
        data; it returns where the input continues, or the complement (`~`) of that when nothing
        more is to be executed for now. `on_body` gets a body, or None for one that does not end
        with CRLF, and returns whether more is to be executed. `refuse` counts a refusing reply,
        `refuse_command` refuses the line of a long command and discards its body, `is_foreign`
        tells whether a line, however long, belongs to another protocol: then the rest is ignored.
        `out` takes the replies to what is discarded.
        """
        self._on_line = on_line
        self._on_body = on_body
        self._refuse = refuse
        self._refuse_command = refuse_command
        self._is_foreign = is_foreign
        self._out = out
        self._rest = b""
        self._is_odd = False
        """Something else than a line may be incomplete: the one flag to check after each read."""
        self._skipping = False
        self._overlong: bytes | None = None
        """The begin of a long command whose line is too long, until it ends."""
        self._discard_bytes = 0
        self._discard_reply = b""
        self._then: Then | None = None
        self._expected_bytes = 0
        self._body: list[bytes] = []
        self._missing_bytes = 0

    @property
    def incomplete_bytes(self) -> int | None:
        """Return how many bytes of an incomplete body are missing.

        0 where it is a line; None where nothing was begun.
        """
        if self._discard_bytes:
            return self._discard_bytes
        if self._then is not None:
            return self._missing_bytes or self._expected_bytes + 2
        return 0 if self._rest or self._skipping or self._overlong is not None else None

    def close(self) -> None:
        """Take no more input, and drop the functions that it was passed to."""
        self._on_line = _nothing_on_line
        self._on_body = _nothing_on_body
        self._refuse = self._refuse_command = bytes
        self._is_foreign = _never
        self._then = None

    # --- What commands ask for -------------------------------------------------------------------

    def expect(self, body_bytes: int, then: Then) -> None:
        """Take what follows for a body of that length and its CRLF."""
        self._is_odd = True
        self._expected_bytes = body_bytes
        self._then = then

    def discard_body(self, body_bytes: int, reply: bytes) -> None:
        """Discard a body of that length and its CRLF, and then reply."""
        self._is_odd = True
        self._discard_bytes = body_bytes + 2
        self._discard_reply = reply

    # --- Through the input -----------------------------------------------------------------------

    def keep(self, data: bytes) -> None:
        """Keep what has arrived while nothing is executed."""
        self._rest += data

    def receive(self, data: bytes, now_ms: RequestMs) -> bool:
        """Take in what has arrived, and hand on every command that is complete.

        Returns whether something is incomplete.
        """
        at = 0
        if self._missing_bytes:
            self._body.append(data)
            if self._missing_bytes > len(data):
                self._missing_bytes -= len(data)
                return True
            data = b"".join(self._body)
            self._body.clear()
            self._missing_bytes = 0
        elif self._rest:
            data = self._rest + data
        if self._is_odd:
            if self._discard_bytes:
                at = self._discard(data, 0)
            if self._overlong is not None:
                at = self._discard_line(data, at, self._overlong)
        while True:
            if self._then is not None:
                goes_on, at = self._take_body(data, at, now_ms)
                if not goes_on:
                    break
            end = data.find(b"\r", at, at + LINE_BYTES_MAX - 1)
            if end < 0 or data[end + 1 : end + 2] != b"\n":
                at, end = self._odd_line(data, at, end)
                if end == _INCOMPLETE:
                    break
                if end == _NOT_YET:
                    continue
            if self._skipping:
                self._skipping = False
                self._out.append(self._refuse(replies.BAD_FORMAT))
                at = end + 2
            else:
                at = self._on_line(data, at, end, now_ms)
                if at < 0:
                    at = ~at
                    break
                if self._discard_bytes:
                    at = self._discard(data, at)
                    if self._discard_bytes:
                        break
            if at == len(data):
                if not self._is_odd:  # nearly always
                    self._rest = b""
                    return False
                break
        self._rest = data[at:] if at else data
        if self._is_odd:
            self._is_odd = (
                self._then is not None
                or self._discard_bytes > 0
                or self._skipping
                or self._overlong is not None
            )
        return self._is_odd or self._rest != b""

    def _odd_line(self, data: bytes, at: int, cr: int) -> tuple[int, int]:
        """Return where a line begins and ends that does not end in beanstalkd's window.

        The end may be `_INCOMPLETE`, or `_NOT_YET` where something was discarded before the line.
        """
        is_long = self._is_long(data, at, cr)
        window_bytes = LONG_LINE_BYTES_MAX if is_long else LINE_BYTES_MAX
        end = data.find(b"\r\n", at, at + window_bytes) if is_long else -1
        if end >= 0:
            return at, end
        if len(data) - at < window_bytes:
            return at, _INCOMPLETE
        if is_long:
            at = self._discard_line(data, at, b"")
            return at, _INCOMPLETE if at == len(data) else _NOT_YET
        if not self._skipping and self._is_foreign(data, at):
            return at, _INCOMPLETE
        self._skipping = self._is_odd = True
        return at + window_bytes, _NOT_YET

    def _is_long(self, data: bytes, at: int, cr: int) -> bool:
        """Tell whether a line is a long command that does not end in beanstalkd's window.

        That is known when the window is full, or has a CR that is not followed by LF.
        """
        known = at + LINE_BYTES_MAX if cr < 0 else cr + 2
        if self._skipping or known > len(data):
            return False
        return re.compile(LONG_LINE).match(data, at, known) is not None

    def _discard_line(self, data: bytes, at: int, line: bytes) -> int:
        """Discard a long command that is too long, and its body; then reply.

        `line` is what is known of it from before.
        """
        end = data.find(b"\r\n", at)
        if end < 0:
            stop = len(data) - data.endswith(b"\r")
            self._is_odd = True
            self._overlong = (line + data[at:stop])[:LONG_LINE_BYTES_MAX]
            return stop
        self._overlong = None
        self._out.append(self._refuse_command((line + data[at:end])[:LONG_LINE_BYTES_MAX]))
        return self._discard(data, end + 2)

    def _discard(self, data: bytes, at: int) -> int:
        """Discard as much of a body as is there; return where the input continues."""
        discarded_bytes = min(self._discard_bytes, len(data) - at)
        if discarded_bytes:
            self._discard_bytes -= discarded_bytes
            if not self._discard_bytes:
                self._out.append(self._discard_reply)
        return at + discarded_bytes

    def _take_body(self, data: bytes, at: int, now_ms: RequestMs) -> tuple[bool, int]:
        """Pass the body on when it is all there; return whether, and where, the input continues."""
        then = self._then
        assert then is not None
        end = at + self._expected_bytes + 2
        if end > len(data):
            self._missing_bytes = end - len(data)
            self._body.append(data[at:])
            return False, len(data)
        self._then = None
        body = data[at : end - 2] if data[end - 2 : end] == b"\r\n" else None
        goes_on = self._on_body(then, body, now_ms)
        return goes_on and end < len(data), end


def _nothing_on_line(_data: bytes, at: int, _end: int, _now_ms: RequestMs) -> int:
    return ~at


def _nothing_on_body(_then: Then, _body: bytes | None, _now_ms: RequestMs) -> bool:
    return False


def _never(_data: bytes, _at: int) -> bool:
    return False
