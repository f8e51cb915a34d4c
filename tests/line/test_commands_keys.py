"""Keys and changes on the line: what is said, in runs and one by one, whole and in pieces."""

import random

import pytest

from delayd.limits import KEY_BYTES_MAX
from delayd.line.grammar import parse_put
from tests.line.test_connection_runs import both
from tests.rigs.line import Client, LineRig, bytewise, in_pieces

BAD = b"BAD_FORMAT\r\n"
NOT_FOUND = b"NOT_FOUND\r\n"
USED = b"list-tube-used\r\n"
USING = b"USING default\r\n"


def put(key: bytes, body: bytes = b"hi", words: bytes = b"", delay: bytes = b"9") -> bytes:
    return b"put 0 %b 60 %d key=%b%b\r\n%b\r\n" % (delay, len(body), key, words, body)


@pytest.fixture
def client() -> Client:
    return LineRig(is_virtual=True).client()


# --- Malformed -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        *(b"key=", b"key=a key=b", b"key=a on=", b"key=a on=maybe", b"on=keep", b"key=a x=1"),
        *(b"key=\xff\xfe", b"key=" + b"k" * (KEY_BYTES_MAX + 1), b"retry=soon", b"attempts=0"),
        *(b"key=a junk", b"key=a retry=15s retry=15s", "key=a\u2028b".encode()),
        *(b"KEY=a", b"=a", b"k-e-y=1", b"key=a\0b", b"key=a\rb", b"a b=", b"1=", b"key=a key\0"),
    ],
)
def test_malformed_words_swallow_the_body_and_the_connection_goes_on(words: bytes) -> None:
    stream = b"put 0 0 60 6 %b\r\nquit\r\n\r\n" % words + USED
    rig = LineRig()
    assert rig.client().says(stream) == BAD + USING
    assert not rig.engine.store.jobs
    assert LineRig().client().says(*bytewise(stream)) == BAD + USING
    in_tube = b"put-in-tube t 0 0 60 6 %b\r\nquit\r\n\r\n" % words + USED
    assert LineRig().client().says(in_tube) == BAD + USING


def test_junk_is_beanstalkds_affair_and_swallows_nothing() -> None:
    for junk in (b"1", b" x", b"key", b"", b"a\0"):
        said = LineRig().client().says(b"put 0 0 60 2 %b\r\nhi\r\n" % junk)
        assert said == BAD + b"UNKNOWN_COMMAND\r\n", junk


@pytest.mark.parametrize(
    "line",
    [
        *(b"put 4294967296 0 60 6 key=a", b"put 0 0 4294967296 6 key=a", b"put 0 x 60 6 key=a"),
        *(b"put 0 0 60 6key=a", b"put 0 0 60 6=a", b"put-in-tube bad^t 0 0 60 6 key=a"),
        *(b"put-in-tube t 0 0 60 6 key", b"put-in-tube t 0 100 99999999999 6 key=a"),
        *(b"put-in-tube two words 0 0 60 6", b"put-in-tube t 0 -1 60 6", b"put-in-tube t 0 0 0 6 "),
        *(b"put-in-tube t 0 0 60 6 " + b"x" * 300, b"put 0 0 60 6 key=" + b"x" * 2_000),
        *(b"put-in-tube " + b"t" * 2_000 + b" 0 0 60 6", b"put 0 0 60 6 KEY=" + b"x" * 500),
        *(b"set-policy bad^t 6", b"set-policy t 6 x", b"set-policy t\0 6"),
        b"change 1 ttr=" + b"9" * 5_000 + b" bytes=6",
        *(b"change x bytes=6", b"change 1 bytes=6 foo=1", b"change 1 bytes=6 pri=\0"),
    ],
)
def test_a_body_that_is_announced_is_never_taken_for_commands(line: bytes) -> None:
    stream = line + b"\r\nquit\r\n\r\n" + USED
    rig = LineRig()
    assert rig.client().says(stream) == BAD + USING
    assert LineRig().client().says(*bytewise(stream)) == BAD + USING
    assert not rig.engine.store.jobs
    assert len(rig.engine.store.topics.listing) == 1


def test_too_big_comes_before_malformed() -> None:
    stream = b"put 0 0 60 11 key=\r\n" + b"x" * 11 + b"\r\n" + put(b"a", b"x" * 11) + USED
    client = LineRig(body_bytes_max=10).client()
    assert client.says(stream) == b"JOB_TOO_BIG\r\n" * 2 + USING


def test_a_body_without_its_end_is_no_job(client: Client) -> None:
    said = client.says(b"put 0 0 60 2 key=a\r\nhixx" + USED + put(b"a"))
    assert said == b"EXPECTED_CRLF\r\n" + USING + b"INSERTED 1\r\n"


@pytest.mark.parametrize(
    "line",
    [
        *(b"delete-key", b"delete-key default", b"delete-key default a b", b"delete-key  "),
        *(b"peek-key default \xff", b"peek-key -x a", b"kick-key default a b"),
        *(b"reschedule-key default a", b"reschedule-key default a x", b"reschedule-key default"),
        *(b"change 1", b"change x pri=1", b"change 1 pri=x", b"change 1 pri=1 pri=2"),
        *(b"change 1 foo=1", b"change 1 pri=4294967296", b"change"),
    ],
)
def test_malformed_commands_change_nothing(line: bytes) -> None:
    client = LineRig().client()
    client.says(put(b"a"))
    before = client.says(b"stats-job 1\r\n")
    refusal = BAD if b" " in line else b"UNKNOWN_COMMAND\r\n"
    assert client.says(line + b"\r\n" + USED) == refusal + USING
    assert client.says(b"stats-job 1\r\n") == before


# --- Changes -------------------------------------------------------------------------------------


def test_a_body_is_changed_whole_and_in_pieces() -> None:
    stream = put(b"a") + b"change 1 bytes=6 pri=1\r\nquit\r\n\r\npeek 1\r\n"
    replies = b"INSERTED 1\r\nCHANGED\r\nFOUND 1 6\r\nquit\r\n\r\n"
    assert LineRig().client().says(stream) == replies
    assert LineRig().client().says(*bytewise(stream)) == replies


def test_a_change_that_cannot_be_swallows_its_body() -> None:
    client = LineRig(body_bytes_max=10).client()
    client.says(put(b"a", delay=b"0"))
    body = b"x" * 11
    assert client.says(b"change 1 bytes=11\r\n%b\r\n" % body + USED) == b"JOB_TOO_BIG\r\n" + USING
    assert client.says(b"change 9 bytes=2\r\nab\r\n" + USED) == NOT_FOUND + USING
    assert client.says(b"change 1 bytes=2\r\nabcd" + USED) == b"EXPECTED_CRLF\r\n" + USING
    client.says(b"reserve\r\n")
    assert client.says(b"change 1 bytes=2\r\nab\r\n" + USED) == NOT_FOUND + USING


# --- Runs ----------------------------------------------------------------------------------------


@pytest.mark.walk(1, 5)
def test_chance_streams_with_keys_are_the_same_in_runs_and_one_by_one(
    number: int, rng: random.Random
) -> None:
    del number  # of which `rng` knows
    for _ in range(20):
        stream = b"".join(chance(rng) for _ in range(30))
        replies = both(stream)
        assert both(*in_pieces(stream, rng)) == replies, stream
        assert both(*bytewise(stream)) == replies, stream


def chance(rng: random.Random) -> bytes:
    key = rng.choice((b"a", b"b", b"c", b"d", "ß".encode(), b"\xff", b"k" * 201, b"e\x7f", b""))
    words = rng.choice((b"", b"", b"", b" on=replace", b" on=extend", b" on=x", b"  attempts=2"))
    delay = rng.choice((b"0", b"0", b"9"))
    return rng.choice(
        (
            *[put(key, b"hi", words, delay)] * 6,
            put(key, b"hi", words, delay).replace(b"hi\r\n", b"hixx"),
            b"delete-key default a\r\n",
            b"reserve-with-timeout 0\r\n",
            b"put 0 0 60 2\r\nhi\r\n",
            b"change 1 pri=1 bytes=1\r\nx\r\n",
        )
    )


def test_a_run_is_refused_whole_while_the_daemon_drains() -> None:
    assert both(put(b"a") + put(b"b"), draining=True) == b"DRAINING\r\n" * 2


@pytest.mark.parametrize("policy", [b'{"jobs_max": 3}', b'{"bytes_max": 150}'])
def test_a_run_beyond_a_cap_is_the_same_as_one_by_one(policy: bytes) -> None:
    set_it = b"set-policy default %d\r\n%b\r\n" % (len(policy), policy)
    keyed = b"".join(put(b"k%d" % number) for number in range(6))
    plain = b"put 0 9 60 2\r\nhi\r\n" * 6
    for stream in (plain, keyed, keyed[:60] + plain):
        replies = both(set_it, stream, b"put 0 0 60 2\r\nhi\r\n")
        assert replies.count(b"INSERTED") == 3
        assert b"OUT_OF_MEMORY" in replies


def test_keys_of_the_longest_lines_are_put_whichever_way_they_come() -> None:
    ladder = b" retry=" + b",".join([b"1h30m15s"] * 80)
    stream = b"".join(put(b"k" * length, words=ladder) for length in (1, 100, KEY_BYTES_MAX))
    assert both(stream) == b"INSERTED 1\r\nINSERTED 2\r\nINSERTED 3\r\n"
    assert both(*bytewise(stream)) == b"INSERTED 1\r\nINSERTED 2\r\nINSERTED 3\r\n"


def test_lines_with_keys_push_no_others_out_of_what_is_remembered(client: Client) -> None:
    client.says(put(b"a", words=b" on=keep"))
    remembered = parse_put.cache_info().currsize
    for number in range(9):
        for piece in bytewise(put(b"n%d" % number, words=b" on=keep")):
            client.says(piece)
        client.says(b"put-in-tube mail 0 9 60 1 key=m%d\r\nx\r\n" % number)
    assert client.says(b"peek-key mail m8\r\n").startswith(b"FOUND")
    assert client.says(b"peek-key default n8\r\n").startswith(b"FOUND")
    assert parse_put.cache_info().currsize == remembered
