import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from delayd.limits import WATCHDOG_MS
from delayd.systemd import Notifier, Watchdog

PID = 4242


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """Where systemd would listen."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.setblocking(False)
        yield listening


def test_each_word_is_one_datagram(manager: socket.socket) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": manager.getsockname()}, PID)
    notifier.extend_start_ms(1_500, "replaying")
    notifier.ready("serving")
    notifier.watchdog()
    notifier.stopping("draining")
    assert [manager.recv(1_000) for _ in range(4)] == [
        b"EXTEND_TIMEOUT_USEC=1500000\nSTATUS=replaying",
        b"READY=1\nSTATUS=serving",
        b"WATCHDOG=1",
        b"STOPPING=1\nSTATUS=draining",
    ]


def test_a_status_cannot_carry_another_assignment(manager: socket.socket) -> None:
    Notifier({"NOTIFY_SOCKET": manager.getsockname()}, PID).ready("a\nMAINPID=1\r\n b")
    assert manager.recv(1_000) == b"READY=1\nSTATUS=a MAINPID=1 b"


def test_an_abstract_socket_is_found_by_its_name() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("")  # the kernel chooses an abstract name
        name = manager.getsockname()
        Notifier({"NOTIFY_SOCKET": "@" + name[1:].decode()}, PID).watchdog()
        assert manager.recv(1_000) == b"WATCHDOG=1"


@pytest.mark.parametrize("address", ["", "/nobody/listens/here", "vsock:2:1234", "relative"])
def test_telling_nobody_does_nothing(address: str) -> None:
    Notifier({"NOTIFY_SOCKET": address} if address else {}, PID).ready("serving")


@pytest.mark.thorough
def test_a_manager_that_does_not_read_is_not_waited_for(manager: socket.socket) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": manager.getsockname()}, PID)
    for _ in range(10_000):
        notifier.watchdog()


@pytest.mark.parametrize(
    ("environment", "watchdog_ms"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30_000),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(PID)}, 30_000),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdog_is_on_when_systemd_says_so_to_this_process(
    environment: dict[str, str], watchdog_ms: int | None
) -> None:
    assert Notifier(environment, PID).watchdog_ms == watchdog_ms


@pytest.mark.parametrize(
    ("watchdog_us", "wait_ms"),
    [("", WATCHDOG_MS), ("30000000", 15_000), (str(4_000 * WATCHDOG_MS), WATCHDOG_MS)],
)
def test_the_watchdog_checks_and_then_tells_systemd_twice_in_the_time_that_it_waits(
    manager: socket.socket, watchdog_us: str, wait_ms: int
) -> None:
    environment = {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": watchdog_us}
    happened: list[object] = []

    def check() -> None:
        with pytest.raises(BlockingIOError):
            manager.recv(1_000)
        happened.append("checked")

    def call_later(wait_s: float, go: object) -> None:
        assert go == watchdog.go
        happened.append(wait_s)

    watchdog = Watchdog(Notifier(environment, PID), check, call_later)
    for _ in range(2):
        watchdog.go()
        assert manager.recv(1_000) == b"WATCHDOG=1"
    assert happened == ["checked", wait_ms / 1_000] * 2
