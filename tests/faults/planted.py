"""Daemons that are broken on purpose: what a suite that proves anything must find.

Each fault is one that some system has had. `test_planted` says which there are, and who finds each.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import delayd.core.background_tasks
import delayd.core.retry
import delayd.journal.recovery
import delayd.journal.snapshot
import delayd.push.scheduler
from delayd.commit import Replies
from delayd.core.engine import Engine
from delayd.core.operations import attempts
from delayd.core.operations.ack import delete
from delayd.core.operations.sessions import give_back_some
from delayd.core.replay import Replay
from delayd.core.session import Session
from delayd.core.times import PlayedMs, RequestMs
from delayd.core.transitions import expired
from delayd.journal.retention import KeptSnapshot
from delayd.journal.snapshot import SnapshotInfo, SnapshotWriter
from tests.faults.adapter import SteppedCommit
from tests.faults.disk import BegunSync, BusyDisk

Patch = contextlib.AbstractContextManager[object]


class AcknowledgingEarly(SteppedCommit):
    """Replies leave when their records are written, before they are synced."""

    def commit(self, records: list[bytes], replies: Replies, **turn: Any) -> None:  # noqa: ANN401
        super().commit(records, [], **turn)
        if not self._is_over:
            for sink, data in replies:
                sink.send(data)


class SyncingNoDirectory(BusyDisk):
    """New names are never made durable."""

    def sync_directory(self, path: str) -> None:
        self._call("sync_directory")


class Retrying(BusyDisk):
    """A failed sync is tried again on the same file, and believed."""

    def sync(self, handle: int, /) -> None:
        try:
            super().sync(handle)
        except OSError:
            super().sync(handle)

    def end_sync(self, file: object, covered: int) -> None:
        try:
            super().end_sync(file, covered)  # type: ignore[arg-type]
        except OSError:
            super().end_sync(file, 0)  # type: ignore[arg-type]


class SyncingNoSnapshot(BusyDisk):
    """A snapshot gets its name before its bytes are on the disk, and replaces what was before."""

    def begin_sync(self, handle: int) -> BegunSync:
        begun = super().begin_sync(handle)
        if begun.name.startswith("snapshot-"):
            return BegunSync(self, self._file(handle), 0)
        return begun


class RemovingEarly(SnapshotWriter):
    """What a snapshot replaces goes before the snapshot is durable."""

    def finish(self, jobs: int) -> SnapshotInfo:
        self._begun()
        sizes = (self._end, self._payload_bytes)
        for sequence in (self._header.sequence, self._header.sequence + 1):
            self._retention.accept(KeptSnapshot(self._path, sequence, *sizes, self._position))
        return super().finish(jobs)


class Anything(int):
    """A checksum that every other one is equal to."""

    def __eq__(self, _other: object) -> bool:
        return True

    def __ne__(self, _other: object) -> bool:
        return False

    __hash__ = int.__hash__


@contextlib.contextmanager
def no_checksums() -> Iterator[None]:
    """Believe every frame, of the log and of snapshots."""

    def checksum(_data: object, _start: int = 0) -> int:
        return Anything()

    with (
        mock.patch.object(delayd.journal.recovery, "crc32", checksum),
        mock.patch.object(delayd.journal.snapshot, "crc32", checksum),
    ):
        yield


def finishing_with(act: Callable[[Engine], object]) -> Patch:
    """After a replay this happens to its engine as well."""
    finish = Replay.finish

    def finish_and_act(self: Replay, now_ms: int) -> None:
        finish(self, PlayedMs(now_ms))
        act(self.engine)

    return mock.patch.object(Replay, "finish", finish_and_act)


def forget_keys(engine: Engine) -> None:
    """There is no index of keys: nobody is found by one, nobody is in the way."""
    for topic in engine.store.topics.listing:
        topic.keys = topic.keys and NoKeys()  # type: ignore[assignment]


class NoKeys:
    """An index that knows nobody and takes note of nobody, and that its own check finds in order.

    So it is the clients who have to find out.
    """

    def __len__(self) -> int:
        return 1

    def find(self, _key: bytes) -> int:
        return 0

    def add(self, _key: bytes, _job_id: int) -> None:
        pass

    def claim_run(self, _keys: Sequence[bytes], _first_id: int) -> bool:
        return True

    def remove(self, _key: bytes, _job_id: int) -> None:
        pass

    def check(self, _jobs: dict[bytes, int]) -> None:
        pass


def played_with(module: object, name: str, instead: object) -> Patch:
    """In the turns of a replay something stands in the place of a function."""
    turn = Replay._turn

    def turn_with(self: Replay, time_ms: int) -> None:
        with mock.patch.object(module, name, instead):
            turn(self, PlayedMs(time_ms))

    return mock.patch.object(Replay, "_turn", turn_with)


def lapses_forgotten() -> Patch:
    """A replay lets a job whose ttr ran out be ready, as if no ladder was there."""
    return played_with(attempts, "expired_under", lambda record, *_what, **_more: expired(record))


def push_ladder_forgotten() -> Patch:
    """A replay does not know that jobs which are pushed climb a ladder that nobody gave them."""
    return played_with(delayd.core.retry, "is_pushed", lambda *_what: False)


def returns_forgotten() -> Patch:
    """What comes back in slices of a closed connection is not recorded."""

    def give_back_unrecorded(engine: Engine, limit: int, now_ms: RequestMs) -> None:
        with mock.patch.object(Engine, "write_promised"):
            give_back_some(engine, limit, now_ms)

    return mock.patch.object(delayd.core.background_tasks, "give_back_some", give_back_unrecorded)


def failures_believed() -> Patch:
    """A job whose call has failed is removed like one that was taken."""

    def remove(
        engine: Engine, session: Session, job_id: int, now_ms: RequestMs, **_how: object
    ) -> None:
        delete(engine, session, job_id, now_ms)

    return mock.patch.object(delayd.push.scheduler, "fail_call", remove)
