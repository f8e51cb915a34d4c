r"""The line protocol as bytes: commands in, replies out, and no socket.

>>> reader = ReplyReader(2, Address("line", "127.0.0.1", 11300))
>>> reader.feed(b"FOUND 7 2\r\nhi\r\nNOT_")
>>> reader.feed(b"FOUND\r\n").replies
[Reply(words=['FOUND', '7', '2'], body=b'hi'), Reply(words=['NOT_FOUND'], body=None)]
"""

import datetime as dt
import json
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from delayd.client.addresses import Address
from delayd.client.errors import (
    NotUnderstood,
    PolicyInvalid,
    Refused,
    TopicNameInvalid,
    WrongProtocol,
    refused,
    wrong,
)
from delayd.client.values import Duration, seconds
from delayd.client.wires import Link

LINE_BYTES_MAX: Final = 4_096
SECONDS_MAX: Final = (1 << 32) - 1
_KINDS: Final[Mapping[type, str]] = MappingProxyType(
    {
        int: "a whole number",
        float: "a number",
        str: "a text",
        bool: "true or false",
        list: "an array",
        dict: "an object",
    }
)
"""What JSON calls the kinds of values."""
_TOPIC: Final = r"[A-Za-z0-9+/;.$_()][A-Za-z0-9+/;.$_()-]{0,199}"
_WITH_BODY: Final = frozenset(("FOUND", "RESERVED"))
_SCOPES: Final = MappingProxyType(
    {
        command: scope
        for scope, commands in (
            ("put", "use put put-in-tube change reschedule-jobs"),
            ("reserve", "watch reserve-batch"),
            ("delete", "delete delete-key cancel-jobs"),
            ("release", "nack release touch"),
            ("bury", "bury"),
            ("kick", "kick-job kick-key kick-jobs redrive"),
            ("peek", "peek peek-key stats-job list-jobs calendar"),
            ("pause", "pause-tube"),
            ("stats", "stats stats-tube get-policy"),
            ("admin", "set-policy clear-tube advance-clock"),
        )
        for command in commands.split()
    }
)
"""Which scope a command needs; the line itself does not say."""


class Commands(NamedTuple):
    """Commands, and how they may be treated; one reply comes for each."""

    lines: tuple[bytes, ...]
    """Each with its body, and with its ends of lines."""
    wait_s: float = 0.0
    may_repeat: bool = False
    link: Any = None
    watched: frozenset[str] | None = None
    """What the connection must watch before; None: no matter."""
    used: str | None = None
    """Where its plain puts go; None: no matter."""


class Reply(NamedTuple):
    """A reply: its line in words, and its body if it has one."""

    words: list[str]
    body: bytes | None = None

    @property
    def word(self) -> str:
        """The first word."""
        return self.words[0]


class Replies(NamedTuple):
    """The replies to commands, and the connection that they came over."""

    replies: list[Reply]
    link: Any

    @property
    def is_last(self) -> bool:
        """Whether the daemon closes the connection after them: it does not say."""
        return False


class ReplyReader:
    """Reads so many replies; `feed` returns them when they are whole. `address` is whose."""

    def __init__(self, count: int, address: Address, link: Link | None = None) -> None:
        self._address = address
        self._link = link
        self._left = count
        self._received = bytearray()
        self._at = 0
        self._replies: list[Reply] = []

    def feed(self, data: bytes) -> Replies | None:
        """Take what was received."""
        self._received += data
        while self._left and (reply := self._next()) is not None:
            self._replies.append(reply)
            if reply.word == "RESERVED_BATCH":
                self._left += int(reply.words[1])
            self._left -= 1
        if self._left:
            return None
        if self._at < len(self._received):
            raise NotUnderstood("more was answered than was asked")
        if self._link is not None:  # before it is given back, so that no other call may have it
            reserved = (reply for reply in self._replies if reply.word == "RESERVED")
            self._link.held.update(int(reply.words[1]) for reply in reserved)
        return Replies(self._replies, self._link)

    def _next(self) -> Reply | None:
        end = self._received.find(b"\r\n", self._at)
        if end < 0:
            if len(self._received) - self._at > LINE_BYTES_MAX:
                raise NotUnderstood("a line is too long for the beanstalk protocol")
            return None
        words = self._received[self._at : end].decode(errors="replace").split()
        if not words:
            raise NotUnderstood("an empty line")
        if words[0].startswith("HTTP/"):
            raise WrongProtocol(self._address.url, "HTTP", self._address.other.url)
        size = 0
        if words[0] in _WITH_BODY and len(words) == 3:
            size = int(words[2])
        elif words[0] == "OK" and len(words) == 2:
            size = int(words[1])
        else:
            self._at = end + 2
            return Reply(words)
        body_at = end + 2
        if len(self._received) < body_at + size + 2:
            return None
        self._at = body_at + size + 2
        body = bytes(self._received[body_at : body_at + size])
        return Reply(words, body)


class LineWire:
    """The line protocol as what a connection speaks."""

    def __init__(self, address: Address, token: str) -> None:
        if any(character.isspace() for character in token):
            raise ValueError("a token has no spaces")
        self._address = address
        self._token = token

    def encode(self, ask: Commands) -> bytes:
        """Write commands."""
        return b"".join(ask.lines)

    def reader(self, ask: Commands, link: Link) -> ReplyReader:
        """Return what reads their replies."""
        return ReplyReader(len(ask.lines), self._address, link)

    def before(self, ask: Commands, link: Link) -> Commands | None:
        """Return what a connection has to hear before: a token, what it watches and uses."""
        lines = []
        if self._token and not link.is_greeted:
            lines.append(line("auth", self._token))
        if ask.watched is not None and ask.watched != link.watched:
            lines += [line("watch", name) for name in sorted(ask.watched - link.watched)]
            lines += [line("ignore", name) for name in sorted(link.watched - ask.watched)]
        if ask.used is not None and ask.used != link.used:
            lines.append(line("use", ask.used))
        return Commands(tuple(lines)) if lines else None

    def check_before(self, ask: Commands, said: Commands, replies: Replies) -> None:
        """Note what the connection watches and uses now. Raises what is refused."""
        link = replies.link
        for asked, reply in zip(said.lines, replies.replies, strict=True):
            if reply.word not in {"OK", "WATCHING", "USING"}:
                raise refusal_of(reply, asked, "nothing was done")
        link.is_greeted = True
        if ask.watched is not None:
            link.watched = ask.watched
        if ask.used is not None:
            link.used = ask.used


# --- Writing -------------------------------------------------------------------------------------


def line(*words: object, body: bytes | None = None) -> bytes:
    """Write a command; `body` follows its line, whose last word is the body's length."""
    text = " ".join(map(str, words)).encode()
    return text + b"\r\n" if body is None else b"%b %d\r\n%b\r\n" % (text, len(body), body)


def topic_word(name: str) -> str:
    """Return a topic as it can stand in a line. Raises TopicNameInvalid."""
    if not re.fullmatch(_TOPIC, name):
        raise TopicNameInvalid(
            f"topic name {name!r} is not 1 to 200 of A-Z a-z 0-9 - + / ; . $ _ ( ) or begins"
            " with -",
            "BAD_FORMAT",
        )
    return name


def key_word(key: object, field: str = "key") -> str:
    """Return a key as it can stand in a line. Raises KeyInvalid."""
    if not isinstance(key, str):
        raise wrong(field, f"must be a text, not {_kind_of(key)}")
    if not 0 < len(key.encode()) <= 200 or not key.isprintable() or " " in key:
        detail = f"the key {key!r} is not 1 to 200 bytes of printable UTF-8 without spaces"
        raise wrong(field, detail)
    return key


def seconds_word(length: Duration, field: str) -> str:
    """Return a length of time as it can stand in a line, rounded up to the millisecond."""
    length_s = seconds(length, field)
    if not 0 <= length_s <= SECONDS_MAX:
        raise wrong(field, f"must be from 0 to {SECONDS_MAX} s")
    return f"{-int(-length_s * 1_000 // 1) / 1_000:.3f}".rstrip("0").rstrip(".")


def whole_word(number: object, field: str, lowest: int, highest: int) -> str:
    """Return a whole number as it can stand in a line."""
    if not isinstance(number, int) or isinstance(number, bool):
        raise wrong(field, f"must be a whole number, not {_kind_of(number)}")
    if number < lowest:
        raise wrong(field, f"must be at least {lowest}")
    if number > highest:
        raise wrong(field, f"must be at most {highest}")
    return str(number)


def choice_word(word: str, field: str, choices: Sequence[str]) -> str:
    """Return a word that is one of these."""
    if word not in choices:
        raise wrong(field, f"must be one of {', '.join(choices)}, not {word!r}")
    return word


def _kind_of(value: object) -> str:
    return _KINDS.get(type(value), type(value).__name__)


# --- Reading -------------------------------------------------------------------------------------


def refusal_of(reply: Reply, asked: bytes, detail: str) -> Refused:
    """Return the error for a reply that is no success. `detail` says what is so then."""
    command = asked.split(None, 1)[0].decode()
    word = reply.word
    if command == "set-policy" and word == "BAD_FORMAT":
        return PolicyInvalid(" ".join(reply.words[1:]), word)
    if word in {"BAD_FORMAT", "FORBIDDEN", "UNAUTHORIZED"} and len(reply.words) > 1:
        return refused(word, " ".join(reply.words[1:]))
    job_id = int(reply.words[1]) if word == "JOB_ALREADY_EXISTS" else None
    if word == "JOB_ALREADY_EXISTS":
        detail = f"job {job_id} has the key already"
    scope = _SCOPES.get(command, "") if word == "FORBIDDEN" else ""
    if word == "FORBIDDEN":
        detail = f"the token lacks the scope {scope}, or is for other topics"
    return refused(word, f"{command} was answered {word}: {detail}", job_id=job_id, scope=scope)


def read_map(body: bytes | None) -> dict[str, Any]:
    r"""Read the YAML of statistics.

    >>> read_map(b'---\nid: 7\ntube: "mail"\nstate: ready\nrate: 0.5\n')
    {'id': 7, 'tube': 'mail', 'state': 'ready', 'rate': 0.5}
    """
    lines = (body or b"").decode().splitlines()[1:]
    return {name: _value(text) for name, _, text in (each.partition(": ") for each in lines)}


def read_names(body: bytes | None) -> list[str]:
    """Read a list of names."""
    return [str(_value(each[2:])) for each in (body or b"").decode().splitlines()[1:]]


_ROW: Final = r"- \{id: (\d+), state: (\w+), pri: (\d+), due: ([\d.]+), key: (.*)\}"


def read_rows(body: bytes | None) -> tuple[list[dict[str, Any]], str]:
    """Read a page of jobs, and what `after` of the next one is."""
    first, _head, *texts = (body or b"").decode().splitlines()[1:]
    rows = []
    for text in texts:
        if (row := re.fullmatch(_ROW, text)) is None:
            raise NotUnderstood(f"{text!r} is no job of a list")
        due = dt.datetime.fromtimestamp(float(row[4]), dt.UTC)
        named = {"id": int(row[1]), "state": row[2], "priority": int(row[3]), "due": due}
        rows.append({**named, "key": json.loads(row[5])})
    return rows, str(_value(first.removeprefix("after: ")))


def _value(text: str) -> Any:  # noqa: ANN401 - what stands there
    if text.startswith('"'):
        return json.loads(text)
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return text
