"""Recovery: brings the engine to the state in the log, before any client is served.

    log ─► follow ─► replay ─► take over ─► engine ─► the present configuration ─► time continues

With progress in the log, and for systemd, when it takes longer than a second. While another daemon
owns the log this one stands by: it replays what the owner appends, and has nothing to catch up with
when it takes over. All of it may happen in a thread (`standby.py`), while another one reads from
`Progress` how far it has come.
"""

import gc
from typing import TYPE_CHECKING, final

from delayd.clock import NS_PER_MS, Clock, SystemClock, monotonic_ns
from delayd.config import ClockKind, Config, shared_settings
from delayd.core.engine import Engine
from delayd.core.log_records import UnknownRecord
from delayd.core.operations.topics import configure
from delayd.limits import GC_COLLECTIONS, GC_YOUNG_OBJECTS, RECOVERY_REPORT_MS
from delayd.log import LogError
from delayd.log_lines import Log
from delayd.systemd import Notifier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from delayd.log import DurableLog, LogFrame
    from delayd.postgres.place import DatabasePlace


class GivenUp(LogError):
    """The start was not wanted any more."""


@final
class Progress:
    """How far a start has come, for another thread to read."""

    def __init__(self, on_standing_by: "Callable[[], object]" = bool) -> None:
        """`on_standing_by` is called once, in between, when all frames that there are are read."""
        self.on_standing_by = on_standing_by
        self.is_wanted = True
        """Set it to False to have the start end at the next frame, or look for one."""
        self.log: DurableLog | None = None
        """None until it is open."""
        self.is_standing_by = False
        """All frames that there are were replayed, and another daemon owns the log."""


def what_helps(error: LogError, config: Config) -> dict[str, str]:
    """Return the command that shows more about the refusal, as a field for the log."""
    if error.is_damage:
        import shlex  # noqa: PLC0415 - only where something is wrong

        return {"more": f"delayd journal check {shlex.quote(str(config.data_dir))}"}
    return {}


def recover(
    config: Config,
    clock: Clock,
    news: Log,
    notifier: Notifier,
    *,
    address: str = "",
    progress: Progress | None = None,
) -> "tuple[Engine, DurableLog | None]":
    """Bring the engine to the state in the log, and own that. Raises `LogError`.

    `news` is told of what was found; `address` is where people find this daemon. The garbage
    collector is off meanwhile, and what was loaded is then frozen: jobs are bytes, but the tables
    that hold them would be traversed repeatedly. See `Turns.note_collection` too.
    """
    gc.disable()
    progress = progress or Progress()
    if config.data_dir is None:
        engine, log = _new_engine(config, clock.now_ms()), None
        configure(engine, config.topics, config.jobs_max, config.bytes_max)
    else:
        progress.log = log = _opened(config, config.data_dir, news, address)
        try:
            engine = _replayed(config, log, clock, news, notifier, address, progress)
        except LogError:
            log.close()
            raise
    _collect_garbage_again()
    return engine, log


def _collect_garbage_again() -> None:
    gc.freeze()
    gc.set_threshold(GC_YOUNG_OBJECTS, GC_COLLECTIONS, GC_COLLECTIONS)
    gc.enable()


def _opened(config: Config, data_dir: str, news: Log, address: str) -> "DurableLog":
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
    from delayd.postgres.postgres_log import open_log as open_database  # noqa: PLC0415 - psycopg

    place = database_place(config, address)
    return open_database(place, news, segment_bytes=config.segment_bytes)


def database_place(config: Config, address: str) -> "DatabasePlace":
    """Return the log that the configuration names in a database. Raises DatabaseUnfit.

    `address` is where people find the daemon that owns it, or will.
    """
    from delayd.postgres.place import DatabasePlace  # noqa: PLC0415 - needs psycopg

    assert config.postgres_url is not None, "the caller has looked"
    return DatabasePlace.of(
        config.postgres_url,
        name=config.postgres_name,
        lease_ms=config.postgres_lease_ms,
        address=address,
        password_file=config.postgres_password_file,
        accepted=frozenset(config.postgres_accept),
        settings=shared_settings(config),
    )


def _new_engine(config: Config, start_ms: int) -> Engine:
    return Engine(
        start_ms=start_ms,
        tick_ms=config.tick_ms,
        wheel_size=config.wheel_size,
        body_bytes_max=config.body_bytes_max,
    )


def _until_owned(log: "DurableLog", progress: Progress) -> "Iterator[LogFrame | None]":
    """Yield what `follow` does, until this daemon is the owner. Raises `GivenUp`."""
    while True:
        for frame in log.follow():
            if not progress.is_wanted:
                raise GivenUp
            yield frame
        if not progress.is_wanted:
            raise GivenUp
        if log.take_over():
            return


def _replayed(
    config: Config,
    log: "DurableLog",
    clock: Clock,
    news: Log,
    notifier: Notifier,
    address: str,
    progress: Progress,
) -> Engine:
    from delayd.core.replay import Replay  # noqa: PLC0415

    replay = None
    last = None
    owner = ""
    report_ns = monotonic_ns() + RECOVERY_REPORT_MS * NS_PER_MS
    for frame in _until_owned(log, progress):
        if frame is None:
            if not progress.is_standing_by:
                progress.is_standing_by = True
                _collect_garbage_again()
                progress.on_standing_by()
            if owner != log.owner:
                owner = log.owner
                news.info("standing by: another daemon owns the log", owner=owner, address=address)
                notifier.ready(f"standing by: {owner} owns the log")
            notifier.watchdog()
            continue
        if not frame.sequence:
            replay = last = None
            gc.collect()
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
