import errno
import json
import os
import resource
import socket
import ssl
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, cast

import pytest

from delayd.limits import TROUBLE_LOG_MS
from delayd.net import accept, peers
from delayd.net.peers import certificate_name, unix_peer
from tests.rigs.written import tables_of

TABLES: Final = tables_of(Path(__file__).parent / "tables.txt")
ACCEPT: Final = "socket.accept() out of system resource"


THEIRS: Final = (
    # What happens to one connection
    (ACCEPT, OSError(errno.EMFILE, ""), "socket"),
    (ACCEPT, OSError(errno.ENOMEM, ""), "socket"),
    ("Fatal error", TimeoutError(), "transport"),
    ("Fatal error", OSError(errno.EHOSTUNREACH, ""), "transport"),
    ("SSL handshake failed", ssl.SSLError(1, "unknown ca"), ""),
    ("never retrieved", ConnectionResetError(), "future"),
    ("never retrieved", BrokenPipeError(), "task"),
)
OURS_AT_FAULT: Final = (
    ("Task was destroyed but it is pending!", None, ""),
    ("Exception in callback", KeyError("job"), ""),
    ("Exception in callback", OSError(errno.ENOSPC, ""), ""),
    ("Exception in callback", OSError(errno.EMFILE, ""), ""),
    ("never retrieved", TimeoutError(), "task"),
    ("Fatal error", AssertionError(), "transport"),
    ("data_received() call failed", ValueError(), "protocol"),
    (ACCEPT, OSError(errno.EBADF, ""), "socket"),
    ("never retrieved", MemoryError(), ""),
)


@pytest.mark.parametrize(("message", "error", "of"), [*THEIRS, *OURS_AT_FAULT])
def test_only_what_happens_to_one_connection_is_no_fault_of_ours(
    message: str, error: Exception | None, of: str
) -> None:
    context = {"message": message, "exception": error, of: object()}
    told = {name: what for name, what in context.items() if name and what is not None}
    assert peers.is_peer_error(told) is ((message, error, of) in THEIRS)


def test_each_kind_of_trouble_is_told_of_once_a_minute() -> None:
    clock_ms = 0
    sparingly = peers.RateLimited(lambda: clock_ms)
    assert sparingly.may_log("reset")
    assert sparingly.may_log("timeout")
    clock_ms = TROUBLE_LOG_MS - 1
    assert not sparingly.may_log("reset")
    clock_ms = TROUBLE_LOG_MS
    assert sparingly.may_log("reset")
    assert not sparingly.may_log("reset")


@pytest.fixture
def lower_limit() -> Iterator[int]:
    limit, limit_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit_max - 1, limit_max))
    yield limit_max
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit_max))


def test_a_process_takes_all_descriptors_it_may_have(lower_limit: int) -> None:
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == lower_limit - 1
    assert accept.raise_descriptor_limit() == lower_limit
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == lower_limit
    assert accept.raise_descriptor_limit() == lower_limit


@pytest.mark.parametrize(("host", "origin"), TABLES["origins"])
def test_peers_are_counted_by_where_they_come_from(host: str, origin: str) -> None:
    assert (
        peers.origin_of((host, 1))
        == peers.origin_of((host, 1, 0, 0))
        == (None if origin == "-" else origin)
    )


def test_other_peers_have_no_origin() -> None:
    assert [peers.origin_of(peer) for peer in ("", b"", None)] == [None] * 3


def test_a_unix_socket_is_only_made_not_to_wait() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        accept.prepare(ours)
        assert not ours.getblocking()


# --- Processes and certificates ------------------------------------------------------------------


def test_the_kernel_says_who_is_at_the_other_end_and_of_tcp_nobody() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs, socket.socket() as tcp:
        peer = unix_peer(ours)
        assert (peer.uid, peer.gid) == (os.geteuid(), os.getegid())
        assert peer.gids == {os.getegid(), *os.getgroups()}
        tcp.bind(("127.0.0.1", 0))
        assert unix_peer(tcp).uid == 2**32 - 1  # no list can name this number


class Kernel:
    """A socket whose kernel tells of user 1000, group 33 and others; None: of no others."""

    family = socket.AF_UNIX

    def __init__(self, more_gids: tuple[int, ...] | None) -> None:
        self._more_gids = more_gids

    def getsockopt(self, level: int, option: int, length: int, /) -> bytes:
        assert level == socket.SOL_SOCKET
        if option == socket.SO_PEERCRED:
            return struct.pack("iII", 7, 1_000, 33)
        if self._more_gids is None:
            raise OSError(errno.ENOPROTOOPT, "Protocol not available")
        return struct.pack(f"{len(self._more_gids)}I", *self._more_gids)


@pytest.mark.parametrize("more", [None, (), (4,), (33, 4, 2**32 - 2)])
def test_all_groups_that_the_kernel_tells_count(more: tuple[int, ...] | None) -> None:
    groups = frozenset({33, *(more or ())})
    assert unix_peer(cast("socket.socket", Kernel(more))) == (1_000, 33, groups)


@pytest.mark.parametrize(("certificate", "name"), TABLES["certificates"])
def test_a_certificate_has_the_name_that_it_was_made_out_to(certificate: str, name: str) -> None:
    assert certificate_name(json.loads(certificate)) == name


def test_an_error_in_which_code_of_delayd_took_part_is_a_fault_of_its_own() -> None:
    with pytest.raises(AttributeError) as ours:
        certificate_name(cast("dict[str, object]", None))
    with pytest.raises(ValueError, match="literal") as theirs:
        int("what a sink does")
    assert peers.is_own_fault({"message": "", "exception": ours.value})
    assert not peers.is_own_fault({"message": "", "exception": theirs.value})
