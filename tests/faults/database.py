"""A database with a synchronous standby, in memory and on virtual time, in place of PostgreSQL.

    daemon ─► connection ─► primary: one statement after the other ─► its log ─► standby ─► answer
                  └─ what may happen to a statement and to its answer is drawn from the seed

It knows the statements of a log by their names (`Named`), and what each does; their SQL is compared
with it in `tests/postgres/test_simulated_database.py`. A commit is seen by others when the standby
has it, as in PostgreSQL; after a crash of the primary all is seen that it has, and a failover keeps
what the standby has. The next commit is replicated after it. Frames and rows are real bytes.
"""

# ruff: noqa: ANN401 - values go to statements, and rows to logs, as they are

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple, Self

from delayd.postgres.connection import Prepared, Row, Value
from delayd.postgres.errors import DatabaseLost, StatementFailed
from delayd.postgres.rows import LogRow
from delayd.postgres.statements import FORMAT, FRAME_TABLES, SNAPSHOT_TABLES
from tests.faults.stage import Bell, Stage

SHOWN: Final = "postgresql://simulated/jobs"
NS_PER_MS: Final = 1_000_000
NS_PER_US: Final = 1_000
LEASE_MS: Final = 1_000
CONNECTED_NS: Final = 5 * NS_PER_MS
START_US: Final = 1_700_000_000_000_000

NO_SPACE: Final = "53100"
LOCKED: Final = "55P03"
CHANGING: Final = frozenset(
    (
        *("append", "renew", "take_over", "release", "begin_snapshot", "accept", "write_part"),
        *("empty_frames", "empty_snapshot"),
    )
)
"""Statements that commit something."""


class Named(str):
    """A statement: its name is its text."""

    __slots__ = ("what",)
    what: tuple[Any, ...]

    def __new__(cls, name: str, *what: Any) -> Self:
        """`what` stands in the text of the real one."""
        named = super().__new__(cls, name)
        named.what = what
        return named


def prepared(name: str, *what: Any) -> Prepared:
    return Prepared(name, Named(name, *what), ())


class NamedStatements:
    """The double of `Statements`."""

    def __init__(self, name: str) -> None:
        self.schema = name
        self.row = Named("row")
        self.look = Prepared("look", self.row, ())
        self.renew = prepared("renew")
        self.appends = [prepared("append", number) for number in range(FRAME_TABLES)]
        for each in (
            *("take_over", "release", "begin_snapshot", "accept", "hold", "frames", "ends"),
            *("announce", "withdraw"),
        ):
            setattr(self, each, Named(each))

    def parts(self, number: int) -> str:
        return Named("parts", number)

    def write_part(self, number: int) -> str:
        return Named("write_part", number)

    def empty_snapshot(self, number: int, epoch: int, owner: bytes, this_round: int) -> str:
        return Named("empty_snapshot", number, epoch, owner, this_round)

    def empty_frames(self, number: int, epoch: int, owner: bytes, covered: int) -> str:
        return Named("empty_frames", number, epoch, owner, covered)


# --- What is stored ------------------------------------------------------------------------------

Change = Callable[["Store"], object]


class Store:
    """The tables of a log."""

    def __init__(self, identity: bytes) -> None:
        self.row = LogRow(FORMAT, identity, 0, b"", "", "", *[0] * 8)
        self.frames: list[dict[int, tuple[int, bytes]]] = [{} for _ in range(FRAME_TABLES)]
        self.parts: list[dict[int, tuple[int, bytes]]] = [{} for _ in range(SNAPSHOT_TABLES)]

    def set_row(self, **fields: Any) -> None:
        self.row = self.row._replace(**fields)

    def add_frame(self, table: int, sequence: int, epoch: int, payload: bytes) -> None:
        self.frames[table][sequence] = epoch, payload

    def copied(self) -> "Store":
        """What is there now."""
        copy = Store(b"")
        copy.row = self.row
        copy.frames = [dict(table) for table in self.frames]
        copy.parts = [dict(table) for table in self.parts]
        return copy


class Rules:
    """What each statement does to a store; planted faults leave something out."""

    compares_owner = True
    compares_head = True
    raises_epoch = True
    compares_round = True

    def run(self, store: Store, now_us: int, sql: str, values: tuple[Value, ...]) -> "Outcome":
        """Return what it changes, and its rows. Raises StatementFailed."""
        assert isinstance(sql, Named), f"{sql} is no statement of a log"
        outcome: Outcome = getattr(self, f"_{sql}")(store, now_us, *sql.what, *values)
        return outcome

    def _announce(self, *_: object) -> "Outcome":
        """Nothing depends on what standbys tell of themselves."""
        return Outcome([], [])

    _withdraw = _announce

    def _is_mine(self, store: Store, epoch: int, owner: bytes) -> bool:
        return not self.compares_owner or (store.row.epoch, store.row.owner) == (epoch, owner)

    def _is_this(self, store: Store, this_round: int) -> bool:
        return not self.compares_round or store.row.snapshot_round == this_round

    def _take_over(self, store: Store, now_us: int, *values: Any) -> "Outcome":
        epoch, owner, lease_ms, head, lease_us, address = values
        row = store.row
        is_free = row.lease_us <= now_us or row.lease_us == lease_us
        if (row.epoch, row.head) != (epoch, head) or not is_free:
            return NOTHING
        fields = {"epoch": epoch + self.raises_epoch, "owner": owner, "address": address}
        fields |= {"lease_ms": lease_ms, "lease_us": now_us + lease_ms * 1_000}
        return Outcome([partial(Store.set_row, **fields)], [(fields["epoch"], now_us)])

    def _append(self, store: Store, now_us: int, table: int, *values: Any) -> "Outcome":
        epoch, owner, lease_ms, head, last, checksum, data = values
        is_next = store.row.head == head or not self.compares_head
        if not is_next or not self._is_mine(store, epoch, owner):
            return NOTHING
        lease_us = now_us + lease_ms * 1_000
        row = partial(Store.set_row, head=last, checksum=checksum, lease_us=lease_us)
        frame = partial(Store.add_frame, table=table, sequence=last, epoch=epoch, payload=data)
        return Outcome([row, frame], [(now_us,)])

    def _renew(
        self, store: Store, now_us: int, epoch: int, owner: bytes, lease_ms: int
    ) -> "Outcome":
        if not self._is_mine(store, epoch, owner):
            return NOTHING
        change = partial(Store.set_row, lease_us=now_us + lease_ms * 1_000)
        return Outcome([change], [(now_us,)])

    def _release(self, store: Store, _now_us: int, epoch: int, owner: bytes) -> "Outcome":
        if not self._is_mine(store, epoch, owner):
            return NOTHING
        return Outcome([partial(Store.set_row, lease_us=0)], [])

    def _begin_snapshot(self, store: Store, _now_us: int, epoch: int, owner: bytes) -> "Outcome":
        if not self._is_mine(store, epoch, owner):
            return NOTHING
        this_round = store.row.snapshot_round + SNAPSHOT_TABLES
        return Outcome([partial(Store.set_row, snapshot_round=this_round)], [(this_round,)])

    def _accept(self, store: Store, _now_us: int, *values: Any) -> "Outcome":
        epoch, owner, this_round, sequence, stored_bytes = values
        is_mine = self._is_mine(store, epoch, owner) and self._is_this(store, this_round)
        if not is_mine or store.row.head < sequence:
            return NOTHING
        where = {"snapshot": sequence, "snapshot_round": this_round + 1}
        where["snapshot_bytes"] = stored_bytes
        return Outcome([partial(Store.set_row, **where)], [(store.row.head,)])

    def _write_part(self, store: Store, _now_us: int, table: int, *values: Any) -> "Outcome":
        epoch, owner, this_round, part, sequence, payload = values
        if not self._is_mine(store, epoch, owner) or not self._is_this(store, this_round):
            return NOTHING
        if part in store.parts[table]:
            raise StatementFailed(SHOWN, "23505", "there is such a part")
        return Outcome([lambda to: to.parts[table].update({part: (sequence, payload)})], [(part,)])

    def _empty_frames(
        self, store: Store, _now_us: int, table: int, epoch: int, owner: bytes, covered: int
    ) -> "Outcome":
        self._require_mine(store, epoch, owner)
        if max(store.frames[table], default=0) > covered:
            return NOTHING
        return Outcome([lambda to: to.frames[table].clear()], [])

    def _empty_snapshot(
        self,
        store: Store,
        _now_us: int,
        table: int,
        epoch: int,
        owner: bytes,
        this_round: int,
    ) -> "Outcome":
        self._require_mine(store, epoch, owner)
        if not self._is_this(store, this_round):
            raise StatementFailed(SHOWN, "P0001", "another snapshot was begun")
        return Outcome([lambda to: to.parts[table].clear()], [])

    def _require_mine(self, store: Store, epoch: int, owner: bytes) -> None:
        if not self._is_mine(store, epoch, owner):
            raise StatementFailed(SHOWN, "P0001", "another daemon owns the log")

    # --- Reading ---------------------------------------------------------------------------------

    def _row(self, store: Store, now_us: int) -> "Outcome":
        row = store.row._replace(now_us=now_us)
        return Outcome([], [(*row[:5], *row[6:])])  # settings come with the address

    def _frames(self, store: Store, _now_us: int, first: int, last: int) -> "Outcome":
        rows = [
            (sequence, *stored)
            for table in store.frames
            for sequence, stored in table.items()
            if first < sequence <= last
        ]
        return Outcome([], sorted(rows))

    def _ends(self, store: Store, _now_us: int) -> "Outcome":
        return Outcome([], [tuple(max(table, default=0) for table in store.frames)])

    def _parts(self, store: Store, _now_us: int, table: int, sequence: int) -> "Outcome":
        parts = sorted(store.parts[table].items())
        return Outcome([], [(payload,) for _, (of, payload) in parts if of == sequence])


class Outcome(NamedTuple):
    """What a statement changes, and the rows that it returns."""

    changes: list[Change]
    rows: list[tuple[Any, ...]]


NOTHING: Final = Outcome([], [])


def packed(row: tuple[Any, ...]) -> Row:
    """Return a row as it is sent."""
    return tuple(
        value.to_bytes(8, "big", signed=True)
        if isinstance(value, int)
        else value.encode()
        if isinstance(value, str)
        else value
        for value in row
    )


# --- What happens to statements ------------------------------------------------------------------


class Fate(NamedTuple):
    """What becomes of a statement and of its answer; times in ns."""

    travels_ns: int = NS_PER_MS // 2
    arrives: bool = True
    returns_ns: int | None = NS_PER_MS // 2
    """None: no answer comes."""
    lost_ns: int | None = None
    """When the connection is lost, from when it was sent; None: it is not."""
    refused: str = ""
    """The SQLSTATE with which it is refused."""
    is_cut_off: bool = False
    """The wait for the standby is ended: there is an answer, with a warning."""
    replicated_ns: int = 0
    """How much longer the standby takes than otherwise."""


USUAL: Final = Fate()


class Job(NamedTuple):
    """A statement that is being carried out."""

    connection: "SimulatedConnection"
    sql: str
    values: tuple[Value, ...]
    fate: Fate


class Database:
    """Primary and standby."""

    def __init__(self, stage: Stage, fates: Any, rules: Rules, identity: bytes) -> None:
        """`fates` draws what becomes of each statement, and how long the standby takes."""
        self.stage = stage
        self.fates = fates
        self.rules = rules
        self.store = Store(identity)
        """What others see."""
        self._first = self.store.copied()
        self.wal: list[list[Change]] = []
        """All commits of the primary, in order."""
        self.seen = self.replicated = 0
        """How many of them others see, and the standby has."""
        self.generation = 0
        """Connections to the primary of before are lost."""
        self.is_up = True
        self.is_full = False
        self.set_us = 0
        """By how much its clock was set."""
        self.granted_ns: dict[bytes, int] = {}
        """Until when each owner may rely on its lease at most."""
        self.connections: list[SimulatedConnection] = []
        self._waiting: deque[Job] = deque()
        self._committing: Job | None = None

    def now_us(self) -> int:
        """Read its clock."""
        return START_US + self.set_us + self.stage.now_ns // NS_PER_US

    # --- Statements ------------------------------------------------------------------------------

    def arrive(self, job: Job, generation: int) -> None:
        """Take a statement that was sent; its connection may be closed by now."""
        if generation != self.generation or not self.is_up:
            return
        if job.fate.refused or (self.is_full and job.sql in {"append", "write_part"}):
            self._answer(job, StatementFailed(SHOWN, job.fate.refused or NO_SPACE, "not now"))
        elif job.sql in CHANGING:
            self._waiting.append(job)
            self._commit_next()
        else:
            self._read(job)

    def _read(self, job: Job) -> None:
        connection, sql = job.connection, job.sql
        if sql == "hold":
            connection.held = self.store.copied()
        if sql == "COMMIT":
            connection.held = None
        if not isinstance(sql, Named) or sql == "hold":
            self._answer(job, [])
            return
        store = connection.held or self.store
        self._answer(job, self.rules.run(store, self.now_us(), sql, job.values).rows)

    def _commit_next(self) -> None:
        """Carry out the next statement that changes something, when the one before has ended."""
        while self._waiting and self._committing is None:
            job = self._waiting.popleft()
            if job.sql.startswith("empty") and any(each.held for each in self.connections):
                self._answer(job, StatementFailed(SHOWN, LOCKED, "a reader holds the table"))
                continue
            try:
                outcome = self.rules.run(self.store, self.now_us(), job.sql, job.values)
            except StatementFailed as error:
                self._answer(job, error)
                continue
            if not outcome.changes:
                self._answer(job, outcome.rows)
                continue
            self.wal.append(outcome.changes)
            if job.sql in {"take_over", "renew", "append"}:
                self.granted_ns[job.values[1]] = self.stage.now_ns + LEASE_MS * NS_PER_MS  # type: ignore[index]
            self._committing = job
            ended = partial(self._ended, len(self.wal), self.generation, outcome.rows)
            if job.fate.is_cut_off:
                self.stage.after(NS_PER_MS, partial(ended, is_replicated=False))
            has = partial(self._has, len(self.wal), self.generation)
            took_ns = self.fates.replicated_ns() + job.fate.replicated_ns
            self.stage.after(took_ns, has)
            self.stage.after(took_ns, ended)

    def _has(self, commits: int, generation: int) -> None:
        """The standby has so many."""
        if generation == self.generation:
            self.replicated = max(self.replicated, commits)

    def _ended(
        self,
        commits: int,
        generation: int,
        rows: list[tuple[Any, ...]],
        *,
        is_replicated: bool = True,
    ) -> None:
        job = self._committing
        if generation != self.generation or self.seen >= commits or job is None:
            return
        self._committing = None
        self._show(commits)
        job.connection.was_warned = not is_replicated
        self._answer(job, rows)
        self._commit_next()

    def _show(self, commits: int) -> None:
        for changes in self.wal[self.seen : commits]:
            for change in changes:
                change(self.store)
        self.seen = commits

    def _answer(self, job: Job, answer: list[tuple[Any, ...]] | StatementFailed) -> None:
        if job.fate.returns_ns is None:
            return
        said = answer if isinstance(answer, StatementFailed) else [*map(packed, answer)]
        self.stage.after(job.fate.returns_ns, partial(job.connection.receive, said))

    # --- What befalls it -------------------------------------------------------------------------

    def crash(self, down_ns: int) -> None:
        """The primary crashes and starts again: what it has is seen, the standby has it later."""
        self._lose_connections(down_ns)
        self._show(len(self.wal))
        commits, generation = len(self.wal), self.generation
        self.stage.after(
            down_ns + self.fates.replicated_ns(), lambda: self._has(commits, generation)
        )

    def fail_over(self, down_ns: int, *, keeps: bool, set_us: int) -> None:
        """The standby is the primary; it has what it has, or got the last commits still."""
        self._lose_connections(down_ns)
        if not keeps:
            del self.wal[self.replicated :]
            self.store, self.seen = self._first.copied(), 0
        self._show(len(self.wal))
        self.replicated = len(self.wal)
        self.set_us += set_us

    def _lose_connections(self, down_ns: int) -> None:
        self.generation += 1
        self._committing = None
        self._waiting.clear()
        self.is_up = False
        for connection in list(self.connections):
            connection.lose("the server has gone")
        self.stage.after(down_ns, self._come_up)

    def _come_up(self) -> None:
        self.is_up = True

    def all_frames(self) -> Iterator[tuple[int, bytes]]:
        """Yield all frames that were appended and are seen, with their epochs, in order."""
        for changes in self.wal[: self.seen]:
            for change in changes:
                if getattr(change, "func", None) is Store.add_frame:
                    what = change.keywords  # type: ignore[attr-defined]
                    yield what["epoch"], what["payload"]


class SimulatedConnection:
    """The double of `Connection`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._stage = database.stage
        self._process = database.stage.process
        self._bell = Bell(database.stage)
        self._generation = database.generation
        self._answer: list[Row] | StatementFailed | None = None
        self._lost = ""
        self.is_closed = False
        self.was_warned = False
        self.held: Store | None = None
        self._descriptor = next(self._stage.numbers)
        database.connections.append(self)

    def fileno(self) -> int:
        return self._descriptor

    def begin(self, statement: Prepared, *values: Value) -> bool:
        self._send(statement.sql, values)
        return False

    def flush(self) -> bool:
        return False

    def pump(self) -> list[Row] | None:
        answer, self._answer = self._answer, None
        if isinstance(answer, StatementFailed):
            raise answer
        if answer is None and self._lost:
            raise DatabaseLost(self._lost)
        return answer

    def prepare(self, statement: Prepared, within_ms: int) -> None:
        """It knows all of them."""

    def run(self, sql: str, within_ms: int) -> None:
        self.ask(sql, within_ms=within_ms)

    def ask(self, sql: str, *values: Value, within_ms: int) -> list[Row]:
        self._send(sql, values)
        until_ns = self._stage.now_ns + within_ms * NS_PER_MS
        while (answer := self.pump()) is None:
            left_ns = until_ns - self._stage.now_ns
            if left_ns <= 0:
                self.close()
                raise DatabaseLost(f"{SHOWN} did not answer within {within_ms} ms")
            self._bell.wait(left_ns)
        return answer

    def stream(self, sql: str, *values: Value, within_ms: int) -> Iterator[Row]:
        yield from self.ask(sql, *values, within_ms=within_ms)

    def _send(self, sql: str, values: tuple[Value, ...]) -> None:
        if self._lost or self.is_closed:
            raise DatabaseLost(self._lost or "closed")
        self.was_warned = False
        database = self._database
        job = Job(self, sql, values, database.fates.fate(sql))
        fate = job.fate
        if fate.arrives:
            self._stage.after(fate.travels_ns, partial(database.arrive, job, self._generation))
        if fate.lost_ns is not None:
            self._stage.after(fate.lost_ns, partial(self.lose, "cut off by the simulation"))

    def receive(self, answer: list[Row] | StatementFailed) -> None:
        """An answer has come."""
        if not self.is_closed and not self._lost:
            self._answer = answer
            self._wake()

    def lose(self, why: str) -> None:
        """The connection is lost; the server holds nothing for it any more."""
        if not self._lost:
            self._lost = why
            self._let_go()
            self._wake()

    def _wake(self) -> None:
        self._stage.ready(self._descriptor, self._process)
        self._bell.ring()

    def close(self) -> None:
        self.is_closed = True
        self._let_go()

    def _let_go(self) -> None:
        self.held = None
        if self in self._database.connections:
            self._database.connections.remove(self)


class SimulatedPlace:
    """The double of `DatabasePlace`."""

    name = "delayd"
    shown = SHOWN
    lease_ms = LEASE_MS

    def __init__(self, database: Database, address: str) -> None:
        self._database = database
        self.address = address

    def connected(self) -> SimulatedConnection:
        """Connect; it takes a moment. Raises DatabaseLost."""
        database = self._database
        database.stage.sleep(CONNECTED_NS)
        if not database.is_up:
            raise DatabaseLost(f"{SHOWN} cannot be reached")
        return SimulatedConnection(database)

    @property
    def claim(self) -> str:
        """What the row says of the owner."""
        return self.address

    def prepare(self, *_what: object) -> list[object]:
        """There are tables, with good settings, and those of all daemons are the same."""
        return []

    differences = losses = findings = prepare
