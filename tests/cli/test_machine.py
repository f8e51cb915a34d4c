import os
import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest
import trustme

from delayd.cli.machine import (
    ANOTHER,
    DELAYD,
    FREE,
    LINE_PING,
    SILENT,
    directory_facts,
    file_facts,
    file_system_of,
    machine,
    measure_syncs,
    port_state,
    ports,
)
from delayd.compat import Compat
from delayd.config import Config
from delayd.journal.directory import release_directory, take_directory
from delayd.journal.disk import RealDisk
from delayd.net.addresses import TcpAddress, UnixAddress
from tests.rigs.line import LineRig

MOUNTS: Final = """\
/dev/vda / ext4 rw 0 0
tmpfs /run tmpfs rw 0 0
/dev/vdb /var/lib/delayd xfs rw 0 0
"""


def test_nothing_is_left_where_the_disk_was_measured_or_could_not_be(tmp_path: Path) -> None:
    taken_us, error = measure_syncs(str(tmp_path))
    assert (len(taken_us), error) == (20, "")
    assert not list(tmp_path.iterdir())
    taken_us, error = measure_syncs("/proc")
    assert not taken_us
    assert error


def test_a_directory_is_looked_at_where_it_is_or_would_be_made(tmp_path: Path) -> None:
    facts = directory_facts(str(tmp_path / "a" / "b"))
    assert (facts.path, facts.is_there) == (str(tmp_path), False)
    assert not list(tmp_path.iterdir())
    (tmp_path / "data").write_text("")
    assert not directory_facts(str(tmp_path / "data")).is_directory


def test_the_daemon_on_the_directory_is_named(tmp_path: Path) -> None:
    disk = RealDisk()
    owned, _names = take_directory(disk, str(tmp_path))
    assert directory_facts(str(tmp_path)).holder == f"process {os.getpid()}"
    release_directory(disk, owned)
    assert not directory_facts(str(tmp_path)).holder


def test_the_file_system_is_that_of_the_nearest_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS)
    paths = ("/home/ada", "/run/delayd", "/runner", "/var/lib/delayd")
    kinds = [file_system_of(path, str(mounts)) for path in paths]
    assert kinds == ["ext4", "tmpfs", "ext4", "xfs"]


def test_a_file_that_is_not_there_has_no_mode(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    assert file_facts("auth.tokens", str(path)).mode is None
    path.touch(0o640)
    assert file_facts("auth.tokens", str(path)).mode == 0o640


SAYS_OK: Final = b"OK 2\r\n{}\r\n"


def answering(answer: bytes, tls: ssl.SSLContext | None = None) -> TcpAddress:
    """Someone who answers one client."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(ssl.SSLError), server, server.accept()[0] as client:
            secured = client if tls is None else tls.wrap_socket(client, server_side=True)
            with secured:
                secured.recv(100)
                secured.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    return TcpAddress(*server.getsockname())


@pytest.mark.parametrize(
    ("answer", "state"),
    [(SAYS_OK, DELAYD), (b"UNKNOWN_COMMAND\r\n", ANOTHER), (b"", SILENT)],
)
def test_who_listens_is_told_by_the_answer(
    answer: bytes, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delayd.cli.machine.PROBE_S", 60.0)
    assert port_state(answering(answer), LINE_PING, [b"OK "]) == state


def test_a_delayd_is_known_over_tls_whoever_has_signed_its_certificate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("delayd.cli.machine.PROBE_S", 60.0)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("jobs.example.com").configure_cert(tls)
    address = answering(SAYS_OK, tls)
    config = Config(line_listen=address, line_tls=True, http_listen=None)
    assert [port.state for port in ports(config)] == [DELAYD]


def test_who_wants_a_certificate_does_not_say_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delayd.cli.machine.PROBE_S", 60.0)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority = trustme.CA()
    authority.issue_cert("jobs.example.com").configure_cert(tls)
    authority.configure_trust(tls)
    tls.verify_mode = ssl.CERT_REQUIRED
    assert port_state(answering(b"", tls), LINE_PING, [b"OK "], has_tls=True) == SILENT


def test_who_says_nothing_in_time_may_be_a_delayd_and_without_tls_it_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("delayd.cli.machine.PROBE_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = TcpAddress(*server.getsockname())
        assert port_state(address, LINE_PING, [b"OK "]) == SILENT
        assert port_state(address, LINE_PING, [b"OK "], has_tls=True) == SILENT
    monkeypatch.setattr("delayd.cli.machine.PROBE_S", 60.0)
    assert port_state(answering(b"OK 2\r\n"), LINE_PING, [b"OK "], has_tls=True) == ANOTHER


@pytest.mark.parametrize("compat", Compat)
def test_a_delayd_answers_what_the_line_is_asked_whatever_it_is_compatible_with(
    compat: Compat,
) -> None:
    assert LineRig(compat=compat).client().says(LINE_PING).startswith(b"OK ")


def test_an_address_that_nobody_listens_on_is_free_or_says_why_not(tmp_path: Path) -> None:
    assert port_state(TcpAddress("127.0.0.1", 0), b"", []) == FREE
    assert "assign" in port_state(TcpAddress("192.0.2.1", 0), b"", [])
    assert port_state(UnixAddress(str(tmp_path / "s")), b"", []) == FREE
    assert "nothing can be made in" in port_state(UnixAddress("/nowhere/s"), b"", [])


def test_all_facts_are_gathered_of_this_machine(tmp_path: Path) -> None:
    config = Config(data_dir=str(tmp_path), line_listen=TcpAddress("127.0.0.1", 0))
    facts = machine(config._replace(http_listen=None), None)
    assert facts.files_max > 0
    assert facts.directory.is_there
    assert [port.state for port in facts.ports] == [FREE]
