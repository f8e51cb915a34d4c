"""`delayd work` on the daemon in memory, with commands that are not run."""

import pytest

from delayd.cli.work import CommandWorker
from delayd.client import ConnectionLost, Job
from delayd.testing.fake import FakeDelayd


def test_an_outcome_that_could_not_be_reported_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lost(_job: Job) -> None:
        raise ConnectionLost("http://h", "reset", may_have_happened=True)

    monkeypatch.setattr(CommandWorker, "_run_command", lambda *_: (0, ""))
    monkeypatch.setattr(Job, "ack", lost)
    client = FakeDelayd().client()
    client.put("mail", "x")
    worker = CommandWorker(client, ["mail"], ["true"], 1, "1m", is_draining=True, environment={})
    assert worker.run() == 0
    assert capsys.readouterr().err == (
        "delayd: job 1 of mail was run, but reporting what came of it failed, so it may come again:"
        " the connection to http://h was lost (reset); this may or may not have been done\n"
    )
