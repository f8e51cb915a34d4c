"""The wall clock: it was set, and the jobs with wall-clock times follow it.

A job that is put for a wall-clock time is due at that time minus the offset of delayd time, and
has the time in its record. `offset` is wall clock minus delayd time. The caller keeps it right:
the service reads both clocks in each turn in which such a job waits, and before one is put. A job
never fires before its time by the wall clock as it is when it fires. If the clock is set forward
past its time, it comes at once; if set back, it waits longer. What has come due stays due.

Only the offset is recorded. Which jobs it moves follows from that, live (`tick.advance`, a slice at
a time) and replayed alike, and a log in which no wall-clock time was ever put has no such record: a
delayd that does not know them can read it.
"""

from typing import Final

from delayd.core import apply
from delayd.core.engine import Engine
from delayd.core.log_records import LAYOUTS, Kind, pack

OFFSET_BYTES: Final = LAYOUTS[Kind.OFFSET].size


def follow_wall(engine: Engine, offset_ms: int) -> None:
    """Set how far the wall clock is ahead of delayd time; negative: behind.

    `advance` then places the jobs with wall-clock times again, a slice at a time. The offset is
    rounded down: rounded up, a job could fire before its time.
    """
    wall_times = engine.store.wall_times
    if offset_ms == wall_times.offset_ms:
        return
    if wall_times.count:
        _record_offset(engine, offset_ms)
    else:
        engine.store.step_wall(offset_ms)


def tell_offset(engine: Engine) -> None:
    """See that the log says where wall-clock times are, before a record depends on it."""
    wall_times = engine.store.wall_times
    if wall_times.recorded_ms != wall_times.offset_ms:
        _record_offset(engine, wall_times.offset_ms)


def _record_offset(engine: Engine, offset_ms: int) -> None:
    """Record the offset; never refused, since the clock was not set by a client.

    It need not be synced before a reply leaves: if lost, it is computed again at the start.
    """
    if engine.turn_ms != engine.store.time_ms:
        engine.stamp()
    engine.log.append(pack(Kind.OFFSET, offset_ms))
    engine.log_space.free_bytes -= 2 * OFFSET_BYTES
    apply.offset(engine.store, offset_ms)
