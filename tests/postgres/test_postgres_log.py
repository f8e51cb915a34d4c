"""The log in PostgreSQL: answers that are lost, leases that are over, tables that are wrong."""

import io
import os
import random
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path

import psycopg
import pytest

from delayd.cli.main import invoke
from delayd.exits import Exit
from delayd.journal.format import FrameKind, frame_mark, pack_frame
from delayd.log import LogError, LogStandby
from delayd.postgres import postgres_log
from delayd.postgres.connection import Connection, Value
from delayd.postgres.errors import DatabaseCorrupt, DatabaseLost, DatabaseUnfit
from delayd.postgres.place import DatabasePlace
from delayd.postgres.postgres_log import Flight
from delayd.postgres.rows import frames_in
from delayd.postgres.standbys import _standby
from tests.postgres_server import PostgresServer, postgres_server
from tests.rigs.postgres import LEASE_MS, Rig, opened

MARK = frame_mark(bytes(16), 3)
COUNT = '(SELECT count(*) FROM "LOG".frame_{})'


@pytest.fixture
def rig(server: PostgresServer) -> Iterator[Rig]:
    with Rig(server) as rig:
        yield rig


# --- Outcomes that are not known -----------------------------------------------------------------


def test_an_append_whose_answer_is_lost_is_settled_once_and_after_another_statement(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_log, "DATABASE_WAITING_BYTES_MAX", 0)
    with Rig(server) as rig:
        rig.keep(b"one")
        sent: list[tuple[str, list[int]]] = []
        send = rig.log._send

        def noted(connection: Connection, flight: Flight, *values: Value) -> None:
            sent.append((flight.statement.name, list(rig.settled)))
            send(connection, flight, *values)

        monkeypatch.setattr(rig.log, "_send", noted)
        rig.put(b"two")
        rig.lose_answer()
        rig.until(lambda: "cut off" in rig.said.getvalue())
        assert rig.settled == [1]  # the frame is there, but nobody here knows
        rig.until(lambda: rig.settled == [1, 2])
        appends = [name for name, _ in sent if name.startswith("append")]
        assert len(appends) == 1  # it was not sent again
        assert ("renew", [1]) in sent  # what commits after it is replicated after it
        rig.put(b"three")
        rig.until(lambda: rig.settled == [1, 2, 3])
        assert not rig.failures
        assert not rig.log.is_behind
    with Rig(server, rig.name) as again:
        assert again.payloads == [b"one", b"two", b"three"]


def test_an_append_that_did_not_arrive_is_sent_again(server: PostgresServer) -> None:
    with Rig(server) as rig:
        rig.keep(b"one")
        server.kill()
        rig.put(b"two")
        rig.until(lambda: "lost" in rig.said.getvalue())
        server.start()
        rig.until(lambda: rig.settled == [1, 2])
        assert not rig.failures
    with Rig(server, rig.name) as again:
        assert again.payloads == [b"one", b"two"]


def test_a_statement_that_hangs_is_given_up_and_does_no_harm_when_it_wakes(
    server: PostgresServer,
) -> None:
    with Rig(server) as rig:
        rig.keep(b"one")
        hung = rig.backend
        os.kill(hung, signal.SIGSTOP)
        try:
            rig.put(b"two")
            rig.until(lambda: "did not answer" in rig.said.getvalue())
            rig.until(lambda: rig.settled == [1, 2])
            rig.put(b"three")
        finally:
            os.kill(hung, signal.SIGCONT)
        rig.until(lambda: rig.settled == [1, 2, 3])
        assert not rig.failures
    with Rig(server, rig.name) as again:
        assert again.payloads == [b"one", b"two", b"three"]


def test_an_append_that_only_the_primary_has_is_settled_when_the_standby_has_it(rig: Rig) -> None:

    def waits(what: str = "pid") -> bool:
        of_appends = f"wait_event = 'SyncRep' AND pid = {rig.backend}"
        return bool(rig.row(f"SELECT {what} FROM pg_stat_activity WHERE {of_appends}"))  # noqa: S608

    rig.keep(b"one")
    rig.row("ALTER SYSTEM SET synchronous_standby_names = 'one_that_is_away'")
    try:
        rig.row("SELECT pg_reload_conf()")
        rig.until(lambda: bool(rig.put(b"x")) and waits())
        assert waits("pg_terminate_backend(pid)")
        rig.until(lambda: "lost" in rig.said.getvalue())
        settled = list(rig.settled)
        rig.until(lambda: rig.log._head > settled[-1] and waits())
        assert rig.settled == settled  # it is there, and a failover would lose it
    finally:
        rig.row("ALTER SYSTEM RESET synchronous_standby_names")
        rig.row("SELECT pg_reload_conf()")
    rig.until(lambda: rig.settled[-1] == rig.log.appended_sequence)
    assert not rig.failures


def test_a_database_that_has_lost_durable_frames_ends_the_log(rig: Rig) -> None:
    rig.keep(b"one", b"two")
    rig.row('UPDATE "LOG".log SET head = 1')  # as a standby that had not got it
    rig.put(b"three")
    rig.until(lambda: bool(rig.failures))
    assert "ends with frame 1, and frame 2 was durable" in str(rig.failures[0])
    assert rig.settled == [1, 2]


def test_a_standby_that_read_what_a_failover_dropped_does_not_follow_who_goes_on_elsewhere(
    server: PostgresServer,
) -> None:
    with Rig(server) as rig:
        rig.keep(b"one")
        (checksum,) = rig.row('SELECT checksum FROM "LOG".log')
        rig.keep(b"dropped")
        standby = opened(server, rig.name)
        following = standby.follow()
        assert [next(following) is None for _ in range(3)] == [False, False, True]
        rig.row('DELETE FROM "LOG".frame_0 WHERE sequence = 2')
        back = 'UPDATE "LOG".log SET head = 1, checksum = {}, lease_until = to_timestamp(0)'
        rig.row(back.format(checksum))
        with Rig(server, rig.name) as other:
            other.put(b"another")
            other.until(lambda: other.settled == [2])
            again = [frame for frame in iter(partial(next, following), None) if frame]
        standby.close()
    assert [frame.payload for frame in again] == [b"", b"one", b"another"]


# --- The lease -----------------------------------------------------------------------------------


def test_an_idle_owner_renews_its_lease_and_one_that_cannot_knows_when_it_is_over(
    server: PostgresServer, rig: Rig
) -> None:
    first = rig.row('SELECT lease_until FROM "LOG".log')
    rig.until(lambda: rig.row('SELECT lease_until FROM "LOG".log') > first)
    assert rig.log.is_whole
    server.kill()
    rig.until(lambda: not rig.log.is_whole)
    rig.put(b"waits")
    assert rig.settled == []
    server.start()
    rig.until(lambda: rig.log.is_whole)
    rig.until(lambda: rig.settled == [1])
    assert rig.user.restorations == 1
    said = rig.said.getvalue()
    assert 0 < said.find("lease of the log is over") < said.find("lease of the log goes on")
    assert said.count("lease of the log is over") == 1
    assert "the database can be used again" in said


def test_what_is_found_settled_after_the_lease_is_told_after_another_statement(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.put(b"one")
    # Paused between the commit and the answer, for longer than the lease.
    now = rig.log._flight
    assert now is not None
    paused_ns = LEASE_MS * 1_000_000
    rig.log._flight = now._replace(began_ns=now.began_ns - paused_ns)
    sent: list[str] = []
    launch = rig.log._launch

    def noted() -> None:
        sent.append("again")
        launch()

    monkeypatch.setattr(rig.log, "_launch", noted)
    rig.until(lambda: rig.settled == [1])
    assert sent[:1] == ["again"]


# --- What a start refuses ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("DELETE FROM {}.log", "has 0 rows, and must have one"),
        ("UPDATE {}.log SET identity = 'short'", "the identity has 5 bytes"),
        ("DROP TABLE {}.snapshot_1", "is missing, or unlogged"),
        ("ALTER TABLE {}.frame_2 SET unlogged", "is missing, or unlogged"),
        ("DELETE FROM {}.frame_0 WHERE sequence = 1", "frame 2 is where frame 1 should be"),
        ("DELETE FROM {}.frame_0 WHERE sequence = 2", "frame 2 is missing"),
        (r"UPDATE {}.frame_0 SET payload = payload || '\x00'", "is cut off"),
        (r"UPDATE {}.frame_0 SET payload = set_byte(payload, 20, 1)", "frame 1 is damaged"),
        ("UPDATE {}.frame_0 SET epoch = 7", "frame 1 is damaged"),
        ("UPDATE {}.frame_0 SET payload = ''", "is cut off"),
        ("UPDATE {}.log SET snapshot = 1, snapshot_round = 1, snapshot_bytes = 9", "header"),
    ],
)
def test_tables_that_are_not_as_written_are_refused_and_left_alone(
    server: PostgresServer, change: str, why: str
) -> None:
    with Rig(server) as rig:
        rig.keep(b"one of some length", b"two")
    rig.row(change.format(f'"{rig.name}"'))
    with pytest.raises(DatabaseCorrupt, match=why) as refused:
        _start(server, rig.name)
    assert refused.value.exit_code is Exit.CORRUPT_JOURNAL


def _start(server: PostgresServer, name: str) -> None:
    log = opened(server, name)
    try:
        assert list(log.follow())
    finally:
        log.close()


def test_a_server_that_may_lose_jobs_is_refused_until_it_is_accepted_by_name() -> None:
    with postgres_server("fsync=off") as careless:
        with pytest.raises(DatabaseUnfit, match=r"fsync = off.*postgres.accept = \[.fsync.\]"):
            opened(careless, "jobs")
        log = opened(careless, "jobs", accepted=frozenset({"fsync"}))
        assert "fsync is off in the database" in log.findings[0].sentence
        log.close()


def test_a_server_that_comes_back_with_such_settings_is_used_by_nobody() -> None:
    with postgres_server() as server, Rig(server) as rig:
        rig.keep(b"one")
        server.kill()
        server.start("fsync=off")
        rig.put(b"two")
        rig.until(lambda: "has fsync = off" in rig.said.getvalue())
        assert rig.settled == [1]
        server.stop()
        server.start()
        rig.until(lambda: rig.settled == [1, 2] or bool(rig.failures))
        assert not rig.failures
        assert rig.said.getvalue().count("has fsync = off") == 1

        said = io.StringIO()
        standby = opened(server, rig.name, said=said)
        frames = standby.follow()
        while next(frames) is not None:
            pass
        server.kill()
        server.start("fsync=off")
        assert any("has fsync = off" in said.getvalue() for _ in islice(frames, 40))
        assert standby.owner
        assert "can be used again" not in said.getvalue()
        server.stop()
        server.start()
        rig.until(lambda: rig.log.is_whole or bool(rig.failures))
        assert any("can be used again" in said.getvalue() for _ in islice(frames, 40))
        assert next(frames) is None
        standby.close()


def test_a_role_without_rights_is_told_which_it_needs_and_served_once_it_has_the_tables(
    server: PostgresServer, capsys: pytest.CaptureFixture[str]
) -> None:
    url = server.url.replace("postgres@", "guest@")
    with psycopg.connect(server.url, autocommit=True) as admin:
        admin.execute("CREATE ROLE guest LOGIN")
        with pytest.raises(DatabaseUnfit, match=r"run what .* --name lent --role guest`"):
            opened(server, "lent", url=url)
        assert invoke(["journal", "schema", "--name", "lent", "--role", "guest"]) == Exit.OK
        schema = capsys.readouterr().out
        admin.execute(schema)
        admin.execute('REVOKE TRUNCATE ON "lent".frame_2 FROM guest')
        with pytest.raises(DatabaseUnfit, match="guest lacks TRUNCATE on"):
            opened(server, "lent", url=url)
        admin.execute("REVOKE USAGE ON SCHEMA lent FROM guest")
        with pytest.raises(DatabaseUnfit, match='lacks USAGE on schema "lent": as their owner'):
            opened(server, "lent", url=url)
        identity = admin.execute("SELECT identity FROM lent.log").fetchall()
        admin.execute("BEGIN; LOCK TABLE lent.frame_0 IN ACCESS SHARE MODE")  # a reader
        with psycopg.connect(server.url) as other:
            other.execute(f"SET lock_timeout = 1; {schema}")
        admin.execute("COMMIT")
        assert admin.execute("SELECT identity FROM lent.log").fetchall() == identity
    with Rig(server, "lent", url=url) as rig:
        rig.keep(b"one")
        for _ in range(2):
            rig.snapshot(b"behind")
        assert "are kept for now" not in rig.said.getvalue()
    with psycopg.connect(url) as guest, pytest.raises(psycopg.errors.InsufficientPrivilege):
        guest.execute("DROP TABLE lent.frame_0")


def test_the_password_is_the_first_line_of_its_file_read_for_each_connection(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "password"
    for text, why in ((None, "No such file"), ("", "does not begin with"), ("x" * 5_000, "4KiB")):
        if text is not None:
            file.write_text(text)
            file.chmod(0o600)
        with pytest.raises(DatabaseUnfit, match=f"postgres.password_file .*{why}"):
            opened(server, "jobs", password_file=str(file))
    file.write_text("s3cret\r\nnot this\n")
    where = {"name": "jobs", "lease_ms": 1, "address": "", "password_file": str(file)}
    place = DatabasePlace.of(server.url, **where)  # type: ignore[arg-type]
    assert "s3cret" not in str(place)
    used: list[bytes] = []

    def refused(conninfo: bytes, _shown: str) -> None:
        used.append(conninfo)
        raise DatabaseLost("here it ends")

    monkeypatch.setattr("delayd.postgres.place.Connection", refused)
    for password in ("s3cret", "an0ther"):
        file.write_text(f"{password}\r\nnot this\n")
        with pytest.raises(DatabaseLost, match="here it ends"):
            place.connected()
        assert used.pop().endswith(f"password={password}".encode())
    file.chmod(0o644)
    with pytest.raises(DatabaseUnfit, match=f"{file} has the mode 0644: .*chmod 600"):
        place.connected()


def test_a_wrong_password_ends_a_start_and_no_standby_that_runs(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.touch(0o600)
    with postgres_server() as server:
        url = server.require_password("ada", "first")
        with pytest.raises(DatabaseUnfit, match="no password supplied: it is that of"):
            opened(server, "kept", url=url)
        file.write_text("wrong")
        with pytest.raises(DatabaseUnfit, match=r"authentication failed .*: it is that of"):
            opened(server, "kept", url=url, password_file=str(file))
        file.write_text("first")
        with Rig(server, "kept"):
            said = io.StringIO()
            standby = opened(server, "kept", said=said, url=url, password_file=str(file))
            frames = standby.follow()
            assert next(frames) is None
            server.ask(
                "ALTER ROLE ada PASSWORD 'second'",
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'ada'",
            )
            assert any("authentication failed" in said.getvalue() for _ in islice(frames, 40))
            file.write_text("second")
            looked = standby.row.now_us
            assert any(standby.row.now_us > looked for _ in islice(frames, 40))
            standby.close()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:s3cret@127.0.0.1:1/jobs",
        "postgresql://ada:s3cret@127.0.0.1:1/jobs?nothing=s3cret",
        "postgresql:/ada:s3cret",
        "postgresql://ada:s3cret@[::1/jobs",
    ],
)
def test_no_error_shows_a_password(server: PostgresServer, url: str) -> None:
    with pytest.raises((DatabaseLost, DatabaseUnfit)) as refused:
        opened(server, "jobs", url=url)
    assert "s3cret" not in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


# --- Snapshots, and what they replace ------------------------------------------------------------


def test_an_owner_knows_its_standbys_and_how_far_they_are(server: PostgresServer, rig: Rig) -> None:
    rig.keep(b"one")
    rig.log.watch_standbys()
    owned = rig.log.ownership
    assert (owned.is_owner, owned.epoch, owned.standbys, owned.trouble) == (True, 1, (), "")
    standby = opened(server, rig.name)
    following = standby.follow()
    own: list[LogStandby] = []

    def is_known() -> bool:
        next(following)
        own[:] = standby.ownership.standbys
        return bool(rig.log.ownership.standbys)

    rig.until(is_known)
    (known,) = rig.log.ownership.standbys
    assert known.address == own[0].address == "127.0.0.1:1"
    assert known.lag_frames == own[0].lag_frames == 0
    assert 0 <= own[0].lag_ms < known.lag_ms + 1_000
    assert not standby.ownership.is_owner
    assert 0 < standby.ownership.lease_left_ms <= LEASE_MS
    pages = rig.row("SELECT pg_relation_size('\"LOG\".standby')")
    rig.row("UPDATE \"LOG\".standby SET seen = seen - interval '1 hour'")
    rig.until(lambda: not rig.log.ownership.standbys)
    standby.close()
    assert rig.row('SELECT count(*) FROM "LOG".standby') == (0,)
    assert pages == (8192,)


@pytest.mark.parametrize(
    "row",
    [
        (b"a\x1b[2Jb\xff", *(number.to_bytes(8, signed=True) for number in (-3, 5, -9))),
        (b"a", b"short", bytes(8), bytes(8)),
    ],
)
def test_a_row_of_a_standby_may_hold_anything(row: tuple[bytes, ...]) -> None:
    try:
        told = _standby(row)
    except ValueError:
        assert len(row[1]) != 8
    else:
        assert told.address.isprintable()
        assert (told.lag_frames, told.lag_ms) == (0, 5)


def test_tables_of_frames_take_turns_and_are_emptied_when_a_snapshot_covers_them(
    server: PostgresServer,
) -> None:
    counts = f"SELECT {', '.join(map(COUNT.format, range(3)))}"
    with Rig(server) as rig:
        rig.keep(b"one", b"two")
        assert rig.row(counts) == (2, 0, 0)
        found = []
        for _ in range(4):
            taken = rig.snapshot(b"behind")
            assert taken.sequence == rig.log.appended_sequence - 1
            assert rig.row(counts)[rig.log._table] == 1
            found.append(sum(int(str(count)) for count in rig.row(counts)))
        assert found == [3, 2, 2, 2]  # those behind the snapshot before are there for standbys
    with Rig(server, rig.name) as again:
        assert again.payloads == [b"state", b"behind"]
        assert again.log.snapshot_ms == 5


def test_a_standby_that_was_left_behind_begins_again_with_the_snapshot(
    server: PostgresServer,
) -> None:
    with Rig(server) as rig:
        rig.keep(b"one")
        standby = opened(server, rig.name)
        frames = standby.follow()
        assert [frame.payload for frame in iter(partial(next, frames), None) if frame] == [b"one"]
        for payload in (b"two", b"three"):
            rig.keep(payload)
            rig.snapshot()
        rig.keep(b"four")
        again = [frame for frame in iter(partial(next, frames), None) if frame]
        standby.close()
    assert [frame.sequence for frame in again] == [0, 3, 4]
    assert [frame.payload for frame in again] == [b"", b"state", b"four"]


def test_frames_that_somebody_reads_are_kept_until_a_later_snapshot(server: PostgresServer) -> None:
    with Rig(server) as rig, psycopg.connect(server.url) as reader:
        for number, payload in enumerate((b"one", b"two", b"three"), 1):
            rig.keep(payload)
            if number == 2:
                reader.execute(f'TABLE "{rig.name}".frame_0')
            rig.snapshot()
            assert ("are kept for now" in rig.said.getvalue()) is (number > 1)
            assert rig.row('SELECT count(*) FROM "LOG".frame_0') == (int(number < 3),)
            reader.rollback()


def test_a_daemon_that_was_fenced_cannot_empty_the_tables_of_its_successor(
    server: PostgresServer,
) -> None:
    with Rig(server) as old:
        old.keep(b"one")
        sink = old.log.begin_snapshot(5, 5)
        sink.write(b"state")
        old.row('UPDATE "LOG".log SET lease_until = to_timestamp(0)')
        with Rig(server, old.name) as new:
            with pytest.raises(LogError, match="another daemon owns the log"):
                sink.finish(1)
            with pytest.raises(LogError, match="another daemon owns the log"):
                old.log.begin_snapshot(6, 6).write(b"state")
            assert new.row('SELECT count(*), sum(snapshot) FROM "LOG".frame_0, "LOG".log') == (1, 0)


def test_a_log_is_read_in_order_without_files_for_which_a_full_disk_has_no_space(
    server: PostgresServer, rng: random.Random
) -> None:
    payloads = [rng.randbytes(7_000) for _ in range(120)]
    with Rig(server) as rig:
        rig.keep(*payloads)
        name = rig.name
    server.set(work_mem="512kB", temp_file_limit="0")
    try:
        with Rig(server, name) as again:
            assert again.payloads == payloads
    finally:
        server.set(work_mem="", temp_file_limit="")


def test_the_server_compresses_longer_frames_in_their_row(rig: Rig) -> None:
    rig.put(b"".join(b"job %05d" % number for number in range(500)))
    rig.until(lambda: rig.settled == [1])
    stored = 'SELECT pg_column_compression(payload), pg_column_size(payload) FROM "LOG".frame_0'
    algorithm, stored_bytes = rig.row(stored)
    assert algorithm in {"lz4", "pglz"}
    assert isinstance(stored_bytes, int)
    assert stored_bytes < 500 * 9 // 2


def test_a_long_turn_is_appended_by_several_statements(server: PostgresServer) -> None:
    records = [bytes([number]) * (1 << 20) for number in range(5)]
    with Rig(server) as rig:
        last = rig.log.append(records, 1, 1)
        assert rig.log.is_behind
        rig.log.settle(in_turn=True)
        rig.until(lambda: rig.log.durable_sequence < last or not rig.log.is_settling)
        while rig.log.durable_sequence < last:
            rig.until(lambda: not rig.log.is_settling)
            if rig.log.durable_sequence < last:
                rig.log.settle(in_turn=False)
        assert last == 3
        rig.until(lambda: not rig.log.is_behind)
        assert len(rig.settled) > 1
    with Rig(server, rig.name) as again:
        assert b"".join(again.payloads) == b"".join(records)


# --- Bytes ---------------------------------------------------------------------------------------


def test_frames_with_any_bit_flipped_or_cut_anywhere_are_refused() -> None:
    data = b"".join(
        pack_frame(MARK, FrameKind.RECORDS, number, 0, 1, 2, b"payload") for number in (5, 6)
    )
    assert [frame.sequence for frame in frames_in(data, MARK, 5)] == [5, 6]
    for at in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[at // 8] ^= 1 << at % 8
        with pytest.raises(ValueError, match="frame"):
            list(frames_in(bytes(flipped), MARK, 5))
    half = len(data) // 2
    for end in range(1, len(data)):
        if end != half:
            with pytest.raises(ValueError, match="cut off"):
                list(frames_in(data[:end], MARK, 5))


def test_other_threads_run_while_a_server_does_not_answer() -> None:
    """The loop is one of them: it serves what needs no database."""
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor(1) as threads:
        port = silent.getsockname()[1]
        url = f"postgresql://127.0.0.1:{port}/jobs?connect_timeout=1"
        place = DatabasePlace.of(url, name="jobs", lease_ms=1, address="")
        connecting = threads.submit(place.connected)
        ticks = 0
        while not connecting.done():
            time.sleep(0.01)
            ticks += 1
        assert ticks > 5
        with pytest.raises(DatabaseLost, match=r"cannot be reached: .*timeout expired"):
            connecting.result()


def test_daemons_that_start_at_once_make_the_tables_once(server: PostgresServer) -> None:
    name = server.new_log()
    with ThreadPoolExecutor(4) as starts:
        for log in starts.map(lambda _: opened(server, name), range(4)):
            log.close()
