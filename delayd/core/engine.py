"""The engine: the state of one daemon, which the operations decide on and change.

The operations are functions over it, by subject, in `core.operations`; their docstrings say what
each does and raises. Every operation has the same steps. *Decide*: check, and raise a `Refusal`
before anything has changed. *Record*: append to the log what a restart must know. *Apply*: have the
store carry it out, with the functions that replay uses. The caller then takes the log (`take_log`),
makes it durable and only then lets the replies go; and it takes the deliveries
(`take_deliveries`), for consumers whose wait has ended.

    record(kind, *fields)     takes log space, or raises `OutOfSpace`; packs by the table, records
    write(record)             the same for a record that is packed
    write_promised(record)    records what log space was set aside for
    stamp()                   records how far time has been played, once before a turn's records

Time is an argument, in two roundings (`core.times`) so that nothing is early in either. Requests
carry `now_ms` rounded *up*: a delay or ttr counted from it is never too short. `advance`
takes the time rounded *down*: what it fires is due. `store.time_ms` is how far time has been
played; what was due by then has happened, or, where a slice has not come to it yet, is made to
happen when an operation asks for the job.

>>> from delayd.core.operations.tick import advance, next_deadline
>>> from delayd.core.operations.put import put_alike
>>> from delayd.core.operations.reserve import reserve
>>> from delayd.core.operations.sessions import open_session
>>> engine = Engine(start_ms=0)
>>> session = open_session(engine)
>>> used = session.used
>>> put_alike(engine, used, 0, 1_000, 60_000, [b"hi"], now_ms=0)
1
>>> while advance(engine, 999): pass
>>> reserve(engine, session, 999), next_deadline(engine)
(None, 1000)
>>> advance(engine, 1_000)
True
>>> reserve(engine, session, 1_000)
(1, b'hi')

Operations run hundreds of thousands of times a second: plain arguments and plain values, no objects
in between.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, final

from delayd.core.log_records import LAYOUTS, Kind, pack, pack_turn
from delayd.core.log_space import LogSpace
from delayd.core.names import DEFAULT_TOPIC
from delayd.core.reminder import Reminder
from delayd.core.session import Delivery, Session
from delayd.core.store import Store
from delayd.core.times import PlayedMs
from delayd.limits import (
    BODY_BYTES_DEFAULT,
    RETURN_SEARCHES_PER_TURN,
    RETURNS_PER_TURN,
    WHEEL_SIZE_DEFAULT,
    WHEEL_TICK_MS_DEFAULT,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from delayd.core.targets import Target


@final
class Engine:
    """Everything that one daemon knows of jobs, and what the current turn has gathered so far.

    That is records for the log, and deliveries for consumers whose wait has ended.
    """

    __slots__ = (
        *("acts_as_daemon", "body_bytes_max", "bytes_max", "deliveries", "draining"),
        *("ended_sessions", "is_calling", "is_crowded", "is_stopping", "jobs_max", "last_wait"),
        *("log", "log_space", "must_sync", "on_own_job_due", "out_of_order_ids", "places_next"),
        *("returns_left", "searches_left", "store", "tick_ms", "turn_ms", "vet_target", "vet_use"),
        *("waits", "watchers_gone"),
    )

    def __init__(
        self,
        *,
        start_ms: int,
        tick_ms: int = WHEEL_TICK_MS_DEFAULT,
        wheel_size: int = WHEEL_SIZE_DEFAULT,
        body_bytes_max: int = BODY_BYTES_DEFAULT,
    ) -> None:
        self.store: Final = Store(tick_ms, wheel_size, PlayedMs(start_ms))
        self.tick_ms = tick_ms
        self.log_space: Final = LogSpace()
        self.body_bytes_max = body_bytes_max
        self.jobs_max: int | None = None
        """The cap on the jobs of all topics together; None: there is none."""
        self.bytes_max: int | None = None
        """The cap on their records."""
        self.draining = False
        """Puts are refused."""
        self.is_stopping = False
        """The daemon closes the connections itself: no attempt has failed."""
        self.acts_as_daemon = False
        """Operations now come from the daemon itself and may change the internal topics."""
        self.vet_target: Callable[[Target], Target] | None = None
        """Returns the target of a push as it is to be kept, or raises `TargetRefused`; None: push
        is off."""
        self.vet_use: Callable[[Target, str], None] | None = None
        """Raises `NotForTopic` if jobs of the topic may not use the target; None: all may."""
        self.is_calling: Callable[[], bool] | None = None
        """Tells whether jobs are pushed now, for which a clock that stands still has to wait; None:
        time passes by itself."""
        self.on_own_job_due: Callable[[], None] | None = None
        """Called when jobs of an internal topic have come due; may look at nothing, and only set a
        reminder."""
        self.log: list[bytes] = []
        self.must_sync = False
        """Replies must wait until the log is synced."""
        self.turn_ms = -1
        """The last time that was recorded."""
        self.deliveries: list[Delivery] = []
        self.ended_sessions: deque[tuple[Session, list[int]]] = deque()
        """Sessions that have ended, and the jobs that are still to be taken from each, the last
        first; see `operations.sessions`."""
        self.watchers_gone: deque[Session] = deque()
        """Sessions that have ended and cease to watch in slices."""
        self.returns_left = RETURNS_PER_TURN
        """How many jobs may come back at once in this turn because their sessions end."""
        self.searches_left = RETURN_SEARCHES_PER_TURN
        """How many more may come back in vain because a reserve finds nothing ready."""
        self.waits: dict[int, Session] = {}
        """Number of a wait → the consumer that waits, the longest first."""
        self.last_wait = 0
        self.out_of_order_ids: list[int] = []
        """Jobs put with ids that were taken before those of other jobs, for the next reader."""
        self.places_next = True
        """The next slice places jobs again whose wall-clock times have moved, if there are any."""
        self.is_crowded = False
        """The last slice fired jobs, and its lane has more due now."""
        self.store.topic(DEFAULT_TOPIC)

    @property
    def record_bytes(self) -> int:
        """The length of the records of all jobs together."""
        return self.store.jobs.put_bytes - LAYOUTS[Kind.PUT].size * self.log_space.jobs

    def remind(self, reminder: Reminder, at_ms: int) -> None:
        """Have it ring at this time, or now if that is past; a sooner time set before is kept."""
        alarms = self.store.alarms
        if reminder.alarm is not None:
            if reminder.at_ms <= at_ms:
                return
            alarms.cancel(reminder.alarm)
        reminder.at_ms = at_ms
        reminder.alarm = alarms.add(at_ms, reminder, self.store.time_ms)

    @property
    def awaits_calls(self) -> bool:
        """Tell whether time must stand still until jobs that are pushed have been answered."""
        return self.is_calling is not None and self.is_calling()

    def stamp(self) -> None:
        """Record how far time has been played, when a record is about to follow."""
        self.turn_ms = self.store.time_ms
        self.log.append(pack_turn(Kind.TURN, self.turn_ms))

    def record(self, kind: Kind, *fields: int, tail: bytes | None = None) -> None:
        """Record what `core.apply` is about to carry out, or raise `OutOfSpace`."""
        self.write(pack(kind, *fields, tail=tail))

    def write(self, record: bytes, more_bytes: int = 0) -> None:
        """Record what is about to be done, or raise `OutOfSpace`.

        `more_bytes` of log space are taken besides.
        """
        self.log_space.take(2 * len(record) + more_bytes)
        self.write_promised(record)

    def write_promised(self, record: bytes) -> None:
        """Record what log space was set aside for."""
        if self.turn_ms != self.store.time_ms:
            self.stamp()
        self.log.append(record)
        self.must_sync = True

    @contextmanager
    def one_item(self) -> Iterator[None]:
        """Have what is recorded inside the block in the log whole, or not at all.

        A turn that fits no file or row whole is divided, but only between items.
        """
        first = len(self.log)
        try:
            yield
        finally:
            if len(self.log) > first:
                self.log[first:] = [b"".join(self.log[first:])]

    def take_log(self) -> tuple[list[bytes], bool]:
        """Return the records since the last call, and whether replies must wait for their sync.

        Only handing out a job need not wait: if lost, the job is handed out once more.
        """
        log, must_sync = self.log, self.must_sync
        if log:
            self.log = []
            self.must_sync = False
            self.returns_left = RETURNS_PER_TURN
            self.searches_left = RETURN_SEARCHES_PER_TURN
        return log, must_sync

    def take_deliveries(self) -> list[Delivery]:
        """Return the consumers whose wait has ended since the last call, with what they get."""
        deliveries = self.deliveries
        if deliveries:
            self.deliveries = []
        return deliveries

    def take_out_of_order_ids(self) -> list[int]:
        """Return the ids put out of order since the last call."""
        job_ids, self.out_of_order_ids = self.out_of_order_ids, []
        return job_ids
