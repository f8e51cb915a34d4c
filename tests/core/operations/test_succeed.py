"""A put in the place of another job: both or neither, wherever the log is cut."""

from functools import partial

from delayd.core.log_records import Kind
from delayd.core.names import Predecessor
from delayd.core.operations.put import put_keyed
from delayd.core.operations.succeed import predecessor_id, put_instead
from delayd.core.times import RequestMs
from tests.rigs.engine import EngineRig, kinds_of


def test_the_put_and_the_end_are_one_item_of_the_log() -> None:
    """A turn that fits no file is divided between items, and a crash may leave its first part."""
    rig = EngineRig()
    engine, worker = rig.engine, rig.client()
    into = engine.store.topic("into")
    old_id = rig.put()
    rig.take_log()
    now_ms = RequestMs(rig.now_ms)
    old = Predecessor("default", old_id)
    assert predecessor_id(engine, worker, old, into, now_ms) == old_id
    put = partial(put_keyed, engine, into, b"", priority=0, ttr_ms=9_000, body=b"x", now_ms=now_ms)
    put_instead(engine, worker, old, into, put, now_ms)
    items, must_sync = engine.take_log()
    assert must_sync
    assert len(items) == 1
    assert [*kinds_of(items[0])][-2:] == [Kind.PUT, Kind.DELETE]
