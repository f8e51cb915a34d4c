"""Debian's PostgreSQL, on loopback and a free port, over a directory of its own.

    with postgres_server() as server:
        server.url                     # postgresql://postgres@127.0.0.1:PORT/postgres
        server.kill()                  # kill -9 of all of it: what was committed is there
        server.start()                 # on the same port, over the same directory

It refuses to run as root, and is run as the user `postgres` then.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.servers import HOST, POLL_S, START_S_MAX, Server, free_port, launch

USER: Final = "postgres"
SETTINGS: Final = (
    *("listen_addresses=127.0.0.1", "unix_socket_directories=", "max_connections=30"),
    *("shared_buffers=16MB", "autovacuum=off", "log_min_messages=fatal"),
)


def programs() -> Path | None:
    """The directory of the newest server that is installed."""
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: path.parts[-3]
    )
    return found[-1].parent if found else None


class PostgresServer:
    """A server that can be started again."""

    def __init__(self, home: Path, port: int, settings: tuple[str, ...]) -> None:
        self.port = port
        self.logs = 0
        """How many names of logs were given out."""
        self.url = f"postgresql://{USER}@{HOST}:{port}/postgres"
        bin_directory = programs()
        assert bin_directory is not None
        prefix = ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups")
        self._prefix = prefix if os.geteuid() == 0 else ()
        self._data = home / "data"
        self._data.mkdir(mode=0o700)
        if self._prefix:
            for directory in (home, self._data):
                shutil.chown(directory, USER)
        initdb = (
            str(bin_directory / "initdb"),
            "-D",
            str(self._data),
            "-U",
            USER,
            "-A",
            "trust",
            "-N",
        )
        subprocess.run((*self._prefix, *initdb), check=True, capture_output=True, cwd="/")
        flags = [word for setting in (*SETTINGS, *settings) for word in ("-c", setting)]
        postgres = (str(bin_directory / "postgres"), "-D", str(self._data), "-p", str(port))
        self._is_ready = (str(bin_directory / "pg_isready"), "-h", HOST, "-p", str(port))
        self._argv = (*self._prefix, *postgres, *flags)
        self.start()

    def start(self, *settings: str) -> None:
        flags = [word for setting in settings for word in ("-c", setting)]
        self.server: Server = launch("postgres", (*self._argv, *flags), directory=Path("/"))
        self.server.address = (HOST, self.port)
        self.server.wait_until(ready=None)
        deadline = time.monotonic() + START_S_MAX
        while subprocess.run(self._is_ready, check=False, capture_output=True).returncode:
            assert time.monotonic() < deadline, "it recovers for too long"
            time.sleep(POLL_S)

    def kill(self) -> None:
        """Kill the server and its children: they see that it is gone, and end by themselves."""
        self.server.kill()
        self.server.stop()

    def stop(self) -> None:
        """Stop at once, without a checkpoint; clients are cut off."""
        self.server.signal(signal.SIGQUIT)
        self.server.stop()


@contextmanager
def postgres_server(*settings: str) -> Iterator[PostgresServer]:
    """Run a server with these settings; skip the test where none is installed."""
    if programs() is None:
        pytest.skip("postgresql is not installed: `make test` installs it where it can")
    # Not in the directory of a test: no other user may enter that.
    with free_port() as port, tempfile.TemporaryDirectory() as home:
        server = PostgresServer(Path(home), port, settings)
        try:
            yield server
        finally:
            server.stop()
