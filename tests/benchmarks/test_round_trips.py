"""One command in flight: what follows a reply, and what the tables make of the readings."""

import pytest

from benchmarks.load import BODY, UnexpectedReplyError
from benchmarks.round_trips import (
    ALWAYS,
    BINLOG,
    CONTESTANTS,
    OPERATIONS,
    PUT,
    RESERVE,
    Group,
    RoundTrips,
    after_put,
    after_work,
    tables,
)

RESERVED = b"RESERVED 17 100\r\n" + BODY + b"\r\n"


def test_a_put_follows_a_put() -> None:
    assert after_put(b"INSERTED 7\r\n") == PUT
    assert after_put(b"INSERTED 7") == b""


def test_a_reserved_job_is_deleted_when_all_of_it_is_there() -> None:
    assert after_work(RESERVED) == b"delete 17\r\n"
    assert after_work(RESERVED[:40]) == b""
    assert after_work(b"DELETED\r\n") == RESERVE


@pytest.mark.parametrize("reply", [b"OUT_OF_MEMORY\r\n", b"DRAINING\r\n", b"NOT_FOUND\r\n"])
def test_any_other_reply_fails_the_measurement(reply: bytes) -> None:
    for following in (after_put, after_work):
        with pytest.raises(UnexpectedReplyError, match=reply[:3].decode()):
            following(reply)


def test_a_ratio_is_of_readings_that_were_taken_beside_each_other() -> None:
    group = Group(OPERATIONS[0], 50, {ALWAYS.name: rates(30, 20, 31), BINLOG.name: rates(10, 5, 9)})
    assert group.ratios(ALWAYS, BINLOG) == [3.0, 4.0, 31 / 9]


def test_the_tables_have_a_line_for_each_group_and_each_goal() -> None:
    group = Group(OPERATIONS[1], 50, {who.name: rates(100) for who in CONTESTANTS})
    rate, times, processor, goals = tables([group]).split("\n\n")
    assert "| reserve + delete, 50 x 1 | 100/s " in rate
    assert "| 1.00 / 9.00 " in times
    assert "| 3 + 4 " in processor
    assert goals.count("≥") == 2
    assert "≥ 1.3 x | NO" in goals


def rates(*values: float) -> list[RoundTrips]:
    return [RoundTrips(value, 1.0, 9.0, 3.0, 4.0, 0.5) for value in values]
