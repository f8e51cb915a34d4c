"""Databases that a daemon cannot use: each is named by a sentence, and nothing is changed there."""

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg
import pytest

from delayd.cli import machine as machine_module
from delayd.cli.database_diagnosis import database_findings
from delayd.cli.main import invoke
from delayd.config import Config, load, shared_settings
from delayd.exits import Exit
from delayd.log import LogError
from tests.cli.journals import Capture
from tests.cli.test_diagnosis import HEALTHY
from tests.postgres_server import PostgresServer
from tests.rigs.postgres import Rig, opened

if TYPE_CHECKING:
    from delayd.postgres.postgres_log import PostgresLog

OURS: Final = shared_settings(load(None, {"DELAYD_TOPICS": '{"mail": {"ttr": "5m"}}'}, {}))
THEIRS: Final = f"line a:1\n{shared_settings(Config(postgres_lease_ms=1_000))}"
NAMED: Final = "named_everywhere"


class Started(NamedTuple):
    """How a start went on."""

    code: Exit | None
    """None: it stands by."""
    sentence: str


def started(server: PostgresServer, url: str) -> Started:
    """Do what a daemon does at its start until it would take over, or stands by."""
    said = io.StringIO()
    log: PostgresLog | None = None
    try:
        log = opened(server, NAMED, said=said, url=url, settings=OURS)
        for _, frame in zip(range(9), log.follow(), strict=False):
            if frame is None and said.getvalue():
                return Started(None, said.getvalue())
        raise AssertionError("nothing is wrong with it")
    except LogError as error:
        return Started(error.exit_code, str(error))
    finally:
        if log is not None:
            log.close()


@pytest.fixture(scope="module")
def admin(server: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(server.url, autocommit=True) as connection:
        for role, more in (("reader", "SET default_transaction_read_only = on"), ("guest", "")):
            connection.execute(f"CREATE ROLE {role} LOGIN")
            if more:
                connection.execute(f"ALTER ROLE {role} {more}")
        yield connection


@pytest.fixture
def made(server: PostgresServer, admin: psycopg.Connection[Any]) -> Iterator[None]:
    """A log with one frame, whose owner has ended."""
    with Rig(server, NAMED) as rig:
        rig.keep(b"kept")
    yield
    admin.execute(f"DROP SCHEMA {NAMED} CASCADE")


def state(admin: psycopg.Connection[Any]) -> list[object]:
    tables = ("log", *(f"frame_{number}" for number in range(3)), "snapshot_0", "snapshot_1")
    return [admin.execute(f"TABLE {NAMED}.{table}").fetchall() for table in tables]


CASES: Final = r"""
cannot be reached | ada@127.0.0.1:1,127.0.0.1:2/jobs | JOURNAL_FAILED
    cannot be reached: .*port 1 failed: Connection refused\..*port 2 failed: Connection
a role without rights | guest@HERE/postgres | BAD_CONFIGURATION
    guest lacks USAGE .* run what `delayd journal schema --name LOG --role guest` prints
a wrong sslmode | postgres@HERE/postgres?sslmode=bogus | BAD_CONFIGURATION
    cannot be used: invalid sslmode value: "bogus"
an unknown parameter | postgres@HERE/postgres?foo=1 | BAD_CONFIGURATION
    postgres.url: libpq knows no parameter 'foo'
no such database | postgres@HERE/nowhere | BAD_CONFIGURATION
    cannot be used: .*database "nowhere" does not exist
no such role | nobody@HERE/postgres | BAD_CONFIGURATION
    cannot be used: .*role "nobody" does not exist
no such role at one host of two | nobody@127.0.0.1:1,HERE/postgres | JOURNAL_FAILED
    cannot be reached: .*Connection refused.*role "nobody" does not exist
a newer format | postgres@HERE/postgres | CORRUPT_JOURNAL | format = 9
    LOG.*\.log is of format 9; this delayd reads 2
in recovery | reader@HERE/postgres | JOURNAL_FAILED
    session is read-only: name the server that accepts writes too
another owner | postgres@HERE/postgres | STANDS_BY | lease_until = '2999-01-01', address = 'CLAIM'
    settings of this daemon are not those of the owner.*postgres.lease, topics.*line a:1
""".strip().splitlines()
"""What is wrong, the url, the exit code, and a change of the row; below it the sentence."""


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize(("case", "sentence"), [*zip(CASES[::2], CASES[1::2], strict=True)])
def test_a_database_that_cannot_be_used_is_named_and_left_alone(
    server: PostgresServer, admin: psycopg.Connection[Any], case: str, sentence: str
) -> None:
    _, url, code, *changes = case.split(" | ")
    for change in changes:
        sql = "UPDATE LOG.log SET ".replace("LOG", NAMED)
        admin.execute(sql + change.replace("CLAIM", THEIRS))
    before = state(admin)
    here = server.url.partition("@")[2].removesuffix("/postgres")
    found = started(server, f"postgresql://{url.replace('HERE', here)}")
    assert found.code is (None if code == "STANDS_BY" else Exit[code])
    assert re.search(sentence.strip().replace("LOG", NAMED), found.sentence), found.sentence
    assert state(admin) == before


@pytest.mark.usefixtures("made")
def test_another_log_of_the_name_is_not_followed(
    server: PostgresServer, admin: psycopg.Connection[Any]
) -> None:
    """As after a restored backup, or a failover to a server that went another way."""
    admin.execute("UPDATE LOG.log SET lease_until = now() + interval '1 h'".replace("LOG", NAMED))
    log = opened(server, NAMED)
    followed = log.follow()
    assert [next(followed) is None for _ in range(2)] == [False, True]
    another = "UPDATE LOG.log SET identity = decode(repeat('00', 16), 'hex')"
    admin.execute(another.replace("LOG", NAMED))
    before = state(admin)
    with pytest.raises(LogError, match="has another log by now: start again"):
        next(followed)
    log.close()
    assert state(admin) == before


# --- The doctor ----------------------------------------------------------------------------------


def findings(url: str, name: str, **more: Any) -> list[str]:  # noqa: ANN401 - fields
    """All that is found: level, subject and text."""
    config = Config(postgres_url=url, postgres_name=name, **more)
    return [f"{level}, {subject}: {text}" for level, subject, text, _ in database_findings(config)]


def test_the_doctor_looks_at_the_database_in_place_of_the_disk(
    server: PostgresServer,
    admin: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    def found(text: str, **more: Any) -> bool:  # noqa: ANN401 - fields
        url = str(more.pop("url", server.url))
        return any(text in each for each in findings(url, name, **more))

    guest = server.url.replace("postgres@", "guest@")
    name = server.new_log()
    assert found("ok, log: the schema log_")
    assert found("wrong, log: the role guest may not make the tables", url=guest)
    with Rig(server, name, lease_ms=60_000) as rig:
        rig.keep(b"one")
        assert found("no snapshot yet")
        rig.log.begin_snapshot(5, 5).finish(1)
        assert found("ok, database: postgresql://127.0.0.1:")
        assert found("note, durability: no synchronous standby")
        assert found("ok, clock: the database's is 0.0")
        assert found("ok, owner: 127.0.0.1:1, lease ")
        assert found("iB, the newest snapshot is ")
        assert found("wrong, rights: the role guest lacks USAGE on schema", url=guest)
        admin.execute(f"GRANT USAGE ON SCHEMA {name} TO guest")
        admin.execute(f"GRANT SELECT ON {name}.log TO guest")
        assert found(f'lacks UPDATE on "{name}".log, SELECT on "{name}".frame_0', url=guest)
        assert found("note, standby: there is none")
        following = opened(server, name)
        assert next(frame is None for frame in following.follow() if frame is None)
        assert following._has_looked()
        assert found("ok, standby: 127.0.0.1:1: 0 frames and 0.")
        following.close()
        assert not found("readers")
        monkeypatch.setattr("delayd.cli.database_diagnosis.READER_S_MIN", 0.0)
        with psycopg.connect(server.url, application_name="backup") as reader:
            reader.execute(f"TABLE {name}.frame_0")
            assert found("(postgres backup) has held its tables for 0 s")
        admin.execute("UPDATE LOG.log SET address = %s".replace("LOG", name), [THEIRS])
        assert found(
            "warning, owner: this configuration differs from the owner's in postgres.lease"
        )
    admin.execute("UPDATE LOG.log SET format = 9".replace("LOG", name))
    assert found("wrong, log: the tables are of format 9; this delayd reads 2")
    assert found("port 1 failed: Connection refused", url="postgresql://ada@127.0.0.1:1/jobs")
    monkeypatch.setenv("DELAYD_POSTGRES_URL", server.url)
    monkeypatch.setenv("DELAYD_POSTGRES_NAME", name)
    monkeypatch.setattr(machine_module, "machine", lambda *_: HEALTHY)
    assert invoke(["doctor"]) == Exit.BAD_CONFIGURATION
    printed = capsys.readouterr().out
    assert "format 9" in printed
    assert "data directory" not in printed

    def odd(_value: bytes) -> int:
        raise ValueError("a number does not have eight bytes")

    monkeypatch.setattr("delayd.cli.database_diagnosis.whole", odd)
    assert found("wrong, database: the server answers what delayd does not ask for: a number")


def test_the_doctor_says_that_the_space_for_removals_is_gone(
    server: PostgresServer, admin: psycopg.Connection[Any]
) -> None:
    gone = "wrong, space: the space kept for removals is gone: the database is full, or was a"
    name = server.new_log()
    with Rig(server, name, lease_ms=60_000) as rig:
        reserve = "TABLE LOG.reserve LIMIT 1".replace("LOG", name)
        rig.until(lambda: admin.execute(reserve).fetchone() is not None)
        assert not any(gone in each for each in findings(server.url, name))
        admin.execute(f"TRUNCATE {name}.reserve")
        assert any(gone in each for each in findings(server.url, name))


def test_jobs_of_a_beanstalkd_go_to_a_directory_first(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("DELAYD_POSTGRES_URL", server.url)
    assert invoke(["import-beanstalkd", str(tmp_path)]) == Exit.USAGE
    assert "name a --data-dir, and copy it with `delayd journal copy" in capsys.readouterr().err
    assert invoke(["serve", "--data-dir", str(tmp_path)]) == Exit.BAD_CONFIGURATION
    assert "jobs are in the database of postgres.url" in capsys.readouterr().err
    assert [*tmp_path.iterdir()] == []
