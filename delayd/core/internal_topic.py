"""The daemon's own topic: everybody may look at it, and only the daemon changes what is in it.

HTTP keeps what it knows of Idempotency-Keys as jobs of `$idempotency`. A memo that a client could
kick, delete or reschedule would protect nobody: the same put, sent again, would make a second job.
So the rule is the engine's, and the same on every wire, with tokens and without:

    require_writable(name)        asked by what is about a topic: watch, kick, pause, clear, policy
    require_writable_job(record)  asked by `_job` and `delete` for what is about a job by its id;
                                  runs of deletes ask `is_write_protected`
    `put_keyed`, `_admit`   for puts; the topic is never plain (`Topics.mark_rules`), so that puts
                            into other topics have nothing more to look at
    with as_daemon():       the door past it; `http/idempotency.py` alone goes through

Who cannot watch it reserves nothing of it, and so holders need not be asked.

>>> from delayd.core.engine import Engine
>>> engine = Engine(start_ms=0)
>>> session = engine.open_session()
>>> engine.watch(session, INTERNAL_TOPIC)  # doctest: +ELLIPSIS
Traceback (most recent call last):
delayd.core.errors.TopicIsInternal: topic '$idempotency' is the daemon's own: ...
>>> with engine.as_daemon():
...     engine.watch(session, INTERNAL_TOPIC)

Journals are replayed whatever they say of that topic: daemons before this rule let clients in.
`reclaim` and `lawful_policy` put in order at the start what such clients have left.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from delayd.core.errors import Refusal, TopicIsInternal
from delayd.core.timekeeper import Timekeeper
from delayd.core.topic import INTERNAL_TOPIC, Topic, job_id_of
from delayd.limits import IDEMPOTENCY_MS

if TYPE_CHECKING:
    from delayd.core.engine import Engine
    from delayd.core.policy import Policy


class InternalTopic(Timekeeper):
    """A timekeeper of whose topics one is its own."""

    def __init__(self, start_ms: int, tick_ms: int, wheel_size: int) -> None:
        """Start without jobs at `start_ms` of delayd time."""
        super().__init__(start_ms, tick_ms, wheel_size)
        self._is_daemon = False

    @contextmanager
    def as_daemon(self) -> Iterator[None]:
        """Let what is done inside be done to the daemon's own topic as well."""
        self._is_daemon = True
        try:
            yield
        finally:
            self._is_daemon = False

    def require_writable(self, name: str) -> None:
        """Raise `TopicIsInternal` if a client asks to change what is in the topic of that name."""
        if name == INTERNAL_TOPIC and not self._is_daemon:
            raise TopicIsInternal(name)

    def is_write_protected(self, record: bytes) -> bool:
        """Tell whether the job is the daemon's own, and a client asks to change it.

        Operations that run often ask for `topics.internal` before: 20 ns where there is none.
        """
        own = self.store.topics.internal
        return own is not None and not self._is_daemon and self.store.topic_of(record) is own

    def require_writable_job(self, record: bytes) -> None:
        """Raise `TopicIsInternal` if a client asks to change a job that is the daemon's own."""
        if self.is_write_protected(record):
            raise TopicIsInternal(INTERNAL_TOPIC)


def reclaim(engine: "Engine", now_ms: int) -> None:
    """Undo what clients did to the jobs of the daemon's own topic when they still could.

    A pause ends. What was buried waits for a full day from now: no key is forgotten too soon.
    """
    own = engine.store.topics.internal
    if own is None:
        return
    # What there is no room for now is done at the next start; nothing depends on it.
    with suppress(Refusal), engine.as_daemon():
        if own.paused_until_ms is not None:
            engine.pause(INTERNAL_TOPIC, 0, now_ms)
        for key in list(own.buried):
            engine.change(job_id_of(key), now_ms, delay_ms=IDEMPOTENCY_MS)


def lawful_policy(topic: Topic) -> "Policy | None":
    """Return the policy that a client has set for the topic, as far as that is allowed by now.

    None for the daemon's own topic. Jobs that were to be moved there when exhausted are buried.
    """
    policy = topic.policy
    if policy is None or topic.is_internal:
        return None
    return replace(policy, exhausted=None) if policy.exhausted == INTERNAL_TOPIC else policy
