r"""The line protocol as bytes: commands in, replies out, and no socket.

>>> reader = ReplyReader(2, Address("line", "127.0.0.1", 11300))
>>> reader.feed(b"FOUND 7 2\r\nhi\r\nNOT_")
>>> reader.feed(b"FOUND\r\n").replies
[Reply(words=['FOUND', '7', '2'], body=b'hi'), Reply(words=['NOT_FOUND'], body=None)]
"""

import functools
import re
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from delayd.client.addresses import Address
from delayd.client.answers import (
    checked,
    from_epoch,
    kind_of,
    members,
    named,
    read_json,
    seconds_in,
    shown,
    text_in,
    whole_in,
)
from delayd.client.connection_pool import Link
from delayd.client.errors import (
    NotUnderstood,
    PolicyInvalid,
    Refused,
    ScheduleInvalid,
    TopicNameInvalid,
    WrongProtocol,
    refused,
    wrong,
)
from delayd.client.limits import (
    ANSWER_BYTES_MAX,
    BATCH_JOBS_MAX,
    LINE_BYTES_MAX,
    NUMBER_DIGITS_MAX,
    NUMBER_MAX,
)
from delayd.client.results import DeadGroup, GroupInfo, GroupPage
from delayd.client.values import SECONDS_MAX, Duration, seconds

_TOPIC: Final = r"[A-Za-z0-9+/;.$_()][A-Za-z0-9+/;.$_()-]{0,199}"
TOPICS_KEPT: Final = 256
"""So many names are not checked again."""
LABEL: Final = (
    r"[^\x00-\x20\x7f-\xa0\xad\u061c\u1680\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff"
    r"\ufff9-\ufffb\ud800-\udfff]+"
)
"""Keys and groups: no spaces, no characters that cannot be seen, no halves of surrogate pairs."""
_LABEL_RULE: Final = "1 to 200 bytes of printable UTF-8 without spaces"
_REFUSAL: Final = r"[A-Z][A-Z_]*"
_DONE_BEFORE: Final = rf"done=([0-9]{{1,{NUMBER_DIGITS_MAX}}})"
"""How many jobs an operation on many had put or changed before it was refused."""
_DONE: Final = frozenset(
    (
        *("OK", "FOUND", "RESERVED", "RESERVED_BATCH", "TIMED_OUT", "DEADLINE_SOON", "USING"),
        *("WATCHING", "INSERTED", "KEPT", "REPLACED", "PRESERVED", "EXTENDED", "DELETED"),
        *("RELEASED", "NACKED", "BURIED", "TOUCHED", "KICKED", "PAUSED", "CHANGED", "CANCELLED"),
        *("RESCHEDULED", "MATCHED", "CLEARED", "REDRIVEN", "POLICY_SET", "ADVANCED"),
        *("SCHEDULED", "RESUMED", "RAN", "BACKFILLED"),
    )
)
"""Words of successful replies: to a wrong command such a reply is no refusal either."""
_SHORT: Final = re.compile(rb"(?:INSERTED|DELETED|TOUCHED|TIMED_OUT)(?: [0-9]{1,20})?\r\n")
"""A whole answer of one short line, as most are."""
_ONE_JOB: Final = re.compile(
    rb"RESERVED_BATCH 1\r\n(RESERVED ([0-9]{1,20}) ([0-9]{1,20})(?: [!-~]{1,204}){0,4})\r\n"
)
"""How a batch of one job begins, as a worker gets who reserves job after job."""
_WITH_BODY: Final = frozenset(("FOUND", "RESERVED"))
_SCOPES: Final = MappingProxyType(
    {
        command: scope
        for scope, commands in (
            ("put", "use put put-in-tube change reschedule-jobs schedule-put schedule-delete"),
            ("put", "schedule-pause schedule-resume schedule-run schedule-backfill"),
            ("reserve", "watch reserve-batch"),
            ("delete", "delete delete-key cancel-jobs"),
            ("release", "nack release touch"),
            ("bury", "bury"),
            ("kick", "kick-job kick-key kick-jobs redrive"),
            ("peek", "peek peek-key find-key stats-job list-jobs dead-reasons calendar"),
            ("peek", "schedules schedule-get schedule-preview"),
            ("pause", "pause-tube pause-group"),
            ("stats", "stats stats-tube stats-group list-groups get-policy"),
            ("admin", "set-policy clear-tube advance-clock"),
        )
        for command in commands.split()
    }
)
"""The scope that a command needs, which replies do not name."""


class Commands(NamedTuple):
    """Commands, and how they are sent; each has one reply."""

    lines: tuple[bytes, ...]
    """Each with its body, and with its ends of lines."""
    wait_s: float = 0.0
    may_repeat: bool = False
    link: Any = None
    watched: frozenset[str] | None = None
    """Topics that the connection must watch before; None: any."""
    used: str | None = None
    """The topic of its plain puts; None: any."""


class Reply(NamedTuple):
    """A reply: its line in words, and its body if it has one."""

    words: list[str]
    body: bytes | None = None

    @property
    def word(self) -> str:
        """The first word."""
        return self.words[0]

    @property
    def number(self) -> int:
        """The second word, a whole number. Raises NotUnderstood."""
        return whole_at(self.words, 1)


class Replies(NamedTuple):
    """The replies to commands, and the connection that they came over."""

    replies: list[Reply]
    link: Any

    @property
    def is_last(self) -> bool:
        """Whether the daemon closes the connection after them; unknown on the line."""
        return False


class ReplyReader:
    """Reads so many replies of the daemon at `address`; `feed` returns them when they are whole."""

    __slots__ = (
        *("_address", "_at", "_bytes_max", "_left", "_link", "_may_be_batch", "_received"),
        "_replies",
    )

    def __init__(
        self,
        count: int,
        address: Address,
        link: Link | None = None,
        answer_bytes_max: int = ANSWER_BYTES_MAX,
    ) -> None:
        self._address = address
        self._link = link
        self._bytes_max = answer_bytes_max
        self._may_be_batch = count == 1
        self._left = count
        self._received: bytes | bytearray = b""
        """The first bytes as they came, which most often are all; otherwise what was collected."""
        self._at = 0
        self._replies: list[Reply] = []

    def feed(self, data: bytes) -> Replies | None:
        """Read received bytes."""
        if self._received:
            self._received += data
        else:
            self._received = data
        while self._left and (reply := self._next()) is not None:
            self._replies.append(reply)
            self._left -= 1
            if reply.word == "RESERVED_BATCH":
                self._left += self._batch_of(reply)
        if self._left:
            if len(self._received) > self._bytes_max:
                raise _too_long(self._bytes_max)
            if type(self._received) is bytes:
                self._received = bytearray(self._received)
            return None
        if self._at < len(self._received):
            raise NotUnderstood("more was answered than was asked")
        if self._link is not None:  # before it is given back, so that no other call may have it
            for reply in self._replies:
                if reply.words[0] == "RESERVED":
                    self._link.held.add(int(reply.words[1]))
        return Replies(self._replies, self._link)

    def _batch_of(self, reply: Reply) -> int:
        """Return how many jobs follow; a batch is the only command of its exchange."""
        count = reply.number
        if not self._may_be_batch or count > BATCH_JOBS_MAX:
            raise NotUnderstood(f"{shown(' '.join(reply.words))}, which was not asked for")
        self._may_be_batch = False
        return count

    def _next(self) -> Reply | None:
        found = _reply_at(self._received, self._at, self._address, self._bytes_max)
        if found is None:
            return None
        reply, self._at = found
        return reply


class ReplyStream:
    r"""Reads replies without an end, each as soon as it is whole.

    >>> stream = ReplyStream(Address("line", "127.0.0.1", 11300))
    >>> stream.feed(b"DELETED\r\nRESERVED 7 2\r\nh")
    [Reply(words=['DELETED'], body=None)]
    >>> stream.feed(b"i\r\n")
    [Reply(words=['RESERVED', '7', '2'], body=b'hi')]
    """

    def __init__(self, address: Address, answer_bytes_max: int = ANSWER_BYTES_MAX) -> None:
        self._address = address
        self._bytes_max = answer_bytes_max
        self._received = bytearray()

    def feed(self, data: bytes) -> list[Reply]:
        """Read received bytes; return the replies that are whole now."""
        self._received += data
        replies, at = [], 0
        while found := _reply_at(self._received, at, self._address, self._bytes_max):
            reply, at = found
            replies.append(reply)
        del self._received[:at]
        return replies


def _reply_at(
    received: bytes | bytearray, at: int, address: Address, bytes_max: int
) -> tuple[Reply, int] | None:
    """Return the reply that begins there, and where it ends; None: it is not whole."""
    end = received.find(b"\r\n", at)
    if (len(received) if end < 0 else end) - at > LINE_BYTES_MAX:
        raise NotUnderstood(f"a line is longer than {LINE_BYTES_MAX} bytes")
    if end < 0:
        return None
    words = words_of(received[at:end])
    word = words[0]
    if word in _WITH_BODY:
        whole_at(words, 1)
        size = whole_at(words, 2)
    elif word == "OK" and len(words) == 2:
        size = whole_at(words, 1)
    elif word.startswith("HTTP/"):
        raise WrongProtocol(address.url, "HTTP", address.other.url)
    else:
        return Reply(words), end + 2
    body_at = end + 2
    if size > bytes_max:
        raise _too_long(bytes_max)
    behind = body_at + size + 2
    if len(received) < behind:
        return None
    if not received.startswith(b"\r\n", behind - 2):
        raise NotUnderstood("a body is longer than its reply says")
    return Reply(words, bytes(memoryview(received)[body_at : body_at + size])), behind


def _too_long(bytes_max: int) -> NotUnderstood:
    return NotUnderstood(f"the answer is longer than answer_bytes_max, {bytes_max} bytes")


class LineWire:
    """The line protocol, for a connection."""

    def __init__(
        self, address: Address, token: str, answer_bytes_max: int = ANSWER_BYTES_MAX
    ) -> None:
        if any(character.isspace() for character in token):
            raise ValueError("a token has no spaces")
        self._address = address
        self._token = token
        self._bytes_max = answer_bytes_max

    def stream(self) -> ReplyStream:
        """Return a reader of replies without an end."""
        return ReplyStream(self._address, self._bytes_max)

    def encode(self, ask: Commands) -> bytes:
        """Write commands."""
        return b"".join(ask.lines)

    def reader(self, ask: Commands, link: Link) -> ReplyReader:
        """Return the reader of their replies."""
        return ReplyReader(len(ask.lines), self._address, link, self._bytes_max)

    def whole(self, ask: Commands, link: Link, data: bytes) -> Replies | None:
        """Read one of the two answers that nearly all are, if this is all of it."""
        if len(ask.lines) != 1:
            return None
        if _SHORT.fullmatch(data):
            return Replies([Reply(data.decode().split())], link)
        if (head := _ONE_JOB.match(data)) is None:
            return None
        size = len(data) - head.end() - 2
        if int(head[3]) != size or size > self._bytes_max or not data.endswith(b"\r\n"):
            return None
        link.held.add(int(head[2]))
        job = Reply(head[1].decode().split(), data[head.end() : -2])
        return Replies([Reply(["RESERVED_BATCH", "1"]), job], link)

    def before(self, ask: Commands, link: Link) -> Commands | None:
        """Return the commands to send before: a token, the topics to watch and to use.

        If there are none, and nothing was answered yet, one that changes nothing.
        """
        lines = []
        if self._token and not link.is_greeted:
            lines.append(line("auth", self._token))
        if ask.watched is not None and ask.watched != link.watched:
            lines += [line("watch", name) for name in sorted(ask.watched - link.watched)]
            lines += [line("ignore", name) for name in sorted(link.watched - ask.watched)]
        if ask.used is not None and ask.used != link.used:
            lines.append(line("use", ask.used))
        if not lines and not link.is_proven:
            lines.append(line("list-tube-used"))
        return Commands(tuple(lines)) if lines else None

    def check_before(self, ask: Commands, first: Commands, replies: Replies) -> None:
        """Note which topics the connection watches and uses now. Raises refusals."""
        link = replies.link
        for command, reply in zip(first.lines, replies.replies, strict=True):
            if reply.word not in {"OK", "WATCHING", "USING"}:
                raise refusal_of(reply, command, "nothing was done")
        link.is_greeted = True
        if ask.watched is not None:
            link.watched = ask.watched
        if ask.used is not None:
            link.used = ask.used

    def why_elsewhere(self, _reply: object) -> str:
        """Return an empty text: a daemon that does not serve has no open port."""
        return ""


# --- Writing -------------------------------------------------------------------------------------


def line(*words: object, body: bytes | None = None) -> bytes:
    """Write a command; `body` follows its line, whose last word is the body's length."""
    text = " ".join([str(word) for word in words]).encode()
    return text + b"\r\n" if body is None else b"%b %d\r\n%b\r\n" % (text, len(body), body)


def is_topic(name: str) -> bool:
    """Tell whether a topic may have this name."""
    return re.fullmatch(_TOPIC, name) is not None


def topic_word(name: object) -> str:
    """Return a topic as it can stand in a line. Raises TopicNameInvalid."""
    if not isinstance(name, str):
        raise wrong("topic", f"must be the name of a topic, and is {name!r:.80}")
    return _topic_word(name)


@functools.lru_cache(maxsize=TOPICS_KEPT)
def _topic_word(name: str) -> str:
    if not is_topic(name):
        raise TopicNameInvalid(
            f"the topic name {name!r} must be 1 to 200 of A-Z a-z 0-9 - + / ; . $ _ ( ), and must"
            " not begin with -",
            "BAD_FORMAT",
        )
    return name


def key_word(key: object, field: str = "key") -> str:
    """Return a key as it can stand in a line. Raises KeyInvalid."""
    if not isinstance(key, str):
        raise wrong(field, "must be a text")
    if not _is_label(key):
        raise wrong(field, f"the key {key!r} must be {_LABEL_RULE}")
    return key


def label_word(text: object, field: str) -> str:
    """Return a text of a job's own as it can stand in a line. Raises Invalid."""
    if not isinstance(text, str) or not _is_label(text):
        raise wrong(field, f"must be {_LABEL_RULE}")
    return text


def _is_label(text: str) -> bool:
    """Tell whether a key, or a text of a job's own, may be this."""
    return re.fullmatch(LABEL, text) is not None and len(text.encode()) <= 200


def seconds_word(length: Duration, field: str) -> str:
    """Return a length of time as it can stand in a line, rounded up to the millisecond."""
    length_s = seconds(length, field)
    if not 0 <= length_s <= SECONDS_MAX:
        raise wrong(field, f"must be from 0 to {SECONDS_MAX} s")
    return f"{-int(-length_s * 1_000 // 1) / 1_000:.3f}".rstrip("0").rstrip(".")


def whole_word(number: object, field: str, lowest: int, highest: int) -> str:
    """Return a whole number as it can stand in a line."""
    if not isinstance(number, int) or isinstance(number, bool):
        raise wrong(field, f"must be a whole number, not {kind_of(number)}")
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


# --- Reading -------------------------------------------------------------------------------------


def words_of(line: bytes | bytearray) -> list[str]:
    """Return the words of a reply's line, one at least."""
    words = line.decode(errors="replace").split()
    if not words:
        raise NotUnderstood("an empty line")
    return words


def whole_at(words: Sequence[str], at: int) -> int:
    """Return a word of a reply that is a whole number."""
    if at < len(words):
        word = words[at]
        if word.isascii() and word.isdigit() and len(word) <= NUMBER_DIGITS_MAX:
            return int(word)
    raise NotUnderstood(f"{shown(' '.join(words))} has no whole number as word {at + 1}")


def refusal_of(reply: Reply, sent: bytes, detail: str) -> Refused:
    """Return the error for a refusal; `detail` is its message.

    Raises NotUnderstood for an unknown reply, after which the outcome is unknown.
    """
    command = sent.split(None, 1)[0].decode()
    word = reply.word
    if command == "set-policy" and word == "BAD_FORMAT":
        return PolicyInvalid(" ".join(reply.words[1:]), word)
    if command.startswith("schedule-") and word == "BAD_FORMAT" and len(reply.words) > 1:
        return ScheduleInvalid(f"the schedule is not valid: {' '.join(reply.words[1:])}", word)
    if word in _DONE or not re.fullmatch(_REFUSAL, word):
        raise NotUnderstood(f"{command} was answered {shown(' '.join(reply.words))}")
    if word in {"BAD_FORMAT", "FORBIDDEN", "UNAUTHORIZED"} and len(reply.words) > 1:
        return refused(word, " ".join(reply.words[1:]))
    job_id = reply.number if word == "JOB_ALREADY_EXISTS" else None
    if word == "JOB_ALREADY_EXISTS":
        detail = f"job {job_id} has the key already"
    scope = _SCOPES.get(command, "") if word == "FORBIDDEN" else ""
    if word == "UNAUTHORIZED":
        reason = "does not know the token" if command == "auth" else "asks for a token"
        detail = f"the daemon {reason}"
    elif word == "UNKNOWN_COMMAND" and command == "auth":
        detail = "the daemon has no tokens, so none can be given"
    if word == "FORBIDDEN":
        detail = f"the token lacks the scope {scope}, or is for other topics"
        if command == "cancel-jobs":
            detail += ", or all jobs were meant, which takes admin too"
    done = int(found[1]) if (found := re.fullmatch(_DONE_BEFORE, reply.words[-1])) else 0
    if done:
        detail = f"{done} jobs were put or changed before"
    told = f"{command} was answered {word}: {detail}"
    return refused(word, told, job_id=job_id, scope=scope, done=done)


def read_map(body: bytes | None) -> dict[str, Any]:
    r"""Read the YAML of statistics.

    >>> read_map(b'---\nid: 7\ntube: "mail"\nstate: ready\nrate: 0.5\n')
    {'id': 7, 'tube': 'mail', 'state': 'ready', 'rate': 0.5}
    """
    lines = _lines(body)[1:]
    return {name: read_value(text) for name, _, text in (each.partition(": ") for each in lines)}


def read_names(body: bytes | None) -> list[str]:
    r"""Read a list of topics' names. Raises NotUnderstood for names that no topic can have.

    >>> read_names(b'---\n- mail\n- "007"\n- 1e5\n')
    ['mail', '007', '1e5']
    """
    names = []
    for text in _lines(body)[1:]:
        name = _text_of(text[2:])
        if text[:2] != "- " or not is_topic(name):
            raise NotUnderstood(f"{shown(text)} is no topic of a list")
        names.append(name)
    return names


_ROW: Final = (
    r"- \{id: ([0-9]{1,20}),(?: tube: \"([^\"]*)\",)? state: (\w+), pri: ([0-9]{1,20}),"
    r" due: ([0-9]{1,20}(?:\.[0-9]{1,9})?), key: (.*)\}"
)


def read_rows(body: bytes | None) -> tuple[list[dict[str, Any]], str]:
    """Read a page of jobs, and `after` of the next one."""
    lines = _lines(body)
    after = _text_of(lines[1].removeprefix("after: ")) if len(lines) > 2 else None
    if after is None or not re.fullmatch(_AFTER, after):
        raise NotUnderstood(f"{shown(body or b'')} is no page of jobs")
    rows = []
    for text in lines[3:]:
        if (row := re.fullmatch(_ROW, text)) is None:
            raise NotUnderstood(f"{shown(text)} is no job of a list")
        named: dict[str, Any] = {"id": int(row[1]), "state": row[3], "priority": int(row[4])}
        if row[2] is not None:
            if not is_topic(row[2]):
                raise NotUnderstood(f"{shown(text)} is in no topic")
            named["topic"] = row[2]
        rows.append({**named, "due": from_epoch(float(row[5])), "key": _text_of(row[6])})
    return rows, after


_GROUP: Final = (
    r"- \{id: \"([0-9a-f]{8})\", jobs: ([0-9]{1,20}), first: ([0-9]{1,20}(?:\.[0-9]{1,9})?),"
    r" last: ([0-9]{1,20}(?:\.[0-9]{1,9})?), job: ([0-9]{1,20}), reason: (.*)\}"
)


def read_groups(body: bytes | None, topic: str) -> tuple[list[DeadGroup], int]:
    """Read the dead letters of a topic by reason, and how many there are in all."""
    lines = _lines(body)
    jobs = re.fullmatch("jobs: ([0-9]{1,20})", lines[1]) if len(lines) > 2 else None
    if jobs is None:
        raise NotUnderstood(f"{shown(body or b'')} is no list of dead letters")
    groups = []
    for text in lines[3:]:
        if (row := re.fullmatch(_GROUP, text)) is None:
            raise NotUnderstood(f"{shown(text)} is no reason of a list")
        first, last = from_epoch(float(row[3])), from_epoch(float(row[4]))
        about = (row[1], _text_of(row[6]), int(row[2]), first, last, int(row[5]))
        groups.append(DeadGroup(topic, *about))
    return groups, int(jobs[1])


def read_group(body: bytes | None) -> GroupInfo:
    """Read how a group is doing."""
    return _group_info(read_map(body))


def read_group_page(body: bytes | None) -> GroupPage:
    """Read groups of a topic, how many there are, and `after` of the next page."""
    lines = _lines(body)
    if len(lines) < 4 or lines[3] not in {"groups:", "groups: []"}:
        raise NotUnderstood(f"{shown(body or b'')} is no list of groups")
    about = read_map("\n".join(lines[:3]).encode())
    groups = [_group_info(read_json(text.removeprefix("- ").encode())) for text in lines[4:]]
    return GroupPage(groups, whole_in(about, "count"), text_in(about, "after") or None)


def _group_info(row: object) -> GroupInfo:
    about = {name.replace("-", "_"): value for name, value in members(row).items()}
    if "paused_until" in about:
        about["paused_until"] = from_epoch(seconds_in(about, "paused_until")).isoformat()
    return named(GroupInfo, about)


_AFTER: Final = r"[!-~]{0,200}"
_NUMBER: Final = r"-?[0-9]{1,20}"


def _lines(body: bytes | None) -> list[str]:
    """Return the lines of YAML."""
    try:
        lines = (body or b"").decode().split("\n")
    except ValueError:
        raise NotUnderstood(f"{shown(body or b'')} is not UTF-8") from None
    if lines[-1] == "":
        lines.pop()
    return lines


def _text_of(text: str) -> str:
    """Read a text, in quotes or without them."""
    return str(checked("a text", read_json(text.encode()), str)) if text[:1] == '"' else text


def read_value(text: str) -> Any:  # noqa: ANN401 - a number or a text
    """Read a number or a text."""
    if text[:1] == '"':
        return _text_of(text)
    if re.fullmatch(_NUMBER, text):
        return int(text)
    try:
        value = float(text)
    except ValueError:
        return text
    return value if -NUMBER_MAX < value < NUMBER_MAX else text
