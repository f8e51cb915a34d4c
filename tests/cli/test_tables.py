"""What tables show on terminals of 80 and of 40 columns: ids, times and numbers stand whole."""

import re

import pytest

from tests.cli.talking import Talk

WIDTHS = (80, 40)
DUE = ("2023-11-14T22:13:27Z", "2023-11-14T23:13:20Z")
KEY = "customer-2348757-order-17-reminder-of-the-third-day"


def lines(talk: Talk, *words: str) -> list[str]:
    """Print a table on the terminal; its lines without their colours."""
    return re.sub(r"\x1b\[[\d;]*m", "", talk.ok(*words)).splitlines()


def columns(talk: Talk, *words: str) -> list[list[str]]:
    return [re.split(" {2,}", line.strip()) for line in lines(talk, *words)]


@pytest.fixture
def jobs(talk: Talk) -> Talk:
    """Two jobs, one of which has a long key, a long body, and milliseconds."""
    for words in (
        ("put", "mail", "x" * 200, "--delay", "7.25s", "--key", KEY),
        ("put", "mail", "y", "--delay", "1h"),
    ):
        talk.ok(*words)
    return talk


@pytest.mark.parametrize("width", WIDTHS)
def test_ids_states_and_due_times_of_jobs_stand_whole(jobs: Talk, width: int) -> None:
    jobs.is_wide(width)
    for words in (("jobs", "mail"), ("jobs", "mail", "--bodies")):
        names, first, second = lines(jobs, *words)
        assert first.split()[:2] in (["1", DUE[0]], ["1", "delayed"])
        assert (DUE[0] in first, DUE[1] in second) == (True, True)
        assert "order" not in second
        assert max(map(len, (names, first, second))) <= width


def test_keys_and_bodies_are_cut_and_columns_that_say_nothing_are_left_out(jobs: Talk) -> None:
    jobs.is_wide(80)
    assert columns(jobs, "jobs", "mail", "--bodies") == [
        ["id", "state", "due", "key", "body"],
        ["1", "delayed", DUE[0], "customer-2348757-ord…", "x" * 21 + "…"],
        ["2", "delayed", DUE[1], "y"],
    ]
    jobs.ok("change", "2", "--priority", "3")
    assert columns(jobs, "jobs", "mail")[0] == ["id", "state", "due", "priority", "key"]


def test_the_narrowest_terminal_keeps_the_key(jobs: Talk) -> None:
    jobs.is_wide(40)
    assert columns(jobs, "jobs", "mail")[:2] == [
        ["id", "due", "key"],
        ["1", DUE[0], KEY[:13] + "…"],
    ]


def test_a_pipe_has_all_columns_and_milliseconds(jobs: Talk) -> None:
    names, first, _second = lines(jobs, "jobs", "mail")
    found = names.split()
    assert found == ["ID", "STATE", "DUE", "PRIORITY", "KEY", "GROUP", "ATTEMPTS", "FAILURE"]
    assert first.split() == ["1", "delayed", "2023-11-14T22:13:27.250Z", "65536", KEY]


def test_a_pipe_has_errors_and_bodies_whole(jobs: Talk) -> None:
    error = "no route to the host of the customer, and none to the next"
    jobs.ok("bury", "1", "--error", error)
    for words in (("jobs", "mail", "--state", "buried", "--bodies"), ("dead", "list", "mail")):
        _names, row = lines(jobs, *words)
        assert f"buried: {error}" in row
        assert row.endswith("x" * 200)


@pytest.mark.parametrize("width", WIDTHS)
def test_times_and_numbers_of_dead_letters_stand_whole(jobs: Talk, width: int) -> None:
    jobs.ok("kick", "1")
    jobs.ok("bury", jobs.reserved("mail"), "--error", "no route to the host of the customer")
    jobs.is_wide(width)
    names, row = lines(jobs, "dead", "list", "mail")
    assert row.split()[0] == "1"
    assert ("2023-11-14T22:13:20Z" in row) == ("failed at" in names)
    assert "buried: no" in row
    assert max(len(names), len(row)) <= width
    assert columns(jobs, "dead", "list") == [["topic", "dead letters"], ["mail", "1"]]


@pytest.mark.parametrize("width", WIDTHS)
def test_numbers_of_topics_stand_whole(jobs: Talk, width: int) -> None:
    long = "a" * 100
    jobs.ok("put", long, "x")
    jobs.ok("pause", "mail", "10m")
    jobs.is_wide(width)
    names, first, *rest = lines(jobs, "topics")
    figures = first.split()
    assert figures[0].endswith("…")
    assert figures[1:3] == ["1", "0"]
    assert ("2023-11-14T22:23:20Z" in rest[-1]) == ("paused until" in names)
    assert max(map(len, (names, first, *rest))) <= width


@pytest.mark.parametrize("width", WIDTHS)
def test_top_keeps_numbers_whole(jobs: Talk, width: int) -> None:
    jobs.is_wide(width)
    (row,) = (line for line in lines(jobs, "top", "--once") if line.startswith("mail"))
    assert row.split()[:2] == ["mail", "0"]
    assert "…" not in row
    assert len(row) <= width


def test_a_terminal_that_does_not_say_its_size_has_the_usual_one(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk.ok("put", "mail", "x")
    talk.is_wide(0)
    assert "delayed" in talk.ok("topics")


def test_schedules_show_on_80_columns_what_became_of_their_runs(talk: Talk) -> None:
    zone = ("--cron", "30 2 * * *", "--tz", "America/New_York")
    talk.ok("schedule", "put", "nightly", "x", "--topic", "reports", *zone)
    talk.ok("schedule", "put", "pulse", "x", "--topic", "t", "--every", "15m")
    talk.rig.pass_ms(86_400_000)
    talk.is_wide(80)
    assert columns(talk, "schedule", "list") == [
        ["name", "when", "next", "last", "runs", "missed"],
        ["pulse", "every 15m", "2023-11-15T22:28:20Z", "running", "1", "95"],
        ["nightly", "30 2 * * * America/New_Yo…", "2023-11-16T07:30:00Z", "running", "1", "0"],
    ]
