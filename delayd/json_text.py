"""Whether bytes are a JSON text that can be handed on in an answer as it is.

One number beyond a reader's range makes a whole answer unreadable, so a text counts as JSON only if
the HTTP API would accept it as the body of a job:

>>> [is_json(body) for body in (b'{"a":  1.0}', b"hello", b"1e999")]
[True, False, False]
"""

from typing import Final

import msgspec
import orjson

from delayd.limits import GROUP_BODY_BYTES_MAX, HTTP_CONTAINERS_MAX, HTTP_DEPTH_READ

_skip: Final = msgspec.json.Decoder(msgspec.Raw).decode
"""Checks JSON, except UTF-8 and the range of numbers, and makes no values: a fifth of the time of
reading it where there are many arrays and objects."""
_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_text_or_whole: Final = msgspec.json.Decoder(str | int).decode
_SPACES: Final = b" \t\r\n"
_NUMBERS_ALIKE: Final = bytes(
    0x65 if byte in b"eE" else 0x30 if byte in b"0123456789+" else 0x20 for byte in range(256)
)
"""Maps digits and + to 0, both signs of an exponent to e, the rest to spaces, for a search."""
_LONG_NUMBER: Final = b"0" * 200
_LONG_EXPONENT: Final = b"e000"
"""Of three digits, or of two with a +."""


def is_json(body: bytes) -> bool:
    """Tell whether the body is a JSON text without blanks around it, to be returned as it is."""
    if not body or body[0] in _SPACES or body[-1] in _SPACES or is_dense(body):
        return False
    try:
        if not body.isascii():
            body.decode()
        _skip(body)
        if _may_be_endless(body):
            orjson.loads(body)
    except (UnicodeDecodeError, msgspec.DecodeError, orjson.JSONDecodeError, RecursionError):
        return False
    return True


def _may_be_endless(body: bytes) -> bool:
    """Tell whether a number may be beyond the range of floats: 0.2 ms for 64 KiB.

    1e309 is the first. An exponent of two digits needs 210 more before the point to get there. A
    regular expression for the same takes 2 ms, and `in` twice as long as `find` for a short body.
    """
    alike = body.translate(_NUMBERS_ALIKE)
    return alike.find(_LONG_EXPONENT) >= 0 or (
        len(body) >= len(_LONG_NUMBER) and alike.find(_LONG_NUMBER) >= 0
    )


def is_dense(text: bytes) -> bool:
    """Tell whether parsing this JSON would block all clients: 4 MiB of `[],[],` take a second."""
    return len(text) > HTTP_CONTAINERS_MAX < text.count(b"[") + text.count(b"{")


def text_field(body: bytes, name: str) -> str | None:
    """Return a field of a JSON object that is a text or a whole number; None: there is none.

    One level is looked at, and no body that is longer than `GROUP_BODY_BYTES_MAX`.

    >>> text_field(b'{"customer": 17, "of": {"customer": 4}}', "customer")
    '17'
    """
    if len(body) > GROUP_BODY_BYTES_MAX:
        return None
    try:
        value = _fields(body).get(name)
        text: str | int | None = None if value is None else _text_or_whole(value)
    except (UnicodeDecodeError, msgspec.MsgspecError, RecursionError):
        return None
    return text if text is None else str(text)


def why_not_json(data: bytes, message: str, where: str = "") -> str:
    r"""Return why the data is not JSON; `message` is that of orjson or msgspec.

    >>> why_not_json(b'{"body": "\xff"}', "str is not valid UTF-8")
    'the byte 0xff at offset 10 is not UTF-8'
    >>> why_not_json(b'{"body": "\\ud800"}', "Input data was truncated")
    'no low surrogate in string (character 10)'
    """
    colon = f"{where}: " if where else ""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return f"{colon}the byte 0x{data[error.start]:02x} at offset {error.start} is not UTF-8"
    if "depth" in message:  # of orjson, or of Python
        message = f"arrays and objects are nested too deeply; {HTTP_DEPTH_READ} levels are read"
    elif "truncated" in message and not is_dense(data):  # or half of a surrogate pair
        try:
            orjson.loads(data)
        except orjson.JSONDecodeError as error:
            message = f"{error.msg} (character {error.pos})"
    return colon + message
