import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from delayd.access.authenticator import Authenticator
from delayd.access.principal import EVERYBODY, Principal
from delayd.access.scopes import Scope
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


def test_who_is_on_no_list_is_not_let_in_by_any_token_where_there_are_none() -> None:
    assert authenticator(uids=OTHERS).login(TEXT, "", 0) is None


def test_who_is_on_no_list_may_show_a_token() -> None:
    principal = authenticator(tokens=True, uids=OTHERS).login(TEXT, "", 0)
    assert principal is not None
    assert principal.token_id == ENTRY.id


def test_everybody_is_admitted_while_nobody_has_to_say_who_they_are() -> None:
    assert authenticator().login("whatever", PEER, 0) is EVERYBODY


# --- Tokens and failures -------------------------------------------------------------------------


def test_a_right_token_is_no_failure_and_is_never_late() -> None:
    keeper = authenticator(tokens=True)
    for _ in range(AUTH_FAILURES_MAX):
        assert keeper.login(TEXT, PEER, 0) is not None
    assert keeper.delay_ms(PEER, 0) == 0


def test_wrong_tokens_count_for_their_address_and_delay_it() -> None:
    keeper = authenticator(tokens=True)
    for _ in range(AUTH_FAILURES_MAX):
        assert keeper.delay_ms(PEER, 0) == 0
        assert keeper.login("wrong", PEER, 0) is None
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


def test_who_came_without_a_token_stays() -> None:
    for principal in (EVERYBODY, Principal("uid 7")):
        for keeper in (authenticator(), authenticator(tokens=True)):
            assert keeper.renewed(principal) is principal


def test_who_came_with_a_token_does_not_stay_where_there_are_none() -> None:
    principal = authenticator(tokens=True).login(TEXT, PEER, 0)
    assert principal is not None
    assert authenticator().renewed(principal) is None


# --- The file, read again ------------------------------------------------------------------------


def test_a_reload_admits_new_tokens_and_forgets_revoked_ones(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    keeper = Authenticator(Tokens.load(written(path, ENTRY)))
    old = keeper.login(TEXT, PEER, 0)
    assert old is not None
    new_text, new_entry = made(2)
    written(path, new_entry)
    assert keeper.login(new_text, PEER, 0) is None
    assert keeper.reload() == ()
    assert keeper.login(new_text, PEER, 0) is not None
    assert keeper.login(TEXT, PEER, 0) is None
    assert keeper.renewed(old) is None


def test_a_bad_file_keeps_the_old_tokens_and_says_why(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    keeper = Authenticator(Tokens.load(written(path, ENTRY)))
    path.write_text("{")
    (only,) = keeper.reload()
    assert only.startswith(f"{path}: is not JSON")
    assert keeper.login(TEXT, PEER, 0) is not None
    path.unlink()
    assert keeper.reload() == (f"{path}: cannot be read: No such file or directory",)
    assert keeper.login(TEXT, PEER, 0) is not None


def test_a_reload_can_take_scopes_from_who_is_in(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    keeper = Authenticator(Tokens.load(written(path, ENTRY)))
    principal = keeper.login(TEXT, PEER, 0)
    assert principal is not None
    written(path, made(1, (Scope.STATS,))[1])
    keeper.reload()
    renewed = keeper.renewed(principal)
    assert renewed is not None
    assert not renewed.may(Scope.PUT, "x")


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


def test_days_that_cannot_be_written_are_told_of_once(tmp_path: Path) -> None:
    path = written(tmp_path / "tokens.json", ENTRY)
    (tmp_path / "tokens.json.used").mkdir()
    days = iter(range(100))
    keeper = Authenticator(Tokens.load(path), wall_ms=lambda: next(days) * 86_400_000)
    told = []
    for _ in range(3):
        assert keeper.login(TEXT, PEER, 0) is not None
        told.append(keeper.write_usage())
    assert told == ["Is a directory", "", ""]


def test_an_address_that_guesses_is_told_of_by_its_name() -> None:
    authenticator = Authenticator(Tokens([]))
    told: list[str] = []
    authenticator.on_guessing = told.append
    for number in range(AUTH_FAILURES_MAX + 5):
        assert authenticator.login("dlyd_wrong", "192.0.2.7", number) is None
    assert told == ["192.0.2.7"]
