"""Writing a row: the options of a put are checked here, where the transaction can still fail.

>>> statement("orders", {"order": 17}, delay="30m", style="?")[1][1:]
('orders', b'{"order":17}', '{"delay":"30m"}')
>>> statement("orders", "x", delay="soon")
Traceback (most recent call last):
  ...
delayd.client.errors.Invalid: delay: must be seconds, or a duration such as "50ms", "15s" or "1h30m"
"""

import datetime as dt
import inspect
import json
import uuid
from collections.abc import Mapping
from typing import Any, Final, Literal, Protocol, Unpack

from delayd.client.addresses import DEFAULT_URL
from delayd.client.errors import wrong
from delayd.client.line_calls import LineCalls
from delayd.client.values import Body, PutOptions, body_bytes, job_fields
from delayd.outbox.schema import TABLE

Style = Literal["%s", "?", "$"]
"""How a statement marks its values: psycopg, MySQL drivers' form and Django; sqlite3; asyncpg."""
COLUMNS: Final = ("uid", "topic", "body", "options")
_MARKS: Final[Mapping[str, tuple[str, ...]]] = {
    "%s": ("%s",) * len(COLUMNS),
    "?": ("?",) * len(COLUMNS),
    "$": tuple(f"${number}" for number in range(1, len(COLUMNS) + 1)),
}
_OF_SQLITE: Final = ("sqlite3", "_sqlite3", "pysqlite3")
_CALLS: Final = LineCalls(DEFAULT_URL)
_ONLY_HTTP: Final = ("at", "headers")
_NOT_HERE: Final = {
    "idempotency_key": "is not needed: a row is put once, whatever happens",
    "instead_of": "cannot be given: the relay puts the job in the place of its permit",
}
_NEEDS: Final = {
    "on_conflict": "key",
    "jitter_percent": "retry",
    "method": "url",
    "headers": "url",
}


class DriverCursor(Protocol):
    """A cursor of a database driver, or what has its `execute`."""

    def execute(self, sql: str, values: Any, /) -> Any:  # noqa: ANN401 - as the driver has it
        """Carry out a statement."""


def put(cursor: DriverCursor, topic: str, body: Body, **options: Unpack[PutOptions]) -> None:
    """Write the row of a job into the transaction of the cursor; the relay puts it afterwards.

    The options are those of `Client.put`, but for `idempotency_key` and `instead_of`. A delay
    counts from now, not from when the relay puts it. Raises Invalid, and what the driver raises.
    """
    homes = {kind.__module__.partition(".")[0] for kind in type(cursor).__mro__}
    style: Style = "%s" if homes.isdisjoint(_OF_SQLITE) else "?"
    done = cursor.execute(*statement(topic, body, style=style, **options))
    if inspect.isawaitable(done):
        getattr(done, "close", lambda: None)()
        raise TypeError(
            "this cursor is awaited, and nothing was written:"
            " await cursor.execute(*outbox.statement(topic, body, ...))"
        )


def statement(
    topic: str, body: Body, *, style: Style = "%s", **options: Unpack[PutOptions]
) -> tuple[str, tuple[str, str, bytes, str]]:
    """Return the statement that writes the row, and its values. Raises Invalid.

    `style`: how the driver marks values, `"%s"`, `"?"`, or `"$"` for `$1, $2`.
    """
    if style not in _MARKS:
        raise wrong("style", f"must be one of {', '.join(_MARKS)}, and is {style!r:.80}")
    text, fields = body_bytes(body), _checked(topic, dict(options))
    marks = ", ".join(_MARKS[style])
    sql = f"INSERT INTO {TABLE} ({', '.join(COLUMNS)}) VALUES ({marks})"
    return sql, (uuid.uuid4().hex, topic, text, fields)


def _checked(topic: str, options: dict[str, Any]) -> str:
    """Return the options as JSON, each of which some daemon would take. Raises Invalid."""
    wanted = {name: value for name, value in options.items() if value is not None}
    for name, why in _NOT_HERE.items():
        if name in wanted:
            raise wrong(name, why)
    for name, other in _NEEDS.items():
        if name in wanted and other not in wanted:
            raise wrong(name, f"needs {other} too")
    if "at" in wanted and "delay" in wanted:
        raise wrong("at", "cannot be given with delay")
    on_line = {name: value for name, value in wanted.items() if name not in _ONLY_HTTP}
    _CALLS.put_line(topic, {"body": b"", **on_line})  # type: ignore[typeddict-item]
    fields = job_fields(wanted)
    if "at" in fields:
        _check_moment(fields["at"])
    headers = wanted.get("headers", {})
    if not isinstance(headers, Mapping) or not all(
        isinstance(word, str) for pair in headers.items() for word in pair
    ):
        raise wrong("headers", "must be texts by the names of headers")
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))


def _check_moment(text: str) -> None:
    try:
        has_offset = dt.datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        has_offset = False
    if not has_offset:
        rule = "must be RFC 3339 with an offset, such as 2030-01-01T09:00:00Z"
        raise wrong("at", f"{text!r:.80} {rule}")
