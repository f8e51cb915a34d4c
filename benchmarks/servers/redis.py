"""Redis as a delay queue, twice: as articles about it do it, and in Lua, as somebody tunes it.

*Vanilla* is a sorted set of bodies by due time. A worker asks for the earliest that are due
(`ZRANGEBYSCORE`) and removes each (`ZREM`); it has those that it did remove, and asks again for the
others, which another worker was faster with. A worker that dies has lost its job, and nothing is
acknowledged.

*Tuned* has ids by due time in one sorted set, taken ids by the end of their lease in another, and
bodies in a hash. Putting, taking and acknowledging are a script each (`redis_put.lua`, …), called
by their hash; a take gets as many jobs as are wanted in one call. A job whose worker dies is due
again when its lease ends.

Workers of both poll: Redis lets nobody wait for a time. After an answer without a job a worker
waits for 10 ms.
"""

import contextlib
import enum
import hashlib
import math
import socket
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Final

from benchmarks.line import HOST, UnexpectedReplyError
from benchmarks.processes import OwnServer, program, reserved_port, written_bytes_below
from benchmarks.registry import Bench, Durability, NotMeasuredError
from benchmarks.servers.peer import NUMBER_DIGITS, Dialect, Heard, filler
from benchmarks.servers.resp import Replies, Reply, ask_redis, asked, command

DELAYED: Final = b"delayed"
TAKEN: Final = b"taken"
BODIES: Final = b"bodies"
LEASE_MS: Final = b"600000"
POLL_PAUSE_S: Final = 0.01
REWRITE_POLL_S: Final = 0.05
PUT: Final = b":1\r\n"
NUMBER: Final = b"%0" + b"%d" % NUMBER_DIGITS + b"d"
DUE: Final = b"%013d"
"""A time in milliseconds has 13 digits until the year 2286."""

PERSISTENCE: Final[Mapping[Durability, tuple[str, ...]]] = MappingProxyType(
    {
        Durability.IN_MEMORY: ("--appendonly", "no"),
        Durability.WITHIN_1_S: ("--appendonly", "yes", "--appendfsync", "everysec"),
        Durability.BEFORE_ANSWER: ("--appendonly", "yes", "--appendfsync", "always"),
    }
)


def template(*words: bytes) -> bytes:
    """Return a command whose words have places for numbers: `NUMBER` or `DUE`, once in a word."""
    sizes = (len(word % 0) if b"%" in word else len(word) for word in words)
    parts = (b"$%d\r\n%b\r\n" % (size, word) for size, word in zip(sizes, words, strict=True))
    return b"*%d\r\n" % len(words) + b"".join(parts)


def body(body_bytes: int) -> bytes:
    """Return a body with a place for its number."""
    return NUMBER + filler(body_bytes - NUMBER_DIGITS)


class PutReplies:
    """The replies to puts: each is `:1`, so that counting them is enough."""

    def __init__(self) -> None:
        self._pending = b""

    def hear(self, data: bytes) -> Heard:
        """Count the whole ones."""
        data = self._pending + data
        count = len(data) // len(PUT)
        end = count * len(PUT)
        if data != PUT * count + PUT[: len(data) - end]:
            raise UnexpectedReplyError(f"a put was answered {data[:80]!r}")
        self._pending = data[end:]
        return Heard(put=count)


class Vanilla:
    """A worker finds the earliest due bodies, and has those that it removes."""

    answers_acknowledgements = False

    def __init__(self, body_bytes: int) -> None:
        self._put = template(b"ZADD", DELAYED, DUE, body(body_bytes))
        self._puts = PutReplies()
        self._replies = Replies()
        self._expected: deque[int | bytes] = deque()
        """How many a poll was for, or which body is removed; empty where jobs are put."""

    def greet(self, sock: socket.socket) -> None:
        """Do nothing."""

    def puts(self, first: int, count: int, delay_ms: int) -> bytes:
        """Return so many ZADDs; the client's clock says when they are due."""
        due = math.ceil(time.time() * 1_000) + delay_ms
        numbers = range(first, first + count)
        return self._put * count % tuple(value for number in numbers for value in (due, number))

    def keyed_puts(self, first: int, count: int, delay_ms: int) -> bytes:
        """Raise: there is nothing but bodies."""
        del first, count, delay_ms
        raise NotMeasuredError("the member is the body: there is no key beside it")

    def takes(self, count: int) -> bytes:
        """Return a poll for so many."""
        self._expected.append(count)
        now = b"%d" % (time.time() * 1_000)
        limit = (b"LIMIT", b"0", b"%d" % count)
        return command(b"ZRANGEBYSCORE", DELAYED, b"-inf", now, *limit)

    def acknowledgements(self, handles: Sequence[bytes]) -> bytes:
        """Return nothing: a job that is taken is gone."""
        del handles
        return b""

    def hear(self, data: bytes) -> Heard:
        """Remove what a poll found, and poll again for what others had removed."""
        if not self._expected:
            return self._puts.hear(data)
        heard = Heard()
        too_late = 0
        for reply in self._replies.hear(data):
            asked_for = self._expected.popleft()
            if isinstance(asked_for, bytes):
                if reply == 1:
                    heard.taken.append((int(asked_for[:NUMBER_DIGITS]), asked_for))
                else:
                    too_late += 1
                continue
            bodies = members(reply)
            heard.empty += asked_for - len(bodies)
            self._expected += bodies
            heard.follow += b"".join(command(b"ZREM", DELAYED, one) for one in bodies)
        if too_late:
            heard.follow += self.takes(too_late)
        return heard


def members(reply: Reply) -> list[bytes]:
    """Return a reply that has to be a list of words."""
    if isinstance(reply, list):
        words = [one for one in reply if isinstance(one, bytes)]
        if len(words) == len(reply):
            return words
    raise UnexpectedReplyError(f"a take was answered {str(reply)[:80]}")


@lru_cache(maxsize=1)
def scripts() -> Mapping[str, bytes]:
    """Return the scripts by name."""
    folder = Path(__file__).parent
    return {
        name: (folder / f"redis_{name}.lua").read_bytes() for name in ("put", "take", "acknowledge")
    }


def script_hash(name: str) -> bytes:
    """Return what Redis calls a script by."""
    return hashlib.sha1(scripts()[name], usedforsecurity=False).hexdigest().encode()


class Tuned:
    """A script each for putting, taking under a lease, and acknowledging."""

    answers_acknowledgements = True

    def __init__(self, body_bytes: int) -> None:
        self._body = body(body_bytes)
        self._take, self._acknowledge = script_hash("take"), script_hash("acknowledge")
        self._puts = PutReplies()
        self._replies = Replies()
        self._expected: deque[int] = deque()
        """How many a take was for, or 0 for an acknowledgement; empty where jobs are put."""

    def greet(self, sock: socket.socket) -> None:
        """Load the scripts, which costs nothing if they are there."""
        for text in scripts().values():
            asked(sock, command(b"SCRIPT", b"LOAD", text))

    def puts(self, first: int, count: int, delay_ms: int) -> bytes:
        """Return so many calls of the script."""
        return self._put(NUMBER, first, count, delay_ms)

    def keyed_puts(self, first: int, count: int, delay_ms: int) -> bytes:
        """Return so many calls of the script: the key is the id, which can be there once."""
        return self._put(b"order-" + NUMBER, first, count, delay_ms)

    def _put(self, job: bytes, first: int, count: int, delay_ms: int) -> bytes:
        one = put_script(job, self._body, delay_ms)
        numbers = range(first, first + count)
        return one * count % tuple(number for number in numbers for _ in range(2))

    def takes(self, count: int) -> bytes:
        """Return one call of the script, for so many jobs."""
        self._expected.append(count)
        keys = (b"3", DELAYED, TAKEN, BODIES)
        return command(b"EVALSHA", self._take, *keys, b"%d" % count, LEASE_MS)

    def acknowledgements(self, handles: Sequence[bytes]) -> bytes:
        """Return one call of the script, for all of them."""
        self._expected.append(0)
        return command(b"EVALSHA", self._acknowledge, b"2", TAKEN, BODIES, *handles)

    def hear(self, data: bytes) -> Heard:
        """Count what was put, or taken, or acknowledged."""
        if not self._expected:
            return self._puts.hear(data)
        heard = Heard()
        for reply in self._replies.hear(data):
            asked_for = self._expected.popleft()
            if not asked_for:
                if not isinstance(reply, int):
                    raise UnexpectedReplyError(f"an acknowledgement was answered {reply!r}")
                heard.acknowledged += reply
                continue
            found = members(reply)
            jobs = zip(found[::2], found[1::2], strict=True)
            heard.taken += ((int(text[:NUMBER_DIGITS]), job) for job, text in jobs)
            heard.empty += asked_for - len(found) // 2
        return heard


@lru_cache(maxsize=4_096)
def put_script(job: bytes, text: bytes, delay_ms: int) -> bytes:
    """Return a call of the script that puts, with places for the number in id and body."""
    words = (b"2", DELAYED, BODIES, job, text, b"%d" % delay_ms)
    return template(b"EVALSHA", script_hash("put"), *words)


class Way(enum.Enum):
    """How Redis is used: its dialect, and the sets that hold jobs."""

    VANILLA = (Vanilla, (DELAYED,))
    TUNED = (Tuned, (DELAYED, TAKEN))


@dataclass(frozen=True, slots=True)
class RunningRedis:
    """One that serves."""

    port: int
    server: OwnServer
    directory: Path
    way: Way
    is_persistent: bool

    def dialect(self, body_bytes: int) -> Dialect:
        """Return the way of speaking of a new connection."""
        kind, _ = self.way.value
        made: Dialect = kind(body_bytes)
        return made

    def processes(self) -> Sequence[int]:
        """Return its process, and the one that writes its log anew."""
        return self.server.processes

    def standing(self) -> int:
        """Return how many jobs it has: delayed, due, and taken."""
        counts = [ask_redis(self.port, b"ZCARD", name) for name in self.way.value[1]]
        return sum(count for count in counts if isinstance(count, int))

    def log_bytes(self) -> int:
        """Return the bytes of its log, when it is not just being written anew."""
        while self._is_rewriting():
            time.sleep(REWRITE_POLL_S)
        return written_bytes_below(self.directory / "appendonlydir")

    def _is_rewriting(self) -> bool:
        about = ask_redis(self.port, b"INFO", b"persistence")
        return isinstance(about, bytes) and b"aof_rewrite_in_progress:1" in about

    def restart(self) -> float:
        """Kill it and start it on its log; return the seconds until it serves."""
        if not self.is_persistent:
            raise NotMeasuredError("it keeps nothing")
        return self.server.restart()


@dataclass(frozen=True, slots=True)
class RedisPeer:
    """A Redis with this persistence, used in this way."""

    policy: Durability
    way: Way
    delay_unit_ms: int = 1
    poll_pause_s: float = POLL_PAUSE_S

    @property
    def subject(self) -> str:
        """Its name."""
        return f"Redis, {self.way.name.lower()}"

    @property
    def settings(self) -> str:
        """Its command, and what is done in it."""
        used = {
            Way.VANILLA: "ZADD; ZRANGEBYSCORE and ZREM; a worker that dies loses its job",
            Way.TUNED: "EVALSHA of redis_put.lua, redis_take.lua, redis_acknowledge.lua",
        }
        flags = " ".join(PERSISTENCE[self.policy])
        polled = f"polled every {self.poll_pause_s * 1e3:g} ms"
        return f"redis-server --save '' {flags}; {used[self.way]}; {polled}"

    @contextlib.contextmanager
    def serve(self, bench: Bench, directory: Path) -> Iterator[RunningRedis]:
        """Run it."""
        del bench
        command_words = [program("redis-server"), "--bind", HOST, "--dir", str(directory)]
        command_words += ["--save", "", *PERSISTENCE[self.policy]]
        with reserved_port() as port:
            command_words += ["--port", str(port)]
            with OwnServer(command_words, directory, lambda: is_ready(port)) as server:
                is_persistent = self.policy is not Durability.IN_MEMORY
                yield RunningRedis(port, server, directory, self.way, is_persistent)


def is_ready(port: int) -> bool:
    """Whether it answers, and has read its log."""
    try:
        return ask_redis(port, b"PING") == b"PONG"
    except UnexpectedReplyError:  # LOADING: it is reading
        return False


def peers() -> Sequence[RedisPeer]:
    """Return it under each policy, both ways."""
    return [RedisPeer(policy, way) for way in Way for policy in PERSISTENCE]
