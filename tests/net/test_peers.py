import errno
import resource
import socket
import ssl
from collections.abc import Iterator

import pytest

from delayd.limits import TROUBLE_LOG_MS
from delayd.net import accept, peers

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
