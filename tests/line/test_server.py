import errno
import os
import resource
import select
import socket

import pytest

from delayd.limits import ACCEPT_PAUSE_MS, READ_BYTES, STALLED_CLIENT_MS
from delayd.line import replies
from tests.rigs.line_sockets import ServerRig, heard, is_cut_off

PUT = b"put 0 0 60 2\r\nhi\r\n"
BIG = 60_000
PUT_BIG = b"put 0 0 60 %d\r\n%b\r\n" % (BIG, b"x" * BIG)
FOUND_BIG = b"FOUND 1 %d\r\n%b\r\n" % (BIG, b"x" * BIG)
SMALL_BUFFERS = 4_096


def receive_all(rig: ServerRig, client: socket.socket, count: int) -> bytes:
    """So many bytes, taken by a client that reads while the server writes."""
    data = b""
    while len(data) < count and (more := client.recv(10_000)):
        data += more
        rig.turn_until_quiet()
    return data


def has_unsent(rig: ServerRig) -> bool:
    return rig.server.has_unsent


# --- Sending -------------------------------------------------------------------------------------


def test_a_reply_that_the_socket_does_not_take_at_once_arrives_whole(rig: ServerRig) -> None:
    client = rig.client(buffer_bytes=SMALL_BUFFERS)
    rig.says(client, PUT_BIG + b"peek 1\r\n" * 3 + b"list-tube-used\r\n")
    (served,) = rig.clients
    assert served.unsent
    assert has_unsent(rig)
    expected = b"INSERTED 1\r\n" + FOUND_BIG * 3 + b"USING default\r\n"
    assert receive_all(rig, client, len(expected)) == expected
    assert not has_unsent(rig)
    rig.says(client, b"list-tube-used\r\n")
    assert heard(client) == b"USING default\r\n"


@pytest.mark.thorough
def test_while_a_client_reads_nothing_nothing_is_read_from_it() -> None:
    with ServerRig(out_bytes_max=100_000) as rig:
        client = rig.client(buffer_bytes=SMALL_BUFFERS)
        rig.says(client, PUT_BIG)
        client.setblocking(False)
        sent = 0
        for _ in range(2_000):
            try:
                sent += client.send(b"peek 1\r\n" * 500)
            except BlockingIOError:
                break
            rig.turn_until_quiet()
            (served,) = rig.clients
            assert len(served.unsent) <= 100_000 + 2 * len(FOUND_BIG)
        else:
            pytest.fail("the server takes commands without end")
        client.settimeout(60)
        expected = len(b"INSERTED 1\r\n") + sent // 8 * len(FOUND_BIG)
        wanted = min(expected, 40 * len(FOUND_BIG))
        data = receive_all(rig, client, wanted).removeprefix(b"INSERTED 1\r\n")
        assert (FOUND_BIG * 50).startswith(data[: 40 * len(FOUND_BIG)])


def test_a_choked_client_goes_on_when_it_has_read() -> None:
    with ServerRig(out_bytes_max=4_096) as rig:
        client = rig.client()
        rig.says(client, PUT_BIG)
        rig.says(client, b"peek 1\r\n" * 20 + b"list-tube-used\r\n")
        expected = b"INSERTED 1\r\n" + FOUND_BIG * 20 + b"USING default\r\n"
        assert receive_all(rig, client, len(expected)) == expected


def test_a_client_that_reads_nothing_is_closed_after_a_minute_and_its_jobs_return(
    rig: ServerRig,
) -> None:
    stalled, other = rig.client(buffer_bytes=SMALL_BUFFERS), rig.client()
    rig.says(stalled, PUT_BIG + PUT + b"reserve\r\n" + b"peek 1\r\n" * 10)
    rig.says(other, b"reserve\r\nreserve\r\n")
    assert heard(other) == b"RESERVED 2 2\r\nhi\r\n"
    closed = []
    for rig.elapsed_ms in (5_000, 5_000 + STALLED_CLIENT_MS - 1, 5_000 + STALLED_CLIENT_MS):
        closed.append(rig.server.close_stalled())
    assert closed == [0, 0, 1]
    rig.end_turn()
    rig.turn_until_quiet()
    assert heard(other) == b"RESERVED 1 %d\r\n%b\r\n" % (BIG, b"x" * BIG)
    assert is_cut_off(stalled)
    assert len(rig.clients) == 1


def test_a_slow_reader_is_not_a_stalled_one(rig: ServerRig) -> None:
    client = rig.client(buffer_bytes=SMALL_BUFFERS)
    rig.says(client, PUT_BIG + b"peek 1\r\n" * 10)
    for minute in range(5):
        rig.elapsed_ms = minute * STALLED_CLIENT_MS
        assert rig.server.close_stalled() == 0
        assert len(receive_all(rig, client, 30_000)) >= 30_000
    assert rig.clients


def test_a_client_whose_replies_pile_up_beyond_the_limit_is_closed() -> None:
    with ServerRig(out_bytes_max=50_000) as rig:
        client, other = rig.client(buffer_bytes=SMALL_BUFFERS), rig.client()
        rig.says(client, PUT + b"reserve\r\n")
        rig.holds = True
        for _ in range(30):
            rig.says(client, b"stats-job 1\r\n" * 60)
        rig.holds = False
        rig.release()
        rig.turn_until_quiet()
        assert len(rig.clients) == 1
        rig.says(other, b"peek-ready\r\n")
        assert heard(other) == b"FOUND 1 2\r\nhi\r\n"


# --- Coming to an end ----------------------------------------------------------------------------


def test_a_half_closed_client_gets_all_its_replies_and_then_the_end(rig: ServerRig) -> None:
    client = rig.client(buffer_bytes=SMALL_BUFFERS)
    client.sendall(PUT_BIG + b"peek 1\r\n" * 3 + b"reserve\r\nreserve\r\nlist-tube-used\r\nlist-")
    client.shutdown(socket.SHUT_WR)
    rig.turn_until_quiet(some=True)
    expected = (
        b"INSERTED 1\r\n" + FOUND_BIG * 3 + FOUND_BIG.replace(b"FOUND", b"RESERVED")
        + b"TIMED_OUT\r\nUSING default\r\n"
    )  # fmt: skip
    assert receive_all(rig, client, len(expected) + 1) == expected
    assert not rig.clients


@pytest.mark.parametrize(
    ("end", "reply"), [(b"quit\r\n", b""), (b"GET / HTTP/1.1\r\n", replies.NOT_HTTP)]
)
def test_replies_that_are_still_to_be_sent_arrive_before_the_close(
    rig: ServerRig, end: bytes, reply: bytes
) -> None:
    client = rig.client(buffer_bytes=SMALL_BUFFERS)
    rig.says(client, PUT_BIG + b"peek 1\r\n" * 5 + end + b"list-tubes\r\n")
    assert len(rig.clients) == 1
    expected = b"INSERTED 1\r\n" + FOUND_BIG * 5 + reply
    assert receive_all(rig, client, len(expected) + 1) == expected
    assert not rig.clients


def test_a_client_that_goes_without_reading_gives_back_what_it_held(rig: ServerRig) -> None:
    client, other = rig.client(buffer_bytes=SMALL_BUFFERS), rig.client()
    rig.says(client, PUT_BIG + b"reserve\r\n" + b"peek 1\r\n" * 20)
    assert rig.clients[0].unsent
    client.close()
    rig.turn_until_quiet(some=True)
    assert len(rig.clients) == 1
    rig.says(other, b"reserve\r\n")
    assert heard(other).startswith(b"RESERVED 1 ")


def test_closing_all_clients_survives_jobs_that_pass_from_one_to_the_next(rig: ServerRig) -> None:
    workers = [rig.client() for _ in range(5)]
    rig.says(workers[2], PUT + b"reserve\r\n")
    for number, worker in enumerate(workers):
        if number != 2:
            rig.says(worker, b"reserve-batch 5 9\r\nlist-tube-used\r\n" + PUT)
    rig.server.stop_accepting()
    rig.server.close_clients()
    rig.end_turn()
    assert not rig.clients
    assert all(is_cut_off(worker) for worker in workers)


# --- In the order of arrival ---------------------------------------------------------------------

PUT_HALF = b"put 0 0 60 9\r\nhal"


@pytest.mark.parametrize("end", [b"", b"quit\r\n", b"list-tubes\r\n", PUT_HALF, b"reserve\r\n"])
def test_the_end_of_a_holder_comes_first_although_the_kernel_reports_it_behind_the_others(
    rig: ServerRig, end: bytes
) -> None:
    holder, other = rig.client(), rig.client()
    rig.says(holder, PUT + b"reserve\r\n")
    other.sendall(b"use default\r\n")
    rig.turn()
    heard(other)
    holder.sendall(end)
    holder.close()
    other.sendall(b"delete 1\r\n")
    events = rig.poller.poll(0)
    assert len(events) == 2
    assert events[0][1] == select.EPOLLIN, "what was reported last is looked at first again"
    rig.poller.serve(events)
    rig.end_turn()
    assert heard(other) == b"DELETED\r\n"
    rig.turn_until_quiet()
    assert len(rig.clients) == 1


@pytest.mark.thorough
def test_the_input_of_a_client_that_has_ended_is_read_in_pieces(rig: ServerRig) -> None:
    client, other = rig.client(), rig.client()
    puts = 6 * READ_BYTES // len(PUT)
    client.sendall(PUT * puts)
    client.close()
    rig.turn()
    assert len(rig.clients) == 2
    rig.turn_until_quiet()
    assert len(rig.clients) == 1
    rig.says(other, b"stats-tube default\r\n")
    assert b"current-jobs-ready: %d\n" % puts in heard(other)


# --- Coming --------------------------------------------------------------------------------------


def test_when_no_descriptor_can_be_given_up_nobody_is_listened_to_for_a_second(
    rig: ServerRig,
) -> None:
    served, waiting = rig.client(), socket.socket()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # less than are in use
        waiting.connect(rig._listener.getsockname())
        rig.turn_until_quiet(some=True)  # it would never be
        rig.says(served, b"list-tube-used\r\n")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert heard(served) == b"USING default\r\n"
    rig.elapses(ACCEPT_PAUSE_MS / 1_000)
    rig.says(waiting, b"list-tube-used\r\n")
    assert heard(waiting) == b"USING default\r\n"
    waiting.close()


def test_a_connection_of_which_the_kernel_says_nothing_any_more_is_nothing(
    monkeypatch: pytest.MonkeyPatch, rig: ServerRig
) -> None:
    def gone(sock: socket.socket) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    with monkeypatch.context() as patched:
        patched.setattr("delayd.line.server.prepare", gone)
        assert is_cut_off(rig.client())
    rig.says(rig.client(), b"list-tube-used\r\n")
    assert len(rig.clients) == 1


def test_after_the_listeners_were_let_go_nobody_is_accepted(rig: ServerRig) -> None:
    rig.server.stop_accepting()
    late = socket.create_connection(rig._listener.getsockname())
    assert rig.is_quiet(within_s=0.05)
    late.close()
