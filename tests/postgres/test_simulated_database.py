"""The simulated database of the fault tests does what PostgreSQL does with the same statements."""

import random
from typing import Final

from delayd.postgres.connection import Row, Value
from delayd.postgres.errors import StatementFailed
from delayd.postgres.rows import LogRow
from delayd.postgres.statements import FRAME_TABLES, SNAPSHOT_TABLES, Statements
from tests.faults.database import NamedStatements, Rules, Store, packed
from tests.postgres_server import PostgresServer
from tests.rigs.postgres import opened

STEPS: Final = 400
LONG_MS: Final = 3_600_000
WITHIN_MS: Final = 10_000


def _untimed(row: LogRow) -> LogRow:
    return row._replace(lease_us=0, now_us=0)


class Pair:
    """A log in both, and statements that are drawn for them."""

    def __init__(self, server: PostgresServer, name: str, rng: random.Random) -> None:
        log = opened(server, name)
        self.rng = rng
        self._connection = log._place.connected()
        self.store = Store(log.identity)
        log.close()
        self._real, self._named = Statements(name), NamedStatements(name)
        self._frames = 0

    def close(self) -> None:
        self._connection.close()

    def ask(self, which: str, *values: Value, what: tuple[int | bytes, ...] = ()) -> str:
        """Have both carry it out, and compare; return how it ended."""
        real, named = getattr(self._real, which), getattr(self._named, which)
        if what:
            real, named = real(*what), named(*what)
        try:
            outcome = Rules().run(self.store, 0, named, values)
            expected: list[Row] | None = [*map(packed, outcome.rows)]
            for change in outcome.changes:
                change(self.store)
        except StatementFailed:
            expected = None
        try:
            if which.startswith("empty"):
                self._connection.run(real, WITHIN_MS)
                found: list[Row] | None = []
            else:
                found = self._connection.ask(real, *values, within_ms=WITHIN_MS)
        except StatementFailed:
            found = None
        if which == "row":
            assert found is not None
            assert _untimed(LogRow.read(found[0])) == _untimed(self.store.row)
        elif which in {"frames", "ends", "parts", "begin_snapshot", "accept", "write_part"}:
            assert found == expected, (which, values, what)
        else:  # in its rows is the time
            assert (found is None) == (expected is None), (which, values, what)
            assert len(found or ()) == len(expected or ()), (which, values, what)
        return f"{which} {'refused' if found is None else 'none' if not found else 'some'}"

    def append(self, table: int, *values: Value) -> str:
        """Append; it is a prepared statement."""
        self._real.append = self._real.appends[table].sql  # type: ignore[attr-defined]
        self._named.append = self._named.appends[table].sql  # type: ignore[attr-defined]
        return self.ask("append", *values)

    def step(self) -> str:
        """Draw a statement: of the owner, or of a daemon that was fenced, or is behind."""
        rng, row = self.rng, self.store.row
        proof = (row.epoch - (rng.random() < 0.1), rng.choice([row.owner] * 9 + [b"other"]))
        number = row.snapshot_round - (rng.random() < 0.1) * SNAPSHOT_TABLES
        table, place = rng.randrange(FRAME_TABLES), rng.randrange(SNAPSHOT_TABLES)
        head = row.head - (rng.random() < 0.1)
        which = rng.choice((*["append"] * 4, "other", "take_over", "snapshot", "look"))
        if which == "append":
            frame = rng.randbytes(20)
            return self.append(table, *proof, LONG_MS, head, head + 1, rng.randrange(9), frame)
        if which == "take_over":
            lease_us = self._lease_us() - (rng.random() < 0.3)
            owner = rng.randbytes(4)
            return self.ask("take_over", proof[0], owner, LONG_MS, head, lease_us, "here")
        if which == "other":
            covered = rng.randrange(row.head + 1)
            return rng.choice(
                (
                    lambda: self.ask("renew_sql", *proof, LONG_MS),
                    lambda: self.ask("empty_frames", what=(table, *proof, covered)),
                    lambda: self.ask("empty_frames", what=(table, *proof, row.head)),
                )
            )()
        if which == "snapshot":
            this = (*proof, number)
            return rng.choice(
                (
                    lambda: self.ask("begin_snapshot", *proof),
                    lambda: self.ask("empty_snapshot", what=(place, *this)),
                    lambda: self.ask("accept", *this, rng.randrange(row.head + 2), 7),
                    lambda: self.ask(
                        "write_part", *this, rng.randrange(4), rng.randrange(9), b"x", what=(place,)
                    ),
                )
            )()
        return rng.choice(
            (
                lambda: self.ask("row"),
                lambda: self.ask("ends"),
                lambda: self.ask("frames", rng.randrange(row.head + 1), row.head),
                lambda: self.ask("parts", rng.randrange(9), what=(place,)),
            )
        )()

    def _lease_us(self) -> int:
        """The lease as both have it: it is set by different clocks."""
        rows = self._connection.ask(self._real.row, within_ms=WITHIN_MS)
        lease_us = LogRow.read(rows[0]).lease_us
        self.store.set_row(lease_us=lease_us)
        return lease_us


def test_statements_do_the_same_in_the_simulation_as_in_the_server(
    server: PostgresServer, rng: random.Random
) -> None:
    """T-H9: what is proven over the one is true of the other."""
    pair = Pair(server, server.new_log(), rng)
    pair._real.renew_sql = pair._real.renew.sql  # type: ignore[attr-defined]
    pair._named.renew_sql = pair._named.renew.sql  # type: ignore[attr-defined]
    ends = {pair.ask("take_over", 0, b"me", LONG_MS, 0, pair._lease_us(), "here")}
    ends |= {pair.step() for _ in range(STEPS)}
    assert pair.ask("row")
    pair.close()
    for which in ("append", "renew_sql", "take_over", "begin_snapshot", "accept", "write_part"):
        assert {f"{which} some", f"{which} none"} <= ends, ends
    assert {"empty_frames refused", "empty_snapshot refused", "write_part refused"} <= ends, ends
