import pytest

from delayd.binlog.convert import held, record_of, write
from delayd.binlog.files import Binlog, BinlogState, sized_files
from delayd.core.engine import Engine
from delayd.core.job_parts import Tally, body_of, tally_of
from delayd.core.job_record import HEADER, State, state_of
from delayd.core.operations.put import take_id
from delayd.core.ready_queue import job_id_of
from delayd.core.replay import Replay
from delayd.core.times import PlayedMs
from delayd.journal.errors import (
    DirectoryLocked,
    ForeignFile,
    JournalFailed,
    JournalFull,
    NotEmpty,
)
from delayd.journal.format import IMPORT_MARKER
from delayd.journal.journal import Journal
from delayd.journal.new import new_journal
from delayd.limits import JOURNAL_WINDOW_BYTES
from tests.binlog.binlogs import BURIED, CREATED_NS, DELAYED, JOB, NS, file_of, full
from tests.rigs.disk import PowerCut, SimulatedDisk

MS = 1_000_000  # in nanoseconds
CREATED_MS = CREATED_NS // MS
NOW_MS = CREATED_MS + 60_000
SEGMENT_BYTES = 4096


def test_an_untouched_job_keeps_everything_in_the_shortest_record() -> None:
    record = record_of(JOB._replace(priority=3), 7, NOW_MS, 1)
    assert HEADER.unpack_from(record) == (
        *(1, CREATED_MS, CREATED_MS, 60_000, 3, 7),
        *(State.READY, 0),
    )
    assert record[HEADER.size :] == b"body"


def test_counters_and_the_last_delay_are_kept() -> None:
    job = JOB._replace(delay_ns=9 * NS, reserves=1, timeouts=2, releases=3, buries=4, kicks=5)
    record = record_of(job, 7, NOW_MS, 1)
    assert tally_of(record) == Tally(9_000, 1, 2, 3, 4, 5)
    assert body_of(record) == b"body"


def test_each_state_becomes_what_beanstalkd_would_make_of_it() -> None:
    later_ms = NOW_MS + 5_000
    for state, deadline_ms, expected, due_ms in (
        ("READY", 0, "READY", CREATED_MS),
        ("RESERVED", later_ms, "READY", CREATED_MS),
        ("BURIED", later_ms, "BURIED", CREATED_MS),
        ("DELAYED", later_ms, "DELAYED", later_ms),
        ("DELAYED", NOW_MS + 1, "DELAYED", NOW_MS + 1),
        ("DELAYED", NOW_MS, "READY", NOW_MS),
        ("DELAYED", NOW_MS - 5_000, "READY", NOW_MS - 5_000),
    ):
        job = JOB._replace(state=BinlogState[state], deadline_ns=deadline_ms * MS)
        record = record_of(job, 7, NOW_MS, 1)
        assert state_of(record) is State[expected], (state, deadline_ms)
        assert HEADER.unpack_from(record)[1:3] == (due_ms, CREATED_MS), (state, deadline_ms)


def test_times_are_rounded_up_never_early_and_none_is_in_the_future_or_nothing() -> None:
    later = JOB._replace(state=BinlogState.DELAYED, deadline_ns=(NOW_MS + 5) * MS + 1)
    for tick_ms, due_ms in ((1, NOW_MS + 6), (100, NOW_MS + 100)):
        record = record_of(later, 7, NOW_MS, tick_ms)
        assert state_of(record) is State.DELAYED
        assert HEADER.unpack_from(record)[1:3] == (due_ms, CREATED_MS)
    job = JOB._replace(created_ns=(NOW_MS + 9_999) * MS, ttr_ns=0)  # by a clock that was set back
    record = record_of(job, 7, NOW_MS, 1)
    assert state_of(record) is State.READY
    assert HEADER.unpack_from(record)[1:4] == (NOW_MS, NOW_MS, 1_000)


def binlog_of(disk: SimulatedDisk, *records: bytes) -> Binlog:
    disk.put_file("b/lock", b"")
    disk.put_file("b/binlog.1", file_of(*records))
    return Binlog.read(disk, "b", sized_files(disk, "b"))


def some_records() -> list[bytes]:
    in_a_minute_ns = (NOW_MS + 60_000) * MS
    return [
        full(1, b"ready", "mail"),
        full(2, b"later", "mail", state=DELAYED, deadline_ns=in_a_minute_ns),
        full(4, b"parked", "bills", state=BURIED),
        full(3, b"parked too", "bills", state=BURIED),
    ]


def import_into(disk: SimulatedDisk, binlog: Binlog) -> Engine:
    engine = Engine(start_ms=NOW_MS)
    with new_journal(disk, "data", SEGMENT_BYTES, IMPORT_MARKER) as journal:
        write(binlog, journal, engine, NOW_MS)
    return engine


def recovered(disk: SimulatedDisk) -> Engine:
    engine = Engine(start_ms=NOW_MS)
    replay = Replay(engine)
    journal = Journal.open("data", disk=disk, segment_bytes=SEGMENT_BYTES)
    try:
        for frame in journal.replay():
            assert (frame.time_ms, frame.wall_ms) == (NOW_MS, NOW_MS)
            replay.play(frame.payload)
    finally:
        journal.close()
    replay.finish(PlayedMs(NOW_MS))
    return engine


def told(engine: Engine) -> list[tuple[str, int, int, list[int]]]:
    return [
        (topic.name, len(topic.queues.ready), topic.delayed, [*map(job_id_of, topic.queues.buried)])
        for topic in engine.store.topics.listing
    ]


EXPECTED = [("default", 0, 0, []), ("mail", 1, 1, []), ("bills", 0, 0, [4, 3])]


def test_a_start_finds_what_the_import_wrote() -> None:
    disk = SimulatedDisk()
    engine = import_into(disk, binlog_of(disk, *some_records()))
    assert told(engine) == told(recovered(disk)) == EXPECTED
    assert take_id(recovered(disk)) == 5
    assert disk.list_directory("data") == ["lock", "segment-0000000001.log", "log-end"]


def test_a_tube_with_the_name_that_delayd_uses_itself_gets_another_one() -> None:
    disk = SimulatedDisk()
    names = ("$idempotency", "$idempotency.imported")
    records = [full(number, b"one", name) for number, name in enumerate(names, 1)]
    engine = import_into(disk, binlog_of(disk, *records))
    assert told(engine)[1:] == told(recovered(disk))[1:]
    assert told(engine)[1:] == [(f"{names[1]}.imported", 1, 0, []), (names[1], 1, 0, [])]


def test_many_jobs_go_into_frames_of_bounded_size() -> None:
    disk = SimulatedDisk()
    bodies = [bytes([number]) * 300_000 for number in range(1, 10)]
    records = [full(number, body) for number, body in enumerate(bodies, 1)]
    import_into(disk, binlog_of(disk, *records))
    journal = Journal.open("data", disk=disk, segment_bytes=SEGMENT_BYTES)
    sizes = [len(frame.payload) for frame in journal.replay()]
    journal.close()
    assert len(sizes) == 4
    assert max(sizes) < JOURNAL_WINDOW_BYTES + 400_000
    jobs = recovered(disk).store.jobs
    assert [body_of(record) for _, record in jobs] == bodies


def test_an_import_cut_off_anywhere_is_never_taken_for_whole_and_can_be_begun_anew() -> None:
    calls = SimulatedDisk()
    binlog = binlog_of(calls, *some_records())
    before = calls.call_count
    import_into(calls, binlog)
    outcomes = set()
    for number in range(before + 1, calls.call_count + 1):
        disk = SimulatedDisk()
        binlog = binlog_of(disk, *some_records())
        disk.fail(number, PowerCut())
        with pytest.raises(PowerCut):
            import_into(disk, binlog)
        disk.crash(survives=lambda piece: piece.offset % 2 == 0)
        try:
            found = str(told(recovered(disk))[1:])
        except ForeignFile as error:
            found = error.file
        outcomes.add(found)
        if found != str(EXPECTED[1:]):
            import_into(disk, binlog_of(disk, *some_records()))
            assert told(recovered(disk)) == EXPECTED
    assert outcomes == {"[]", f"data/{IMPORT_MARKER}", str(EXPECTED[1:])}


@pytest.mark.parametrize(
    "names",
    [
        ["segment-0000000001.log"],
        ["notes.txt"],
        [IMPORT_MARKER, "segment-0000000001.log", "notes.txt"],
    ],
)
def test_a_directory_that_holds_more_than_an_unfinished_import_is_refused(names: list[str]) -> None:
    disk = SimulatedDisk()
    for name in names:
        disk.put_file(f"data/{name}", b"precious")
    refused = rf"holds {names[-1]}: choose a directory that is new or empty"
    with pytest.raises(NotEmpty, match=refused):
        import_into(disk, binlog_of(disk, *some_records()))
    assert disk.list_directory("data") == names


def test_a_data_directory_that_a_daemon_holds_is_refused() -> None:
    disk = SimulatedDisk()
    journal = Journal.open("data", disk=disk, segment_bytes=SEGMENT_BYTES)
    with pytest.raises(DirectoryLocked):
        import_into(disk, binlog_of(disk, *some_records()))
    disk.unlink("data/lock")
    with pytest.raises(DirectoryLocked):
        import_into(disk, binlog_of(disk, *some_records()))
    journal.close()


def test_a_full_or_failing_disk_leaves_a_marked_directory() -> None:
    for error, expected in (((28, "ENOSPC"), JournalFull), ((5, "EIO"), JournalFailed)):
        disk = SimulatedDisk()
        binlog = binlog_of(disk, *some_records())
        disk.fail(1, OSError(*error), "pwrite")
        with pytest.raises(expected):
            import_into(disk, binlog)
        assert IMPORT_MARKER in disk.list_directory("data")


def test_a_binlog_is_held_while_it_is_read_and_a_copy_needs_no_lock_file() -> None:
    disk = SimulatedDisk()
    binlog_of(disk)
    with held(disk, "b"), pytest.raises(Exception, match="held"):
        disk.lock("b/lock")
    running = disk.lock("b/lock")
    with pytest.raises(DirectoryLocked), held(disk, "b"):
        pass
    disk.close(running)
    disk.fail(disk.verb_counts["share_lock"] + 1, OSError(13, "Permission denied"), "share_lock")
    with pytest.raises(JournalFailed, match="b/lock: cannot be opened"), held(disk, "b"):
        pass
    disk.unlink("b/lock")
    with held(disk, "b"):
        pass
    assert disk.list_directory("b") == ["binlog.1"]
