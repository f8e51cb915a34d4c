import threading

import pytest
from click.shell_completion import ShellComplete

from delayd.access.scopes import Scope
from delayd.cli.completion import SHELLS, VARIABLE
from delayd.cli.main import delayd, invoke
from delayd.client.connection import Connections
from delayd.exits import Exit
from tests.cli.conftest import imported_by
from tests.cli.talking import Talk


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_each_shell_asks_by_the_variable(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["completion", shell]) == Exit.OK
    assert f"{VARIABLE}={shell}_complete" in capsys.readouterr().out


def completed_here(*words: str) -> list[str]:
    """What is offered for the last word, by this process."""
    asked = ShellComplete(delayd, {}, "delayd", VARIABLE)
    return [item.value for item in asked.get_completions(list(words[:-1]), words[-1])]


@pytest.fixture
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell waits half a second for the daemon, for which this machine may stop."""
    monkeypatch.setattr("delayd.cli.connect.COMPLETION_S", 60.0)


@pytest.mark.usefixtures("_patience")
def test_topics_keys_groups_and_schedules_are_completed_where_a_daemon_answers(talk: Talk) -> None:
    talk.ok("put", "mail.in", "x", "--key", "letter-1")
    talk.ok("put", "mail.out", "x", "--key", "letter-2")
    talk.ok("put", "orders", "x")
    talk.ok("put", "mail.in", "x", "--group", "acme")
    talk.ok("schedule", "put", "nightly", "x", "--topic", "reports", "--cron", "@daily")
    for words, offered in {
        "jobs mail": "mail.in mail.out",
        "policy get or": "orders",
        "reserve orders mail.i": "mail.in",
        "cancel --topic mail": "mail.in mail.out",
        "cancel --topic mail.out --key ": "letter-2",
        "cancel --topic mail.out --key x": "",
        "cancel --key ": "",
        "group pause mail.in ac": "acme",
        "jobs mail.in --group b": "",
        "schedule pause ni": "nightly",
        "schedule pause x": "",
    }.items():
        assert completed_here(*words.split(" ")) == offered.split(), words


@pytest.mark.usefixtures("_patience")
def test_without_an_answer_nothing_is_completed_and_nothing_is_said(
    talk: Talk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    talk.has_token(Scope.PUT)
    assert completed_here("jobs", "") == []
    monkeypatch.setattr("delayd.cli.connect.COMPLETION_S", 0.0)
    hangs = threading.Event()
    monkeypatch.setattr(Connections, "exchange", lambda *_: hangs.wait())
    assert completed_here("jobs", "") == []
    assert completed_here("jobs", "--line", "nonsense:port", "") == []
    hangs.set()
    assert capsys.readouterr() == ("", "")


def test_no_module_of_rich_is_needed_for_it() -> None:
    assert "rich" not in imported_by("delayd.cli.main", "delayd.cli.completion")
