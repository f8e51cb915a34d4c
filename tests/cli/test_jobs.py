import json
import re
from typing import Any

import pytest

from delayd.cli.main import invoke
from delayd.exits import Exit
from delayd.limits import MARKS_SHOWN_MAX
from delayd.testing.daemon import running_daemon
from tests.cli.talking import Talk


@pytest.fixture
def orders(talk: Talk) -> Talk:
    """Three jobs that are due in one, two and three hours, two of them with keys."""
    talk.ok("put", "orders", "one", "--delay", "1h", "--key", "order-1")
    talk.ok("put", "orders", "two", "--delay", "2h", "--key", "order-2")
    talk.ok("put", "orders", "three", "--delay", "3h")
    return talk


def ids(talk: Talk, *words: str) -> list[int]:
    return [job["id"] for job in talk.objects("jobs", "orders", *words)]


# --- jobs ----------------------------------------------------------------------------------------


def test_jobs_are_listed_in_due_order_in_columns(orders: Talk) -> None:
    lines = orders.ok("jobs", "orders", "--bodies").splitlines()
    assert [line.split() for line in lines] == [
        ["ID", "STATE", "DUE", "PRIORITY", "KEY", "ATTEMPTS", "FAILURE", "BODY"],
        ["1", "delayed", "2023-11-14T23:13:20Z", "65536", "order-1", "one"],
        ["2", "delayed", "2023-11-15T00:13:20Z", "65536", "order-2", "two"],
        ["3", "delayed", "2023-11-15T01:13:20Z", "65536", "three"],
    ]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("", [1, 2, 3]),
        ("--prefix order-", [1, 2]),
        ("--from 90m", [2, 3]),
        ("--to 90m", [1]),
        ("--from now --to 2023-11-15T00:30:00Z", [1, 2]),
        ("--state ready", []),
        ("--state ready --state delayed --limit 2", [1, 2]),
        ("--limit 0", [1, 2, 3]),
    ],
)
def test_filters_select(words: str, found: list[int], orders: Talk) -> None:
    assert ids(orders, *words.split()) == found


def test_json_has_the_names_of_http_over_the_line_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def told(*words: str) -> dict[str, Any]:
        assert invoke([*words, "--json", "--line", daemon.listens_on]) == Exit.OK
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    with running_daemon() as daemon:
        told("put", "cg", "x", "--delay", "1h", "--priority", "7", "--key", "k", "--group", "g")
        row = told("jobs", "cg")
        assert row.pop("due").endswith("Z")
        assert row == {"topic": "cg", "id": 1, "state": "delayed", "priority": 7, "key": "k"}
        for words in (("jobs", "cg", "--bodies"), ("peek", "1")):
            job = told(*words)
            assert (job["topic"], job["id"], job["state"], job["key"]) == ("cg", 1, "delayed", "k")
            assert (job["priority"], job["ttr"], job["group"], job["body"]) == (7, 60.0, "g", "x")


def test_it_is_said_when_there_are_more(orders: Talk) -> None:
    _code, out, err = orders.run("jobs", "orders", "--limit", "2", "--json")
    assert len(out.splitlines()) == 2
    assert err == "delayd: there are more than 2: --all prints all of them; or use a filter\n"
    for words in (("--limit", "3"), ("--all", "--limit", "1")):
        code, out, err = orders.run("jobs", "orders", "--json", *words)
        assert (code, len(out.splitlines()), err) == (Exit.OK, 3, "")


def test_without_a_topic_the_next_jobs_of_all_topics_are_listed_in_due_order(orders: Talk) -> None:
    orders.ok("put", "mail", "x", "--delay", "90m")
    orders.ok("put", "sms", "x")
    orders.ok("bury", orders.reserved("sms"))
    orders.ok("put", "sms", "y")
    listed = [(job["topic"], job["id"]) for job in orders.objects("jobs")]
    assert listed == [("sms", 6), ("orders", 1), ("mail", 4), ("orders", 2), ("orders", 3)]
    assert orders.ok("jobs").splitlines()[0].split()[:2] == ["ID", "TOPIC"]
    assert [job["id"] for job in orders.objects("jobs", "--state", "buried")] == [5]
    _code, out, err = orders.run("jobs", "--limit", "3", "--json")
    assert [json.loads(line)["id"] for line in out.splitlines()] == [6, 1, 4]
    assert "more than 3" in err
    assert len(orders.objects("jobs", "--all")) == 5


def test_of_very_many_topics_those_with_most_jobs_are_listed(
    orders: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delayd.cli.jobs.TOPICS_MAX", 1)
    orders.ok("put", "mail", "x")
    _code, out, err = orders.run("jobs", "--json")
    assert [json.loads(line)["topic"] for line in out.splitlines()] == ["orders"] * 3
    assert "of 2 topics the 1 with most jobs are listed" in err


def test_a_filter_that_is_no_time_and_a_topic_that_is_not_there_are_told(talk: Talk) -> None:
    said = talk.fails(Exit.USAGE, "jobs", "orders", "--to", "tomorrow")
    assert "'tomorrow' must be a time such as" in said
    assert "nosuch" in talk.fails(Exit.NOTHING_THERE, "jobs", "nosuch")


# --- peek ----------------------------------------------------------------------------------------


def test_peek_shows_a_job_by_id_by_key_or_the_first_of_a_state(orders: Talk) -> None:
    for words in ("1", "--topic orders --key order-1", "--topic orders --state delayed"):
        (job,) = orders.objects("peek", *words.split())
        assert (job["id"], job["body"]) == (1, "one")
    lines = dict(line.split(None, 1) for line in orders.ok("peek", "1").splitlines())
    assert lines["key"] == "order-1"
    assert lines["body"] == "one"


def test_peek_says_when_there_is_none(orders: Talk) -> None:
    words = ("peek", "--topic", "orders", "--state", "buried")
    assert "no job of orders is buried" in orders.fails(Exit.NOTHING_THERE, *words)
    orders.fails(Exit.NOTHING_THERE, "peek", "99")
    orders.fails(Exit.USAGE, "peek")


def test_peek_says_why_a_job_failed(talk: Talk) -> None:
    talk.ok("put", "mail", "x")
    assert talk.ok("bury", talk.reserved("mail"), "--error", "no\x1b[2J route") == ""
    assert talk.objects("peek", "1")[0]["state"] == "buried"
    said = talk.ok("peek", "1")
    assert "failed" in said
    assert "error     no\\x1b[2J route\n" in said


# --- Which jobs ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "left"),
    [
        ("1 3", [2]),
        ("--topic orders --key order-1", [2, 3]),
        ("--topic orders --prefix order- --yes", [3]),
        ("--topic orders --to 90m --yes", [2, 3]),
        ("--topic orders --all --yes", []),
    ],
)
def test_cancel_deletes_what_was_chosen(words: str, left: list[int], orders: Talk) -> None:
    orders.ok("cancel", *words.split())
    store = orders.rig.engine.store
    assert [job_id for job_id in (1, 2, 3) if store.jobs.get(job_id)] == left


def test_what_is_refused_of_one_job_keeps_no_other_from_being_done(orders: Talk) -> None:
    code, out, err = orders.run("cancel", "1", "999", "2")
    assert (code, out) == (Exit.NOTHING_THERE, "cancelled: 2 jobs\n")
    assert "999" in err
    orders.fails(Exit.NOTHING_THERE, "peek", "2")
    code, out, err = orders.run("kick", "999")
    assert (code, out) == (Exit.NOTHING_THERE, "")


@pytest.mark.parametrize(
    "words",
    [
        "",
        "1 --topic orders",
        "1 --prefix x",
        "--topic orders",
        "--topic orders --key k --prefix x",
        "--topic orders --all --prefix x",
        "--prefix x",
    ],
)
def test_a_choice_that_is_none_changes_nothing(words: str, orders: Talk) -> None:
    count = len(orders.requests)
    orders.fails(Exit.USAGE, "cancel", *words.split())
    assert len(orders.requests) == count


@pytest.mark.parametrize("command", ["cancel", "kick", "reschedule --delay 1m"])
def test_a_dry_run_counts_and_changes_nothing(command: str, orders: Talk) -> None:
    before = orders.objects("jobs", "orders")
    said = orders.ok(*command.split(), "--topic", "orders", "--prefix", "order-", "--dry-run")
    assert said.startswith("would be ")
    assert said.endswith("2 jobs of orders\n")
    assert "1 job\n" in orders.ok(*command.split(), "1", "--dry-run")
    assert orders.objects("jobs", "orders") == before


def test_many_jobs_are_changed_only_when_somebody_says_yes(orders: Talk) -> None:
    words = ("cancel", "--topic", "orders", "--prefix", "order-")
    said = orders.fails(Exit.USAGE, *words)
    assert "nothing was changed; 2 jobs of orders would be cancelled" in said
    orders.answers("n")
    orders.fails(Exit.USAGE, *words)
    assert len(ids(orders)) == 3
    orders.answers("y")
    code, out, err = orders.run(*words)
    assert (code, out) == (Exit.OK, "cancelled: 2 jobs\n")
    assert "2 jobs of orders will be cancelled. Go on?" in err


def test_it_is_said_when_nothing_matched(orders: Talk) -> None:
    _code, out, err = orders.run("kick", "--topic", "orders", "--prefix", "zzz", "--yes")
    assert (out, err) == ("kicked: 0 jobs\n", "delayd: no job matched\n")


def test_kick_makes_jobs_ready(orders: Talk) -> None:
    orders.ok("kick", "1")
    orders.ok("kick", "--topic", "orders", "--key", "order-2")
    assert ids(orders, "--state", "ready") == [1, 2]


def test_reschedule_gives_another_time(orders: Talk) -> None:
    orders.ok("reschedule", "1", "--delay", "1d")
    orders.ok(
        "reschedule",
        "--topic",
        "orders",
        "--prefix",
        "order-2",
        "--at",
        "2030-01-01T00:00:00Z",
        "--yes",
    )
    due = {job["id"]: job["due"] for job in orders.objects("jobs", "orders")}
    assert (due[1], due[2]) == ("2023-11-15T22:13:20.000Z", "2030-01-01T00:00:00.000Z")
    orders.fails(Exit.USAGE, "reschedule", "1")
    orders.fails(Exit.USAGE, "reschedule", "1", "--delay", "1m", "--at", "2030-01-01T00:00:00Z")


def test_change_says_where_a_job_is_sent_or_that_it_is_not(orders: Talk) -> None:
    orders.rig.engine.vet_target = lambda target: target
    url = "https://example.com/due"
    orders.ok("change", "1", "--call", url, "--method", "PUT", "--header", "X-Shop: 7")
    (job,) = orders.objects("peek", "1")
    assert (job["url"], job["method"], job["headers"]) == (url, "PUT", {"X-Shop": "7"})
    assert url in orders.ok("peek", "1")
    assert orders.objects("jobs", "orders")[0]["url"] == url
    orders.ok("change", "1", "--call", "")
    assert "url" not in orders.objects("peek", "1")[0]


def test_change_changes_what_is_given_and_nothing_else(orders: Talk) -> None:
    words = ("change", "--topic", "orders", "--key", "order-1", "--priority", "3", "--body", "new")
    assert orders.ok(*words) == "changed: due 2023-11-14T23:13:20Z\n"
    (job,) = orders.objects("peek", "1")
    assert (job["priority"], job["body"], job["ttr"]) == (3, "new", 60.0)
    orders.fails(Exit.USAGE, "change", "1")
    orders.fails(Exit.NOTHING_THERE, "change", "99", "--priority", "1")


# --- Texts of others -----------------------------------------------------------------------------

HOSTILE = "a\u202e\u2066\ufeff\x1b[2J\x9b\U000e0041\u2028\ue000" + "\u0301" * 50
SHOWING = (
    "dead list mail",
    "dead list mail --json",
    "dead show 1",
    "dead show 1 --json",
    "jobs mail --bodies",
    "jobs mail --json --bodies",
    "peek 1",
    "peek 1 --json",
    "reserve other --json",
    "top --once",
    "top --once --json",
)


@pytest.mark.parametrize("words", SHOWING)
@pytest.mark.parametrize("on_terminal", [False, True])
def test_no_command_shows_a_text_of_others_raw(
    words: str, talk: Talk, monkeypatch: pytest.MonkeyPatch, *, on_terminal: bool
) -> None:
    talk.ok("put", "mail", HOSTILE)
    talk.ok("put", "other", HOSTILE)
    talk.ok("bury", talk.reserved("mail"), "--error", HOSTILE)
    monkeypatch.setattr("sys.stdout.isatty", lambda: on_terminal)
    monkeypatch.setattr("delayd.cli.tables.columns_here", lambda: 400)
    said = re.sub(r"\x1b\[[\d;]*m", "", talk.ok(*words.split()))
    assert all(map(str.isprintable, said.split("\n")))
    assert "\u0301" * (MARKS_SHOWN_MAX + 1) not in said


def test_a_complaint_shows_no_text_of_others_raw(talk: Talk) -> None:
    said = talk.fails(Exit.NOTHING_THERE, "peek", "--topic", "mail", "--key", "a\u202eb")
    said += talk.fails(Exit.USAGE, "peek", "\u202e")
    assert all(map(str.isprintable, said.split("\n")))
    assert "\\u202e" in said
