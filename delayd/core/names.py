r"""Names of topics and keys of jobs: which are allowed, and which have a meaning.

>>> checked_name("mail.weekly")
'mail.weekly'
>>> checked_key(b"order-17"), checked_key("größe".encode())
(b'order-17', b'gr\xc3\xb6\xc3\x9fe')
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from delayd.core.errors import KeyInvalid, TopicNameInvalid
from delayd.fields import UNSEEN, ValueKind, text_schema
from delayd.limits import GROUP_BYTES_MAX, KEY_BYTES_MAX, TOPIC_NAME_BYTES_MAX

DEFAULT_TOPIC: Final = "default"
IDEMPOTENCY_TOPIC: Final = "$idempotency"
SCHEDULES_TOPIC: Final = "$schedules"
INTERNAL_TOPICS: Final = frozenset((IDEMPOTENCY_TOPIC, SCHEDULES_TOPIC))
"""Where the daemon keeps jobs of its own; see `core.operations.checks`."""

_NAME_PATTERN: Final = rf"[A-Za-z0-9+/;.$_()][-A-Za-z0-9+/;.$_()]{{0,{TOPIC_NAME_BYTES_MAX - 1}}}"
_NAME: Final = re.compile(_NAME_PATTERN)
NAME_RULE: Final = "must be the name of a topic"
_PLAIN: Final = bytes(range(0x21, 0x7F))
_PLAIN_KEY: Final = re.compile(rb"[!-~]{1,%d}" % KEY_BYTES_MAX)
_LABEL_PATTERN: Final = f"[^{UNSEEN}]+"
_LABEL: Final = re.compile(_LABEL_PATTERN)


def checked_name(name: str) -> str:
    """Return the name, or raise `TopicNameInvalid`."""
    if _NAME.fullmatch(name) is None:
        raise TopicNameInvalid(name)
    return name


def _read_topic(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(NAME_RULE)  # noqa: TRY004 - as for all that is wrong
    try:
        return checked_name(value)
    except TopicNameInvalid as refusal:
        raise ValueError(str(refusal)) from None


TOPIC: Final = ValueKind(
    _read_topic, schema=text_schema(_NAME_PATTERN, 1, TOPIC_NAME_BYTES_MAX)
).described("The name of a topic.", "mail")


def checked_key(key: bytes) -> bytes:
    """Return the key, or raise `KeyInvalid`."""
    if _PLAIN_KEY.fullmatch(key) is None and not _is_label(key, KEY_BYTES_MAX):
        raise KeyInvalid(key)
    return key


def _is_label(name: bytes, bytes_max: int) -> bool:
    """Tell whether it is printable UTF-8 without spaces, neither empty nor longer than that."""
    try:
        text = name.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return len(name) <= bytes_max and _LABEL.fullmatch(text) is not None


def _read_key(value: object) -> bytes:
    if not isinstance(value, str):
        raise ValueError("must be a text")  # noqa: TRY004 - as for all that is wrong
    try:
        return checked_key(value.encode("utf-8", "surrogatepass"))
    except KeyInvalid as refusal:
        raise ValueError(str(refusal)) from None


def _read_group(value: object) -> bytes:
    name = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else b""
    if not _is_label(name, GROUP_BYTES_MAX):
        raise ValueError(f"must be 1 to {GROUP_BYTES_MAX} bytes of printable UTF-8 without spaces")
    return name


KEY: Final = ValueKind(_read_key, schema=text_schema(_LABEL_PATTERN, 1, KEY_BYTES_MAX)).described(
    "The caller's own name for a job: printable, without spaces, "
    f"{KEY_BYTES_MAX} bytes of UTF-8 at most; unique among the live jobs of its topic.",
    "order-17",
)
GROUP: Final = ValueKind(
    _read_group, schema=text_schema(_LABEL_PATTERN, 1, GROUP_BYTES_MAX)
).described(
    f"What the job belongs to: printable, without spaces, {GROUP_BYTES_MAX} bytes of UTF-8 at"
    " most.",
    "customer-4",
)


class Predecessor(NamedTuple):
    """A job in whose place another one is put: `core.operations.succeed`."""

    topic: str
    job_id: int
    key: bytes = b""
    """Its key; empty: whichever it has."""


_NUMBER_PATTERN: Final = "[1-9][0-9]{0,18}"
_PREDECESSOR: Final = re.compile(f"({_NAME_PATTERN}):({_NUMBER_PATTERN})(?::({_LABEL_PATTERN}))?")


def _read_predecessor(value: object) -> Predecessor:
    match = _PREDECESSOR.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("must be TOPIC:ID or TOPIC:ID:KEY of a job")
    return Predecessor(match[1], int(match[2]), _read_key(match[3]) if match[3] else b"")


PREDECESSOR: Final = ValueKind(
    _read_predecessor,
    schema=text_schema(f"{_NAME_PATTERN}:{_NUMBER_PATTERN}(?::{_LABEL_PATTERN})?"),
).described(
    "A job that ends as this one is put, in one step: its topic, its number and perhaps its key,"
    " with colons between. The put is refused, 404, unless that job is there and waits.",
    *("orders:17", "orders:17:order-4"),
)


def check_keys(keys: Sequence[bytes]) -> None:
    """Raise `KeyInvalid` for the first that is not one. 0.05 µs a key where they are ASCII."""
    if len(keys) == 1:
        checked_key(keys[0])
        return
    text = b"".join(keys)
    are_plain = all(keys) and not text.translate(None, _PLAIN)
    if not are_plain or (len(text) > KEY_BYTES_MAX and max(map(len, keys)) > KEY_BYTES_MAX):
        for key in keys:
            checked_key(key)
