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
    source = str(tmp_path / "data")
    assert invoke(["journal", "copy", source, server.url, "--name", name]) == Exit.OK
    assert lines_of(capsys) == ["copied 12 jobs, up to frame 4"]
    return name


def test_a_log_in_a_database_is_checked_printed_and_backed_up_while_a_daemon_owns_it(
    name: str, tmp_path: Path, server: PostgresServer, capsys: Capture
) -> None:
    assert invoke(["journal", "check", server.url, "--name", name]) == Exit.OK
    lines = lines_of(capsys)
    assert lines[1:3] == ["owner      none; epoch 0", lines[2]]
    assert lines[2].startswith("snapshot   of frame 4, ")
    assert any(line.startswith("state      12 jobs in 1 topic:") for line in lines)
    assert lines[-1] == "verdict    accept: the log is whole"

    log = opened(server, name)
    assert [*log.follow()]
    assert log.take_over()
    try:
        assert invoke(["journal", "check", server.url, "--name", name]) == Exit.OK
        assert "owner      127.0.0.1:1, for " in "".join(lines_of(capsys)[1])
        assert invoke(["journal", "dump", server.url, "--name", name]) == Exit.OK
        printed = lines_of(capsys)
        assert printed[0].startswith("snapshot-4 ")
        copy = str(tmp_path / "copy")
        assert invoke(["journal", "backup", server.url, copy, "--name", name]) == Exit.OK
        assert lines_of(capsys) == ["copied 12 jobs, up to frame 4"]
        assert invoke(["journal", "check", copy]) == Exit.OK
        assert lines_of(capsys)[-1] == "verdict    accept: the log is whole"
        assert invoke(["journal", "dump", copy]) == Exit.OK
        again = [line.split()[3:] for line in lines_of(capsys) if "CLOSED" not in line]
        assert again == [line.split()[3:] for line in printed]
    finally:
        log.close()


def test_a_damaged_log_in_a_database_is_refused_and_named(
    name: str, server: PostgresServer, capsys: Capture
) -> None:
    with psycopg.connect(server.url, autocommit=True) as admin:
        damage = "UPDATE LOG.snapshot_1 SET payload = set_byte(payload, 200, 1)"
        admin.execute(damage.replace("LOG", name))
    assert invoke(["journal", "check", server.url, "--name", name]) == Exit.CORRUPT_JOURNAL
    lines = lines_of(capsys)
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
