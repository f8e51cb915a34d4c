import errno
import os
import resource
import socket
import ssl
import struct
from collections.abc import Iterator
from typing import cast

import pytest

from delayd.limits import TROUBLE_LOG_MS
from delayd.net import accept, peers
from delayd.net.peers import certificate_name, unix_peer

ACCEPT = "socket.accept() out of system resource"


@pytest.mark.parametrize(
    "context",
    [
        {"message": ACCEPT, "exception": OSError(errno.EMFILE, ""), "socket": object()},
        {"message": ACCEPT, "exception": OSError(errno.ENOMEM, ""), "socket": object()},
        {"message": "Fatal error", "exception": TimeoutError(), "transport": object()},
        {"message": "Fatal error", "exception": OSError(errno.EHOSTUNREACH, ""), "transport": 1},
        {"message": "SSL handshake failed", "exception": ssl.SSLError(1, "unknown ca")},
        {"message": "never retrieved", "exception": ConnectionResetError(), "future": object()},
        {"message": "never retrieved", "exception": BrokenPipeError(), "task": object()},
    ],
)
def test_what_happens_to_one_connection_is_no_fault_of_ours(context: dict[str, object]) -> None:
    assert peers.is_peer_error(context)


@pytest.mark.parametrize(
    "context",
    [
        {"message": "Task was destroyed but it is pending!"},
        {"message": "Exception in callback", "exception": KeyError("job")},
        {"message": "Exception in callback", "exception": OSError(errno.ENOSPC, "")},
        {"message": "Exception in callback", "exception": OSError(errno.EMFILE, "")},
        {"message": "never retrieved", "exception": TimeoutError(), "task": object()},
        {"message": "Fatal error", "exception": AssertionError(), "transport": object()},
        {"message": "data_received() call failed", "exception": ValueError(), "protocol": object()},
        {"message": ACCEPT, "exception": OSError(errno.EBADF, ""), "socket": object()},
        {"message": "never retrieved", "exception": MemoryError()},
    ],
)
def test_everything_else_is(context: dict[str, object]) -> None:
    assert not peers.is_peer_error(context)


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


@pytest.mark.parametrize(
    ("peer", "origin"),
    [
        (("192.0.2.7", 1), "192.0.2.7"),
        (("126.0.0.1", 1), "126.0.0.1"),
        (("127.255.255.254", 1), None),
        (("::1", 1, 0, 0), None),
        (("::2", 1, 0, 0), "::"),
        (("::ffff:127.0.0.1", 1, 0, 0), None),
        (("::ffff:10.0.0.1", 1, 0, 0), "10.0.0.1"),
        (("2001:db8:1:2:3:4:5:6", 1, 0, 0), "2001:db8:1:2::"),
        (("fe80::1%lo", 1, 0, 1), "fe80::"),
        ("", None),
        (b"", None),
        (None, None),
    ],
)
def test_peers_are_counted_by_where_they_come_from(peer: object, origin: str | None) -> None:
    assert peers.origin_of(peer) == origin


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


@pytest.mark.parametrize(
    ("certificate", "name"),
    [
        ({}, "without a name"),
        ({"subject": ((("commonName", "a"),), (("commonName", "b"),))}, "a"),
        ({"subject": ((("organizationName", "o"),),)}, "without a name"),
        (
            {"subjectAltName": (("email", "a@b"), ("URI", "spiffe://x")), "subject": ()},
            "spiffe://x",
        ),
        ({"subjectAltName": (("IP Address", "192.0.2.1"),)}, "192.0.2.1"),
        ({"subjectAltName": (("othername", "?"),), "subject": ((("commonName", "a"),),)}, "a"),
    ],
)
def test_a_certificate_has_the_name_that_it_was_made_out_to(
    certificate: dict[str, object], name: str
) -> None:
    assert certificate_name(certificate) == name


def test_an_error_in_which_code_of_delayd_took_part_is_a_fault_of_its_own() -> None:
    with pytest.raises(AttributeError) as ours:
        certificate_name(cast("dict[str, object]", None))
    with pytest.raises(ValueError, match="literal") as theirs:
        int("what a sink does")
    assert peers.is_own_fault({"message": "", "exception": ours.value})
    assert not peers.is_own_fault({"message": "", "exception": theirs.value})
