"""Idempotency-Key: a put that is repeated, because its answer was lost, makes no second job.

A *memo* is itself a job, of the topic `$idempotency`: its key is a digest of the client, the topic
and the Idempotency-Key; its body has the id of the job that was put, and a digest of the request.
It is put in the same turn as the job, so that either both are on disk or neither. It survives
restarts like every job, and when it comes due, `IDEMPOTENCY_MS` later, it is reserved and deleted
here. Clients cannot change it (`core.operations.checks`): only this module may, by `as_daemon`.

    POST, Idempotency-Key: a   ─► memo a: job 7, and job 7      201, id 7
    POST, Idempotency-Key: a   ─► memo a is there: job 7        201, id 7
    the same, another body     ─► 422: the key was used for something else

So such a put takes space for two, also of the daemon's caps on all jobs. Memos have a cap of their
own: a client could make a million in a few minutes, which stay for a day.
"""

import hashlib
from collections.abc import Mapping
from typing import Final

import msgspec

from delayd import limits
from delayd.access.principal import Principal
from delayd.core.engine import Engine
from delayd.core.errors import CapReached, Refusal
from delayd.core.job_parts import body_of
from delayd.core.names import IDEMPOTENCY_TOPIC
from delayd.core.operations.ack import delete, delete_batch
from delayd.core.operations.checks import as_daemon
from delayd.core.operations.put import find_key, put_keyed
from delayd.core.operations.reserve import reserve_batch
from delayd.core.operations.sessions import stop_consuming, watch
from delayd.core.operations.topics import reclaim
from delayd.core.operations.waiting import wait
from delayd.core.session import Handed, Session, WaitEnd
from delayd.core.times import RequestMs
from delayd.http.problems import FieldError, IdempotencyKeysFull, KeyReused, RequestInvalid

TOPIC: Final = IDEMPOTENCY_TOPIC
HEADER: Final = "Idempotency-Key"


class MemoBody(msgspec.Struct):
    """The body of a memo."""

    job: int
    """The job that was put."""
    request: str
    """A digest of the request's body."""


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(MemoBody).decode


class Memo:
    """An Idempotency-Key, and the job that was put under it."""

    __slots__ = ("_key", "_memos", "_print", "job_id")

    def __init__(self, memos: "Memos", key: bytes, fingerprint: str) -> None:
        """Look it up; `KeyReused` if it came with another request.

        `IdempotencyKeysFull` if it is unknown and may not be kept.
        """
        self._memos = memos
        self._key = key
        self._print = fingerprint
        self.job_id = 0
        """The job that was put under it; 0: none yet."""
        engine = memos.engine
        topic = engine.store.topics.by_name.get(TOPIC)
        if topic is not None:
            try:
                memo_id = find_key(engine, TOPIC, key)
            except Refusal:
                if topic.jobs >= memos.keys_max:
                    raise IdempotencyKeysFull(memos.keys_max) from None
                return
            record = engine.store.jobs.get(memo_id)
            assert record is not None
            try:
                note = _decode(body_of(record))
            except (msgspec.DecodeError, UnicodeDecodeError):  # put when clients could
                raise KeyReused from None
            if note.request != fingerprint or not 0 < note.job <= limits.JOB_ID_MAX:
                raise KeyReused
            self.job_id = note.job

    def keep(self, job_id: int, now_ms: RequestMs) -> None:
        """Remember that this job has just been put; without space delete the job, and raise why.

        It follows its job in the log: if a crash cuts between them, the retry makes a second job,
        and no missing job is believed to exist.
        """
        engine = self._memos.engine
        topic = engine.store.topic(TOPIC)
        try:
            with as_daemon(engine):
                put_keyed(
                    engine,
                    topic,
                    self._key,
                    priority=limits.PRIORITY_DEFAULT,
                    delay_ms=limits.IDEMPOTENCY_MS,
                    ttr_ms=limits.TTR_MS_DEFAULT,
                    body=_encode(MemoBody(job_id, self._print)),
                    now_ms=now_ms,
                )
        except Refusal as refusal:
            engine.store.drop_if_unwanted(topic)
            if delete_batch(engine, Session(), (job_id,), now_ms)[0]:
                raise _of_both(engine, refusal) from None
            return  # a worker has the job already: it was put, and is not remembered
        self._memos.begin(now_ms)


def _of_both(engine: Engine, refusal: Refusal) -> Refusal:
    """Return why there was no space for both job and memo, after both were removed."""
    if not isinstance(refusal, CapReached) or refusal.topic is not None:
        return refusal
    in_use = {"jobs_max": engine.log_space.jobs, "bytes_max": engine.record_bytes}[refusal.cap]
    needed = refusal.in_use + refusal.needed - in_use
    return CapReached(refusal.cap, refusal.highest, in_use, needed=needed)


def memo_of(
    memos: "Memos", headers: Mapping[str, str], principal: Principal, topic: str, data: bytes
) -> Memo | None:
    """Return the memo of the request's key, None if it has no key.

    Raises `KeyReused`, `IdempotencyKeysFull`.
    """
    header = headers.get(HEADER)
    if header is None:
        return None
    if not 1 <= len(header.encode("utf-8", "surrogateescape")) <= limits.IDEMPOTENCY_KEY_BYTES_MAX:
        rule = f"must be 1 to {limits.IDEMPOTENCY_KEY_BYTES_MAX} bytes"
        raise RequestInvalid([FieldError(HEADER, rule)])
    parts = (principal.name, principal.token_id, topic, header)
    key = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()
    return Memo(memos, key.encode(), hashlib.sha256(data).hexdigest())


def refuse_beside(headers: Mapping[str, str], reason: str) -> None:
    """Refuse an Idempotency-Key where it would have no effect."""
    if HEADER in headers:
        rule = f"is for a single job without a key; {reason}"
        raise RequestInvalid([FieldError(HEADER, rule)])


class Memos:
    """All memos: reserves those that have come due, and deletes them."""

    def __init__(self, engine: Engine, keys_max: int) -> None:
        self.engine = engine
        self.keys_max = keys_max
        self._session = Session(self)

    def begin(self, now_ms: RequestMs) -> None:
        """Wait for memos to come due, once there are any; a second call does nothing."""
        engine, session = self.engine, self._session
        if not session.watched and TOPIC in engine.store.topics.by_name:
            reclaim(engine, now_ms)
            with as_daemon(engine):
                watch(engine, session, TOPIC)
            self._go_on(now_ms)

    def rest(self) -> None:
        """Stop waiting if there are no memos, so that the topic can be removed."""
        session = self._session
        if session.watched and not session.watched[0].jobs:
            stop_consuming(self.engine, session)

    def deliver(self, outcome: Handed | WaitEnd, now_ms: RequestMs) -> None:
        """Delete one that has come due, and the following ones."""
        assert not isinstance(outcome, WaitEnd), "it waits without an end"
        with as_daemon(self.engine):
            delete(self.engine, self._session, outcome[0], now_ms)
        self._go_on(now_ms)

    def _go_on(self, now_ms: RequestMs) -> None:
        """Delete the due memos (they come in slices), and wait while there are others."""
        engine, session = self.engine, self._session
        with as_daemon(engine):
            while due := reserve_batch(
                engine, session, limits.HTTP_BATCH_MAX, limits.READ_BYTES, now_ms
            ):
                delete_batch(engine, session, [job_id for job_id, _ in due], now_ms)
        wait(engine, session, now_ms, None)
        self.rest()
