"""Slow clients of a server with real sockets, on a clock of deadlines that is told to go on."""

from collections.abc import Iterator

import pytest

from delayd.core.stats.refusals import Refusals
from tests.rigs.line_sockets import ServerRig, heard, is_cut_off

PUT = b"put 0 0 60 2\r\nhi\r\n"
USED = b"list-tube-used\r\n"
USING = b"USING default\r\n"
BIG = 60_000
BIG_BODY = b"x" * BIG


@pytest.fixture
def reasons() -> Refusals:
    return Refusals()


@pytest.fixture
def rig(reasons: Refusals) -> Iterator[ServerRig]:
    with ServerRig(refusals=reasons) as rig:
        yield rig


@pytest.mark.parametrize(
    ("before", "said"),
    [
        pytest.param(b"", b"list-tube-used\r\n", id="a command line"),
        pytest.param(USED, b"stats\r\n", id="a command line after another"),
        pytest.param(b"", b"put 0 0 60 5\r\n", id="the line of a put"),
        pytest.param(b"put 0 0 60 500\r\n", b"x" * 500, id="a body"),
        pytest.param(b"put 0 0 60 500\r\n" + b"x" * 100, b"x" * 400, id="the rest of a body"),
        pytest.param(b"put 0 0 60 99999\r\n", b"x" * 500, id="a body that is thrown away"),
        pytest.param(b"x" * 230, b"x" * 500, id="a line too long"),
        pytest.param(b"put-in-tube t" + b"x" * 1_100, b"x" * 500, id="a line of ours too long"),
        pytest.param(b"change 1 bytes=99\r\n", b"x" * 99, id="the body of a change"),
    ],
)
def test_what_drips_is_cut_off(
    rig: ServerRig, reasons: Refusals, before: bytes, said: bytes
) -> None:
    client, other = rig.client(), rig.client()
    if before:
        rig.says(client, before)
    rig.says(other, b"reserve\r\n")
    (waits,) = [each for each in rig.clients if each.connection.is_waiting]
    count = 0
    for byte in said:
        client.send(bytes([byte]))
        rig.turn_until_quiet(some=True)
        rig.elapses(4)
        count += 1
        if rig.clients == [waits]:
            break
    assert rig.clients == [waits]
    assert count <= 4
    assert reasons.by_reason["TOO_SLOW"] == 1
    assert is_cut_off(client)
    rig.says(rig.client(), PUT)
    assert heard(other).endswith(b" 2\r\nhi\r\n")


def test_a_body_that_keeps_its_pace_may_take_a_minute(rig: ServerRig) -> None:
    client = rig.client()
    rig.says(client, b"put 0 0 60 %d\r\n" % BIG)
    for at in range(0, BIG, 1_100):
        rig.says(client, BIG_BODY[at : at + 1_100])
        rig.elapses(1)
    rig.says(client, b"\r\n")
    assert heard(client) == b"INSERTED 1\r\n"


def test_who_does_not_take_its_replies_is_not_called_slow(
    rig: ServerRig, reasons: Refusals
) -> None:
    client = rig.client(buffer_bytes=4_096)
    rig.says(client, b"put 0 0 60 %d\r\n" % BIG + BIG_BODY + b"\r\n")
    rig.says(client, b"peek 1\r\n" * 10 + b"list-")
    assert rig.clients[0].unsent
    assert rig.poller.timeouts.alarm_ms is not None
    rig.elapses(30)
    assert rig.clients
    expected = len(b"INSERTED 1\r\n") + 10 * len(b"FOUND 1 60000\r\n\r\n") + 10 * BIG
    taken = 0
    while taken < expected:
        taken += len(client.recv(10_000))
        rig.turn_until_quiet()
    rig.elapses(9)
    rig.says(client, b"tube-used\r\n")
    assert heard(client) == USING
    assert "TOO_SLOW" not in reasons.by_reason


def test_what_has_arrived_and_was_not_read_yet_is_read_before_anybody_is_cut_off(
    rig: ServerRig,
) -> None:
    client = rig.client()
    rig.says(client, b"list-")
    client.sendall(b"tube-used\r\n")
    for _ in range(12):
        rig.elapsed_ms += 1_000
        rig.poller.serve([])  # so many others have said something, it has no turn
    rig.turn_until_quiet()
    rig.end_turn()
    assert heard(client) == USING
    assert rig.clients


def test_a_second_in_which_clients_are_not_listened_to_does_not_count(rig: ServerRig) -> None:
    client = rig.client()
    rig.says(client, b"list-")
    for _ in range(100):
        rig.elapsed_ms += 1_000
        rig.poller.serve(rig.poller.poll(0, hears_clients=False))
    rig.says(client, b"tube-used\r\n")
    assert heard(client) == USING
