"""The daemon's own topic: anybody may look at it, nobody but the daemon changes what is in it."""

import ast
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

import delayd
from delayd.core import views
from delayd.core.check import check
from delayd.core.engine import Engine
from delayd.core.errors import CapReached, TopicIsInternal
from delayd.core.job import Retry, State
from delayd.core.names import INTERNAL_TOPIC
from delayd.core.operations.change import kick_later
from delayd.core.operations.put import Conflict
from delayd.core.operations.topics import SetPolicy, reclaim
from delayd.core.policy import Patterns, Policy
from delayd.core.scans.bulk import Action, Bulk
from delayd.core.scans.clear import Clear
from delayd.core.scans.list import Calendar, Search
from delayd.core.scans.scan import Wanted
from delayd.core.session import Session
from delayd.core.stats.figures import topic_figures
from delayd.core.topic import (
    Source,
    Topic,
)
from delayd.limits import IDEMPOTENCY_MS
from tests.core.rig import EngineRig

MEMO: Final = 1
KEY: Final = b"a"
DAY_MS: Final = IDEMPOTENCY_MS
NEVER_PLAIN: Final = Policy(delay_ms_max=1)


class Scene(EngineRig):
    """A rig with a memo, and a job of somebody's."""

    def __init__(self, state: State = State.DELAYED) -> None:
        super().__init__()
        with self.engine.as_daemon():
            self.engine.put_keyed(
                self.engine.store.topic(INTERNAL_TOPIC),
                KEY,
                priority=0,
                delay_ms=DAY_MS,
                ttr_ms=60_000,
                body=b"memo",
                now_ms=0,
            )
            if state is State.READY:
                self.engine.kick_job(MEMO, 0)
            elif state is State.BURIED:
                bury(self.engine)
        self.put("mail", delay_ms=5)
        self.me = self.client("mail")

    @property
    def own(self) -> Topic:
        return self.engine.store.topics.by_name[INTERNAL_TOPIC]

    def kept(self) -> list[object]:
        """All that a restart keeps, but for the ids that were taken."""
        return [row for row in views.canonical(self.engine) if row[0] != "last id"]


def bury(engine: Engine) -> None:
    """Bury the memo, as a client could before that was refused."""
    consumer = Session()
    engine.watch(consumer, INTERNAL_TOPIC)
    engine.reserve_job(consumer, MEMO, 0)
    engine.bury(consumer, MEMO, 0, 0)
    engine.stop_consuming(consumer)


def put_keyed(on: Conflict, key: bytes = KEY) -> Callable[[Scene], object]:
    def put(scene: Scene) -> object:
        return scene.engine.put_keyed(
            scene.own, key, on, priority=0, ttr_ms=9, body=b"", now_ms=scene.now_ms
        )

    return put


def bulk(action: Action, *, dry_run: bool = False) -> Callable[[Scene], object]:
    return lambda scene: Bulk(scene.engine.state, INTERNAL_TOPIC, Wanted(), action, dry_run=dry_run)


BY_OPERATION: Final[dict[str, Callable[[Scene], object]]] = {
    "put": lambda s: s.put(INTERNAL_TOPIC),
    "put with a rule": lambda s: s.engine.put(
        s.own, priority=0, delay_ms=0, ttr_ms=9, body=b"", now_ms=0, retry=Retry((1_000,))
    ),
    "put_alike": lambda s: s.engine.put_alike(s.own, 0, 9, 9, [b"", b"x"], s.now_ms),
    "put at a wall-clock time": lambda s: s.engine.put(
        s.own, priority=0, due_wall_ms=10, ttr_ms=9, body=b"", now_ms=0
    ),
    "put_keyed_run": lambda s: s.engine.put_keyed_run(s.own, 0, 0, 9, [b"b"], [b""], s.now_ms),
    "put_keyed": put_keyed(Conflict.REJECT, b"b"),
    **{f"put_keyed {on.value}": put_keyed(on) for on in Conflict},
    "watch": lambda s: s.engine.watch(s.me, INTERNAL_TOPIC),
    "reserve_job": lambda s: s.engine.reserve_job(s.me, MEMO, s.now_ms),
    "delete": lambda s: s.engine.delete(s.me, MEMO, s.now_ms),
    "kick_job": lambda s: s.engine.kick_job(MEMO, s.now_ms),
    "kick_later": lambda s: kick_later(s.engine.state, MEMO, 9, s.now_ms),
    "kick": lambda s: s.engine.kick(s.own, 9, s.now_ms),
    "reschedule": lambda s: s.engine.reschedule(MEMO, 0, s.now_ms),
    "reschedule_at": lambda s: s.engine.reschedule_at(MEMO, 0, s.now_ms),
    "change": lambda s: s.engine.change(MEMO, s.now_ms, body=b"forged"),
    "pause": lambda s: s.engine.pause(INTERNAL_TOPIC, 9, s.now_ms),
    "resume": lambda s: s.engine.pause(INTERNAL_TOPIC, 0, s.now_ms),
    "set_policy": lambda s: s.engine.set_policy(INTERNAL_TOPIC, NEVER_PLAIN, s.now_ms),
    "set_policy none": lambda s: s.engine.set_policy(INTERNAL_TOPIC, None, s.now_ms),
    "set_policy of another": lambda s: s.engine.set_policy(
        "mail", Policy(attempts_max=1, exhausted=INTERNAL_TOPIC), s.now_ms
    ),
}
BY_PASS: Final[dict[str, Callable[[Scene], object]]] = {
    "SetPolicy": lambda s: SetPolicy(s.engine.state, INTERNAL_TOPIC, NEVER_PLAIN),
    "Clear": lambda s: Clear(s.engine.state, INTERNAL_TOPIC),
    "Bulk cancel": bulk(Action.cancel()),
    "Bulk kick": bulk(Action.kick()),
    "Bulk reschedule": bulk(Action.reschedule(0)),
    "Bulk reschedule_at": bulk(Action.reschedule_at(0)),
    "Bulk cancel dry": bulk(Action.cancel(), dry_run=True),
}
REFUSED: Final = BY_OPERATION | BY_PASS
NOT_ASKED: Final = {
    "advance": "time's",
    "caught_up": "time's",
    "serve_waiting": "time's",
    **dict.fromkeys(("reserve", "reserve_batch", "wait"), "nobody watches it"),
    **dict.fromkeys(("release", "nack", "bury", "touch"), "nobody holds a job of it"),
    **dict.fromkeys(("close_session", "take_undelivered"), "nobody holds a job of it"),
    "delete_batch": "answers False",
}
"""Operations that are not refused, and why they need not be."""


def test_each_operation_of_the_engine_is_refused_or_need_not_be() -> None:
    operations = {
        name
        for name, operation in inspect.getmembers(Engine, inspect.isfunction)
        if not name.startswith("_") and "now_ms" in inspect.signature(operation).parameters
    }
    refused = {name.partition(" ")[0] for name in BY_OPERATION} - {"watch", "resume"}
    assert operations | {"kick_later"} == refused | {*NOT_ASKED}
    assert not refused & {*NOT_ASKED}


@pytest.mark.parametrize("state", [State.DELAYED, State.READY, State.BURIED])
@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_and_has_changed_nothing(name: str, state: State) -> None:
    scene = Scene(state)
    scene.take_log()
    before = scene.kept()
    with pytest.raises(TopicIsInternal, match=r"topic '\$idempotency' is reserved") as refusal:
        REFUSED[name](scene)
    assert (refusal.value.word, refusal.value.status) == ("FORBIDDEN", 403)
    assert scene.take_log() == (b"", False)
    assert scene.kept() == before
    check(scene.engine)


@pytest.mark.parametrize("name", sorted({*REFUSED} - {"put_keyed reject"}))
def test_the_daemon_itself_may(name: str) -> None:
    scene = Scene(State.BURIED if name.startswith("kick") else State.DELAYED)
    with scene.engine.as_daemon():
        REFUSED[name](scene)


@pytest.mark.parametrize("name", ["pause", "watch", "set_policy", "Clear", "Bulk kick"])
def test_it_is_refused_also_while_there_is_no_such_topic(name: str) -> None:
    scene = Scene()
    with scene.engine.as_daemon():
        scene.engine.delete(scene.me, MEMO, 0)
    assert INTERNAL_TOPIC not in scene.engine.store.topics.by_name
    with pytest.raises(TopicIsInternal):
        REFUSED[name](scene)
    assert INTERNAL_TOPIC not in scene.engine.store.topics.by_name
    check(scene.engine)


def test_among_others_its_jobs_are_not_there_to_be_deleted() -> None:
    scene = Scene()
    assert scene.engine.delete_batch(scene.me, (MEMO, 2, MEMO), scene.now_ms) == [
        False,
        True,
        False,
    ]
    assert views.peek(scene.engine, MEMO) == (MEMO, b"memo")


def test_other_topics_are_as_they_were() -> None:
    scene = Scene()
    engine = scene.engine
    assert engine.store.topics.by_name["mail"].has_no_rules, "its puts have nothing more to look at"
    assert not scene.own.has_no_rules
    engine.kick_job(2, scene.now_ms)
    engine.pause("mail", 9, scene.now_ms)
    engine.set_policy("mail", Policy(attempts_max=1, exhausted="dead"), scene.now_ms)
    engine.change(2, scene.now_ms, priority=7)
    assert engine.delete_batch(scene.me, (2,), scene.now_ms) == [True]


def test_the_door_is_closed_again_also_behind_a_refusal() -> None:
    scene = Scene()
    scene.engine.configure(jobs_max=2)
    with pytest.raises(CapReached), scene.engine.as_daemon():
        scene.put(INTERNAL_TOPIC)
    with pytest.raises(TopicIsInternal):
        scene.put(INTERNAL_TOPIC)


def test_nobody_but_the_memos_of_http_goes_through_the_door() -> None:
    assert sorted(users_of("as_daemon")) == ["core/engine.py", "http/idempotency.py"]


def users_of(name: str) -> Iterator[str]:
    """The modules of delayd that ask anything for an attribute of that name."""
    root = Path(delayd.__file__).parent
    for path in root.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(isinstance(node, ast.Attribute) and node.attr == name for node in ast.walk(tree)):
            yield path.relative_to(root).as_posix()


# --- Looking -------------------------------------------------------------------------------------


def test_anybody_may_look_at_it() -> None:
    scene = Scene()
    engine = scene.engine
    search = Search(engine.state, INTERNAL_TOPIC, Wanted())
    calendar = Calendar(engine.state, INTERNAL_TOPIC, from_ms=0, bin_ms=DAY_MS + 1, bins=1)
    for work in (search, calendar):
        while not work.step(100, scene.now_ms):
            pass
    assert [row.job_id for row in search.page.rows] == [MEMO]
    assert calendar.counts == [1]
    assert engine.find_key(INTERNAL_TOPIC, KEY) == MEMO
    assert views.view_job(engine, MEMO, 0).topic == INTERNAL_TOPIC
    assert views.peek_delayed(engine, scene.own) == (MEMO, b"memo")
    assert engine.policy_of(INTERNAL_TOPIC) == (Policy(), Source.CONFIGURATION)
    engine.use(scene.me, INTERNAL_TOPIC)
    assert views.view_topic(engine, INTERNAL_TOPIC, 0).using == 1


def test_the_daemon_is_no_client_that_watches_or_waits() -> None:
    scene = Scene()
    consumer = Session()
    with scene.engine.as_daemon():
        scene.engine.watch(consumer, INTERNAL_TOPIC)
    scene.wait(consumer)
    for name, clients in ((INTERNAL_TOPIC, 0), ("mail", 1)):
        if clients:
            scene.wait(scene.me)
        view = views.view_topic(scene.engine, name, 0)
        figures = topic_figures(scene.engine.store.topics.by_name[name], 0)
        assert (view.watching, view.waiting) == (clients, clients)
        assert (figures.watching, figures.waiting) == (clients, clients)
    scene.play(DAY_MS)
    assert (consumer, MEMO) in scene.delivered(), "it gets what is due all the same"


# --- What clients of older daemons have left -----------------------------------------------------


def vandalized() -> Scene:
    """A rig whose log says what clients could do while nothing was refused."""
    scene = Scene()
    with scene.engine.as_daemon():
        bury(scene.engine)
        scene.put(INTERNAL_TOPIC, delay_ms=50)
        scene.put(INTERNAL_TOPIC)
        scene.engine.set_policy(INTERNAL_TOPIC, Policy(delay_ms_max=1_000, jobs_max=1), 0)
        scene.engine.set_policy("mail", Policy(attempts_max=1, exhausted=INTERNAL_TOPIC), 0)
        scene.engine.set_policy("sms", Policy(exhausted=INTERNAL_TOPIC), 0)
        scene.engine.pause(INTERNAL_TOPIC, 10 * DAY_MS, 0)
    return scene


def test_a_journal_is_replayed_whatever_it_says_of_that_topic() -> None:
    scene = vandalized()
    with scene.engine.as_daemon():
        Clear(scene.engine.state, "mail").step(9, 0)
        scene.put("mail")
        scene.reserve_all(scene.me)
        scene.engine.nack(scene.me, 5, 0)
    assert scene.engine.store.topic_of(scene.engine.caught_up(5, 0)[0]) is scene.own, "exhausted"
    assert [*views.canonical(scene.replayed())] == [*views.canonical(scene.engine)]
    check(scene.replayed())


def test_a_start_puts_the_policies_in_order() -> None:
    scene = vandalized()
    scene.restart()
    scene.engine.configure(Patterns({"*": NEVER_PLAIN, "sms": Policy(jobs_max=5)}))
    for engine in (scene.engine, scene.replayed()):
        assert engine.policy_of(INTERNAL_TOPIC) == (Policy(), Source.CONFIGURATION)
        assert engine.policy_of("mail") == (Policy(attempts_max=1), Source.RUN_TIME)
        assert engine.store.topics.by_name[INTERNAL_TOPIC].feeders == 0
        assert "sms" not in engine.store.topics.by_name, "its policy said nothing else"
        check(engine)
    assert scene.engine.policy_of("sms") == (Policy(jobs_max=5), Source.CONFIGURATION)


def test_a_start_ends_the_pause_and_forgets_no_key_too_soon() -> None:
    scene = vandalized()
    scene.restart()
    scene.engine.configure()
    reclaim(scene.engine.state, scene.now_ms)
    for engine in (scene.engine, scene.replayed()):
        topic = engine.store.topics.by_name[INTERNAL_TOPIC]
        assert topic.paused_until_ms is None
        assert not topic.queues.buried
        assert views.view_job(engine, MEMO, scene.now_ms).left_ms == DAY_MS


def test_where_nothing_is_left_a_start_records_nothing() -> None:
    for scene in (EngineRig(), Scene()):
        scene.take_log()
        reclaim(scene.engine.state, scene.now_ms)
        assert scene.take_log() == (b"", False)


def test_a_start_without_room_for_that_goes_on() -> None:
    scene = vandalized()
    scene.restart()
    scene.engine.configure()
    scene.engine.log_space.limit(0, lambda *_: -1)
    reclaim(scene.engine.state, scene.now_ms)
    assert scene.own.queues.buried
