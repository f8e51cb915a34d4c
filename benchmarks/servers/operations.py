"""What is done to each server, and what a reading of it is.

Every reading ends when all that was sent is answered, and is then judged: the jobs that the server
says it has, and those that arrived, have to be those that were put.
"""

import contextlib
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from benchmarks.line import ServerSilentError
from benchmarks.processes import resident_bytes, wake_ups
from benchmarks.registry import Bench, Durability, NotMeasuredError, Values
from benchmarks.servers.account import JobAccount
from benchmarks.servers.generator import (
    WARM_UP_PART,
    Load,
    Putting,
    Taking,
    Tally,
    clock,
    connections,
    paced,
)
from benchmarks.servers.peer import Filling, Loaded, Peer, Reached, Running

SECONDS_SHARE: Final = 0.4
"""Of a reading's time elsewhere: with a score of servers the chapter would take an hour."""
HOUR_MS: Final = 3_600_000
FILL: Final = Load(connections=50, in_flight=20)
"""How jobs are put that a reading needs: its connections and in flight."""
FILL_BYTES_MAX: Final = 512 << 20
JOBS_A_SECOND_MAX: Final = 100_000
"""More than any of them hands out; so many are there before jobs are taken, or as many as can be
put in the time in which they are taken."""

MIXED_DELAY_MS_MAX: Final = 1_000
STEP: Final = 389
"""A prime near the golden section of a thousand: neighbours get delays that lie far apart."""
MIXED_STANDING_MAX: Final = 50_000
"""Puts wait while so many jobs are not taken yet: what nobody takes in time says nothing."""

FOOTPRINT_JOBS_MIN: Final = 10_000
"""With fewer jobs the memory and the log of one would be those of the pages they are on."""
FILL_S_MAX: Final = 600.0
"""A subject is given the time that it needs for a million jobs, but not more than this."""
FILL_TRIAL_S: Final = 4.0
"""After this it is clear how long they take."""
IDLE_JOBS: Final = 10_000
SETTLE_SHARE: Final = 0.5
"""Of a reading's time: what a server finishes after a load, before it is called idle."""
RECOVERY_JOBS: Final = 1_000_000
LAST_SYNC_S: Final = 1.5
"""After this all that was acknowledged is on disk, under each policy that keeps anything."""


class Reading(NamedTuple):
    """What is read once."""

    peer: Peer
    running: Running
    load: Load
    bench: Bench
    account: JobAccount
    """A new one."""


def no_delay() -> int:
    """Return the delay of a job that is ready at once."""
    return 0


def an_hour() -> int:
    """Return a delay that does not pass while anything is measured."""
    return HOUR_MS


def never() -> bool:
    """Say that it is not over yet."""
    return False


def fill(
    running: Reached,
    account: JobAccount,
    load: Load,
    jobs: int,
    delay_ms: Callable[[], int],
    seconds: float = FILL_S_MAX,
) -> None:
    """Put so many jobs, or as many as go in this time."""
    tally = Tally(account, room_for_puts=lambda _: 0)
    tally.puts = already = account.jobs

    def room(wanted: int) -> int:
        left = already + jobs - account.jobs
        return 0 if tally.is_stopping else min(wanted, left)

    tally.room_for_puts = room
    with connections(0) as opened:
        for client in opened.open(running, load.connections, load.body_bytes):
            opened.begin(client, Putting(client, tally, delay_ms), load.in_flight)
        opened.run(seconds, lambda: tally.is_quiet)
        tally.is_stopping = True
        opened.run(float("inf"), lambda: tally.is_quiet)


def empty(running: Reached, account: JobAccount, load: Load) -> None:
    """Take all jobs that are there, which are ready, and acknowledge them."""
    left = account.jobs - account.taken
    tally = Tally(account)
    tally.puts = account.jobs
    tally.room_for_takes = lambda wanted: min(wanted, left - tally.asked)
    with connections(0) as opened:
        for client in opened.open(running, load.connections, load.body_bytes):
            opened.begin(client, Taking(client, tally, times_takes=False), load.in_flight)
        opened.run(float("inf"), lambda: tally.is_quiet)


def judged(tally: Tally, standing: int) -> dict[str, float]:
    """Return what must be 0; `standing` is how many of its jobs the server has.

    Raises `ServerSilentError` if answers are missing, and no job is.
    """
    verdict = tally.account.verdict(standing)
    if not tally.is_quiet and not any(verdict.values()):
        raise ServerSilentError("not everything was answered")
    return verdict


class Footprint:
    """The memory and the log of a server, since the beginning of a reading."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._resident = resident_bytes(running.processes())
        self._log = running.log_bytes()

    def of_each(self, jobs: int) -> dict[str, float]:
        """Return how many bytes each of so many jobs has added."""
        log = self._running.log_bytes() - self._log  # waits until it is not written anew
        resident = resident_bytes(self._running.processes()) - self._resident
        found = {"resident_bytes": resident / jobs}
        return found | {"log_bytes": log / jobs} if log else found


def closed_puts(
    running: Loaded,
    account: JobAccount,
    load: Load,
    seconds: float,
    standing: Callable[[], int],
    delay_ms: Callable[[], int] = an_hour,
    *,
    keyed: bool = False,
) -> dict[str, float]:
    """Put as fast as answers come; `standing()` is how many jobs of the account there are."""
    tally = Tally(account)
    tally.puts = account.jobs
    tally.room_for_puts = lambda wanted: 0 if tally.is_stopping else wanted
    with connections(0) as opened:
        for client in opened.open(running, load.connections, load.body_bytes):
            opened.begin(client, Putting(client, tally, delay_ms, keyed=keyed), load.in_flight)
        warm_up = (seconds * WARM_UP_PART, never)
        values = paced(opened, running, tally, lambda: tally.puts, seconds, warm_up)
    return values | judged(tally, standing())


def closed_takes(
    running: Loaded,
    account: JobAccount,
    load: Load,
    seconds: float,
    standing: Callable[[], int],
    poll_pause_s: float = 0.0,
) -> dict[str, float]:
    """Take jobs that are ready and acknowledge each, as fast as answers come; a job counts once."""
    ready = account.jobs - account.taken
    tally = Tally(account)
    tally.puts = account.jobs

    def room(wanted: int) -> int:
        return 0 if tally.is_stopping else min(wanted, ready - tally.asked)

    tally.room_for_takes = room
    with connections(poll_pause_s) as opened:
        for client in opened.open(running, load.connections, load.body_bytes):
            opened.begin(client, Taking(client, tally, times_takes=True), load.in_flight)
        warm_up_jobs = ready * WARM_UP_PART
        warm_up = (seconds * WARM_UP_PART, lambda: tally.finished >= warm_up_jobs)
        values = paced(opened, running, tally, lambda: tally.finished, seconds, warm_up)
    return values | judged(tally, standing())


def put(reading: Reading, *, keyed: bool = False) -> Values:
    """Put jobs that are due in an hour."""
    _, running, load, bench, account = reading
    before, footprint = running.standing(), Footprint(running)
    standing = lambda: running.standing() - before  # noqa: E731
    seconds = bench.seconds * SECONDS_SHARE
    values = closed_puts(running, account, load, seconds, standing, keyed=keyed)
    jobs = account.jobs
    return values | (footprint.of_each(jobs) if jobs >= FOOTPRINT_JOBS_MIN else {})


def keyed_put(reading: Reading) -> Values:
    """Put jobs that are due in an hour, each under a key of its own."""
    return put(reading, keyed=True)


def reserve_and_acknowledge(reading: Reading) -> Values:
    """Take ready jobs, and acknowledge each; a job counts once."""
    peer, running, load, bench, account = reading
    before = running.standing()
    standing = lambda: running.standing() - before  # noqa: E731
    seconds = bench.seconds * SECONDS_SHARE
    whole = seconds * (1 + WARM_UP_PART)
    jobs = min(bench.entries(int(JOBS_A_SECOND_MAX * whole)), FILL_BYTES_MAX // load.body_bytes)
    fill(running, account, replace(FILL, body_bytes=load.body_bytes), jobs, no_delay, whole)
    return closed_takes(running, account, load, seconds, standing, peer.poll_pause_s)


def mixed(reading: Reading) -> Values:
    """Put due jobs on half of the connections, and take and acknowledge them on the others.

    Jobs are due in 0 to 1 s, which is also the warm-up. The rate is that of the jobs that came out;
    times are those of puts and acknowledgements, since a take waits until a job is due. In the end
    so many jobs are put, or taken, that none is left and no take waits.
    """
    peer, running, load, bench, account = reading
    seconds = bench.seconds * SECONDS_SHARE
    before = running.standing()
    tally = Tally(account)

    def room_for_puts(wanted: int) -> int:
        left = tally.asked if tally.is_stopping else account.taken + MIXED_STANDING_MAX
        return min(wanted, max(left - account.jobs, 0))

    def room_for_takes(wanted: int) -> int:
        if tally.is_giving_up:
            return 0
        return min(wanted, account.jobs - tally.asked) if tally.is_stopping else wanted

    tally.room_for_puts, tally.room_for_takes = room_for_puts, room_for_takes
    longest_ms = min(MIXED_DELAY_MS_MAX, int(bench.seconds * 1_000))
    delays_ms = delays(longest_ms, peer.delay_unit_ms)
    with connections(peer.poll_pause_s) as opened:
        clients = opened.open(running, load.connections, load.body_bytes)
        half = len(clients) // 2
        for client in clients[:half]:
            opened.begin(client, Putting(client, tally, delays_ms.__next__), load.in_flight)
        for client in clients[half:]:
            opened.begin(client, Taking(client, tally, times_takes=False), load.in_flight)
        warm_up = (longest_ms / 1_000, never)
        values = paced(opened, running, tally, lambda: tally.finished, seconds, warm_up)
    return values | judged(tally, running.standing() - before)


def delays(longest_ms: int, unit_ms: int) -> Iterator[int]:
    """Yield delays from 0 to the longest, in another order than that in which they come due.

    >>> list(itertools.islice(delays(1_000, 1_000), 4))
    [0, 1000, 0, 1000]
    """
    units = longest_ms // unit_ms + 1
    step = 1 if units <= STEP else STEP
    for number in itertools.count():
        yield number * step % units * unit_ms


def recovery(reading: Reading) -> Values:
    """Put a million jobs, kill the server and start it again, until it serves with all of them.

    What keeps nothing gives only the memory of a job.
    """
    peer, running, load, bench, account = reading
    before, footprint = running.standing(), Footprint(running)
    jobs = bench.entries(RECOVERY_JOBS)
    if isinstance(running, Filling):
        first = account.put(jobs, clock() + HOUR_MS / 1_000)
        running.fill_by_itself(first, jobs, HOUR_MS, load.body_bytes)
    else:
        fill(running, account, load, jobs, an_hour, FILL_TRIAL_S)
        needs_s = FILL_TRIAL_S * jobs / max(account.jobs, 1)
        if needs_s > FILL_S_MAX:
            raise NotMeasuredError(f"{jobs:,} jobs take {needs_s / 60:,.0f} minutes to put")
        fill(running, account, load, jobs - account.jobs, an_hour, 2 * FILL_S_MAX)
    values = footprint.of_each(jobs)
    verdict = account.verdict(running.standing() - before)
    if peer.policy is not Durability.IN_MEMORY and not any(verdict.values()):
        if peer.policy is not Durability.BEFORE_ANSWER:
            time.sleep(LAST_SYNC_S)
        values["recovery_s"] = running.restart()
        verdict = account.verdict(running.standing() - before)
    return values | verdict


def idle(reading: Reading) -> Values:
    """Count how often a server wakes up that has jobs, but nothing to do for an hour."""
    _, running, load, bench, account = reading
    before = running.standing()
    fill(running, account, load, bench.entries(IDLE_JOBS), an_hour)
    verdict = account.verdict(running.standing() - before)
    time.sleep(SETTLE_SHARE * bench.seconds)
    processes = running.processes()
    woken = wake_ups(processes)
    window_s = bench.seconds
    time.sleep(window_s)
    return {"wake_ups": (wake_ups(processes) - woken) / window_s, **verdict}


Operation = Callable[[Reading], Values]

OPERATIONS: Final[Mapping[str, Operation]] = MappingProxyType(
    {
        "put": put,
        "keyed put": keyed_put,
        "mixed": mixed,
        "reserve + ack": reserve_and_acknowledge,
        "idle": idle,
        "recovery": recovery,
    }
)


@contextlib.contextmanager
def serving(peer: Peer, bench: Bench) -> Iterator[Running]:
    """Run a server on an empty directory."""
    with (
        tempfile.TemporaryDirectory(dir=bench.directory) as directory,
        peer.serve(bench, Path(directory)) as running,
    ):
        yield running


def measure(peer: Peer, operation: Operation, load: Load, bench: Bench) -> Values:
    """Run a server on an empty directory and take one reading of it."""
    with serving(peer, bench) as running:
        return operation(Reading(peer, running, load, bench, JobAccount()))
