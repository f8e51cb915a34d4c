"""What a simulated run is made of: its plan, the parts that can be exchanged, one life of a daemon.

And two ways of looking at an engine: a digest of all that a restart must keep, and the jobs as
somebody would see them.
"""

import hashlib
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from delayd.config import SyncPolicy
from delayd.core.engine import Engine
from delayd.core.job_parts import Flag, attempts_of, body_of, key_of
from delayd.core.job_record import DUE_AT, FLAGS_AT, HEADER, U64, State, state_of
from delayd.core.replay import Replay
from delayd.core.retry import caught_up_expiry
from delayd.core.times import PlayedMs
from delayd.core.topic import place_of
from delayd.journal.journal import Journal
from delayd.line.server import LineServer
from delayd.log import LogError
from delayd.net.poller import Poller
from delayd.turns import Turns
from tests.core import views
from tests.core.canonical import canonical
from tests.faults.adapter import Loop, SteppedCommit, SteppedSnapshots
from tests.faults.clients import Client
from tests.faults.disk import BusyDisk
from tests.faults.history import Seen


class Refused(AssertionError):
    """A start refused what it found, though the disk has kept its word."""


class RecordingJournal(Journal):
    """Remembers every payload it was ever given, by sequence."""

    appended_payloads: dict[int, bytes]
    is_eager = False
    """Snapshots are due whenever somebody asks: a short run has few otherwise."""

    @property
    def has_failed(self) -> bool:
        """Tell whether it has given up, even if nobody was told yet."""
        return self._failure is not None

    @property
    def is_writing(self) -> bool:
        """Tell whether this thread holds the lock that others need for an append."""
        is_held: bool = self._writing._is_owned()  # type: ignore[attr-defined]
        return is_held

    def snapshot_is_due(self, live_bytes: int) -> bool:
        is_due = super().snapshot_is_due(live_bytes)
        return is_due or (self.is_eager and (self._snapshot is None or self._snapshot.is_over))

    def append(self, payload: bytes, time_ms: int, wall_ms: int) -> int:
        sequence = super().append(payload, time_ms, wall_ms)
        self.appended_payloads[sequence] = payload
        return sequence


@dataclass(frozen=True)
class Parts:
    """What a run is built from; planted faults exchange some of it."""

    disk: type[BusyDisk] = BusyDisk
    journal: type[RecordingJournal] = RecordingJournal
    commit: type[SteppedCommit] = SteppedCommit


@dataclass(frozen=True)
class Plan:
    """What a seed has in store."""

    policy: SyncPolicy = SyncPolicy.ALWAYS
    clients: int = 3
    operations: int = 150
    faults: frozenset[str] = frozenset(
        ("power", "kill", "stop", "error", "short", "full", "slow", "snapshots", "wall")
    )
    quick_share: float = 0.0
    """In so many of the turns the disk has been quick, so that the turn itself syncs."""
    pushes: bool = False
    """There are jobs with targets, and a receiver (`pushes`)."""

    @classmethod
    def drawn(cls, rng: random.Random) -> "Plan":
        """Let chance decide; half of the seeds leave something out, so that it cannot hide much."""
        policy = rng.choices(tuple(SyncPolicy), (8, 1, 1))[0]
        every = sorted(cls().faults)
        faults = every if rng.random() < 0.5 else rng.sample(every, rng.randrange(len(every)))
        return cls(policy, rng.randrange(1, 5), rng.randrange(60, 240), frozenset(faults))


def judge(run: Any, about: str) -> None:  # noqa: ANN401 - a run of any simulation
    """Play it, and assert that no promise was broken."""
    try:
        run.play()
    except Exception as error:
        error.add_note(about)
        raise
    found = run.violations()
    assert not found, f"{about}: {found[0]}"


def digest(engine: Engine) -> str:
    """Return a hash of all that a restart must keep.

    But for the last id: one that was taken and never came to a record may be given again.
    """
    state = hashlib.sha256()
    for values in canonical(engine):
        if values[0] != "last id":
            state.update(repr(values).encode())
    return state.hexdigest()


class FullReplay:
    """A replay of all frames that were ever appended, which goes on where it was when last asked.

    It begins anew when one of those that it has played was lost.
    """

    def __init__(self) -> None:
        self._replay = Replay(Engine(start_ms=0))
        self._played: list[bytes] = []

    def digest_after(self, payloads: Mapping[int, bytes], time_ms: int) -> str:
        """Return the digest of what all these frames make, one after the other, as of that time."""
        frames = [payloads[number] for number in sorted(payloads)]
        if frames[: len(self._played)] != self._played:
            self._replay, self._played = Replay(Engine(start_ms=0)), []
        for frame in frames[len(self._played) :]:
            self._replay.play(frame)
        self._played = frames
        engine = self._replay.engine
        played_ms = engine.store.time_ms
        engine.store.time_ms = PlayedMs(max(played_ms, time_ms))
        found = digest(engine)
        engine.store.time_ms = played_ms
        return found


def seen_in(engine: Engine) -> list[Seen]:
    """Return all jobs as somebody would see them now."""
    store = engine.store
    jobs = []
    for job_id, record in views.live_jobs(store):
        holder = store.leases.sessions.get(job_id)
        seen_ms = None if holder is None else holder.deadlines[job_id]
        if seen_ms is not None and seen_ms > store.time_ms:
            state, now = "reserved", record
        else:
            now = record if seen_ms is None else _lapsed(engine, record, seen_ms)
            state, seen_ms = state_of(now).name.lower(), None
            if state == "delayed":
                due_ms: int = U64.unpack_from(now, DUE_AT)[0]
                state, seen_ms = ("ready", None) if due_ms <= store.time_ms else (state, due_ms)
        priority: int = HEADER.unpack_from(now)[4]
        attempts = attempts_of(now) if now[FLAGS_AT] & Flag.FAILURE else -1
        whose = (store.topic_of(now).name, key_of(now).decode(), attempts)
        jobs.append(Seen(job_id, state, body_of(now), seen_ms, priority, *whose))
    return jobs


def _lapsed(engine: Engine, record: bytes, deadline_ms: int) -> bytes:
    """Return the record of a job whose ttr has run out, whether or not its slice has come."""
    store = engine.store
    topic = store.topic_of(record)
    return caught_up_expiry(
        record,
        topic.policy,
        place_of(topic),
        deadline_ms,
        tick_ms=store.tick_ms,
        time_ms=store.time_ms,
    )


@dataclass
class Daemon:
    """One life of the daemon."""

    engine: Engine
    journal: RecordingJournal
    commit: SteppedCommit
    turns: Turns
    loop: Loop
    snapshots: SteppedSnapshots | None
    line: LineServer
    poller: Poller
    clients: list[Client] = field(default_factory=list)
    closing: dict[int, str] = field(default_factory=dict)
    """Closes of which the daemon has not heard, and whose connections they are of."""
    has_new_client: bool = False
    failure: LogError | None = None
    step_ms: int | None = None

    @property
    def is_drained(self) -> bool:
        """Tell whether no job will come any more: those that are left are buried."""
        store = self.engine.store
        is_buried = (state_of(record) is State.BURIED for _, record in store.jobs)
        return not store.leases.sessions and all(is_buried)
