"""Slow clients of a server with real sockets, on a clock of deadlines that is told to go on."""

import socket
from collections.abc import Iterator

import pytest

from delayd.core.stats.refusals import Refusals
from delayd.limits import LINE_INCOMPLETE_S_MAX
from tests.line.floor import Floor, heard, is_cut_off

PUT = b"put 0 0 60 2\r\nhi\r\n"
USED = b"list-tube-used\r\n"
USING = b"USING default\r\n"
BIG = 60_000
BIG_BODY = b"x" * BIG


@pytest.fixture
def reasons() -> Refusals:
    return Refusals()


@pytest.fixture
def floor(reasons: Refusals) -> Iterator[Floor]:
    with Floor(refusals=reasons) as floor:
        yield floor


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
def test_what_drips_is_cut_off(floor: Floor, reasons: Refusals, before: bytes, said: bytes) -> None:
    client, other = floor.client(), floor.client()
    if before:
        floor.says(client, before)
    floor.says(other, b"reserve\r\n")
    (waits,) = [each for each in floor.clients if each.connection.is_waiting]
    count = 0
    for byte in said:
        client.send(bytes([byte]))
        floor.turn_until_quiet(some=True)
        floor.elapses(4)
        count += 1
        if floor.clients == [waits]:
            break
    assert floor.clients == [waits]
    assert count <= 4
    assert reasons.by_reason["TOO_SLOW"] == 1
    assert is_cut_off(client)
    floor.says(floor.client(), PUT)
    assert heard(other).endswith(b" 2\r\nhi\r\n")


def test_what_is_begun_and_left_is_cut_off_after_ten_seconds(floor: Floor) -> None:
    client = floor.client()
    floor.says(client, b"list-tu")
    floor.elapses(LINE_INCOMPLETE_S_MAX)
    assert floor.clients
    floor.elapses(1)
    assert not floor.clients
    assert is_cut_off(client)


def test_who_says_nothing_may_stay_and_costs_nothing(floor: Floor) -> None:
    client, worker = floor.client(), floor.client()
    floor.says(client, USED)
    floor.says(worker, b"reserve\r\n")
    assert floor.server.timeouts.alarm_ms is None
    floor.elapses(100_000)
    assert len(floor.clients) == 2
    floor.says(client, PUT)
    assert heard(client) == USING + b"INSERTED 1\r\n"


def test_nobody_is_woken_when_what_was_begun_has_ended(floor: Floor) -> None:
    client = floor.client()
    for said in (b"list-", b"tube-used\r\nput 0 0 60 2\r\n", b"hi\r\nrese", b"rve\r\nstats"):
        assert floor.server.timeouts.alarm_ms is None or said != b"list-"
        floor.says(client, said)
    assert floor.server.timeouts.alarm_ms is not None
    floor.says(client, b"\r\n")
    assert floor.server.timeouts.alarm_ms is None


def test_each_command_has_its_own_ten_seconds(floor: Floor) -> None:
    client = floor.client()
    floor.says(client, b"list-")
    for _ in range(20):
        floor.elapses(9)
        floor.says(client, b"tube-used\r\nlist-")
    assert heard(client) == USING * 20


def test_a_line_behind_a_wait_has_its_time_from_the_end_of_the_wait(floor: Floor) -> None:
    worker, producer = floor.client(), floor.client()
    floor.says(worker, b"reserve\r\nlist-")
    floor.elapses(100)
    floor.says(producer, PUT)
    assert heard(worker) == b"RESERVED 1 2\r\nhi\r\n"
    floor.elapses(10)
    floor.says(worker, b"tube-used\r\nlist-")
    assert heard(worker) == USING
    floor.elapses(11)
    assert len(floor.clients) == 1


def test_a_line_that_was_begun_behind_a_wait_has_to_end(floor: Floor) -> None:
    worker, producer = floor.client(), floor.client()
    floor.says(worker, b"reserve\r\nlist-")
    floor.says(producer, PUT)
    floor.elapses(11)
    assert len(floor.clients) == 1


def test_a_body_that_keeps_its_pace_may_take_a_minute(floor: Floor) -> None:
    client = floor.client()
    floor.says(client, b"put 0 0 60 %d\r\n" % BIG)
    for at in range(0, BIG, 1_100):
        floor.says(client, BIG_BODY[at : at + 1_100])
        floor.elapses(1)
    floor.says(client, b"\r\n")
    assert heard(client) == b"INSERTED 1\r\n"


def test_a_body_has_to_end_within_a_minute(floor: Floor) -> None:
    client = floor.client()
    floor.says(client, b"put 0 0 60 %d\r\n" % BIG)
    floor.says(client, BIG_BODY[:-1])
    floor.elapses(58)
    assert floor.clients
    floor.elapses(5)
    assert not floor.clients


def test_who_does_not_take_its_replies_is_not_called_slow(floor: Floor, reasons: Refusals) -> None:
    client = floor.client(buffer_bytes=4_096)
    floor.says(client, b"put 0 0 60 %d\r\n" % BIG + BIG_BODY + b"\r\n")
    floor.says(client, b"peek 1\r\n" * 10 + b"list-")
    assert floor.clients[0].unsent
    assert floor.server.timeouts.alarm_ms is not None
    floor.elapses(30)
    assert floor.clients
    expected = len(b"INSERTED 1\r\n") + 10 * len(b"FOUND 1 60000\r\n\r\n") + 10 * BIG
    taken = 0
    while taken < expected:
        taken += len(client.recv(10_000))
        floor.turn_until_quiet()
    floor.elapses(9)
    floor.says(client, b"tube-used\r\n")
    assert heard(client) == USING
    assert "TOO_SLOW" not in reasons.by_reason


def test_what_has_arrived_and_was_not_read_yet_is_read_before_anybody_is_cut_off(
    floor: Floor,
) -> None:
    client = floor.client()
    floor.says(client, b"list-")
    client.sendall(b"tube-used\r\n")
    for _ in range(12):
        floor.elapsed_ms += 1_000
        floor.server.serve([], floor.now_ms)  # so many others have said something, it has no turn
    floor.turn_until_quiet()
    floor.end_turn()
    assert heard(client) == USING
    assert floor.clients


def test_a_second_in_which_clients_are_not_listened_to_does_not_count(floor: Floor) -> None:
    client = floor.client()
    floor.says(client, b"list-")
    for _ in range(100):
        floor.elapsed_ms += 1_000
        floor.server.serve(floor.server.poll(0, hears_clients=False), floor.now_ms)
    floor.says(client, b"tube-used\r\n")
    assert heard(client) == USING


def test_a_half_closed_client_waits_for_its_replies_and_not_for_its_line(floor: Floor) -> None:
    client = floor.client()
    floor.holds = True
    client.sendall(PUT + b"list-")
    client.shutdown(socket.SHUT_WR)
    floor.turn_until_quiet(some=True)
    floor.elapses(60)
    floor.holds = False
    floor.release()
    floor.turn_until_quiet()
    assert heard(client) == b"INSERTED 1\r\n"
    assert not floor.clients
    assert floor.server.timeouts.alarm_ms is None


def test_whoever_goes_is_waited_for_no_longer(floor: Floor) -> None:
    client = floor.client()
    floor.says(client, b"list-")
    client.close()
    floor.turn_until_quiet(some=True)
    assert not floor.clients
    assert floor.server.timeouts.alarm_ms is None


def test_what_was_refused_is_counted_by_its_word(floor: Floor, reasons: Refusals) -> None:
    client = floor.client()
    floor.says(
        client,
        b"nonsense\r\nput x\r\ndelete 1\r\ndelete 2\r\ndelete 3\r\nkick-job 7\r\n"
        b"put 0 0 1 99999\r\n"
        + b"x" * 100_001
        + b"put 0 0 1 1\r\nabc"
        + b"x" * 300
        + b"\r\nadvance-clock 1\r\nput 0 0 1 1 key=a b\r\nx\r\nignore default\r\n"
        + PUT,
    )
    assert reasons.by_reason == {
        "UNKNOWN_COMMAND": 2,
        "BAD_FORMAT": 3,
        "NOT_FOUND": 4,
        "JOB_TOO_BIG": 1,
        "EXPECTED_CRLF": 1,
        "NOT_IGNORED": 1,
    }
