"""Clients that have to authenticate: tokens, and the scope of each command."""

import random
from dataclasses import replace
from typing import Final

import pytest

from delayd.access.scopes import Scope
from delayd.core.operations.tick import reach
from delayd.core.times import PlayedMs, RequestMs
from delayd.line.commands import COMMANDS, About, Command
from tests.line.corpus import BODY_BYTES_MAX, EXCHANGES, Exchange
from tests.rigs.line import ALL, EPOCH_MS, WRONG, Client, LineRig, bytewise, in_pieces, topic_state

UNAUTHORIZED: Final = b"UNAUTHORIZED\r\n"
FORBIDDEN: Final = b"FORBIDDEN\r\n"
NOT_FOUND: Final = b"NOT_FOUND\r\n"
OK: Final = b"OK\r\n"
HI: Final = b"put 0 0 60 2\r\nhi\r\n"

SAMPLES: Final = tuple(
    rb"""
    peek 1 | peek-ready | peek-delayed | peek-buried | reserve-with-timeout 0 | reserve-job 1
    reserve-batch 3 0 | reserve | delete 1 | release 1 0 0 | bury 1 0 | kick 1 | kick-job 1
    touch 1 | stats-job 1 | stats-tube mail | stats | use mail | watch mail | pause-tube mail 0
    put-in-tube mail 0 0 60 2\r\nhi | reschedule 1 5 | delete-key mail k | reschedule-key mail k 5
    peek-key mail k | kick-key mail k | change 1 bytes=2\r\nhi | nack 1 sorry
    set-policy mail 2\r\n{} | get-policy mail | redrive mail 1 | list-jobs mail
    pause-group mail a 0 | list-groups mail | stats-group mail a | find-key k | dead-reasons mail
    calendar mail 1 1 | cancel-jobs mail to=9 | kick-jobs mail | reschedule-jobs mail 5
    clear-tube mail
    schedule-put nightly 43\r\n{"topic": "mail", "every": "1h", "body": 1}
    schedule-delete nightly | schedule-pause nightly 3\r\nwhy | schedule-resume nightly
    schedule-run nightly | schedule-get nightly | schedule-preview nightly | schedules
    schedule-backfill nightly 1970-01-01T00:00:00Z 1970-01-01T00:00:01Z | advance-clock 1
    """.strip()
    .replace(rb"\r\n", b"\r\n")
    .replace(b"\n    ", b" | ")
    .split(b" | ")
)
"""A line for each command that takes a scope; where it is about a job, about the first one."""

SCOPED: Final = tuple(command for command in COMMANDS if command.scope is not None)
BY_ID: Final = tuple(command for command in COMMANDS if command.about is About.JOB)


def sample_of(command: Command) -> bytes:
    found = [line for line in SAMPLES if line.startswith(command.word)]
    if not command.word.endswith(b" ") and command.word != b"pause-tube":
        found = [line for line in found if line == command.word]
    assert len(found) == 1, command.word
    return found[0] + b"\r\n"


# --- The table -----------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_takes_a_scope_or_is_about_nothing_but_the_connection(
    command: Command,
) -> None:
    takes_none = command.about in {About.NOTHING, About.ITSELF}
    assert (command.scope is None) == takes_none
    assert not (takes_none and command.or_scopes)


def test_unauthenticated_clients_may_show_a_token_and_quit() -> None:
    open_words = [command.word for command in COMMANDS if command.about is About.NOTHING]
    assert sorted(open_words) == [b"auth ", b"quit"]


def house_with_a_job() -> LineRig:
    """In `mail`, with the key k, in the hands of nobody; and a schedule that puts into `mail`."""
    rig = LineRig(is_virtual=True, needs_token=True)
    user = rig.user(*ALL)
    user.says(b"put-in-tube mail 0 0 60 2 key=k\r\nhi\r\n")
    user.says(b'schedule-put nightly 42\r\n{"topic": "mail", "every": "1h", "body":1}\r\n')
    return rig


@pytest.mark.parametrize("command", SCOPED)
def test_without_its_scope_a_command_is_forbidden_and_nothing_happens(command: Command) -> None:
    rig = house_with_a_job()
    others = set(Scope) - {command.scope, *command.or_scopes}
    user = rig.user(*others)
    before = rig.state()
    expected = FORBIDDEN
    if command.about in {About.JOB, About.SCHEDULE} and command.scope is Scope.PEEK:
        expected = NOT_FOUND
    assert user.says(sample_of(command) + b"list-tube-used\r\n") == (
        expected + b"USING default\r\n"
    )
    after = rig.state()
    for what in ("jobs", "held", "topics", "last id"):
        assert after[what] == before[what]


@pytest.mark.parametrize("command", SCOPED)
def test_with_its_scope_alone_a_command_is_carried_out(command: Command) -> None:
    assert command.scope is not None
    for scope in (command.scope, *command.or_scopes):
        rig = house_with_a_job()
        said = rig.user(scope).says(sample_of(command))
        assert said not in {FORBIDDEN, UNAUTHORIZED}
        # Held by nobody, it is not there for those who say something of what they hold.
        if said == NOT_FOUND:
            assert command.word in {
                *(b"release ", b"bury ", b"touch ", b"nack ", b"kick-job ", b"kick-key "),
                *(b"peek-ready", b"peek-delayed", b"peek-buried"),
            }


OF_A_TUBE: Final = tuple(line for line in SAMPLES if b" mail" in line)
OF_NO_TUBE: Final = (b"stats", b"advance-clock 1")
OF_ALL_TUBES: Final = (b"find-key k", b"schedules")
OF_ITS_BODY: Final = tuple(line for line in SAMPLES if line.startswith(b"schedule-put "))
OF_WHAT_IS_USED: Final = (
    *(b"peek-ready", b"peek-delayed", b"peek-buried", b"kick 1"),
    *(b"reserve", b"reserve-with-timeout 0", b"reserve-batch 3 0"),
)
OF_A_JOB: Final = tuple(
    set(SAMPLES) - {*OF_A_TUBE, *OF_NO_TUBE, *OF_ALL_TUBES, *OF_ITS_BODY, *OF_WHAT_IS_USED}
)
"""Or a schedule."""


@pytest.mark.parametrize("line", [*SAMPLES, b"put 0 0 60 2\r\nhi"])
def test_what_counts_is_the_tube_that_a_command_is_about(line: bytes) -> None:
    elsewhere = house_with_a_job().user(*ALL, topics=("default",)).says(line + b"\r\n")
    there = house_with_a_job().user(*ALL, topics=("mail",)).says(line + b"\r\n")
    if line in OF_A_TUBE or line in OF_ITS_BODY:
        assert elsewhere == FORBIDDEN != there
    elif line in OF_A_JOB:
        assert elsewhere == NOT_FOUND
        assert there != FORBIDDEN
    elif line in OF_NO_TUBE:
        assert elsewhere == there == FORBIDDEN
    elif line in OF_ALL_TUBES:  # it finds what is in the tubes that the token may see
        assert b'"mail"' in there
        assert b"mail" not in elsewhere
    else:
        assert there == FORBIDDEN != elsewhere


# --- Unauthenticated ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "exchange", [each for each in EXCHANGES if b"quit" not in b"".join(each.sent)], ids=str
)
def test_an_unauthenticated_client_learns_and_changes_nothing(exchange: Exchange) -> None:
    rig = LineRig(BODY_BYTES_MAX, needs_token=True)
    unknown = rig.unauthenticated()
    before = rig.state()
    said = unknown.says(exchange.request + b"list-tube-used\r\n")
    assert set(said.splitlines(keepends=True)) <= {UNAUTHORIZED, b"BAD_FORMAT\r\n"}
    assert said.endswith(UNAUTHORIZED) or not unknown.connection.is_listening
    assert rig.state() == before
    assert not rig.log


def test_a_body_of_an_unauthenticated_client_is_discarded_and_never_taken_for_commands() -> None:
    rig = LineRig(needs_token=True)
    unknown = rig.unauthenticated()
    body = b"auth %b\r\n" % rig.token(*ALL)
    announced = len(body) - 2
    for line in (
        b"put 0 0 60 %d\r\n",
        b"put 0 0 60 %d key=a\r\n",
        b"put 0 0 60 %d key=a nonsense\r\n",
        b"put-in-tube t 0 0 60 %d\r\n",
        b"set-policy t %d\r\n",
        b"change 1 bytes=%d\r\n",
        b"schedule-put a %d\r\n",
        b"schedule-pause a %d nonsense\r\n",
    ):
        for pieces in (lambda data: (data,), bytewise):
            assert unknown.says(*pieces(line % announced + body)) == UNAUTHORIZED
    assert unknown.says(b"list-tube-used\r\n") == UNAUTHORIZED
    assert unknown.says(body + b"list-tube-used\r\n") == OK + b"USING default\r\n"


def test_a_body_longer_than_any_job_is_thrown_away_too() -> None:
    unknown = LineRig(needs_token=True).unauthenticated()
    body = b"auth x\r\n" * 25_000
    assert unknown.says(b"put 0 0 60 200000\r\n" + body + b"\r\nstats\r\n") == UNAUTHORIZED * 2


# --- Showing a token -----------------------------------------------------------------------------


def test_a_token_is_not_in_what_is_raised_or_shown() -> None:
    rig = LineRig(needs_token=True)
    user = rig.user(*ALL)
    assert "x" * 43 not in repr(user.peer.principal)
    for line in (b"auth %b\r\n", b"auth  %b\r\n", b"auth %b trailing\r\n"):
        assert b"dlyd" not in rig.unauthenticated().says(line % WRONG)


# --- Tokens that are good no more ----------------------------------------------------------------


def who_may_stay(rig: LineRig) -> list[Client]:
    return [client for client in rig.clients if client.connection.may_stay]


def test_a_client_may_stay_while_its_token_is_good_and_lets_it_wait_for_its_jobs() -> None:
    rig = LineRig(needs_token=True)
    user, waiting = rig.user(Scope.PUT), rig.user(Scope.RESERVE, Scope.PUT)
    unknown = rig.unauthenticated()
    waiting.says(b"reserve\r\n")
    assert who_may_stay(rig) == [user, waiting, unknown]
    rig.entries[1] = replace(rig.entries[1], scopes=frozenset({Scope.PUT}))
    rig.reload()
    assert who_may_stay(rig) == [user, unknown]
    rig.entries.clear()
    rig.reload()
    assert who_may_stay(rig) == [unknown]


def test_a_token_whose_time_is_past_is_good_no_more() -> None:
    rig = LineRig(needs_token=True)
    token = rig.token(Scope.PUT, not_after_s=EPOCH_MS // 1_000)
    user, unknown = rig.unauthenticated(), rig.unauthenticated()
    assert user.says(b"auth %b\r\n" % token) == OK
    assert who_may_stay(rig) == [user, unknown]
    rig.wall_ms += 1_001
    assert who_may_stay(rig) == [unknown]
    assert unknown.says(b"auth %b\r\n" % token) == UNAUTHORIZED
    assert unknown.in_full.startswith(b"UNAUTHORIZED the token expired at 20")
    assert unknown.says(b"auth %bA\r\n" % token[:-1]) == unknown.in_full == UNAUTHORIZED


# --- Tubes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("exchange", EXCHANGES, ids=str)
def test_who_may_do_everything_is_answered_as_everybody(exchange: Exchange) -> None:
    asking, open_to_all = LineRig(BODY_BYTES_MAX, needs_token=True), LineRig(BODY_BYTES_MAX)
    user = asking.user(*ALL)
    assert user.says(exchange.request) == exchange.response
    open_to_all.client().says(exchange.request)
    theirs, ours = open_to_all.state(), asking.state()
    assert (ours["jobs"], ours["topics"], ours["counts"]) == (
        theirs["jobs"],
        theirs["topics"],
        theirs["counts"],
    )


# --- Jobs that must not show ---------------------------------------------------------------------

TAILS: Final = (
    *(b"%d", b" %d", b"%d ", b"%d x", b"0%d", b"%d 0 0", b"%d 0", b"%d 0 0 0", b"%d -1", b"%d 5"),
    *(b"%d delay=5", b"%d bytes=2\r\nhi", b"%d bytes=2\r\nhixxx", b"%d bytes=99999\r\n"),
    *(b"%d pri=1 x=2 bytes=2\r\nhi", b"%d delay=x", b"%d 1.5", b"%d\t", b"%dx", b"x%d"),
)


def whats_said_of(job_id: int, command: Command, *, is_there: bool) -> tuple[bytes, object]:
    """The replies to everything that can be said of a job with a command, and what was counted."""
    rig = LineRig(needs_token=True)
    admin = rig.user(*ALL)
    admin.says(b"put-in-tube secret 0 0 60 2\r\nhi\r\n")
    if not is_there:
        admin.says(b"delete 1\r\n")
    user = rig.user(*ALL, topics=("mine", "default"))
    before = dict(rig.stats.counts)
    said = b"".join(
        user.says(command.word + tail % job_id + b"\r\nlist-tube-used\r\n") for tail in TAILS
    )
    counted = {name: count - before[name] for name, count in rig.stats.counts.items()}
    secret = rig.engine.store.topics.by_name.get("secret")
    assert (secret is not None) == is_there
    if secret is not None:
        assert topic_state(secret)[1] == [1]
    return said, counted


@pytest.mark.parametrize("command", BY_ID)
def test_a_job_that_the_client_may_not_see_does_not_show(command: Command) -> None:
    assert whats_said_of(1, command, is_there=True) == whats_said_of(1, command, is_there=False)
    assert NOT_FOUND in whats_said_of(1, command, is_there=True)[0]


@pytest.mark.parametrize("command", BY_ID)
def test_a_job_that_the_client_may_see_and_not_touch_is_forbidden(command: Command) -> None:
    rig = LineRig(needs_token=True)
    rig.user(*ALL).says(HI)
    said = rig.user(Scope.PEEK).says(sample_of(command))
    assert (said == FORBIDDEN) == (command.scope is not Scope.PEEK)


def test_deletes_in_a_run_are_looked_at_one_by_one_where_they_differ(rng: random.Random) -> None:
    rig = LineRig(needs_token=True)
    admin = rig.user(*ALL)
    for name in (b"mine", b"secret", b"mine", b"seen"):
        admin.says(b"put-in-tube %b 0 0 60 2\r\nhi\r\n" % name)
    user = rig.user(Scope.DELETE, topics=("mine",))
    run = b"delete 1\r\ndelete 2\r\ndelete 3\r\ndelete 4\r\ndelete 9\r\ndelete 1\r\n"
    deleted = b"DELETED\r\n"
    assert user.says(*in_pieces(run, rng)) == deleted + NOT_FOUND + deleted + NOT_FOUND * 3
    assert [job for job in (1, 2, 3, 4) if rig.engine.store.jobs.get(job)] == [2, 4]


@pytest.mark.thorough
def test_no_line_whatever_reaches_a_tube_that_is_not_the_clients(rng: random.Random) -> None:
    words = b"secret mine default 1 2 0 k 60 state=ready dry=1".split()
    gaps = [b" ", b" ", b" ", b"  ", b"", b"\t", b"\r", b"\n"]
    heads = [*(command.word for command in COMMANDS if command.word != b"quit"), b"put "]
    rig = LineRig(is_virtual=True, needs_token=True)
    admin = rig.user(*ALL)
    admin.says(b"put-in-tube secret 0 0 60 2 key=k\r\nhi\r\nput-in-tube secret 0 90 60 2\r\nhi\r\n")
    secret = rig.engine.store.topics.by_name["secret"]
    before = topic_state(secret)
    everything_else = set(ALL) - {Scope.ADMIN}
    user = rig.user(*everything_else, topics=("mine",))
    for _ in range(5_000):
        tail = b"".join(rng.choice(words) + rng.choice(gaps) for _ in range(rng.randrange(1, 6)))
        user.says(rng.choice(heads) + rng.choice(gaps) + tail + b"\r\n")
        if user.connection.is_waiting or user.connection.is_closing:
            user.closes()
            user = rig.user(*everything_else, topics=("mine",))
    assert topic_state(secret) == before
    assert set(rig.engine.store.topics.by_name) <= {"default", "secret", "mine"}


def test_a_ttr_is_exact_that_begins_with_a_look_at_another_clients_job() -> None:
    rig = LineRig(is_virtual=True, needs_token=True)
    holder, waiter, watcher = (rig.user(*ALL) for _ in range(3))
    assert holder.says(b"put 0 0 60 0\r\n\r\n", b"reserve\r\n") == (
        b"INSERTED 1\r\nRESERVED 1 0\r\n\r\n"
    )
    assert waiter.says(b"reserve\r\n") == b""
    rig.now_ms = RequestMs(rig.now_ms + 60000)
    reach(rig.engine, PlayedMs(rig.now_ms))  # the slice in which the ttr runs out has not come
    assert watcher.says(b"stats-job 1\r\n").startswith(b"OK ")
    assert waiter.replies() == b"RESERVED 1 0\r\n\r\n"
    assert rig.engine.store.leases.sessions[1].deadlines == {1: rig.now_ms + 60_000}


def test_a_reserve_by_who_watches_much_asks_for_its_rights_once() -> None:
    rig = LineRig(needs_token=True)
    client = rig.user(*ALL, topics=("mail.*",))
    client.says(*(b"watch mail.%d\r\n" % number for number in range(50)), b"ignore default\r\n")
    assert client.says(b"reserve-with-timeout 0\r\n") == b"TIMED_OUT\r\n"
    assert client.connection.reserves_as is client.peer.principal
    assert client.says(b"watch mail.new\r\n") == b"WATCHING 51\r\n"
    assert client.connection.reserves_as is client.peer.principal, "the watch has asked"
    rig.reload()
    assert client.says(b"auth %b\r\n" % rig.token(*ALL, topics=("mail.*", "sms"))) == OK
    assert client.says(b"watch sms\r\n") == b"WATCHING 52\r\n"
    assert client.connection.reserves_as is None, "who was allowed the others is another"
