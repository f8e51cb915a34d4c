"""What the handlers share (`Api`), and one request with its client and contents (`Call`).

    durable()            wait until all changes so far are on disk, before more is to be done
    Reply.waits_for_log  have the answer sent when they are
    carry_out(work)      wait until a background task is over (`core.background_tasks`)
    call.carry_out(work) the same for work that ends with its client: changes that take long
    slices()             work on up to a thousand items in slices (`http.long_work`)
    call.allow(...)      refuse a client whose token does not allow this
    call.topic, job_id   the topic and the job of the path, checked

Handlers run on the loop, between turns. The engine answers at once, so nothing else happens between
two of a handler's calls of it; only at an `await` other clients have their turn.
"""

import asyncio
import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from delayd.access.authorize import Right, denial_of
from delayd.access.principal import EVERYBODY, Principal
from delayd.access.scopes import Scope
from delayd.clock import Clock, monotonic_ns
from delayd.core.background_tasks import BackgroundTask, BackgroundTasks, Work
from delayd.core.engine import Engine
from delayd.core.errors import JobNotFound
from delayd.core.names import GROUP, checked_name
from delayd.core.operations.put import find_key
from delayd.core.operations.tick import caught_up
from delayd.core.session import Session
from delayd.core.stats.refusals import Refusals
from delayd.core.stats.requests import RequestCounters
from delayd.core.throttle import PushBlock
from delayd.core.times import RequestMs
from delayd.core.topic import Topic
from delayd.core.views import live_record
from delayd.core.virtual_clock import StandingClock
from delayd.http.connection import AnswerTurns, ClientGone, HttpRequest
from delayd.http.idempotency import Memos
from delayd.http.long_work import LoopTime, Slices
from delayd.http.problems import (
    ENDED_TOKEN,
    FieldError,
    Forbidden,
    RequestInvalid,
    Unauthorized,
)
from delayd.http.responses import Reply, reply
from delayd.http.values import Answer
from delayd.limits import HTTP_BATCH_MAX, HTTP_ITEMS_FEW, JOB_ID_MAX
from delayd.schedules.opening import ScheduleOpener
from delayd.text import parse_whole

if TYPE_CHECKING:
    from delayd.http.connections import HttpConnections


class ApiTurns(AnswerTurns, Protocol):
    """What the API needs of the daemon's turns."""

    def ask(self) -> None:
        """Take the next turn at once."""

    def look_at_wall_clock(self) -> None:
        """Follow the wall clock."""


class Reports(NamedTuple):
    """Figures and states of the daemon that the service reports when a call asks."""

    beside_jobs: Callable[[int], Mapping[str, object]]
    """The daemon's figures at this time, except those of its jobs."""
    metrics: Callable[[int], Iterable[bytes]]
    """A page of metrics for Prometheus at this time, in pieces, some of which may be empty."""
    metrics_type: str
    log_trouble: Callable[[], str]
    """Why nothing becomes durable now; empty: it does."""
    space_trouble: Callable[[], str]
    """Why the journal got no more space the last time; empty: the disk is full."""
    push_blocks: Callable[[Topic], Iterable[PushBlock]]
    """Why jobs of a topic that are ready are not pushed."""
    cut_off: Callable[[], str] = str
    """Why another daemon may own the log by now, so that nothing is answered; empty: none may."""
    hand_over: Callable[[], tuple[str, str]] = lambda: ("", "the log is kept by this daemon alone")
    """Ends the daemon so that a standby takes over; its address, or else why that cannot be."""


class Api:
    """The engine and all else that handlers work with."""

    def __init__(
        self,
        engine: Engine,
        turns: ApiTurns,
        clock: Clock,
        tasks: BackgroundTasks,
        schedules: ScheduleOpener,
        *,
        reports: Reports,
        standing: StandingClock | None,
        refusals: Refusals,
        idempotency_keys_max: int,
    ) -> None:
        """Use the running loop; `standing` is the clock that may be advanced."""
        self.engine = engine
        self.turns = turns
        self.clock = clock
        self.tasks = tasks
        self.schedules = schedules
        self.standing = standing
        self.reports = reports
        self.refusals = refusals
        """Counts refusals, those of the line as well."""
        self.connections: HttpConnections
        self.loop = asyncio.get_running_loop()
        self.no_holder: Final = Session()
        """Holds no job: for operations on jobs that are not reserved."""
        self.waiting: set[Callable[[], None]] = set()
        """Functions that end the waits of requests for a job, when the daemon stops."""
        self.memos = Memos(engine, idempotency_keys_max)
        self.requests: dict[str, RequestCounters] = {}
        """Answered requests by the name of the call; empty: the call is unknown."""
        self.loop_time: Final = LoopTime(monotonic_ns)
        self.renewed: Callable[[Principal], Principal | None]
        """Returns a principal as it is now; None: it was revoked or has expired.

        Set by the server, like `connections`.
        """
        self.is_stopping = False

    def counters_of(self, name: str) -> RequestCounters:
        """Return the counters of a call."""
        return self.requests.setdefault(name, RequestCounters())

    def now_ms(self) -> RequestMs:
        """Return the time by which requests count."""
        return self.clock.request_ms()

    def wall_ms(self, time_ms: int) -> int:
        """Return the wall-clock time of a moment of delayd time."""
        return time_ms + self.engine.store.wall_times.offset_ms

    def moment_ms(self, at: object) -> int | None:
        """Return the wall-clock time of a form, and follow that clock; None: it has none.

        `at` is unset where the form has none.
        """
        if not isinstance(at, int):
            return None
        self.turns.look_at_wall_clock()
        return at

    def slices(self, items: int = HTTP_BATCH_MAX) -> Slices:
        """Return a share of the loop's time for so many items; for few there is no queue."""
        return Slices(self.loop_time, is_few=items <= HTTP_ITEMS_FEW)

    async def durable(self) -> None:
        """Wait until all changes so far are as durable as the policy promises."""
        future: asyncio.Future[None] = self.loop.create_future()
        self.when_durable(future)
        await future

    def when_durable(self, future: asyncio.Future[None]) -> None:
        """Complete the future, unless it is cancelled, when all changes so far are durable."""
        self.turns.when_durable(functools.partial(_complete, future))

    async def carry_out(self, work: Work) -> None:
        """Have the work done in slices, and wait until it is durable; raises its refusal."""
        future: asyncio.Future[None] = self.loop.create_future()
        task = BackgroundTask(work, lambda _refusal, _now_ms: self.when_durable(future))
        self.tasks.add(task)
        self.turns.ask()
        try:
            await future
        except asyncio.CancelledError:
            if not task.is_over:
                self.tasks.leave(task)
            raise
        if task.refusal is not None:
            raise task.refusal


def _complete(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


@dataclass(slots=True, eq=False)
class Call:
    """One admitted request: its client, the client's rights, and the contents."""

    api: Api
    scope: Scope | None
    """The scope that a token needs."""
    request: HttpRequest
    names: Mapping[str, str]
    """The variable segments of the path, by name."""
    principal: Principal
    data: bytes
    form: Any
    """The contents of the body; `query` has those of the query."""
    query: Any

    @property
    def topic(self) -> str:
        """The topic of the path, checked and allowed."""
        name = checked_name(self.names["topic"])
        self.allow(name)
        return name

    @property
    def key(self) -> bytes:
        """The key of the path; not checked yet."""
        return self.names["key"].encode("utf-8", "surrogateescape")

    @property
    def group(self) -> bytes:
        """The group of the path, checked."""
        try:
            return bytes(GROUP.read(self.names["group"]))
        except ValueError as error:
            raise RequestInvalid([FieldError("group", str(error))]) from None

    @property
    def job_id(self) -> int:
        """The job of the path, by its id, or by its topic and key; `KeyNotFound`."""
        text = self.names.get("id")
        if text is None:
            return find_key(self.api.engine, self.topic, self.key)
        job_id = parse_whole(text)
        if job_id is None:
            raise RequestInvalid([FieldError("id", f"{text!r} is not the id of a job")])
        if not 0 < job_id <= JOB_ID_MAX:
            raise JobNotFound(job_id, 0)
        return job_id

    async def carry_out(self, work: Work) -> None:
        """Have long work done, at most until the client sends no more: it may have gone.

        What was done by then stays done. Raises `ClientGone`, and the work's refusal.
        """
        connection = self.request.connection
        if connection.is_half_closed:
            raise ClientGone
        connection.ends_half_closed = True
        try:
            await self.api.carry_out(work)
        finally:
            connection.ends_half_closed = False

    def renew(self) -> None:
        """Refuse a client whose token was revoked or has expired since; `Unauthorized`.

        The token may allow less by now: ask `allow` again.
        """
        if self.principal is not EVERYBODY:
            principal = self.api.renewed(self.principal)
            if principal is None:
                raise Unauthorized(ENDED_TOKEN)
            self.principal = principal

    def allow(self, topic: str | None) -> None:
        """Refuse a client that may not do this to the topic; None: to every topic."""
        if self.scope is not None and self.principal is not EVERYBODY:
            self.allow_all(Right(self.scope, topic))

    def allow_all(self, *rights: Right) -> None:
        """Refuse a client that lacks one of these rights."""
        if self.principal is not EVERYBODY and (denial := denial_of(self.principal, *rights)):
            raise Forbidden(denial.lack)

    def allow_some(self) -> None:
        """Refuse a client that may do this to no topic; the answer has only its own topics."""
        if self.scope is not None and self.scope not in self.principal.scopes:
            raise Forbidden(self.principal.lack(self.scope, None))

    def is_admin(self, topic: str) -> bool:
        """Tell whether the client may see secrets of the topic and its jobs."""
        return self.principal.may(Scope.ADMIN, topic)

    def allow_job(
        self, job_id: int, knows: Callable[[bytes], bool] = lambda _record: False
    ) -> bytes:
        """Return the record of a job; `JobNotFound` also where the client may not see it.

        `knows` tells by the record whether the client has shown that it knows the job: then the
        refusal names the scope that it lacks.
        """
        engine, principal, scope = self.api.engine, self.principal, self.scope
        try:
            record = live_record(engine.store, job_id)
        except JobNotFound:
            if scope is None or principal.may(scope, None):
                raise
            raise JobNotFound(job_id) from None  # whether it was is not for this client either
        if principal is not EVERYBODY and scope is not None:
            # Its ttr may have run out just now, and that may have moved it to another topic.
            record, _ = caught_up(engine, job_id, self.api.now_ms())
            topic = engine.store.topic_of(record).name
            denial = denial_of(principal, Right(scope, topic), hides=not knows(record))
            if denial is not None:
                raise JobNotFound(job_id) if denial.is_hidden else Forbidden(denial.lack)
        return record

    async def answered(self, answer: Answer, items: int = 1) -> Reply:
        """Return the answer of a call that has succeeded, for when its changes are durable."""
        if items <= HTTP_ITEMS_FEW:
            return reply(200, answer, waits_for_log=True)
        async with self.api.slices(items):
            return reply(200, answer, waits_for_log=True)
