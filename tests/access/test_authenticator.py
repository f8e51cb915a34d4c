import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from delayd.access.authenticator import Authenticator
from delayd.access.principal import EVERYBODY, Principal
from delayd.access.tokens import Tokens
from delayd.limits import AUTH_DELAY_MS, AUTH_FAILURES_MAX
from tests.access.samples import made, written

TEXT, ENTRY = made(1)
CERTIFICATE = {"subject": ((("commonName", "worker 7"),),)}
PEER = "192.0.2.7"
OURS, OTHERS = frozenset({os.geteuid()}), frozenset({os.geteuid() + 1})
OUR_GROUP = frozenset({os.getegid()})


@pytest.fixture
def unix() -> Iterator[socket.socket]:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with one, other:
        yield one


@pytest.fixture
def tcp() -> Iterator[socket.socket]:
    with socket.socket() as one:
        yield one


def authenticator(
    *, tokens: bool = False, uids: frozenset[int] | None = None, gids: frozenset[int] | None = None
) -> Authenticator:
    known = Tokens([ENTRY]) if tokens else None
    return Authenticator(known, unix_uids=uids, unix_gids=gids, wall_ms=lambda: 0)


# --- Who is let in how: the table of the module --------------------------------------------------


@pytest.mark.parametrize("tokens", [True, False])
@pytest.mark.parametrize("lists", ["none", "user", "group", "others", "empty"])
@pytest.mark.parametrize("where", ["tcp", "unix"])
def test_a_connection_is_greeted_as_the_table_says(
    *, tokens: bool, lists: str, where: str, unix: socket.socket, tcp: socket.socket
) -> None:
    keeper = authenticator(
        tokens=tokens,
        uids={"user": OURS, "others": OTHERS, "empty": frozenset[int]()}.get(lists),
        gids=OUR_GROUP if lists == "group" else None,
    )
    identified = keeper.identify(unix if where == "unix" else tcp)
    if where == "unix" and lists in {"user", "group"}:
        assert identified == Principal(f"uid {os.geteuid()}")
    elif where == "unix" and lists in {"others", "empty"}:
        assert identified is None
    else:
        assert identified == (None if tokens else EVERYBODY)
    assert keeper.needs_token is (tokens or lists != "none")


@pytest.mark.parametrize("tokens", [True, False])
def test_who_has_a_certificate_needs_a_token_only_where_there_are_some(
    *, tokens: bool, tcp: socket.socket
) -> None:
    identified = authenticator(tokens=tokens).identify(tcp, CERTIFICATE)
    assert identified == (None if tokens else Principal("certificate worker 7"))


def test_a_connection_that_is_gone_is_greeted_like_one_from_outside() -> None:
    assert authenticator(tokens=True, uids=OURS).identify(None) is None
    assert authenticator().identify(None) is EVERYBODY


def test_a_token_lets_in_where_there_are_some_and_nobody_is_asked_where_nobody_has_to_say() -> None:
    assert authenticator(uids=OTHERS).login(TEXT, "", 0) is None
    principal = authenticator(tokens=True, uids=OTHERS).login(TEXT, "", 0)
    assert principal is not None
    assert principal.token_id == ENTRY.id
    assert authenticator().login("whatever", PEER, 0) is EVERYBODY
    assert authenticator().renewed(principal) is None, "there are no tokens any more"
    for other in (EVERYBODY, Principal("uid 7")):
        for keeper in (authenticator(), authenticator(tokens=True)):
            assert keeper.renewed(other) is other


# --- Tokens and failures -------------------------------------------------------------------------


def test_wrong_tokens_alone_count_for_their_address_and_delay_it() -> None:
    keeper = authenticator(tokens=True)
    told: list[str] = []
    keeper.on_guessing = told.append
    for _ in range(AUTH_FAILURES_MAX):
        assert keeper.login(TEXT, PEER, 0) is not None
    for _ in range(AUTH_FAILURES_MAX):
        assert keeper.delay_ms(PEER, 0) == 0
        assert not told
        assert keeper.login("wrong", PEER, 0) is None
    assert keeper.login("wrong", PEER, 0) is None
    assert told == [PEER]
    assert keeper.delay_ms(PEER, 0) == AUTH_DELAY_MS
    assert keeper.delay_ms("192.0.2.8", 0) == 0
    assert keeper.login(TEXT, PEER, 0) is not None  # it would be let in all the same


def test_a_token_ends_by_the_wall_clock() -> None:
    text, entry = made(2, not_after_s=100)
    now_ms = [100_000]
    keeper = Authenticator(Tokens([entry]), wall_ms=lambda: now_ms[0])
    principal = keeper.login(text, PEER, 0)
    assert principal is not None
    assert keeper.renewed(principal) is principal
    now_ms[0] += 1
    assert keeper.login(text, PEER, 0) is None
    assert keeper.renewed(principal) is None


# --- The file, read again ------------------------------------------------------------------------


def test_without_a_file_there_is_nothing_to_reload_or_to_write() -> None:
    for keeper in (authenticator(), authenticator(tokens=True)):
        assert keeper.reload() == ()
        assert keeper.write_usage() == ""


# --- The days of use -----------------------------------------------------------------------------


def test_the_day_of_a_use_outlives_the_daemon(tmp_path: Path) -> None:
    path = written(tmp_path / "tokens.json", ENTRY, made(2)[1])
    keeper = Authenticator(Tokens.load(path), wall_ms=lambda: 0)
    keeper.login(TEXT, PEER, 0)
    keeper.login("wrong", PEER, 0)
    assert keeper.write_usage() == ""
    assert Authenticator(Tokens.load(path)).usage.days == {ENTRY.id: "1970-01-01"}
