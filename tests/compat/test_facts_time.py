"""Waiting, time-outs and connections that go: facts that hold for beanstalkd and for delayd alike.

Real time passes here, a second or two at a time: beanstalkd knows nothing shorter. How late a
server may be is generous, since the machine may be busy; that none is early is exact.
"""

import time
from typing import Final

import pytest

from tests.compat.conftest import SERVERS, Connect, TimeLeft
from tests.line_client import LineClient
from tests.rigs.waiting import until

LATE_S_MAX: Final = 60.0
TTR_S: Final = 2

# Time passes alike in both ways of running delayd; one of them is enough to wait for.
pytestmark = pytest.mark.parametrize("any_server", SERVERS[:2], indirect=True, scope="module")


def send_and_wait(client: LineClient, command: str, observer: LineClient) -> None:
    """Send a command that waits for a job, and see that it does."""
    before = int(observer.stats()["current-waiting"])
    client.send(f"{command}\r\n".encode())
    until(lambda: int(observer.stats()["current-waiting"]) > before)
    assert not client.something_came()


def test_a_reserved_job_has_less_than_its_ttr_left(client: LineClient) -> None:
    job = client.put(ttr=100)
    for command, answer in (("reserve", f"RESERVED {job} 0\r\n"), (f"touch {job}", "TOUCHED")):
        left = TimeLeft(100)
        assert client.ask(command) == answer
        assert left.is_told_by(client.stats(f"stats-job {job}")["time-left"])


def test_a_paused_tube_hands_out_nothing_until_the_pause_is_over(client: LineClient) -> None:
    job = client.put(b"x", ttr=0)
    started = time.monotonic()
    # In one packet: the pause cannot be over by the time it is asked for.
    client.send(b"pause-tube default 1\r\nreserve-with-timeout 0\r\npeek-ready\r\n")
    assert client.reply() == b"PAUSED\r\n"
    assert client.reply() == b"TIMED_OUT\r\n"
    assert client.reply() == b"FOUND %d 1\r\nx\r\n" % job
    assert client.ask("reserve") == f"RESERVED {job} 1\r\nx"
    assert 1 <= time.monotonic() - started < 1 + LATE_S_MAX
    stats = client.stats("stats-tube default")
    assert (stats["pause"], stats["pause-time-left"]) == ("0", "0")


def test_ending_a_pause_wakes_who_waits(connect: Connect) -> None:
    client, waiter = connect(), connect()
    job = client.put()
    left = TimeLeft(86_400)
    assert client.ask("pause-tube default 86400") == "PAUSED"
    stats = client.stats("stats-tube default")
    assert stats["pause"] == "86400"
    assert left.is_told_by(stats["pause-time-left"])
    send_and_wait(waiter, "reserve", client)
    assert client.ask("pause-tube default 0") == "PAUSED"
    assert waiter.reply() == b"RESERVED %d 0\r\n\r\n" % job


def test_a_reserve_right_after_the_end_of_a_pause_succeeds(client: LineClient) -> None:
    job = client.put()
    client.ask("pause-tube default 100")
    client.ask("pause-tube default 0")
    assert client.ask("reserve-with-timeout 0") == f"RESERVED {job} 0\r\n"


def test_a_delayed_job_becomes_ready_when_it_is_due_and_not_before(client: LineClient) -> None:
    later = client.put(delay=1_000)
    assert client.stats(f"stats-job {later}")["state"] == "delayed"
    assert client.ask("reserve-with-timeout 0") == "TIMED_OUT"
    started = time.monotonic()
    job = client.put(delay=1)
    assert client.ask("reserve") == f"RESERVED {job} 0\r\n"
    assert 1 <= time.monotonic() - started < 1 + LATE_S_MAX


def test_a_wait_ends_after_its_time_although_others_begin_to_watch(connect: Connect) -> None:
    waiter, other = connect(), connect()
    assert waiter.ask("watch foo") == "WATCHING 2"
    started = time.monotonic()
    waiter.send(b"reserve-with-timeout 1\r\n")
    assert other.ask("watch foo") == "WATCHING 2"
    assert waiter.reply() == b"TIMED_OUT\r\n"
    assert 1 <= time.monotonic() - started < 1 + LATE_S_MAX


def test_who_waits_gets_the_job_that_is_put_and_waits_no_longer(connect: Connect) -> None:
    waiter, producer = connect(), connect()
    waiter.ask("watch foo")
    send_and_wait(waiter, "reserve-with-timeout 100", producer)
    for tube in ("foo", "default"):
        assert producer.stats(f"stats-tube {tube}")["current-waiting"] == "1"
    producer.ask("use foo")
    job = producer.put(b"a")
    assert waiter.reply() == b"RESERVED %d 1\r\na\r\n" % job
    assert producer.stats()["current-waiting"] == "0"


@pytest.mark.parametrize("seconds", ["100", "  77", "2147483647"])
def test_who_waits_longer_than_it_takes_is_given_a_job(connect: Connect, seconds: str) -> None:
    waiter, producer = connect(), connect()
    send_and_wait(waiter, f"reserve-with-timeout {seconds}", producer)
    job = producer.put()
    assert waiter.reply() == b"RESERVED %d 0\r\n\r\n" % job


def test_who_waits_is_given_what_is_kicked_first_even_if_better_follows(connect: Connect) -> None:
    client, waiter = connect(), connect()
    jobs = [client.put(priority=priority) for priority in (1, 9)]
    for job, priority in zip(reversed(jobs), (9, 1), strict=True):
        client.ask(f"reserve-job {job}")
        client.ask(f"bury {job} {priority}")
    send_and_wait(waiter, "reserve", client)
    assert client.ask("kick 2") == "KICKED 2"
    assert waiter.reply() == b"RESERVED %d 0\r\n\r\n" % jobs[1]


def test_commands_behind_a_wait_are_read_when_it_is_over(connect: Connect) -> None:
    waiter, producer = connect(), connect()
    send_and_wait(waiter, "reserve\r\nuse later\r\nlist-tube-used", producer)
    assert "later" not in producer.names()
    job = producer.put()
    assert waiter.reply() == b"RESERVED %d 0\r\n\r\n" % job
    assert waiter.reply() == b"USING later\r\n"
    assert waiter.reply() == b"USING later\r\n"


def test_a_half_closed_connection_gets_all_its_replies_and_waits_no_longer(
    connect: Connect,
) -> None:
    waiter, producer = connect(), connect()
    send_and_wait(waiter, "reserve\r\nlist-tube-used\r\nreserve", producer)
    waiter.send(b"list-tu")
    waiter.half_close()
    assert waiter.rest() == b"TIMED_OUT\r\nUSING default\r\nTIMED_OUT\r\n"


def test_an_ending_reservation_is_announced_instead_of_another_job(client: LineClient) -> None:
    job = client.put(b"a", ttr=1)
    # In one packet, so that the second has not passed before the last of them is read.
    told = b"reserve-with-timeout 1\r\nreserve-with-timeout 1\r\nreserve\r\nrelease %d 0 0\r\n"
    client.send(told % job)
    assert client.reply() == b"RESERVED %d 1\r\na\r\n" % job
    assert client.reply() == client.reply() == b"DEADLINE_SOON\r\n"
    assert client.reply() == b"RELEASED\r\n"
    assert client.stats(f"stats-job {job}")["state"] == "ready"


def test_an_ending_reservation_is_not_announced_while_there_is_a_ready_job(
    client: LineClient,
) -> None:
    client.put(ttr=1)
    job = client.put(b"b", priority=1)
    client.send(b"reserve\r\nreserve\r\n")
    client.reply()
    assert client.reply() == b"RESERVED %d 1\r\nb\r\n" % job


def test_a_job_reserved_by_its_id_is_never_refused_for_an_ending_reservation(
    client: LineClient,
) -> None:
    client.put(ttr=1)
    job = client.put(b"b", delay=100)
    client.send(b"reserve\r\nreserve-job %d\r\n" % job)
    client.reply()
    assert client.reply() == b"RESERVED %d 1\r\nb\r\n" % job


def test_who_waits_is_told_one_second_before_a_reservation_ends_and_a_touch_renews_it(
    client: LineClient,
) -> None:
    took_s, told = told_of_the_end(client)
    while took_s > TTR_S:  # the machine stopped until the reservation had ended
        took_s, told = told_of_the_end(client)
    assert took_s >= TTR_S - 1
    assert told == [b"DEADLINE_SOON\r\n", b"TOUCHED\r\n", b"TIMED_OUT\r\n"]


def told_of_the_end(client: LineClient) -> tuple[float, list[bytes]]:
    """Wait with a job in hand, and touch it when the wait is over; how long that took."""
    job = client.put(ttr=TTR_S)
    started = time.monotonic()
    # In one packet: it is read when the wait is over, and then at once.
    touch = b"touch %d\r\nreserve-with-timeout 0\r\n" % job
    client.send(b"reserve\r\nreserve\r\n" + touch)
    client.reply()
    told = [client.reply() for _ in range(3)]
    took_s = time.monotonic() - started
    client.ask(f"delete {job}")
    return took_s, told


def test_a_job_whose_ttr_is_over_is_ready_for_others(connect: Connect) -> None:
    client, other = connect(), connect()
    job = client.put(ttr=1)
    timeouts = int(other.stats()["job-timeouts"])
    started = time.monotonic()
    client.ask("reserve")
    # In one packet, so that its own second does not pass as well.
    other.send(b"reserve\r\nbury %d 0\r\n" % job)
    while not other.something_came(within_s=0.05):
        # beanstalkd misses some deadlines, and finds them at the holder's next command.
        client.ask("list-tube-used")
    assert 1 <= time.monotonic() - started < 1 + LATE_S_MAX
    assert other.reply() == b"RESERVED %d 0\r\n\r\n" % job
    assert other.reply() == b"BURIED\r\n"
    assert client.ask(f"release {job} 0 0") == "NOT_FOUND"
    assert other.stats(f"stats-job {job}")["timeouts"] == "1"
    assert int(other.stats()["job-timeouts"]) == timeouts + 1


@pytest.mark.parametrize("farewell", ["close", "half-close", "quit"])
def test_a_connection_that_goes_gives_its_job_to_who_waits(connect: Connect, farewell: str) -> None:
    consumer, producer, waiter = connect(), connect(), connect()
    job = producer.put(b"a", ttr=100)
    assert consumer.ask("reserve") == f"RESERVED {job} 1\r\na"
    send_and_wait(waiter, "reserve", producer)
    match farewell:
        case "close":
            consumer.close()
        case "half-close":
            consumer.half_close()
        case _:
            consumer.send(b"quit\r\n")
    assert waiter.reply() == b"RESERVED %d 1\r\na\r\n" % job
    stats = producer.stats(f"stats-job {job}")
    assert (stats["reserves"], stats["releases"], stats["timeouts"]) == ("2", "0", "0")


def test_the_jobs_of_a_connection_that_goes_come_back_in_the_order_of_their_reservation(
    connect: Connect,
) -> None:
    consumer, producer, waiter = connect(), connect(), connect()
    jobs = [producer.put() for _ in range(3)]
    for job in (jobs[2], jobs[0], jobs[1]):
        consumer.ask(f"reserve-job {job}")
    send_and_wait(waiter, "reserve", producer)
    consumer.close()
    assert waiter.reply() == b"RESERVED %d 0\r\n\r\n" % jobs[2]


def test_a_connection_that_goes_while_it_waits_takes_no_job(connect: Connect) -> None:
    waiter, producer = connect(), connect()
    send_and_wait(waiter, "reserve", producer)
    waiter.close()
    until(lambda: producer.stats()["current-waiting"] == "0")
    assert producer.stats(f"stats-job {producer.put()}")["state"] == "ready"
