"""The state of one daemon: what the operations (`core.operations`) decide on and change.

Besides the store it has what the current turn has gathered so far (records for the log, and
deliveries for consumers whose wait has ended) and the caps and flags of the whole daemon.

    record(kind, *fields)     takes log space, or raises `OutOfSpace`; packs by the table, records
    write(record)             the same for a record that is packed
    write_promised(record)    records what log space was set aside for
    stamp()                   records how far time has been played, once before a turn's records

It refuses to know what the records mean and where they go.
"""

from typing import final

from delayd.core.log_space import LogSpace
from delayd.core.names import DEFAULT_TOPIC
from delayd.core.records import LAYOUTS, Kind, pack, pack_turn
from delayd.core.session import Delivery, Session
from delayd.core.store import Store


@final
class EngineState:
    """Everything that one engine knows."""

    __slots__ = (
        "acts_as_daemon",
        "body_bytes_max",
        "bytes_max",
        "deliveries",
        "draining",
        "is_crowded",
        "is_stopping",
        "jobs_max",
        "last_wait",
        "log",
        "log_space",
        "must_sync",
        "out_of_order_ids",
        "places_next",
        "store",
        "tick_ms",
        "timeouts",
        "turn_ms",
        "waits",
    )

    def __init__(self, start_ms: int, tick_ms: int, wheel_size: int, body_bytes_max: int) -> None:
        """Start without jobs at `start_ms` of delayd time."""
        self.store = Store(tick_ms, wheel_size, start_ms)
        self.tick_ms = tick_ms
        self.log_space = LogSpace()
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
        """Operations now come from the daemon itself and may change the internal topic."""
        self.timeouts = 0
        """Reservations whose ttr ran out, since the start."""
        self.log: list[bytes] = []
        self.must_sync = False
        """Replies must wait until the log is synced."""
        self.turn_ms = -1
        """The last time that was recorded."""
        self.deliveries: list[Delivery] = []
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

    def take_log(self) -> tuple[list[bytes], bool]:
        """Return the records since the last call, and whether replies must wait for their sync.

        Only handing out a job need not wait: if lost, the job is handed out once more.
        """
        log, must_sync = self.log, self.must_sync
        if log:
            self.log = []
            self.must_sync = False
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
