"""The daemon's own topic: anybody may look at it, nobody but the daemon changes what is in it."""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

import delayd
from delayd.core.errors import CapReached, TopicIsInternal
from delayd.core.job_parts import Retry
from delayd.core.names import IDEMPOTENCY_TOPIC, Predecessor
from delayd.core.operations.attempts import nack
from delayd.core.operations.checks import as_daemon
from delayd.core.operations.put import Conflict, put_alike, put_keyed_run
from delayd.core.operations.sessions import watch
from delayd.core.operations.succeed import predecessor_id
from delayd.core.operations.tick import caught_up
from delayd.core.operations.topics import Clear, SetPolicy, configure, policy_of, reclaim
from delayd.core.policy import Patterns, Policy
from delayd.core.scans.bulk import Action, Bulk
from delayd.core.scans.kick import Kick
from delayd.core.scans.scan import Wanted
from delayd.core.session import Session
from delayd.core.times import RequestMs
from delayd.core.topic import Source, Topic
from delayd.limits import IDEMPOTENCY_MS
from tests.core import views
from tests.core.canonical import canonical
from tests.core.check import check
from tests.rigs.engine import EngineRig

MEMO: Final = 1
KEY: Final = b"a"
DAY_MS: Final = IDEMPOTENCY_MS
NEVER_PLAIN: Final = Policy(delay_ms_max=1)


class MemoRig(EngineRig):
    """A rig with a memo, and a job of a client."""

    def __init__(self) -> None:
        super().__init__()
        with as_daemon(self.engine):
            self.put_keyed(KEY, topic=IDEMPOTENCY_TOPIC, delay_ms=DAY_MS, body=b"memo")
        self.put("mail", delay_ms=5)
        self.me = self.client("mail")

    @property
    def own(self) -> Topic:
        return self.engine.store.topics.by_name[IDEMPOTENCY_TOPIC]

    def kept(self) -> list[object]:
        """All that a restart keeps, but for the ids that were taken."""
        return [row for row in canonical(self.engine) if row[0] != "last id"]


def put_keyed(on: Conflict, key: bytes = KEY) -> Callable[[MemoRig], object]:
    return lambda rig: rig.put_keyed(key, on, topic=IDEMPOTENCY_TOPIC)


def bulk(action: Action, *, dry_run: bool = False) -> Callable[[MemoRig], object]:
    return lambda rig: Bulk(rig.engine, IDEMPOTENCY_TOPIC, Wanted(), action, dry_run=dry_run)


BY_OPERATION: Final[dict[str, Callable[[MemoRig], object]]] = {
    "put_one": lambda s: s.put(IDEMPOTENCY_TOPIC),
    "put_keyed with a rule": lambda s: s.put(IDEMPOTENCY_TOPIC, retry=Retry((1_000,))),
    "put_alike": lambda s: put_alike(s.engine, s.own, 0, 9, 9, [b"", b"x"], s.now_ms),
    "put_keyed at a wall-clock time": lambda s: s.put(IDEMPOTENCY_TOPIC, due_wall_ms=10),
    "predecessor_id": lambda s: predecessor_id(
        s.engine, s.me, Predecessor(IDEMPOTENCY_TOPIC, MEMO), s.own, RequestMs(s.now_ms)
    ),
    "put_keyed_run": lambda s: put_keyed_run(s.engine, s.own, 0, 0, 9, [b"b"], [b""], s.now_ms),
    "put_keyed": put_keyed(Conflict.REJECT, b"b"),
    **{f"put_keyed {on.value}": put_keyed(on) for on in Conflict},
    "watch": lambda s: watch(s.engine, s.me, IDEMPOTENCY_TOPIC),
    "reserve_job": lambda s: s.reserve_job(s.me, MEMO),
    "delete": lambda s: s.delete(s.me, MEMO),
    "kick_job": lambda s: s.kick_job(MEMO),
    "bury_waiting": lambda s: s.bury_waiting(MEMO),
    "kick_later": lambda s: s.kick_later(MEMO, 9),
    "reschedule": lambda s: s.reschedule(MEMO, 0),
    "change": lambda s: s.change(MEMO, body=b"forged"),
    "pause": lambda s: s.pause(IDEMPOTENCY_TOPIC, 9),
    "resume": lambda s: s.pause(IDEMPOTENCY_TOPIC, 0),
    "pause_group": lambda s: s.pause_group(IDEMPOTENCY_TOPIC, b"g", 9),
    "set_policy": lambda s: s.set_policy(IDEMPOTENCY_TOPIC, NEVER_PLAIN),
    "set_policy none": lambda s: s.set_policy(IDEMPOTENCY_TOPIC, None),
    "set_policy of another": lambda s: s.set_policy("mail", exhausted=IDEMPOTENCY_TOPIC),
}
BY_PASS: Final[dict[str, Callable[[MemoRig], object]]] = {
    "SetPolicy": lambda s: SetPolicy(s.engine, IDEMPOTENCY_TOPIC, NEVER_PLAIN),
    "Clear": lambda s: Clear(s.engine, IDEMPOTENCY_TOPIC),
    "Kick": lambda s: Kick(s.engine, s.own, 9),
    "Bulk cancel": bulk(Action.cancel()),
    "Bulk kick": bulk(Action.kick()),
    "Bulk reschedule": bulk(Action.reschedule(0)),
    "Bulk reschedule_at": bulk(Action.reschedule_at(0)),
    "Bulk cancel dry": bulk(Action.cancel(), dry_run=True),
}
REFUSED: Final = BY_OPERATION | BY_PASS
SOURCES: Final = Path(delayd.__file__).parent
NOT_ASKED: Final = """
advance caught_up serve_waiting catch_up_leases expire job_for: time's
reserve reserve_batch wait: nobody watches it
release nack bury touch delete_held close_session leave: nobody holds a job of it
give_back give_back_some: nobody holds a job of it
reserve_call fail_call give_back_call: it has no target
delete_batch: answers False
put_instead end_predecessor: with predecessor_id, which asks
forward: puts, which asks
give_time rewrite when: parts of puts and changes, which ask
hand_out serve: parts of operations, which ask
reclaim: the daemon's
"""
"""Operations that are not refused, and why they need not be."""


def test_each_operation_of_the_engine_is_refused_or_need_not_be() -> None:
    operations = {
        operation.name
        for path in (SOURCES / "core" / "operations").glob("*.py")
        for operation in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(operation, ast.FunctionDef)
        and not operation.name.startswith("_")
        and {"engine", "now_ms"} <= names_of(operation.args)
    }
    refused = {name.partition(" ")[0] for name in BY_OPERATION} - {"watch", "resume"}
    not_asked = re.findall(r"(\w+)(?=[ \w]*:)", NOT_ASKED)
    assert sorted(operations) == sorted([*refused, *not_asked])


@pytest.mark.parametrize("name", REFUSED)
def test_clients_are_refused_and_change_nothing_and_the_daemon_may(name: str) -> None:
    rig = MemoRig()
    rig.take_log()
    before = rig.kept()
    with pytest.raises(TopicIsInternal, match=r"topic '\$idempotency' is reserved") as refusal:
        REFUSED[name](rig)
    assert (refusal.value.word, refusal.value.status) == ("FORBIDDEN", 403)
    assert rig.take_log() == (b"", False)
    assert rig.kept() == before
    check(rig.engine)
    if name != "put_keyed reject":  # its key is taken
        with as_daemon(rig.engine):
            REFUSED[name](rig)


def test_the_door_is_closed_again_also_behind_a_refusal() -> None:
    rig = MemoRig()
    configure(rig.engine, jobs_max=2)
    with pytest.raises(CapReached), as_daemon(rig.engine):
        rig.put(IDEMPOTENCY_TOPIC)
    with pytest.raises(TopicIsInternal):
        rig.put(IDEMPOTENCY_TOPIC)


def test_nobody_but_memos_and_schedules_goes_through_the_door() -> None:
    assert sorted(users_of("as_daemon")) == [
        *("core/operations/topics.py", "http/idempotency.py"),
        *("schedules/book.py", "schedules/runner.py"),
    ]


def names_of(arguments: ast.arguments) -> set[str]:
    return {argument.arg for argument in (*arguments.args, *arguments.kwonlyargs)}


def users_of(name: str) -> Iterator[str]:
    """The modules of delayd that call a function of that name."""
    for path in SOURCES.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        walk = ast.walk(ast.parse(source)) if name in source else ()
        calls = [node.func for node in walk if isinstance(node, ast.Call)]
        if any(name in (getattr(call, "id", ""), getattr(call, "attr", "")) for call in calls):
            yield path.relative_to(SOURCES).as_posix()


def test_the_daemon_is_no_client_that_watches_or_waits() -> None:
    rig = MemoRig()
    consumer = Session()
    with as_daemon(rig.engine):
        watch(rig.engine, consumer, IDEMPOTENCY_TOPIC)
    rig.wait(consumer)
    for name, clients in ((IDEMPOTENCY_TOPIC, 0), ("mail", 1)):
        if clients:
            rig.wait(rig.me)
        view = views.view_topic(rig.engine, name, RequestMs(0))
        assert (view.watching, view.waiting) == (clients, clients)
    rig.play(DAY_MS)
    assert (consumer, MEMO) in rig.delivered(), "it gets what is due all the same"


# --- What clients of older daemons have left -----------------------------------------------------


def vandalized() -> MemoRig:
    """A rig whose log says what clients could do while nothing was refused."""
    rig = MemoRig()
    with as_daemon(rig.engine):
        rig.bury_waiting(MEMO)
        rig.put(IDEMPOTENCY_TOPIC, delay_ms=50)
        rig.put(IDEMPOTENCY_TOPIC)
        rig.set_policy(IDEMPOTENCY_TOPIC, delay_ms_max=1_000, jobs_max=1)
        rig.set_policy("mail", attempts_max=1, exhausted=IDEMPOTENCY_TOPIC)
        rig.set_policy("sms", exhausted=IDEMPOTENCY_TOPIC)
        rig.pause(IDEMPOTENCY_TOPIC, 10 * DAY_MS)
    return rig


def test_a_journal_is_replayed_whatever_it_says_of_that_topic() -> None:
    rig = vandalized()
    with as_daemon(rig.engine):
        Clear(rig.engine, "mail").step(9, RequestMs(0))
        rig.put("mail")
        rig.reserve_all(rig.me)
        nack(rig.engine, rig.me, 5, RequestMs(0))
    assert rig.engine.store.topic_of(caught_up(rig.engine, 5, RequestMs(0))[0]) is rig.own, (
        "exhausted"
    )
    rig.agree_with_the_log()
    check(rig.replayed())


def test_a_start_puts_the_policies_in_order() -> None:
    rig = vandalized()
    rig.restart()
    configure(rig.engine, Patterns({"*": NEVER_PLAIN, "sms": Policy(jobs_max=5)}))
    for engine in (rig.engine, rig.replayed()):
        assert policy_of(engine, IDEMPOTENCY_TOPIC) == (Policy(), Source.CONFIGURATION)
        assert policy_of(engine, "mail") == (Policy(attempts_max=1), Source.RUN_TIME)
        assert engine.store.topics.by_name[IDEMPOTENCY_TOPIC].feeders == 0
        assert "sms" not in engine.store.topics.by_name, "its policy said nothing else"
        check(engine)
    assert policy_of(rig.engine, "sms") == (Policy(jobs_max=5), Source.CONFIGURATION)


def test_a_start_ends_the_pause_and_forgets_no_key_too_soon() -> None:
    rig = vandalized()
    rig.restart()
    configure(rig.engine)
    reclaim(rig.engine, rig.now_ms)
    for engine in (rig.engine, rig.replayed()):
        topic = engine.store.topics.by_name[IDEMPOTENCY_TOPIC]
        assert topic.paused_until_ms is None
        assert not topic.queues.buried
        assert rig.view(MEMO).left_ms == DAY_MS


def test_where_nothing_is_left_a_start_records_nothing() -> None:
    for rig in (EngineRig(), MemoRig()):
        rig.take_log()
        reclaim(rig.engine, rig.now_ms)
        assert rig.take_log() == (b"", False)


def test_a_start_without_space_for_that_goes_on() -> None:
    rig = vandalized()
    rig.restart()
    configure(rig.engine)
    rig.engine.log_space.limit(0, lambda *_: -1)
    reclaim(rig.engine, rig.now_ms)
    assert rig.own.queues.buried
