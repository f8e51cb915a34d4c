"""Counting replies and reading servers: a miscount would be a false figure."""

import doctest
from types import ModuleType

import pytest

from benchmarks import load, peers
from benchmarks.load import (
    UnexpectedReplyError,
    check_inserted,
    next_commands,
    prebuilt,
    put_request,
    whole_replies,
)
from benchmarks.peers import is_whole, statistic

REPLIES = (
    b"DELETED\r\nRESERVED 7 100\r\n"
    + load.BODY
    + b"\r\nDELETED\r\nRESERVED 12 100\r\n"
    + (load.BODY + b"\r\n")
)


@pytest.mark.parametrize("module", [load, peers])
def test_the_examples_in_the_docstrings_hold(module: ModuleType) -> None:
    results = doctest.testmod(module)
    assert results.failed == 0
    assert results.attempted > 0


def test_a_put_is_written_as_stock_servers_read_it() -> None:
    assert put_request(3600, b"ab") == b"put 0 3600 600 2\r\nab\r\n"
    assert put_request(2.5, b"ab") == b"put 0 2.500 600 2\r\nab\r\n"


def test_prebuilt_requests_repeat() -> None:
    requests = prebuilt(b"x", 3)
    assert [requests(count) for count in range(4)] == [b"", b"x", b"xx", b"xxx"]


def test_a_refused_put_is_found_and_quoted() -> None:
    check_inserted(b"")
    check_inserted(b"INSERTED 1\r\nINSERTED 2\r\n")
    with pytest.raises(UnexpectedReplyError, match="OUT_OF_MEMORY"):
        check_inserted(b"INSERTED 1\r\nOUT_OF_MEMORY\r\nINSERTED 2\r\n")


def test_replies_are_counted_alike_whole_and_cut_anywhere() -> None:
    expected = (b"reserve\r\n" * 2, b"delete 7\r\ndelete 12\r\n", 2)
    for cut in range(len(REPLIES) + 1):
        commands, deleted, pending = b"", 0, b""
        for piece in (REPLIES[:cut], REPLIES[cut:]):
            pending += piece
            end = whole_replies(pending)
            more, count = next_commands(pending[:end])
            commands, deleted, pending = commands + more, deleted + count, pending[end:]
        assert pending == b""
        assert deleted == expected[2]
        assert sorted(commands.splitlines()) == sorted((expected[0] + expected[1]).splitlines())


def test_byte_by_byte_nothing_is_taken_before_it_is_whole() -> None:
    ends = {whole_replies(REPLIES[:cut]) for cut in range(len(REPLIES) + 1)}
    assert all(next_commands(REPLIES[:end]) for end in ends)
    assert max(ends) == len(REPLIES)


@pytest.mark.parametrize("reply", [b"NOT_FOUND\r\n", b"DEADLINE_SOON\r\n", b"TIMED_OUT\r\n"])
def test_an_odd_reply_to_a_worker_is_an_error(reply: bytes) -> None:
    with pytest.raises(UnexpectedReplyError, match=reply.decode().strip()):
        next_commands(reply)


def test_an_ok_block_is_whole_with_its_last_line_end() -> None:
    reply = b"OK 4\r\n---\n\r\n"
    assert [cut for cut in range(len(reply) + 1) if is_whole(reply[:cut])] == [len(reply)]


def test_a_statistic_is_found_by_its_whole_name() -> None:
    reply = b"OK 9\r\n---\nx-current-jobs: 1\ncurrent-jobs: 2\n\r\n"
    assert statistic(reply, b"current-jobs") == 2
    assert statistic(reply, b"current") is None
