import pytest

from delayd.cli.main import invoke
from tests.cli.talking import Talk


def test_on_a_terminal_a_body_ends_its_line(
    talk: Talk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    talk.ok("put", "mail", "one")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    capsys.readouterr()
    invoke(["peek", "1", "--body"])
    assert capsys.readouterr().out == "one\n"
