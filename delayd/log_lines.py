"""Lines of the log: one on standard error for each event that operators need to know.

Only the edges log, once for each outcome. A line is an event, which is a fixed sentence that can
be searched for, and fields with fixed names; never a job's body, a token or a header. In text:

    2026-11-21T10:15:00.123Z info listening on="127.0.0.1:11300"

and the same as JSON, for machines:

    {"time":"2026-11-21T10:15:00.123Z","level":"info","event":"listening","on":"127.0.0.1:11300"}

What cannot be seen as itself is escaped (`text.visible`), so that a client cannot write lines of
its own into the log or control the terminal of its reader. If the log cannot be written, the line
is dropped and serving continues.
"""

import contextlib
import enum
from collections.abc import Callable
from typing import TextIO

from delayd.moments import moment_text
from delayd.text import visible

Value = str | int | float | bool | None


def keep_libraries_quiet() -> None:
    """Silence asyncio's logger, which has a line for many clients that disconnect while we write.

    Clients could fill the log with these lines, and they are not JSON.
    """
    import logging  # noqa: PLC0415 - it comes with asyncio, and asyncio alone needs it

    logging.getLogger().addHandler(logging.NullHandler())


class LogFormat(enum.Enum):
    """How a line is written."""

    TEXT = "text"
    JSON = "json"


class LogLevel(enum.IntEnum):
    """How important a line is; ordered."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


class Log:
    """Writes lines of at least `level` to `stream`, with the time that `wall_ms` tells."""

    def __init__(
        self,
        stream: TextIO,
        wall_ms: Callable[[], int],
        *,
        log_format: LogFormat = LogFormat.TEXT,
        level: LogLevel = LogLevel.INFO,
    ) -> None:
        self._stream = stream
        self._wall_ms = wall_ms
        self._format = log_format
        self._level = level

    def info(self, event: str, **fields: Value) -> None:
        """A normal event."""
        self._write(LogLevel.INFO, event, fields)

    def warning(self, event: str, **fields: Value) -> None:
        """An event that needs attention."""
        self._write(LogLevel.WARNING, event, fields)

    def error(self, event: str, **fields: Value) -> None:
        """An operation that failed."""
        self._write(LogLevel.ERROR, event, fields)

    def _write(self, level: LogLevel, event: str, fields: dict[str, Value]) -> None:
        if level < self._level:
            return
        time = moment_text(self._wall_ms())
        if self._format is LogFormat.JSON:
            line = json_line(time, level, event, fields)
        else:
            line = text_line(time, level, event, fields)
        # ValueError: the stream was closed under us.
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(line + "\n")
            self._stream.flush()


def text_line(time: str, level: LogLevel, event: str, fields: dict[str, Value]) -> str:
    """Lay out a line for people."""
    words = [time, level.name.lower(), visible(event)]
    words += [f"{key}={_text_value(value)}" for key, value in fields.items()]
    return " ".join(words)


def _text_value(value: Value) -> str:
    return _quoted(value) if isinstance(value, str) else str(value).lower()


def json_line(time: str, level: LogLevel, event: str, fields: dict[str, Value]) -> str:
    """Lay out a line for machines: ASCII, so every control character is escaped."""
    line: dict[str, Value] = {"time": time, "level": level.name.lower(), "event": event}
    return _quoted(line | fields)


def _quoted(value: object) -> str:
    if isinstance(value, str) and value.isascii() and value.isprintable():
        escaped = value.replace("\\", r"\\").replace('"', r"\"")
        return f'"{escaped}"'
    import json  # noqa: PLC0415 - takes 3 ms, which the first reply need not wait for

    # JSON leaves DEL as it is, the one ASCII control character above the letters.
    return json.dumps(value, separators=(",", ":")).replace("\x7f", "\\u007f")
