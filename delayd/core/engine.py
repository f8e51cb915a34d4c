"""The engine: the state of one daemon, and a method for each operation.

The state is `core.state`; the operations are functions over it, by subject, in `core.operations`,
and their docstrings say what each does and raises. Every operation has the same steps. *Decide*:
check, and raise a `Refusal` before anything has changed. *Record*: append to the log what a restart
must know. *Apply*: have the store carry it out, with the functions that replay uses. The caller
then takes the log (`take_log`), makes it durable and only then lets the replies go; and it takes
the deliveries (`take_deliveries`), for consumers whose wait has ended.

Time is an argument, in two roundings so that nothing is early in either. Requests carry `now_ms`
rounded *up*: a delay or ttr counted from it ends no sooner than asked for. `advance` takes the time
rounded *down*: what it fires is due. `store.time_ms` is how far time has been played; what was due
by then has happened, or, where a slice has not come to it yet, is made to happen when an operation
asks for the job.

>>> engine = Engine(start_ms=0)
>>> session = engine.open_session()
>>> engine.put(session.used, priority=0, delay_ms=1_000, ttr_ms=60_000, body=b"hi", now_ms=0)
1
>>> while engine.advance(999): pass
>>> engine.reserve(session, 999), engine.next_deadline()
(None, 1000)
>>> engine.advance(1_000)
True
>>> engine.reserve(session, 1_000)
(1, b'hi')

It refuses to know bytes on a wire, files, sockets and clocks. Operations run hundreds of thousands
of times a second: plain arguments and plain values, no objects in between. Callers for which one
more call counts use the functions themselves.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Final, final

from delayd.core.job import Retry, State
from delayd.core.operations import (
    change,
    checks,
    clock,
    finish,
    put,
    reserve,
    sessions,
    topics,
    waiting,
)
from delayd.core.operations.put import Conflict, Outcome
from delayd.core.policy import Patterns, Policy
from delayd.core.session import Delivery, Handed, Owner, Session
from delayd.core.state import EngineState
from delayd.core.topic import Source, Topic
from delayd.limits import BODY_BYTES_DEFAULT, WHEEL_SIZE_DEFAULT, WHEEL_TICK_MS_DEFAULT


@final
class Engine:
    """The jobs of one daemon and everything that can be done with them."""

    __slots__ = ("log_space", "state", "store")

    def __init__(
        self,
        *,
        start_ms: int,
        tick_ms: int = WHEEL_TICK_MS_DEFAULT,
        wheel_size: int = WHEEL_SIZE_DEFAULT,
        body_bytes_max: int = BODY_BYTES_DEFAULT,
    ) -> None:
        """Start without jobs at `start_ms` of delayd time."""
        self.state: Final = EngineState(start_ms, tick_ms, wheel_size, body_bytes_max)
        self.store: Final = self.state.store
        self.log_space: Final = self.state.log_space

    # --- Sessions --------------------------------------------------------------------------------

    def open_session(self, owner: Owner | None = None) -> Session:
        """Make a session that uses and watches the default topic."""
        return sessions.open_session(self.state, owner)

    def close_session(self, session: Session, now_ms: int) -> None:
        """Close the session; every job it holds is given back."""
        sessions.close_session(self.state, session, now_ms)

    def use(self, session: Session, name: str) -> None:
        """Have the session put to this topic."""
        sessions.use(self.state, session, name)

    def watch(self, session: Session, name: str) -> None:
        """Have the session reserve from this topic too."""
        sessions.watch(self.state, session, name)

    def ignore(self, session: Session, name: str) -> None:
        """Have the session reserve no longer from this topic."""
        sessions.ignore(self.state, session, name)

    def stop_consuming(self, session: Session) -> None:
        """End the session's wait and its watching."""
        sessions.stop_consuming(self.state, session)

    # --- Putting ---------------------------------------------------------------------------------

    def take_id(self) -> int:
        """Return the next job id."""
        return put.take_id(self.state)

    def put(
        self,
        topic: Topic,
        *,
        priority: int,
        delay_ms: int = 0,
        ttr_ms: int,
        body: bytes,
        now_ms: int,
        job_id: int = 0,
        due_wall_ms: int | None = None,
        retry: Retry | None = None,
    ) -> int:
        """Accept a job and return its id."""
        return put.put(
            self.state,
            topic,
            priority=priority,
            delay_ms=delay_ms,
            ttr_ms=ttr_ms,
            body=body,
            now_ms=now_ms,
            job_id=job_id,
            due_wall_ms=due_wall_ms,
            retry=retry,
        )

    def put_alike(
        self,
        topic: Topic,
        priority: int,
        delay_ms: int,
        ttr_ms: int,
        bodies: Sequence[bytes],
        now_ms: int,
        first_id: int = 0,
        *,
        at_once: bool = False,
    ) -> int:
        """Accept jobs that differ only in their bodies; return the first of their ids."""
        state = self.state
        return put.put_alike(
            state, topic, priority, delay_ms, ttr_ms, bodies, now_ms, first_id, at_once=at_once
        )

    def put_keyed(
        self,
        topic: Topic,
        key: bytes,
        on: Conflict = Conflict.REJECT,
        *,
        priority: int,
        delay_ms: int = 0,
        due_wall_ms: int | None = None,
        ttr_ms: int,
        body: bytes,
        now_ms: int,
        retry: Retry | None = None,
        job_id: int = 0,
        at_once: bool = False,
    ) -> tuple[int, Outcome]:
        """Accept a job under a key, or change the one that has it as `on` says."""
        return put.put_keyed(
            self.state,
            topic,
            key,
            on,
            priority=priority,
            delay_ms=delay_ms,
            due_wall_ms=due_wall_ms,
            ttr_ms=ttr_ms,
            body=body,
            now_ms=now_ms,
            retry=retry,
            job_id=job_id,
            at_once=at_once,
        )

    def put_keyed_run(
        self,
        topic: Topic,
        priority: int,
        delay_ms: int,
        ttr_ms: int,
        keys: Sequence[bytes],
        bodies: Sequence[bytes],
        now_ms: int,
    ) -> int:
        """Accept jobs that differ in keys and bodies; return the first id, 0 if a key is taken."""
        state = self.state
        return put.put_keyed_run(state, topic, priority, delay_ms, ttr_ms, keys, bodies, now_ms)

    def find_key(self, topic_name: str, key: bytes) -> int:
        """Return the live job that has the key."""
        return put.find_key(self.state, topic_name, key)

    def take_out_of_order_ids(self) -> list[int]:
        """Return the ids put out of order since the last call."""
        return self.state.take_out_of_order_ids()

    # --- Reserving -------------------------------------------------------------------------------

    def reserve(self, session: Session, now_ms: int) -> Handed | None:
        """Hand out the best ready job of the topics watched; None when there is none."""
        return reserve.reserve(self.state, session, now_ms)

    def reserve_batch(
        self, session: Session, jobs_max: int, bytes_max: int, now_ms: int
    ) -> list[Handed]:
        """Hand out the best ready jobs, `jobs_max` at most, until their bodies exceed the bytes."""
        return reserve.reserve_batch(self.state, session, jobs_max, bytes_max, now_ms)

    def reserve_job(self, session: Session, job_id: int, now_ms: int) -> Handed:
        """Hand out this very job."""
        return reserve.reserve_job(self.state, session, job_id, now_ms)

    def touch(self, session: Session, job_id: int, now_ms: int) -> None:
        """Extend the lease to a full ttr from now."""
        reserve.touch(self.state, session, job_id, now_ms)

    def wait(self, session: Session, now_ms: int, wait_ms: int | None) -> None:
        """Queue the session for a job of the topics it watches, which all have none ready now."""
        waiting.wait(self.state, session, now_ms, wait_ms)

    def cancel_wait(self, session: Session) -> None:
        """Take the session out of the queues if it waits."""
        waiting.cancel_wait(self.state, session)

    def serve_waiting(self, now_ms: int) -> None:
        """Hand out what could not be handed out for lack of log space."""
        waiting.serve_waiting(self.state, now_ms)

    # --- Finishing -------------------------------------------------------------------------------

    def delete(self, session: Session, job_id: int, now_ms: int) -> None:
        """Delete a job that the session holds, or one at rest."""
        finish.delete(self.state, session, job_id, now_ms)

    def delete_batch(self, session: Session, job_ids: Sequence[int], now_ms: int) -> list[bool]:
        """Delete these jobs in turn; return for each whether it could be deleted."""
        return finish.delete_batch(self.state, session, job_ids, now_ms)

    def release(
        self, session: Session, job_id: int, priority: int, delay_ms: int, now_ms: int
    ) -> None:
        """Release a job, ready at once or after a delay."""
        finish.release(self.state, session, job_id, priority, delay_ms, now_ms)

    def nack(
        self,
        session: Session,
        job_id: int,
        now_ms: int,
        *,
        delay_ms: int = 0,
        priority: int | None = None,
        error: str = "",
    ) -> None:
        """Release a job as failed, with an error."""
        how = (session, job_id, now_ms)
        finish.nack(self.state, *how, delay_ms=delay_ms, priority=priority, error=error)

    def bury(
        self, session: Session, job_id: int, priority: int, now_ms: int, error: str = ""
    ) -> None:
        """Bury a job until it is kicked."""
        finish.bury(self.state, session, job_id, priority, now_ms, error)

    def take_undelivered(self, session: Session, now_ms: int) -> None:
        """Take back what the session holds when the reply could not be delivered."""
        finish.take_undelivered(self.state, session, now_ms)

    # --- Changing what waits ---------------------------------------------------------------------

    def kick_job(self, job_id: int, now_ms: int) -> None:
        """Make a buried or delayed job ready."""
        change.kick_job(self.state, job_id, now_ms)

    def kick(self, topic: Topic, bound: int, now_ms: int) -> int:
        """Make up to `bound` buried jobs ready, or, when none is buried, delayed ones."""
        return change.kick(self.state, topic, bound, now_ms)

    def reschedule(self, job_id: int, delay_ms: int, now_ms: int) -> None:
        """Give a delayed or ready job this delay instead of its time."""
        change.reschedule(self.state, job_id, delay_ms, now_ms)

    def reschedule_at(self, job_id: int, due_wall_ms: int, now_ms: int) -> None:
        """Give a delayed or ready job this wall-clock time instead of its time."""
        change.reschedule_at(self.state, job_id, due_wall_ms, now_ms)

    def change(
        self,
        job_id: int,
        now_ms: int,
        *,
        delay_ms: int | None = None,
        due_wall_ms: int | None = None,
        priority: int | None = None,
        ttr_ms: int | None = None,
        body: bytes | None = None,
    ) -> None:
        """Change what is given of a job that waits or is buried; all or nothing."""
        change.change(
            self.state,
            job_id,
            now_ms,
            delay_ms=delay_ms,
            due_wall_ms=due_wall_ms,
            priority=priority,
            ttr_ms=ttr_ms,
            body=body,
        )

    # --- Topics ----------------------------------------------------------------------------------

    def pause(self, name: str, pause_ms: int, now_ms: int) -> None:
        """Hand out nothing of the topic for that long; 0 resumes at once."""
        topics.pause(self.state, name, pause_ms, now_ms)

    def clear(self, topic: Topic) -> int:
        """Delete the jobs of the topic that are not reserved; no reservation may be overdue."""
        return topics.clear(self.state, topic)

    def set_policy(self, name: str, policy: Policy | None, now_ms: int) -> Policy:
        """Give the topic this policy from now on, and return the policy in force."""
        return topics.set_policy(self.state, name, policy, now_ms)

    def policy_of(self, name: str) -> tuple[Policy, Source]:
        """Return the topic's policy and its source."""
        return topics.policy_of(self.state, name)

    def configure(
        self,
        patterns: Patterns | None = None,
        jobs_max: int | None = None,
        bytes_max: int | None = None,
    ) -> None:
        """Apply the configuration, once, after the replay."""
        topics.configure(self.state, patterns, jobs_max, bytes_max)

    def as_daemon(self) -> AbstractContextManager[None]:
        """Allow changes of the internal topic inside the block."""
        return checks.as_daemon(self.state)

    def require_writable_job(self, record: bytes) -> None:
        """Raise `TopicIsInternal` if a client asks to change a job of the internal topic."""
        checks.require_writable_job(self.state, record)

    # --- Time ------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """Return when `advance` has something to do next; None when nothing is scheduled."""
        return clock.next_deadline(self.state)

    def advance(self, due_by_ms: int, now_ms: int | None = None) -> bool:
        """Fire one slice of what is due by then; call again until it returns False.

        `now_ms` is the same instant rounded up.
        """
        return clock.advance(self.state, due_by_ms, due_by_ms if now_ms is None else now_ms)

    def reach(self, time_ms: int) -> None:
        """Set the time, when nothing is due by then."""
        clock.reach(self.state, time_ms)

    def follow_wall(self, offset_ms: int) -> None:
        """Set how far the wall clock is ahead of delayd time."""
        clock.follow_wall(self.state, offset_ms)

    def caught_up(self, job_id: int, now_ms: int) -> tuple[bytes, State]:
        """Return record and state of a job, now that what was due has happened."""
        return clock.caught_up(self.state, job_id, now_ms)

    # --- What the caller takes away after each turn ----------------------------------------------

    def take_log(self) -> tuple[list[bytes], bool]:
        """Return the records since the last call, and whether replies must wait for their sync."""
        return self.state.take_log()

    def take_deliveries(self) -> list[Delivery]:
        """Return the consumers whose wait has ended since the last call, with what they get."""
        return self.state.take_deliveries()
