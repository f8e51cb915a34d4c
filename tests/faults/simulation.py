"""A whole daemon in one thread, on a simulated disk and a fake clock, with clients and with faults.

    run = Run(seed=7); run.play(); assert run.violations() == []

Everything follows from the seed: who says what, how long a sync takes and what is said meanwhile,
when the power goes and what of the un-synced reaches the platter. Engine, line protocol, group
commit, journal and snapshots are the daemon's own; what is here instead of the service is the turn.

Two modes. First *safety*: faults come as they like, and nothing that was promised may be broken.
Then *liveness*: the faults end, and everything that was acknowledged must come, in time.

It refuses to judge: it writes the history that `checker` judges. Beside that it compares what a
start makes of the disk with a replay of all frames that were ever appended.
"""

import contextlib
import errno
import math
import random
import socket
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from delayd.config import SyncPolicy
from delayd.core.background_tasks import BackgroundTasks
from delayd.core.engine import Engine
from delayd.core.errors import Refusal
from delayd.core.job_record import State, state_of
from delayd.core.log_records import UnknownRecord
from delayd.core.operations.change import bury_waiting
from delayd.core.operations.tick import next_deadline
from delayd.core.replay import Replay
from delayd.core.times import RequestMs
from delayd.journal.errors import DamageError, JournalError
from delayd.log import LogError
from delayd.net.poller import Poller
from delayd.turns import Turns
from tests.core.check import check
from tests.faults.adapter import (
    INTERVAL_MS,
    Kernel,
    Loop,
    SteppedLog,
    SteppedSnapshots,
    line_of,
    news_of,
    small_limits,
    turn,
)
from tests.faults.checker import Violation, violations
from tests.faults.clients import DEAD, DELAYS_MS, KEYS, TUBES, Client, World
from tests.faults.disk import Survives, some_survive
from tests.faults.history import History
from tests.faults.parts import (
    Daemon,
    FullReplay,
    Parts,
    Plan,
    RecordingJournal,
    Refused,
    digest,
    judge,
    seen_in,
)
from tests.faults.pushes import Pushes, unserved
from tests.faults.states import FOREVER
from tests.rigs.clock import FakeClock
from tests.rigs.disk import PowerCut
from tests.rigs.engine import put

DIRECTORY: Final = "data"
SEGMENT_BYTES: Final = 32 << 10
SYNC_MS_MAX: Final = 200
ARRIVES_SHARE: Final = 0.8
EAGER_SHARE: Final = 0.5
COMPARED_SHARE: Final = 0.005
"""How often the daemon is compared with its log, which takes as long as a start."""

APPOINTED_SHARE: Final = 0.03
APPOINTED_TTR_MS: Final = 400
BURIED_SHARE: Final = 0.02
LATE_MS_MAX: Final = 1_000
"""How long a reply may take that waits for two slow syncs, and then some."""


class Run:
    """One seed, from an empty disk to the last delivery."""

    eager_share = EAGER_SHARE

    def __init__(self, seed: int, parts: Parts | None = None, plan: Plan | None = None) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.parts = parts or Parts()
        self.plan = plan or Plan.drawn(self.rng)
        self.quick = random.Random(f"quick {seed}")
        self.burials = random.Random(f"burials {seed}")
        if plan is None:
            share = self.quick.choice((0.0, 0.0, 0.5, 1.0))
            self.plan = replace(self.plan, quick_share=share)
        self.clock = FakeClock()
        self.history = History()
        may_refuse = bool(self.plan.faults & {"full", "error"})
        now_ms, keys = self.clock.now_ms, list(KEYS)
        self.world = World(self.rng, self.history, now_ms, {}, [0, 0, 0], may_refuse, keys)
        self.pushes = Pushes(self.world, self.clock, seed) if self.plan.pushes else None
        self.disk = self.parts.disk(self._happened)
        self.payloads: dict[int, bytes] = {}
        """Every frame that was ever appended and has not been lost."""
        self.full_replay = FullReplay()
        self.acked = 0
        """The last frame that a reply depended on which had left when the daemon stopped."""
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(f"\0delayd simulation {id(self)} {seed}")
        self.listener.setblocking(False)
        self.listener.listen()
        self.daemon: Daemon | None = None
        self.left = self.plan.operations
        self.lives = 0
        self.snapshots = 0
        self.names = 0
        self.has_faults = True
        self.ends_with_a_crash = False
        """Do not go on to liveness, and leave the disk as a power cut leaves it."""

    @property
    def living(self) -> Daemon:
        """The daemon, which runs."""
        assert self.daemon is not None
        return self.daemon

    # --- From beginning to end ------------------------------------------------------------------

    def violations(self) -> list[Violation]:
        """Return what the checker has to say."""
        loss_ms: float = 0
        if self.plan.policy is SyncPolicy.INTERVAL:
            loss_ms = INTERVAL_MS + 3 * SYNC_MS_MAX
        elif self.plan.policy is SyncPolicy.NEVER:
            loss_ms = FOREVER
        late_ms = FOREVER if "full" in self.plan.faults else LATE_MS_MAX
        found = violations(self.history.entries, late_ms_max=late_ms, loss_ms=loss_ms)
        if self.pushes is not None and not loss_ms and not self.ends_with_a_crash:
            found += unserved(self.history.entries, self.pushes.taken)
        return found

    def play(self) -> None:
        """Play the whole seed."""
        with small_limits(self.clock, self.rng), self.listener:
            try:
                self._safety()
                if self.ends_with_a_crash:
                    self.disk.heal()
                    self.disk.capacity_bytes = None
                    self._start_and_crash()
                else:
                    self._liveness()
            finally:
                if self.daemon is not None:
                    self._forget("kill")

    def _safety(self) -> None:
        while self.left > 0:
            try:
                if self.daemon is None:
                    self._start()
                else:
                    self._step()
            except PowerCut:
                self._cut_power()
            daemon = self.daemon
            if daemon is not None and daemon.failure is not None:
                # What was not synced may be lost with the files that were given up.
                self._kill("power")

    def _liveness(self) -> None:
        """End all faults; everything that was acknowledged must come now."""
        self.has_faults = False
        if self.pushes is not None:
            self.pushes.has_faults = False
        self.disk.heal()
        self.disk.capacity_bytes = None
        if self.daemon is not None and self.daemon.journal.has_failed:
            self._kill("power")
        self._compare_with_its_log()
        while self.daemon is None:
            self._start()
        daemon = self.daemon
        for client in list(daemon.clients):
            self._close(client)
        self._settle()
        self._make_whole()
        self.disk.meanwhile = None
        for job_id, record in list(daemon.engine.store.jobs):
            if state_of(record) is State.BURIED:
                self._ask(self._client(), f"kick-job {job_id}", "kick", job_id)
        consumers = [self._client() for _ in range(3)]
        for consumer in consumers:
            for tube in (*TUBES, DEAD):
                self._ask(consumer, f"watch {tube}", "watch")
            consumer.watched = [*TUBES, DEAD]
        for _ in range(10_000):
            if any(consumer.is_free for consumer in consumers):
                self._consume(consumers)
            if daemon.is_drained:
                break
            deadline_ms = next_deadline(daemon.engine)
            self._pass(max(1, (deadline_ms or 0) - self.clock.now_ms()))
        self.history.note("drained", self.clock.now_ms() + LATE_MS_MAX)
        self._settle()
        self.history.observe(self.clock.now_ms(), seen_in(daemon.engine))
        self._compare_with_replay(daemon.engine, daemon.journal.appended_sequence)

    def _start_and_crash(self) -> None:
        """See to it that what has been lost is known, and leave what a crash leaves."""
        if self.daemon is not None:
            self._forget("kill")
        self.disk.kill()
        while self.daemon is None:
            self._start()
        for _ in range(5):
            self._speak(self.daemon)
            self._turn()
        self._settle()
        self._forget("kill")
        self.disk.kill()

    def _consume(self, consumers: list[Client]) -> None:
        for consumer in consumers:
            if consumer.is_free:
                for job_id in list(consumer.held):
                    consumer.say(f"delete {job_id}", "delete", job_id)
            if consumer.is_free:
                consumer.say("reserve", "reserve")
        self._turn()
        self._settle()

    def _ask(self, client: Client, line: str, kind: str, job_id: int = 0) -> None:
        client.say(line, kind, job_id)
        self._turn()
        self._settle()

    def _settle(self) -> None:
        """Let syncs end until nobody waits for one."""
        daemon = self.living
        for _ in range(100):
            self._turn()
            if daemon.commit.gathers_until_ns:
                continue
            if not daemon.commit.log.sync_is_asked:
                return
            daemon.commit.log.run_sync()

    def _make_whole(self) -> None:
        """Let the snapshot be taken until which replies are held, if they are."""
        daemon = self.living
        for _ in range(10_000):
            if daemon.commit.log.is_whole:
                return
            assert daemon.snapshots is not None
            daemon.snapshots.worker.step(may_sync_log=True)
            self._pass(1)
            self._settle()
        raise AssertionError("replies are held, and no snapshot is taken")

    # --- A step ---------------------------------------------------------------------------------

    def _step(self, *, is_nested: bool = False) -> None:
        """Let something happen; within a sync nothing that would need another."""
        daemon = self.living
        rng = self.rng
        roll = rng.random()
        if roll < 0.75:
            self._speak(daemon)
            self._turn()
        elif roll < 0.9:
            self._pass(rng.choice((1, 1, 2, 10, 50, 300)))
        elif roll < 0.93 and daemon.clients:
            self._close(rng.choice(daemon.clients))
            self._turn()
        if is_nested:
            return
        if daemon.commit.log.sync_is_asked and rng.random() < 0.6:
            self._sync(daemon)
        if daemon.snapshots is not None and rng.random() < 0.5:
            may_sync_log = not daemon.commit.log.sync_is_asked
            daemon.snapshots.worker.step(may_sync_log=may_sync_log)
        if rng.random() < 0.05:
            self._fault()
        elif rng.random() < COMPARED_SHARE:
            self._compare_with_its_log()

    def _speak(self, daemon: Daemon) -> None:
        if len(daemon.clients) < self.plan.clients:
            self._client().is_patient = self.rng.random() < 0.3
        for client in daemon.clients:
            if client.is_free and self.rng.random() < 0.7:
                client.act()
                self.left -= 1
        if self.rng.random() < APPOINTED_SHARE:
            self._appoint()
        if self.burials.random() < BURIED_SHARE and self.world.known:
            job_id = self.burials.choice([*self.world.known])
            bury = partial(bury_waiting, daemon.engine, job_id)
            self._from_within("bury-waiting", bury, job_id=job_id)
        if self.pushes is not None and daemon.failure is None:
            self.pushes.act()

    def _appoint(self) -> None:
        """Put a job for a moment of the wall clock. When it comes is for that clock to say."""
        self.world.bodies[0] += 1
        body, tube = b"body %d at" % self.world.bodies[0], self.rng.choice(TUBES)
        due_wall_ms = self.clock.wall_ms() + self.rng.choice(DELAYS_MS)
        what: dict[str, Any] = {"ttr_ms": APPOINTED_TTR_MS, "body": body}
        self.living.turns.look_at_wall_clock()
        engine = self.living.engine
        topic = engine.store.topic(tube)
        act = partial(put, engine, topic, due_wall_ms=due_wall_ms, **what)
        self._from_within(
            "put", lambda now_ms: act(now_ms=now_ms), topic=tube, wall_ms=due_wall_ms, **what
        )
        engine.store.drop_if_unwanted(topic)

    def _from_within(self, kind: str, act: Callable[[RequestMs], object], **what: object) -> None:
        """Do what the line protocol cannot say; nobody is told that it happened."""
        history, now_ms = self.history, self.clock.now_ms()
        number = history.invoke(kind, now_ms, client="within", **what)
        try:
            act(self.clock.request_ms())
        except Refusal as refusal:
            history.fail(number, now_ms, refusal.word)
        else:
            history.unknown(number, now_ms)

    def _client(self) -> Client:
        daemon = self.living
        self.names += 1
        client = Client(f"client {self.names}", self.world, self.listener.getsockname())
        daemon.clients.append(client)
        daemon.has_new_client = True
        return client

    def _close(self, client: Client) -> None:
        daemon = self.living
        number = self.history.invoke("close", self.clock.now_ms(), client=client.name)
        client.close()
        daemon.clients.remove(client)
        daemon.closing[number] = client.name

    def _sync(self, daemon: Daemon) -> None:
        """Let the sync that is asked for happen, with turns in the middle of it."""
        self.disk.meanwhile = self._meanwhile if self.rng.random() < 0.4 else None
        daemon.commit.log.run_sync()
        self.disk.meanwhile = None
        for client in daemon.clients:
            client.listen()

    def _meanwhile(self) -> None:
        """Take turns in the middle of a sync, unless who syncs keeps others from writing."""
        if self.living.journal.is_writing:
            return
        ends_ms = self.clock.now_ms() + SYNC_MS_MAX // 2
        for _ in range(self.rng.randrange(4 if "slow" in self.plan.faults else 2)):
            if self.clock.now_ms() < ends_ms:
                self._step(is_nested=True)

    def _pass(self, by_ms: int) -> None:
        """Let time pass as it does for the daemon, which wakes for each deadline."""
        daemon = self.living
        until_ms = self.clock.now_ms() + by_ms
        while (now_ms := self.clock.now_ms()) < until_ms:
            wakes = [until_ms, *(at_ms for at_ms, _ in daemon.loop.timers)]
            deadline_ms = next_deadline(daemon.engine)
            call_ms = None if self.pushes is None else self.pushes.next_ms()
            wakes += (at for at in (deadline_ms, daemon.step_ms, call_ms) if at is not None)
            self.clock.advance(max(1, min(wakes) - now_ms))
            daemon.loop.ring()
            self._turn()
            if self.pushes is not None and not self.has_faults:
                self._settle()  # nobody else does so for what the scheduler asks for meanwhile

    # --- The daemon's part ----------------------------------------------------------------------

    def _start(self) -> None:
        """Recover and serve. What an error stops is tried again later."""
        try:
            journal = self.parts.journal.open(
                DIRECTORY, disk=self.disk, segment_bytes=SEGMENT_BYTES
            )
            assert isinstance(journal, RecordingJournal)
            engine = self._recovered(journal)
        except (DamageError, UnknownRecord) as error:
            raise Refused(f"the start was refused: {error}") from error
        except JournalError:
            self.history.note("stopped", self.clock.now_ms(), how="kill")
            self.disk.kill()
            self._repair_something()
            return
        self.lives += 1
        loop = Loop(self.clock.now_ms)
        kernel = Kernel(self.disk) if self.rng.random() < 0.7 else None
        log = SteppedLog(journal, news_of(self.clock), kernel)
        commit = self.parts.commit(log, self.plan.policy, loop, self._failed, self._disk_is_quick)
        engine.log_space.jobs = len(engine.store.jobs)
        # However long a run takes, no client is too slow.
        poller, tasks = Poller(lambda: 1), BackgroundTasks(engine)
        line = line_of(engine, self.listener, self.clock, poller, tasks, commit)
        with contextlib.ExitStack() as given_up:  # a start may fail in its first turn
            given_up.callback(poller.close)
            given_up.callback(line.close)
            turns = Turns(engine, self.clock, poller, line, tasks, loop, commit, log.space)
            snapshots = None
            if "snapshots" in self.plan.faults:
                journal.is_eager = self.rng.random() < self.eager_share
                snapshots = self._new_snapshots(engine, log, loop)
            given_up.pop_all()
        commit.on_lost = self._lost
        self.daemon = Daemon(engine, journal, commit, turns, loop, snapshots, line, poller)
        self.history.note("started", self.clock.now_ms())
        if self.pushes is not None:
            self.pushes.attach(self.daemon)

    def _new_snapshots(self, engine: Engine, log: SteppedLog, loop: Loop) -> SteppedSnapshots:
        return SteppedSnapshots(engine, log, loop, self.clock, self._failed)

    def _lost(self, _what: str) -> None:
        """Have written again what an error made the journal take for lost, as the service does."""
        daemon = self.living
        if daemon.snapshots is None:
            daemon.snapshots = self._new_snapshots(daemon.engine, daemon.commit.log, daemon.loop)
        daemon.snapshots.ask_soon()

    def _disk_is_quick(self) -> bool:
        return self.quick.random() < self.plan.quick_share

    def _happened(self, what: str) -> None:
        """Note what befell the log, after the replies that had left before."""
        self._listen()
        self.history.note(what, self.clock.now_ms())

    def _listen(self) -> None:
        for client in self.daemon.clients if self.daemon else ():
            if client.asked:
                client.listen()

    def _recovered(self, journal: RecordingJournal) -> Engine:
        journal.appended_payloads = self.payloads
        replay, last = None, None
        for frame in journal.replay():
            replay = replay or Replay(Engine(start_ms=frame.time_ms))
            replay.play(frame.payload)
            last = frame
        if last is not None:
            self.clock.resume(last.time_ms, last.wall_ms)
        engine = replay.engine if replay else Engine(start_ms=self.clock.now_ms())
        if replay:
            replay.finish(self.clock.now_ms())
        now_ms, sequence = self.clock.now_ms(), journal.appended_sequence
        for lost in [number for number in self.payloads if number > sequence]:
            del self.payloads[lost]
        self._compare_with_replay(engine, sequence)
        self.world.keys[:] = KEYS
        self.acked = min(self.acked, sequence)
        for job_id in [
            job_id for job_id in self.world.known if engine.store.jobs.get(job_id) is None
        ]:
            del self.world.known[job_id]
        check(engine)
        self.history.observe(now_ms, seen_in(engine))
        return engine

    def _compare_with_replay(self, engine: Engine, sequence: int) -> None:
        """Note what the state is, and what it is after all frames up to this one."""
        now_ms = self.clock.now_ms()
        if self.daemon is not None:
            self.acked = max(self.acked, self.daemon.commit.acked)
        acked = 0
        if self.plan.policy is SyncPolicy.ALWAYS:
            acked = self.acked
        expected = self.full_replay.digest_after(self.payloads, engine.store.time_ms)
        found = digest(engine)
        self.history.note("prefix", now_ms, sequence=sequence, digest=expected, acked=acked)
        self.history.note("recovered", now_ms, digest=found)
        self.history.note("same", now_ms, of="state and full log", left=expected, right=found)

    def _compare_with_its_log(self) -> None:
        """Note that a daemon between two turns is what its log says, synced or not."""
        daemon = self.daemon
        if daemon is None or daemon.failure is not None or daemon.journal.has_failed:
            return
        engine = daemon.engine
        if not engine.log_space.is_short:  # then jobs and consumers wait side by side
            check(engine)
        left = self.full_replay.digest_after(self.payloads, engine.store.time_ms)
        what = {"of": "log and who wrote it", "left": left, "right": digest(engine)}
        self.history.note("same", self.clock.now_ms(), **what)

    def _failed(self, error: LogError) -> None:
        self.living.failure = error
        self.living.turns.is_over = True

    def _turn(self) -> None:
        daemon = self.living
        if daemon.failure is not None:
            return
        for client in daemon.clients:
            client.speak()
        if self.pushes is not None:
            self.pushes.work()
        turn(daemon.turns, daemon.poller, daemon.commit)
        if daemon.has_new_client:
            # Who has just connected is read from in the turn after.
            daemon.has_new_client = False
            turn(daemon.turns, daemon.poller, daemon.commit)
        if daemon.snapshots is not None and not daemon.turns.is_over:
            step_s = daemon.snapshots.step()
            now_ms = self.clock.now_ms()
            daemon.step_ms = None if step_s is None else now_ms + math.ceil(step_s * 1_000)
        self._listen()
        # A client whose input is still carried out has not ended yet, nor one that holds jobs.
        is_behind = (
            daemon.commit.is_backed_up or daemon.poller.yielded or daemon.engine.ended_sessions
        )
        if daemon.closing and not is_behind:
            for number in daemon.closing:
                self.history.ok(number, self.clock.now_ms())
            daemon.closing.clear()

    # --- Faults ---------------------------------------------------------------------------------

    def _fault(self) -> None:
        """Let something go wrong, now or soon."""
        faults = sorted(self.plan.faults - {"slow", "snapshots"})
        if not faults:
            return
        fault, rng, disk = self.rng.choice(faults), self.rng, self.disk
        soon = disk.call_count + rng.randrange(1, 30)
        if fault == "power":
            disk.fail(soon, PowerCut())
        elif fault == "kill":
            self._kill("kill")
        elif fault == "stop":
            self._stop()
        elif fault == "error":
            number = rng.choice((errno.EIO, errno.EIO, errno.ENOSPC, errno.EINTR))
            verb = rng.choice(("", "sync", "pwrite", "sync_directory"))
            soon = (disk.verb_counts[verb] if verb else disk.call_count) + rng.randrange(1, 9)
            disk.fail(soon, OSError(number, errno.errorcode[number]), verb)
        elif fault == "short":
            verb = rng.choice(("pread", "pwrite"))
            disk.shorten(disk.verb_counts[verb] + rng.randrange(1, 9), verb, rng.randrange(1, 60))
        elif fault == "full":
            space_bytes = rng.choice((0, 5_000, 40_000))
            is_full = disk.capacity_bytes is None or rng.random() < 0.5
            disk.capacity_bytes = (
                sum(disk.file_sizes(DIRECTORY).values()) + space_bytes if is_full else None
            )
        elif fault == "wall":
            self.clock.step_wall(rng.choice((-3_600_000, -500, 500, 3_600_000)))

    def _repair_something(self) -> None:
        """A start has failed: somebody looks after the disk, sooner or later."""
        self.clock.advance(self.rng.choice((1, 1_000, 60_000)))
        self.left -= 1
        if self.rng.random() < 0.5:
            self.disk.capacity_bytes = None

    def _kill(self, how: str) -> None:
        """The process is gone; what it has written is not."""
        self._compare_with_its_log()
        self._forget(how)
        self.disk.kill()
        if self.rng.random() < 0.3:
            self._lose_power()

    def _cut_power(self) -> None:
        self._forget("power")
        self._lose_power()

    def _lose_power(self) -> None:
        """Leave of the un-synced what chance leaves."""
        self.history.note("stopped", self.clock.now_ms(), how="power")
        self.disk.crash(self._survivors())
        self.clock.advance(self.rng.choice((0, 100, 5_000)))

    def _survivors(self) -> Survives:
        return some_survive(self.rng)

    def _forget(self, how: str) -> None:
        daemon, self.daemon = self.daemon, None
        if daemon is not None:
            self.snapshots += daemon.snapshots.taken if daemon.snapshots else 0
            self.acked = max(self.acked, daemon.commit.acked)
            for client in daemon.clients:
                # What has been sent to a client arrives, or it does not.
                if self.rng.random() < ARRIVES_SHARE:
                    client.listen()
                client.close()
            daemon.line.close()
            daemon.poller.close()
            with contextlib.suppress(BlockingIOError):  # those whom nobody has accepted
                while True:
                    self.listener.accept()[0].close()
        self.disk.meanwhile = None
        self.history.note("stopped", self.clock.now_ms(), how=how)

    def _stop(self) -> None:
        """Stop in good order, as `Service._stop` does.

        It also ends the connections that clients have closed and the daemon has not read to EOF.
        """
        daemon = self.living
        self._turn()
        if self.pushes is not None:
            self.pushes.stop()
        for name in (*(client.name for client in daemon.clients), *daemon.closing.values()):
            self.history.note("closed", self.clock.now_ms(), client=name, stops=True)
        daemon.engine.is_stopping = True
        daemon.line.close_clients()
        daemon.turns.end_turn()
        daemon.turns.is_over = True
        daemon.commit.close()
        if daemon.snapshots is not None:
            daemon.snapshots.close()
        with contextlib.suppress(JournalError):
            daemon.journal.close()
        self._forget("stop" if daemon.failure is None else "power")
        self.disk.kill()


def played(seed: int, parts: Parts | None = None, plan: Plan | None = None) -> Run:
    """Play a seed and assert that no promise was broken."""
    run = Run(seed, parts, plan)
    judge(run, f"simulation seed {seed} (--fault-seed {seed})")
    return run
