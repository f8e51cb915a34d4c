"""What delayd understands beyond beanstalkd, which refuses it as a bad or unknown command."""

import time
from typing import Final

import pytest

from tests.compat.conftest import Connect, TimeLeft
from tests.line_client import LineClient

LATE_S_MAX: Final = 60.0


@pytest.fixture
def client(connect_ours: Connect) -> LineClient:
    return connect_ours()


class Stopwatch:
    """Asserts that as much time has passed as should have, and not much more."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def shows(self, seconds: float) -> bool:
        return seconds <= time.monotonic() - self._started < seconds + LATE_S_MAX


def test_a_put_may_be_delayed_by_a_fraction_of_a_second(connect_ours: Connect) -> None:
    client, watch = connect_ours(), Stopwatch()
    # In one packet, so that no time passes between the two.
    client.send(b"put 0 0.25 60 1\r\nx\r\nreserve-with-timeout 0\r\n")
    assert client.reply().startswith(b"INSERTED ")
    assert client.reply() == b"TIMED_OUT\r\n"
    assert client.ask("reserve").endswith(" 1\r\nx")
    assert watch.shows(0.25)


def test_a_ttr_may_have_a_fraction(connect_ours: Connect) -> None:
    client, other = connect_ours(), connect_ours()
    job = int(client.ask("put 0 0 0.25", b"x").split()[1])
    watch = Stopwatch()
    client.ask("reserve")
    assert other.ask("reserve") == f"RESERVED {job} 1\r\nx"
    assert watch.shows(0.25)


def test_a_release_may_be_delayed_by_a_fraction_of_a_second(client: LineClient) -> None:
    job = client.put()
    client.ask("reserve")
    watch = Stopwatch()
    assert client.ask(f"release {job} 0 0.3") == "RELEASED"
    assert client.ask("reserve") == f"RESERVED {job} 0\r\n"
    assert watch.shows(0.3)


def test_a_pause_may_last_a_fraction_of_a_second(client: LineClient) -> None:
    job = client.put()
    watch = Stopwatch()
    assert client.ask("pause-tube default 0.3") == "PAUSED"
    assert client.ask("reserve") == f"RESERVED {job} 0\r\n"
    assert watch.shows(0.3)


def test_a_wait_of_a_fraction_of_a_second_is_no_busy_loop(connect_ours: Connect) -> None:
    client, watch = connect_ours(), Stopwatch()
    assert client.ask("reserve-with-timeout 0.3") == "TIMED_OUT"
    assert watch.shows(0.3)


def test_statistics_show_whole_numbers_for_fractions(client: LineClient) -> None:
    job = int(client.ask("put 0 1.75 2.5", b"x").split()[1])
    client.ask("pause-tube default 1.5")
    stats = client.stats(f"stats-job {job}")
    tube = client.stats("stats-tube default")
    for value in (stats["delay"], stats["ttr"], stats["time-left"], tube["pause"]):
        assert value.isdigit()


@pytest.mark.parametrize(
    "command",
    [
        *("put 0 . 60 0", "put 0 1. 60 0", "put 0 .5 60 0", "put 0 1.2.3 60 0", "put 0 -0.5 60 0"),
        *("put 1.5 0 60 0", "put 0 0 60 0.5", "put 0 4294967296.5 60 0", "release 1 0.5 0"),
        *("release 1 0 0.5x", "bury 1 0.5", "pause-tube default 0.", "pause-tube default 0.5.5"),
        *("delete 1.5", "touch 1.0"),
    ],
)
def test_a_fraction_out_of_place_is_refused(client: LineClient, command: str) -> None:
    assert client.ask(command) == "BAD_FORMAT"
    assert client.ask("list-tube-used") == "USING default"


def test_a_job_can_be_put_into_a_tube_that_is_not_used(client: LineClient) -> None:
    job = int(client.ask("put-in-tube elsewhere 5 0 60", b"abc").split()[1])
    assert client.ask("list-tube-used") == "USING default"
    stats = client.stats(f"stats-job {job}")
    assert (stats["tube"].strip('"'), stats["pri"], stats["ttr"]) == ("elsewhere", "5", "60")
    assert client.ask("reserve-with-timeout 0") == "TIMED_OUT"
    client.ask("watch elsewhere")
    assert client.ask("reserve") == f"RESERVED {job} 3\r\nabc"


def test_a_put_into_a_tube_is_refused_like_a_put(client: LineClient) -> None:
    assert client.ask("put-in-tube a 0 0 0") == "BAD_FORMAT"
    for command in ("-a 0 0 0", "a x 0 0", "a 0 0 0 0", f"{'a' * 201} 0 0 0"):
        assert client.ask(f"put-in-tube {command}", b"") == "BAD_FORMAT"
    client.send(b"put-in-tube a 0 0 0 3\r\nabcdelist-tube-used\r\n")
    assert client.reply() == b"EXPECTED_CRLF\r\n"
    assert client.reply() == b"USING default\r\n"
    assert client.ask("put-in-tube a 0 0 0", b"x" * 65536) == "JOB_TOO_BIG"
    assert client.names() == ["default"]


def test_a_batch_is_as_many_ready_jobs_as_there_are_up_to_the_number_asked_for(
    client: LineClient,
) -> None:
    jobs = [client.put(b"%d" % number, priority=9 - number) for number in range(3)]
    assert client.ask("reserve-batch 2 0") == "RESERVED_BATCH 2"
    assert client.reply() == b"RESERVED %d 1\r\n2\r\n" % jobs[2]
    assert client.reply() == b"RESERVED %d 1\r\n1\r\n" % jobs[1]
    assert client.ask("reserve-batch 9 0") == "RESERVED_BATCH 1"
    assert client.reply() == b"RESERVED %d 1\r\n0\r\n" % jobs[0]
    for job in jobs:
        assert client.stats(f"stats-job {job}")["state"] == "reserved"
        assert client.ask(f"delete {job}") == "DELETED"


def test_a_batch_waits_for_the_first_job_and_no_longer_than_it_says(connect_ours: Connect) -> None:
    client, producer = connect_ours(), connect_ours()
    watch = Stopwatch()
    assert client.ask("reserve-batch 5 0") == "TIMED_OUT"
    assert client.ask("reserve-batch 5 0.25") == "TIMED_OUT"
    assert watch.shows(0.25)
    client.send(b"reserve-batch 5 100\r\n")
    while producer.stats()["current-waiting"] != "1":
        pass
    job = producer.put(b"x")
    assert client.reply() == b"RESERVED_BATCH 1\r\n"
    assert client.reply() == b"RESERVED %d 1\r\nx\r\n" % job


@pytest.mark.parametrize("arguments", ["", "1", "x 1", "1 x", "1 1 1", "-1 1", "1 -1", "0 1"])
def test_a_malformed_batch_is_refused(connect_ours: Connect, arguments: str) -> None:
    assert connect_ours().ask(f"reserve-batch {arguments}") == "BAD_FORMAT"


def test_a_waiting_job_can_be_given_another_time(client: LineClient) -> None:
    ready, delayed = client.put(), client.put(delay=100)
    left = TimeLeft(500)
    assert client.ask(f"reschedule {ready} 500") == "RESCHEDULED"
    stats = client.stats(f"stats-job {ready}")
    assert stats["state"] == "delayed"
    assert left.is_told_by(stats["time-left"])
    watch = Stopwatch()
    assert client.ask(f"reschedule {delayed} 0.25") == "RESCHEDULED"
    assert client.ask("reserve") == f"RESERVED {delayed} 0\r\n"
    assert watch.shows(0.25)
    assert client.ask(f"reschedule {ready} 0") == "RESCHEDULED"
    assert client.stats(f"stats-job {ready}")["state"] == "ready"


def test_a_job_that_does_not_wait_cannot_be_given_another_time(client: LineClient) -> None:
    job = client.put()
    assert client.ask(f"reschedule {job + 1} 1") == "NOT_FOUND"
    client.ask("reserve")
    assert client.ask(f"reschedule {job} 1") == "NOT_FOUND"
    for arguments in ("", str(job), f"{job} x", f"x {job}", f"{job} -1", f"{job} 1 1"):
        assert client.ask(f"reschedule {arguments}") == "BAD_FORMAT"


def test_who_waits_longest_in_a_tube_is_served_first(connect_ours: Connect) -> None:
    producer = connect_ours()
    waiters = [connect_ours() for _ in range(5)]
    for number, waiter in enumerate(waiters, start=1):
        waiter.send(b"reserve\r\n")
        while producer.stats()["current-waiting"] != str(number):
            pass
    for waiter in waiters:
        job = producer.put()
        assert waiter.reply() == b"RESERVED %d 0\r\n\r\n" % job


@pytest.mark.parametrize("line", [b"GET / HTTP/1.1", b"POST /stats HTTP/1.0", b"Host: localhost"])
def test_a_browser_is_not_listened_to(
    client: LineClient, connect_ours: Connect, line: bytes
) -> None:
    client.send(line + b"\r\nput 0 0 60 1\r\nx\r\n")
    assert client.rest().startswith(b"HTTP/1.1 426 Upgrade Required\r\n")
    assert connect_ours().ask("peek-ready") == "NOT_FOUND"
