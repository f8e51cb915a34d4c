"""A new journal that holds the jobs of a binlog.

Every job keeps its id, tube (but for the name that delayd uses itself), priority, ttr, counters and
age, and buried jobs their state and order. Times in the binlog are the wall clock's, and so is the
time with which a new data directory begins: a job comes at the instant at which beanstalkd would
have made it ready.

    in the binlog                        in the journal
    delayed until 12:00:07.000000001     delayed until 12:00:07.001, if that is still to come
    delayed until a time that is past    ready
    ready, or reserved                   ready
    buried                               buried

The journal is written as a snapshot of such an engine would be: jobs as they are, in large frames.
Each frame is played into an engine first, so that nothing is written that a start could not read.
While an import runs, a file with a telling name lies in the directory; a daemon refuses to start
there, and the next attempt begins anew. So an import that is killed leaves nothing behind that
could be taken for all of the jobs.
"""

import contextlib
from collections.abc import Collection, Iterator
from typing import Final

from delayd.binlog.files import LOCK_NAME, Binlog, BinlogJob, BinlogState
from delayd.core.engine import Engine
from delayd.core.job_parts import TALLY, Flag, Tally
from delayd.core.job_record import HEADER, State
from delayd.core.log_records import Kind, pack, pack_put, pack_turn
from delayd.core.names import INTERNAL_TOPICS
from delayd.core.replay import Replay
from delayd.core.wheel.wheel import ceil_to_tick
from delayd.journal.disk import Disk, LockHeldError
from delayd.journal.errors import DirectoryLocked, failing
from delayd.journal.journal import Journal
from delayd.limits import JOURNAL_WINDOW_BYTES, TTR_MS_FOR_ZERO

NS_PER_MS: Final = 1_000_000


@contextlib.contextmanager
def held(disk: Disk, binlog_dir: str) -> Iterator[None]:
    """Keep beanstalkd from starting on the binlog meanwhile.

    Raises DirectoryLocked when one runs there, JournalFailed when the lock cannot be looked at.
    """
    path, rule = f"{binlog_dir}/{LOCK_NAME}", "stop beanstalkd before its jobs are taken over"
    handle = None
    try:
        # Without a lock file it is a copy of the files alone: no beanstalkd runs there.
        with failing(path, "cannot be opened"), contextlib.suppress(FileNotFoundError):
            handle = disk.share_lock(path)
    except LockHeldError as error:
        raise DirectoryLocked(path, error.holder, rule) from None
    try:
        yield
    finally:
        if handle is not None:
            disk.close(handle)


def write(binlog: Binlog, journal: Journal, engine: Engine, wall_ms: int) -> None:
    """Write the jobs into the journal and into the engine, which is new; the binlog forgets them.

    The engine's time is the wall clock's when it was made. Raises JournalFailed, JournalFull.
    """
    now_ms = engine.store.time_ms
    replay = Replay(engine)
    for payload in _payloads(binlog, now_ms, engine.tick_ms):
        replay.play(payload)
        journal.append(payload, now_ms, wall_ms)
    replay.finish(now_ms)


def _payloads(binlog: Binlog, now_ms: int, tick_ms: int) -> Iterator[bytes]:
    """Yield what frames are to hold, about a window of the reader each."""
    numbers = {tube: number for number, tube in enumerate(binlog.tubes, 1)}
    pieces = [pack_turn(Kind.TURN, now_ms), pack(Kind.LAST, binlog.last_id, len(numbers))]
    for tube, number in numbers.items():
        name = topic_for(tube, numbers).encode("ascii")
        pieces += (pack(Kind.TOPIC, number, len(name)), name)
    piece_bytes = 0
    for job in binlog.take_jobs():
        record = record_of(job, numbers[job.tube], now_ms, tick_ms)
        pieces += (pack_put(Kind.PUT, len(record)), record)
        piece_bytes += len(record)
        if piece_bytes > JOURNAL_WINDOW_BYTES:
            yield b"".join(pieces)
            pieces.clear()
            piece_bytes = 0
    yield b"".join(pieces)


def topic_for(tube: str, tubes: Collection[str]) -> str:
    """Return the topic that the jobs of a tube go to: of that name, unless delayd uses it itself.

    >>> topic_for("mail", ["mail"]), topic_for("$idempotency", ["mail", "$idempotency"])
    ('mail', '$idempotency.imported')
    """
    name = tube
    if tube in INTERNAL_TOPICS:
        while name in tubes:
            name += ".imported"
    return name


def record_of(job: BinlogJob, topic_number: int, now_ms: int, tick_ms: int) -> bytes:
    """Return the record that the job would have in delayd; every time is rounded up."""
    created_ms = min(now_ms, ceil_ms(job.created_ns))
    delay_ms = ceil_ms(job.delay_ns)
    # The instant at which a job that is not delayed became ready is known only if its delay ended.
    due_ms = min(now_ms, created_ms + delay_ms)
    state = State.READY
    if job.state is BinlogState.BURIED:
        state = State.BURIED
    elif job.state is BinlogState.DELAYED:
        due_ms = ceil_to_tick(ceil_ms(job.deadline_ns), tick_ms)
        if due_ms > now_ms:
            state = State.DELAYED
    tally = Tally(delay_ms, job.reserves, job.timeouts, job.releases, job.buries, job.kicks)
    has_tally = tally != Tally(max(0, due_ms - created_ms))
    head = HEADER.pack(
        job.id,
        due_ms,
        created_ms,
        ceil_ms(job.ttr_ns) or TTR_MS_FOR_ZERO,
        job.priority,
        topic_number,
        state,
        Flag.TALLY if has_tally else Flag.NONE,
    )
    return head + (TALLY.pack(*tally) if has_tally else b"") + job.body


def ceil_ms(time_ns: int) -> int:
    """Return milliseconds, rounded up: never early."""
    return -(-time_ns // NS_PER_MS)
