r"""Names of topics and keys of jobs: which are allowed, and which have a meaning.

>>> checked_name("mail.weekly")
'mail.weekly'
>>> checked_key(b"order-17"), checked_key("größe".encode())
(b'order-17', b'gr\xc3\xb6\xc3\x9fe')
"""

import re
from collections.abc import Sequence
from typing import Final

from delayd.core.errors import KeyInvalid, TopicNameInvalid
from delayd.fields import ValueKind
from delayd.limits import KEY_BYTES_MAX, TOPIC_NAME_BYTES_MAX

DEFAULT_TOPIC: Final = "default"
INTERNAL_TOPIC: Final = "$idempotency"
"""Where the daemon keeps jobs of its own; see `core.operations.checks`."""

_NAME: Final = re.compile(
    rf"[A-Za-z0-9+/;.$_()][-A-Za-z0-9+/;.$_()]{{0,{TOPIC_NAME_BYTES_MAX - 1}}}"
)
NAME_RULE: Final = "must be the name of a topic"
_PLAIN: Final = bytes(range(0x21, 0x7F))
_PLAIN_KEY: Final = re.compile(rb"[!-~]{1,%d}" % KEY_BYTES_MAX)


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
    _read_topic,
    schema={
        "type": "string",
        "pattern": "^[A-Za-z0-9+/;.$_()][-A-Za-z0-9+/;.$_()]*$",
        "minLength": 1,
        "maxLength": TOPIC_NAME_BYTES_MAX,
    },
).told("The name of a topic.", "mail")


def checked_key(key: bytes) -> bytes:
    """Return the key, or raise `KeyInvalid`."""
    if _PLAIN_KEY.fullmatch(key) is None:
        try:
            text = key.decode("utf-8")
        except UnicodeDecodeError:
            raise KeyInvalid(key) from None
        if not text.isprintable() or " " in text or not 1 <= len(key) <= KEY_BYTES_MAX:
            raise KeyInvalid(key)
    return key


def _read_key(value: object) -> bytes:
    if not isinstance(value, str):
        raise ValueError("must be a text")  # noqa: TRY004 - as for all that is wrong
    try:
        return checked_key(value.encode("utf-8", "surrogatepass"))
    except KeyInvalid as refusal:
        raise ValueError(str(refusal)) from None


KEY: Final = ValueKind(
    _read_key,
    schema={
        "type": "string",
        "pattern": r"^[^\s\u0000-\u001f\u007f-\u009f]+$",
        "minLength": 1,
        "maxLength": KEY_BYTES_MAX,
    },
).told(
    "The caller's own name for a job: printable, without spaces, "
    f"{KEY_BYTES_MAX} bytes of UTF-8 at most; unique among the live jobs of its topic.",
    "order-17",
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
