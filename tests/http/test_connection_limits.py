"""Who is let in, and what all of them may hold together."""

import resource

import pytest

from delayd import limits
from delayd.access.admission import Refused
from delayd.http.connections import Bounds, Connection, Deadline
from delayd.http.problems import Busy
from delayd.http.responses import closing_reply
from tests.http.guarded import FAR, HERE, Scene, get, head_of_post, post, scenario, settle

ELSEWHERE = ("198.51.100.7", 50_000)
MIB = 1 << 20


@scenario(Bounds(connections_max=3))
async def test_there_are_so_many_connections_in_all(scene: Scene) -> None:
    clients = [scene.connect(peer) for peer in (FAR, HERE, ELSEWHERE)]
    assert scene.try_to_connect(HERE) is Refused.CONNECTIONS
    assert scene.connections.refused[Refused.CONNECTIONS] == 1
    await clients[0].break_off()
    scene.connect(FAR)
    assert scene.try_to_connect(FAR) is Refused.CONNECTIONS


@scenario(Bounds(connections_per_ip_max=2))
async def test_there_are_so_many_connections_of_one_address(scene: Scene) -> None:
    clients = [scene.connect(FAR), scene.connect(FAR)]
    assert scene.try_to_connect(FAR) is Refused.CONNECTIONS_PER_IP
    scene.connect(ELSEWHERE)
    await clients[1].break_off()
    scene.connect(FAR)
    assert scene.connections.refused[Refused.CONNECTIONS_PER_IP] == 1


@pytest.mark.parametrize("peer", [HERE, ("::1", 1, 0, 0), ("::ffff:127.0.0.1", 1, 0, 0), "", None])
def test_those_of_this_machine_are_not_counted_one_by_one(peer: object) -> None:
    @scenario(Bounds(connections_per_ip_max=1, strangers_per_ip_max=1), needs_token=True)
    async def play(scene: Scene) -> None:
        for _ in range(5):
            scene.connect(peer)

    play()


@scenario(Bounds(connections_per_ip_max=1))
async def test_a_network_of_ipv6_counts_as_one_address(scene: Scene) -> None:
    scene.connect(("2001:db8:0:1::1", 1, 0, 0))
    assert scene.try_to_connect(("2001:db8:0:1:2:3:4:5", 1, 0, 0)) is Refused.CONNECTIONS_PER_IP
    scene.connect(("2001:db8:0:2::1", 1, 0, 0))
    scene.connect(("fe80::1%eth0", 1, 0, 2))
    scene.connect(("::ffff:192.0.2.1", 1, 0, 0))
    assert scene.try_to_connect(FAR) is Refused.CONNECTIONS_PER_IP


@scenario(Bounds(strangers_per_ip_max=2), needs_token=True)
async def test_those_without_a_token_are_fewer(scene: Scene) -> None:
    clients = [scene.connect(FAR), scene.connect(FAR)]
    assert scene.try_to_connect(FAR) is Refused.STRANGERS_PER_IP
    scene.connect(ELSEWHERE)
    clients[0].connection.has_shown_token()
    clients[0].connection.has_shown_token()
    scene.connections.check()
    scene.connect(FAR)
    assert scene.try_to_connect(FAR) is Refused.STRANGERS_PER_IP
    await clients[0].break_off()
    assert scene.try_to_connect(FAR) is Refused.STRANGERS_PER_IP
    await clients[1].break_off()
    scene.connect(FAR)
    assert scene.connections.refused[Refused.STRANGERS_PER_IP] == 3


@scenario(Bounds(strangers_per_ip_max=1))
async def test_where_nobody_needs_a_token_nobody_is_a_stranger(scene: Scene) -> None:
    for _ in range(5):
        scene.connect(FAR)
        scene.connect(FAR).connection.has_shown_token()


@scenario()
async def test_the_last_descriptors_are_left_to_the_journal(scene: Scene) -> None:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    first_reserved = limit - min(limits.DESCRIPTORS_RESERVED, limit // 4)
    scene.connect(FAR, first_reserved - 1)
    assert scene.try_to_connect(FAR, first_reserved) is Refused.DESCRIPTORS


@scenario()
async def test_a_client_that_never_gets_through_is_forgotten(scene: Scene) -> None:
    admitted = scene.try_to_connect(FAR)
    assert isinstance(admitted, Connection)
    scene.connections.forget(admitted)
    scene.connections.forget(admitted)
    assert scene.connections.open_count == 0


# --- What is held --------------------------------------------------------------------------------


@scenario(Bounds(held_bytes_max=MIB))
async def test_bodies_in_flight_are_bounded_over_all_connections(scene: Scene) -> None:
    clients = [scene.connect(("192.0.2.9", port)) for port in range(9)]
    for client in clients[:8]:
        await client.send(head_of_post("/body", MIB) + b"x" * (120 << 10))
    assert not any(client.received for client in clients)
    assert scene.connections.held_bytes < MIB
    await clients[8].send(head_of_post("/body", MIB) + b"x" * (120 << 10))
    problem = clients[8].problem()
    assert (problem["status"], problem["word"]) == (503, "BUSY")
    assert b"Retry-After: 1" in clients[8].received
    assert clients[8].is_closed()
    assert scene.connections.refused[Refused.HELD_BYTES] == 1
    assert not any(client.received for client in clients[:8]), "who was there first goes on"


@scenario(Bounds(held_bytes_max=MIB))
async def test_small_requests_are_carried_out_however_much_others_send(scene: Scene) -> None:
    big, other, small = scene.connect(), scene.connect(), scene.connect()
    await big.send(head_of_post("/body", 2 * MIB) + b"x" * (MIB - 100))
    await small.send(post("/body", b"x" * 15_000))
    assert small.status() == 200
    await other.send(post("/body", b"x" * 17_000))
    assert other.status() == 503
    assert scene.done == ["/body"], "what was refused is not carried out"
    assert not big.received
    await big.break_off()
    assert scene.connections.held_bytes == 0


@scenario(Bounds(held_bytes_max=MIB))
async def test_a_request_that_is_refused_is_not_carried_out(scene: Scene) -> None:
    client = scene.connect()
    await client.send(post("/body", b"x" * (2 * MIB)))
    assert client.status() == 503
    assert not scene.done


@scenario(Bounds(held_bytes_max=MIB))
async def test_a_handler_that_is_reading_may_be_cut_off(scene: Scene) -> None:
    big, other = scene.connect(), scene.connect()
    await big.send(head_of_post("/body", 2 * MIB) + b"x" * (MIB - 50_000))
    await other.send(head_of_post("/body", MIB) + b"x" * 10_000)
    await other.send(b"x" * 100_000)
    assert other.status() == 503
    assert other.is_closed()
    assert not scene.done
    assert not scene.faults, "that nobody is there any more is no fault of ours"


@scenario(Bounds(held_bytes_max=MIB))
async def test_a_request_refused_behind_another_gets_no_answer_that_could_be_mistaken(
    scene: Scene,
) -> None:
    client = scene.connect()
    await client.send(get("/slow") + head_of_post("/body", 2 * MIB))
    await client.send(b"x" * (2 * MIB))
    assert client.was_aborted
    assert not client.received


@scenario(Bounds(held_bytes_max=MIB))
async def test_what_is_answered_is_held_no_longer_however_much_comes_in_a_row(
    scene: Scene,
) -> None:
    client = scene.connect()
    row = post("/body", b"x" * 10_000) * 8
    for _ in range(40):
        await client.send(row[:-100])
        await client.send(row[-100:])
        await settle()
        assert scene.connections.held_bytes == 0
    assert client.statuses() == [200] * 320


@scenario(Bounds(held_bytes_max=MIB))
async def test_an_endless_row_does_not_pile_up_in_the_books(scene: Scene) -> None:
    client = scene.connect()
    one = post("/body", b"x" * 10_000)
    await client.send(one[:5_000])
    highest = 0
    for _ in range(300):
        # There is always the beginning of one more, so the row never ends.
        await client.send(one[5_000:] + one[:5_000])
        highest = max(highest, scene.connections.held_bytes)
    assert client.statuses() == [200] * 300
    assert highest < 40_000


@scenario(Bounds(held_bytes_max=MIB))
async def test_the_head_of_a_request_counts_as_well(scene: Scene) -> None:
    client = scene.connect()
    await client.send(b"GET /quick HTTP/1.1\r\nHost: x\r\n")
    for number in range(100):
        await client.send(b"X-%d: " % number + b"y" * 8_000 + b"\r\n")
    assert scene.connections.held_bytes > 800_000
    await client.send(b"\r\n")
    assert client.status() == 200
    assert scene.connections.held_bytes == 0


# --- Many ----------------------------------------------------------------------------------------


@scenario()
async def test_many_that_are_due_at_once_are_closed_in_slices(scene: Scene) -> None:
    clients = [scene.connect(HERE) for _ in range(3 * limits.LOOKS_MAX)]
    await settle()
    scene.clock_ms += 20_000
    scene.connections.deadlines.go()
    closing = sum(client.is_closing() for client in clients)
    assert closing == limits.LOOKS_MAX
    for _ in range(2):
        scene.connections.deadlines.go()
    await settle()
    assert all(client.is_closed() for client in clients)
    assert scene.connections.closed[Deadline.HEADER] == len(clients)


@scenario()
async def test_the_guard_closes_whatever_is_left(scene: Scene) -> None:
    clients = [scene.connect(HERE) for _ in range(3)]
    await clients[0].send(get("/slow"))
    clients[1].takes = False
    await clients[1].send(get("/long?bytes=1000000"))
    scene.connections.close()
    await settle()
    assert all(client.was_aborted for client in clients)
    assert scene.connections.open_count == 0


def test_a_reply_says_when_it_may_go_better() -> None:
    head, _, body = closing_reply(Busy("no room")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert b"\r\nRetry-After: 1" in head
    assert b"\r\nContent-Length: %d\r\n" % len(body) in head
    assert b"\r\nConnection: close" in head
