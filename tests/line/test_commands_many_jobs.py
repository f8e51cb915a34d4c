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


def test_a_list_has_its_jobs_in_due_order_with_what_they_are(client: Client) -> None:
    for delay in (b"30", b"0", b"10"):
        put(client, delay)
    client.says(b"reserve\r\n", b"bury 2 7\r\n")
    assert client.says(b"list-jobs default\r\n").split(b"\r\n")[1] == (
        b'---\nafter: ""\njobs:\n'
        b'- {id: 2, state: buried, pri: 7, due: 1000.000, key: ""}\n'
        b'- {id: 3, state: delayed, pri: 0, due: 1010.000, key: ""}\n'
        b'- {id: 1, state: delayed, pri: 0, due: 1030.000, key: ""}\n'
    )


def test_an_empty_list_is_empty_yaml(client: Client) -> None:
    assert client.says(b"list-jobs default\r\n") == b'OK 23\r\n---\nafter: ""\njobs: []\n\r\n'


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


def test_a_calendar_counts_by_spans(client: Client) -> None:
    for delay in (b"1", b"2.5", b"2.6", b"9"):
        put(client, delay)
    said = client.says(b"calendar default 2.5 3\r\n")
    assert said == b"OK 31\r\n---\n0.000: 1\n2.500: 2\n5.000: 0\n\r\n"


@pytest.mark.parametrize(
    "line",
    [
        *(b"list-jobs ", b"list-jobs -x", b"list-jobs default x", b"list-jobs default dry=1"),
        *(b"list-jobs default limit=0", b"list-jobs default state=", b"list-jobs default after=1"),
        *(b"calendar default", b"calendar default 1", b"calendar default 0 5", b"calendar default"),
        *(b"calendar default 1 0", b"calendar default 1 1001", b"calendar default x 1"),
        *(b"cancel-jobs default limit=1", b"cancel-jobs default dry=2", b"kick-jobs default ="),
        *(b"reschedule-jobs default", b"reschedule-jobs default x", b"clear-tube default x"),
        *(b"reschedule-jobs default -1", b"cancel-jobs default\0", b"cancel-jobs default to=1q"),
        b"reschedule-jobs default 4294967296",
    ],
)
def test_what_is_malformed_changes_nothing_and_the_connection_goes_on(line: bytes) -> None:
    client = LineRig().client()
    many(client, 3)
    assert client.says(line + b"\r\nlist-tube-used\r\n") == BAD + b"USING default\r\n"
    assert states(client) == [0, 0, 3, 0]


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


def test_who_had_said_so_before_the_command_was_read_is_answered_too() -> None:
    rig = LineRig()
    client = rig.client()
    client.connection.half_close(rig.now_ms)
    assert client.says(b"clear-tube default\r\nreserve\r\n") == b"CLEARED 0\r\nTIMED_OUT\r\n"


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
