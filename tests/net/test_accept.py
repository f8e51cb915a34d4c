"""Accepting, from listeners that misbehave."""

import errno
import resource
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from delayd import limits
from delayd.net import accept
from delayd.net.accept import Acceptor
from tests.net.listener import Listener

if TYPE_CHECKING:
    import socket

EMFILE, ENFILE = errno.EMFILE, errno.ENFILE


class AcceptRig:
    """An acceptor, and what it asked for."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.accepted: list[socket.socket] = []
        self.watched: set[int] = set()
        self.later: list[tuple[int, Callable[[], object]]] = []
        self.without_descriptor = 0
        self.acceptor = Acceptor(
            [listener],
            lambda sock, _address: self.accepted.append(sock),
            per_turn=limits.ACCEPTS_PER_TURN,
            watch=self.watched.add,
            unwatch=self.watched.remove,
            call_later=lambda delay_ms, call: self.later.append((delay_ms, call)),
            on_no_descriptor=self.count,
        )
        self.acceptor.open()

    def close(self) -> None:
        for sock in self.accepted:
            sock.close()

    def count(self) -> None:
        self.without_descriptor += 1

    def turn(self) -> None:
        assert self.acceptor.accept(self.listener.fileno())


@pytest.fixture
def rig_of() -> Iterator[Callable[[list[int | None]], AcceptRig]]:
    with ExitStack() as stack:

        def make(outcomes: list[int | None]) -> AcceptRig:
            rig = AcceptRig(stack.enter_context(Listener(outcomes)))
            stack.callback(rig.close)
            stack.callback(rig.acceptor.close)
            return rig

        yield make


Make = Callable[[list[int | None]], AcceptRig]


def test_so_many_are_accepted_in_a_turn(rig_of: Make) -> None:
    rig = rig_of([None] * (limits.ACCEPTS_PER_TURN + 7))
    assert not rig.acceptor.accept(-1), "this is not the descriptor of the listener"
    assert not rig.accepted
    rig.turn()
    assert len(rig.accepted) == limits.ACCEPTS_PER_TURN
    rig.turn()
    assert len(rig.accepted) == limits.ACCEPTS_PER_TURN + 7


def test_a_client_that_left_before_it_was_accepted_is_ignored(rig_of: Make) -> None:
    rig = rig_of([errno.ECONNABORTED, None])
    rig.turn()
    assert not rig.accepted
    rig.turn()
    assert len(rig.accepted) == 1
    assert not rig.without_descriptor


def test_without_a_descriptor_a_client_is_closed_by_giving_up_the_spare_one_for_a_moment(
    rig_of: Make,
) -> None:
    rig = rig_of([EMFILE, None, ENFILE, None, None])
    for number in range(2):
        rig.turn()
        assert rig.listener.peers[number].recv(1) == b"", "closed, and no longer in the backlog"
        spare = rig.acceptor._spare
        assert spare is not None
        assert spare.fileno() >= 0
    assert (rig.without_descriptor, rig.accepted, rig.later) == (2, [], [])
    rig.turn()
    assert len(rig.accepted) == 1


def test_without_any_descriptor_accepting_pauses_and_resumes(rig_of: Make) -> None:
    rig = rig_of([ENFILE] * 6)
    for _ in range(2):
        rig.turn()
        assert not rig.watched, "it does not wake the loop for ever"
        ((delay_ms, resume),) = rig.later
        assert delay_ms == limits.ACCEPT_PAUSE_MS
        rig.later.clear()
        resume()
        assert rig.watched == {rig.listener.fileno()}
    rig.turn()
    rig.acceptor.close()
    rig.later[0][1]()
    assert not rig.watched, "it was closed meanwhile"


def test_of_few_descriptors_a_quarter_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    assert [accept.may_keep(descriptor) for descriptor in (3, 47, 48, 63)] == [
        True,
        True,
        False,
        False,
    ]
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert accept.may_keep(1_000_000)
