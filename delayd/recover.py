"""Recovery: brings the engine to the state in the log, before any client is served.

    log ─► follow ─► replay ─► take over ─► engine ─► the present configuration ─► time continues

With progress in the log, and for systemd, when it takes longer than a second. While another daemon
owns the log this one stands by: it replays what the owner appends, and has nothing to catch up with
when it takes over.
"""

import gc
import os
from typing import TYPE_CHECKING

from delayd.clock import NS_PER_MS, Clock, SystemClock, monotonic_ns
from delayd.config import ClockKind, Config, SyncPolicy
from delayd.core.engine import Engine
from delayd.core.log_records import UnknownRecord
from delayd.core.operations.topics import configure
from delayd.limits import GC_COLLECTIONS, GC_YOUNG_OBJECTS, RECOVERY_REPORT_MS
from delayd.log import LogError
from delayd.log_lines import Log
from delayd.systemd import Notifier

if TYPE_CHECKING:
    from collections.abc import Iterator

    from delayd.log import DurableLog, LogFrame


def what_helps(error: LogError, config: Config) -> dict[str, str]:
    """Return the command that shows more about the refusal, as a field for the log."""
    if error.is_damage:
        import shlex  # noqa: PLC0415 - only where something is wrong

        return {"more": f"delayd journal check {shlex.quote(str(config.data_dir))}"}
    return {}


def recover(
    config: Config, clock: Clock, news: Log, notifier: Notifier
) -> "tuple[Engine, DurableLog | None]":
    """Bring the engine to the state in the log, and own that. Raises `LogError`.

    `news` is told of what was found. The garbage collector is off meanwhile, and what was loaded is
    then frozen: jobs are bytes, but the tables that hold them would be traversed repeatedly. See
    `Turns.note_collection` too.
    """
    gc.disable()
    if config.data_dir is None:
        engine, log = _new_engine(config, clock.now_ms()), None
        configure(engine, config.topics, config.jobs_max, config.bytes_max)
    else:
        log = _opened(config, config.data_dir, news)
        try:
            engine = _replayed(config, log, clock, news, notifier)
        except LogError:
            log.close()
            raise
    gc.freeze()
    gc.set_threshold(GC_YOUNG_OBJECTS, GC_COLLECTIONS, GC_COLLECTIONS)
    gc.enable()
    return engine, log


def _opened(config: Config, data_dir: str, news: Log) -> "DurableLog":
    """Return the log in the directory, or in the database if one is configured."""
    if config.postgres_url is None:
        from delayd.journal.file_log import open_log  # noqa: PLC0415 - only where jobs are kept

        return open_log(
            data_dir,
            news,
            segment_bytes=config.segment_bytes,
            is_virtual=config.clock is ClockKind.VIRTUAL,
            syncs_in_turn=config.sync_in_turn,
        )
    from delayd.postgres.place import DatabasePlace  # noqa: PLC0415 - needs psycopg
    from delayd.postgres.postgres_log import open_log as open_database  # noqa: PLC0415

    place = DatabasePlace.of(
        config.postgres_url,
        name=config.postgres_name,
        lease_ms=config.postgres_lease_ms,
        address=f"{os.uname().nodename} {config.line_listen or config.http_listen}",
        password_file=config.postgres_password_file,
        accepted=frozenset(config.postgres_accept),
    )
    if config.clock is ClockKind.VIRTUAL or config.sync is not SyncPolicy.ALWAYS:
        place.refuse('needs clock = "system" and journal.sync = "always"')
    return open_database(place, news, segment_bytes=config.segment_bytes)


def _new_engine(config: Config, start_ms: int) -> Engine:
    return Engine(
        start_ms=start_ms,
        tick_ms=config.tick_ms,
        wheel_size=config.wheel_size,
        body_bytes_max=config.body_bytes_max,
    )


def _until_owned(log: "DurableLog") -> "Iterator[LogFrame | None]":
    """Yield what `follow` does, until this daemon is the owner."""
    is_owned = False
    while not is_owned:
        yield from log.follow()
        is_owned = log.take_over()


def _replayed(
    config: Config, log: "DurableLog", clock: Clock, news: Log, notifier: Notifier
) -> Engine:
    from delayd.core.replay import Replay  # noqa: PLC0415

    replay = None
    last = None
    owner = ""
    report_ns = monotonic_ns() + RECOVERY_REPORT_MS * NS_PER_MS
    for frame in _until_owned(log):
        if frame is None:
            if owner != log.owner:
                owner = log.owner
                news.info("standing by: another daemon owns the log", owner=owner)
                notifier.ready(f"standing by: {owner} owns the log")
            notifier.watchdog()
            continue
        if replay is None:
            replay = Replay(_new_engine(config, frame.time_ms))
        try:
            replay.play(frame.payload)
        except UnknownRecord as error:
            raise log.unreadable(f"frame {frame.sequence} holds {error}") from error
        last = frame
        if monotonic_ns() > report_ns and not owner:
            report_ns += RECOVERY_REPORT_MS * NS_PER_MS
            jobs, percent = len(replay.engine.store.jobs), log.followed_percent
            news.info("recovering", jobs=jobs, frame=frame.sequence, percent=percent)
            status = f"recovering: {jobs} jobs so far, about {percent} %"
            notifier.extend_start_ms(10 * RECOVERY_REPORT_MS, status)
    for finding in log.findings:
        news.warning(finding.sentence, **finding.fields)
    if log.wall_ns is not None:
        assert isinstance(clock, SystemClock), "a virtual clock keeps its jobs in files"
        clock.follow_wall(log.wall_ns)
    if last is not None:
        clock.resume(last.time_ms, last.wall_ms)
    engine = replay.engine if replay else _new_engine(config, clock.now_ms())
    # Before time continues: what ran out while the daemon was down follows the new configuration.
    configure(engine, config.topics, config.jobs_max, config.bytes_max)
    if replay:
        replay.finish(clock.now_ms())
    return engine
