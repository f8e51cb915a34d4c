import struct

import pytest

from delayd.binlog.files import Binlog, BinlogDamaged, BinlogState, sized_files
from delayd.journal.errors import JournalFailed
from delayd.limits import DURATION_MS_MAX
from tests.binlog.binlogs import BURIED, CREATED_NS, DELETED, JOB, NS, file_of, full, short
from tests.rigs.disk import SimulatedDisk


def read(*files: bytes | None, first: int = 1, skip_damage: bool = False) -> Binlog:
    disk = SimulatedDisk()
    for number, content in enumerate(files, first):
        if content is not None:
            disk.put_file(f"b/binlog.{number}", content)
    disk.put_file("b/lock", b"")
    return Binlog.read(disk, "b", sized_files(disk, "b"), skip_damage=skip_damage)


def bodies(binlog: Binlog) -> dict[int, bytes]:
    return {job.id: job.body for job in binlog.take_jobs()}


def refusal(*files: bytes | None) -> tuple[str, int, str]:
    with pytest.raises(BinlogDamaged) as caught:
        read(*files)
    return caught.value.file, caught.value.offset, caught.value.why


@pytest.mark.parametrize(("version", "state"), [(5, "DELAYED"), (7, "DELAYED"), (7, "RESERVED")])
def test_a_record_says_everything_about_a_job(version: int, state: str) -> None:
    longest_ns = (2**32 - 1) * NS
    job = JOB._replace(
        priority=2**32 - 1, delay_ns=longest_ns, ttr_ns=3 * NS, state=BinlogState[state]
    )
    job = job._replace(
        reserves=1, timeouts=2, releases=3, buries=4, kicks=5, deadline_ns=CREATED_NS + 5_000
    )
    says = {name: value for name, value in job._asdict().items() if name not in ("id", "body")}
    record = full(job.id, job.body, version=version, **says)
    assert [*read(file_of(record, version=version)).take_jobs()] == [job]


@pytest.mark.parametrize("version", [5, 7])
def test_the_latest_record_of_a_job_counts(version: int) -> None:
    records = (
        full(1, b"one", version=version),
        full(2, b"two", version=version),
        short(1, b"one", version=version, state=BURIED, priority=9, reserves=1),
        short(2, b"two", version=version, state=DELETED),
    )
    binlog = read(file_of(*records, version=version))
    assert (len(binlog), binlog.records, binlog.last_id) == (1, 4, 2)
    (job,) = binlog.take_jobs()
    assert (job.id, job.priority, job.state, job.body) == (1, 9, BinlogState.BURIED, b"one")


def test_files_are_read_in_the_order_of_their_numbers() -> None:
    files = [file_of(full(number, b"%d" % number)) for number in range(1, 12)]
    files[10] = file_of(short(2, b"2", state=DELETED), zeros=100)
    assert list(bodies(read(*files))) == [1, 3, 4, 5, 6, 7, 8, 9, 10]
    gone = file_of(short(5, b"gone", state=BURIED), full(9, b"here"))
    later = file_of(short(5, b"gone", state=DELETED))
    assert bodies(read(gone, later, first=41)) == {9: b"here"}, "the first ones may be gone"
    missing = refusal(files[0], None, files[2])
    assert missing == ("b/binlog.2", 0, "the file is missing")


def test_a_job_that_was_copied_to_a_later_file_is_there_once() -> None:
    copied = full(1, b"same", "a", state=BURIED)
    binlog = read(file_of(full(1, b"same", "a"), full(2, b"x", "b")), file_of(copied))
    assert (bodies(binlog), binlog.tubes) == ({2: b"x", 1: b"same"}, [])


def test_buried_jobs_come_last_in_the_order_of_their_burial() -> None:
    puts = [full(job_id, b"") for job_id in (1, 2, 3, 4)]
    buries = [short(job_id, b"", state=BURIED) for job_id in (3, 1, 4)]
    again = [short(3, b""), short(3, b"", state=BURIED), short(4, b"", state=BURIED)]
    assert list(bodies(read(file_of(*puts, *buries, *again)))) == [2, 1, 4, 3]


FIRST, SECOND = full(1, b"first"), full(2, b"second")
WHOLE = file_of(FIRST, SECOND)
BEGIN = len(WHOLE) - len(SECOND)


@pytest.mark.parametrize("zeros", [0, 1, 300])
def test_the_last_file_may_end_anywhere_and_zeros_may_follow(zeros: int) -> None:
    for end in range(len(WHOLE)):
        binlog = read(file_of(full(3, b"third")), WHOLE[:end] + bytes(zeros))
        assert bodies(binlog) == ({3: b"third", 1: b"first"} if end >= BEGIN else {3: b"third"})
        if end >= BEGIN:
            places = [(torn.file, torn.offset) for torn in binlog.torn]
            assert places == ([("b/binlog.2", BEGIN)] if end > BEGIN else []), end


def test_a_file_before_the_last_has_zeros_behind_a_torn_record_or_is_damaged() -> None:
    for end in range(len(WHOLE)):
        binlog = read(WHOLE[:end] + bytes(300), file_of(full(3, b"third")))  # after a restart
        assert bodies(binlog) == ({1: b"first", 3: b"third"} if end >= BEGIN else {3: b"third"})
        if end > BEGIN:
            cut_short = ("b/binlog.1", BEGIN, "a record is cut short")
            assert refusal(WHOLE[:end], file_of()) == cut_short


def test_a_flipped_bit_never_goes_unnoticed_where_it_can_be_noticed() -> None:
    head = file_of(full(1, b"first"))
    middle, last = full(2, b"second"), full(3, b"third" * 50)
    for offset, why in (
        (3, "claims a tube's name of"),
        (4, "topic name"),
        (4 + 7 + 79, ""),  # a hole in the struct
        (4 + 7 + 76, "is in state"),
        (4 + 7 + 23, "impossible times"),
        (4 + 7 + 32, "does not end in CRLF"),
        (4 + 7 + 33, "cut short"),
        (len(middle) - 1, "does not end in CRLF"),
    ):
        damaged = bytearray(middle)
        damaged[offset] ^= 0xA0
        if why:
            file, at, said = refusal(head + damaged + last, file_of())
            assert (file, at) == ("b/binlog.1", len(head))
            assert why in said
        else:
            assert len(read(head + damaged + last)) == 3


def test_zeros_between_records_are_damage() -> None:
    head = file_of(full(1, b"first"))
    place = refusal(head + bytes(500) + full(2, b"second"))
    assert place == ("b/binlog.1", len(head), "no record stands here")


def test_damage_can_be_passed_over_file_by_file() -> None:
    damaged = file_of(full(1, b"before")) + b"\xff" * 60 + full(2, b"behind")
    binlog = read(damaged, file_of(full(3, b"later")), skip_damage=True)
    assert bodies(binlog) == {1: b"before", 3: b"later"}
    (place,) = binlog.damage
    assert place.file == "b/binlog.1"


@pytest.mark.parametrize("version", [6, 8, 7 << 24, -1])
def test_another_version_is_refused_by_its_number(version: int) -> None:
    file, offset, why = refusal(struct.pack("<i", version) + full(1, b""))
    assert (file, offset) == ("b/binlog.1", 0)
    assert why == f"the binlog's version is {version}, this program reads 5 and 7"


def test_durations_as_long_as_beanstalkd_allows_are_taken_and_longer_ones_are_not() -> None:
    longest_ns = DURATION_MS_MAX * 1_000_000
    assert len(read(file_of(full(1, b"", delay_ns=longest_ns, ttr_ns=longest_ns)))) == 1
    _, _, why = refusal(file_of(full(1, b"", delay_ns=longest_ns + 1), full(2, b"")))
    assert why == "a record says impossible times of job 1"


def test_a_file_that_cannot_be_read_is_named() -> None:
    disk = SimulatedDisk()
    disk.put_file("b/binlog.1", file_of(full(1, b"")))
    files = sized_files(disk, "b")
    disk.fail(disk.verb_counts["pread"] + 1, OSError(5, "Input/output error"), "pread")
    with pytest.raises(JournalFailed, match=r"b/binlog\.1: cannot be read: Input/output error"):
        Binlog.read(disk, "b", files)


def test_progress_adds_up_to_the_size_of_the_files() -> None:
    disk = SimulatedDisk()
    disk.put_file("b/binlog.1", file_of(*(full(n, b"x" * 60_000) for n in range(1, 40))))
    disk.put_file("b/binlog.2", file_of(zeros=100))
    files = sized_files(disk, "b")
    told: list[int] = []
    assert len(Binlog.read(disk, "b", files, on_bytes=told.append)) == 39
    assert len(told) > 3
    assert sum(told) >= sum(files.values()) - 200
