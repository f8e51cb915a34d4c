r"""What a sink is told of a job, made of the job's record and where it goes.

The content type is the one that the target's headers say, else what the body looks like. So much of
a long body is looked at as takes no time:

>>> content_type_of(b'{"a": 1}'), content_type_of(b"hello")
('application/json', 'application/octet-stream')
>>> [content_type_of(body) == JSON for body in (b"17", b'""', b"", b'"\xff"', b"{} x")]
[True, True, False, False, False]
"""

from typing import Final

from delayd.core.job import DUE_AT, U64, body_of, key_of
from delayd.core.times import RequestMs
from delayd.core.transitions import attempt_of
from delayd.limits import PUSH_LOOK_BYTES_MAX
from delayd.push.scheduler import PushCall
from delayd.push.sinks import DueJob

JSON: Final = "application/json"
BYTES: Final = "application/octet-stream"
_BRACKETS: Final = (b"{}", b"[]")


def due_job(call: PushCall, log_id: str, now_ms: RequestMs, wall_ahead_ms: int) -> DueJob:
    """Return the attempt; `wall_ahead_ms` is how far the wall clock is ahead of delayd time."""
    record, target = call.record, call.target
    due_ms: int = U64.unpack_from(record, DUE_AT)[0]
    body = body_of(record)
    return DueJob(
        id=call.job_id,
        message_id=f"{log_id}_{call.job_id}",
        topic=call.topic,
        key=key_of(record),
        body=body,
        content_type=content_type_of(body, target.headers),
        attempt=attempt_of(record).number,
        due_ms=due_ms + wall_ahead_ms,
        lateness_ms=max(0, now_ms - due_ms),
        timeout_ms=call.timeout_ms,
        url=target.url,
        method=target.method,
        headers=target.headers,
        secrets=target.secrets,
    )


def content_type_of(body: bytes, headers: tuple[tuple[str, str], ...] = ()) -> str:
    """Return what a body is sent as, beside these headers."""
    for name, text in headers:
        if name.lower() == "content-type":
            return text
    if len(body) > PUSH_LOOK_BYTES_MAX:
        return JSON if body[:1] + body[-1:] in _BRACKETS else BYTES
    import msgspec  # noqa: PLC0415 - takes 20 ms, which the start of a daemon need not wait for

    try:
        body.decode()
        msgspec.json.decode(body, type=msgspec.Raw)
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
        return BYTES
    return JSON
