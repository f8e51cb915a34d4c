r"""One answer of HTTP/1.1, read as its bytes come, with a bound on everything in it.

    1xx … ─► status line, headers ─► body: of a length, in chunks, or up to the end ─► over

A call needs the status, `Retry-After` and the beginning of the body. The rest is read only so that
the connection can be used again, and only within the bounds of `limits.py`: a longer or broken
answer, or one with more chunks, ends the reading, and its status stands. An answer is *whole* if it
was read to its end, no further byte has come, and its connection may be used again.

>>> reader = AnswerReader()
>>> reader.feed(b"HTTP/1.1 503 Oh\r\nRetry-After: 30\r\nContent-Length: 4\r\n\r\nso")
>>> reader.status, reader.retry_after, reader.is_over
(503, '30', False)
>>> reader.feed(b"rry")
>>> reader.beginning, reader.is_over, reader.is_whole
(b'sorr', True, False)

It makes no object for a chunk or a message, so a receiver's byte costs little. The module does not
know sockets or time.
"""

import re
from typing import TYPE_CHECKING, Final, final

from delayd.limits import (
    PUSH_ANSWER_BYTES_MAX,
    PUSH_ANSWER_READ_BYTES_MAX,
    PUSH_CHUNK_LINE_BYTES_MAX,
    PUSH_CHUNKS_MAX,
    PUSH_HEAD_BYTES_MAX,
    PUSH_HINTS_MAX,
)

if TYPE_CHECKING:
    from collections.abc import Callable

# Each repeat ends where the next part begins, so there is no backtracking: the text comes from an
# unknown receiver.
_HEAD: Final = re.compile(
    rb"HTTP/(1\.[01]) ([1-9][0-9][0-9])(?: [^\r\n]*)?\r?\n"
    rb"((?:(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:|[ \t])[^\r\n\0]*\r?\n)*)\r?\n"
)
_HEAD_END: Final = re.compile(rb"\n\r?\n")
_USED: Final = frozenset((b"content-length", b"transfer-encoding", b"connection", b"retry-after"))
"""Headers that matter."""
_USED_LENGTHS: Final = frozenset(map(len, _USED))
_CHUNK: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?\r?\n")
_LINE_END: Final = re.compile(rb"\r?\n")
_LENGTH: Final = re.compile(rb"[0-9]{1,18}")
_SWITCHING: Final = 101
_WITHOUT_BODY: Final = frozenset((_SWITCHING, 204, 304))


class NotHttp(Exception):
    """The bytes are no answer of HTTP, or one whose head is too long."""


@final
class AnswerReader:
    """Reads one answer; see above."""

    __slots__ = (
        *("_buffer", "_chunks", "_head_bytes", "_hints", "_is_kept", "_left", "_looked", "_read"),
        *("_step", "beginning", "is_over", "is_whole", "retry_after", "status"),
    )

    def __init__(self) -> None:
        """Expect the first byte."""
        self.status = 0
        """0: it is not known yet."""
        self.retry_after = ""
        """The header of that name; empty: there was none."""
        self.beginning = b""
        """Of the body."""
        self.is_over = False
        """No more is read."""
        self.is_whole = False
        """The connection can be used again."""
        self._buffer = bytearray()
        """Bytes that are not used yet: a head or a line that is not whole."""
        self._step: Callable[[AnswerReader], bool] = AnswerReader._read_head
        """Uses some of the buffer; tells whether it may use more."""
        self._looked = 0  # so much of the buffer has no end of a head
        self._head_bytes = 0
        self._hints = 0
        self._is_kept = False
        """By the head the connection may be kept."""
        self._left = 0
        """Bytes of the body, or of a chunk."""
        self._read = 0  # bytes of the body
        self._chunks = 0

    def feed(self, data: bytes | memoryview) -> None:
        """Take what has come. Raises `NotHttp` before the status is known, and not after."""
        self._buffer += data
        while not self.is_over and self._step(self):
            pass
        if self._buffer and self.is_over:
            self.is_whole = False  # bytes after the answer
            self._buffer.clear()

    # --- The head --------------------------------------------------------------------------------

    def _read_head(self) -> bool:
        """Read a head once it is whole; 1xx answers count too."""
        end = _HEAD_END.search(self._buffer, max(0, self._looked - 2))
        head_bytes = len(self._buffer) if end is None else end.end()
        if self._head_bytes + head_bytes > PUSH_HEAD_BYTES_MAX:
            raise NotHttp
        if end is None:
            if not b"HTTP/1."[: len(self._buffer)] == self._buffer[:7]:
                raise NotHttp
            self._looked = head_bytes
            return False
        self._looked = 0
        self._head_bytes += head_bytes
        match = _HEAD.fullmatch(self._buffer, 0, head_bytes)
        if match is None:
            raise NotHttp
        version, status, headers = match[1], int(match[2]), match[3]
        del self._buffer[:head_bytes]
        if status < 200 and status != _SWITCHING:  # such as 103 Early Hints
            self._hints += 1
            if self._hints > PUSH_HINTS_MAX:
                raise NotHttp
            return True
        self._choose_body(version, status, headers)
        self.status = status
        return True

    def _choose_body(self, version: bytes, status: int, headers: bytes) -> None:
        """Choose how to read the body by the headers, and whether to keep the connection."""
        fields: dict[bytes, list[bytes]] = {}
        for line in headers.split(b"\n"):
            name, _, value = line.partition(b":")
            if len(name) in _USED_LENGTHS and name.lower() in _USED:
                fields.setdefault(name.lower(), []).append(value.strip())
        self.retry_after = b",".join(fields.get(b"retry-after", ())).decode("latin-1")
        connection = b",".join(fields.get(b"connection", ())).lower()
        coding = b",".join(fields.get(b"transfer-encoding", ())).lower()
        lengths = set(fields.get(b"content-length", ()))
        if len(lengths) > 1 or not all(map(_LENGTH.fullmatch, lengths)):
            raise NotHttp
        self._is_kept = version == b"1.1" and b"close" not in connection
        if status in _WITHOUT_BODY:
            self._is_kept = self._is_kept and status != _SWITCHING
            self._end()
        elif coding:
            is_chunked = coding.rpartition(b",")[2].strip() == b"chunked"
            self._step = AnswerReader._read_chunk_line if is_chunked else AnswerReader._read_rest
            # With both headers the length is not certain.
            self._is_kept = self._is_kept and is_chunked and not lengths
        elif lengths:
            self._left = int(lengths.pop())
            self._is_kept = self._is_kept and self._left <= PUSH_ANSWER_READ_BYTES_MAX
            self._step = AnswerReader._read_length
            if self._left == 0:
                self._end()
        else:
            self._is_kept = False
            self._step = AnswerReader._read_rest

    # --- The body --------------------------------------------------------------------------------

    def _end(self) -> None:
        """Note that the answer was read to its end."""
        self.is_over = True
        self.is_whole = self._is_kept

    def _give_up(self) -> bool:
        """Read no more."""
        self.is_over = True
        return False

    def _take(self, most: int) -> int:
        """Use some of the body; return how much."""
        count = min(most, len(self._buffer))
        left = PUSH_ANSWER_BYTES_MAX - len(self.beginning)
        if left > 0:
            self.beginning += self._buffer[: min(left, count)]
        del self._buffer[:count]
        self._read += count
        is_full = len(self.beginning) >= PUSH_ANSWER_BYTES_MAX and not self._is_kept
        if is_full or self._read > PUSH_ANSWER_READ_BYTES_MAX:
            self._give_up()
        return count

    def _read_rest(self) -> bool:
        """Read a body that ends with the connection."""
        self._take(len(self._buffer))
        return False

    def _read_length(self) -> bool:
        """Read a body of a known length."""
        self._left -= self._take(self._left)
        if self._left == 0:
            self._end()
        return False

    def _read_chunk_line(self) -> bool:
        """Read how long the next chunk is."""
        end = self._buffer.find(b"\n", 0, PUSH_CHUNK_LINE_BYTES_MAX)
        if end < 0:
            return len(self._buffer) >= PUSH_CHUNK_LINE_BYTES_MAX and self._give_up()
        match = _CHUNK.fullmatch(self._buffer, 0, end + 1)
        if match is None:
            return self._give_up()
        self._left = int(match[1], 16)
        del self._buffer[: end + 1]
        self._chunks += 1
        if self._chunks > PUSH_CHUNKS_MAX:
            return self._give_up()
        self._step = AnswerReader._read_chunk if self._left else AnswerReader._read_trailers
        return True

    def _read_chunk(self) -> bool:
        """Read a chunk."""
        self._left -= self._take(self._left)
        if self._left:
            return False
        self._step = AnswerReader._read_chunk_end
        return True

    def _read_chunk_end(self) -> bool:
        """Read the end of the line after a chunk."""
        if not self._skip_line_end():
            return False
        self._step = AnswerReader._read_chunk_line
        return True

    def _read_trailers(self) -> bool:
        """Read the empty line after the last chunk; with trailers the connection is not kept."""
        if self._skip_line_end():
            self._end()
        return False

    def _skip_line_end(self) -> bool:
        """Use the end of a line once it is whole; read no more where there is something else."""
        if len(self._buffer) < 2 and self._buffer[:1] != b"\n":
            return False
        match = _LINE_END.match(self._buffer)
        if match is None:
            return self._give_up()
        length = match.end()
        del self._buffer[:length]
        return True
