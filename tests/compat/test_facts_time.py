"""Waiting, time-outs and connections that go: facts that hold for beanstalkd and for delayd alike.

Real time passes here, a second or two at a time: beanstalkd knows nothing shorter. How late a
server may be is generous, since the machine may be busy; that none is early is exact.
"""

import time
from typing import Final

from tests.compat.conftest import Connect
from tests.line_client import LineClient

LATE_S_MAX: Final = 60.0
TTR_S: Final = 2


def test_of_a_ttr_and_of_a_pause_less_than_all_is_left(client: LineClient) -> None:
    job = client.put(ttr=100)
    for command, answer in (("reserve", f"RESERVED {job} 0\r\n"), (f"touch {job}", "TOUCHED")):
        assert client.ask(command) == answer
        assert 99 - LATE_S_MAX <= int(client.stats(f"stats-job {job}")["time-left"]) <= 99
    assert client.ask("pause-tube default 86400") == "PAUSED"
    left = int(client.stats("stats-tube default")["pause-time-left"])
    assert 86_399 - LATE_S_MAX <= left <= 86_399


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
