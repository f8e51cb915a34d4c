"""The daemon's own tube: looked at by everybody, and for who would change it, it is not there."""

from collections.abc import Callable
from typing import Final

import pytest

from delayd.access.scopes import Scope
from delayd.core.names import IDEMPOTENCY_TOPIC
from delayd.core.operations.checks import as_daemon
from delayd.core.operations.put import put_keyed
from delayd.core.operations.sessions import watch
from delayd.core.operations.waiting import wait
from delayd.core.session import Handed, Session, WaitEnd
from delayd.limits import IDEMPOTENCY_MS
from delayd.line.commands import COMMANDS
from tests.core.check import check
from tests.rigs.line import Client, LineRig

NOT_FOUND: Final = b"NOT_FOUND\r\n"
MEMO: Final = 1
LOOKING: Final = {None, Scope.PEEK, Scope.STATS}

CHANGES: Final[dict[bytes, bytes]] = {
    b"put": b"put 0 0 9 1\r\nx\r\n",
    b"put keyed": b"put 0 0 9 1 key=a on=replace\r\nx\r\n",
    b"put new": b"put 0 0 9 1 key=b\r\nx\r\n",
    b"put-in-tube": b"put-in-tube $idempotency 0 0 9 1\r\nx\r\n",
    b"watch": b"watch $idempotency\r\n",
    b"reserve-job": b"reserve-job 1\r\n",
    b"delete": b"delete 1\r\n",
    b"delete-key": b"delete-key $idempotency a\r\n",
    b"release": b"release 1 0 0\r\n",
    b"nack": b"nack 1\r\n",
    b"bury": b"bury 1 0\r\n",
    b"touch": b"touch 1\r\n",
    b"kick": b"kick 9\r\n",
    b"kick-job": b"kick-job 1\r\n",
    b"kick-key": b"kick-key $idempotency a\r\n",
    b"kick-jobs": b"kick-jobs $idempotency\r\n",
    b"redrive": b"redrive $idempotency 9\r\n",
    b"reschedule": b"reschedule 1 0\r\n",
    b"reschedule-key": b"reschedule-key $idempotency a 0\r\n",
    b"reschedule-jobs": b"reschedule-jobs $idempotency 0\r\n",
    b"change": b"change 1 bytes=1\r\nx\r\n",
    b"cancel-jobs": b"cancel-jobs $idempotency\r\n",
    b"clear-tube": b"clear-tube $idempotency\r\n",
    b"pause-tube": b"pause-tube $idempotency 9\r\n",
    b"set-policy": b'set-policy $idempotency 15\r\n{"delay_max":1}\r\n',
    b"set-policy none": b"set-policy $idempotency 0\r\n\r\n",
    b"set-policy of another": b'set-policy mail 28\r\n{"exhausted":"$idempotency"}\r\n',
}
NOT_ABOUT_IT: Final = {
    *(b"reserve", b"reserve-with-timeout", b"reserve-batch"),
    *(b"use", b"advance-clock"),
}
"""Nobody watches it; who uses it may peek there."""


class MemoConsumer:
    """The consumer that forgets memos."""

    def __init__(self, rig: LineRig) -> None:
        engine = rig.engine
        self.session = Session(self)
        self.got: list[Handed | WaitEnd] = []
        with as_daemon(engine):
            put_keyed(
                engine,
                engine.store.topic(IDEMPOTENCY_TOPIC),
                b"a",
                priority=0,
                delay_ms=IDEMPOTENCY_MS,
                ttr_ms=60_000,
                body=b"memo",
                now_ms=rig.now_ms,
            )
            watch(engine, self.session, IDEMPOTENCY_TOPIC)
        wait(engine, self.session, rig.now_ms, None)

    def deliver(self, outcome: Handed | WaitEnd, now_ms: int) -> None:
        del now_ms
        self.got.append(outcome)


def everybody() -> tuple[LineRig, Client]:
    rig = LineRig()
    return rig, rig.client()


def with_all_tokens() -> tuple[LineRig, Client]:
    rig = LineRig(needs_token=True)
    return rig, rig.user(*Scope)


def stats(client: Client, command: bytes) -> dict[str, str]:
    lines = client.says(command).decode().split("\r\n")[1].splitlines()[1:]
    return dict(line.split(": ", 1) for line in lines)


def test_every_command_that_changes_something_is_tried() -> None:
    changing = {command.word.strip() for command in COMMANDS if command.scope not in LOOKING}
    tried = {sent.partition(b" ")[0] for sent in CHANGES.values()}
    assert tried == (changing - NOT_ABOUT_IT) | {b"put"}


@pytest.mark.parametrize("who", [everybody, with_all_tokens])
@pytest.mark.parametrize("name", CHANGES)
def test_for_who_would_change_it_it_is_not_there(
    name: bytes, who: Callable[[], tuple[LineRig, Client]]
) -> None:
    rig, client = who()
    daemon = MemoConsumer(rig)
    assert client.says(b"use $idempotency\r\n") == b"USING $idempotency\r\n"
    before = rig.engine.store.jobs.get(MEMO)
    assert client.says(CHANGES[name] + b"list-tube-used\r\n") == (
        NOT_FOUND + b"USING $idempotency\r\n"
    )
    assert rig.refusals.by_reason == {"NOT_FOUND": 1}
    assert rig.engine.store.jobs.get(MEMO) == before
    check(rig.engine)
    rig.pass_ms(IDEMPOTENCY_MS)
    assert daemon.got == [(MEMO, b"memo")]


def test_of_a_run_of_deletes_and_puts_none_is_carried_out() -> None:
    rig, client = everybody()
    MemoConsumer(rig)
    assert client.says(b"use $idempotency\r\n" + CHANGES[b"put"] * 3).endswith(NOT_FOUND * 3)
    assert client.says(CHANGES[b"put new"] * 2) == NOT_FOUND * 2
    assert client.says(CHANGES[b"delete"] * 2) == NOT_FOUND * 2


def test_the_daemon_itself_is_no_worker_that_waits() -> None:
    rig, client = everybody()
    MemoConsumer(rig)
    said = stats(client, b"stats\r\n")
    assert (said["current-waiting"], said["current-workers"]) == ("0", "0")
    said = stats(client, b"stats-tube $idempotency\r\n")
    assert (said["current-watching"], said["current-waiting"]) == ("0", "0")
    assert said["current-jobs-delayed"] == "1"
