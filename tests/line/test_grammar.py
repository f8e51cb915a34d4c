from collections.abc import Callable
from typing import Any, Final

import pytest

from delayd.core.errors import Refusal
from delayd.core.job_parts import Own, Retry
from delayd.core.job_record import State
from delayd.core.operations.put import Conflict
from delayd.core.scans.list import Cursor
from delayd.core.targets import Target
from delayd.limits import (
    DURATION_MS_MAX,
    GROUP_BYTES_MAX,
    JOB_ID_MAX,
    KEY_BYTES_MAX,
    LINE_BYTES_MAX,
    LONG_LINE_BYTES_MAX,
    PARSED_LINES_MAX,
)
from delayd.line import grammar
from delayd.line.grammar import (
    BadFormat,
    Changes,
    PutLine,
    PutWords,
    parse_change,
    parse_put,
    parse_put_words,
    shape_of,
)
from tests.rigs.line import LineRig, bytewise

U32 = 2**32 - 1
U64 = 2**64 - 1


SECONDS: Final = {
    b"0": 0,
    b"1": 1_000,
    b"007": 7_000,
    b"0.0": 0,
    b"0.5": 500,
    b"1.001": 1_001,
    b"1.0001": 1_001,
    b"0.000000000000000000000000000000000001": 1,
    b"0.999": 999,
    b"0.9990": 999,
    b"0.99900001": 1_000,
    b"2.9999": 3_000,
    b"4294967294.9999": DURATION_MS_MAX,
    b"4294967295": DURATION_MS_MAX,
    b"4294967295.000": DURATION_MS_MAX,
}
NO_SECONDS: Final = (
    *(b"4294967296", b"4294967295.0001", b"1.", b".5", b"1..5", b"1.5.", b"1,5", b"1e3", b"-1"),
    *(b"+1", b"x", b"", b"1s", b"0x1", b"1_0", b"\xd9\xa1", b"9" * 100),
)
OF_SECONDS: Final[dict[bytes, Callable[[bytes], Any]]] = {
    b"7 9 %b": grammar.parse_release,
    b"default %b": grammar.parse_pause,
    b"7 %b": grammar.parse_reschedule,
    b"7  %b": grammar.parse_batch,
}
"""What stands before the seconds of each command."""


def test_seconds_are_rounded_up_to_the_millisecond() -> None:
    for seconds, ms in SECONDS.items():
        assert parse_put(b"put 0 %b 0 0" % seconds) == PutLine(0, ms, 0, 0, b"")
        assert parse_put(b"put 0 0 %b 0" % seconds) == PutLine(0, 0, ms, 0, b"")
        for line, parse in OF_SECONDS.items():
            assert ms in parse(line % seconds), (line, seconds)
    for seconds in NO_SECONDS:
        assert parse_put(b"put 0 %b 0 0" % seconds) is None
        assert parse_put(b"put 0 0 %b 0" % seconds) is None
        for line, parse in OF_SECONDS.items():
            with pytest.raises(BadFormat):
                parse(line % seconds)


def test_priorities_and_sizes_are_of_32_bits_and_ids_of_64() -> None:
    assert parse_put(b"put %d 0 0 %d" % (U32, U32)) == PutLine(U32, 0, 0, U32, b"")
    assert parse_put(b"put %d 0 0 0" % (U32 + 1)) is None
    assert parse_put(b"put 0 0 0 %d" % (U32 + 1)) is None
    assert U64 == JOB_ID_MAX
    assert grammar.parse_job_id(b"   000%d" % U64) == U64
    for parse, line, read in (
        (grammar.parse_release, b"1 %d 0", (1, U32, 0)),
        (grammar.parse_bury, b"1 %d", (1, U32, "")),
        (grammar.parse_job_id, b"%d", U64),
        (grammar.parse_bury, b"%d 0", (U64, 0, "")),
        (grammar.parse_release, b"%d 0 0", (U64, 0, 0)),
        (grammar.parse_reschedule, b"%d 0", (U64, 0)),
    ):
        highest = U32 if line.startswith(b"1") else U64
        assert parse(line % highest) == read
        with pytest.raises(BadFormat):
            parse(line % (highest + 1))
    for rest in (b"", b" ", b"x", b"1 ", b"1 1", b"\t1", b"-1", b"1.0", b"\xb2"):
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


WAITS_1_12: Final[dict[bytes, int | None]] = {
    **dict.fromkeys((b"", b"x", b"-0", b"0", b"-", b"- 5", b"--5", b"0x10", b".5"), 0),
    **dict.fromkeys((b"1", b"1e3", b"1 2", b"1.", b"4294967297", b"-4294967295"), 1_000),
    b" \t\n\v\f\r7x": 7_000,
    b"+7": 7_000,
    b"0.5": 500,
    b"0.0001": 1,
    b"3.25y": 3_250,
    b"2147483647": 2_147_483_647_000,
    b"2147483647.5": 2_147_483_647_500,
    b"4294967296": 0,
    b"-9223372036854775808": 0,
    **dict.fromkeys((b"-1", b"-5", b"2147483648", b"4294967295", b"9223372036854775807"), None),
    b"-2147483648": None,
}
BEYOND_64: Final = (b"9223372036854775808", b"-9223372036854775809", b"9" * 200)
WAITS: Final = {
    b"0": 0,
    b"1": 1_000,
    b"007": 7_000,
    b"  7": 7_000,
    b"0.5": 500,
    b"0.0001": 1,
    b"2147483647": 2_147_483_647_000,
    b"00000000000001": 1_000,
}
NO_WAITS: Final = (
    *(b"", b" ", b"x", b"-1", b"-0", b"+7", b"7x", b"7 ", b"1 2", b"\t7", b"0x10", b"1e3", b"5s"),
    *(b"1.", b".5", b"2147483648", b"2147483647.5", b"4294967296", b"9" * 200),
)
BOUNDS: Final = {
    b"0": 0,
    b"1": 1,
    b"5 5": 5,
    b"10abc": 10,
    b"+3": 3,
    b"\t 4": 4,
    b"-0": 0,
    b"0.9": 0,
    b"-1": U32,
    b"4294967295": U32,
    b"4294967296": 0,
    b"4294967297": 1,
    b"18446744073709551615": U32,
    b"-18446744073709551615": 1,
}
NO_BOUNDS: Final = (
    *(b"", b" ", b"x", b"-", b"+-1", b"18446744073709551616", b"-18446744073709551616"),
)


@pytest.mark.parametrize(
    ("parse", "good", "wrong"),
    [
        (grammar.parse_wait_1_12, WAITS_1_12, BEYOND_64),  # as strtol, but with a fraction
        (grammar.parse_wait, WAITS, NO_WAITS),
        (grammar.parse_kick, BOUNDS, NO_BOUNDS),  # as strtoul
    ],
)
def test_waits_and_bounds_are_read_as_beanstalkd_reads_them(
    parse: Callable[[bytes], int | None], good: dict[bytes, int | None], wrong: tuple[bytes, ...]
) -> None:
    assert {rest: parse(rest) for rest in good} == good
    for rest in wrong:
        with pytest.raises(BadFormat):
            parse(rest)


def test_a_batch_is_of_1_to_32_bits() -> None:
    assert grammar.parse_batch(b"  %d  0" % U32) == (U32, 0, (), False)
    too_many = b"%d 0" % (U32 + 1)
    for rest in (b"0 0", too_many, b"1", b"1 ", b"-1 0", b"1 0 0", b"1 -1", b"1 1 until=x"):
        with pytest.raises(BadFormat):
            grammar.parse_batch(rest)


def test_a_refusal_quotes_no_more_than_a_line() -> None:
    assert len(str(BadFormat(b"\xff" * 10_000))) < 400


# --- Words ---------------------------------------------------------------------------------------


USED = b"list-tube-used\r\n"
USING = b"USING default\r\n"
BAD = b"BAD_FORMAT\r\n"


def key_of(length: int) -> bytes:
    return b"k" * length


# --- Reading -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"key=a", PutWords(b"a")),
        (b"  key=a=b  ", PutWords(b"a=b")),
        ("key=Größe-17".encode(), PutWords("Größe-17".encode())),
        (b"on=keep key=a", PutWords(b"a", Conflict.KEEP)),
        (b"retry=15s,3m", PutWords(own=Own(Retry((15_000, 180_000))))),
        (b"retry=0.5", PutWords(own=Own(Retry((500,))))),
        (b"retry=15s,", PutWords(own=Own(Retry((15_000,))))),
        (b"attempts=3", PutWords(own=Own(Retry((), 3)))),
        (b"group=a=b attempts=3", PutWords(own=Own(Retry((), 3), group=b"a=b"))),
        (b"retry=1h jitter=20 attempts=2", PutWords(own=Own(Retry((3_600_000,), 2, 20)))),
    ],
)
def test_put_words_are_read(text: bytes, expected: PutWords) -> None:
    assert parse_put_words(b" " + text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *(b"key", b"key=", b"=a", b"key=a key=b", b"on=keep", b"key=a on=", b"key=a on=KEEP"),
        *(b"group=", b"group=\xff", b"group=a group=b", b"group=" + b"g" * (GROUP_BYTES_MAX + 1)),
        *(b"key=\xff", b"retry=", b"retry=0", b"retry=x", b"retry=-1", b"key=a\tb"),
        *(b"attempts=0", b"attempts=65536", b"attempts=+1", b"attempts=1.0", b"jitter=5"),
        *(b"retry=1s jitter=101", b"key=a foo=1", b"key=a foo", b"key=a on=keep on=keep"),
        *(b"attempts=" + "٣".encode(), b"key=" + key_of(KEY_BYTES_MAX + 1)),
        "key=a\N{NO-BREAK SPACE}b".encode(),
    ],
)
def test_malformed_put_words_are_refused(text: bytes) -> None:
    with pytest.raises(Refusal) as caught:
        parse_put_words(b" " + text)
    assert caught.value.word == "BAD_FORMAT"


def test_changes_are_read_and_one_at_least_is_wanted() -> None:
    assert parse_change(b"7 pri=3 ttr=0.5") == (7, Changes(priority=3, ttr_ms=500))
    assert parse_change(b"7 ttr=1m30s delay=0.5s") == (7, Changes(ttr_ms=90_000, delay_ms=500))
    assert parse_change(b"7 bytes=12 delay=1") == (7, Changes(delay_ms=1_000, body_bytes=12))
    target = Target(url="https://b.example/", method="PUT")
    said = parse_change(b"7 url=https://b.example/ method=PUT")
    assert said == (7, Changes(target=target))
    assert parse_change(b"7 url=") == (7, Changes(target=Target()))
    assert parse_change(b"7 group=b") == (7, Changes(own=Own(group=b"b")))
    assert parse_change(b"7 group=") == (7, Changes(own=Own(group=b"")))
    for text in (
        *(b"", b" ", b"pri", b"pri=-1", b"pri=4294967296", b"delay=1q", b"ttr=.5", b"x=1"),
        *(b"method=PUT", b"url= method=PUT", b"url=https://b.example/ method=HEAD"),
    ):
        with pytest.raises(BadFormat):
            parse_change(b"7 " + text)


def test_filters_are_read() -> None:
    asked = grammar._parse_filter(
        b"state=delayed,buried to=1.5 limit=7 after=5:6", grammar._LIST_READERS
    )
    assert asked.state == {State.DELAYED, State.BURIED}
    assert (asked.limit, asked.after) == (7, Cursor(5, 6))
    wanted = asked.wanted(10_000)
    assert (wanted.from_ms, wanted.until_ms, wanted.key_prefix) == (0, 11_500, "")
    asked = grammar._parse_filter(b"prefix=o- from=2 dry=1", grammar._BULK_READERS)
    assert asked.dry
    assert (asked.wanted(1).from_ms, asked.prefix) == (2_001, "o-")
    for text in (b"dry=0", b"dry=2", b"dry=true", b"dry="):
        with pytest.raises(BadFormat):
            grammar._parse_filter(text, grammar._BULK_READERS)


@pytest.mark.parametrize(
    "text",
    [
        *(b"state=", b"state=gone", b"state=ready,ready", b"state=ready,", b"to=-1", b"to=x"),
        *(b"limit=0", b"limit=1001", b"after=", b"after=5", b"after=5:", b"prefix=", b"dry=1"),
        *(b"ready", b"from=1 from=1", b"limit=", b"after=-1:2"),
    ],
)
def test_malformed_filters_are_refused(text: bytes) -> None:
    with pytest.raises(BadFormat):
        grammar._parse_filter(text, grammar._LIST_READERS)


def test_a_nack_takes_options_and_the_rest_is_for_people() -> None:
    for said, read in (
        (b"delay=1.5 no route = gone", (1_500, "no route = gone", True, False)),
        (b" no route", (0, "no route", True, False)),
        (b"", (0, "", True, False)),
        (b"delay=2", (2_000, "", True, False)),
        (b"delay=5s too slow", (5_000, "too slow", True, False)),
        (b"the delay=5s", (0, "the delay=5s", True, False)),
        (b"\xff", (0, "\ufffd", True, False)),
        (b"counts=0", (0, "", False, False)),
        (b"counts=0 delay=2 stopped", (2_000, "stopped", False, False)),
        (b"counts=1 delay=2", (0, "counts=1 delay=2", True, False)),
        (b"dead=1", (0, "", True, True)),
        (b"dead=1 delay=2 no", (0, "delay=2 no", True, True)),
    ):
        assert grammar.parse_nack(b"7 " + said) == (7, *read)
    for text in (b"delay=soon x", b"delay=", b"delay=5\t", "delay=٣".encode(), b"delay=137y"):
        with pytest.raises(BadFormat):
            grammar.parse_nack(b"7 " + text)


# --- Shapes --------------------------------------------------------------------------------------


def test_a_shape_finds_the_puts_that_differ_in_their_keys_and_bodies() -> None:
    shape = shape_of(b"put 0 1 60 2 key=", b" on=replace")
    assert shape is not None
    assert (shape.put.delay_ms, shape.words) == (1_000, PutWords(on=Conflict.REPLACE))
    one = b"put 0 1 60 2 key=%b on=replace\r\n%b\r\n"
    keys = [b"a", key_of(KEY_BYTES_MAX), "ß".encode()]
    bodies = [b"\r\n", b"\0\xff", b"hi"]
    data = b"".join(one % put for put in zip(keys, bodies, strict=True))
    for other in (b"", one[:9], one % (key_of(KEY_BYTES_MAX + 1), b"hi"), one % (b"a b", b"hi")):
        for more in (b"", one % (b"c", b"hi")):
            found = shape.run_in(b"xy" + data + other + more * bool(other), 2)
            assert found == (keys, bodies, 2 + len(data)), (other, more)
    assert shape.run_in(b"x" + data, 0) == ([], [], 0)


@pytest.mark.parametrize("line", [b"put 0 1 60 key=", b"put 0 1 60 2 x key=", b"put x key="])
def test_what_is_no_put_has_no_shape(line: bytes) -> None:
    assert shape_of(line, b"") is None


def test_lines_that_might_be_too_long_have_no_run() -> None:
    put, after = b"put %b 1 60 2 key=", b" retry=1s"
    space_bytes = LONG_LINE_BYTES_MAX - 2 - len(put % b"") - KEY_BYTES_MAX - len(after)
    for length, has_run in ((space_bytes, True), (space_bytes + 1, False)):
        shape = shape_of(put % (b"0" * length), after)
        assert shape is not None
        assert (shape.each is not None) == has_run


# --- Long lines ----------------------------------------------------------------------------------

LONG = (
    b"list-jobs default prefix=",
    b"clear-tube ",
    b"put 0 0 60 2 key=",
    b"put-in-tube default 0 0 60 2 key=",
)


@pytest.mark.parametrize("begin", LONG)
def test_a_line_of_ours_has_1024_bytes(begin: bytes) -> None:
    for length in (LINE_BYTES_MAX, LINE_BYTES_MAX + 1, LONG_LINE_BYTES_MAX):
        line = begin + b"x" * (length - len(begin) - 2) + b"\r\n"
        stream = line + b"hi\r\n" * begin.startswith(b"put") + USED
        replies = LineRig().client().says(stream)
        assert replies.endswith(USING), length
        assert b"UNKNOWN" not in replies
        assert LineRig().client().says(*bytewise(stream)) == replies


@pytest.mark.thorough
@pytest.mark.parametrize("begin", [*LONG, b"nack 1 ", b"set-policy ", b"change 1 x="])
def test_a_longer_one_is_thrown_away_like_beanstalkds(begin: bytes) -> None:
    # Its end is found wherever it stands, also where beanstalkd's windows would cut it in two.
    has_body = begin.startswith((b"put", b"set-policy", b"change"))
    after = b"" if has_body else USING  # how long the body is may be in what was not kept
    for more in (-1, 0, 1, 100, LINE_BYTES_MAX - 1, LINE_BYTES_MAX, 10_000):
        count = LONG_LINE_BYTES_MAX + more - len(begin)
        stream = begin + b"x" * count + b"\r\n" + b"hi\r\n" * begin.startswith(b"put") + USED
        assert LineRig().client().says(stream) == BAD + after, more
        assert LineRig().client().says(*bytewise(stream)) == BAD + after, more
        both = (stream[: -len(USED) - 1], stream[-len(USED) - 1 :])
        assert LineRig().client().says(*both) == BAD + after, more


def test_an_endless_line_of_ours_takes_little_memory() -> None:
    client = LineRig().client()
    client.says(b"list-jobs default prefix=")
    for _ in range(100):
        assert client.says(b"x" * 500) == b""
        assert len(client.connection._framing._rest) < LONG_LINE_BYTES_MAX
        assert len(client.connection._framing._overlong or b"") <= LONG_LINE_BYTES_MAX
    assert client.says(b"\r", b"\n", USED) == BAD + USING


# --- Lines whose body has no known end -----------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        b"put-in-tube two words 0 0 60 %d",
        b"put-in-tube a 0 0 60 5 0 0 60 %d",
        b"put-in-tube a 0 0 60 5 key=a 0 0 60 %d key=b",
        b"put-in-tube a 0 0 60 5 key=" + b"a" * 1_100 + b" 0 0 60 %d key=" + b"b" * 300,
        b"put-in-tube  t 0 0 60 %d",
        b"put-in-tube t 0 0 60 999999999%d key=a",
        b"put-in-tube t 0 60 %d",
        b"put 0 0 60 x%d key=a 1",
        b"set-policy two words %d",
        b"set-policy 5 %d 1",
        b"set-policy t  %d if=x",
        b"schedule-put two words %d",
        b"schedule-pause two words %d",
        b"change 1 pri=1 bytes=5 bytes=%d",
    ],
)
def test_where_it_cannot_be_known_how_long_a_body_is_nothing_more_is_executed(line: bytes) -> None:
    body = b"cancel-jobs default\r\nclear-tube default\r\n"
    stream = line % len(body) + b"\r\n" + body + b"\r\n" + b"x" * 500 + b"\r\n" + USED
    for pieces in ((stream,), bytewise(stream)):
        client = LineRig().client()
        assert client.says(*pieces) == BAD
        assert client.connection.is_closing
