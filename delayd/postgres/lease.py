"""The lease of the log: as its owner relies on it, and as a standby waits for its end.

Both count by a clock of this machine that goes on while it is suspended. That of the database is
set by a failover, either way; it only tells how old a lease is that is seen for the first time.

    owner      statement sent ├──── relied on for the lease, less a margin ────┤
    database        └─ prolonged ├───────────── the lease ─────────────┤
    standby                          seen ├───────────── the lease ─────────────┤ free
"""

from typing import final

from delayd.clock import NS_PER_MS, boot_ns
from delayd.limits import DATABASE_LEASE_MARGIN_PARTS
from delayd.postgres.rows import LogRow


@final
class OwnLease:
    """The lease of this daemon, which each of its statements prolongs."""

    def __init__(self, lease_ms: int) -> None:
        """Begin without one."""
        self._lease_ns = lease_ms * NS_PER_MS
        self._ends_ns = 0

    def prolong(self, began_ns: int) -> None:
        """Rely on it from before the statement that prolonged it was sent, by the boot clock."""
        self._ends_ns = began_ns + self._lease_ns - self._lease_ns // DATABASE_LEASE_MARGIN_PARTS

    def drop(self) -> None:
        """Rely on it no more."""
        self._ends_ns = 0

    @property
    def left_ns(self) -> int:
        """How long it goes on for certain; negative or 0: it may be over."""
        return self._ends_ns - boot_ns()

    @property
    def is_due(self) -> bool:
        """Whether a third of it is over, and it should be prolonged."""
        return self.left_ns < self._lease_ns * 2 // 3


@final
class OthersLease:
    """The lease of the owner of the log, watched by a standby."""

    def __init__(self) -> None:
        """Begin before the first look."""
        self._seen_us: int | None = None  # when it ends, by the database's clock
        self._ends_ns = 0

    def is_over(self, row: LogRow) -> bool:
        """Tell whether it has not been prolonged for its whole length."""
        if row.lease_us != self._seen_us:
            left_us = row.lease_ms * 1_000 * bool(row.lease_us)
            if self._seen_us is None:
                left_us = min(left_us, row.lease_us - row.now_us)
            self._seen_us, self._ends_ns = row.lease_us, boot_ns() + left_us * 1_000
        return boot_ns() >= self._ends_ns

    @property
    def was_seen(self) -> bool:
        """Whether there has been a look at it."""
        return self._seen_us is not None
