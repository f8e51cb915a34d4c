"""The daemon double that ships with delayd, as somebody else's tests would use it."""

from pathlib import Path

import greenstalk
import pytest

from delayd.exits import Exit
from delayd.testing.daemon import ClockStands, DaemonNotStarted, running_daemon


def test_each_has_a_directory_of_its_own_that_is_removed_and_no_setting_of_another_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("DELAYD_JOURNAL_SYNC", "sometimes")
    monkeypatch.setenv("NOTIFY_SOCKET", "/nowhere")
    with running_daemon() as first, running_daemon() as second:
        assert len(list(tmp_path.iterdir())) == 2
        with greenstalk.Client(first.address) as client:
            job_id = client.put("hello")
            assert client.reserve().id == job_id
        with greenstalk.Client(second.address) as client, pytest.raises(greenstalk.NotFoundError):
            client.peek(job_id)
        with pytest.raises(ClockStands):
            first.advance(1)
        assert first.process.poll() is None
    assert first.process.poll() == second.process.poll() == Exit.OK
    assert not list(tmp_path.iterdir())


def test_a_daemon_that_does_not_start_is_quoted() -> None:
    with pytest.raises(DaemonNotStarted) as caught, running_daemon("--sync", "sometimes"):
        pass
    assert caught.value.exit_code == Exit.BAD_CONFIGURATION
    assert "must be one of always, interval, never" in str(caught.value)
