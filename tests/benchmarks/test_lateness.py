"""The stream of the lateness rows: what its workers say, and how much it keeps on its way."""

import socket
from collections.abc import Iterator

import pytest

import benchmarks.lateness
from benchmarks.lateness import FILLER, NUMBER_DIGITS, UNANSWERED_MAX, Loop, Stream
from benchmarks.load import BODY_BYTES

RESERVED = b"RESERVED 7 %d\r\n%0*d%b\r\n" % (BODY_BYTES, NUMBER_DIGITS, 0, FILLER)


class Rig:
    """A stream with one worker, and the server's ends of its connections."""

    def __init__(self, *, one_in_flight: bool) -> None:
        self.ends: list[socket.socket] = []
        self.loop = Loop()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(benchmarks.lateness, "connect", self.connect)
            self.stream = Stream(
                *(self.loop, 0, b"default"), workers=1, delays_s=(1,), one_in_flight=one_in_flight
            )
        self.producer, self.worker = self.ends

    def connect(self, _port: int) -> socket.socket:
        ours, theirs = socket.socketpair()
        theirs.sendall(b"USING default\r\n")  # to what each connection says first
        self.ends.append(theirs)
        return ours

    def close(self) -> None:
        self.loop.close()
        for end in self.ends:
            end.close()

    def turn(self) -> None:
        turns = iter((False, True))
        self.loop.run(lambda _now: next(turns))

    def heard(self, end: socket.socket) -> bytes:
        return end.recv(1 << 20, socket.MSG_DONTWAIT)

    def after(self, reply: bytes) -> bytes:
        """What the worker says after a reply."""
        self.worker.sendall(reply)
        self.turn()
        return self.heard(self.worker)


@pytest.fixture
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    rig = Rig(one_in_flight=getattr(request, "param", True))
    yield rig
    rig.close()


def test_a_lone_worker_waits_for_each_reply(rig: Rig) -> None:
    rig.stream.keep_standing(1)
    rig.turn()
    assert rig.heard(rig.worker) == b"watch default\r\nreserve\r\n"
    assert rig.after(RESERVED) == b"delete 7\r\n"
    assert rig.after(b"DELETED\r\n") == b"reserve\r\n"
    assert rig.stream.arrived == 1


@pytest.mark.parametrize("rig", [False], indirect=True)
def test_any_other_worker_reserves_with_its_delete(rig: Rig) -> None:
    rig.stream.keep_standing(1)
    rig.turn()
    rig.heard(rig.worker)
    assert rig.after(RESERVED) == b"delete 7\r\nreserve\r\n"
    assert rig.after(b"DELETED\r\n" + RESERVED) == b"delete 7\r\nreserve\r\n"


def test_a_stream_that_keeps_jobs_standing_puts_one_for_each_that_arrives(rig: Rig) -> None:
    rig.stream.keep_standing(UNANSWERED_MAX + 1)
    rig.turn()
    assert rig.heard(rig.producer).count(b"put ") == UNANSWERED_MAX
    rig.producer.sendall(b"INSERTED 1\r\n" * UNANSWERED_MAX)
    for _ in range(2):
        rig.turn()
    assert rig.heard(rig.producer).count(b"put ") == 1
    rig.after(RESERVED)
    rig.turn()
    assert rig.heard(rig.producer).count(b"put ") == 1
