import threading

import pytest

from delayd.cli.completion import SHELLS, VARIABLE
from delayd.cli.main import invoke
from delayd.client.connection import Connections
from delayd.exits import Exit
from tests.cli.conftest import imported_by
from tests.cli.talking import Talk
from tests.cli.test_sessions import completed


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_each_shell_asks_by_the_variable(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["completion", shell]) == Exit.OK
    assert f"{VARIABLE}={shell}_complete" in capsys.readouterr().out


def test_without_an_answer_nothing_is_completed_and_nothing_is_said(
    talk: Talk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("delayd.cli.connect.COMPLETION_S", 0.0)
    hangs = threading.Event()
    monkeypatch.setattr(Connections, "exchange", lambda *_: hangs.wait())
    assert completed("jobs", "?") == []
    assert completed("jobs", "--line", "nonsense:port", "?") == []
    hangs.set()
    assert capsys.readouterr() == ("", "")


def test_no_module_of_rich_is_needed_for_it() -> None:
    assert "rich" not in imported_by("delayd.cli.main", "delayd.cli.completion")
