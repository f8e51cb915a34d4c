"""What says nothing of a job that is not on disk leaves before the disk has answered.

While the rig `holds`, replies that wait for the disk stay where they are. What is heard then has
left without waiting.
"""

import random
import socket
from typing import Final

import pytest

from delayd.line.server import Client, LineServer
from delayd.net.poller import IN
from tests.rigs.line_sockets import ServerRig, heard, plain

PUT: Final = b"put 0 0 60 1\r\nx\r\n"
DELAYED_PUT: Final = b"put 0 1 60 1\r\nx\r\n"
RESERVED: Final = b"RESERVED %d 1\r\nx\r\n"


# --- What must wait ------------------------------------------------------------------------------


def test_a_second_answer_of_the_same_turn_leaves_with_the_first_and_behind_it(
    rig: ServerRig,
) -> None:
    """The consumer waits again, and gets what another puts when its own wait has ended."""
    producer, consumer = rig.client(), rig.client()
    rig.says(consumer, b"reserve\r\nreserve\r\n")
    other = rig.client()
    rig.says(other, b"watch other\r\nignore default\r\nreserve\r\n" + PUT)
    heard(other)
    rig.durable.durable_id = 2
    rig.says(producer, DELAYED_PUT + b"use other\r\n" + DELAYED_PUT)
    rig.sends.clear()
    rig.pass_ms(1_002)
    assert heard(consumer) == RESERVED % 1 + RESERVED % 3
    waited = rig.clients[1]
    assert plain(waited).getpeername() == consumer.getsockname()
    assert [sock for sock in rig.sends if sock is waited.sock] == [waited.sock]
    assert not waited.promised


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
                rig.pass_ms(rng.choice((1, 1_001)))
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


@pytest.mark.thorough
def test_each_client_hears_the_same_with_and_without_free_replies(seed: int) -> None:
    free = 0
    for number in range(12):
        rngs = [random.Random(f"{seed} {number}") for _ in range(2)]
        told, some = conversation(rngs[0], may_be_free=True)
        assert conversation(rngs[1], may_be_free=False) == (told, 0), number
        free += some
    assert free > 30
