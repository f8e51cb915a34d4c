import pytest

from delayd.limits import DURATION_MS_MAX, JOB_ID_MAX, PARSED_LINES_MAX
from delayd.line import grammar
from delayd.line.grammar import BadFormat, PutLine, parse_put

U32 = 2**32 - 1
U64 = 2**64 - 1


@pytest.mark.parametrize(
    ("seconds", "ms"),
    [
        (b"0", 0),
        (b"1", 1_000),
        (b"007", 7_000),
        (b"0.0", 0),
        (b"0.5", 500),
        (b"1.001", 1_001),
        (b"1.0001", 1_001),
        (b"0.000000000000000000000000000000000001", 1),
        (b"0.999", 999),
        (b"0.9990", 999),
        (b"0.99900001", 1_000),
        (b"2.9999", 3_000),
        (b"4294967294.9999", DURATION_MS_MAX),
        (b"4294967295", DURATION_MS_MAX),
        (b"4294967295.000", DURATION_MS_MAX),
    ],
)
def test_seconds_are_rounded_up_to_the_millisecond(seconds: bytes, ms: int) -> None:
    assert parse_put(b"put 0 %b 0 0" % seconds) == PutLine(0, ms, 0, 0, b"")
    assert parse_put(b"put 0 0 %b 0" % seconds) == PutLine(0, 0, ms, 0, b"")
    assert grammar.parse_release(b"1 0 %b" % seconds) == (1, 0, ms)
    assert grammar.parse_pause(b"default %b" % seconds) == ("default", ms)
    assert grammar.parse_reschedule(b"1 %b" % seconds) == (1, ms)
    assert grammar.parse_batch(b"1 %b" % seconds) == (1, ms)


@pytest.mark.parametrize(
    "seconds",
    [
        *(b"4294967296", b"4294967295.0001", b"1.", b".5", b"1..5", b"1.5.", b"1,5", b"1e3", b"-1"),
        *(b"+1", b"x", b"", b"1s", b"0x1", b"1_0", b"\xd9\xa1", b"9" * 100),
    ],
)
def test_what_is_not_a_number_of_seconds_is_badly_formed(seconds: bytes) -> None:
    assert parse_put(b"put 0 %b 0 0" % seconds) is None
    assert parse_put(b"put 0 0 %b 0" % seconds) is None
    for parse, line in (
        (grammar.parse_release, b"1 0 %b"),
        (grammar.parse_pause, b"default %b"),
        (grammar.parse_reschedule, b"1 %b"),
        (grammar.parse_batch, b"1 %b"),
    ):
        with pytest.raises(BadFormat):
            parse(line % seconds)


def test_priorities_and_sizes_are_of_32_bits() -> None:
    assert parse_put(b"put %d 0 0 %d" % (U32, U32)) == PutLine(U32, 0, 0, U32, b"")
    assert parse_put(b"put %d 0 0 0" % (U32 + 1)) is None
    assert parse_put(b"put 0 0 0 %d" % (U32 + 1)) is None
    assert grammar.parse_release(b"1 %d 0" % U32) == (1, U32, 0)
    assert grammar.parse_bury(b"1 %d" % U32) == (1, U32)
    for parse, line in ((grammar.parse_release, b"1 %d 0"), (grammar.parse_bury, b"1 %d")):
        with pytest.raises(BadFormat):
            parse(line % (U32 + 1))


def test_ids_are_of_64_bits() -> None:
    assert U64 == JOB_ID_MAX
    assert grammar.parse_job_id(b"%d" % U64) == U64
    assert grammar.parse_job_id(b"   000%d" % U64) == U64
    assert grammar.parse_bury(b"%d 0" % U64) == (U64, 0)
    assert grammar.parse_release(b"%d 0 0" % U64) == (U64, 0, 0)
    assert grammar.parse_reschedule(b"%d 0" % U64) == (U64, 0)
    for parse, line in (
        (grammar.parse_job_id, b"%d"),
        (grammar.parse_bury, b"%d 0"),
        (grammar.parse_release, b"%d 0 0"),
        (grammar.parse_reschedule, b"%d 0"),
    ):
        with pytest.raises(BadFormat):
            parse(line % (U64 + 1))


@pytest.mark.parametrize("rest", [b"", b" ", b"x", b"1 ", b"1 1", b"\t1", b"-1", b"1.0", b"\xb2"])
def test_what_is_not_an_id_is_badly_formed(rest: bytes) -> None:
    with pytest.raises(BadFormat):
        grammar.parse_job_id(rest)


def test_what_follows_the_size_of_a_put_is_kept_apart() -> None:
    assert parse_put(b"put 1 2 3 4x") == PutLine(1, 2_000, 3_000, 4, b"x")
    assert parse_put(b"put 1 2 3 4 ") == PutLine(1, 2_000, 3_000, 4, b" ")
    assert parse_put(b"put 1 2 3 4\n5") == PutLine(1, 2_000, 3_000, 4, b"\n5")
    assert parse_put(b"put 1 2 3 4\0") is None


def test_so_many_put_lines_are_remembered_and_no_more() -> None:
    for number in range(PARSED_LINES_MAX + 100):
        parse_put(b"put %d 0 0 0" % number)
    assert parse_put.cache_info().currsize == PARSED_LINES_MAX


@pytest.mark.parametrize(
    ("rest", "ms"),
    [
        *((b"", 0), (b"x", 0), (b"-0", 0), (b"0", 0), (b"-", 0), (b"- 5", 0), (b"--5", 0)),
        *(
            (b"1", 1_000),
            (b" \t\n\v\f\r7x", 7_000),
            (b"+7", 7_000),
            (b"1e3", 1_000),
            (b"1 2", 1_000),
        ),
        *(
            (b"0x10", 0),
            (b"0.5", 500),
            (b"0.0001", 1),
            (b"3.25y", 3_250),
            (b"1.", 1_000),
            (b".5", 0),
        ),
        *((b"2147483647", 2_147_483_647_000), (b"4294967296", 0), (b"4294967297", 1_000)),
        *(
            (b"-9223372036854775808", 0),
            (b"-4294967295", 1_000),
            (b"2147483647.5", 2_147_483_647_500),
        ),
        *((b"-1", None), (b"-5", None), (b"2147483648", None), (b"4294967295", None)),
        *((b"9223372036854775807", None), (b"-2147483648", None)),
    ],
)
def test_a_wait_is_read_as_strtol_reads_it_but_with_a_fraction(rest: bytes, ms: int | None) -> None:
    assert grammar.parse_wait(rest) == ms


@pytest.mark.parametrize("rest", [b"9223372036854775808", b"-9223372036854775809", b"9" * 200])
def test_a_wait_beyond_64_bits_is_badly_formed(rest: bytes) -> None:
    with pytest.raises(BadFormat):
        grammar.parse_wait(rest)


@pytest.mark.parametrize(
    ("rest", "bound"),
    [
        *((b"0", 0), (b"1", 1), (b"5 5", 5), (b"10abc", 10), (b"+3", 3), (b"\t 4", 4), (b"-0", 0)),
        *((b"-1", U32), (b"4294967295", U32), (b"4294967296", 0), (b"4294967297", 1)),
        *((b"18446744073709551615", U32), (b"-18446744073709551615", 1), (b"0.9", 0)),
    ],
)
def test_a_bound_is_read_as_strtoul_reads_it(rest: bytes, bound: int) -> None:
    assert grammar.parse_kick(rest) == bound


@pytest.mark.parametrize(
    "rest", [b"", b" ", b"x", b"-", b"+-1", b"18446744073709551616", b"-18446744073709551616"]
)
def test_no_bound_is_badly_formed(rest: bytes) -> None:
    with pytest.raises(BadFormat):
        grammar.parse_kick(rest)


def test_a_batch_is_of_1_to_32_bits() -> None:
    assert grammar.parse_batch(b"  %d  0" % U32) == (U32, 0)
    for rest in (b"0 0", b"%d 0" % (U32 + 1), b"1", b"1 ", b"-1 0", b"1 0 0", b"1 -1"):
        with pytest.raises(BadFormat):
            grammar.parse_batch(rest)


def test_a_refusal_quotes_no_more_than_a_line() -> None:
    assert len(str(BadFormat(b"\xff" * 10_000))) < 400
