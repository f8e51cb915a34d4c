import errno
import os
import socket
import struct
from collections.abc import Iterator

import pytest

from delayd.net.peers import certificate_name, unix_peer


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with one, other:
        yield one, other


def test_the_kernel_says_who_is_at_the_other_end(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    peer = unix_peer(pair[0])
    assert (peer.uid, peer.gid) == (os.geteuid(), os.getegid())
    assert peer.gids == {os.getegid(), *os.getgroups()}


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


def test_a_kernel_that_tells_no_further_groups_tells_the_first() -> None:
    assert unix_peer(Kernel(None)) == (1_000, 33, frozenset({33}))


@pytest.mark.parametrize("more", [(), (4,), (33, 4, 2**32 - 2)])
def test_all_groups_count_and_not_the_first_alone(more: tuple[int, ...]) -> None:
    assert unix_peer(Kernel(more)) == (1_000, 33, frozenset({33, *more}))


def test_a_tcp_socket_has_no_user() -> None:
    with socket.socket() as connection:
        connection.bind(("127.0.0.1", 0))
        assert unix_peer(connection).uid == 2**32 - 1  # nobody: no list can name this number


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
