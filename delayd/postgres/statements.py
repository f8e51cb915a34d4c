"""The tables and the statements of a log in PostgreSQL; docs/two-machines.md describes them.

A log has a schema of its own, which is its name. The row in `log` says who owns it, and how far it
goes. It is changed in place (nothing of it is indexed, half of each page is free), so that it does
not grow. Frames are appended to one of three tables in turn; when two snapshots cover all that is
in one, it is emptied as a whole, and nothing has to be vacuumed. Snapshots take turns in two
tables: the last bit of `snapshot_round` says in which the newest is, the rest counts those that
were begun. Daemons that follow the log tell of themselves in `standby` (see `standbys.py`).

Whatever changes anything compares epoch and owner in the statement that does: no pause between a
look and a change can matter. An epoch alone would not do: a failover that loses a takeover may give
the same number to two daemons. Statements of a snapshot compare the round as well: one whose
connection was lost may be carried out when the next snapshot has been begun.
"""

from typing import Final, final

from delayd.limits import DATABASE_STANDBY_GONE_MS, DATABASE_STANDBYS_MAX
from delayd.postgres.connection import Prepared

FORMAT: Final = 2
"""2: with the table `standby`."""
FRAME_TABLES: Final = 3
SNAPSHOT_TABLES: Final = 2

SESSION: Final = """
SET synchronous_commit = on; SET default_transaction_isolation = 'read committed';
SET default_transaction_read_only = off; SET statement_timeout = 0; SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0; SET idle_session_timeout = 0; SET search_path = '';
SET client_encoding = 'UTF8'; SET jit = off; SET enable_sort = off;
DO $$ BEGIN PERFORM set_config(name, 'lz4', false) FROM pg_catalog.pg_settings
WHERE name = 'default_toast_compression' AND 'lz4' = ANY (enumvals); END $$
"""
SETTING: Final = "SELECT current_setting($1)"

_NOW: Final = "clock_timestamp()"
_MINE: Final = "epoch = $1 AND owner = $2"
_THIS: Final = f"{_MINE} AND snapshot_round = $3"
_LEASE: Final = f"lease_until = {_NOW} + $3 * interval '1 millisecond'"


def _us(moment: str) -> str:
    return f"(extract(epoch FROM {moment}) * 1000000)::int8"


def _mine(epoch: int, owner: bytes) -> str:
    """Return `_MINE` for a statement that has no values."""
    return f"epoch = {epoch} AND owner = '\\x{owner.hex()}'"


@final
class Statements:
    """The SQL of the log with this name, which holds no quotes."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.schema = schema = f'"{name}"'
        self._log = log = f"{schema}.log"
        self._frames = [f"{schema}.frame_{number}" for number in range(FRAME_TABLES)]
        self._snapshots = [f"{schema}.snapshot_{number}" for number in range(SNAPSHOT_TABLES)]
        self._reserve = f"{schema}.reserve"
        self._standby = f"{schema}.standby"
        self.row = (
            "SELECT format, identity, epoch, owner, address, head, checksum, snapshot,"
            f" snapshot_round, snapshot_bytes, lease_ms, {_us('lease_until')}, {_us(_NOW)}"
            f" FROM {log}"
        )
        self.look = Prepared("look", self.row, ())
        self.renew = Prepared(
            "renew",
            f"UPDATE {log} SET {_LEASE} WHERE {_MINE} RETURNING {_us(_NOW)}",
            (int, bytes, int),
        )
        self.appends = [
            Prepared(
                f"append_{number}",
                f"WITH mine AS (UPDATE {log} SET head = $5, checksum = $6, {_LEASE}"
                f" WHERE {_MINE} AND head = $4 RETURNING epoch)"
                f" INSERT INTO {table} (sequence, epoch, payload)"
                f" SELECT $5, epoch, $7 FROM mine RETURNING {_us(_NOW)}",
                (int, bytes, int, int, int, int, bytes),
            )
            for number, table in enumerate(self._frames)
        ]
        # FOR UPDATE waits for the last statements of the owner before that change tables beside
        # the row, which hold it FOR KEY SHARE; an append does not wait for those.
        self.take_over = (
            f"WITH free AS MATERIALIZED (SELECT epoch FROM {log} WHERE epoch = $1 AND head = $4"
            f" AND (lease_until <= {_NOW} OR {_us('lease_until')} = $5) FOR UPDATE)"
            f" UPDATE {log} SET epoch = log.epoch + 1, owner = $2, address = $6, lease_ms = $3,"
            f" {_LEASE} FROM free WHERE log.epoch = free.epoch RETURNING log.epoch, {_us(_NOW)}"
        )
        self.release = f"UPDATE {log} SET lease_until = to_timestamp(0) WHERE {_MINE}"
        self.begin_snapshot = (
            f"UPDATE {log} SET snapshot_round = snapshot_round + {SNAPSHOT_TABLES}"
            f" WHERE {_MINE} RETURNING snapshot_round"
        )
        self.accept = (
            f"UPDATE {log} SET snapshot = $4, snapshot_round = $3 + 1, snapshot_bytes = $5"
            f" WHERE {_THIS} AND head >= $4 RETURNING head"
        )

    # --- Reading ---------------------------------------------------------------------------------

    @property
    def now(self) -> str:
        """Read the database's clock."""
        return f"SELECT {_us(_NOW)}"

    @property
    def epoch(self) -> str:
        """Read how often the log got another owner."""
        return f"SELECT epoch FROM {self._log}"

    @property
    def hold(self) -> str:
        """Begin to read what is there at one moment; no table is emptied meanwhile."""
        tables = ", ".join((self._log, *self._frames, *self._snapshots))
        return f"BEGIN ISOLATION LEVEL REPEATABLE READ; LOCK TABLE {tables} IN ACCESS SHARE MODE"

    @property
    def frames(self) -> str:
        """Read the frames after the first and up to the second number.

        Their bounds stand outside: within each part they would have the server sort all frames, in
        files for which a full disk has no space, and not merge what the indexes have in order.
        """
        fields = "SELECT sequence, epoch, payload FROM"
        each = " UNION ALL ".join(f"{fields} {table}" for table in self._frames)
        return f"{fields} ({each}) frame WHERE sequence > $1 AND sequence <= $2 ORDER BY sequence"

    @property
    def ends(self) -> str:
        """Read the number of the last frame in each table."""
        each = (f"coalesce((SELECT max(sequence) FROM {table}), 0)" for table in self._frames)
        return f"SELECT {', '.join(each)}"

    def parts(self, number: int) -> str:
        """Read the parts of the snapshot in that table."""
        return f"SELECT payload FROM {self._snapshots[number]} WHERE sequence = $1 ORDER BY part"

    # --- Standbys --------------------------------------------------------------------------------

    @property
    def announce(self) -> str:
        """Tell of a standby, and delete those that are gone."""
        fields = ("address", "frame", "lag_frames", "lag_ms", "seen")
        return (
            f"WITH gone AS (DELETE FROM {self._standby} WHERE id <> $1 AND {self._is_gone})"
            f" INSERT INTO {self._standby} (id, {', '.join(fields)})"
            f" SELECT $1, $2, $3, $4, $5, {_NOW} WHERE"
            f" (SELECT count(*) FROM {self._standby} WHERE id <> $1) < {DATABASE_STANDBYS_MAX}"
            " ON CONFLICT (id) DO UPDATE SET"
            f" {', '.join(f'{field} = excluded.{field}' for field in fields)}"
        )

    @property
    def withdraw(self) -> str:
        """Tell that a daemon stands by no more."""
        return f"DELETE FROM {self._standby} WHERE id = $1"

    @property
    def standbys(self) -> str:
        """Read of the daemons that stand by, but for this one."""
        since_ms = f"(extract(epoch FROM {_NOW} - seen) * 1000)::int8"
        return (
            f"SELECT address, lag_frames, lag_ms, {since_ms} FROM {self._standby}"
            f" WHERE id <> $1 AND NOT {self._is_gone}"
            f" ORDER BY address, id LIMIT {DATABASE_STANDBYS_MAX}"
        )

    @property
    def _is_gone(self) -> str:
        return f"(seen < {_NOW} - {DATABASE_STANDBY_GONE_MS} * interval '1 millisecond')"

    # --- Snapshots -------------------------------------------------------------------------------

    def write_part(self, number: int) -> str:
        """Write a part of a snapshot into that table."""
        return (
            f"INSERT INTO {self._snapshots[number]} (part, sequence, payload)"
            f" SELECT $4, $5, $6 FROM {self._log} WHERE {_THIS} FOR KEY SHARE RETURNING part"
        )

    def empty_snapshot(self, number: int, epoch: int, owner: bytes, this_round: int) -> str:
        """Empty the table for a snapshot, if it is still to be written; see `_empty`."""
        this = f"{_mine(epoch, owner)} AND snapshot_round = {this_round}"
        return self._empty(self._snapshots[number], this, "")

    def empty_frames(self, number: int, epoch: int, owner: bytes, covered: int) -> str:
        """Empty a table of frames, if none of them is past `covered`; see `_empty`."""
        last = f"(SELECT max(sequence) FROM {self._frames[number]})"
        guard = f" IF {last} > {covered} THEN RETURN; END IF;"
        return self._empty(self._frames[number], _mine(epoch, owner), guard)

    @property
    def has_reserve(self) -> str:
        """Tell whether the reserve is there."""
        return f"SELECT EXISTS (SELECT 1 FROM {self._reserve})::int::int8"

    @property
    def fill_reserve(self) -> str:
        """Write so many rows into the reserve."""
        return (
            f"WITH filled AS (INSERT INTO {self._reserve} (number) SELECT number"
            f" FROM {self._log}, generate_series(1, $3) AS number WHERE {_MINE}"
            f" FOR KEY SHARE OF log RETURNING 1) SELECT count(*) FROM filled"
        )

    def empty_reserve(self, epoch: int, owner: bytes) -> str:
        """Give the space of the reserve back; see `_empty`."""
        return self._empty(self._reserve, _mine(epoch, owner), "")

    def _empty(self, table: str, mine: str, guard: str) -> str:
        """Empty a table, if this daemon is the owner.

        One statement: a daemon that is paused in the middle holds no lock meanwhile. The table is
        locked first: nothing is written to it after what is compared.
        """
        return (
            f"DO $$ BEGIN LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE;"
            f" PERFORM 1 FROM {self._log} WHERE {mine} FOR KEY SHARE;"
            " IF NOT FOUND THEN RAISE EXCEPTION 'another daemon owns the log'; END IF;"
            f"{guard} TRUNCATE {table}; END $$"
        )

    # --- The tables ------------------------------------------------------------------------------

    @property
    def has_schema(self) -> str:
        """Tell whether there is one: made by somebody who may, for a role that may not."""
        return f"SELECT (to_regnamespace('{self.schema}') IS NOT NULL)::int::int8"

    @property
    def has_tables(self) -> str:
        """Tell whether the log was made."""
        return f"SELECT (to_regclass('{self._log}') IS NOT NULL)::int::int8"

    @property
    def was_made(self) -> str:
        """Tell the same, also of what another session made while this one waited for it.

        `to_regclass` may not know of that in a transaction; the catalogue read like any table does.
        """
        found = "FROM pg_catalog.pg_class JOIN pg_catalog.pg_namespace n ON n.oid = relnamespace"
        where = f"WHERE nspname = '{self._name}' AND relname = 'log'"
        return f"SELECT EXISTS (SELECT 1 {found} {where})::int::int8"

    @property
    def logged(self) -> str:
        """Count the tables that are there and survive a crash of the server."""
        return (
            "SELECT count(*) FROM pg_catalog.pg_class WHERE relkind = 'r'"
            f" AND relpersistence = 'p' AND relnamespace = '{self.schema}'::regnamespace"
            " AND relname ~ '^(log|frame_[0-9]|snapshot_[0-9]|reserve)$'"
        )

    @property
    def rights(self) -> list[tuple[str, tuple[str, ...]]]:
        """Each table with the rights that a daemon needs on it."""
        others = (*self._frames, *self._snapshots, self._reserve)
        of_others = ("SELECT", "INSERT", "TRUNCATE")
        return [
            (self._log, ("SELECT", "UPDATE")),
            *((table, of_others) for table in others),
            (self._standby, ("SELECT", "INSERT", "UPDATE", "DELETE")),
        ]

    @property
    def may_use(self) -> str:
        """Tell whether the role may look into the schema, or there is none."""
        schema = f"to_regnamespace('{self.schema}')"
        return f"SELECT coalesce(has_schema_privilege({schema}, 'USAGE'), true)::int::int8"

    @property
    def lacking(self) -> str:
        """Read which of those rights the role does not have on tables that are there."""
        needed = (f"('{right}', '{table}')" for table, of in self.rights for right in of)
        return (
            f"SELECT kind, name FROM (VALUES {', '.join(needed)}) AS needed (kind, name)"
            " WHERE NOT has_table_privilege(to_regclass(name), kind)"
        )

    @property
    def table_count(self) -> int:
        """How many tables a log has."""
        return 2 + FRAME_TABLES + SNAPSHOT_TABLES

    def schema_for(self, identity: bytes, role: str) -> str:
        """What somebody runs who may, so that this role needs the least rights.

        Tables that are there stay, and are not locked: a daemon may use them.
        """
        made = (
            "DO $$ BEGIN",
            f"IF to_regclass('{self._log}') IS NULL THEN",
            f"CREATE SCHEMA IF NOT EXISTS {self.schema};",
            *(f"{each};" for each in self.create(identity, 0).split("; ")),
            "END IF;",
            "END $$;",
        )
        grants = (
            f"GRANT USAGE ON SCHEMA {self.schema}",
            *(f"GRANT {', '.join(of)} ON {table}" for table, of in self.rights),
        )
        return "\n".join(("BEGIN;", *made, *(f'{each} TO "{role}";' for each in grants), "COMMIT;"))

    def create(self, identity: bytes, head: int) -> str:
        """Make the tables, with the row of a log that is nobody's, and whose last frame is that."""
        columns = (
            *("format int8", "identity bytea", "epoch int8", "owner bytea", "address text"),
            *("lease_until timestamptz", "lease_ms int8", "head int8", "checksum int8"),
            *("snapshot int8", "snapshot_round int8", "snapshot_bytes int8"),
        )
        fields = ", ".join(f"{column} NOT NULL" for column in columns)
        rest = "int8 NOT NULL, payload bytea NOT NULL)"
        nobody = "0, '', '', to_timestamp(0), 0"
        first = f"{FORMAT}, '\\x{identity.hex()}', {nobody}, {head}, 0, 0, 0, 0"
        standby = (
            "id bytea PRIMARY KEY, address text NOT NULL, frame int8 NOT NULL,"
            " lag_frames int8 NOT NULL, lag_ms int8 NOT NULL, seen timestamptz NOT NULL"
        )
        made = [
            f"CREATE TABLE {self._log} ({fields}) WITH (fillfactor = 50)",
            f"INSERT INTO {self._log} VALUES ({first})",
            f"CREATE TABLE {self._reserve} (number int8 NOT NULL) WITH (fillfactor = 10)",
            f"CREATE UNLOGGED TABLE {self._standby} ({standby}) WITH (fillfactor = 50)",
        ]
        made += [
            f"CREATE TABLE {table} (sequence int8 PRIMARY KEY, epoch {rest}"
            for table in self._frames
        ]
        made += [
            f"CREATE TABLE {table} (part int8 PRIMARY KEY, sequence {rest}"
            for table in self._snapshots
        ]
        # The server compresses longer frames, in their row; snapshots are compressed already.
        made += [
            f"ALTER TABLE {table} ALTER payload SET STORAGE {storage}"
            for tables, storage in ((self._frames, "MAIN"), (self._snapshots, "EXTERNAL"))
            for table in tables
        ]
        return "; ".join(made)
