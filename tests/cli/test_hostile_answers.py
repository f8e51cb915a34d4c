"""A command whose server answers nonsense ends with a sentence and an exit code."""

import io
from typing import Final

import pytest

from delayd.cli.main import invoke
from delayd.client.connection import Connections
from delayd.client.http1 import Response
from delayd.exits import Exit
from tests.cli.talking import Nowhere

COMMANDS: Final = (
    *("put mail x", "put mail --ndjson -", "reserve mail --wait 0s", "jobs mail", "jobs"),
    *("jobs mail --bodies --json", "peek 7", "peek --topic mail", "cancel 7", "kick 7"),
    *("reschedule 7 --delay 1h", "change 7 --priority 1", "topics", "topics mail", "pause mail 1s"),
    *("resume mail", "clear mail --yes", "clear mail --dry-run", "calendar", "policy get mail"),
    *("policy set mail jobs_max=1", "policy clear mail", "dead list", "dead list mail"),
    *("dead show 7", "dead redrive mail --yes", "stats", "stats --json", "stats --metrics"),
    *("top --once", "top --json", "work mail --drain -- true"),
    "cancel --topic mail --prefix a --yes",
)
TABLE: Final = (
    b'{"name":"mail","delayed":0,"ready":0,"reserved":0,"buried":0,"urgent":0,"waiting":0,'
    b'"rates":%b,"due_to_ready":%b}'
)
ANSWERS: Final = (
    *(b"", b"[]", b"null", b"7", b"NaN", b"{}", b"<html>", b"\xff", b"[" * 200_000),
    *(b'{"a":' * 900 + b"1" + b"}" * 900, b'{"id":"x","jobs":[1],"topics":[[]],"after":{}}'),
    *(b'{"topics":[%b],"after":null}' % (TABLE % (b"1", b"[]")), TABLE % (b"[]", b'{"p50":"x"}')),
)


@pytest.mark.parametrize("command", COMMANDS)
def test_no_answer_ends_a_command_with_a_traceback(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for status in (200, 302, 404):
        for body in ANSWERS:
            answered = iter([Response(status, {"retry-after": "\u00b2"}, body)] * 9)
            monkeypatch.setattr(
                Connections,
                "exchange",
                lambda made, _ask, answered=answered: (Nowhere(made.way), next(answered)),
            )
            monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"body":1}\n')))
            code = invoke(command.split())
            assert code in {Exit.OK, Exit.REFUSED, Exit.NOTHING_THERE}, (status, body[:80])
            assert "Traceback" not in capsys.readouterr().err
