"""PostgreSQL with a table of jobs and SKIP LOCKED: *vanilla*, and *tuned*.

The statements are those of postgres.sql. Vanilla is the server as it is installed (with room for
500 connections), and statements as text, which it parses each time. Tuned has what guides advise:
memory, a log that is compressed and rarely checkpointed, commits that wait a moment for others, an
eager vacuum, statements that are prepared.

With `synchronous_commit` off a commit is answered at once, and on disk three times
`wal_writer_delay` later at most: 0.6 s. One server serves a chapter; each reading has a new table.

What is fair, and what is not possible:

- A worker asks for one job at a time, and asks again after a pause if there is none
  (`POLL_PAUSE_S`): nothing wakes it when a job comes due.
- Nothing takes a job back from a worker that died; that is another statement, which is not
  measured.
- The memory of the server is that of its buffers: it is not more for more jobs. Its log is reused
  after a checkpoint; `log_bytes` is what was written to it, without the table.
"""

import functools
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.processes import descendants
from benchmarks.registry import Bench, Durability, NotMeasuredError
from benchmarks.servers.peer import NUMBER_DIGITS, filler
from benchmarks.servers.postgres_wire import PostgresDialect, start_up, with_values
from tests.postgres_server import USER, PostgresServer, programs
from tests.servers import free_port

POLL_PAUSE_S: Final = 0.01
FILL_ROWS: Final = 100_000
SQL: Final = Path(__file__).with_suffix(".sql")
VANILLA: Final = (
    "max_connections=520",
    # As the server has them by itself; the tests' own are others.
    *("shared_buffers=128MB", "autovacuum=on", "wal_keep_size=0"),
)
TUNED: Final = (
    *("max_connections=520", "shared_buffers=1GB", "autovacuum=on", "wal_keep_size=0"),
    *("max_wal_size=8GB", "checkpoint_timeout=15min", "wal_compression=lz4", "wal_buffers=16MB"),
    *("commit_delay=100", "commit_siblings=5", "autovacuum_naptime=1s", "jit=off"),
    *("random_page_cost=1.1", "plan_cache_mode=force_generic_plan"),
)


def statements(text: str) -> dict[str, str]:
    r"""Return the statements of a file by name.

    >>> statements("-- Jobs.\n\n-- put: $1 the body\nINSERT …;\n\n-- take: nothing\nUPDATE …;\n")
    {'put': 'INSERT …;', 'take': 'UPDATE …;'}
    """
    found: dict[str, str] = {}
    for part in text.split("\n-- ")[1:]:
        head, _, sql = part.partition("\n")
        name, colon, _ = head.partition(": ")
        if colon and " " not in name:
            found[name] = sql.strip()
    return found


def enterable(directory: Path) -> Path:
    """Return this directory, or the first of the usual ones that any user may enter."""
    directory.chmod(0o711)
    for place in (directory, Path("/var/tmp"), Path("/tmp")):  # noqa: S108 - a folder in them
        if all(each.stat().st_mode & 0o001 for each in (place, *place.parents)):
            return place
    raise NotMeasuredError(f"the user {USER} cannot enter {directory}")


@contextmanager
def server(directory: Path, settings: Sequence[str]) -> Iterator[PostgresServer]:
    """Run a server with these settings, in a folder of its own."""
    home = tempfile.mkdtemp(prefix="postgres-", dir=enterable(directory))
    try:
        with free_port() as port:
            running = PostgresServer(Path(home), port, tuple(settings))
            try:
                yield running
            finally:
                running.stop()
    finally:
        shutil.rmtree(home)


@dataclass(frozen=True, slots=True)
class JobsTable:
    """A new table in the server of the chapter."""

    server: PostgresServer
    sql: Mapping[str, str]
    options: str
    is_tuned: bool

    @property
    def port(self) -> int:
        """Where the server listens."""
        return self.server.port

    def create(self) -> None:
        """Make it anew, and have all that was written before on disk."""
        tuning = [self.sql["tuned"]] if self.is_tuned else []
        table = [self.sql["table"], *tuning]
        self.server.ask("DROP TABLE IF EXISTS jobs", *table, "CHECKPOINT")

    def dialect(self, body_bytes: int) -> PostgresDialect:
        """Return the way of speaking of a new connection."""
        start = start_up(USER, self.options)
        return PostgresDialect(body_bytes, self.sql, start, is_prepared=self.is_tuned)

    def processes(self) -> Sequence[int]:
        """Return the server, and a process for each connection and for its own work."""
        pid = self.server.server.process.pid
        return (pid, *descendants(pid))

    def standing(self) -> int:
        """Return how many jobs there are."""
        return int(self.server.ask("SELECT count(*) FROM jobs"))

    def log_bytes(self) -> int:
        """Return how much was written to its log."""
        return int(self.server.ask("SELECT pg_current_wal_insert_lsn() - '0/0'"))

    def fill_by_itself(self, first: int, count: int, delay_ms: int, body_bytes: int) -> None:
        """Insert them in transactions of `FILL_ROWS` each, without a client for each job."""
        letters = f"'{filler(body_bytes - NUMBER_DIGITS).decode()}'"
        for begin in range(first, first + count, FILL_ROWS):
            end = min(begin + FILL_ROWS, first + count) - 1
            values = (str(delay_ms), letters, str(begin), str(end))
            self.server.ask(with_values(self.sql["fill"], *values))

    def restart(self) -> float:
        """Kill all its processes and start it; return the seconds until it serves."""
        self.server.kill()
        began = time.perf_counter()
        self.server.start()
        self.server.ask("SELECT FROM jobs LIMIT 1")
        return time.perf_counter() - began


@dataclass(frozen=True, slots=True)
class PostgresPeer:
    """PostgreSQL, vanilla or tuned, with commits that are on disk or soon will be."""

    is_tuned: bool
    policy: Durability
    delay_unit_ms: int = 1
    poll_pause_s: float = POLL_PAUSE_S

    @property
    def subject(self) -> str:
        """Its name."""
        return f"PostgreSQL, SKIP LOCKED, {'tuned' if self.is_tuned else 'vanilla'}"

    @property
    def settings(self) -> str:
        """What decides the figures."""
        words = " ".join((*self.server_settings, self.commit))
        return f"postgres.sql, {'prepared' if self.is_tuned else 'as text'}; {words}"

    @property
    def server_settings(self) -> Sequence[str]:
        """What the server is started with."""
        return TUNED if self.is_tuned else VANILLA

    @property
    def commit(self) -> str:
        """The setting of each connection."""
        is_synchronous = self.policy is Durability.BEFORE_ANSWER
        return f"synchronous_commit={'on' if is_synchronous else 'off'}"

    @contextmanager
    def serve(self, bench: Bench, directory: Path) -> Iterator[JobsTable]:
        """Give a new table in the server of the chapter, which is started for the first."""
        del directory  # the server is that of other readings too
        if programs() is None:
            raise NotMeasuredError("PostgreSQL is not installed")
        make = functools.partial(server, bench.directory, self.server_settings)
        running = bench.kept("postgres tuned" if self.is_tuned else "postgres", make)
        sql = statements(SQL.read_text(encoding="utf-8"))
        table = JobsTable(running, sql, f"-c {self.commit}", self.is_tuned)
        table.create()
        yield table


def peers() -> Sequence[PostgresPeer]:
    """Return it as it is installed and tuned; commits wait for the disk, or do not."""
    policies = (Durability.BEFORE_ANSWER, Durability.WITHIN_1_S)
    return [PostgresPeer(is_tuned, policy) for is_tuned in (False, True) for policy in policies]
