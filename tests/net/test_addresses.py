import os
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from delayd.limits import UNIX_PATH_BYTES_MAX
from delayd.net.addresses import (
    AddressInvalid,
    CannotListen,
    Listener,
    TcpAddress,
    UnixAddress,
    address_of,
    inherited_listeners,
    is_local,
    open_listener,
    parse_address,
)
from tests.rigs.written import tables_of

PID = 4242
ANY_PORT = TcpAddress("127.0.0.1", 0)
TABLES = tables_of(Path(__file__).parent / "tables.txt")

Open = Callable[..., Listener]


@pytest.fixture
def opened() -> Iterator[Open]:
    """Open listeners that are closed when the test ends."""
    listeners: list[Listener] = []

    def open_one(address: TcpAddress | UnixAddress, **options: Any) -> Listener:  # noqa: ANN401 (of `open_listener`)
        listeners.append(open_listener(address, **options))
        return listeners[-1]

    yield open_one
    for listener in listeners:
        listener.close()


def connect(listener: Listener) -> None:
    """Connect to the listener and wait until it has taken the connection."""
    with socket.socket(listener.socket.family, socket.SOCK_STREAM) as client:
        client.connect(listener.socket.getsockname())
        listener.socket.setblocking(True)
        listener.socket.accept()[0].close()


@pytest.mark.parametrize("is_unix", [False, True])
def test_clients_are_refused_until_an_address_that_is_taken_listens(
    opened: Open, tmp_path: Path, *, is_unix: bool
) -> None:
    address = UnixAddress(str(tmp_path / "line")) if is_unix else ANY_PORT
    listener = opened(address, listens=False)
    with pytest.raises(ConnectionRefusedError):
        connect(listener)
    listener.listen()
    connect(listener)


# --- Addresses -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "host", "port"), TABLES["tcp"])
def test_addresses_are_read_and_written_in_one_form(text: str, host: str, port: str) -> None:
    assert parse_address(text) == TcpAddress(host, int(port))
    assert str(parse_address(text)) == text


@pytest.mark.parametrize("path", ["/run/delayd.sock", "relative:1", "/" + "a" * 106])
def test_paths_are_read_and_written_in_one_form(path: str) -> None:
    assert parse_address(f"unix:{path}") == UnixAddress(path)
    assert str(UnixAddress(path)) == f"unix:{path}"


LONG: Final = ("unix:/" + "a" * UNIX_PATH_BYTES_MAX, "unix:/" + "é" * 54)
REFUSED: Final = [
    *((text, rule) for rule, *texts in TABLES["refused"] for text in texts),
    *(("", "HOST:PORT or unix:PATH"), ("a\n:1", "a host before"), ("unix:\0x", "a path")),
    *((text, "at most 107 bytes") for text in LONG),
]


@pytest.mark.parametrize(("text", "rule"), REFUSED)
def test_other_addresses_are_refused_with_the_rule(text: str, rule: str) -> None:
    with pytest.raises(AddressInvalid, match=rule):
        parse_address(text)


LOCAL: Final = "127.0.0.1:1 127.255.0.9:1 localhost:1 [::1]:1 [::ffff:127.0.0.1]:1 unix:/x"
OTHERS: Final = (
    "0.0.0.0:1 128.0.0.1:1 [::]:1 [::2]:1 [::ffff:10.0.0.1]:1 example.net:1 127.example.net:1"
)


@pytest.mark.parametrize("text", [*LOCAL.split(), *OTHERS.split()])
def test_only_loopback_addresses_and_unix_paths_are_local(text: str) -> None:
    assert is_local(parse_address(text)) is (text in LOCAL.split())


# --- TCP -----------------------------------------------------------------------------------------


def test_port_0_gives_a_real_port_and_closing_twice_is_closing_once(opened: Open) -> None:
    listener = opened(ANY_PORT)
    assert isinstance(listener.address, TcpAddress)
    assert listener.address.port > 0
    assert not listener.socket.getblocking()
    assert not listener.socket.get_inheritable()
    listener.close()
    listener.close()
    connect(opened(listener.address))


def test_an_ipv6_address_is_listened_on(opened: Open) -> None:
    if not socket.has_ipv6:
        pytest.skip("this Python has no IPv6")
    try:
        listener = opened(TcpAddress("::1", 0))
    except CannotListen as error:
        pytest.skip(f"this machine has no IPv6: {error}")
    assert str(listener.address).startswith("[::1]:")
    connect(listener)


def test_a_host_may_be_a_name(opened: Open) -> None:
    listener = opened(TcpAddress("localhost", 0))
    assert is_local(listener.address)
    connect(listener)


def test_what_cannot_be_listened_on_is_named_and_not_touched(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("precious")
    for address, why in (
        (TcpAddress("192.0.2.1", 9), "Cannot assign requested address"),
        (TcpAddress("no.such.host.invalid", 9), "the host cannot be found"),
        (UnixAddress(f"{tmp_path}/missing/line.sock"), "No such file or directory"),
        (UnixAddress(str(file)), "the path exists and is not a socket"),
    ):
        with pytest.raises(CannotListen) as caught:
            open_listener(address)
        assert str(caught.value).startswith(f"cannot listen on {address}: {why}")
    assert file.read_text() == "precious"


# --- Unix sockets --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o660, 0o600, 0o666])
def test_a_unix_socket_has_the_mode_whatever_the_umask(
    opened: Open, tmp_path: Path, mode: int
) -> None:
    path = tmp_path / "line.sock"
    before = os.umask(0o027)
    try:
        listener = opened(UnixAddress(str(path)), unix_mode=mode)
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert listener.address == UnixAddress(str(path))
    connect(listener)


def test_a_unix_socket_goes_away_when_it_is_closed(opened: Open, tmp_path: Path) -> None:
    path = tmp_path / "line.sock"
    listener = opened(UnixAddress(str(path)))
    listener.close()
    assert not path.exists()
    path.write_text("somebody else's")
    listener.close()
    assert path.exists()


def test_what_took_the_place_of_a_removed_socket_stays(opened: Open, tmp_path: Path) -> None:
    path = tmp_path / "line.sock"
    listener = opened(UnixAddress(str(path)))
    path.unlink()
    another = opened(UnixAddress(str(path)))
    listener.close()
    connect(another)
    path.unlink()
    path.write_text("somebody else's")
    another.close()
    assert path.read_text() == "somebody else's"


def test_the_socket_of_a_killed_daemon_is_replaced(opened: Open, tmp_path: Path) -> None:
    path = tmp_path / "line.sock"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
        killed.listen()
    connect(opened(UnixAddress(str(path))))


def test_the_socket_of_a_living_daemon_is_not_touched(opened: Open, tmp_path: Path) -> None:
    address = UnixAddress(str(tmp_path / "line.sock"))
    living = opened(address)
    in_use = f"^cannot listen on {address}: the address is in use$"
    with pytest.raises(CannotListen, match=in_use):
        open_listener(address)
    living.socket.setblocking(True)
    living.socket.accept()[0].close()  # the question of the second one
    connect(living)
    living.socket.listen(0)
    with socket.socket(socket.AF_UNIX) as waiting:
        waiting.connect(address.path)  # and the backlog is full
        with pytest.raises(CannotListen, match=in_use):
            open_listener(address)
    assert Path(address.path).exists()


# --- Sockets from systemd ------------------------------------------------------------------------


def hand_over(monkeypatch: pytest.MonkeyPatch, *sockets: socket.socket) -> dict[str, str]:
    """Give the sockets consecutive descriptors, as systemd does, and say so in an environment."""
    first = 200  # systemd begins at 3, which the test run needs itself
    monkeypatch.setattr("delayd.net.addresses.FIRST_INHERITED_FD", first)
    for index, given in enumerate(sockets):
        os.dup2(given.fileno(), first + index, inheritable=True)
        given.close()
    return {"LISTEN_PID": str(PID), "LISTEN_FDS": str(len(sockets))}


def test_without_systemd_or_for_another_process_no_socket_is_inherited() -> None:
    for environment in ({}, {"LISTEN_PID": str(PID + 1), "LISTEN_FDS": "1"}):
        listeners = inherited_listeners(environment, PID)
        assert (listeners.line, listeners.http) == ((), ())


def test_inherited_sockets_are_taken_over_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = str(tmp_path / "line.sock")
    tcp, http, unix = (
        socket.create_server(("127.0.0.1", 0)),
        socket.create_server(("127.0.0.1", 0)),
        socket.socket(socket.AF_UNIX),
    )
    unix.bind(path)
    unix.listen()
    addresses = [address_of(one) for one in (tcp, http, unix)]
    environment = hand_over(monkeypatch, tcp, http, unix)
    listeners = inherited_listeners(environment | {"LISTEN_FDNAMES": "line:http"}, PID)
    try:
        assert [listener.address for listener in listeners.line] == [addresses[0], addresses[2]]
        assert [listener.address for listener in listeners.http] == [addresses[1]]
        for listener in (*listeners.line, *listeners.http):
            assert not listener.socket.getblocking()
            assert not listener.socket.get_inheritable()
            connect(listener)
    finally:
        listeners.close()
    assert Path(path).exists()  # systemd made it, systemd removes it


def test_an_inherited_descriptor_that_is_no_listening_socket_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environment = hand_over(monkeypatch, socket.socket())
    with pytest.raises(CannotListen) as caught:
        inherited_listeners(environment, PID)
    assert str(caught.value) == (
        "cannot listen on inherited descriptor 200: it is not a listening stream socket"
    )
    os.close(200)
    with pytest.raises(CannotListen, match="inherited descriptor 200: Bad file descriptor"):
        inherited_listeners(environment, PID)
    with pytest.raises(CannotListen, match="LISTEN_FDS: 'two' is not a number of sockets"):
        inherited_listeners(environment | {"LISTEN_FDS": "two"}, PID)
