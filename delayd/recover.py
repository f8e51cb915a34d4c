"""Recovery: brings the engine to the state in the journal, before any client is served.

    journal ─► frames ─► replay ─► engine ─► the present configuration ─► time continues

With progress in the log, and for systemd, when it takes longer than a second.
"""

import gc
from typing import TYPE_CHECKING

from delayd.clock import NS_PER_MS, Clock, monotonic_ns
from delayd.config import ClockKind, Config
from delayd.core.engine import Engine
from delayd.core.operations.topics import configure
from delayd.core.records import UnknownRecord
from delayd.exits import Exit
from delayd.journal.errors import (
    DamageError,
    DirectoryLocked,
    ForeignFile,
    JournalCorrupt,
    JournalError,
    NotEmpty,
    WrongClock,
)
from delayd.limits import GC_COLLECTIONS, GC_YOUNG_OBJECTS, RECOVERY_REPORT_MS
from delayd.logs import Log
from delayd.systemd import Notifier

if TYPE_CHECKING:
    from delayd.journal.journal import Journal


def exit_code_of(error: JournalError) -> Exit:
    """Return how the process ends after such an error."""
    if isinstance(error, DirectoryLocked):
        return Exit.DIRECTORY_LOCKED
    if isinstance(error, NotEmpty):
        return Exit.USAGE
    if isinstance(error, WrongClock):
        return Exit.BAD_CONFIGURATION
    if isinstance(error, DamageError):
        return Exit.CORRUPT_JOURNAL
    return Exit.JOURNAL_FAILED


def what_helps(error: JournalError, config: Config) -> dict[str, str]:
    """Return the command that shows more about the refusal, as a field for the log."""
    if isinstance(error, DamageError) and not isinstance(error, ForeignFile):
        import shlex  # noqa: PLC0415 - only where something is wrong

        return {"more": f"delayd journal check {shlex.quote(str(config.data_dir))}"}
    return {}


def recover(
    config: Config, clock: Clock, log: Log, notifier: Notifier
) -> "tuple[Engine, Journal | None]":
    """Bring the engine to the state in the journal. Raises `JournalError`.

    The garbage collector is off meanwhile, and what was loaded is then frozen: jobs are bytes, but
    the tables that hold them would be traversed repeatedly. See `Turns.note_collection` too.
    """
    gc.disable()
    if config.data_dir is None:
        engine, journal = _new_engine(config, clock.now_ms()), None
        configure(engine, config.topics, config.jobs_max, config.bytes_max)
    else:
        from delayd.journal.directory import look_first  # noqa: PLC0415 - only where jobs are kept
        from delayd.journal.disk import RealDisk  # noqa: PLC0415
        from delayd.journal.journal import Journal  # noqa: PLC0415

        disk = RealDisk()
        look_first(disk, config.data_dir)
        journal = Journal.open(
            config.data_dir,
            disk=disk,
            segment_bytes=config.segment_bytes,
            is_virtual=config.clock is ClockKind.VIRTUAL,
        )
        try:
            engine = _replayed(config, journal, clock, log, notifier)
        except JournalError:
            journal.close()
            raise
    gc.freeze()
    gc.set_threshold(GC_YOUNG_OBJECTS, GC_COLLECTIONS, GC_COLLECTIONS)
    gc.enable()
    return engine, journal


def _new_engine(config: Config, start_ms: int) -> Engine:
    return Engine(
        start_ms=start_ms,
        tick_ms=config.tick_ms,
        wheel_size=config.wheel_size,
        body_bytes_max=config.body_bytes_max,
    )


def _replayed(
    config: Config, journal: "Journal", clock: Clock, log: Log, notifier: Notifier
) -> Engine:
    from delayd.core.replay import Replay  # noqa: PLC0415
    from delayd.journal.format import FRAME_OVERHEAD_BYTES  # noqa: PLC0415

    replay = None
    last = None
    done_bytes = all_bytes = 0
    report_ns = monotonic_ns() + RECOVERY_REPORT_MS * NS_PER_MS
    for frame in journal.replay():
        if replay is None:
            replay = Replay(_new_engine(config, frame.time_ms))
        try:
            replay.play(frame.payload)
        except UnknownRecord as error:
            where = f"frame {frame.sequence} holds {error}"
            raise JournalCorrupt(config.data_dir or "", 0, where) from error
        last = frame
        done_bytes += FRAME_OVERHEAD_BYTES + len(frame.payload)
        if monotonic_ns() > report_ns:
            report_ns += RECOVERY_REPORT_MS * NS_PER_MS
            jobs = len(replay.engine.store.jobs)
            all_bytes = all_bytes or journal.replay_bytes
            percent = min(99, 100 * done_bytes // all_bytes)
            log.info("recovering", jobs=jobs, frame=frame.sequence, percent=percent)
            status = f"recovering: {jobs} jobs so far, about {percent} %"
            notifier.extend_start_ms(10 * RECOVERY_REPORT_MS, status)
    for damage in journal.damaged_snapshots:
        log.warning("a damaged snapshot was skipped", snapshot=str(damage))
    for tail in journal.torn_tails:
        log.warning("the torn end of the last write was cut off", tail=str(tail))
    for doubt in journal.warnings:
        log.warning(doubt.sentence, found=doubt.found)
    if last is not None:
        clock.resume(last.time_ms, last.wall_ms)
    engine = replay.engine if replay else _new_engine(config, clock.now_ms())
    # Before time continues: what ran out while the daemon was down follows the new configuration.
    configure(engine, config.topics, config.jobs_max, config.bytes_max)
    if replay:
        replay.finish(clock.now_ms())
    return engine
