"""Commands that look at many jobs or change them: a background task with the reply at its end."""

from typing import Final

import pytest

from delayd.limits import KICKS_AT_ONCE, TASK_STEP_JOBS
from tests.rigs.line import Client, LineRig

BURIED: Final = KICKS_AT_ONCE + 300
DELAYED: Final = 3 * TASK_STEP_JOBS
TASKS: Final = {
    b"kick 1000000\r\n": b"KICKED %d\r\n" % BURIED,
    b"cancel-jobs default\r\n": b"CANCELLED %d\r\n" % DELAYED,
}
"""What takes long where so many are buried and so many delayed."""
over_tasks = pytest.mark.parametrize("said", TASKS)


def bury_many(client: Client, jobs: int = BURIED) -> None:
    client.says(b"put 0 0 60 1\r\nx\r\n" * jobs)
    for first in range(1, jobs + 1, 100):
        client.says(b"reserve\r\n" * min(100, jobs + 1 - first))
        ids = range(first, min(first + 100, jobs + 1))
        client.says(b"".join(b"bury %d 0\r\n" % job_id for job_id in ids))


def left(client: Client, state: str) -> int:
    lines = client.says(b"stats-tube default\r\n").decode().splitlines()
    return next(
        int(line.split(": ")[1]) for line in lines if line.startswith(f"current-jobs-{state}")
    )


@pytest.fixture
def rig() -> LineRig:
    return LineRig(is_virtual=True)


@pytest.fixture
def client(rig: LineRig) -> Client:
    return rig.client()


def begun(client: Client, rig: LineRig, said: bytes) -> None:
    """Have it begin what goes on."""
    client.connection.receive(said, rig.now_ms)
    assert client.connection.is_waiting
    assert not client.connection.out


def prepared(client: Client, rig: LineRig, said: bytes) -> bytes:
    """Make the jobs that a task is about, and begin it; what it is to say at its end."""
    command = said.partition(b"\r\n")[0] + b"\r\n"
    if command.startswith(b"kick"):
        bury_many(client)
    else:
        client.says(b"put 0 60 60 1\r\nx\r\n" * DELAYED)
    begun(client, rig, said)
    return TASKS[command]


@over_tasks
def test_what_follows_waits_for_the_reply_and_others_are_served(
    rig: LineRig, client: Client, said: bytes
) -> None:
    other = rig.client()
    reply = prepared(client, rig, said + b"list-tube-used\r\n")
    assert rig.steps_beside(client, other) > 3
    assert client.connection.take_out() == reply + b"USING default\r\n"
    assert client.connection.stats.counts["kick"] == said.startswith(b"kick")


@over_tasks
def test_a_client_that_says_no_more_is_answered(rig: LineRig, client: Client, said: bytes) -> None:
    reply = prepared(client, rig, said + b"watch other\r\nignore default\r\nreserve\r\n")
    client.connection.half_close(rig.now_ms)
    rig.turn()
    assert client.replies() == reply + b"WATCHING 2\r\nWATCHING 1\r\nTIMED_OUT\r\n"


@over_tasks
def test_when_its_client_has_closed_a_kick_goes_on_and_a_pass_is_forgotten(
    rig: LineRig, client: Client, said: bytes
) -> None:
    other = rig.client()
    prepared(client, rig, said)
    rig.step_task()
    client.closes()
    assert not rig.tasks.has_more
    if said.startswith(b"kick"):
        assert left(other, "buried") == 0
    else:
        assert 0 < left(other, "delayed") < DELAYED


@pytest.mark.parametrize(
    ("jobs", "bound"),
    [*((BURIED, bound) for bound in (0, 1, KICKS_AT_ONCE - 1)), (KICKS_AT_ONCE - 1, 4_000_000_000)],
)
def test_a_kick_of_few_jobs_is_answered_at_once(
    rig: LineRig, client: Client, jobs: int, bound: int
) -> None:
    bury_many(client, jobs)
    client.connection.receive(b"kick %d\r\n" % bound, rig.now_ms)
    assert client.connection.take_out() == b"KICKED %d\r\n" % min(jobs, bound)


def test_a_second_kick_at_once_shares_the_jobs_with_the_first(rig: LineRig, client: Client) -> None:
    clients = [client, rig.client()]
    bury_many(client)
    for each in clients:
        begun(each, rig, b"kick %d\r\n" % (BURIED - KICKS_AT_ONCE))
    rig.turn()
    assert sum(int(each.replies().split()[1]) for each in clients) == BURIED


def test_of_many_delayed_jobs_a_kick_waits_for_the_scan(rig: LineRig, client: Client) -> None:
    client.says(b"put 0 60 60 1\r\nx\r\n" * 1_500)
    begun(client, rig, b"kick 1400\r\n")
    rig.turn()
    assert client.replies() == b"KICKED 1400\r\n"


def test_pages_follow_each_other(client: Client) -> None:
    for delay in range(25):
        client.says(b"put 0 %d 60 1\r\nx\r\n" % (delay % 5))
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


def test_passes_take_turns(rig: LineRig) -> None:
    clients = [rig.client() for _ in range(3)]
    clients[0].says(b"put 0 60 60 1\r\nx\r\n" * 2 * TASK_STEP_JOBS)
    for client in clients:
        begun(client, rig, b"calendar default 100 1\r\n")
    answered = []
    while rig.tasks.has_more:
        connection = rig.step_task()
        if connection is not None:
            answered.append(connection)
    assert answered == [client.connection for client in clients]
