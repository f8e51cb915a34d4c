"""Keys and changes on the line: what is said, in runs and one by one, whole and in pieces."""

import random

import pytest

from delayd.limits import KEY_BYTES_MAX
from delayd.line.grammar import parse_put
from tests.line.test_connection_runs import both
from tests.rigs.line import Client, LineRig, bytewise, in_pieces


def put(key: bytes, body: bytes = b"hi", words: bytes = b"", delay: bytes = b"9") -> bytes:
    return b"put 0 %b 60 %d key=%b%b\r\n%b\r\n" % (delay, len(body), key, words, body)


@pytest.fixture
def client() -> Client:
    return LineRig(is_virtual=True).client()


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
