"""Clients that say a byte now and then, to a real daemon whose line is spoken in TLS."""

import contextlib
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import trustme

from delayd.limits import LINE_INCOMPLETE_S_MAX
from delayd.testing.daemon import Daemon, running_daemon

NAME: Final = "jobs.example.net"
DRIP_S: Final = 3.0
CUT_OFF_S_MAX: Final = LINE_INCOMPLETE_S_MAX + 60.0


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def daemon(tmp_path: Path, authority: trustme.CA) -> Iterator[Daemon]:
    certificate = tmp_path / "certificate.pem"
    authority.issue_cert(NAME).private_key_and_cert_chain_pem.write_to_path(str(certificate))
    config = tmp_path / "delayd.toml"
    config.write_text(f'line.tls = true\ntls.certificate = "{certificate}"\n')
    with running_daemon("--config", str(config), data_dir=tmp_path / "data") as daemon:
        yield daemon


@pytest.fixture
def sockets() -> Iterator[contextlib.ExitStack]:
    """Closes what is entered."""
    with contextlib.ExitStack() as sockets:
        yield sockets


def joins(daemon: Daemon, authority: trustme.CA) -> ssl.SSLSocket:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    client = socket.create_connection(daemon.address, 60)
    return context.wrap_socket(client, server_hostname=NAME)


def ask(client: ssl.SSLSocket, said: bytes, reply: bytes) -> None:
    client.sendall(said)
    heard = b""
    while len(heard) < len(reply) and (more := client.recv(4_096)):
        heard += more
    assert heard == reply


def is_cut_off(client: socket.socket) -> bool:
    """Whether the daemon has closed it, as can be seen without waiting."""
    client.setblocking(False)
    try:
        return client.recv(1) == b""
    except (BlockingIOError, ssl.SSLWantReadError):  # it may have been something that TLS says
        return False
    except OSError:
        return True
    finally:
        client.settimeout(60)


def test_whoever_drips_is_cut_off_and_nobody_else_notices(
    daemon: Daemon, authority: trustme.CA, sockets: contextlib.ExitStack
) -> None:
    began_s = time.monotonic()
    clients: dict[str, tuple[socket.socket, bytes]] = {
        "nothing of a handshake": (socket.create_connection(daemon.address), b""),
        "a handshake": (socket.create_connection(daemon.address), b"\x16\x03\x01\x02\x00\x01\x00"),
        "a line": (joins(daemon, authority), b"list-tube"),
        "a body": (joins(daemon, authority), b"x" * 9),
    }
    idle, worker = joins(daemon, authority), joins(daemon, authority)
    for client in (*(client for client, _ in clients.values()), idle, worker):
        sockets.enter_context(client)
    clients["a body"][0].sendall(b"put 0 0 60 100\r\n")
    worker.sendall(b"reserve\r\n")
    after_s: dict[str, float] = {}
    dripped = 0
    while len(after_s) < len(clients):
        elapsed_s = time.monotonic() - began_s
        assert elapsed_s < CUT_OFF_S_MAX, after_s
        if elapsed_s >= dripped * DRIP_S:
            for what, (client, said) in clients.items():
                if what not in after_s and said[dripped : dripped + 1]:
                    with contextlib.suppress(ConnectionError):  # it has just been cut off
                        client.sendall(said[dripped : dripped + 1])
            dripped += 1
        for what, (client, _) in clients.items():
            if what not in after_s and is_cut_off(client):
                after_s[what] = time.monotonic() - began_s
        time.sleep(0.05)
    assert min(after_s.values()) >= LINE_INCOMPLETE_S_MAX - 0.5
    ask(idle, b"put 0 0 60 2\r\nhi\r\n", b"INSERTED 2\r\n")
    ask(worker, b"", b"RESERVED 2 2\r\nhi\r\n")


def test_a_daemon_that_stops_says_farewell(daemon: Daemon, authority: trustme.CA) -> None:
    with joins(daemon, authority) as client:
        ask(client, b"put 0 0 60 2\r\nhi\r\nreserve\r\n", b"INSERTED 1\r\nRESERVED 1 2\r\nhi\r\n")
        assert daemon.stop() == 0
        assert client.recv(10) == b""  # and no SSLEOFError
