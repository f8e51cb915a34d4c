"""Which connections are admitted, and how many of one address."""

import socket
from typing import Any, cast

import pytest

from delayd.access.authenticator import Authenticator
from delayd.access.connection_limits import ConnectionLimits, Peer, Rejection
from delayd.access.principal import EVERYBODY
from delayd.access.scopes import Scope
from delayd.access.tokens import TOKEN_BYTES, Tokens, issue
from delayd.limits import (
    AUTH_DELAY_MS,
    AUTH_FAILURES_MAX,
    AUTH_FAILURES_WINDOW_MS,
    LINE_CONNECTIONS_PER_ADDRESS_MAX,
    LINE_UNAUTHENTICATED_PER_ADDRESS_MAX,
)

TOKEN, ENTRY = issue(bytes(TOKEN_BYTES), "a", {Scope.PUT}, ["*"], created_s=0)


class Accepted:
    """As much of a socket as the authenticator looks at."""

    def __init__(self, family: socket.AddressFamily) -> None:
        self.family = family


def admitted(admission: ConnectionLimits, host: str) -> Peer | Rejection:
    address: tuple[Any, ...] = (host, 4_711, 0, 0) if ":" in host else (host, 4_711)
    return admission.admit(address, 10)


def comes(admission: ConnectionLimits, host: str) -> Peer:
    peer = admitted(admission, host)
    assert isinstance(peer, Peer)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    assert admission.identify(peer, cast("socket.socket", Accepted(family)))
    return peer


def asking() -> ConnectionLimits:
    return ConnectionLimits(Authenticator(Tokens([ENTRY])))


# --- By addresses --------------------------------------------------------------------------------


def test_so_many_of_one_address_come_in_and_others_still_do() -> None:
    admission = ConnectionLimits()
    callers = [comes(admission, "192.0.2.7") for _ in range(LINE_CONNECTIONS_PER_ADDRESS_MAX)]
    assert admitted(admission, "192.0.2.7") is Rejection.CONNECTIONS_PER_IP
    comes(admission, "192.0.2.8")
    admission.leave(callers[0])
    comes(admission, "192.0.2.7")
    assert admitted(admission, "192.0.2.7") is Rejection.CONNECTIONS_PER_IP


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"])
def test_this_machines_own_connections_are_not_counted(host: str) -> None:
    admission = ConnectionLimits()
    for _ in range(LINE_CONNECTIONS_PER_ADDRESS_MAX + 1):
        assert comes(admission, host).principal is EVERYBODY
    admission = asking()
    for _ in range(LINE_UNAUTHENTICATED_PER_ADDRESS_MAX + 1):
        assert comes(admission, host).principal is None


@pytest.mark.parametrize(
    ("first", "second"),
    [("2001:db8::1", "2001:db8:0:0:ffff::9"), ("192.0.2.7", "::ffff:192.0.2.7")],
)
def test_addresses_of_one_owner_are_one(first: str, second: str) -> None:
    admission = ConnectionLimits()
    for _ in range(LINE_CONNECTIONS_PER_ADDRESS_MAX):
        comes(admission, first)
    assert admitted(admission, second) is Rejection.CONNECTIONS_PER_IP
    comes(admission, "2001:db8:0:1::1")


@pytest.mark.parametrize("host", ["192.0.2.7", "2001:db8::1"])
def test_unauthenticated_connections_of_one_address_are_fewer(host: str) -> None:
    admission = asking()
    callers = [comes(admission, host) for _ in range(LINE_UNAUTHENTICATED_PER_ADDRESS_MAX)]
    assert admitted(admission, host) is Rejection.UNAUTHENTICATED_PER_IP
    comes(admission, "192.0.2.99")
    assert admission.login(callers[0], TOKEN, 0) is None
    callers.append(comes(admission, host))
    assert admitted(admission, host) is Rejection.UNAUTHENTICATED_PER_IP
    assert admission.login(callers[0], TOKEN, 0) is None
    assert admitted(admission, host) is Rejection.UNAUTHENTICATED_PER_IP
    admission.leave(callers[0])
    assert admitted(admission, host) is Rejection.UNAUTHENTICATED_PER_IP
    admission.leave(callers[1])
    callers.append(comes(admission, host))
    for caller in callers[2:]:
        admission.leave(caller)
    assert [*admission._by_origin] == [*admission._unauthenticated] == ["192.0.2.99"]


def test_an_answer_to_many_wrong_tokens_waits_until_they_are_long_ago() -> None:
    admission = asking()
    caller = comes(admission, "192.0.2.7")
    waits_ms = [admission.login(caller, "wrong", 0) for _ in range(AUTH_FAILURES_MAX)]
    assert waits_ms == [0] * (AUTH_FAILURES_MAX - 1) + [AUTH_DELAY_MS]
    assert admission.login(caller, "wrong", AUTH_FAILURES_WINDOW_MS) == 0
    assert caller.principal is None


def test_a_check_finds_each_count_that_is_not_that_of_the_peers() -> None:
    admission, of_here = asking(), Peer("unix", None)
    unknown, known = comes(admission, "192.0.2.7"), comes(admission, "192.0.2.8")
    admission.authenticated(known)
    admission.check([unknown, known])
    for wrong in ([unknown, known, of_here], [unknown, of_here]):
        with pytest.raises(AssertionError):
            admission.check(wrong)
    unknown.is_unauthenticated = False
    with pytest.raises(AssertionError):
        admission.check([unknown, known])
