"""A log in a real PostgreSQL, whose answers a test may lose.

rig = Rig(server)
rig.put(b"records")             # appended, and sent
rig.until(lambda: rig.settled == [1])
rig.lose_answer()               # the connection is cut when the answer has come
"""

import io
import select
from collections.abc import Callable
from typing import Final, Self

import psycopg

from delayd.log import SnapshotTaken
from delayd.log_lines import Log
from delayd.postgres.connection import Connection, Row
from delayd.postgres.errors import DatabaseLost
from delayd.postgres.place import DatabasePlace
from delayd.postgres.postgres_log import PostgresLog, open_log
from tests.postgres_server import PostgresServer
from tests.rigs.commit import CrankedLoop
from tests.rigs.log import User

LEASE_MS: Final = 1_500
WAIT_S: Final = 60.0
SEGMENT_BYTES: Final = 256 << 10


class Rig:
    """A log that this daemon owns, its user, and what its user was told."""

    def __init__(
        self, server: PostgresServer, name: str = "", lease_ms: int = LEASE_MS, url: str = ""
    ) -> None:
        self.server = server
        self.name = name = name or server.new_log()
        self.said = io.StringIO()
        self.loop = CrankedLoop()
        self.user = User()
        self.settled, self.failures = self.user.settled_to, self.user.failures
        self.log = opened(server, name, lease_ms, self.said, url=url or server.url)
        self.payloads = [frame.payload for frame in self.log.follow() if frame is not None]
        assert self.log.take_over()
        self.log.serve(self.loop, self.user)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.log.stop()
        self.log.close()

    # --- What a test does ------------------------------------------------------------------------

    def put(self, payload: bytes) -> int:
        sequence = self.log.append([payload], 1, 1)
        if not self.log.is_settling:
            self.log.settle(in_turn=True)
        return sequence

    def keep(self, *payloads: bytes) -> None:
        """Append each, and wait until it is durable before the next."""
        for payload in payloads:
            sequence = self.put(payload)
            self.until(lambda: self.settled[-1:] == [sequence])  # noqa: B023 - within the turn

    def snapshot(self, *behind: bytes) -> SnapshotTaken:
        """Take a snapshot, with these behind it in the log."""
        sink = self.log.begin_snapshot(5, 5)
        self.keep(*behind)
        sink.write(b"state")
        taken = sink.finish(7)
        self.log.end_snapshot()
        return taken

    def until(self, is_so: Callable[[], bool]) -> None:
        """Serve the log, its timers too, until it is so."""
        for _ in range(int(WAIT_S / 0.02)):
            if is_so():
                return
            select.select([self.log.fileno() or 0], [], [], 0.02)
            self.log.reap()
            self.loop.ring()
        raise AssertionError(self.said.getvalue())

    def lose_answer(self) -> None:
        """Have the connection cut when the next answer has come, before it is read."""
        connection = self.log._connection
        assert connection is not None
        self.log._connection = _Cut(connection)  # type: ignore[assignment]

    @property
    def backend(self) -> int:
        """The process of the server that carries appends out, as far as there is a connection."""
        connection = self.log._connection
        return 0 if connection is None else int(connection._server.backend_pid)

    def row(self, sql: str) -> tuple[object, ...]:
        with psycopg.connect(self.server.url, autocommit=True) as asked:
            found = asked.execute(sql.replace("LOG", self.name))
            return tuple(found.fetchone() or ()) if found.description else ()


class _Cut:
    """A connection whose next answer is lost."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> object:
        return getattr(self._connection, name)

    def pump(self) -> list[Row] | None:
        if self._connection.pump() is None:
            return None
        raise DatabaseLost("cut off by the test")


def opened(
    server: PostgresServer,
    name: str,
    lease_ms: int = LEASE_MS,
    said: io.StringIO | None = None,
    **more: str | frozenset[str],
) -> PostgresLog:
    """A log as a start opens it."""
    url = str(more.pop("url", server.url))
    place = DatabasePlace.of(url, name=name, lease_ms=lease_ms, address="127.0.0.1:1", **more)  # type: ignore[arg-type]
    return open_log(place, Log(said or io.StringIO(), int), segment_bytes=SEGMENT_BYTES)
