"""Reserves: take what is ready, or wait for the first job that becomes ready.

    reserve ─► ready: taken ─────────────────────┐
            └► none: waits ─► a turn hands one ──┴─► durable ─► answer ─► written ─► the client's
                       │                                  │
                       └── its client goes away ──────────┴─► taken back, the attempt uncounted

Each reserve is a session of the engine: it watches its topics while it waits, and holds its jobs
until they are acknowledged, nacked, or their ttr runs out. No connection has to stay open for that.
A reservation is durable before its client gets it, unlike on the line, where the end of the
connection ends the reservation: a token must never be used twice.
"""

import asyncio
from typing import TYPE_CHECKING, Final

from delayd.access.connection_limits import who_at
from delayd.core.engine import Engine
from delayd.core.errors import Refusal
from delayd.core.job_parts import Reason
from delayd.core.operations.checks import require_writable_job
from delayd.core.operations.reserve import reserve as reserve_next
from delayd.core.operations.reserve import reserve_batch
from delayd.core.operations.sessions import leave, stop_consuming, watch
from delayd.core.operations.waiting import cancel_wait, wait
from delayd.core.session import Handed, Session, WaitEnd
from delayd.core.times import RequestMs
from delayd.http.answer_forms import ReservedAnswer
from delayd.http.api import Api, Call
from delayd.http.handlers.job_responses import current_token, reserved_job
from delayd.http.problems import ReservationLost, Stopping
from delayd.http.responses import NO_CONTENT, Reply, reply
from delayd.limits import HTTP_FREE_BYTES, HTTP_LOOK_ITEMS, HTTP_RESERVED_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from delayd.http.request_forms import ReserveAnyForm, ReserveForm


class HttpHolder:
    """The owner of sessions that hold jobs whose clients have been answered."""

    __slots__ = ()

    def deliver(self, _outcome: Handed | WaitEnd, _now_ms: RequestMs) -> None:
        """Do nothing: these sessions do not wait, and a late job was given back."""


class Consumer:
    """A client that reserves over HTTP, which owns a session."""

    __slots__ = ("_api", "_jobs_max", "future", "handed_ms", "jobs", "session", "was_stopped")

    def __init__(self, api: Api, topics: "Sequence[str]", jobs_max: int, who: str) -> None:
        """Watch these topics for this client; `TopicIsInternal`."""
        self._api = api
        self._jobs_max = jobs_max
        self.session = Session(self)
        self.session.who = who
        self.jobs: list[Handed] = []
        self.handed_ms = 0
        """When it got its jobs, all at one time; the answer follows when they are durable."""
        self.future: asyncio.Future[None] = api.loop.create_future()
        """Done when the wait has ended, and the reservations are durable."""
        self.was_stopped = False
        """Whether the daemon stopped while it waited."""
        try:
            for name in topics:
                watch(api.engine, self.session, name)
        except Refusal:
            self.leave()
            raise

    def take(self, now_ms: RequestMs) -> None:
        """Take ready jobs, up to the wanted number."""
        self.handed_ms = now_ms
        jobs_max = self._jobs_max - len(self.jobs)
        if jobs_max:
            self.jobs += reserve_batch(
                self._api.engine, self.session, jobs_max, HTTP_RESERVED_BYTES_MAX, now_ms
            )

    def take_one(self, now_ms: RequestMs) -> None:
        """Take a single ready job, if a batch found no log space; `OutOfSpace`."""
        self.handed_ms = now_ms
        job = reserve_next(self._api.engine, self.session, now_ms)
        if job is not None:
            self.jobs.append(job)

    def deliver(self, outcome: Handed | WaitEnd, now_ms: RequestMs) -> None:
        """Take further ready jobs when the wait has ended; called within a turn."""
        if self.future.done():
            return  # its client has disconnected, and the job is given back
        if not isinstance(outcome, WaitEnd):
            self.jobs.append(outcome)
            self.take(now_ms)
        self._api.when_durable(self.future)

    def stop(self) -> None:
        """End the wait: the daemon stops."""
        if self.session.waiting and not self.future.done():
            self.was_stopped = True
            cancel_wait(self._api.engine, self.session)
            self.future.set_result(None)

    def leave(self) -> None:
        """Wait and watch no more; reserved jobs stay reserved."""
        stop_consuming(self._api.engine, self.session)

    def give_back(self) -> None:
        """Leave, and undo the reservations: the client is gone."""
        self.leave()
        leave(self._api.engine, self.session, Reason.UNDELIVERED, self._api.now_ms())
        self._api.turns.ask()


async def reserve(call: Call) -> Reply:
    """Reserve jobs of the topic that the path names."""
    return await _reserve(call, (call.topic,))


async def reserve_any(call: Call) -> Reply:
    """Reserve jobs of several topics: the most urgent of them all come first."""
    form: ReserveAnyForm = call.form
    names = tuple(dict.fromkeys(form.topics))
    for name in names:
        call.allow(name)
    return await _reserve(call, names)


async def _reserve(call: Call, topics: tuple[str, ...]) -> Reply:
    api = call.api
    form: ReserveForm = call.form
    connection = call.request.connection
    if connection.is_half_closed:
        raise ConnectionResetError
    consumer = Consumer(api, topics, form.max, who_at(connection.peer.address, call.principal))
    connection.ends_half_closed = True
    try:
        async with api.slices(form.max):
            consumer.take(api.now_ms())
        if not consumer.jobs:
            consumer.take_one(api.now_ms())
        if consumer.jobs:
            api.when_durable(consumer.future)
            await consumer.future
        elif form.wait:
            await _wait(api, consumer, int(form.wait))
            call.renew()
            for name in topics:
                call.allow(name)
        if not consumer.jobs:
            consumer.leave()
            return Reply(NO_CONTENT)
        return await _hand_over(call, consumer, form.bodies)
    except (asyncio.CancelledError, Refusal):
        consumer.give_back()
        raise
    finally:
        connection.ends_half_closed = False
        # The session may be there for long: nothing leads from it to the call any more.
        consumer.session.owner = HttpHolder()


async def _wait(api: Api, consumer: Consumer, wait_ms: int) -> None:
    """Wait for a job, at most this long; `Stopping`."""
    if api.is_stopping:
        raise Stopping
    wait(api.engine, consumer.session, api.now_ms(), wait_ms)
    api.turns.ask()  # for the turn to see when the wait ends
    api.waiting.add(consumer.stop)
    try:
        await consumer.future
    finally:
        api.waiting.discard(consumer.stop)
    if consumer.was_stopped:
        raise Stopping


async def _hand_over(call: Call, consumer: Consumer, bodies: str) -> Reply:
    """Send the answer; take all jobs back if that fails."""
    api, request = call.api, call.request
    consumer.leave()
    store = api.engine.store
    held = consumer.session.deadlines
    reserved = []
    async with api.slices(len(consumer.jobs)) as slices:
        for number, (job_id, body) in enumerate(consumer.jobs):
            if (len(body) > HTTP_FREE_BYTES or not number % HTTP_LOOK_ITEMS) and slices.is_over:
                await slices.rest()
            # A job whose ttr ran out meanwhile is left out; the next reserve gets it.
            if job_id in held:
                job = reserved_job(store, job_id, consumer.handed_ms, bodies, call.is_admin)
                reserved.append(job)
        # From here to the end nothing else runs until the answer is on its way.
        if not reserved:
            return Reply(NO_CONTENT)
        response = reply(200, ReservedAnswer(jobs=reserved))
    if request.transport is None or request.transport.is_closing():
        consumer.give_back()
        return response
    try:
        await request.connection.deliver(response, request)
    except (ConnectionError, asyncio.CancelledError):
        consumer.give_back()
        raise
    return response


_HOLDERS: Final = (HttpHolder, Consumer)
"""The owners of sessions whose reservations have tokens."""


def holder_of(engine: Engine, job_id: int, token: str, record: bytes) -> Session:
    """Return the session under which a job is reserved with that token; `ReservationLost`.

    `TopicIsInternal` for a job that was handed out before that was refused, and survived a restart.
    """
    store = engine.store
    if store.topics.internal:
        require_writable_job(engine, record)
    holder = store.leases.sessions.get(job_id)
    if (
        holder is None
        or not (isinstance(holder.owner, _HOLDERS) or holder is store.orphans)
        or current_token(job_id, record) != token
        or holder.deadlines[job_id] <= store.time_ms
    ):
        raise ReservationLost(job_id)
    return holder
