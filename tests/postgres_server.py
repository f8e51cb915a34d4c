"""Debian's PostgreSQL, on loopback and a free port, over a directory of its own.

    with postgres_server() as server:
        server.url                     # postgresql://postgres@127.0.0.1:PORT/postgres
        server.kill()                  # kill -9 of all of it: what was committed is there
        server.start()                 # on the same port, over the same directory

    with postgres_pair() as pair:      # a primary and its synchronous standby
        pair.fail_over()               # the primary is killed, and the standby promoted
        pair.rebuild()                 # the old primary becomes the synchronous standby

It refuses to run as root, and is run as the user `postgres` then.
"""

import atexit
import functools
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

from tests.rigs.waiting import until
from tests.servers import HOST, START_S_MAX, Server, free_port, launch

USER: Final = "postgres"
MEMORY: Final = "/dev/shm"  # noqa: S108 - a file system of the machine, not a place for names
"""Nothing here cuts the power, and disks that others keep busy take seconds."""

SETTINGS: Final = (
    *("listen_addresses=127.0.0.1", "unix_socket_directories=", "max_connections=30"),
    *("shared_buffers=16MB", "autovacuum=off", "log_min_messages=fatal", "wal_keep_size=64MB"),
    "wal_retrieve_retry_interval=100ms",
)


def programs() -> Path | None:
    """The directory of the newest server that is installed."""
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: path.parts[-3]
    )
    return found[-1].parent if found else None


def prefix() -> tuple[str, ...]:
    """What runs a command as somebody who is not root."""
    as_user = ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups")
    return as_user if os.geteuid() == 0 else ()


def run(command: tuple[str, ...]) -> str:
    """Run a command as that user; return what it prints."""
    ran = subprocess.run(
        (*prefix(), *command), capture_output=True, check=False, text=True, cwd="/"
    )
    assert not ran.returncode, f"{command[0]} failed: {ran.stderr}"
    return ran.stdout.strip()


@functools.cache
def new_data(initdb: str) -> str:
    """A directory of data as `initdb` makes it, which takes it seconds: it is made once."""
    home = tempfile.mkdtemp(
        prefix="postgres-new-", dir=MEMORY if os.access(MEMORY, os.W_OK) else None
    )
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    if prefix():
        shutil.chown(home, USER)
    run((initdb, "-D", f"{home}/data", "-U", USER, "-A", "trust", "-N"))
    return f"{home}/data"


class PostgresServer:
    """A server that can be started again."""

    def __init__(
        self,
        home: Path,
        port: int,
        settings: tuple[str, ...] = (),
        *,
        standby_of: "PostgresServer | None" = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.port = port
        self.logs = 0
        """How many names of logs were given out."""
        self.url = f"postgresql://{USER}@{HOST}:{port}/postgres"
        bin_directory = programs()
        assert bin_directory is not None
        self._bin = bin_directory
        self._data = home / "data"
        if prefix():
            shutil.chown(home, USER)
        if standby_of is None:
            run(("cp", "-a", new_data(str(bin_directory / "initdb")), str(self._data)))
        else:
            self.copy(standby_of)
        flags = [word for setting in (*SETTINGS, *settings) for word in ("-c", setting)]
        postgres = (str(bin_directory / "postgres"), "-D", str(self._data), "-p", str(port))
        self._is_ready = (str(bin_directory / "pg_isready"), "-h", HOST, "-p", str(port))
        # As variables of the server alone: what libfaketime makes belongs to who runs first.
        variables = [f"{name}={value}" for name, value in (environment or {}).items()]
        self._argv = (*prefix(), "env", *variables, *postgres, *flags)
        self.start()

    def run(self, program: str, *words: str) -> str:
        """Run one of PostgreSQL's programs; return what it prints."""
        return run((str(self._bin / program), *words))

    def ask(self, *statements: str) -> str:
        """Have statements carried out, one after the other; return what they say."""
        words = [word for statement in statements for word in ("-c", statement)]
        return self.run("psql", "-qAt", "-v", "ON_ERROR_STOP=1", "-d", self.url, *words)

    def set(self, **settings: str) -> None:
        """Change settings while it runs; an empty text sets the default again."""
        changes = [
            f"ALTER SYSTEM SET {name} = '{value}'" if value else f"ALTER SYSTEM RESET {name}"
            for name, value in settings.items()
        ]
        self.ask(*changes, "SELECT pg_reload_conf()")

    def require_password(self, role: str, password: str) -> str:
        """Make a role that has to show this password; return the url for it."""
        self.ask(
            f"CREATE ROLE {role} LOGIN SUPERUSER PASSWORD '{password}'",
            f"COPY (SELECT 'host all {role} all scram-sha-256' UNION ALL"
            " SELECT 'host all all all trust') TO PROGRAM 'cat > pg_hba.conf'",
            "SELECT pg_reload_conf()",
        )
        return self.url.replace(f"{USER}@", f"{role}@")

    def new_log(self) -> str:
        """Return a name that no log has."""
        self.logs += 1
        return f"log_{self.logs}"

    def copy(self, source: "PostgresServer") -> None:
        """Begin anew as a copy of this server, which follows it when it is started."""
        shutil.rmtree(self._data, ignore_errors=True)
        self.run("pg_basebackup", "-R", "-c", "fast", "-D", str(self._data), "-d", source.url)

    def start(self, *settings: str) -> None:
        flags = [word for setting in settings for word in ("-c", setting)]
        self.server: Server = launch("postgres", (*self._argv, *flags), directory=Path("/"))
        self.server.address = (HOST, self.port)
        self.server.wait_until(ready=None)
        ask = functools.partial(subprocess.run, self._is_ready, check=False, capture_output=True)
        until(lambda: not ask().returncode, START_S_MAX)

    def kill(self) -> None:
        """Kill the server and its children, which hold the memory that a start takes."""
        postmaster = self.server.process.pid
        children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
        self.server.kill()
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)
        until(lambda: not any(Path("/proc", child).exists() for child in children))
        self.server.stop()

    def stop(self) -> None:
        """Stop at once, without a checkpoint; clients are cut off."""
        self.server.signal(signal.SIGQUIT)
        self.server.stop()


class PostgresPair:
    """A primary and its synchronous standby."""

    def __init__(
        self,
        homes: tuple[Path, Path],
        ports: tuple[int, int],
        environment: Mapping[str, str],
        settings: tuple[str, ...] = (),
    ) -> None:
        self.primary = PostgresServer(homes[0], ports[0], settings, environment=environment)
        self.standby = PostgresServer(
            homes[1], ports[1], settings, standby_of=self.primary, environment=environment
        )
        self._wait_for_standby()

    def _wait_for_standby(self) -> None:
        """Have commits wait for the standby, once it has what is there."""
        self.primary.set(synchronous_standby_names="*")
        found = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
        until(lambda: self.primary.ask(found) == "1", START_S_MAX)

    @property
    def servers(self) -> tuple[PostgresServer, PostgresServer]:
        return self.primary, self.standby

    def fail_over(self) -> None:
        """Kill the primary and promote the standby, which serves alone then."""
        self.primary.kill()
        self.standby.set(synchronous_standby_names="")
        self.standby.ask("SELECT pg_promote()")
        self.primary, self.standby = self.standby, self.primary
        self.primary.logs = self.standby.logs

    def rebuild(self) -> None:
        """Have the server that was killed follow the other one."""
        self.standby.copy(self.primary)
        self.standby.start()
        self._wait_for_standby()

    def stop(self) -> None:
        for server in (self.standby, self.primary):
            server.stop()


@contextmanager
def _home() -> Iterator[Path]:
    """A directory for a server; not that of a test, which no other user may enter."""
    within = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="postgres-", dir=within) as home:
        yield Path(home)


def _need_programs() -> None:
    if programs() is None:
        pytest.skip("postgresql is not installed: `make test` installs it where it can")


@contextmanager
def postgres_server(
    *settings: str, environment: Mapping[str, str] | None = None
) -> Iterator[PostgresServer]:
    """Run a server with these settings; skip the test where none is installed."""
    _need_programs()
    with free_port() as port, _home() as home:
        server = PostgresServer(home, port, settings, environment=environment)
        try:
            yield server
        finally:
            server.stop()


@contextmanager
def postgres_pair(environment: Mapping[str, str] | None = None) -> Iterator[PostgresPair]:
    """Run a primary and a standby; skip the test where none is installed."""
    _need_programs()
    with ExitStack() as stack:
        first, second = (stack.enter_context(free_port()) for _ in range(2))
        homes = stack.enter_context(_home()), stack.enter_context(_home())
        pair = PostgresPair(homes, (first, second), environment or {})
        try:
            yield pair
        finally:
            pair.stop()
