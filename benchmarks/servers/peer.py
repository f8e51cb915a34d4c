r"""What a server has to offer to be measured: how it runs, and how its jobs are put and taken.

One generator drives all servers, so that none pays for a slower client. It owns the sockets and
decides what is sent; a `Dialect` turns that into bytes, and what arrives into counts:

    generator                      dialect                      server
    put jobs 7 and 8, in 1 s  -->  "put 0 1 600 100\r\n…" x 2 -->
                              <--  Heard(put=2)             <-- "INSERTED 7\r\nINSERTED 8\r\n"
    take one                  -->  "reserve\r\n"            -->
                              <--  Heard(taken=[(7, b"7")]) <-- "RESERVED 7 100\r\n…"
    acknowledge it            -->  "delete 7\r\n"           -->
                              <--  Heard(acknowledged=1)    <-- "DELETED\r\n"

A body begins with the number of its job, as `NUMBER_DIGITS` digits, by which the generator knows
what is lost, doubled or early.
"""

import random
import socket
import string
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from benchmarks.registry import Bench, Case, Durability, Values

NUMBER_DIGITS: Final = 10
LETTERS: Final = (string.ascii_letters + string.digits).encode()


@lru_cache(maxsize=16)
def filler(count: int) -> bytes:
    """Return so many letters, always the same: what stands behind the number in a body.

    They are random but for the first two, so that no server stores a body of repeated letters in a
    few bytes, as Redis does in its log and PostgreSQL in its table.

    >>> filler(4)[:2], len(filler(100))
    (b'xx', 100)
    """
    letters = random.Random(1).choices(LETTERS, k=count)
    return (b"xx" + bytes(letters))[:count]


@dataclass(slots=True)
class Heard:
    """What one piece of what a connection received says."""

    put: int = 0
    """Puts that were acknowledged."""
    taken: list[tuple[int, bytes]] = field(default_factory=list)
    """The number of each job that was handed out, and what acknowledges it."""
    acknowledged: int = 0
    empty: int = 0
    """Jobs that a `take` asked for and did not get: only of servers that are polled."""
    follow: bytes = b""
    """What has to be sent before there is an answer: the next step of a put or a take."""


class Dialect(Protocol):
    """One connection's way of speaking to a server; it keeps what is not whole yet itself."""

    @property
    def answers_acknowledgements(self) -> bool:
        """Whether it does; if not, a job counts as acknowledged when that is sent."""

    def greet(self, sock: socket.socket) -> None:
        """Log in and set up what puts and takes need; the socket blocks. May raise `OSError`."""

    def puts(self, first: int, count: int, delay_ms: int) -> bytes:
        """Return the requests that put jobs with the numbers from `first` on, all due together.

        A job must not be due earlier than `delay_ms` after this call: round up.
        """

    def keyed_puts(self, first: int, count: int, delay_ms: int) -> bytes:
        """Return the same, each under a key of its own, which a second put would meet.

        Raises `NotMeasuredError` if the server has no such thing.
        """

    def takes(self, count: int) -> bytes:
        """Return the requests for so many jobs; `hear` reports each as `taken` or as `empty`."""

    def acknowledgements(self, handles: Sequence[bytes]) -> bytes:
        """Return the requests that acknowledge these jobs."""

    def hear(self, data: bytes) -> Heard:
        """Return what arrived says; raise `UnexpectedReplyError` if it is an error."""


class Reached(Protocol):
    """A server to connect to."""

    @property
    def port(self) -> int:
        """Of the loopback interface."""

    def dialect(self, body_bytes: int) -> Dialect:
        """Return the way of speaking of a new connection that puts bodies of this length."""


class Loaded(Reached, Protocol):
    """A server that is measured under load."""

    def processes(self) -> Sequence[int]:
        """Return the ids of all processes of the server, of which resources are read."""


class Running(Loaded, Protocol):
    """A server that serves, with an empty queue."""

    def standing(self) -> int:
        """Return how many jobs it has, by its own count: waiting, due, and handed out."""

    def log_bytes(self) -> int:
        """Return the bytes of its log; 0 if it has none."""

    def restart(self) -> float:
        """End it with kill -9 and start it on what it wrote; return the seconds until it serves.

        Raises `NotMeasuredError` if it keeps nothing.
        """


@runtime_checkable
class Filling(Protocol):
    """A server that has its own way to get a million jobs, where puts would take too long."""

    def fill_by_itself(self, first: int, count: int, delay_ms: int, body_bytes: int) -> None:
        """Put jobs with the numbers from `first` on, all due together; they are acknowledged."""


class Peer(Protocol):
    """A server as it is set up."""

    @property
    def subject(self) -> str:
        """As it is called in the report: `Redis, Lua, tuned`."""

    @property
    def policy(self) -> Durability:
        """What an acknowledgement means."""

    @property
    def settings(self) -> str:
        """The command and the settings that decide the figures, for the report."""

    @property
    def delay_unit_ms(self) -> int:
        """Delays are whole multiples of it: 1,000 for beanstalkd."""

    @property
    def poll_pause_s(self) -> float:
        """How long a worker waits after an `empty` answer; 0 where the server lets it wait."""

    def serve(self, bench: Bench, directory: Path) -> AbstractContextManager[Running]:
        """Run it with an empty queue; raise `NotMeasuredError` if it is not installed.

        A server that takes long to start may be kept (`Bench.kept`) and given a new queue.
        """


def case_of(
    peer: Peer,
    chapter: str,
    operation: str,
    size: Mapping[str, int | str],
    measure: Callable[[Bench], Values],
    runs_max: int | None = None,
) -> Case:
    """Return a case of which this server is the subject."""
    return Case(
        *(chapter, operation, size, peer.subject, measure, peer.policy, peer.settings),
        runs_max=runs_max,
    )
