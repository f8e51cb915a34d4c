"""The records of a journal as lines: for people, or as JSON for programs.

    12 2026-11-21T10:15:00.123Z 2026-11-21T10:15:00.124Z RELEASE id=7 due=... delay=15s priority=0

First come the frame's number, the delayd time and the wall-clock time of its commit; records of a
snapshot have the number of the last frame that it covers, as `snapshot-12`. In the text, times are
dates, durations have units, and nothing in a body or a name can drive a terminal. In JSON the
fields keep their names and units, and bodies are whole, in base64.
"""

import functools
from base64 import b64encode
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import orjson

from delayd.core.dump import MOMENTS, Dump, Dumped
from delayd.core.records import Kind, UnknownRecord
from delayd.journal.errors import JournalCorrupt
from delayd.journal.format import Frame
from delayd.limits import WALL_MS_MAX
from delayd.logs import escape
from delayd.text import duration_text, moment_text

BODY_BYTES_SHOWN: Final = 60

CLOSED: Final = "CLOSED"
"""Stands for a frame without records: the daemon stopped in good order."""


class Source(NamedTuple):
    """A frame, of the log or of a snapshot that covers the log up to that sequence."""

    frame: Frame
    is_snapshot: bool


def text_line(source: Source, record: Dumped | None) -> str:
    """Write a record for people; None is what a closing frame holds.

    >>> record = Dumped(Kind.PAUSE, {"topic_number": 1, "pause_ms": 1_500, "topic": "mail"}, None)
    >>> text_line(Source(Frame(12, 0, 60_000, b""), is_snapshot=False), record)
    '12 1970-01-01T00:00:00.000Z 1970-01-01T00:01:00.000Z PAUSE pause=1s500ms topic=mail'
    """
    frame = source.frame
    number = f"snapshot-{frame.sequence}" if source.is_snapshot else str(frame.sequence)
    words = [number, moment(frame.time_ms), moment(frame.wall_ms)]
    if record is None:
        words.append(CLOSED)
    else:
        words += (record.kind.name, *_fields(record))
        if record.body is not None:
            words.append(f"body={shown_body(record.body)}")
    return " ".join(words)


def _fields(record: Dumped) -> Iterator[str]:
    for name, value in record.fields.items():
        if isinstance(value, str):
            yield f"{name}={escape(value)}"
        elif name in MOMENTS:
            yield f"{name.removesuffix('_ms')}={moment(value)}"
        elif name.endswith("_ms"):
            yield f"{name.removesuffix('_ms')}={duration_text(value)}"
        elif name != "topic_number" or record.kind is Kind.TOPIC:
            yield f"{name}={value}"


def json_line(source: Source, record: Dumped | None) -> str:
    """Write a record for programs."""
    frame = source.frame
    line: dict[str, object] = {
        "snapshot" if source.is_snapshot else "frame": frame.sequence,
        "time_ms": frame.time_ms,
        "wall_ms": frame.wall_ms,
        "kind": CLOSED if record is None else record.kind.name,
    }
    if record is not None:
        # A TURN has a time of its own, which is not that of its frame.
        line["fields"] = record.fields
        if record.body is not None:
            line["body_base64"] = b64encode(record.body).decode("ascii")
    return orjson.dumps(line).decode()


@functools.lru_cache(maxsize=1_000)
def moment(time_ms: int) -> str:
    """Write a point of time as a date, or as the number it is where there is no such date.

    >>> moment(1_700_000_000_123), moment(2**64 - 1)
    ('2023-11-14T22:13:20.123Z', '18446744073709551615')
    """
    return moment_text(time_ms) if time_ms <= WALL_MS_MAX else str(time_ms)


def shown_body(body: bytes) -> str:
    r"""Write a body in printable ASCII, and how long it is if that is not all of it.

    >>> print(shown_body(b"caf\xc3\xa9\n\x1b[2J"))
    "caf\xc3\xa9\n\x1b[2J"
    >>> print(shown_body(b"x" * 61)[-12:])
    x"(61 bytes)
    """
    text = body[:BODY_BYTES_SHOWN].decode("latin-1").replace("\\", r"\\").replace('"', r"\"")
    shown = "".join(c if " " <= c <= "~" else ascii(c)[1:-1] for c in text)
    rest = f"({len(body)} bytes)" if len(body) > BODY_BYTES_SHOWN else ""
    return f'"{shown}"{rest}'


def lines(sources: Iterable[Source], directory: str, *, as_json: bool) -> Iterator[str]:
    """Write each record of the frames, which come in the order in which a start plays them.

    Raises JournalCorrupt where an intact frame holds something else.
    """
    write = json_line if as_json else text_line
    dump = Dump()
    for source in sources:
        frame = source.frame
        if not frame.payload and not source.is_snapshot:
            yield write(source, None)
        try:
            for record in dump.records(frame.payload):
                yield write(source, record)
        except UnknownRecord as error:
            raise JournalCorrupt(directory, 0, f"frame {frame.sequence} holds {error}") from error
