import os
import re

import pytest

from delayd import __version__
from delayd.compat import Compat
from delayd.core.engine import Engine
from delayd.line.stats import LogFigures, Stats, instance_id, seconds_left
from tests.rigs.line import LineRig

JOB_KEYS = "id tube state pri age delay ttr time-left file reserves timeouts releases buries kicks"

TUBE_KEYS = (
    "name current-jobs-urgent current-jobs-ready current-jobs-reserved current-jobs-delayed"
    " current-jobs-buried total-jobs current-using current-watching current-waiting cmd-delete"
    " cmd-pause-tube pause pause-time-left"
)

SERVER_KEYS = (
    "current-jobs-urgent current-jobs-ready current-jobs-reserved current-jobs-delayed"
    " current-jobs-buried cmd-put cmd-peek cmd-peek-ready cmd-peek-delayed cmd-peek-buried"
    " cmd-reserve cmd-reserve-with-timeout cmd-delete cmd-release cmd-use cmd-watch cmd-ignore"
    " cmd-bury cmd-kick cmd-touch cmd-stats cmd-stats-job cmd-stats-tube cmd-list-tubes"
    " cmd-list-tube-used cmd-list-tubes-watched cmd-pause-tube job-timeouts total-jobs max-job-size"
    " current-tubes current-connections current-producers current-workers current-waiting"
    " total-connections pid version rusage-utime rusage-stime uptime binlog-oldest-index"
    " binlog-current-index binlog-records-migrated binlog-records-written binlog-max-size draining"
    " id hostname os platform"
)


def rows(answer: bytes) -> list[tuple[str, str]]:
    """The keys and values of a YAML answer, whose length is as announced."""
    head, _, body = answer.partition(b"\r\n")
    assert head == b"OK %d" % (len(body) - 2)
    rule, *lines = body.decode().removesuffix("\n\r\n").split("\n")
    assert rule == "---"
    pairs = [line.split(": ", 1) for line in lines]
    return [(key, value) for key, value in pairs]


def test_the_statistics_of_a_job_are_beanstalkds() -> None:
    rig = LineRig()
    client = rig.client()
    client.says(b"use mail\r\nwatch mail\r\nput 7 100.5 30.5 2\r\nhi\r\n")
    rig.pass_ms(2_000)
    found = rows(client.says(b"stats-job 1\r\n"))
    assert [key for key, _ in found] == JOB_KEYS.split()
    values = "1 | 'mail' | delayed | 7 | 2 | 100 | 30 | 98 | 0 | 0 | 0 | 0 | 0 | 0"
    assert [value for _, value in found] == values.replace("'", '"').split(" | ")
    client.says(b"kick-job 1\r\nreserve\r\nrelease 1 5 9\r\nkick-job 1\r\nreserve\r\nbury 1 6\r\n")
    client.says(b"kick 1\r\nreserve\r\n")
    rig.pass_ms(30_500)
    client.says(b"reserve\r\n")
    found = rows(client.says(b"stats-job 1\r\n"))
    values = "1 | 'mail' | reserved | 6 | 32 | 9 | 30 | 30 | 0 | 4 | 1 | 1 | 1 | 3"
    assert [value for _, value in found] == values.replace("'", '"').split(" | ")


@pytest.mark.parametrize(
    ("left_ms", "seconds"), [(0, 0), (1, 0), (1_000, 0), (1_001, 1), (10_000, 9), (-5, 0)]
)
def test_a_moment_after_it_began_a_second_is_no_longer_whole(left_ms: int, seconds: int) -> None:
    assert seconds_left(left_ms) == seconds


def test_the_statistics_of_a_tube_are_beanstalkds() -> None:
    rig = LineRig()
    client = rig.client()
    client.says(b"put 1023 0 60 0\r\n\r\nput 1024 0 60 0\r\n\r\nput 0 9 60 0\r\n\r\n")
    client.says(b"put 2000 0 60 0\r\n\r\n" * 3 + b"delete 6\r\npause-tube default 0\r\n")
    client.says(b"reserve-job 4\r\nreserve-job 5\r\nbury 5 0\r\npause-tube default 3.5\r\n")
    waiter = rig.client()
    waiter.says(b"use other\r\nreserve\r\n")
    rig.pass_ms(1_000)
    found = rows(client.says(b"stats-tube default\r\n"))
    assert [key for key, _ in found] == TUBE_KEYS.split()
    values = "'default' | 1 | 2 | 1 | 1 | 1 | 6 | 1 | 2 | 1 | 1 | 2 | 3 | 2"
    assert [value for _, value in found] == values.replace("'", '"').split(" | ")


def test_the_statistics_of_the_server_are_beanstalkds() -> None:
    rig = LineRig()
    client = rig.client()
    client.says(b"put 0 0 1 0\r\n\r\nput 0 9 60 0\r\n\r\nreserve\r\n")
    rig.client().says(b"reserve\r\n")
    rig.pass_ms(5_000)
    rig.client().closes()
    rig.engine.draining = True
    found = rows(client.says(b"stats\r\n"))
    assert [key for key, _ in found] == [*SERVER_KEYS.split(), "delayd-version"]
    assert len(SERVER_KEYS.split()) == 51
    values = dict(found)
    expected = {
        "current-jobs-reserved": "1",
        "current-jobs-delayed": "1",
        "cmd-put": "2",
        "cmd-reserve": "2",
        "cmd-stats": "1",
        "job-timeouts": "1",
        "total-jobs": "2",
        "max-job-size": "65535",
        "current-tubes": "1",
        "current-connections": "2",
        "current-producers": "1",
        "current-workers": "2",
        "total-connections": "3",
        "pid": str(os.getpid()),
        "version": '"1.13"',
        "delayd-version": f'"{__version__}"',
        "rusage-utime": "1.500000",
        "rusage-stime": "0.250000",
        "uptime": "5",
        "draining": "true",
        "id": f"d{14 * '0'}d",
    }
    assert {key: values[key] for key in expected} == expected
    machine = [values[name] for name in ("hostname", "os", "platform")]
    assert all(re.fullmatch(r'"[^"\n]+"', text) for text in machine)


def test_the_figures_of_the_log_are_in_their_places() -> None:
    figures = LogFigures(
        oldest_index=3, current_index=5, records_migrated=7, records_written=11, max_bytes=13
    )
    report = Stats(Engine(start_ms=0), 0, lambda: figures).report(0)
    assert [report[f"binlog-{name}"] for name in ("oldest-index", "current-index")] == [3, 5]
    assert [report[f"binlog-records-{name}"] for name in ("migrated", "written")] == [7, 11]
    assert report["binlog-max-size"] == 13


def test_strings_of_1_12_are_bare() -> None:
    client = LineRig(compat=Compat.V1_12).client()
    told = dict(rows(client.says(b"stats\r\n")))
    assert told["version"] == '"1.12"'
    assert [*told] == SERVER_KEYS.split()
    machine = os.uname()
    shown = [told[name] for name in ("hostname", "os", "platform")]
    assert shown == [machine.nodename, machine.version, machine.machine]
    assert dict(rows(client.says(b"stats-tube default\r\n")))["name"] == "default"
    client.says(b"put 0 0 60 2\r\nhi\r\n")
    assert dict(rows(client.says(b"stats-job 1\r\n")))["tube"] == "default"


def test_a_wait_of_1_12_is_counted_and_ends_as_there() -> None:
    client = LineRig(compat=Compat.V1_12).client()
    assert client.says(b"reserve-with-timeout x\r\n") == b"TIMED_OUT\r\n"
    assert client.says(b"reserve-with-timeoutx\r\n") == b"BAD_FORMAT\r\n"
    assert dict(rows(client.says(b"stats\r\n")))["cmd-reserve-with-timeout"] == "1"


def test_an_instance_can_not_be_taken_for_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # conftest.py gives all the same
    names = {instance_id() for _ in range(50)}
    assert len(names) == 50
    for name in names:
        assert re.fullmatch("d[0-9a-f]{14}d", name)
