import json
from pathlib import Path

import pytest

from delayd.access.scopes import Scope
from delayd.cli.calendar import bar
from delayd.cli.main import invoke
from delayd.client import Client
from delayd.exits import Exit
from delayd.testing.daemon import running_daemon
from tests.cli.talking import Talk


def test_topics_are_listed_with_their_jobs_by_state(talk: Talk) -> None:
    talk.ok("put", "mail", "x")
    talk.ok("put", "mail", "x", "--delay", "1h")
    lines = [line.split() for line in talk.ok("topics").splitlines()]
    assert lines[0][:5] == ["TOPIC", "READY", "DELAYED", "RESERVED", "BURIED"]
    assert ["mail", "1", "1", "0", "0", "0"] in lines
    assert "mail" in [topic["name"] for topic in talk.objects("topics")]


def test_one_topic_is_shown_with_everything(talk: Talk) -> None:
    talk.ok("put", "mail", "x")
    fields = dict(line.split(None, 1) for line in talk.ok("topics", "mail").splitlines())
    assert fields["operations.put"] == "1"
    (topic,) = talk.objects("topics", "mail")
    assert topic["operations"]["put"] == 1


def test_a_paused_topic_hands_out_nothing_until_it_is_resumed(talk: Talk) -> None:
    talk.ok("put", "mail", "x")
    assert talk.ok("pause", "mail", "10m").startswith("mail is paused for 10m")
    talk.fails(Exit.NOTHING_THERE, "reserve", "mail")
    assert "22:23:20" in talk.ok("topics")
    talk.ok("resume", "mail")
    assert talk.reserved("mail")


def test_clear_deletes_all_jobs_that_no_worker_holds(talk: Talk) -> None:
    for _ in range(3):
        talk.ok("put", "mail", "x")
    talk.reserved("mail")
    assert talk.ok("clear", "mail", "--dry-run") == "would be deleted: 2 jobs of mail\n"
    talk.fails(Exit.USAGE, "clear", "mail")
    assert len(talk.rig.engine.store.jobs) == 3
    assert talk.ok("clear", "mail", "--yes") == "deleted: 2 jobs\n"
    assert len(talk.rig.engine.store.jobs) == 1


# --- policy --------------------------------------------------------------------------------------


def test_fields_of_a_policy_are_set_one_by_one(talk: Talk) -> None:
    talk.ok("policy", "set", "mail", "retry=15s 3m", "max_attempts=3")
    talk.ok("policy", "set", "mail", "jobs_max=5", "max_attempts=")
    (shown,) = talk.objects("policy", "get", "mail")
    assert shown == {"policy": {"jobs_max": 5, "retry": ["15s", "3m"]}, "source": "run_time"}
    assert "retry     [" in talk.ok("policy", "get", "mail")


def test_a_file_replaces_the_policy(talk: Talk, tmp_path: Path) -> None:
    talk.ok("policy", "set", "mail", "jobs_max=5")
    path = tmp_path / "policy.json"
    path.write_text('{"max_attempts": 2}')
    (shown,) = talk.objects("policy", "set", "mail", "--file", str(path))
    assert shown["policy"] == {"max_attempts": 2}


def test_a_dry_run_shows_what_the_policy_would_be(talk: Talk) -> None:
    said = talk.ok("policy", "set", "mail", "jobs_max=5", "--dry-run")
    assert json.loads(said) == {"jobs_max": 5}
    assert talk.objects("policy", "get", "mail")[0]["policy"] == {}


def test_a_cleared_policy_is_that_of_the_configuration(talk: Talk) -> None:
    talk.ok("policy", "set", "mail", "jobs_max=5")
    (shown,) = talk.objects("policy", "clear", "mail")
    assert shown == {"policy": {}, "source": "configuration"}


@pytest.mark.parametrize("words", ["", "jobs_max", "=5", "--file /dev/null"])
def test_a_policy_that_is_none_is_refused(words: str, talk: Talk) -> None:
    talk.fails(Exit.USAGE, "policy", "set", "mail", *words.split())


def test_all_mistakes_of_a_policy_are_said(talk: Talk) -> None:
    said = talk.fails(Exit.USAGE, "policy", "set", "mail", "jobs_mx=5", "retry=soon")
    assert "jobs_mx: there is no such field; did you mean jobs_max?" in said
    assert "retry" in said


# --- dead ----------------------------------------------------------------------------------------


@pytest.fixture
def dead(talk: Talk) -> Talk:
    """Two dead letters of the topic `mail`."""
    for name in ("one", "two"):
        talk.ok("put", "mail", name, "--max-attempts", "1")
        talk.ok("nack", talk.reserved("mail"), "--error", f"no route to {name}")
    return talk


def test_dead_letters_are_listed_with_why_they_failed(dead: Talk) -> None:
    assert dead.ok("dead", "list").splitlines()[1].split() == ["mail", "2"]
    assert "no route to one" in dead.ok("dead", "list", "mail")
    jobs = dead.objects("dead", "list", "mail")
    assert [job["body"] for job in jobs] == ["one", "two"]
    assert "no route to two" in dead.ok("dead", "show", "2")


def test_over_the_line_dead_letters_say_how_long_ago_they_failed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with running_daemon(clock="virtual") as daemon:
        with Client(f"beanstalk://{daemon.listens_on}") as client:
            client.put("mail", "x", max_attempts=1)
            client.reserve("mail", timeout=0).nack(error="no route")
            client.advance_clock("90s")
        for words, shown in (("list mail", "1m30s ago"), ("show 1", "nacked 1m30s ago")):
            assert invoke(["dead", *words.split(), "--line", daemon.listens_on]) == Exit.OK
            assert shown in capsys.readouterr().out


def test_where_there_are_none_it_is_said(talk: Talk) -> None:
    assert talk.run("dead", "list") == (Exit.OK, "", "delayd: there are no dead letters\n")
    talk.ok("put", "mail", "x")
    assert "job 1 is ready, no dead letter" in talk.run("dead", "show", "1")[2]


def test_a_token_for_other_topics_is_not_told_that_there_are_none(talk: Talk) -> None:
    talk.ok("put", "mail", "x")
    talk.has_token(Scope.STATS, Scope.PEEK, topics=("sms.*",))
    for words in (("topics",), ("dead", "list")):
        assert talk.run(*words)[2].endswith(" that this token may see\n")


def test_redrive_makes_them_ready_again(dead: Talk) -> None:
    assert dead.ok("dead", "redrive", "mail", "--dry-run").endswith("2 jobs of mail\n")
    dead.fails(Exit.USAGE, "dead", "redrive", "mail")
    words = ("dead", "redrive", "mail", "--count", "1", "--yes")
    assert dead.ok(*words) == "redriven: 1 job\n"
    assert dead.objects("jobs", "mail", "--state", "ready")[0]["id"] == 1
    dead.answers("y")
    assert dead.ok("dead", "redrive", "mail") == "redriven: 1 job\n"


# --- calendar and stats --------------------------------------------------------------------------


def test_a_calendar_from_the_past_begins_now_and_says_so(talk: Talk) -> None:
    talk.ok("put", "mail", "x", "--delay", "90m")
    (now,) = talk.objects("calendar", "mail", "--to", "2h", "--bucket", "1h")
    for begin in ("-1h", "2001-01-01T00:00:00Z"):
        words = ["calendar", "mail", "--from", begin, "--to", "2h", "--bucket", "1h", "--json"]
        code, out, err = talk.run(*words)
        assert (code, json.loads(out)) == (Exit.OK, now)
        assert "begins now" in err
    assert "--to must be" in talk.fails(Exit.USAGE, "calendar", "--from", "-2h", "--to", "-1h")


def test_the_calendar_counts_what_comes_due_in_each_row(talk: Talk) -> None:
    for delay in ("10m", "70m", "80m"):
        talk.ok("put", "mail", "x", "--delay", delay)
    assert talk.ok("calendar", "--to", "3h", "--bucket", "1h").splitlines() == [
        "2023-11-14 22:13:20  1",
        "2023-11-14 23:13:20  2",
        "2023-11-15 00:13:20  0",
    ]
    assert talk.objects("calendar", "mail", "--from", "1h", "--to", "2h", "--bucket", "30m") == [
        {"topic": "mail", "from": "2023-11-14T23:13:20Z", "bucket": 1800.0, "counts": [2, 0]}
    ]
    words = ("--from", "2023-11-14T23:13:20Z", "--to", "2023-11-15T00:13:20Z", "--bucket", "30m")
    assert talk.objects("calendar", "mail", *words)[0]["counts"] == [2, 0]
    assert len(talk.ok("calendar", "--from", "2030-01-01T00:00:00Z").splitlines()) == 24


@pytest.mark.parametrize(
    "words", ["--from 2h --to 1h", "--to 30d --bucket 1s", "--bucket 0", "--to soon"]
)
def test_a_calendar_that_cannot_be_is_refused(words: str, talk: Talk) -> None:
    talk.fails(Exit.USAGE, "calendar", *words.split())
    assert not talk.requests


def test_the_longest_bar_fills_its_columns() -> None:
    assert [len(bar(count, 8, 10)) for count in (8, 4, 1)] == [10, 5, 2]


def test_stats_are_fields_json_or_metrics(talk: Talk) -> None:
    talk.ok("put", "mail", "x")
    assert "jobs.ready" in talk.ok("stats")
    (stats,) = talk.objects("stats")
    assert stats["jobs"]["ready"] == 1
    assert talk.run("stats", "--metrics")[0] == Exit.OK
