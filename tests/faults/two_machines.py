"""Two or three daemons and one database with faults, on virtual time, with clients, from one seed.

    run = MachinesRun(seed=7); run.play(); assert run.violations() == []

Log, lease, snapshots, group commit, turns, clock and engine are the daemon's own, over a database
in memory (`database`). In place of the front ends there are clients who call operations, and whose
answers leave with the group commit as those of a connection do. Each daemon may be paused, killed
or stopped at each of its waits and between two callbacks; what has ended is started again.

First *safety*: faults come as they like. Then *liveness*: they end, and all that was acknowledged
must come. `ledger` judges what clients were told. This module knows the world's time and all leases
as the database has granted them: nobody answers who is not the owner, and there is one at a time.
"""

import contextlib
import io
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast
from unittest import mock

import delayd.commit
import delayd.postgres.database_time as time_module
import delayd.postgres.lease as lease_module
import delayd.postgres.postgres_log as log_module
import delayd.postgres.snapshots as parts_module
import delayd.postgres.standbys as standbys_module
import delayd.recover
import delayd.snapshots
import delayd.turns
from delayd.clock import NEVER_NS, SystemClock
from delayd.commit import GroupCommit
from delayd.config import Config, SyncPolicy
from delayd.core.background_tasks import BackgroundTasks
from delayd.core.engine import Engine
from delayd.core.errors import Refusal
from delayd.core.job_parts import body_of, key_of, tally_of
from delayd.core.operations.ack import delete
from delayd.core.operations.attempts import release
from delayd.core.operations.put import put_keyed, put_one
from delayd.core.operations.reserve import reserve
from delayd.core.operations.sessions import close_session, open_session
from delayd.core.session import Session
from delayd.core.times import RequestMs
from delayd.journal.format import IDENTITY_BYTES, frame_mark
from delayd.log import LogError
from delayd.log_lines import Log, LogFormat, LogLevel
from delayd.postgres.errors import DatabaseLost, Fenced, LeftBehind, StatementFailed
from delayd.postgres.postgres_log import PostgresLog, open_log
from delayd.postgres.rows import frames_in
from delayd.recover import Progress
from delayd.snapshots import Snapshots, Task
from delayd.systemd import Notifier
from delayd.turns import Turns
from tests.core import views
from tests.core.check import check
from tests.faults.database import (
    LEASE_MS,
    NS_PER_MS,
    USUAL,
    Database,
    Fate,
    NamedStatements,
    Rules,
    SimulatedPlace,
)
from tests.faults.ledger import Ledger, LiveJob
from tests.faults.parts import FullReplay, digest, judge
from tests.faults.stage import Process, Stage, System, Threading

if TYPE_CHECKING:
    from delayd.line.server import LineServer
    from delayd.net.poller import Poller
    from delayd.postgres.place import DatabasePlace

LEASE_NS: Final = LEASE_MS * NS_PER_MS
HOUR_MS: Final = 3_600_000
YEAR_MS: Final = 365 * 24 * HOUR_MS
SET_MS: Final = (0, 0, 0, -300, 300, -HOUR_MS, HOUR_MS, -YEAR_MS, YEAR_MS)
DELAYS_MS: Final = (0, 0, 0, 40, 300, 2_500)
TTRS_MS: Final = (400, 2_000, 6_000)
SEGMENT_BYTES: Final = 16 << 10
"""A snapshot for each 2 kB of log."""

PATIENCE_NS: Final = 3 * LEASE_NS
"""How long a client waits for an answer before it looks for another daemon."""

SAFETY_NS: Final = 20_000 * NS_PER_MS
DRAINED_NS: Final = 60_000 * NS_PER_MS
DRAINING_NS: Final = 60 * NS_PER_MS
FEW: Final = 8
FAULTS: Final = frozenset(
    (
        *("lost", "ghost", "slow", "refused", "cut off", "pause", "kill", "stop", "crash"),
        *("failover", "clock", "full", "standby", "orphan"),
    )
)


EXPECTED: Final = (Fenced, DatabaseLost, LeftBehind)
"""Ends after which a daemon is started again; a refusal may end a start, too."""


@dataclass(frozen=True)
class MachinesPlan:
    """What a seed has in store."""

    machines: int = 2
    clients: int = 3
    faults: frozenset[str] = FAULTS
    every_ms: int = 500
    """About how often something goes wrong."""

    @classmethod
    def drawn(cls, rng: random.Random) -> "MachinesPlan":
        """Let chance decide; half of the seeds leave something out, so that it cannot hide much."""
        every = sorted(FAULTS)
        faults = every if rng.random() < 0.5 else rng.sample(every, rng.randrange(1, len(every)))
        machines = rng.choice((2, 2, 3))
        return cls(machines, rng.randrange(2, 5), frozenset(faults), rng.choice((250, 500, 1_500)))


class Leap(NamedTuple):
    """The database's clock is set forward."""

    at_ns: int
    by_ns: int


Act = Callable[[Engine, Session, RequestMs], Any]


class Command(NamedTuple):
    """What a client wants of a daemon."""

    client: "Client"
    run: Act
    number: int


class Answer(NamedTuple):
    """A client that waits for an answer: the receiver of a reply."""

    daemon: "Daemon"
    command: Command
    answer: object

    def send(self, _data: bytes) -> None:
        self.daemon.run.answered(self.daemon)
        self.command.client.answered(self.command.number, self.answer)


class FrontEnd:
    """In place of line server and poller."""

    has_more = False

    def __init__(self, daemon: "Daemon") -> None:
        self._daemon = daemon
        self.inbox: deque[Command] = deque()
        self.sessions: dict[Client, Session] = {}
        self._replies: list[tuple[Answer, bytes]] = []

    def serve(self, _events: object) -> None:
        daemon = self._daemon
        while self.inbox:
            command = self.inbox.popleft()
            engine, now_ms = daemon.engine, daemon.clock.request_ms()
            session = self.sessions.get(command.client)
            if session is None:
                session = self.sessions[command.client] = open_session(engine)
            try:
                answer = command.run(engine, session, now_ms) or DONE
            except Refusal as refusal:
                answer = refusal
            if answer is LEFT:
                del self.sessions[command.client]
            else:
                self._replies.append((Answer(daemon, command, answer), b""))

    def take_replies(self) -> list[tuple[Answer, bytes]]:
        replies, self._replies = self._replies, []
        return replies

    def take_free_replies(self) -> list[tuple[Answer, bytes]]:
        return []


DONE: Final = object()
LEFT: Final = object()
NOTHING: Final = object()
"""Answers: it was done, and there is nothing to tell; a connection has ended; there is no job."""


class Timers:
    """The event loop of a daemon."""

    is_woken = False

    def __init__(self, daemon: "Daemon") -> None:
        self._daemon = daemon

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> object:
        daemon = self._daemon
        daemon.stage.after(round(delay_s * 1e9), callback, daemon.process)
        return None

    def call_soon_threadsafe(self, callback: Callable[[], object]) -> object:
        daemon = self._daemon
        daemon.stage.after(0, callback, daemon.process)
        daemon.stage.after(0, daemon.turn, daemon.process)
        return None


class PartsThread:
    """The thread of a snapshot."""

    def __init__(self, daemon: "Daemon") -> None:
        self._daemon = daemon
        self._tasks: deque[Task] = deque()
        self._is_busy = False

    def do(self, task: Task) -> None:
        self._tasks.append(task)
        if not self._is_busy:
            self._is_busy = True
            self._daemon.stage.spawn(self._daemon.process, self._work)

    def _work(self) -> None:
        while self._tasks:
            self._tasks.popleft()()
        self._is_busy = False

    def end(self) -> None:
        """What is left does nothing, and is not waited for."""


class Daemon:
    """One life of a daemon on one machine."""

    def __init__(self, run: "MachinesRun", number: int) -> None:
        self.run = run
        self.number = number
        self.stage = run.stage
        self.process = Process(f"machine {number}")
        self.process.on_ready = self._ready
        set_ns = run.set_ns[number]
        self.clock = SystemClock(self.stage.boot_ns, lambda: run.wall_ns() + set_ns)
        self.news = Log(io.StringIO(), int, log_format=LogFormat.TEXT, level=LogLevel.ERROR)
        self.log: PostgresLog | None = None
        self.is_serving = False
        self.is_stopping = False
        self.looked_ns = self.stage.now_ns
        """When it first saw the lease of another owner; until then, now."""
        self.has_begun = False
        self.ended: LogError | None = None
        self._wakes = 0
        self.stage.spawn(self.process, self._live)

    # --- A start ---------------------------------------------------------------------------------

    def _live(self) -> None:
        """Start, as `recover` and the service do, until it serves."""
        place = SimulatedPlace(self.run.database, self.process.name)
        try:
            log = open_log(cast("DatabasePlace", place), self.news, segment_bytes=SEGMENT_BYTES)
            self.log = log
            try:
                self.engine = delayd.recover._replayed(
                    Config(), log, self.clock, self.news, Notifier({}, 1), "", Progress()
                )
            except LogError:
                log.close()
                raise
        except LogError as error:
            self._exit(error)
            return
        self.run.took_over(self)
        self._join(log)
        self.has_begun = self.is_serving = True
        self.turns.look_at_wall_clock()
        self._watch()
        self.turn()

    def _join(self, log: PostgresLog) -> None:
        """Make the parts of a daemon that serves."""
        engine, stage = self.engine, self.stage
        self.timers = timers = Timers(self)
        self.front = FrontEnd(self)
        self.snapshots = Snapshots(
            *(engine, log, self.news),
            wall_at=self.clock.wall_at,
            tell=timers.call_soon_threadsafe,
            on_failure=self._fail,
            new_worker=lambda: PartsThread(self),
            now_ns=stage.boot_ns,
        )
        self.commit = GroupCommit(log, SyncPolicy.ALWAYS, 50, timers, self._fail)
        engine.log_space.jobs = len(engine.store.jobs)
        self.turns = Turns(
            engine,
            self.clock,
            cast("Poller", self.front),
            cast("LineServer", self.front),
            BackgroundTasks(engine),
            timers,
            self.commit,
            log.space,
            self.snapshots,
        )

    # --- While it serves -------------------------------------------------------------------------

    def _ready(self) -> None:
        if self.is_serving and not self.is_stopping:
            self.commit.reap()
            self._see_failure()

    def _watch(self) -> None:
        """Look at the wall clock now and then, as the watchdog does."""
        if self.is_serving and not self.is_stopping:
            self.turns.note_wall_clock()
            self.turn()
            self.stage.after(10 * LEASE_NS, self._watch, self.process)

    def turn(self) -> None:
        """Take a turn, and see when the next one is due."""
        if not self.is_serving or self.is_stopping:
            return
        self.turns.turn()
        step_s = None if self.turns.is_over else self.snapshots.step()
        if self._see_failure():
            return
        wakes_ns = NEVER_NS if step_s is None else self.stage.now_ns + round(step_s * 1e9)
        wait_s = self.turns._wait_s(self.stage.now_ns, wakes_ns)
        if wait_s is not None:
            self._wakes += 1
            wait_ns = max(NS_PER_MS // 10, round(wait_s * 1e9))
            self.stage.after(wait_ns, partial(self._wake, self._wakes), self.process)

    def _wake(self, number: int) -> None:
        if number == self._wakes:
            self.turn()

    def ask(self, command: Command) -> None:
        """Take a command of a client."""
        self.front.inbox.append(command)
        self.stage.after(0, self.turn, self.process)

    def _fail(self, error: LogError) -> None:
        self.ended = error
        self.turns.is_over = True

    def _see_failure(self) -> bool:
        """Begin the end after a failure; tell whether there is one."""
        if self.ended is not None and self.is_serving:
            self.is_serving = False
            self.stage.spawn(self.process, self._close)
        return self.ended is not None

    # --- The end ---------------------------------------------------------------------------------

    def _close(self) -> None:
        """End after a failure or a stop, as the service does."""
        self.commit.close()
        self.snapshots.close()
        assert self.log is not None
        self.log.close()
        self._exit(self.ended)

    def stop(self) -> None:
        """End in good order, as the service does."""
        if not self.is_serving:
            self.run.kill(self)
        elif not self.is_stopping:
            self.turn()
            self.is_stopping = True
            self.stage.spawn(self.process, self._stop)

    def _stop(self) -> None:
        self.engine.is_stopping = True
        now_ms = self.clock.request_ms()
        for client, session in self.front.sessions.items():
            client.lets_go(self)
            close_session(self.engine, session, now_ms)
        while not self.turns.is_over and self.turns.return_some(now_ms):
            pass
        self.turns.is_over = True
        self._close()

    def _exit(self, error: LogError | None) -> None:
        self.is_serving = False
        self.run.exited(self, error)


class Client:
    """A worker and producer: one connection, one command at a time."""

    def __init__(self, run: "MachinesRun", number: int) -> None:
        self._run = run
        self._rng = run.rng
        self.number = number
        self.daemon: Daemon | None = None
        self.held: dict[int, int] = {}
        """Jobs in hand, and which attempt each is."""
        self._asked = 0
        self._asked_ns = 0
        self._on_answer: Callable[[object], object] | None = None

    @property
    def is_free(self) -> bool:
        return self._on_answer is None

    def act(self, *, drains: bool = False) -> None:
        """Say something, or leave for another daemon."""
        daemon = self.daemon
        if daemon is None or not daemon.is_serving or daemon.is_stopping:
            self.leave()
            serving = [each for each in self._run.daemons if each is not None and each.is_serving]
            if not serving:
                return
            self.daemon = self._rng.choice(serving)
        elif not self.is_free:
            if self._run.stage.now_ns - self._asked_ns > PATIENCE_NS:
                self.leave()
            return
        if drains:
            self._drain()
        else:
            self._say_something()

    def leave(self) -> None:
        """Close the connection; what was asked may have happened."""
        daemon, self.daemon = self.daemon, None
        if daemon is not None:
            self.lets_go(daemon)
            if daemon.is_serving:
                daemon.ask(Command(self, _closed, 0))
        self._give_up()

    def _give_up(self) -> None:
        self._asked += 1
        if self._on_answer is not None:
            self._on_answer(None)
            self._on_answer = None

    def lets_go(self, daemon: Daemon) -> None:
        """The connection ends: what it holds is given back."""
        if self.daemon is daemon or self.daemon is None:
            for job_id in self.held:
                self._run.ledger.letting_go(job_id, self._run.stage.now_ns)
            self.held.clear()

    # --- Commands --------------------------------------------------------------------------------

    def _ask(self, run: Act, on_answer: Callable[[Any], object]) -> None:
        assert self.daemon is not None
        self._asked += 1
        self._asked_ns = self._run.stage.now_ns
        self._on_answer = on_answer
        self._run.ledger.counts["asked"] += 1
        self.daemon.ask(Command(self, run, self._asked))

    def answered(self, number: int, answer: object) -> None:
        """An answer has come, unless nobody waits for it any more."""
        if number == self._asked and self._on_answer is not None:
            on_answer, self._on_answer = self._on_answer, None
            self._run.ledger.counts["answered"] += 1
            on_answer(answer)

    def _say_something(self) -> None:
        roll = self._rng.random()
        ledger = self._run.ledger
        if roll < 0.4 or not ledger.by_id:
            self._put()
        elif roll < 0.65:
            self._reserve()
        elif roll < 0.9 and self.held:
            job_id = self._rng.choice([*self.held])
            if self._rng.random() < 0.6:
                self._delete(job_id)
            else:
                self._release(job_id)
        else:
            self._delete(self._rng.choice([*ledger.by_id]))

    def _drain(self) -> None:
        if self.held:
            self._delete(next(iter(self.held)))
        else:
            self._reserve()

    def _put(self) -> None:
        rng, run = self._rng, self._run
        run.bodies += 1
        body = b"body %d" % run.bodies + b"." * rng.choice((0, 0, 0, 60, 400))
        delay_ms, ttr_ms = rng.choice(DELAYS_MS), rng.choice(TTRS_MS)
        run.ttrs[body] = ttr_ms
        key = b"key %d" % rng.randrange(6) if rng.random() < 0.3 else b""
        run.ledger.putting(body, run.stage.now_ns, delay_ms)

        def act(engine: Engine, session: Session, now_ms: RequestMs) -> int:
            assert session.used is not None
            if not key:
                return put_one(engine, session.used, 0, delay_ms, ttr_ms, body, now_ms)
            what = {"priority": 0, "delay_ms": delay_ms, "ttr_ms": ttr_ms, "body": body}
            return put_keyed(engine, session.used, key, now_ms=now_ms, **what)[0]  # type: ignore[arg-type]

        def told(answer: int | Refusal | None) -> None:
            if isinstance(answer, int):
                run.ledger.put(body, answer)

        self._ask(act, told)

    def _reserve(self) -> None:
        run, asked_ns = self._run, self._run.stage.now_ns

        def act(engine: Engine, session: Session, now_ms: RequestMs) -> object:
            given = reserve(engine, session, now_ms)
            if given is None:
                return NOTHING
            job_id, body = given
            record = engine.store.jobs.get(job_id)
            assert record is not None
            return job_id, body, tally_of(record).reserves + 1

        def told(answer: object) -> None:
            run.ledger.unanswered_reserves -= answer is not None
            if isinstance(answer, tuple):
                run.ledger.handed(asked_ns, run.stage.now_ns, answer, run.ttrs[answer[1]])
                self.held[answer[0]] = answer[2]

        run.ledger.unanswered_reserves += 1
        self._ask(act, told)

    def _delete(self, job_id: int) -> None:
        ledger = self._run.ledger
        ledger.removing(job_id)
        self._part_with(
            job_id,
            lambda engine, session, now_ms: delete(engine, session, job_id, now_ms),
            partial(ledger.removed, job_id),
        )

    def _release(self, job_id: int) -> None:
        ledger, asked_ns = self._run.ledger, self._run.stage.now_ns
        delay_ms = self._rng.choice(DELAYS_MS)
        ledger.letting_go(job_id, asked_ns, delay_ms)
        self._part_with(
            job_id,
            lambda engine, session, now_ms: release(engine, session, job_id, 0, delay_ms, now_ms),
            partial(ledger.let_go, job_id, self.held[job_id], asked_ns, delay_ms),
        )

    def _part_with(self, job_id: int, run: Act, on_done: Callable[[], object]) -> None:
        """Ask for what takes a job out of hand; what was refused has been out of it already."""

        def told(answer: object) -> None:
            if answer is not None:
                self.held.pop(job_id, None)
            if answer is DONE:
                on_done()

        self._ask(run, told)


def _closed(engine: Engine, session: Session, now_ms: RequestMs) -> object:
    close_session(engine, session, now_ms)
    return LEFT


class MachinesRun:
    """One seed, from an empty log to the last delivery."""

    def __init__(
        self, seed: int, plan: MachinesPlan | None = None, rules: Rules | None = None
    ) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.plan = plan or MachinesPlan.drawn(self.rng)
        self.stage = Stage()
        self.ledger = Ledger()
        self.database = Database(
            self.stage, self, rules or Rules(), self.rng.randbytes(IDENTITY_BYTES)
        )
        self.set_ns = [self.rng.choice(SET_MS) * NS_PER_MS for _ in range(self.plan.machines)]
        self.daemons: list[Daemon | None] = [None] * self.plan.machines
        self.clients: list[Client] = []
        self.names = self.bodies = 0
        self.ttrs: dict[bytes, int] = {}
        self.has_faults = True
        self.full_replay = FullReplay()
        self.leaps: list[Leap] = []
        self.excused_until_ns = 0
        """Until when an owner of before may rely on its lease; see `_excuse`."""
        self.stage.after_each = self._look_at_owners

    def wall_ns(self) -> int:
        """The time of day, as it is."""
        return self.database.now_us() * 1_000 - self.database.set_us * 1_000

    def violations(self) -> list[str]:
        """Return what was wrong."""
        return self.ledger.violations

    def lag_ms(self) -> float:
        """By how much the owner's delayd time is behind the world's, which began with it."""
        owners = [each for each in self.daemons if each is not None and self._is_owner(each)]
        return self.wall_ns() / NS_PER_MS - owners[0].clock.now_ms()

    # --- From beginning to end -------------------------------------------------------------------

    def play(self) -> None:
        """Play the whole seed."""
        with on_stage(self.stage, self.rng):
            try:
                self._play()
            finally:
                for daemon in self.daemons:
                    if daemon is not None:
                        self.stage.kill(daemon.process)

    def _play(self) -> None:
        stage = self.stage
        for number in range(self.plan.machines):
            self._begin(number)
        for number in range(self.plan.clients):
            self.clients.append(Client(self, number))
            self._act(self.clients[-1])
        self._go_wrong()
        stage.run(stage.now_ns + SAFETY_NS, self._is_broken)
        self.has_faults = False
        self.database.is_full = False
        for daemon in self.daemons:
            if daemon is not None:
                daemon.process.paused_until_ns = 0
        until_ns = stage.now_ns + DRAINED_NS
        while stage.now_ns < until_ns and not (self._is_broken() or self._is_drained()):
            stage.run(stage.now_ns + DRAINING_NS, self._is_broken)
        if not self._is_broken():
            if not self._is_drained():
                left = sum(job.was_told and not job.may_be_gone for job in self._jobs())
                self.ledger.violations.append(f"I6: {left} jobs never came")
            for daemon in self._serving_owners():
                self.ledger.look(jobs_of(daemon.engine), "at the end")
            stage.run(stage.now_ns + LEASE_NS, self._is_broken)  # a renewal finds out
            for daemon in self._serving_owners():
                if daemon.log is not None and daemon.log.is_whole and daemon.log.is_full:
                    self.ledger.violations.append("I6: puts are refused, and there is space")

    def _jobs(self) -> Any:  # noqa: ANN401
        return self.ledger.by_body.values()

    def _is_broken(self) -> bool:
        return bool(self.ledger.violations)

    def _is_drained(self) -> bool:
        is_all_gone = all(job.may_be_gone or not job.was_told for job in self._jobs())
        return is_all_gone and bool(self._serving_owners())

    def _serving_owners(self) -> list[Daemon]:
        there = [daemon for daemon in self.daemons if daemon is not None and daemon.is_serving]
        return [daemon for daemon in there if self._is_owner(daemon)]

    def _is_owner(self, daemon: Daemon) -> bool:
        return daemon.log is not None and self.database.store.row.owner == daemon.log._self

    def _act(self, client: Client) -> None:
        client.act(drains=not self.has_faults)
        pause_ns = self.rng.randrange(5, 400) * NS_PER_MS if self.has_faults else DRAINING_NS
        self.stage.after(pause_ns, partial(self._act, client))

    # --- Daemons ---------------------------------------------------------------------------------

    def _begin(self, number: int) -> None:
        if self.daemons[number] is None:
            self.names += 1
            self.daemons[number] = Daemon(self, number)
            self.ledger.counts["starts"] += 1

    def exited(self, daemon: Daemon, error: LogError | None) -> None:
        """It has ended by itself, and is started again."""
        why = "stopped" if error is None else type(error).__name__
        self.ledger.counts[why] += 1
        may_end = not daemon.has_begun and isinstance(error, StatementFailed)
        if error is not None and not may_end and not isinstance(error, EXPECTED):
            self.ledger.violations.append(f"{daemon.process.name} ended: {error}")
        daemon.process.is_alive = False
        self._gone(daemon)

    def kill(self, daemon: Daemon) -> None:
        """End it wherever it is."""
        self.ledger.counts["killed"] += 1
        self.stage.kill(daemon.process)
        daemon.is_serving = False
        self._gone(daemon)

    def _gone(self, daemon: Daemon) -> None:
        self.daemons[daemon.number] = None
        for client in self.clients:
            if client.daemon is daemon:
                client.leave()
        pause_ms = self.rng.choice((20, 300, 2_000)) if self.has_faults else 20
        self.stage.after(pause_ms * NS_PER_MS, partial(self._begin, daemon.number))

    def took_over(self, daemon: Daemon) -> None:
        """It owns the log: its state is what all frames make, and holds what was acknowledged."""
        if not self._is_owner(daemon):
            return  # it was paused behind its takeover, for too long
        self.ledger.counts["takeovers"] += 1
        self._excuse()
        engine = daemon.engine
        check(engine)
        self.ledger.look(jobs_of(engine), f"{daemon.process.name} took over")
        payloads: dict[int, bytes] = {}
        identity = self.database.store.row.identity
        for epoch, data in self.database.all_frames():
            for frame in frames_in(data, frame_mark(identity, epoch), len(payloads) + 1):
                payloads[frame.sequence] = frame.payload
        full = self.full_replay.digest_after(payloads, engine.store.time_ms)
        if payloads and full != digest(engine):
            why = f"{daemon.process.name} took over with another state than the log has"
            self.ledger.violations.append(f"I8: {why}")

    def _excuse(self) -> None:
        """Take into account that an owner first looked after the database's clock was set forward.

        It cannot know that, unlike a standby: a lease seems to be over, and a stop to be longer.
        """
        for daemon in self.daemons:
            if daemon is None or not self._is_owner(daemon):
                continue
            before = [leap for leap in self.leaps if leap.at_ns < daemon.looked_ns]
            if before:
                self.excused_until_ns = max(self.database.granted_ns.values())
                self.ledger.early_ns += sum(leap.by_ns for leap in before)
                self.leaps = [leap for leap in self.leaps if leap not in before]

    # --- One owner -------------------------------------------------------------------------------

    def answered(self, daemon: Daemon) -> None:
        """An answer leaves: the daemon is the owner, and has been granted its lease."""
        assert daemon.log is not None
        row = self.database.store.row
        if row.owner == daemon.log._self:
            return
        self._excuse()
        if self.stage.now_ns >= self.excused_until_ns:
            why = f"{daemon.process.name} answers, and {row.address} owns the log"
            self.ledger.violations.append(f"owner: {why}")

    def _look_at_owners(self) -> None:
        now_ns, owners = self.stage.now_ns, []
        for daemon in self.daemons:
            if daemon is None:
                continue
            if daemon.log is None or not daemon.log._owners_lease.was_seen:
                daemon.looked_ns = now_ns
            if not daemon.is_serving or daemon.log is None:
                continue
            if daemon.log.is_whole and not daemon.log._is_closed:
                owners.append(daemon)
                if now_ns >= self.database.granted_ns.get(daemon.log._self, 0):
                    why = f"{daemon.process.name} relies on a lease that is over"
                    self.ledger.violations.append(f"lease: {why}")
        if len(owners) > 1:
            self._excuse()
        if len(owners) > 1 and now_ns >= self.excused_until_ns:
            self.ledger.violations.append("owner: two daemons rely on their leases")

    # --- Faults ----------------------------------------------------------------------------------

    def _has(self, fault: str, share: float) -> bool:
        """Tell whether a statement meets this; with few kinds of faults there are more of each."""
        faults = self.plan.faults
        more = FEW / len(faults) if len(faults) < FEW else 1
        return self.has_faults and fault in faults and self.rng.random() < share * more

    def fate(self, name: str) -> Fate:
        """Draw what becomes of a statement; its daemon may be paused before or behind it."""
        rng, process = self.rng, self.stage.process
        if process is not None and self._has("pause", 0.01):
            self._pause(process)
        fate = USUAL
        if self._has("slow", 0.05):
            slow_ns = rng.randrange(2 * LEASE_NS)
            on_its_way = rng.random() < 0.5
            fate = Fate(travels_ns=slow_ns) if on_its_way else Fate(returns_ns=slow_ns)
        if self._has("lost", 0.02):
            fate = fate._replace(
                arrives=rng.random() < 0.7, returns_ns=None, lost_ns=rng.randrange(4 * NS_PER_MS)
            )
        elif self._has("ghost", 0.02):
            late_ns = rng.randrange(2 * LEASE_NS)
            lost_ns = rng.choice((None, NS_PER_MS))
            fate = Fate(travels_ns=late_ns, returns_ns=None, lost_ns=lost_ns)
        elif name == "append" and self._has("orphan", 0.03):
            fate = self._orphan()
        if self._has("refused", 0.01):
            fate = fate._replace(refused=rng.choice(("40001", "57P01", "53300", "53100")))
        if self._has("cut off", 0.02):
            fate = fate._replace(is_cut_off=True)
        return fate

    def _orphan(self) -> Fate:
        """Have a frame be seen that the standby does not have, and gets late, or never."""
        late_ns = self.rng.randrange(LEASE_NS)
        if self.rng.random() < 0.5:
            fails_ns = self.rng.randrange(LEASE_NS // 2)
            fail_over = partial(self.database.fail_over, 10 * NS_PER_MS, keeps=False, set_us=0)
            self.stage.after(fails_ns, fail_over)
        fate = USUAL._replace(is_cut_off=True, replicated_ns=late_ns)
        if self.rng.random() < 0.5:
            return fate  # its owner hears of it, and that the standby was not waited for
        return fate._replace(returns_ns=None, lost_ns=2 * NS_PER_MS)

    def replicated_ns(self) -> int:
        """Draw how long the standby takes."""
        if self._has("standby", 0.05):
            return self.rng.randrange(2 * LEASE_NS)
        return NS_PER_MS

    def _pause(self, process: Process) -> None:
        self.ledger.counts["pauses"] += 1
        process.paused_until_ns = self.stage.now_ns + self.rng.randrange(4 * LEASE_NS)

    def _go_wrong(self) -> None:
        """Let something befall a daemon or the database, and again some time later."""
        if not self.has_faults:
            return
        rng, database = self.rng, self.database
        self.stage.after(rng.randrange(2 * self.plan.every_ms) * NS_PER_MS, self._go_wrong)
        daemon = rng.choice([*self.daemons])
        down_ns = rng.randrange(2 * LEASE_NS) if rng.random() < 0.3 else 10 * NS_PER_MS
        fault = rng.choice(sorted(self.plan.faults))
        if daemon is not None and fault in {"kill", "pause", "stop"}:
            if fault == "kill":
                self.kill(daemon)
            elif fault == "pause":
                self._pause(daemon.process)
            elif daemon.process.paused_until_ns <= self.stage.now_ns:
                self.stage.after(0, daemon.stop, daemon.process)
        elif fault == "crash":
            database.crash(down_ns)
        elif fault == "failover":
            set_us = 0
            if "clock" in self.plan.faults:
                set_us = rng.choice(SET_MS) * 1_000
                if set_us > 0:
                    self.leaps.append(Leap(self.stage.now_ns, set_us * 1_000))
            database.fail_over(down_ns, keeps=rng.random() < 0.5, set_us=set_us)
        elif fault == "full":
            database.is_full = not database.is_full


def jobs_of(engine: Engine) -> dict[int, LiveJob]:
    """Return all jobs of an engine."""
    held = engine.store.leases.sessions
    return {
        job_id: LiveJob(
            body_of(record), key_of(record), tally_of(record).reserves + (job_id in held)
        )
        for job_id, record in views.live_jobs(engine.store)
    }


@contextlib.contextmanager
def on_stage(stage: Stage, rng: random.Random) -> Iterator[None]:
    """Let the log take time, threads and system from the stage, and be short of everything."""
    system, threads = System(stage, rng), Threading(stage)
    changed: dict[Any, dict[str, object]] = {
        log_module: {
            "boot_ns": stage.boot_ns,
            "monotonic_ns": stage.boot_ns,
            "select": system,
            "os": system,
            "threading": threads,
            "Statements": NamedStatements,
            "Reserve": mock.Mock(return_value=mock.Mock(is_released=False)),
            "DATABASE_APPEND_BYTES_MAX": rng.choice((300, 2_000)),
        },
        standbys_module: {"boot_ns": stage.boot_ns},
        time_module: {"boot_ns": stage.boot_ns},
        lease_module: {"boot_ns": stage.boot_ns},
        parts_module: {"threading": threads, "DATABASE_PART_BYTES": 1_000},
        delayd.commit: {"monotonic_ns": stage.boot_ns},
        delayd.turns: {"monotonic_ns": stage.boot_ns},
        delayd.recover: {"monotonic_ns": stage.boot_ns},
        delayd.snapshots: {
            "_ASK_NS": 20 * NS_PER_MS,
            "SNAPSHOT_RETRY_MS_MIN": 50,
            "SNAPSHOT_SLICE_JOBS": 8,
            "SNAPSHOT_SLICE_BYTES": 2_000,
            "SNAPSHOT_PAYLOAD_BYTES": 6_000,
        },
    }
    with contextlib.ExitStack() as patches:
        for module, names in changed.items():
            for name, value in names.items():
                patches.enter_context(mock.patch.object(module, name, value))
        yield


def played(seed: int, plan: MachinesPlan | None = None, rules: Rules | None = None) -> MachinesRun:
    """Play a seed and assert that no promise was broken."""
    run = MachinesRun(seed, plan, rules)
    judge(run, f"simulation of machines, seed {seed} (--fault-seed {seed})")
    return run
