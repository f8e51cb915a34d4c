"""Findings of `delayd doctor` about a log in PostgreSQL; nothing is changed there.

The statements are those that a role with the least rights may run. What the server keeps from such
a role, such as the queries of other users, is left out.
"""

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Final

from delayd.cli.diagnosis import Finding, Severity, about, note, ok, warning, wrong
from delayd.clock import system_wall_ns
from delayd.journal.snapshot import SNAPSHOT_HEADER_BYTES, unpack_snapshot_header
from delayd.limits import DATABASE_ANSWER_MS
from delayd.log import LogError
from delayd.postgres.connection import Connection, whole
from delayd.postgres.errors import DatabaseLost, StatementFailed
from delayd.postgres.place import (
    LOSSES,
    DatabasePlace,
    rights_lacking,
    role_of,
    setting_of,
)
from delayd.postgres.rows import LogRow, shown_address
from delayd.postgres.statements import FORMAT, SNAPSHOT_TABLES, Statements
from delayd.recover import database_place
from delayd.text import visible

if TYPE_CHECKING:
    from delayd.config import Config

CLOCK_S_MAX: Final = 1.0
"""A larger difference between this machine's clock and the database's is worth a look."""
READER_S_MIN: Final = 10.0
"""Readers that hold tables of the log for so long are named."""
_US_PER_S: Final = 1_000_000
_SUBJECT: Final = "database"

_MAY_CREATE: Final = "SELECT has_database_privilege(current_database(), 'CREATE')::int::int8"
_BYTES: Final = (
    "SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::int8 FROM pg_catalog.pg_class"
    " WHERE relkind = 'r' AND relnamespace = to_regnamespace($1)"
)
_READERS: Final = (
    "SELECT DISTINCT s.pid::int8, coalesce(s.usename::text, ''), s.application_name,"
    " (extract(epoch FROM clock_timestamp() - s.xact_start) * 1000000)::int8"
    " FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_stat_activity s ON s.pid = l.pid"
    " JOIN pg_catalog.pg_class c ON c.oid = l.relation"
    " WHERE c.relnamespace = to_regnamespace($1) AND l.granted AND s.pid <> pg_backend_pid()"
    " AND s.xact_start IS NOT NULL"
)
_SHOWN_READERS: Final = 5

_NO_DAEMON: Final = b""

Findings = Iterator[Finding]


def database_findings(config: "Config") -> Findings:
    """Look at the database of the configuration, which names one."""
    try:
        place = database_place(config, address="")
        with closing(place.connected()) as connection:
            version = f"PostgreSQL {connection.version // 10_000}.{connection.version % 10_000}"
            yield ok(_SUBJECT, f"{place.shown}, {version}, accepts writes")
            yield from _server_findings(place, connection)
            yield from _log_findings(place, connection)
    except StatementFailed as error:
        yield wrong(_SUBJECT, str(error), "look into the log of the server")
    except ValueError as error:
        text = f"the server answers what delayd does not ask for: {error}"
        yield wrong(_SUBJECT, text, "see what postgres.url leads to")
    except DatabaseLost as error:
        advice = "see docs/two-machines.md; psql with the same url shows whether it is the network"
        yield wrong(_SUBJECT, str(error), advice)
    except LogError as error:
        yield wrong(_SUBJECT, str(error), "correct that, and look again; see docs/two-machines.md")


def _server_findings(place: DatabasePlace, connection: Connection) -> Findings:
    """Judge the settings of the server: whether what was acknowledged may be lost."""
    subject = "durability"
    for name, loss in LOSSES:
        if setting_of(connection, name) != "on":
            level = Severity.WARNING if name in place.accepted else Severity.WRONG
            yield Finding(level, subject, f"{name} is off: {loss}", f"switch {name} on")
    standbys = setting_of(connection, "synchronous_standby_names")
    if standbys:
        yield ok(subject, f"waits for synchronous standbys: {visible(standbys)}")
    else:
        text = "no synchronous standby: if the server's disk is lost, so are the jobs"
        yield note(subject, text, "set synchronous_standby_names")
    if connection.is_far and not connection.is_encrypted:
        text = "the connection is not encrypted"
        yield warning(_SUBJECT, text, "add sslmode=verify-full to postgres.url")
    before_ns = system_wall_ns()
    now_us = whole(_asked(connection, Statements(place.name).now)[0])
    ahead_s = (now_us * 1_000 - (before_ns + system_wall_ns()) // 2) / 1e9
    text = f"the database's is {abs(ahead_s):.3f} s {'ahead of' if ahead_s > 0 else 'behind'} ours"
    if abs(ahead_s) > CLOCK_S_MAX:
        advice = "delayd goes by the database's clock; synchronise both machines (chrony)"
        yield warning("clock", text, advice)
    else:
        yield ok("clock", text)


def _log_findings(place: DatabasePlace, connection: Connection) -> Findings:
    """Judge the tables: rights, owner, settings, size, and who reads them."""
    statements, subject = Statements(place.name), "log"
    role = role_of(connection)
    advice = f"run what `{place.schema_command(role)}` prints, as the owner of the database"
    if lacking := rights_lacking(connection, statements):
        yield wrong("rights", f"the role {role} lacks {', '.join(lacking)}", advice)
        return
    if not whole(_asked(connection, statements.has_tables)[0]):
        if whole(_asked(connection, _MAY_CREATE)[0]):
            yield ok(subject, f"the schema {place.name} is not there yet; a start makes it")
        else:
            yield wrong(subject, f"the role {role} may not make the tables of {place.name}", advice)
        return
    yield ok("rights", f"the role {role} has those that it needs")
    yield from _row_findings(place, connection, statements)


def _row_findings(place: DatabasePlace, connection: Connection, statements: Statements) -> Findings:
    try:
        row = LogRow.read(_asked(connection, statements.row))
    except ValueError as error:
        text = f"the row of {statements.schema}.log cannot be read: {error}"
        yield wrong("log", text, "restore a backup of the database")
        return
    if row.format != FORMAT:
        text = f"the tables are of format {row.format}; this delayd reads {FORMAT}"
        yield wrong("log", text, "use the version of delayd that wrote them")
        return
    left_s = (row.lease_us - row.now_us) / _US_PER_S
    owner = f"{row.address or 'a daemon'}, lease {left_s:.1f} s" if left_s > 0 else "none now"
    yield ok("owner", f"{owner}; epoch {row.epoch}, frame {row.head}")
    if left_s > 0 and (differing := place.differences(row.settings)):
        text = f"this configuration differs from the owner's in {', '.join(differing)}"
        advice = "give both machines the same file: after a takeover the standby's counts"
        yield warning("owner", text, advice)
    yield from _standby_findings(connection, statements)
    size = about(whole(_asked(connection, _BYTES, place.name)[0]))
    yield ok("size", f"{size}, {_snapshot_age(connection, statements, row)}")
    if left_s > 0 and not whole(_asked(connection, statements.has_reserve)[0]):
        text = "the space kept for removals is gone: the database is full, or was a moment ago"
        yield wrong("space", text, "make space: puts are refused until it can be taken again")
    yield from _reader_findings(place, connection)


def _standby_findings(connection: Connection, statements: Statements) -> Findings:
    rows = connection.ask(statements.standbys, _NO_DAEMON, within_ms=DATABASE_ANSWER_MS)
    for address, lag_frames, lag_ms, _since_ms in rows:
        where = shown_address(address.decode(errors="replace"))
        text = f"{where}: {whole(lag_frames)} frames and {whole(lag_ms) / 1_000:.1f} s behind"
        yield ok("standby", text)
    if not rows:
        text = "there is none: while the owner is down, nothing is delivered"
        yield note("standby", text, "start delayd on another machine, too")


def _snapshot_age(connection: Connection, statements: Statements, row: LogRow) -> str:
    if not row.snapshot or row.snapshot_table not in range(SNAPSHOT_TABLES):
        return "no snapshot yet"
    parts = connection.stream(
        statements.parts(row.snapshot_table), row.snapshot, within_ms=DATABASE_ANSWER_MS
    )
    first = next(parts, (b"",))[0]
    header = unpack_snapshot_header(bytes(first[:SNAPSHOT_HEADER_BYTES]))
    for _ in parts:
        pass  # the connection is used again
    if header is None:
        return f"the snapshot of frame {row.snapshot} is damaged: delayd journal check"
    age_s = row.now_us // _US_PER_S - header.wall_ms // 1_000
    return f"the newest snapshot is {age_s} s old, of frame {row.snapshot}"


def _reader_findings(place: DatabasePlace, connection: Connection) -> Findings:
    """Name the transactions that keep tables of the log from being emptied."""
    rows = connection.ask(_READERS, place.name, within_ms=DATABASE_ANSWER_MS)
    for pid, user, program, taken_us in rows[:_SHOWN_READERS]:
        taken_s = whole(taken_us) / _US_PER_S
        if taken_s < READER_S_MIN:
            continue
        named = visible(f"{user.decode(errors='replace')} {program.decode(errors='replace')}")
        text = f"process {whole(pid)} ({named.strip()}) has held its tables for {taken_s:.0f} s"
        advice = "the log grows until it ends: SELECT pg_terminate_backend(PID) ends it"
        yield warning("readers", text, advice)


def _asked(connection: Connection, sql: str, *values: str) -> tuple[bytes, ...]:
    """Return the one row of a statement. Raises DatabaseError."""
    rows = connection.ask(sql, *values, within_ms=DATABASE_ANSWER_MS)
    return rows[0] if rows else (b"",) * 13
