"""Who comes in as whom, and how many of one address."""

import os
from pathlib import Path

import pytest

from delayd import limits
from delayd.access.authenticator import Authenticator
from delayd.access.connection_limits import ConnectionLimits
from delayd.access.rejections import reason_of
from delayd.access.scopes import Scope
from delayd.access.tokens import TOKEN_BYTES, Tokens, issue
from delayd.core.stats.refusals import Refusals
from delayd.net.tls import server_context
from tests.access.handshakes import Authority
from tests.rigs.line_sockets import ServerRig, heard, is_cut_off

PUT = b"put 0 0 60 2\r\nhi\r\n"
INSERTED = b"INSERTED 1\r\n"
UNAUTHORIZED = b"UNAUTHORIZED\r\n"
TOKEN, ENTRY = issue(bytes(TOKEN_BYTES), "a", {Scope.PUT}, ["*"], created_s=0)
SOMEBODY_ELSE = os.getuid() + 1


def asking() -> ConnectionLimits:
    return ConnectionLimits(Authenticator(Tokens([ENTRY])))


def test_a_server_refuses_too_many_unauthenticated_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("delayd.access.connection_limits.origin_of", lambda address: address[0])
    refusals = Refusals()
    with ServerRig(connections_max=500, admission=asking(), refusals=refusals) as rig:
        clients = [rig.client() for _ in range(limits.LINE_UNAUTHENTICATED_PER_ADDRESS_MAX)]
        assert is_cut_off(rig.client())
        assert refusals.by_reason == {"TOO_MANY_UNAUTHENTICATED": 1}
        for client in clients[:2]:
            rig.says(client, b"auth %b\r\n" % TOKEN.encode())
            assert heard(client) == b"OK\r\n"
        rig.says(clients[0], b"quit\r\n")
        late = rig.client()
        rig.says(late, PUT)
        assert heard(late) == UNAUTHORIZED


def test_new_connections_are_closed_while_another_daemon_may_own_the_log() -> None:
    reasons = Refusals()
    with ServerRig(refusals=reasons) as rig:
        before = rig.client()
        rig.durable.is_cut_off = True
        assert is_cut_off(rig.client())
        rig.durable.is_cut_off = False
        for client in (before, rig.client()):
            rig.says(client, PUT)
            assert heard(client).startswith(b"INSERTED")
    assert reasons.by_reason == {"DATABASE_AWAY": 1}


# --- By unix sockets -----------------------------------------------------------------------------


def test_who_needs_no_token_is_served(tmp_path: Path) -> None:
    listed = Authenticator(Tokens([ENTRY]), unix_uids={os.getuid()})
    with ServerRig(path=tmp_path / "line.sock", admission=ConnectionLimits(listed)) as rig:
        client = rig.client()
        rig.says(client, PUT)
        assert heard(client) == INSERTED


def test_who_is_on_no_list_is_turned_away_where_there_are_no_tokens(tmp_path: Path) -> None:
    reasons = Refusals()
    admission = ConnectionLimits(Authenticator(unix_uids={SOMEBODY_ELSE}, unix_gids=()))
    with ServerRig(path=tmp_path / "line.sock", admission=admission, refusals=reasons) as rig:
        assert is_cut_off(rig.client())
        assert not rig.clients
    assert reasons.by_reason == {"PEER_NOT_ALLOWED": 1}


def test_who_is_on_no_list_needs_a_token(tmp_path: Path) -> None:
    admission = ConnectionLimits(Authenticator(Tokens([ENTRY]), unix_uids={SOMEBODY_ELSE}))
    with ServerRig(path=tmp_path / "line.sock", admission=admission) as rig:
        client = rig.client()
        rig.says(client, PUT)
        rig.says(client, b"auth %b\r\n" % TOKEN.encode() + PUT + b"stats\r\n")
        told = b"FORBIDDEN the token lacks the scope stats\r\n"
        assert heard(client) == UNAUTHORIZED + b"OK\r\n" + INSERTED + told


# --- Tokens in a server --------------------------------------------------------------------------


def test_a_wrong_token_that_is_answered_late_holds_nobody_up() -> None:
    with ServerRig(admission=asking()) as rig:
        failing, other = rig.client(), rig.client()
        for _ in range(10):
            rig.says(failing, b"auth x\r\n")
        assert heard(failing) == UNAUTHORIZED * 9
        rig.says(failing, PUT)
        rig.says(other, b"auth %b\r\n" % TOKEN.encode() + PUT)
        assert heard(other) == b"OK\r\n" + INSERTED
        rig.elapses(0.999)
        assert heard(failing) == b""
        rig.elapses(0.001)
        assert heard(failing) == UNAUTHORIZED * 2
        assert rig.poller.timeouts.alarm_ms is None


def test_who_leaves_before_its_late_answer_is_forgotten() -> None:
    with ServerRig(admission=asking()) as rig:
        failing = rig.client()
        rig.says(failing, b"auth x\r\n" * 10)
        failing.close()
        rig.turn_until_quiet(some=True)
        rig.elapses(2)
        assert not rig.clients
        assert not rig.server.admission._unauthenticated


def test_nothing_is_carried_out_for_who_was_closed_before_its_late_answer() -> None:
    with ServerRig(admission=asking()) as rig:
        client = rig.client()
        rig.says(client, b"auth %b\r\n" % TOKEN.encode() + b"auth x\r\n" * 10 + PUT)
        rig.server.close_clients()
        rig.elapses(2)
        assert not rig.engine.store.jobs


def test_a_client_whose_token_is_revoked_is_closed_and_its_jobs_return() -> None:
    everything, entry = issue(b"\1" * TOKEN_BYTES, "b", set(Scope), ["*"], created_s=0)
    authenticator = Authenticator(Tokens([ENTRY, entry]))
    with ServerRig(admission=ConnectionLimits(authenticator)) as rig:
        worker, producer, unknown = (rig.client() for _ in range(3))
        rig.says(worker, b"auth %b\r\n" % everything.encode() + PUT + b"reserve\r\n")
        rig.says(producer, b"auth %b\r\n" % TOKEN.encode())
        assert rig.server.close_unauthorized() == 0
        authenticator.tokens = Tokens([ENTRY])
        assert rig.server.close_unauthorized() == 1
        rig.turn_until_quiet()
        assert is_cut_off(worker)
        assert len(rig.engine.store.topics.by_name["default"].queues.ready) == 1
        rig.says(producer, PUT)
        rig.says(unknown, PUT)
        assert heard(producer) == b"OK\r\nINSERTED 2\r\n"
        assert heard(unknown) == UNAUTHORIZED


# --- Who is turned away --------------------------------------------------------------------------


def test_the_authenticator_is_told_of_a_handshake_that_fails_and_of_one_that_takes_too_long(
    tmp_path: Path,
) -> None:
    files = Authority(tmp_path).files()
    authenticator, told = Authenticator(), list[tuple[str, str]]()
    authenticator.on_failed_handshake = lambda where, error: told.append((where, reason_of(error)))
    with ServerRig(admission=ConnectionLimits(authenticator), tls=server_context(files)) as rig:
        rig.says(rig.client(), b"GET / HTTP/1.1\r\n\r\n")
        rig.client()
        rig.turn_until_quiet()
        rig.elapses(limits.LINE_INCOMPLETE_S_MAX + 1)
    assert told == [("127.0.0.1", "http request"), ("127.0.0.1", "the handshake took too long")]
