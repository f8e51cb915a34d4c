"""Commands of ours that look at many jobs or change them: replies, waiting, refusals."""

import pytest

from delayd.limits import TASK_STEP_JOBS
from tests.rigs.line import Client, LineRig

BAD = b"BAD_FORMAT\r\n"
NOT_FOUND = b"NOT_FOUND\r\n"


def put(client: Client, delay: bytes = b"0", words: bytes = b"", *, priority: int = 0) -> None:
    said = client.says(b"put %d %b 60 1%b\r\nx\r\n" % (priority, delay, words))
    assert said.startswith(b"INSERTED "), said


def many(client: Client, jobs: int) -> None:
    client.says(b"put 0 60 60 1\r\nx\r\n" * jobs)


def states(client: Client) -> list[int]:
    lines = client.says(b"stats-tube default\r\n").decode().splitlines()
    return [int(line.split(": ")[1]) for line in lines if line.startswith("current-jobs-")][1:5]


@pytest.fixture
def client() -> Client:
    return LineRig(is_virtual=True).client()


def test_pages_follow_each_other(client: Client) -> None:
    for delay in range(25):
        put(client, b"%d" % (delay % 5))
    seen: list[str] = []
    after = ""
    while True:
        page = client.says(f"list-jobs default limit=7{after}\r\n".encode()).decode()
        seen += [line for line in page.splitlines() if line.startswith("- ")]
        cursor = page.splitlines()[2].removeprefix("after: ").strip('"')
        if not cursor:
            break
        after = f" after={cursor}"
    assert len(seen) == len(set(seen)) == 25
    assert seen == sorted(seen, key=lambda line: line.split("due: ")[1])


def test_a_connection_waits_for_its_pass_and_others_are_served() -> None:
    rig = LineRig()
    client, other = rig.client(), rig.client()
    many(client, 3 * TASK_STEP_JOBS)
    client.connection.receive(b"cancel-jobs default\r\nlist-tube-used\r\n", rig.now_ms)
    assert client.connection.is_waiting
    assert rig.steps_beside(client, other) > 3
    assert client.connection.take_out() == b"CANCELLED 768\r\nUSING default\r\n"


def test_a_pass_is_forgotten_when_its_connection_closes() -> None:
    rig = LineRig()
    client, other = rig.client(), rig.client()
    many(client, 3 * TASK_STEP_JOBS)
    client.connection.receive(b"cancel-jobs default\r\n", rig.now_ms)
    rig.step_task()
    client.closes()
    assert not rig.tasks.has_more
    left = states(other)[2]
    assert 0 < left < 3 * TASK_STEP_JOBS


def test_who_says_no_more_is_answered_all_the_same() -> None:
    rig = LineRig()
    client = rig.client()
    many(client, 3 * TASK_STEP_JOBS)
    client.connection.receive(b"cancel-jobs default\r\nreserve\r\n", rig.now_ms)
    client.connection.half_close(rig.now_ms)
    rig.turn()
    assert client.replies() == b"CANCELLED 768\r\nTIMED_OUT\r\n"


def test_passes_take_turns() -> None:
    rig = LineRig()
    clients = [rig.client() for _ in range(3)]
    many(clients[0], 2 * TASK_STEP_JOBS)
    for client in clients:
        client.connection.receive(b"calendar default 100 1\r\n", rig.now_ms)
    answered = []
    while rig.tasks.has_more:
        connection = rig.step_task()
        if connection is not None:
            answered.append(connection)
    assert answered == [client.connection for client in clients]
