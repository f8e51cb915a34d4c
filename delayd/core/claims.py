"""Which job of a topic goes by a key: taken when a job comes in, let go of when it goes.

At most one live job of a topic has a key at a time. It is said twice, in the record of the job and
in the topic's index (`core.keys`), and the functions here keep both the same, live and in a replay:

    claim       a job comes in that has a key; a reserved one that has it goes on without
    claim_run   the same for jobs with ids in sequence, if none of their keys is taken
    let_go      a job goes, or moves to another topic (a method of `Topic`)
    owner_of    who has it

A topic without keyed jobs has no index. What a clear has forgotten stays in it until it is swept
away or somebody asks for its key, and never counts. Which conflicts there are, and what becomes of
them, is for the engine to decide (`core.keyed`).
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from delayd.core.cleared import forget
from delayd.core.job import key_of
from delayd.core.keys import KeyIndex
from delayd.core.transitions import without_key

if TYPE_CHECKING:
    from delayd.core.store import Store
    from delayd.core.topic import Topic


def owner_of(store: "Store", topic: "Topic", key: bytes) -> int:
    """Return the live job of the topic that has the key; 0 when none has."""
    job_id = 0 if topic.keys is None else topic.keys.find(key)
    if job_id and store.ghosts and job_id not in store.holders:
        record = store.jobs.get(job_id)
        assert record is not None
        if store.is_cleared(record):
            forget(store, job_id)
            return 0
    return job_id


def claim(store: "Store", topic: "Topic", job_id: int, record: bytes) -> None:
    """Let a job that is coming in have the key that its record says."""
    key = key_of(record)
    old_id = owner_of(store, topic, key)
    if old_id:
        assert old_id in store.holders, f"job {old_id} has the key of job {job_id}"
        _lose_key(store, topic, old_id)
    index_of(store, topic).add(key, job_id)


def claim_run(store: "Store", topic: "Topic", keys: Sequence[bytes], first_id: int) -> bool:
    """Let jobs that are coming in have these keys, if all are free; tell whether they were."""
    is_done = index_of(store, topic).claim_run(keys, first_id)
    if not topic.keys:
        topic.keys = None
    return is_done


def unclaim_run(topic: "Topic", keys: Sequence[bytes], first_id: int) -> None:
    """Take back the claims of jobs that were refused after all."""
    for job_id, key in enumerate(keys, first_id):
        topic.let_go(key, job_id)


def index_of(store: "Store", topic: "Topic") -> KeyIndex:
    """Return the index of the topic's keys, made when there is none yet."""
    if topic.keys is None:
        topic.keys = KeyIndex(partial(store.named_among, topic))
    return topic.keys


def _lose_key(store: "Store", topic: "Topic", job_id: int) -> None:
    """Let a job in hand go on without its key."""
    record = store.jobs.get(job_id)
    assert record is not None
    topic.let_go(key_of(record), job_id)
    topic.bytes += store.jobs.replace(job_id, without_key(record))
