"""`kick <n>` of many jobs: a background task with beanstalkd's reply at its end."""

import pytest

from delayd.limits import KICKS_AT_ONCE
from tests.rigs.line import Client, LineRig

JOBS = KICKS_AT_ONCE + 300


def bury_many(client: Client, jobs: int = JOBS) -> None:
    client.says(b"put 0 0 60 1\r\nx\r\n" * jobs)
    for first in range(1, jobs + 1, 100):
        client.says(b"reserve\r\n" * min(100, jobs + 1 - first))
        ids = range(first, min(first + 100, jobs + 1))
        client.says(b"".join(b"bury %d 0\r\n" % job_id for job_id in ids))


def buried(client: Client) -> int:
    lines = client.says(b"stats-tube default\r\n").decode().splitlines()
    return next(int(line.split(": ")[1]) for line in lines if line.startswith("current-jobs-buri"))


def begun(client: Client, rig: LineRig, said: bytes = b"kick 1000000\r\n") -> None:
    """Have it begin a kick that goes on."""
    client.connection.receive(said, rig.now_ms)
    assert client.connection.is_waiting
    assert not client.connection.out


@pytest.mark.parametrize("bound", [0, 1, KICKS_AT_ONCE - 1])
def test_a_small_one_is_answered_at_once(bound: int) -> None:
    rig = LineRig()
    client = rig.client()
    bury_many(client)
    client.connection.receive(b"kick %d\r\n" % bound, rig.now_ms)
    assert client.connection.take_out() == b"KICKED %d\r\n" % bound


def test_one_of_few_jobs_is_answered_at_once() -> None:
    rig = LineRig()
    client = rig.client()
    bury_many(client, KICKS_AT_ONCE - 1)
    client.connection.receive(b"kick 4000000000\r\n", rig.now_ms)
    assert client.connection.take_out() == b"KICKED %d\r\n" % (KICKS_AT_ONCE - 1)


def test_what_follows_waits_for_the_reply_and_others_are_served() -> None:
    rig = LineRig()
    client, other = rig.client(), rig.client()
    bury_many(client)
    begun(client, rig, b"kick 1000000\r\nlist-tube-used\r\n")
    assert rig.steps_beside(client, other) > 3
    assert client.connection.take_out() == b"KICKED %d\r\nUSING default\r\n" % JOBS
    assert client.connection.stats.counts["kick"] == 1


def test_it_goes_on_when_its_client_has_closed() -> None:
    rig = LineRig()
    client, other = rig.client(), rig.client()
    bury_many(client)
    begun(client, rig)
    client.closes()
    assert not rig.tasks.has_more
    assert buried(other) == 0


def test_a_client_that_says_no_more_is_answered() -> None:
    rig = LineRig()
    client = rig.client()
    bury_many(client)
    begun(client, rig)
    client.connection.half_close(rig.now_ms)
    rig.turn()
    assert client.replies() == b"KICKED %d\r\n" % JOBS


def test_a_second_one_at_once_shares_the_jobs_with_the_first() -> None:
    rig = LineRig()
    clients = [rig.client() for _ in range(2)]
    bury_many(clients[0])
    for client in clients:
        begun(client, rig, b"kick %d\r\n" % (JOBS - KICKS_AT_ONCE))
    rig.turn()
    kicked = [int(client.replies().split()[1]) for client in clients]
    assert sum(kicked) == JOBS


def test_of_many_delayed_jobs_it_waits_for_the_scan() -> None:
    rig = LineRig()
    client = rig.client()
    client.says(b"put 0 60 60 1\r\nx\r\n" * 1_500)
    begun(client, rig, b"kick 1400\r\n")
    rig.turn()
    assert client.replies() == b"KICKED 1400\r\n"
