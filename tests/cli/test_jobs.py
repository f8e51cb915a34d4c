import contextlib
import io
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest

from delayd.cli.asking import LOOK_S, Asking
from delayd.cli.calendar import bar
from delayd.cli.connect import PATIENCE_S
from delayd.cli.jobs import WATCH_S
from delayd.cli.main import invoke
from delayd.cli.terminal import CommandFailed
from delayd.client import Client
from delayd.exits import Exit
from delayd.limits import MARKS_SHOWN_MAX
from delayd.testing.daemon import running_daemon
from tests.cli.talking import Talk

# --- jobs ----------------------------------------------------------------------------------------


def test_over_the_line_json_has_the_names_of_http_and_dead_letters_tell_how_long_ago_they_failed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def told(*words: str) -> dict[str, Any]:
        assert invoke([*words, "--json", "--line", daemon.listens_on]) == Exit.OK
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    with running_daemon(clock="virtual") as daemon:
        told("put", "cg", "x", "--delay", "1h", "--priority", "7", "--key", "k", "--group", "g")
        row = told("jobs", "cg")
        assert row.pop("due").endswith("Z")
        assert row == {"topic": "cg", "id": 1, "state": "delayed", "priority": 7, "key": "k"}
        for words in (("jobs", "cg", "--bodies"), ("peek", "1")):
            job = told(*words)
            assert (job["topic"], job["id"], job["state"], job["key"]) == ("cg", 1, "delayed", "k")
            assert (job["priority"], job["ttr"], job["group"], job["body"]) == (7, 60.0, "g", "x")
        with Client(f"beanstalk://{daemon.listens_on}") as client:
            client.put("mail", "x", max_attempts=1)
            client.reserve("mail", timeout=0).nack(error="no route")
            client.advance_clock("90s")
        for command, shown in (("list mail", "1m30s ago"), ("show 2", "nacked 1m30s ago")):
            assert invoke(["dead", *command.split(), "--line", daemon.listens_on]) == Exit.OK
            assert shown in capsys.readouterr().out


def test_the_longest_bar_of_a_calendar_fills_its_columns() -> None:
    assert [len(bar(count, 8, 10)) for count in (8, 4, 1)] == [10, 5, 2]


def test_a_watched_list_is_drawn_again_until_a_key_ends_it(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        talk.ok("put", "orders", "x", "--delay", "1h")
    assert "--watch needs a terminal" in talk.fails(Exit.USAGE, "jobs", "orders", "--watch")
    said: list[Asking[Any]] = []
    keys = iter(["", "x", "outage", "later", "q"])
    drawn: list[str] = []

    @contextlib.contextmanager
    def asked_again(_client: object, fetch: Callable[[], Any], every_s: float) -> Iterator[Any]:
        assert every_s == WATCH_S
        said.append(Asking(fetch(), 0.0))
        fetches.append(fetch)
        yield said[0]

    def key_within(wait_s: float) -> str:
        assert wait_s == LOOK_S
        drawn.append(screen.getvalue())
        screen.truncate(0)
        screen.seek(0)
        key = next(keys)
        if key == "x":
            talk.rig.ok("DELETE", "/v1/jobs/1")
            said[0].end(0.0, fetches[0]())
        if key == "outage":
            said[0].end(0.0, why="Connection refused")
        return key

    fetches: list[Callable[[], Any]] = []
    monkeypatch.setattr("delayd.cli.asking.key_within", key_within)
    monkeypatch.setattr("delayd.cli.asking.asked_again", asked_again)
    monkeypatch.setattr("delayd.cli.asking.now_s", lambda: 2.0)
    talk.answers("")
    screen = io.StringIO()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert invoke(["jobs", "orders", "--watch", "--json"]) == Exit.OK
    assert [len(re.findall(r'"id": \d', each)) for each in drawn] == [3, 0, 2, 2, 0]
    assert "the daemon has not answered for 2 s (Connection refused)" in drawn[3]


def test_a_watched_list_has_no_patience_so_that_an_outage_is_said_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[float] = []

    def client(*, patience_s: float, **_where: object) -> NoReturn:
        made.append(patience_s)
        raise CommandFailed(Exit.USAGE, "enough")

    monkeypatch.setattr("delayd.cli.connect.client", client)
    for words in (["jobs", "orders", "--watch"], ["jobs", "orders"]):
        assert invoke(words) == Exit.USAGE
    assert made == [0.0, PATIENCE_S]


# --- Texts of others -----------------------------------------------------------------------------

HOSTILE = "a\u202e\u2066\ufeff\x1b[2J\x9b\U000e0041\u2028\ue000" + "\u0301" * 50
SHOWING = (
    *("dead list mail", "dead list mail --json", "dead show 1", "dead show 1 --json"),
    *("jobs mail --bodies", "jobs mail --json --bodies", "peek 1", "peek 1 --json"),
    *("reserve other --json", "top --once", "top --once --json"),
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
