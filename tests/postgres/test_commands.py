"""`delayd journal` with the url of a database."""

from pathlib import Path

import psycopg
import pytest

from delayd.cli.main import invoke
from delayd.exits import Exit
from tests.cli.journals import Capture, fill_with_snapshot, lines_of
from tests.postgres_server import PostgresServer, postgres_server
from tests.rigs.postgres import opened


@pytest.fixture
def name(tmp_path: Path, server: PostgresServer, capsys: Capture) -> str:
    """A log with the jobs of a directory."""
    name = server.new_log()
    fill_with_snapshot(tmp_path / "data")
    copied = told(capsys, "copy", str(tmp_path / "data"), server.url, "--name", name)
    assert copied == ["copied 12 jobs, up to frame 4"]
    return name


def told(capsys: Capture, command: str, *words: str, code: Exit = Exit.OK) -> list[str]:
    """What a command of the journal says, which ends so."""
    assert invoke(["journal", command, *words]) == code
    return lines_of(capsys)


def test_a_log_in_a_database_is_checked_printed_and_backed_up_while_a_daemon_owns_it(
    name: str, tmp_path: Path, server: PostgresServer, capsys: Capture
) -> None:
    there = (server.url, "--name", name)
    lines = told(capsys, "check", *there)
    assert lines[1:3] == ["owner      none; epoch 0", lines[2]]
    assert lines[2].startswith("snapshot   of frame 4, ")
    assert any(line.startswith("state      12 jobs in 1 topic:") for line in lines)
    assert lines[-1] == "verdict    accept: the log is whole"

    log = opened(server, name)
    assert [*log.follow()]
    assert log.take_over()
    try:
        assert "owner      127.0.0.1:1, for " in told(capsys, "check", *there)[1]
        printed = told(capsys, "dump", *there)
        assert printed[0].startswith("snapshot-4 ")
        copy = str(tmp_path / "copy")
        copied = told(capsys, "backup", server.url, copy, "--name", name)
        assert copied == ["copied 12 jobs, up to frame 4"]
        assert told(capsys, "check", copy)[-1] == "verdict    accept: the log is whole"
        dumped = told(capsys, "dump", copy)
        again = [line.split()[3:] for line in dumped if "CLOSED" not in line]
        assert again == [line.split()[3:] for line in printed]
    finally:
        log.close()


def test_a_damaged_log_in_a_database_is_refused_and_named(
    name: str, server: PostgresServer, capsys: Capture
) -> None:
    with psycopg.connect(server.url, autocommit=True) as admin:
        damage = "UPDATE LOG.snapshot_1 SET payload = set_byte(payload, 200, 1)"
        admin.execute(damage.replace("LOG", name))
    lines = told(capsys, "check", server.url, "--name", name, code=Exit.CORRUPT_JOURNAL)
    assert lines[-2].startswith("verdict    refuse: ")
    assert "/postgres: the snapshot of frame 4" in lines[-2]
    assert invoke(["journal", "dump", server.url, "--name", name]) == Exit.CORRUPT_JOURNAL
    for command in ("check", "dump"):
        assert invoke(["journal", command, server.url, "--name", "none"]) == Exit.BAD_CONFIGURATION
        assert "there is no log called none in" in capsys.readouterr().err


def test_the_commands_take_name_and_password_from_the_configuration(
    tmp_path: Path, capsys: Capture
) -> None:
    fill_with_snapshot(tmp_path / "data")
    (tmp_path / "password").touch(0o600)
    (tmp_path / "password").write_text("s3cret")
    config = tmp_path / "delayd.toml"
    config.write_text('postgres = {name = "jobs", password_file = "password"}')
    with postgres_server() as server:
        url = server.require_password("ada", "s3cret")
        for command in (
            ("copy", str(tmp_path / "data"), url),
            ("check", url),
            ("dump", url),
            ("backup", url, str(tmp_path / "copy")),
        ):
            assert invoke(["journal", *command]) == Exit.BAD_CONFIGURATION
            assert "postgres.password_file, or else of PGPASSFILE" in capsys.readouterr().err
            assert invoke(["journal", *command, "--config", str(config)]) == Exit.OK
            capsys.readouterr()
        assert server.ask("SELECT count(*) FROM jobs.log") == "1"
    assert invoke(["journal", "check", url.replace("@", ":s3cret@")]) == Exit.USAGE
    refusal = capsys.readouterr().err
    assert "PGPASSFILE, PGPASSWORD or postgres.password_file (--config FILE)" in refusal
    assert "s3cret" not in refusal
