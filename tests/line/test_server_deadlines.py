"""Slow clients of a server with real sockets, on a clock of deadlines that is told to go on."""

import pytest

from delayd.core.stats.refusals import Refusals
from tests.rigs.line_sockets import ServerRig, heard, is_cut_off

PUT = b"put 0 0 60 2\r\nhi\r\n"


@pytest.mark.parametrize(
    ("before", "said"),
    [
        pytest.param(b"list-tube-used\r\n", b"stats\r\n", id="a command line after another"),
        pytest.param(b"put 0 0 60 500\r\n" + b"x" * 100, b"x" * 400, id="the rest of a body"),
        pytest.param(b"put 0 0 60 99999\r\n", b"x" * 500, id="a body that is thrown away"),
        pytest.param(b"put-in-tube t" + b"x" * 1_100, b"x" * 500, id="a line of ours too long"),
    ],
)
def test_what_drips_is_cut_off(before: bytes, said: bytes) -> None:
    reasons = Refusals()
    with ServerRig(refusals=reasons) as rig:
        client, other = rig.client(), rig.client()
        rig.says(client, before)
        rig.says(other, b"reserve\r\n")
        (waits,) = [each for each in rig.clients if each.connection.is_waiting]
        for byte in said[:4]:
            client.send(bytes([byte]))
            rig.turn_until_quiet(some=True)
            rig.elapses(4)
            if rig.clients == [waits]:
                break
        assert rig.clients == [waits]
        assert reasons.by_reason["TOO_SLOW"] == 1
        assert is_cut_off(client)
        rig.says(rig.client(), PUT)
        assert heard(other).endswith(b" 2\r\nhi\r\n")


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
    assert heard(client) == b"USING default\r\n"
    assert rig.clients


def test_a_second_in_which_clients_are_not_listened_to_does_not_count(rig: ServerRig) -> None:
    client = rig.client()
    rig.says(client, b"list-")
    for _ in range(100):
        rig.elapsed_ms += 1_000
        rig.poller.serve(rig.poller.poll(0, hears_clients=False))
    rig.says(client, b"tube-used\r\n")
    assert heard(client) == b"USING default\r\n"
