"""A daemon in plain Python on a directory of its own, with a configuration, and what it holds.

    with running(push_settings([8080])) as daemon:
        ...ask daemon.ports["line"], daemon.ports["http"]...
        daemon.server.resident_bytes()

`start` is for those who kill it and start it again on the same directory. What it writes to its
log is in the file `log` of that directory.
"""

import contextlib
import json
import os
import re
import select
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.peers import START_SECONDS_MAX, Server, ServerFailedError, written_bytes_below
from benchmarks.receivers import Certificate

READY: Final = re.compile(r"(line|http) 127\.0\.0\.1:(\d+)")
ANY_PORT: Final = "127.0.0.1:0"
ADDRESSES: Final = "IP:127.0.0.1"


class Started(NamedTuple):
    """A daemon that serves."""

    server: Server
    """Its `port` is the line's."""
    ports: dict[str, int]
    """By what is spoken there."""
    directory: Path

    def ask(self, path: str, patience_s: float = 10.0) -> bytes:
        """Return what a GET is answered; raise `OSError` if it is not, in time."""
        url = f"http://127.0.0.1:{self.ports['http']}{path}"
        with urllib.request.urlopen(url, timeout=patience_s) as answer:
            found: bytes = answer.read()
        return found

    def log_bytes(self) -> int:
        """Return the bytes written to its log and snapshots, without room that waits for more."""
        return written_bytes_below(self.directory / "data")

    def jobs(self) -> int:
        """Return how many jobs it has."""
        counts = json.loads(self.ask("/v1/stats"))["jobs"]
        return sum(counts[state] for state in ("ready", "reserved", "delayed", "buried"))


def start(
    directory: Path,
    config: str,
    environment: Mapping[str, str],
    listens: tuple[str, str] = (ANY_PORT, ANY_PORT),
    *,
    has_data_dir: bool = True,
) -> Started:
    """Start a daemon with this configuration; raise `ServerFailedError` if it does not serve."""
    path = directory / "delayd.toml"
    path.write_text(config, encoding="utf-8")
    line, http = listens
    command = [sys.executable, "-m", "delayd", "serve"]
    if has_data_dir:
        command += ("--data-dir", "data")
    started = time.perf_counter()
    with (directory / "log").open("ab") as log:
        process = subprocess.Popen(
            [*command, "--config", str(path), "--line", line, "--http", http],
            cwd=directory,
            env=os.environ | dict(environment),
            stdout=subprocess.PIPE,
            stderr=log,
        )
    assert process.stdout is not None
    is_heard = select.select([process.stdout], [], [], START_SECONDS_MAX)[0]
    said = process.stdout.readline().decode() if is_heard else ""
    ports = {what: int(port) for what, port in READY.findall(said)}
    server = Server(process, ports.get("line", 0), started)
    if not ports:
        server.kill()
        wrote = (directory / "log").read_text(encoding="utf-8", errors="replace")[-500:]
        raise ServerFailedError(f"the daemon did not come to serve; it wrote {wrote!r}")
    return Started(server, ports, directory)


@contextlib.contextmanager
def running(config: str = "", trusted: Certificate | None = None) -> Iterator[Started]:
    """Run a daemon while the block runs; it trusts this certificate besides."""
    with tempfile.TemporaryDirectory(prefix="bench-daemon-") as name:
        daemon = start(Path(name), config, trusting(trusted))
        try:
            yield daemon
        finally:
            daemon.server.kill()


def push_settings(ports: Sequence[int]) -> str:
    """Return the settings of a daemon that may call these ports of this machine."""
    return f'[push]\nallow_http = true\nports = {list(ports)}\nprivate_networks = ["127.0.0.0/8"]\n'


def trusting(certificate: Certificate | None) -> dict[str, str]:
    """Return the environment of a daemon that trusts the certificate."""
    return {} if certificate is None else {"SSL_CERT_FILE": certificate.certificate}


@contextlib.contextmanager
def loopback_certificate() -> Iterator[Certificate]:
    """Make a certificate for 127.0.0.1; its files go with the block."""
    with tempfile.TemporaryDirectory(prefix="bench-tls-") as name:
        made = Certificate(f"{name}/certificate.pem", f"{name}/key.pem")
        subject = ("-subj", "/CN=127.0.0.1", "-addext", f"subjectAltName={ADDRESSES}")
        kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc")
        where = ("-out", made.certificate, "-keyout", made.key, "-days", "2")
        subprocess.run(
            ["openssl", "req", "-x509", *kind, *subject, *where], check=True, capture_output=True
        )
        yield made
