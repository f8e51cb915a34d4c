"""What the comparison of two servers' replies makes equal, and what it leaves as it is."""

from typing import Final

import pytest

from tests.compat.masks import comparable

ONE: Final = b"OK 60\r\n---\nid: 3\ntube: a\nstate: %b\nage: 7\ntime-left: %b\n\r\n"
OTHER: Final = b"OK 60\r\n---\nid: 3\ntube: a\nstate: %b\nage: 8\ntime-left: %b\n\r\n"


def test_the_worked_example_is_right() -> None:
    reply = b"OK 34\r\n---\nid: 3\ntube: a\nstate: ready\nage: 7\n\r\n"
    assert comparable(reply) == b"OK\r\n---\nid: 3\ntube: a\nstate: ready\nage: #\n\r\n"


@pytest.mark.parametrize("state", [b"reserved", b"delayed"])
def test_one_server_s_reply_equals_another_s_at_another_time(state: bytes) -> None:
    assert comparable(ONE % (state, b"99")) == comparable(OTHER % (state, b"98"))


def test_quotes_make_a_difference() -> None:
    bare = ONE % (b"ready", b"0")
    assert comparable(bare) != comparable(bare.replace(b"tube: a", b'tube: "a"'))


def test_a_version_makes_a_difference_and_so_does_delayd_s_own() -> None:
    said = b'OK 40\r\n---\nversion: "1.12"\nplatform: x\n%b\r\n'
    assert comparable(said % b'delayd-version: "0.1.0"\n') != comparable(said % b"")
    assert comparable(said % b"") != comparable((said % b"").replace(b"1.12", b"1.13"))


def test_time_left_where_none_runs_differs() -> None:
    assert comparable(ONE % (b"ready", b"0")) != comparable(OTHER % (b"ready", b"1"))


def test_a_pause_that_is_over_has_no_time_left() -> None:
    over, running = (b"OK 32\r\n---\npause: %b\npause-time-left: 7\n\r\n" % p for p in (b"0", b"9"))
    assert b"pause-time-left: 7" in comparable(over)
    assert b"pause-time-left: #" in comparable(running)


@pytest.mark.parametrize("reply", [b"INSERTED 7\r\n", b"FOUND 1 7\r\nage: 12\r\n", b""])
def test_other_replies_are_left_as_they_are(reply: bytes) -> None:
    assert comparable(reply) == reply
