"""Who is let in, and what all of them may hold together."""

import resource

from delayd import limits
from delayd.access.connection_limits import Rejection
from delayd.http.connection import Bounds, HttpConnection
from delayd.http.problems import Busy
from delayd.http.responses import closing_reply
from tests.rigs.http_connections import (
    FAR,
    HERE,
    ConnectionRig,
    get,
    head_of_post,
    post,
    scenario,
    settle,
)

ELSEWHERE = ("198.51.100.7", 50_000)
MIB = 1 << 20


@scenario(Bounds(connections_max=3))
async def test_there_are_so_many_connections_in_all(rig: ConnectionRig) -> None:
    clients = [rig.connect(peer) for peer in (FAR, HERE, ELSEWHERE)]
    assert rig.try_to_connect(HERE) is Rejection.CONNECTIONS
    assert rig.noted["CONNECTIONS"] == 1
    await clients[0].break_off()
    rig.connect(FAR)
    assert rig.try_to_connect(FAR) is Rejection.CONNECTIONS


@scenario(Bounds(connections_per_ip_max=2))
async def test_there_are_so_many_connections_of_one_address(rig: ConnectionRig) -> None:
    clients = [rig.connect(FAR), rig.connect(FAR)]
    assert rig.try_to_connect(FAR) is Rejection.CONNECTIONS_PER_IP
    rig.connect(ELSEWHERE)
    await clients[1].break_off()
    rig.connect(FAR)
    assert rig.noted["CONNECTIONS_PER_IP"] == 1


@scenario(Bounds(strangers_per_ip_max=2), needs_token=True)
async def test_those_without_a_token_are_fewer(rig: ConnectionRig) -> None:
    clients = [rig.connect(FAR), rig.connect(FAR)]
    assert rig.try_to_connect(FAR) is Rejection.STRANGERS_PER_IP
    rig.connect(ELSEWHERE)
    clients[0].connection.has_shown_token()
    clients[0].connection.has_shown_token()
    rig.connections.check()
    rig.connect(FAR)
    assert rig.try_to_connect(FAR) is Rejection.STRANGERS_PER_IP
    await clients[0].break_off()
    assert rig.try_to_connect(FAR) is Rejection.STRANGERS_PER_IP
    await clients[1].break_off()
    rig.connect(FAR)
    assert rig.noted["STRANGERS_PER_IP"] == 3


@scenario(Bounds(strangers_per_ip_max=1))
async def test_where_nobody_needs_a_token_nobody_is_a_stranger(rig: ConnectionRig) -> None:
    for _ in range(5):
        rig.connect(FAR)
        rig.connect(FAR).connection.has_shown_token()


@scenario()
async def test_the_last_descriptors_are_left_to_the_journal(rig: ConnectionRig) -> None:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    first_reserved = limit - min(limits.DESCRIPTORS_RESERVED, limit // 4)
    rig.connect(FAR, first_reserved - 1)
    assert rig.try_to_connect(FAR, first_reserved) is Rejection.DESCRIPTORS


@scenario()
async def test_a_client_that_never_gets_through_is_forgotten(rig: ConnectionRig) -> None:
    admitted = rig.try_to_connect(FAR)
    assert isinstance(admitted, HttpConnection)
    rig.connections.forget(admitted)
    rig.connections.forget(admitted)
    assert rig.connections.open_count == 0


# --- What is held --------------------------------------------------------------------------------


@scenario(Bounds(held_bytes_max=MIB))
async def test_bodies_in_flight_are_bounded_over_all_connections(rig: ConnectionRig) -> None:
    clients = [rig.connect(("192.0.2.9", port)) for port in range(9)]
    for client in clients[:8]:
        await client.send(head_of_post("/body", MIB) + b"x" * (120 << 10))
    assert not any(client.received for client in clients)
    assert rig.connections.held_bytes < MIB
    await clients[8].send(head_of_post("/body", MIB) + b"x" * (120 << 10))
    problem = clients[8].problem()
    assert (problem["status"], problem["word"]) == (503, "BUSY")
    assert b"Retry-After: 1" in clients[8].received
    assert clients[8].is_closed()
    assert rig.noted["HELD_BYTES"] == 1
    assert not any(client.received for client in clients[:8]), "who was there first goes on"


@scenario(Bounds(held_bytes_max=MIB))
async def test_small_requests_are_carried_out_however_much_others_send(rig: ConnectionRig) -> None:
    big, other, small = rig.connect(), rig.connect(), rig.connect()
    await big.send(head_of_post("/body", 2 * MIB) + b"x" * (MIB - 100))
    await small.send(post("/body", b"x" * 15_000))
    assert small.status() == 200
    await other.send(post("/body", b"x" * 17_000))
    assert other.status() == 503
    assert rig.done == ["/body"], "what was refused is not carried out"
    assert not big.received
    await big.break_off()
    assert rig.connections.held_bytes == 0


@scenario(Bounds(held_bytes_max=MIB))
async def test_a_request_that_is_refused_is_not_carried_out(rig: ConnectionRig) -> None:
    client = rig.connect()
    await client.send(post("/body", b"x" * (2 * MIB)))
    assert client.status() == 503
    assert not rig.done


@scenario(Bounds(held_bytes_max=MIB))
async def test_a_handler_that_is_reading_may_be_cut_off(rig: ConnectionRig) -> None:
    big, other = rig.connect(), rig.connect()
    await big.send(head_of_post("/body", 2 * MIB) + b"x" * (MIB - 50_000))
    await other.send(head_of_post("/body", MIB) + b"x" * 10_000)
    await other.send(b"x" * 100_000)
    assert other.status() == 503
    assert other.is_closed()
    assert not rig.done
    assert not rig.faults, "that nobody is there any more is no fault of ours"


@scenario(Bounds(held_bytes_max=MIB))
async def test_a_request_refused_behind_another_gets_no_answer_that_could_be_mistaken(
    rig: ConnectionRig,
) -> None:
    client = rig.connect()
    await client.send(get("/slow") + head_of_post("/body", 2 * MIB))
    await client.send(b"x" * (2 * MIB))
    assert client.was_aborted
    assert not client.received


@scenario(Bounds(held_bytes_max=MIB))
async def test_what_is_answered_is_held_no_longer_however_much_comes_in_a_row(
    rig: ConnectionRig,
) -> None:
    client = rig.connect()
    row = post("/body", b"x" * 10_000) * 8
    for _ in range(40):
        await client.send(row[:-100])
        await client.send(row[-100:])
        await settle()
        assert rig.connections.held_bytes == 0
    assert client.statuses() == [200] * 320


@scenario(Bounds(held_bytes_max=MIB))
async def test_an_endless_row_does_not_pile_up_in_the_books(rig: ConnectionRig) -> None:
    client = rig.connect()
    one = post("/body", b"x" * 10_000)
    await client.send(one[:5_000])
    highest = 0
    for _ in range(300):
        # There is always the beginning of one more, so the row never ends.
        await client.send(one[5_000:] + one[:5_000])
        highest = max(highest, rig.connections.held_bytes)
    assert client.statuses() == [200] * 300
    assert highest < 40_000


@scenario(Bounds(held_bytes_max=MIB))
async def test_the_head_of_a_request_counts_as_well(rig: ConnectionRig) -> None:
    client = rig.connect()
    await client.send(b"GET /quick HTTP/1.1\r\nHost: x\r\n")
    for number in range(100):
        await client.send(b"X-%d: " % number + b"y" * 8_000 + b"\r\n")
    assert rig.connections.held_bytes > 800_000
    await client.send(b"\r\n")
    assert client.status() == 200
    assert rig.connections.held_bytes == 0


# --- Many ----------------------------------------------------------------------------------------


@scenario()
async def test_many_that_are_due_at_once_are_closed_in_slices(rig: ConnectionRig) -> None:
    clients = [rig.connect(HERE) for _ in range(3 * limits.LOOKS_MAX)]
    await settle()
    rig.clock_ms += 20_000
    rig.connections.deadlines.go()
    closing = sum(client.is_closing() for client in clients)
    assert closing == limits.LOOKS_MAX
    for _ in range(2):
        rig.connections.deadlines.go()
    await settle()
    assert all(client.is_closed() for client in clients)
    assert rig.noted["SLOW_HEADER"] == len(clients)


@scenario()
async def test_the_guard_closes_whatever_is_left(rig: ConnectionRig) -> None:
    clients = [rig.connect(HERE) for _ in range(3)]
    await clients[0].send(get("/slow"))
    clients[1].takes = False
    await clients[1].send(get("/long?bytes=1000000"))
    rig.connections.close()
    await settle()
    assert all(client.was_aborted for client in clients)
    assert rig.connections.open_count == 0


def test_a_reply_says_when_it_may_go_better() -> None:
    head, _, body = closing_reply(Busy("no room")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert b"\r\nRetry-After: 1" in head
    assert b"\r\nContent-Length: %d\r\n" % len(body) in head
    assert b"\r\nConnection: close" in head
