"""What says nothing of a job that is not on disk leaves before the disk has answered.

While the rig `holds`, replies that wait for the disk stay where they are. What is heard then has
left without waiting.
"""

import random
import socket
import struct
from collections.abc import Iterator
from typing import Final

import pytest

from delayd.core.operations.tick import advance
from delayd.core.times import PlayedMs, RequestMs
from delayd.line.server import Client, LineServer
from delayd.net.poller import IN
from tests.rigs.line_sockets import ServerRig, heard, plain

PUT: Final = b"put 0 0 60 1\r\nx\r\n"
DELAYED_PUT: Final = b"put 0 1 60 1\r\nx\r\n"
RESERVED: Final = b"RESERVED %d 1\r\nx\r\n"


@pytest.fixture
def rig() -> Iterator[ServerRig]:
    with ServerRig() as made:
        yield made


@pytest.fixture
def producer(rig: ServerRig) -> socket.socket:
    return rig.client()


@pytest.fixture
def consumer(rig: ServerRig) -> socket.socket:
    return rig.client()


def passes(rig: ServerRig, ms: int) -> None:
    """Let time pass, what is due happen, and a turn end."""
    rig.now_ms = RequestMs(rig.now_ms + ms)
    while advance(rig.engine, PlayedMs(rig.now_ms - 1), rig.now_ms):
        pass
    rig.end_turn()
    rig.turn_until_quiet()


# --- What leaves at once -------------------------------------------------------------------------


def test_a_waiting_consumer_gets_its_durable_job_while_other_replies_wait(
    rig: ServerRig, producer: socket.socket, consumer: socket.socket
) -> None:
    rig.says(producer, DELAYED_PUT)
    rig.says(consumer, b"reserve\r\n")
    heard(producer)
    rig.holds = True
    rig.says(producer, b"put 0 9 60 1\r\nx\r\n")
    passes(rig, 1_002)
    assert heard(consumer) == RESERVED % 1
    assert heard(producer) == b""
    rig.release()
    assert heard(producer) == b"INSERTED 2\r\n"
    assert heard(consumer) == b""


def test_the_end_of_a_wait_leaves_at_once(rig: ServerRig, consumer: socket.socket) -> None:
    rig.holds = True
    rig.says(consumer, b"reserve-with-timeout 1\r\n")
    rig.release()
    passes(rig, 1_002)
    assert heard(consumer) == b"TIMED_OUT\r\n"


def test_the_warning_of_a_deadline_leaves_at_once(rig: ServerRig, consumer: socket.socket) -> None:
    rig.says(consumer, b"put 0 0 2 1\r\nx\r\nreserve\r\n")
    rig.says(consumer, b"reserve\r\n")
    heard(consumer)
    rig.holds = True
    passes(rig, 1_002)
    assert heard(consumer) == b"DEADLINE_SOON\r\n"


def test_a_consumer_served_at_once_is_read_from_again(
    rig: ServerRig, producer: socket.socket, consumer: socket.socket
) -> None:
    rig.says(producer, DELAYED_PUT)
    rig.says(consumer, b"reserve\r\n")
    rig.says(consumer, b"delete 1\r\n")
    rig.holds = True
    passes(rig, 1_002)
    assert heard(consumer) == RESERVED % 1
    rig.release()
    assert heard(consumer) == b"DELETED\r\n"
    rig.says(consumer, b"list-tube-used\r\n")
    rig.release()
    assert heard(consumer) == b"USING default\r\n"


def test_one_consumer_after_the_other_is_served_at_once(
    rig: ServerRig, producer: socket.socket
) -> None:
    consumers = [rig.client() for _ in range(5)]
    rig.says(producer, DELAYED_PUT * 5)
    for consumer in consumers:
        rig.says(consumer, b"reserve\r\n")
    rig.holds = True
    passes(rig, 1_002)
    assert [heard(each) for each in consumers] == [RESERVED % number for number in range(1, 6)]


# --- What must wait ------------------------------------------------------------------------------


@pytest.mark.parametrize(("durable_id", "leaves"), [(0, False), (1, True)])
def test_a_job_that_is_not_durable_waits_for_the_disk(
    rig: ServerRig,
    producer: socket.socket,
    consumer: socket.socket,
    durable_id: int,
    leaves: bool,
) -> None:
    rig.durable.durable_id = durable_id
    rig.says(consumer, b"reserve\r\n")
    rig.holds = True
    rig.says(producer, PUT)
    assert heard(consumer) == (RESERVED % 1 if leaves else b"")
    rig.release()
    assert heard(consumer) == (b"" if leaves else RESERVED % 1)


def test_a_job_whose_put_ended_after_those_of_others_is_told_of(
    rig: ServerRig, producer: socket.socket, consumer: socket.socket
) -> None:
    rig.says(producer, PUT[:-3])
    rig.says(consumer, PUT)
    assert rig.engine.take_out_of_order_ids() == []
    rig.says(producer, PUT[-3:])
    assert rig.engine.take_out_of_order_ids() == [1]
    assert rig.engine.take_out_of_order_ids() == []


def test_such_a_job_waits_for_the_disk_though_later_ones_need_not(
    rig: ServerRig, producer: socket.socket, consumer: socket.socket
) -> None:
    rig.durable.out_of_order_ids = {1}
    rig.says(consumer, b"reserve\r\n")
    rig.holds = True
    rig.says(producer, PUT)
    assert heard(consumer) == b""
    rig.release()
    assert heard(consumer) == RESERVED % 1


def test_a_batch_waits_for_the_disk(
    rig: ServerRig, producer: socket.socket, consumer: socket.socket
) -> None:
    rig.says(producer, DELAYED_PUT)
    rig.says(consumer, b"reserve-batch 5 10\r\n")
    rig.holds = True
    passes(rig, 1_002)
    assert heard(consumer) == b""
    rig.release()
    assert heard(consumer).startswith(b"RESERVED_BATCH 1\r\n")


def test_a_job_does_not_overtake_what_was_promised_to_its_consumer_before(
    rig: ServerRig, producer: socket.socket, consumer: socket.socket
) -> None:
    rig.says(producer, DELAYED_PUT)
    rig.holds = True
    rig.says(consumer, b"peek 1\r\n")
    rig.says(consumer, b"reserve\r\n")
    passes(rig, 1_002)
    assert heard(consumer) == b""
    rig.release()
    assert heard(consumer) == b"FOUND 1 1\r\nx\r\n" + RESERVED % 1


@pytest.mark.parametrize("said", [b"peek 1\r\n", b"use tube\r\n", b"peek 1\r\nuse tube\r\n"])
def test_nothing_overtakes_what_was_promised_to_the_same_client_before(
    rig: ServerRig, consumer: socket.socket, said: bytes
) -> None:
    rig.holds = True
    rig.says(consumer, PUT)
    rig.says(consumer, said)
    rig.says(consumer, b"list-tube-used\r\n")
    assert heard(consumer) == b""
    rig.release(1)
    assert heard(consumer) == b"INSERTED 1\r\n"
    rig.release()
    assert heard(consumer).endswith(b"USING default\r\n" if b"use" not in said else b"tube\r\n")


def test_what_follows_the_job_at_once_leaves_with_it(
    rig: ServerRig, producer: socket.socket, consumer: socket.socket
) -> None:
    rig.says(producer, DELAYED_PUT)
    rig.says(consumer, b"reserve\r\nlist-tube-used\r\n")
    rig.holds = True
    passes(rig, 1_002)
    assert heard(consumer) == RESERVED % 1 + b"USING default\r\n"


@pytest.mark.parametrize("said", [PUT, b"delete 1\r\n", b"peek 1\r\n", b"kick 1\r\n"])
def test_what_must_wait_for_the_disk_keeps_the_job_before_it_back(
    rig: ServerRig, producer: socket.socket, consumer: socket.socket, said: bytes
) -> None:
    rig.says(producer, DELAYED_PUT)
    rig.says(consumer, b"reserve\r\n" + said)
    rig.holds = True
    passes(rig, 1_002)
    assert heard(consumer) == b""
    rig.release()
    assert heard(consumer).startswith(RESERVED % 1)


def test_what_a_connection_says_of_itself_waits_for_nothing(
    rig: ServerRig, consumer: socket.socket
) -> None:
    rig.holds = True
    for said in (b"use a", b"watch a", b"ignore a", b"list-tubes", b"list-tube-used", b"stats"):
        rig.says(consumer, said + b"\r\n")
        assert heard(consumer), said
    rig.says(consumer, b"no such thing\r\n")
    assert heard(consumer) == b"UNKNOWN_COMMAND\r\n"
    rig.says(consumer, b"list\0tubes\r\n")
    assert heard(consumer) == b"BAD_FORMAT\r\n"


@pytest.mark.parametrize(
    "said",
    [
        b"put 0 0 60 1\r\ny\r\n",
        b"put-in-tube default 0 0 60 1\r\ny\r\n",
        b"delete 1\r\n",
        b"delete 9\r\n",
        b"peek 1\r\n",
        b"peek-ready\r\n",
        b"stats-job 1\r\n",
        b"reserve\r\n",
        b"reserve-with-timeout 0\r\n",
        b"reserve-job 1\r\n",
        b"kick-job 1\r\n",
        b"pause-tube default 9\r\n",
    ],
)
def test_what_says_what_a_job_is_waits_for_the_disk(
    rig: ServerRig, producer: socket.socket, consumer: socket.socket, said: bytes
) -> None:
    rig.holds = True
    rig.says(producer, PUT)
    rig.says(consumer, said)
    assert heard(consumer) == b""
    rig.release()
    assert heard(consumer) != b""


def test_a_second_answer_of_the_same_turn_leaves_with_the_first_and_behind_it(
    rig: ServerRig, producer: socket.socket, consumer: socket.socket
) -> None:
    """The consumer waits again, and gets what another puts when its own wait has ended."""
    rig.says(consumer, b"reserve\r\nreserve\r\n")
    other = rig.client()
    rig.says(other, b"watch other\r\nignore default\r\nreserve\r\n" + PUT)
    heard(other)
    rig.durable.durable_id = 2
    rig.says(producer, DELAYED_PUT + b"use other\r\n" + DELAYED_PUT)
    rig.sends.clear()
    passes(rig, 1_002)
    assert heard(consumer) == RESERVED % 1 + RESERVED % 3
    waited = rig.clients[1]
    assert plain(waited).getpeername() == consumer.getsockname()
    assert [sock for sock in rig.sends if sock is waited.sock] == [waited.sock]
    assert not waited.promised


# --- Who is gone ---------------------------------------------------------------------------------


def test_a_consumer_that_goes_in_the_turn_of_its_job_disturbs_nobody(
    rig: ServerRig, producer: socket.socket, consumer: socket.socket
) -> None:
    """It had said more while it waited, so it was not read from any longer."""
    rig.says(consumer, b"reserve\r\n")
    rig.says(consumer, b"list-tube-used\r\n")
    producer.sendall(PUT)
    consumer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    consumer.close()
    rig.turn_until_quiet(some=True)
    assert heard(producer) == b"INSERTED 1\r\n"
    rig.says(producer, b"reserve\r\n")
    assert heard(producer) == RESERVED % 1


def test_a_consumer_that_says_no_more_is_closed_behind_its_free_reply(
    rig: ServerRig, consumer: socket.socket
) -> None:
    rig.says(consumer, b"reserve\r\n")
    rig.holds = True
    consumer.shutdown(socket.SHUT_WR)
    rig.turn_until_quiet(some=True)
    assert heard(consumer) == b"TIMED_OUT\r\n"
    rig.release()
    rig.turn_until_quiet()
    assert rig.clients == []


# --- Whatever is said ----------------------------------------------------------------------------

WORDS: Final = (
    PUT,
    PUT * 3,
    DELAYED_PUT,
    DELAYED_PUT * 2,
    b"reserve\r\n",
    b"reserve\r\nreserve\r\n",
    b"reserve-with-timeout 1\r\n",
    b"reserve\r\nlist-tube-used\r\n",
    b"reserve\r\n" + PUT,
    b"reserve\r\nkick 2\r\n",
    b"reserve-batch 2 1\r\n",
    b"list-tube-used\r\n",
    b"kick 1\r\n",
    b"use a\r\n",
    b"use default\r\n",
    b"watch a\r\n",
    b"ignore default\r\n",
    b"pause-tube default 1\r\n",
)


def conversation(rng: random.Random, *, may_be_free: bool) -> tuple[list[bytes], int]:
    """What each client hears in a random conversation, and how many replies were free."""
    with ServerRig() as rig:
        if not may_be_free:
            rig.take_replies = Bound(rig.server).take_replies
        clients = [rig.client() for _ in range(4)]
        told = [b""] * len(clients)
        for _ in range(60):
            chance = rng.random()
            rig.durable.durable_id = rig.engine.store.last_id - rng.randrange(3)
            if chance < 0.6:
                number = rng.randrange(len(clients))
                clients[number].sendall(rng.choice(WORDS))
                rig.turn_until_quiet(some=is_read_from(rig, clients[number]))
            elif chance < 0.8:
                passes(rig, rng.choice((1, 1_001)))
            elif chance < 0.9:
                rig.holds = True
                rig.release(rng.randrange(4))
            else:
                rig.holds = False
                rig.release()
            rig.turn_until_quiet()
            for place, client in enumerate(clients):
                told[place] += heard(client)
        rig.release()
        for place, client in enumerate(clients):
            told[place] += heard(client)
        return told, rig.free_sends


class Bound:
    """Lets everything wait for the disk."""

    def __init__(self, server: LineServer) -> None:
        self._server = server

    def take_replies(self) -> list[tuple[Client, bytes]]:
        for client in self._server.dirty:
            client.connection.is_bound = True
        return self._server.take_replies()


def is_read_from(rig: ServerRig, client: socket.socket) -> bool:
    name = client.getsockname()
    return any(each.mask & IN for each in rig.clients if plain(each).getpeername() == name)


def test_each_client_hears_the_same_with_and_without_free_replies(seed: int) -> None:
    free = 0
    for number in range(12):
        rngs = [random.Random(f"{seed} {number}") for _ in range(2)]
        told, some = conversation(rngs[0], may_be_free=True)
        assert conversation(rngs[1], may_be_free=False) == (told, 0), number
        free += some
    assert free > 30
