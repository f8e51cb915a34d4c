"""What the simulation does without a client: to an engine from within, and to what a crash leaves.

It does not know when.
"""

import contextlib
import random
import socket
from collections.abc import Callable, Mapping
from typing import Final

from delayd.core.engine import Engine
from delayd.core.errors import Refusal
from delayd.core.operations.change import bury_waiting
from delayd.core.replay import Replay
from delayd.core.times import PlayedMs
from delayd.journal.errors import JournalError
from tests.core.check import check
from tests.faults.clients import DELAYS_MS, TUBES, World
from tests.faults.history import History
from tests.faults.parts import Daemon, digest
from tests.rigs.clock import FakeClock
from tests.rigs.disk import Piece
from tests.rigs.engine import put

APPOINTED_TTR_MS: Final = 400
Survives = Callable[[Piece], bool]
"""Which of the un-synced pieces reach the disk."""


def appoint(daemon: Daemon, world: World, clock: FakeClock) -> None:
    """Put a job for a moment of the wall clock, which the line protocol cannot say.

    Nobody is told that it happened; and when it comes is for the wall clock to say.
    """
    now_ms = clock.now_ms()
    world.bodies[0] += 1
    body, tube = b"body %d at" % world.bodies[0], world.rng.choice(TUBES)
    due_wall_ms = clock.wall_ms() + world.rng.choice(DELAYS_MS)
    what = {"topic": tube, "ttr_ms": APPOINTED_TTR_MS, "body": body, "wall_ms": due_wall_ms}
    number = world.history.invoke("put", now_ms, client="within", **what)
    daemon.turns.look_at_wall_clock()
    topic = daemon.engine.store.topic(tube)
    try:
        put(
            daemon.engine,
            topic,
            priority=0,
            due_wall_ms=due_wall_ms,
            ttr_ms=APPOINTED_TTR_MS,
            body=body,
            now_ms=clock.request_ms(),
        )
    except Refusal as refusal:
        world.history.fail(number, now_ms, refusal.word)
        daemon.engine.store.drop_if_unwanted(topic)
    else:
        world.history.unknown(number, now_ms)


def bury(daemon: Daemon, world: World, clock: FakeClock, rng: random.Random) -> None:
    """Bury a job that waits, which the line protocol cannot say; nobody is told that it happened.

    One that somebody holds, or that is buried or gone, is refused.
    """
    if not world.known:
        return
    now_ms, job_id = clock.now_ms(), rng.choice([*world.known])
    number = world.history.invoke("bury-waiting", now_ms, client="within", job_id=job_id)
    try:
        bury_waiting(daemon.engine, job_id, clock.request_ms())
    except Refusal as refusal:
        world.history.fail(number, now_ms, refusal.word)
    else:
        world.history.unknown(number, now_ms)


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


def compare_with_log(
    engine: Engine,
    payloads: Mapping[int, bytes],
    history: History,
    now_ms: int,
    full: FullReplay,
) -> None:
    """Note what the engine is, and what a replay of all that it has logged makes."""
    if not engine.log_space.is_short:  # then jobs and consumers wait side by side
        check(engine)
    left, right = full.digest_after(payloads, engine.store.time_ms), digest(engine)
    history.note("same", now_ms, of="log and who wrote it", left=left, right=right)


def survivors(rng: random.Random) -> Survives:
    """Let chance decide what of the un-synced reaches the disk, and how much."""
    share = rng.choice((0.0, 0.1, 0.5, 0.9, 1.0))
    return lambda _piece: rng.random() < share


def drain_backlog(listener: socket.socket) -> None:
    """Let those go whom nobody has accepted before the daemon ended."""
    with contextlib.suppress(BlockingIOError):
        while True:
            listener.accept()[0].close()


def stop_in_order(daemon: Daemon, history: History, now_ms: int) -> None:
    """Do what `Service._stop` does, after its last turn.

    Whoever has closed a connection whose end the daemon has not read leaves by the stop as well.
    """
    for name in (*(client.name for client in daemon.clients), *daemon.closing.values()):
        history.note("closed", now_ms, client=name, stops=True)
    daemon.engine.is_stopping = True
    daemon.line.close_clients()
    daemon.turns.end_turn()
    daemon.turns.is_over = True
    daemon.commit.close()
    if daemon.snapshots is not None:
        daemon.snapshots.close()
    with contextlib.suppress(JournalError):
        daemon.journal.close()
