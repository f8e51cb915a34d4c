"""What becomes of jobs and tubes: facts that hold for beanstalkd and for delayd alike.

Nothing here waits for time to pass; tests/compat/test_facts_time.py does.
"""

from typing import Final

import pytest

from tests.compat.conftest import Connect, TimeLeft
from tests.line_client import LineClient

STATS_JOB: Final = (
    *("id", "tube", "state", "pri", "age", "delay", "ttr", "time-left", "file", "reserves"),
    *("timeouts", "releases", "buries", "kicks"),
)
STATS_TUBE: Final = (
    *("name", "current-jobs-urgent", "current-jobs-ready", "current-jobs-reserved"),
    *("current-jobs-delayed", "current-jobs-buried", "total-jobs", "current-using"),
    *("current-watching", "current-waiting", "cmd-delete", "cmd-pause-tube", "pause"),
    "pause-time-left",
)
STATS: Final = (
    *(f"current-jobs-{state}" for state in ("urgent", "ready", "reserved", "delayed", "buried")),
    *("cmd-put", "cmd-peek", "cmd-peek-ready", "cmd-peek-delayed", "cmd-peek-buried"),
    *("cmd-reserve", "cmd-reserve-with-timeout", "cmd-delete", "cmd-release", "cmd-use"),
    *("cmd-watch", "cmd-ignore", "cmd-bury", "cmd-kick", "cmd-touch", "cmd-stats"),
    *("cmd-stats-job", "cmd-stats-tube", "cmd-list-tubes", "cmd-list-tube-used"),
    *("cmd-list-tubes-watched", "cmd-pause-tube", "job-timeouts", "total-jobs", "max-job-size"),
    *("current-tubes", "current-connections", "current-producers", "current-workers"),
    *("current-waiting", "total-connections", "pid", "version", "rusage-utime", "rusage-stime"),
    *("uptime", "binlog-oldest-index", "binlog-current-index", "binlog-records-migrated"),
    *("binlog-records-written", "binlog-max-size", "draining", "id", "hostname", "os", "platform"),
)


def test_a_job_can_be_peeked_at_by_its_id(client: LineClient) -> None:
    job = client.put(b"a")
    assert client.ask(f"peek {job}") == f"FOUND {job} 1\r\na"
    assert client.ask(f"peek {job + 1}") == "NOT_FOUND"


def test_the_delayed_job_that_is_due_first_is_peeked_at(client: LineClient) -> None:
    assert client.ask("peek-delayed") == "NOT_FOUND"
    client.put(b"A")
    late, soon = client.put(b"B", delay=999), client.put(b"C", delay=100)
    assert client.ask("peek-delayed") == f"FOUND {soon} 1\r\nC"
    assert client.ask(f"delete {soon}") == "DELETED"
    assert client.ask("peek-delayed") == f"FOUND {late} 1\r\nB"
    assert client.ask(f"delete {late}") == "DELETED"
    assert client.ask("peek-delayed") == "NOT_FOUND"


def test_only_a_reserved_job_can_be_buried_and_a_kick_makes_it_ready(client: LineClient) -> None:
    job = client.put(b"A")
    assert client.ask(f"bury {job} 0") == "NOT_FOUND"
    assert client.ask("peek-buried") == "NOT_FOUND"
    assert client.ask("reserve-with-timeout 0") == f"RESERVED {job} 1\r\nA"
    assert client.ask(f"bury {job} 0") == "BURIED"
    assert client.ask("peek-buried") == f"FOUND {job} 1\r\nA"
    assert client.ask("kick 1") == "KICKED 1"
    assert client.ask("peek-buried") == "NOT_FOUND"
    assert client.ask("peek-ready") == f"FOUND {job} 1\r\nA"
    assert client.ask("kick 1") == "KICKED 0"


def test_kick_job_takes_a_buried_or_delayed_job_and_no_other(client: LineClient) -> None:
    buried, delayed = client.put(b"A"), client.put(b"B", delay=100)
    assert client.ask(f"kick-job {buried}") == "NOT_FOUND"
    client.ask("reserve")
    assert client.ask(f"kick-job {buried}") == "NOT_FOUND"
    client.ask(f"bury {buried} 0")
    for job in (buried, delayed):
        assert client.ask(f"kick-job {job}") == "KICKED"
        assert client.ask(f"kick-job {job}") == "NOT_FOUND"
        assert client.stats(f"stats-job {job}")["kicks"] == "1"


def test_buried_jobs_are_kicked_in_the_order_of_their_burial_and_before_delayed_ones(
    client: LineClient,
) -> None:
    delayed = client.put(delay=100)
    jobs = [client.put() for _ in range(3)]
    for job in (jobs[2], jobs[0], jobs[1]):
        client.ask(f"reserve-job {job}")
        client.ask(f"bury {job} 0")
    assert client.ask("kick 1") == "KICKED 1"
    assert client.ask("peek-ready") == f"FOUND {jobs[2]} 0\r\n"
    assert client.ask("peek-buried") == f"FOUND {jobs[0]} 0\r\n"
    assert client.ask("kick 10") == "KICKED 2"
    assert client.ask("peek-delayed") == f"FOUND {delayed} 0\r\n"
    assert client.ask("kick 10") == "KICKED 1"


def test_the_job_with_the_smallest_priority_over_all_watched_tubes_comes_first(
    client: LineClient,
) -> None:
    jobs = []
    for tube, priority in (("abc", 999_999), ("def", 99), ("abc", 99)):
        client.ask(f"use {tube}")
        jobs.append(client.put(priority=priority))
        client.ask(f"watch {tube}")
    for job in (jobs[1], jobs[2], jobs[0]):
        assert client.ask("reserve") == f"RESERVED {job} 0\r\n"


def test_among_equal_priorities_the_smaller_id_comes_first_whenever_it_was_released(
    client: LineClient,
) -> None:
    first, second = client.put(priority=5), client.put(priority=5)
    for job in (first, second):
        client.ask(f"reserve-job {job}")
    for job in (second, first):
        assert client.ask(f"release {job} 5 0") == "RELEASED"
    assert client.ask("reserve") == f"RESERVED {first} 0\r\n"


def test_the_biggest_priority_is_4294967295(client: LineClient) -> None:
    job = client.put(priority=4_294_967_295)
    assert client.stats(f"stats-job {job}")["pri"] == "4294967295"


def test_a_job_is_urgent_below_priority_1024_while_it_is_ready(client: LineClient) -> None:
    client.ask("use urgent")
    for priority in (1023, 1024):
        client.put(priority=priority)
    assert client.stats("stats-tube urgent")["current-jobs-urgent"] == "1"
    client.ask("watch urgent")
    client.ask("reserve")
    assert client.stats("stats-tube urgent")["current-jobs-urgent"] == "0"


def test_a_ready_job_has_no_time_left(client: LineClient) -> None:
    assert client.stats(f"stats-job {client.put(ttr=5)}")["time-left"] == "0"


def test_a_reserved_job_has_less_than_its_ttr_left(client: LineClient) -> None:
    job = client.put(ttr=100)
    for command, answer in (("reserve", f"RESERVED {job} 0\r\n"), (f"touch {job}", "TOUCHED")):
        left = TimeLeft(100)
        assert client.ask(command) == answer
        assert left.is_told_by(client.stats(f"stats-job {job}")["time-left"])


@pytest.mark.parametrize("ttr", [0, 1, 120, 4294, 4295, 4296, 4297, 5000, 21600, 4_294_967_295])
def test_a_job_keeps_its_ttr_and_none_becomes_one_second(client: LineClient, ttr: int) -> None:
    assert client.stats(f"stats-job {client.put(ttr=ttr)}")["ttr"] == str(ttr or 1)


def test_any_client_may_delete_a_job_that_is_not_reserved(connect: Connect) -> None:
    client, other = connect(), connect()
    ready, delayed, buried = client.put(), client.put(delay=100), client.put()
    client.ask(f"reserve-job {buried}")
    client.ask(f"bury {buried} 0")
    for job in (ready, delayed, buried):
        assert other.ask(f"delete {job}") == "DELETED"
        assert other.ask(f"delete {job}") == "NOT_FOUND"


def test_a_job_reserved_by_another_client_cannot_be_touched_in_any_way(connect: Connect) -> None:
    client, other = connect(), connect()
    job = client.put()
    client.ask("reserve")
    for command in ("delete {}", "release {} 0 0", "bury {} 0", "touch {}"):
        assert other.ask(command.format(job)) == "NOT_FOUND"
    for command in ("kick-job {}", "reserve-job {}"):
        assert other.ask(command.format(job)) == "NOT_FOUND"
    assert other.ask(f"peek {job}") == f"FOUND {job} 0\r\n"
    assert client.ask(f"delete {job}") == "DELETED"


@pytest.mark.parametrize("state", ["ready", "delayed", "buried"])
def test_a_job_in_any_tube_can_be_reserved_by_its_id(connect: Connect, state: str) -> None:
    client, other = connect(), connect()
    client.ask("use elsewhere")
    job = client.put(b"A", delay=100 if state == "delayed" else 0)
    if state == "buried":
        client.ask(f"reserve-job {job}")
        client.ask(f"bury {job} 0")
    client.ask("pause-tube elsewhere 100")
    assert client.stats(f"stats-job {job}")["state"] == state
    left = TimeLeft(60)
    assert other.ask(f"reserve-job {job}") == f"RESERVED {job} 1\r\nA"
    assert client.ask(f"reserve-job {job}") == "NOT_FOUND"
    assert other.ask(f"reserve-job {job}") == "NOT_FOUND"
    stats = client.stats(f"stats-job {job}")
    assert stats["state"] == "reserved"
    assert left.is_told_by(stats["time-left"])
    assert other.ask(f"release {job} 0 0") == "RELEASED"
    assert client.stats(f"stats-job {job}")["state"] == "ready"


def test_a_job_counts_what_happened_to_it(client: LineClient) -> None:
    job = client.put(priority=9, delay=100, ttr=50)
    for command in ("kick-job {}", "reserve-job {}", "release {} 7 0", "reserve-job {}"):
        client.ask(command.format(job))
    for command in ("bury {} 3", "kick-job {}"):
        client.ask(command.format(job))
    expected = {"state": "ready", "pri": "3", "delay": "0", "ttr": "50", "reserves": "2"}
    expected |= {"timeouts": "0", "releases": "1", "buries": "1", "kicks": "2", "id": str(job)}
    stats = client.stats(f"stats-job {job}")
    assert {name: stats[name] for name in expected} == expected


def test_statistics_have_the_names_that_clients_look_for_in_order(client: LineClient) -> None:
    assert tuple(client.stats(f"stats-job {client.put()}")) == STATS_JOB
    assert tuple(client.stats("stats-tube default")) == STATS_TUBE
    told = tuple(client.stats())
    assert told[:51] == STATS
    assert told[51:] in {(), ("delayd-version",)}


def test_a_tube_counts_what_is_in_it_and_who_uses_it(client: LineClient) -> None:
    client.ask("use tubea")
    client.ask(f"delete {client.put(b'x')}")
    stats = client.stats("stats-tube tubea")
    assert stats["name"].strip('"') == "tubea"
    counted = {name: int(value) for name, value in stats.items() if name != "name"}
    ones = {"total-jobs": 1, "current-using": 1, "cmd-delete": 1}
    assert counted == dict.fromkeys(STATS_TUBE[1:], 0) | ones
    stats = client.stats("stats-tube default")
    assert (stats["current-using"], stats["current-watching"]) == ("1", "2")  # the other is ours


def test_tubes_are_listed_in_the_order_of_their_making(client: LineClient) -> None:
    assert client.ask("watch w") == "WATCHING 2"
    assert client.ask("use u") == "USING u"
    assert client.names() == ["default", "w", "u"]
    assert client.ask("list-tube-used") == "USING u"
    assert client.names("list-tubes-watched") == ["default", "w"]
    assert client.ask("ignore default") == "WATCHING 1"
    assert client.names("list-tubes-watched") == ["w"]
    assert client.ask("ignore w") == "NOT_IGNORED"


def test_watching_twice_and_ignoring_what_is_not_watched_change_nothing(client: LineClient) -> None:
    assert client.ask("watch w") == client.ask("watch w") == "WATCHING 2"
    assert client.ask("ignore never-seen") == "WATCHING 2"
    assert client.names() == ["default", "w"]


def test_the_last_name_fills_the_gap_of_one_that_is_taken_away(client: LineClient) -> None:
    for tube in "abcd":
        client.ask(f"watch {tube}")
    client.ask("ignore a")
    assert client.names("list-tubes-watched") == ["default", "d", "b", "c"]
    assert client.names() == ["default", "d", "b", "c"]


def test_a_tube_lives_as_long_as_it_is_used_watched_or_holds_a_job(connect: Connect) -> None:
    client, other = connect(), connect()
    other.ask("watch t")
    client.ask("use t")
    job = client.put()
    client.ask("use default")
    other.ask("ignore t")
    assert "t" in client.names()
    client.ask(f"reserve-job {job}")
    assert "t" in client.names()
    client.ask(f"delete {job}")
    assert "t" not in client.names()
    assert client.ask("stats-tube t") == "NOT_FOUND"


def test_a_tube_that_comes_back_is_a_new_one(client: LineClient) -> None:
    client.ask("use t")
    client.ask(f"delete {client.put()}")
    client.ask("pause-tube t 100")
    client.ask("use default")
    client.ask("use t")
    stats = client.stats("stats-tube t")
    assert (stats["total-jobs"], stats["pause"], stats["cmd-pause-tube"]) == ("0", "0", "0")


def test_a_closed_connection_leaves_its_tubes_last_watched_first(connect: Connect) -> None:
    leaver, stayer = connect(), connect()
    leaver.ask("use u")
    for tube in ("w1", "w2"):
        leaver.ask(f"watch {tube}")
    for tube in ("z1", "z2", "z3"):
        stayer.ask(f"watch {tube}")
    leaver.send(b"quit\r\n")
    assert leaver.reply() == b""
    assert stayer.names() == ["default", "z1", "z2", "z3"]
