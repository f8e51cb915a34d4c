"""The client without asyncio: one method for each operation.

    from delayd.client import Client

    with Client("http://127.0.0.1:11301") as client:
        client.put("mail", {"to": "ada"}, delay="15s")
        with client.reserve("mail") as job:
            print(job.json())

A client may be used by several threads at once, and in a process that was forked, which gets
connections of its own. The operations are in `http_calls` and `line_calls`, sockets in
`connection`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from delayd.client.addresses import DEFAULT_URL, LINE_PORT
from delayd.client.connection import Connections
from delayd.client.connection_pool import Runs
from delayd.client.errors import NotOnThisProtocol, Refused, TimedOut, TopicNotFound
from delayd.client.jobs import Held, Reserved, finishing, finishing_many, held, leaving, nacking
from delayd.client.limits import ANSWER_BYTES_MAX
from delayd.client.protocols import way_to
from delayd.client.results import (
    BackfillResult,
    Became,
    Calendar,
    DeadGroup,
    GroupInfo,
    GroupPage,
    Health,
    JobInfo,
    PolicyInfo,
    PutResult,
    RunResult,
    ScheduleInfo,
    SchedulePreview,
    Time,
    TopicInfo,
)
from delayd.client.steps import PageAfter, Steps, carried_out
from delayd.client.touching import Toucher
from delayd.client.values import (
    Body,
    Bound,
    Changes,
    Duration,
    Filter,
    GroupOrder,
    Moment,
    NewJob,
    NewSchedule,
    PutOptions,
    ScheduleOptions,
    State,
    Timing,
    seconds,
)

if TYPE_CHECKING:  # each protocol, batches and TLS are imported where they are first used
    import ssl

    from delayd.client.batches import Batch
    from delayd.client.http_calls import HttpCalls
    from delayd.client.job_stream import JobStream
    from delayd.client.line_calls import LineCalls

T = TypeVar("T")


class Client:
    """A client of one daemon; its url names the protocol.

    `http://HOST:PORT`, `https://HOST` and `http+unix:/PATH` speak HTTP; `beanstalk://HOST:PORT`,
    `beanstalks://HOST:PORT` (TLS) and `unix:/PATH` the line protocol. HTTP has all operations. The
    line is faster, and a job is ready again as soon as its worker's connection is gone. Daemons
    that share a log have several urls, as a sequence or with commas: the one that serves is found.

    `token` is one of `delayd token create`, `tls` a context instead of the system's default.
    `timeout` is how long an answer may take, beside a wait for jobs, and `patience` how long a call
    tries to reach a daemon again that was reached before. An answer that is longer than
    `answer_bytes_max` (64 MiB) is not read: raise it where bodies may be so long.
    """

    def __init__(
        self,
        url: str | Sequence[str] = DEFAULT_URL,
        *,
        token: str = "",
        tls: "ssl.SSLContext | None" = None,
        timeout: Duration = 30.0,
        patience: Duration = 30.0,
        answer_bytes_max: int = ANSWER_BYTES_MAX,
    ) -> None:
        self._calls, way = way_to(url, token, tls, timeout, patience, answer_bytes_max)
        self.outage = way.outage
        """Whether the daemon is away; its `tell` can be set."""
        self.idle: Callable[[], None] | None = None
        """In a double: called by a worker that finds no job, which makes no pauses then."""
        self._connections: Runs = Connections(way)
        self._toucher = Toucher()

    @classmethod
    def over(
        cls,
        connections: Runs,
        calls: "HttpCalls | LineCalls",
        idle: Callable[[], None] | None = None,
    ) -> Self:
        """Return a client of a double, which carries out the operations."""
        client = cls()
        client._connections, client._calls, client.idle = connections, calls, idle
        return client

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. On the line this gives back the jobs in hand."""
        self._connections.close()
        self._toucher.close()

    def _run(self, steps: Steps[T]) -> T:
        return self._connections.run(steps)

    def _paged(self, page_after: PageAfter[T], limit: int | None = None) -> Iterator[T]:
        """Iterate over pages, which are fetched as they are needed."""
        after: str | None = None
        while True:
            page, after = self._run(page_after(after, limit))
            yield from page
            limit = None if limit is None else limit - len(page)
            if after is None or limit == 0:
                return

    # --- Producers -------------------------------------------------------------------------------

    def put(self, topic: str, body: Body, **options: Unpack[PutOptions]) -> PutResult:
        """Put a job: `client.put("orders", {"id": 17}, delay="30m", key="order-17")`.

        When it returns, the job is on the daemon's disk. `PutOptions` lists the options. Raises
        JobAlreadyExists if the key is taken.
        """
        return self._run(self._calls.put(topic, body, **options))

    def put_many(self, topic: str, jobs: Iterable[NewJob]) -> list[PutResult | Refused]:
        """Put many jobs: `client.put_many("mail", [{"body": 1}, {"body": 2, "delay": "1h"}])`.

        Returns for each its result or the error that it was refused with. Raises Invalid if one is
        malformed, and puts nothing. Over HTTP it is a request for each thousand: those before were
        put, and `results` of the error has theirs.
        """
        return self._run(self._calls.put_many(topic, jobs))

    def batch(self) -> "Batch":
        """Put many jobs with many commands in flight: `with client.batch() as batch: ...`.

        See `delayd.client.batches`.
        """
        from delayd.client.batches import Batch, HttpParts, LineParts  # noqa: PLC0415 - see above
        from delayd.client.line_calls import LineCalls  # noqa: PLC0415

        if isinstance(self._calls, LineCalls) and isinstance(self._connections, Connections):
            return Batch(LineParts(self._connections, self._calls))
        return Batch(HttpParts(self.put_many))

    # --- Workers ---------------------------------------------------------------------------------

    def stream(self) -> "JobStream":
        """Get jobs without waiting for them, over one connection: for programs with an event loop.

        See `delayd.client.job_stream`. The line only.
        """
        from delayd.client.job_stream import JobStream  # noqa: PLC0415 - see above
        from delayd.client.line_calls import LineCalls  # noqa: PLC0415

        if isinstance(self._calls, LineCalls) and isinstance(self._connections, Connections):
            return JobStream(self._connections)
        raise NotOnThisProtocol("a stream of jobs", f"beanstalk://HOST:{LINE_PORT}")

    def reserve(self, topics: str | Sequence[str], *, timeout: Duration | None = None) -> "Job":
        """Reserve the next ready job: `with client.reserve("mail") as job: ...`.

        Waits until there is one; with a `timeout` raises TimedOut when there is none by then.
        """
        jobs = self.reserve_many(topics, limit=1, timeout=timeout)
        if not jobs:
            raise TimedOut(f"no job was ready within {seconds(timeout or 0):g} s")
        return jobs[0]

    def reserve_many(
        self, topics: str | Sequence[str], *, limit: int, timeout: Duration | None = None
    ) -> "list[Job]":
        """Reserve up to `limit` ready jobs, waiting for the first; an empty list in the end."""
        steps = self._calls.reserve(topics, limit=limit, timeout=timeout)
        return [Job(self, reservation) for reservation in self._run(steps)]

    def ack(self, job: Held) -> None:
        """Acknowledge a job, or a token over HTTP: it is done and deleted."""
        return self._run(finishing(job, self._calls.ack(held(job))))

    def ack_many(self, jobs: Iterable[Held]) -> list[Refused | None]:
        """Acknowledge many jobs at once; return for each None, or its refusal."""
        jobs = list(jobs)
        return self._run(finishing_many(jobs, self._calls.ack_many(map(held, jobs))))

    def nack(
        self,
        job: Held,
        *,
        delay: Duration | None = None,
        error: str = "",
        priority: int | None = None,
        counts: bool = True,
        dead: bool = False,
    ) -> Became:
        """Report a failed attempt; return the outcome.

        With `counts=False` no attempt is counted: the job is ready again, after the delay if there
        is one, whatever its retry rule says. With `dead=True` it is not tried again: it is buried,
        or moved if its topic moves exhausted jobs.
        """
        steps = self._calls.nack(
            held(job), delay=delay, error=error, priority=priority, counts=counts, dead=dead
        )
        return self._run(nacking(job, steps))

    def release(
        self, job: Held, *, delay: Duration | None = None, priority: int | None = None
    ) -> Became:
        """Give a job back; under a retry rule this is a failed attempt too."""
        steps = self._calls.release(held(job), delay=delay, priority=priority)
        return self._run(finishing(job, steps))

    def touch(self, job: Held) -> Time | None:
        """Extend a reservation by a full ttr from now; return when it ends, over HTTP."""
        return self._run(self._calls.touch(held(job)))

    def bury(
        self,
        job: Held | int,
        key: str | None = None,
        *,
        error: str = "",
        priority: int | None = None,
    ) -> None:
        """Set a job aside until it is kicked: one in hand, or by its token over HTTP.

        Over HTTP also one that is not reserved: `bury(17)` or `bury("orders", "order-17")`.
        """
        named = job if isinstance(job, int) else held(job)
        steps = self._calls.bury(named, key, error=error, priority=priority)
        return self._run(finishing(job, steps))

    def keep(self, job: "Job") -> None:
        """Extend a reservation until `keep_no_more`; `with job` does."""
        self._toucher.add(job, job.reservation.ttr or 0.0)

    def keep_no_more(self, job: "Job") -> None:
        """Extend it no more."""
        self._toucher.discard(job)

    # --- Jobs ------------------------------------------------------------------------------------

    def get(self, job_id: int) -> JobInfo:
        """Return a job. Raises JobNotFound."""
        return self._run(self._calls.get(job_id))

    def find(self, topic: str, key: str) -> JobInfo:
        """Return the job that has the key. Raises JobNotFound."""
        return self._run(self._calls.find(topic, key))

    def find_key(self, key: str) -> Iterator[JobInfo]:
        """Iterate over the jobs that have the key, in whichever topics, without their bodies.

        They come by the names of their topics. A token finds them in the topics that it may peek
        into.
        """
        return self._paged(lambda after, _: self._calls.page_of_key(key, after=after))

    def peek(self, topic: str, state: State = "ready") -> JobInfo | None:
        """Return the first job of a topic in that state; None if there is none."""
        wanted: Filter = {"state": state}
        page = self._calls.page(topic, wanted, limit=1, after=None, bodies=True)
        return self._run(_first_of(page))

    def jobs(
        self, topic: str, *, limit: int | None = None, bodies: bool = False, **which: Unpack[Filter]
    ) -> Iterator[JobInfo]:
        """Iterate over jobs in due order: `client.jobs("mail", state="delayed", due_to="1h")`.

        Pages are fetched as they are needed; without `bodies` bodies are left out.
        """
        return self._paged(
            lambda after, left: self._calls.page(
                topic, which, limit=left, after=after, bodies=bodies
            ),
            limit,
        )

    def dead_letters(
        self, topic: str, *, limit: int | None = None, reason: str = ""
    ) -> Iterator[JobInfo]:
        """Iterate over buried jobs, with their bodies and why they failed."""
        return self.jobs(topic, limit=limit, bodies=True, state="buried", reason=reason)

    def kick(self, which: int | str, key: str | None = None) -> int:
        """Make a delayed or buried job ready now: `kick(17)` or `kick("orders", "order-17")`.

        Returns its number, as `cancel` does.
        """
        return self._run(self._calls.kick(which, key))

    def cancel(self, which: int | str, key: str | None = None) -> int:
        """Delete a waiting or buried job: `cancel(17)` or `cancel("orders", "order-17")`."""
        return self._run(self._calls.cancel(which, key))

    def reschedule(
        self, which: int | str, key: str | None = None, **timing: Unpack[Timing]
    ) -> Time | None:
        """Give a waiting or buried job another time: `reschedule(17, delay="1h")`.

        Returns when it is due, over HTTP, as `change` does.
        """
        return self._run(self._calls.change(which, key, **timing))

    def change(
        self, which: int | str, key: str | None = None, **changes: Unpack[Changes]
    ) -> Time | None:
        """Change a waiting or buried job in one step: `change(17, priority=5, body="new")`."""
        return self._run(self._calls.change(which, key, **changes))

    def kick_many(self, topic: str, *, dry_run: bool = False, **which: Unpack[Filter]) -> int:
        """Make all delayed and buried jobs that match ready now; return how many they are.

        With `dry_run` nothing is changed, as for the two below.
        """
        return self._run(self._calls.kick_many(topic, which, dry_run=dry_run))

    def cancel_many(self, topic: str, *, dry_run: bool = False, **which: Unpack[Filter]) -> int:
        """Delete all jobs that match, but those that workers hold; return how many they are.

        Without any filter it is every job of the topic, and a token needs the scope admin.
        """
        return self._run(self._calls.cancel_many(topic, which, dry_run=dry_run))

    def reschedule_many(
        self, topic: str, timing: Timing, *, dry_run: bool = False, **which: Unpack[Filter]
    ) -> int:
        """Give all delayed and ready jobs that match another time: `{"delay": "1h"}`."""
        return self._run(self._calls.reschedule_many(topic, which, timing, dry_run=dry_run))

    # --- Topics ----------------------------------------------------------------------------------

    def calendar(
        self, *topics: str, due_from: Bound = 0, horizon: Duration = "1d", bins: int = 24
    ) -> Calendar:
        """Count the delayed jobs that come due in each of `bins` equal parts of a horizon.

        It begins at `due_from`, now by default; on the line always now.
        """
        return self._run(
            self._calls.calendar(topics, due_from=due_from, horizon=horizon, bins=bins)
        )

    def topics(self) -> list[TopicInfo]:
        """Return all topics with their counts, sorted by name."""
        return self._run(self._calls.topics())

    def topic(self, name: str) -> TopicInfo:
        """Return everything about a topic. Raises TopicNotFound."""
        return self._run(self._calls.topic(name))

    def policy(self, topic: str) -> PolicyInfo:
        """Return the policy in force."""
        return self._run(self._calls.policy(topic))

    def set_policy(self, topic: str, policy: Mapping[str, Any], *, if_tag: str = "") -> PolicyInfo:
        """Replace a topic's policy: `set_policy("mail", {"retry": "15s 3m", "jobs_max": 1000})`.

        With `if_tag`, the `policy_tag` of a policy that was read, only if it was not changed since:
        else it raises PolicyChanged.
        """
        return self._run(self._calls.set_policy(topic, policy, if_tag))

    def clear_policy(self, topic: str, *, if_tag: str = "") -> PolicyInfo:
        """Remove a topic's own policy, so that the configuration applies; `if_tag` as above."""
        return self._run(self._calls.clear_policy(topic, if_tag))

    def pause(self, topic: str, duration: Duration) -> None:
        """Hand out no jobs of the topic for so long."""
        return self._run(self._calls.pause(topic, duration))

    def resume(self, topic: str) -> None:
        """End a pause."""
        return self._run(self._calls.resume(topic))

    def groups(
        self, topic: str, *, order: GroupOrder = "name", limit: int = 100, after: str = ""
    ) -> GroupPage:
        """Return groups of a topic, by `name`, page by page with `after`.

        Or those first that have most jobs `ready` or `reserved`, or the `oldest` ready job.
        """
        return self._run(self._calls.groups(topic, order, limit, after))

    def group(self, topic: str, name: str) -> GroupInfo:
        """Return how a group is doing; one that no job has is all zeros."""
        return self._run(self._calls.group(topic, name))

    def pause_group(self, topic: str, name: str, duration: Duration) -> None:
        """Hand out no jobs of the group for so long."""
        return self._run(self._calls.pause_group(topic, name, duration))

    def resume_group(self, topic: str, name: str) -> None:
        """End a group's pause."""
        return self._run(self._calls.resume_group(topic, name))

    def clear(self, topic: str) -> int:
        """Delete every job of the topic that no worker holds; return how many they were."""
        return self._run(self._calls.clear(topic))

    def dead_reasons(self, *topics: str) -> list[DeadGroup]:
        """Count all dead letters by topic and reason, with `#` for what differs; of all topics.

        `redrive`, `jobs`, `cancel_many` and others take the `id` of a group as their `reason`.
        """
        return self._run(self._calls.dead_reasons(topics))

    def redrive(
        self,
        topic: str,
        limit: int | None = None,
        *,
        per_second: float | None = None,
        reason: str | None = None,
        group: str | None = None,
    ) -> int:
        """Make buried jobs ready, the longest buried first, all at once or so many a second.

        With a `reason` those alone that are dead for it: the `id` of a group of `dead_reasons`;
        with a `group` those of that group of jobs.
        """
        return self._run(self._calls.redrive(topic, limit, per_second, reason, group))

    # --- Schedules -------------------------------------------------------------------------------

    def put_schedule(
        self, name: str, topic: str, body: Body, **options: Unpack[ScheduleOptions]
    ) -> ScheduleInfo:
        """Make a schedule: `put_schedule("nightly", "reports", {"all": True}, cron="30 2 * * *")`.

        One that has the name is changed, and keeps its history; the same twice changes nothing.
        `ScheduleOptions` lists the options. Raises ScheduleInvalid.
        """
        return self._run(self._calls.put_schedule(name, topic, body, options))

    def schedule(self, name: str) -> ScheduleInfo:
        """Return a schedule, and what has become of its runs. Raises ScheduleNotFound."""
        return self._run(self._calls.schedule(name))

    def schedules(self, topic: str = "", *, prefix: str = "") -> Iterator[ScheduleInfo]:
        """Iterate over the schedules, of a topic or whose names begin so, by name."""
        return self._paged(
            lambda after, _: self._calls.page_of_schedules(topic, prefix, after=after)
        )

    def remove_schedule(self, name: str) -> None:
        """Remove a schedule, not the jobs of its runs. Raises ScheduleNotFound."""
        return self._run(self._calls.remove_schedule(name))

    def pause_schedule(self, name: str, note: str = "") -> ScheduleInfo:
        """Pause it until `resume_schedule`; the note says why. Without one a note it has stays."""
        return self._run(self._calls.pause_schedule(name, note))

    def resume_schedule(self, name: str) -> ScheduleInfo:
        """Go on with the next run from now: runs that were due meanwhile are not put."""
        return self._run(self._calls.resume_schedule(name))

    def run_schedule(self, name: str) -> RunResult:
        """Put a job of the schedule now, besides those of its runs."""
        return self._run(self._calls.run_schedule(name))

    def backfill_schedule(
        self, name: str, due_from: Moment, due_to: Moment | None = None
    ) -> BackfillResult:
        """Put the jobs of the runs of a past range, both ends included, unless they are there.

        It ends now by default.
        """
        return self._run(self._calls.backfill_schedule(name, due_from, due_to))

    def preview_schedule(
        self, which: str | NewSchedule, count: int = 10, *, name: str = ""
    ) -> SchedulePreview:
        """Return when the next runs are due, of a schedule by its name, or of one to be made.

        `preview_schedule({"topic": "reports", "cron": "30 2 * * *"}, 3)` needs no body. With the
        `name` of a schedule it shows what a change would bring.
        """
        return self._run(self._calls.preview_schedule(which, count, name))

    # --- The daemon ------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Return the daemon's figures."""
        return self._run(self._calls.stats())

    def health(self) -> Health:
        """Return whether the daemon accepts jobs now, and why not."""
        return self._run(self._calls.health())

    def metrics(self) -> str:
        """Return the figures for Prometheus. HTTP only."""
        return self._run(self._calls.metrics())

    def hand_over(self) -> str:
        """Have a standby take over from this daemon, which ends; return where it is. HTTP only.

        Raises NoStandby if none has followed the log.
        """
        return self._run(self._calls.hand_over())

    def advance_clock(self, by: Duration) -> Time:
        """Advance a virtual clock; return its time. What is due by then has happened."""
        return self._run(self._calls.advance_clock(by))


def _first_of(page: Steps[tuple[list[JobInfo], str | None]]) -> Steps[JobInfo | None]:
    try:
        jobs, _after = yield from page
    except TopicNotFound:
        return None
    return jobs[0] if jobs else None


class Job(Reserved[Client]):
    """A job in hand: `with client.reserve("mail") as job: ...`.

    While the block runs, its reservation is extended. At its end the job is acknowledged; if it
    raises, the attempt is reported as failed, with the exception as the reason, and the exception
    goes on. Within the block `job.bury()`, `job.nack(delay="5m")` or `job.ack()` decide otherwise.
    """

    def __enter__(self) -> Self:
        self.client.keep(self)
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if error is None and not self.is_finished:
            self.client.keep_no_more(self)
            self.client.ack(self)
        else:
            carried_out(leaving(self, error))

    def ack(self) -> None:
        """Acknowledge it: it is done and deleted.

        Raises NotReserved or NotFound if its ttr has run out: another worker may have it.
        """
        return self.client.ack(self)

    def nack(
        self,
        *,
        delay: Duration | None = None,
        error: str = "",
        priority: int | None = None,
        counts: bool = True,
        dead: bool = False,
    ) -> Became:
        """Report a failed attempt; return the outcome. As `Client.nack`."""
        how: dict[str, Any] = {"priority": priority, "counts": counts, "dead": dead}
        return self.client.nack(self, delay=delay, error=error, **how)

    def release(self, *, delay: Duration | None = None, priority: int | None = None) -> Became:
        """Give it back; under a retry rule this is a failed attempt too."""
        return self.client.release(self, delay=delay, priority=priority)

    def bury(self, *, error: str = "", priority: int | None = None) -> None:
        """Set it aside until it is kicked."""
        return self.client.bury(self, error=error, priority=priority)

    def touch(self) -> Time | None:
        """Extend the reservation by a full ttr from now; return when it ends, over HTTP."""
        return self.client.touch(self)
