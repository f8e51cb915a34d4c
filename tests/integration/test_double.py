"""The daemon double that ships with delayd, as somebody else's tests would use it."""

from pathlib import Path

import greenstalk
import pytest

from delayd.exits import Exit
from delayd.testing.daemon import Daemon, DaemonNotStarted, running_daemon


def test_a_stock_client_talks_to_it() -> None:
    with running_daemon() as daemon, greenstalk.Client(daemon.address) as client:
        job_id = client.put("hello")
        assert client.reserve().id == job_id


def test_each_has_a_directory_of_its_own() -> None:
    with running_daemon() as first, running_daemon() as second:
        assert first.address != second.address
        with greenstalk.Client(first.address) as client:
            client.put("hello")
        with greenstalk.Client(second.address) as client, pytest.raises(greenstalk.NotFoundError):
            client.peek(1)


def test_it_is_stopped_and_its_directory_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with running_daemon() as daemon:
        assert len(list(tmp_path.iterdir())) == 1
        assert daemon.process.poll() is None
    assert daemon.process.poll() == Exit.OK
    assert not list(tmp_path.iterdir())


def test_a_directory_of_the_callers_stays_and_what_is_in_it_is_there_again(tmp_path: Path) -> None:
    with running_daemon(data_dir=tmp_path) as daemon:
        with greenstalk.Client(daemon.address) as client:
            client.put("hello")
        assert daemon.kill() < 0
    with running_daemon(data_dir=tmp_path) as daemon, greenstalk.Client(daemon.address) as client:
        assert client.reserve().body == "hello"


def test_what_was_set_for_another_daemon_is_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELAYD_JOURNAL_SYNC", "sometimes")
    monkeypatch.setenv("NOTIFY_SOCKET", "/nowhere")
    with running_daemon() as daemon:
        assert daemon.stop() == Exit.OK


def test_a_daemon_that_does_not_start_is_quoted() -> None:
    with pytest.raises(DaemonNotStarted) as caught, running_daemon("--sync", "sometimes"):
        pass
    assert caught.value.exit_code == Exit.BAD_CONFIGURATION
    assert "must be one of always, interval, never" in str(caught.value)


def test_a_command_that_does_not_exist_is_an_error_of_the_system() -> None:
    with pytest.raises(FileNotFoundError):
        Daemon(["/nowhere/delayd"])
