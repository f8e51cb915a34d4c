"""Where the log is: the database, the name of the log in it, and what may be said of both.

    DatabasePlace.of("postgresql://delayd@db-1,db-2/jobs", "delayd", ...)

What the url does not say is left to libpq: PGPASSFILE, PGSSLMODE and the like work as for psql. Of
what decides whether a lost server is noticed in time the defaults are ours.
"""

import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from delayd.bounded_files import OPEN_TO_OTHERS, read_with_mode
from delayd.limits import DATABASE_ANSWER_MS, DATABASE_PASSWORD_BYTES_MAX
from delayd.log import LogFinding
from delayd.log_lines import Log
from delayd.postgres.connection import Connection, whole
from delayd.postgres.errors import DatabaseCorrupt, DatabaseLost, DatabaseUnfit, StatementFailed
from delayd.postgres.statements import SESSION, SETTING, Statements
from delayd.text import visible

VERSION_MIN: Final = 140_000

LOSSES: Final = (
    ("fsync", "a power cut or a crash of the machine may lose or damage everything"),
    ("full_page_writes", "a power cut while a page is written may damage the database"),
)
_NO_RIGHT: Final = "42501"
_ROLE: Final = "SELECT current_user::text"
_PARAMETER: Final = re.compile(r'invalid URI query parameter: "([^"]*)"')


class DatabasePlace(NamedTuple):
    """Where a log is; `shown` is the url as people may see it."""

    conninfo: bytes
    shown: str
    name: str
    lease_ms: int
    address: str
    accepted: frozenset[str]
    """Settings of the server that are accepted although they may lose jobs, by name."""
    password_file: str | None = None
    """Read for each connection, so that a new password needs no restart."""
    settings: str = ""
    """What an owner and its standbys should have in common: words such as `lease=5s`."""

    @classmethod
    def of(
        cls,
        url: str,
        *,
        name: str,
        lease_ms: int,
        address: str,
        password_file: str | None = None,
        accepted: frozenset[str] = frozenset(),
        settings: str = "",
    ) -> "DatabasePlace":
        """Read the url. Raises DatabaseUnfit, which quotes no value: one may be a password."""
        try:
            parameters = conninfo_to_dict(url)
            seconds = str(max(2, lease_ms // 1_000))
            ours = {
                "connect_timeout": seconds,
                "tcp_user_timeout": str(lease_ms),
                "keepalives_idle": seconds,
                "keepalives_interval": "1",
                "keepalives_count": seconds,
                "application_name": "delayd",
            }
            kept = {each: value for each, value in ours.items() if each not in parameters}
            text = make_conninfo(url, target_session_attrs="read-write", **kept)
        except psycopg.Error as error:
            if (unknown := _PARAMETER.search(str(error))) is not None:
                name = visible(repr(unknown[1]))
                raise DatabaseUnfit(f"postgres.url: libpq knows no parameter {name}") from None
            rule = "is not a url that PostgreSQL reads, such as postgresql://delayd@host/jobs"
            raise DatabaseUnfit(f"postgres.url {rule}") from None
        host = parameters.get("host") or parameters.get("hostaddr") or "localhost"
        port = f":{parameters['port']}" if parameters.get("port") else ""
        shown = visible(f"postgresql://{host}{port}/{parameters.get('dbname', '')}")
        place = (name, lease_ms, address, accepted, password_file, settings)
        return cls(text.encode(), shown, *place)

    @property
    def claim(self) -> str:
        """What an owner writes into the row of the log: two lines, which `LogRow` divides."""
        return f"{self.address}\n{self.settings}"

    def differences(self, owners: str) -> list[str]:
        """Return the names of the settings in which an owner differs; none if it tells nothing."""
        ours, theirs = (dict(_divided(each)) for each in (self.settings, owners))
        return [name for name in ours if name in theirs and ours[name] != theirs[name]]

    def connected(self) -> Connection:
        """Return a connection whose session is set as statements need it. Raises DatabaseError."""
        password = {} if self.password_file is None else {"password": _password(self.password_file)}
        conninfo = make_conninfo(self.conninfo.decode(), **password)
        try:
            connection = Connection(conninfo.encode(), self.shown)
        except DatabaseLost as error:
            if "read-only" not in str(error):
                raise
            rule = "name the server that accepts writes too; one in recovery does not"
            raise DatabaseLost(f"{error}: {rule}") from None
        except DatabaseUnfit as error:
            if "password" not in str(error):
                raise
            rule = "it is that of postgres.password_file, or else of PGPASSFILE or PGPASSWORD"
            raise DatabaseUnfit(f"{error}: {rule}") from None
        with closed_after_error(connection):
            if connection.version < VERSION_MIN:
                found = connection.version // 10_000
                raise DatabaseUnfit(
                    f"{self.shown} is PostgreSQL {found}: 14 is the oldest that works"
                )
            connection.run(SESSION, DATABASE_ANSWER_MS)
        return connection

    # --- What a start looks at -------------------------------------------------------------------

    def losses(self, connection: Connection) -> list[LogFinding]:
        """Say which settings may lose jobs. Raises DatabaseUnfit if one was not accepted."""
        found = []
        for name, loss in LOSSES:
            if setting_of(connection, name) == "on":
                continue
            if name not in self.accepted:
                raise DatabaseUnfit(
                    f"{self.shown} has {name} = off: {loss}. Switch it on, or accept this with"
                    f' postgres.accept = ["{name}"]'
                )
            found.append(LogFinding(f"{name} is off in the database: {loss}", {"log": self.shown}))
        return found

    def findings(self, connection: Connection, news: Log) -> list[LogFinding]:
        """Say what an acknowledgement is worth there. Raises DatabaseUnfit if it may be lost."""
        found = self.losses(connection)
        worth = "on this server, and on its synchronous standbys"
        if not setting_of(connection, "synchronous_standby_names"):
            worth = "on this server alone"
            sentence = "the database has no synchronous standby: if its disk is lost, so are jobs"
            found.append(LogFinding(sentence, {"log": self.shown}))
        if connection.is_far and not connection.is_encrypted:
            sentence = "the connection to the database is not encrypted: use sslmode=verify-full"
            found.append(LogFinding(sentence, {"log": self.shown}))
        news.info("the log is in PostgreSQL", log=self.shown, name=self.name, acknowledged=worth)
        return found

    def prepare(self, connection: Connection, statements: Statements, identity: bytes) -> None:
        """See that the tables are there and survive crashes; make them where there are none."""
        within_ms = DATABASE_ANSWER_MS
        role = role_of(connection)
        advice = f"as their owner run what `{self.schema_command(role)}` prints"
        if lacking := rights_lacking(connection, statements):
            what = f"the role {role} lacks {', '.join(lacking)}"
            raise DatabaseUnfit(f"{self.shown}: {what}: {advice}")
        try:
            if not whole(connection.ask(statements.has_tables, within_ms=within_ms)[0][0]):
                self._create(connection, statements, identity)
        except StatementFailed as error:
            if error.state != _NO_RIGHT:
                raise
            raise DatabaseUnfit(f"{error}: it may not make the tables: {advice}") from None
        logged = whole(connection.ask(statements.logged, within_ms=within_ms)[0][0])
        if logged != statements.table_count:
            why = f"a table of the schema {statements.schema} is missing, or unlogged"
            raise DatabaseCorrupt(f"{self.shown}: {why}")

    def schema_command(self, role: str) -> str:
        """Return the command whose SQL makes the tables for this role, and grants its rights."""
        return f"delayd journal schema --name {self.name} --role {role}"

    def _create(self, connection: Connection, statements: Statements, identity: bytes) -> None:
        """Make the tables, all or none; where another daemon does so at this moment, it is done."""
        self.begin(connection)
        if not whole(connection.ask(statements.was_made, within_ms=DATABASE_ANSWER_MS)[0][0]):
            self.create(connection, statements, identity)
        connection.run("COMMIT", DATABASE_ANSWER_MS)

    def begin(self, connection: Connection) -> None:
        """Begin a transaction, in which nobody else makes tables of logs."""
        connection.run(f"BEGIN; SELECT pg_advisory_xact_lock({_LOCK_NUMBER})", DATABASE_ANSWER_MS)

    def create(
        self, connection: Connection, statements: Statements, identity: bytes, head: int = 0
    ) -> None:
        """Make the tables of a log whose last frame is `head`; in a transaction."""
        if not whole(connection.ask(statements.has_schema, within_ms=DATABASE_ANSWER_MS)[0][0]):
            connection.run(f"CREATE SCHEMA {statements.schema}", DATABASE_ANSWER_MS)
        connection.run(statements.create(identity, head), DATABASE_ANSWER_MS)


def _divided(settings: str) -> Iterator[tuple[str, str]]:
    for word in settings.split():
        name, _, value = word.partition("=")
        yield name, value


def setting_of(connection: Connection, name: str) -> str:
    """Return a setting of the server, as it is in this session. Raises DatabaseError."""
    return connection.ask(SETTING, name, within_ms=DATABASE_ANSWER_MS)[0][0].decode()


def role_of(connection: Connection) -> str:
    """Return the role of this session, as people may see it. Raises DatabaseError."""
    rows = connection.ask(_ROLE, within_ms=DATABASE_ANSWER_MS)
    return visible(rows[0][0].decode(errors="replace"))


def rights_lacking(connection: Connection, statements: Statements) -> list[str]:
    """Return the rights on a log that the role lacks; none where there is no log yet."""
    if not whole(connection.ask(statements.may_use, within_ms=DATABASE_ANSWER_MS)[0][0]):
        return [f"USAGE on schema {statements.schema}"]
    rows = connection.ask(statements.lacking, within_ms=DATABASE_ANSWER_MS)
    return [f"{right.decode()} on {table.decode()}" for right, table in rows]


def _password(path: str) -> str:
    """Return the first line of the file. Raises DatabaseUnfit, which names the file alone."""
    try:
        data, mode = read_with_mode(path, DATABASE_PASSWORD_BYTES_MAX)
        line = data.decode().partition("\n")[0].strip("\r")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text, or too long"
        raise DatabaseUnfit(f"postgres.password_file {path} cannot be read: {why}") from None
    if mode & OPEN_TO_OTHERS:
        rule = "others may read it or write to it: chmod 600"
        raise DatabaseUnfit(
            f"postgres.password_file {path} has the mode {stat.S_IMODE(mode):04o}: {rule}"
        )
    if not line or "\0" in line:
        raise DatabaseUnfit(f"postgres.password_file {path} does not begin with a password")
    return line


_LOCK_NUMBER: Final = 0x64656C61796464


@contextmanager
def closed_after_error(connection: Connection) -> Iterator[None]:
    """Close the connection if this ends with an error."""
    try:
        yield
    except BaseException:
        connection.close()
        raise
