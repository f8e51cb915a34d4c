"""Pipelined commands that take long: who sends them yields, and nothing is lost or reordered.

The clock of these tests moves a millisecond whenever it is read.
"""

import socket
from collections.abc import Callable
from itertools import count

import pytest

from delayd.limits import LINE_KEYED_RUN_MAX, LINE_RUN_MAX, LINE_SLICE_MS, LINE_TURN_MS, READ_BYTES
from tests.line.corpus import BODY_BYTES_MAX, EXCHANGES, Exchange
from tests.rigs.line import LineRig
from tests.rigs.line_sockets import ServerRig, heard

COMMANDS = 400
WATCHES = b"".join(b"watch t%d\r\n" % number for number in range(COMMANDS))
PUTS = b"".join(b"put-in-tube t%d 0 0 60 1\r\nx\r\n" % number for number in range(COMMANDS))
SLICE_COMMANDS_MAX = LINE_SLICE_MS


def moving(step_ms: int = 1) -> Callable[[], int]:
    """A clock that moves whenever it is read."""
    return count(step=step_ms).__next__


@pytest.fixture
def rig(rig: ServerRig) -> ServerRig:
    rig.read_elapsed_ms = moving()
    return rig


@pytest.fixture
def unix_rig(unix_rig: ServerRig) -> ServerRig:
    unix_rig.read_elapsed_ms = moving()
    return unix_rig


def test_who_sends_many_commands_holds_nobody_longer_than_a_slice(rig: ServerRig) -> None:
    busy, other = rig.client(), rig.client()
    busy.sendall(WATCHES)
    for _ in range(3):
        other.sendall(b"list-tube-used\r\n")
        rig.turn()
        rig.turn()
        assert heard(other) == b"USING default\r\n"
    replies = heard(busy).splitlines()
    assert 1 <= len(replies) <= 6 * SLICE_COMMANDS_MAX
    rig.turn_until_quiet()
    replies += heard(busy).splitlines()
    assert replies == [b"WATCHING %d" % (2 + number) for number in range(COMMANDS)]


def test_while_the_clock_stands_still_nobody_yields(rig: ServerRig) -> None:
    rig.read_elapsed_ms = lambda: 7
    busy = rig.client()
    busy.sendall(WATCHES)
    rig.turn()
    assert len(heard(busy).splitlines()) == COMMANDS


def test_no_more_than_a_few_take_their_slice_in_one_turn_and_each_has_its_turn(
    rig: ServerRig,
) -> None:
    clients = [rig.client() for _ in range(6)]
    for client in clients:
        client.sendall(WATCHES)
    answered = dict.fromkeys(clients, 0)
    for _ in range(12):
        rig.turn()
        now = {client: len(heard(client).splitlines()) for client in clients}
        assert sum(map(bool, now.values())) <= 2, "one that yielded before, and another"
        answered = {client: answered[client] + now[client] for client in clients}
    assert all(answered.values())
    rig.turn_until_quiet()
    for client in clients:
        assert answered[client] + len(heard(client).splitlines()) == COMMANDS


def test_of_many_no_more_are_served_in_a_turn_than_there_is_time_for_and_who_waits_comes_first(
    rig: ServerRig,
) -> None:
    clients = [rig.client() for _ in range(4 * LINE_TURN_MS)]
    for client in clients:
        client.sendall(b"list-tube-used\r\n")
    unheard = {*clients}
    for _ in range(len(clients)):
        rig.turn()
        served = [client for client in clients if heard(client)]
        assert 1 <= len(served) <= LINE_TURN_MS
        unheard -= {*served}
        if not unheard:
            return
        for client in served:
            client.sendall(b"list-tube-used\r\n")
    pytest.fail("somebody waits for ever")


def test_who_stays_has_its_turn_however_many_come_and_go(rig: ServerRig) -> None:
    lasting, gone = rig.client(), [rig.client() for _ in range(40)]
    lasting.sendall(b"list-tube-used\r\n")
    for client in gone:
        client.sendall(b"list-tube-used\r\n")
        client.close()
    for _ in range(3):
        rig.turn()
    assert any(client.connection.session.used for client in rig.clients[1:]), "some still wait"
    assert heard(lasting) == b"USING default\r\n"
    rig.turn_until_quiet()
    assert len(rig.clients) == 1


def test_in_a_crowd_that_sends_much_who_sends_little_waits_for_no_more_than_two_turns(
    rig: ServerRig,
) -> None:
    crowd, others = [rig.client() for _ in range(50)], [rig.client() for _ in range(3)]
    for client in crowd:
        client.sendall(b"list-tube-used\r\n" * 20)
    rig.turn()
    answered = dict.fromkeys(crowd, 0)
    for commands in (b"list-tube-used\r\n", b"put 0 0 60 2000\r\n%b\r\n" % bytes(2_000)):
        for other in others:
            other.sendall(commands)
            rig.turn()
            rig.turn()
            assert heard(other), "it waits for the crowd"
        for client in crowd:
            answered[client] += len(heard(client).splitlines())
    assert sum(map(bool, answered.values())) >= 4, "one of the crowd has its turn all the same"
    rig.turn_until_quiet()
    for client in crowd:
        assert answered[client] + len(heard(client).splitlines()) == 20
    assert not rig.poller._late
    assert not rig.poller._long


def test_while_others_wait_the_end_of_a_client_takes_effect_first(rig: ServerRig) -> None:
    clients = [rig.client() for _ in range(12)]
    for client in clients:
        client.sendall(b"list-tube-used\r\n")
    rig.turn()
    assert not heard(clients[-1])
    gone = clients.pop()
    gone.sendall(b"watch other\r\n")
    gone.close()
    rig.turn()
    assert [client.connection.is_closing for client in rig.clients].count(True) == 1
    rig.turn_until_quiet()


@pytest.mark.parametrize(
    ("commands", "most"),
    [
        (b"".join(b"put %d 0 9 0\r\n\r\n" % number for number in range(900)), 2),
        (b"put 0 0 9 0\r\n\r\n" * 900, 2 * LINE_RUN_MAX),
        (b"put 0 0 9 0\r\n\r\n" * 900 + b"delete 1\r\n", 2 * LINE_RUN_MAX),
        (
            b"".join(b"put 0 0 9 0 key=%d\r\n\r\n" % number for number in range(400)),
            2 * LINE_KEYED_RUN_MAX,
        ),
        (b"".join(b"put 0 0 9 0 retry=%ds,9s\r\n\r\n" % n for n in range(1, 300)), 2),
        (b"delete 7\r\n" * 1_000, 2 * LINE_RUN_MAX),
        (b"touch 7\r\n" * 1_000, 2),
    ],
)
def test_whatever_the_commands_are_the_clock_is_read_between_them(
    rig: ServerRig, commands: bytes, most: int
) -> None:
    client = rig.client()
    client.sendall(commands)
    rig.turn()
    assert 1 <= len(heard(client).splitlines()) <= most
    rig.turn_until_quiet()


def test_reserves_that_came_together_are_executed_in_runs_with_looks_between(
    rig: ServerRig,
) -> None:
    client = rig.client()
    client.sendall(b"put 0 0 9 0\r\n\r\n" * 900)
    rig.turn_until_quiet()
    heard(client)
    client.sendall(b"reserve\r\n" * 900)
    rig.turn()
    assert heard(client).count(b"RESERVED") == 2 * LINE_RUN_MAX
    rig.turn_until_quiet()


@pytest.mark.parametrize("commands", [PUTS, b"list-tube-used\r\n" * COMMANDS])
def test_what_was_sent_before_a_half_close_is_executed_and_answered(
    rig: ServerRig, commands: bytes
) -> None:
    client = rig.client()
    client.sendall(commands)
    client.shutdown(socket.SHUT_WR)
    rig.turn_until_quiet(some=True)
    assert len(heard(client).splitlines()) == COMMANDS
    assert not rig.clients
    assert rig.engine.store.counters.jobs_put == (COMMANDS if commands is PUTS else 0)


@pytest.mark.parametrize("turns", [0, 1])
def test_what_was_sent_before_a_close_is_executed_also_between_two_slices(
    unix_rig: ServerRig, turns: int
) -> None:
    client, counters = unix_rig.client(), unix_rig.engine.store.counters
    client.sendall(PUTS + PUTS)
    for _ in range(turns):
        unix_rig.turn()
        assert 0 < counters.jobs_put < COMMANDS
    client.close()
    unix_rig.turn_until_quiet(some=True)
    assert not unix_rig.clients
    assert counters.jobs_put == 2 * COMMANDS


@pytest.mark.parametrize(
    ("commands", "jobs"),
    [(PUTS, COMMANDS), (b"list-tubes\r\n" * COMMANDS + b"put 0 0 60 1\r\nx\r\n", 1)],
)
def test_replies_that_reach_nobody_end_no_commands_but_those_that_only_read(
    rig: ServerRig, commands: bytes, jobs: int
) -> None:
    client = rig.client()
    client.sendall(commands)
    rig.holds = True
    rig.turn()
    rig.turn()
    client.close()
    rig.release()  # the kernel refuses the second reply: nobody has taken the first
    rig.holds = False
    rig.turn_until_quiet()
    assert not rig.clients
    assert rig.engine.store.counters.jobs_put == jobs
    looks = rig.server.stats.counts["list-tubes"]
    assert looks == 0 if commands is PUTS else 0 < looks <= 4 * SLICE_COMMANDS_MAX


LOOKS = b"".join(
    b"%b\r\n" % look
    for look in (
        *(b"stats", b"stats-tube default", b"stats-job 1", b"list-tubes", b"list-tubes-watched"),
        *(b"peek 1", b"peek-ready", b"peek-delayed", b"peek-buried", b"list-jobs default"),
        *(b"calendar default 1s 3", b"get-policy default", b"list-tube-used", b"stats x", b"peek"),
    )
)


def test_what_only_reads_is_left_out_once_nobody_can_hear(unix_rig: ServerRig) -> None:
    client = unix_rig.client()
    client.sendall(LOOKS * 50 + b"put 0 0 60 1\r\nx\r\n" + LOOKS * 50 + b"put 0 0 60 1\r\nx\r\n")
    client.close()
    unix_rig.turn_until_quiet(some=True)
    assert not unix_rig.clients
    assert unix_rig.engine.store.counters.jobs_put == 2
    counts = unix_rig.server.stats.counts
    assert {name: count for name, count in counts.items() if count} == {"put": 2}


def test_who_has_gone_holds_nobody_longer_than_a_slice_either(unix_rig: ServerRig) -> None:
    """However much the kernel still holds, of which hardly any takes long."""
    client, reads = unix_rig.client(), count()
    client.setblocking(False)
    sent = client.send(b"stats\r\n" * 100_000)
    client.close()
    commands_a_ms = 2_000
    unix_rig.server.context.elapsed_ms = lambda: next(reads) // commands_a_ms
    turns = 0
    while unix_rig.clients:
        unix_rig.turn()
        turns += 1
    commands_a_turn = LINE_SLICE_MS * commands_a_ms + READ_BYTES // 7
    assert turns > sent // 7 // commands_a_turn > 3


def test_quit_behind_a_slice_closes_after_its_replies(rig: ServerRig) -> None:
    client = rig.client()
    client.sendall(WATCHES + b"quit\r\n" + WATCHES)
    rig.turn_until_quiet(some=True)
    assert len(heard(client).splitlines()) == COMMANDS
    assert not rig.clients


@pytest.mark.parametrize("exchange", EXCHANGES, ids=str)
def test_every_exchange_goes_the_same_with_a_yield_wherever_there_can_be_one(
    exchange: Exchange,
) -> None:
    whole = LineRig(BODY_BYTES_MAX)
    whole.client().says(exchange.request)
    rig = LineRig(BODY_BYTES_MAX)
    client = rig.client()
    rig.context.elapsed_ms = moving(LINE_SLICE_MS)
    assert client.says(exchange.request) == exchange.response
    assert rig.log == whole.log
