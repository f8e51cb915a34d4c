"""What the comparison of two servers' replies makes equal, and what it leaves as it is."""

from typing import Final

import pytest

from tests.compat.masks import comparable

OLD: Final = b"OK 60\r\n---\nid: 3\ntube: a\nstate: %b\nage: 7\ntime-left: %b\n\r\n"
NEW: Final = b'OK 62\r\n---\nid: 3\ntube: "a"\nstate: %b\nage: 8\ntime-left: %b\n\r\n'


def test_the_worked_example_is_right() -> None:
    reply = b"OK 34\r\n---\nid: 3\ntube: a\nstate: ready\nage: 7\n\r\n"
    made_equal = b'OK\r\n---\nid: 3\ntube: "a"\nstate: ready\nage: #\n\r\n'
    assert comparable(reply, quotes=False) == made_equal


@pytest.mark.parametrize("state", [b"reserved", b"delayed"])
def test_an_old_server_s_reply_equals_a_new_one_s(state: bytes) -> None:
    old, new = OLD % (state, b"99"), NEW % (state, b"98")
    assert comparable(old, quotes=False) == comparable(new, quotes=True)


def test_a_new_server_that_leaves_out_its_quotes_differs() -> None:
    old, new = OLD % (b"ready", b"0"), OLD % (b"ready", b"0")
    assert comparable(old, quotes=False) != comparable(new, quotes=True)


def test_time_left_where_none_runs_differs() -> None:
    old, new = OLD % (b"ready", b"0"), NEW % (b"ready", b"1")
    assert comparable(old, quotes=False) != comparable(new, quotes=True)


def test_a_pause_that_is_over_has_no_time_left() -> None:
    over, running = (b"OK 32\r\n---\npause: %b\npause-time-left: 7\n\r\n" % p for p in (b"0", b"9"))
    assert b"pause-time-left: 7" in comparable(over, quotes=True)
    assert b"pause-time-left: #" in comparable(running, quotes=True)


@pytest.mark.parametrize("reply", [b"INSERTED 7\r\n", b"FOUND 1 7\r\nage: 12\r\n", b""])
def test_other_replies_are_left_as_they_are(reply: bytes) -> None:
    assert comparable(reply, quotes=False) == reply
