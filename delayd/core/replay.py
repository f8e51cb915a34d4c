"""Playing records back into an engine that has just started.

Each record is unpacked by the table (`core.log_records`) and executed by the function of its kind
(`core.apply`), as it was live. What time did in between follows from the TURN records: the engine
is advanced to each of their times. Connections are gone after a restart, so reserved jobs belong
to the orphan session until their ttr runs out. Nothing here writes to the log.
"""

import struct
from typing import Final, final

from delayd.core import apply
from delayd.core.engine import Engine
from delayd.core.errors import Refusal
from delayd.core.job_parts import Flag, head_bytes_of
from delayd.core.job_record import DUE_AT, FLAGS_AT, HEADER_BYTES, STATE_AT, U64, State
from delayd.core.log_records import LAYOUTS, TAILED, Kind, UnknownRecord
from delayd.core.operations.tick import advance
from delayd.core.stats.figures import begin_figures
from delayd.core.store import Store
from delayd.core.times import PlayedMs
from delayd.limits import TASK_STEP_JOBS

# Tested for every job; an enum member's arithmetic costs 40 ns more than an int's.
_PUT: Final = int(Kind.PUT)
_TURN: Final = int(Kind.TURN)
_PUT_HEAD: Final = LAYOUTS[Kind.PUT]
_PUT_HEAD_BYTES: Final = _PUT_HEAD.size
_PUT_AND_ID: Final = struct.Struct(f"{_PUT_HEAD.format}Q{HEADER_BYTES - DUE_AT}s")
"""A PUT record as far as its job's header goes: kind, length, id, and what those of a run share."""
_ALIKE_AT: Final = _PUT_HEAD_BYTES + DUE_AT
_ALIKE_END: Final = _PUT_HEAD_BYTES + HEADER_BYTES
_RUN_STATES: Final = frozenset({int(State.DELAYED), int(State.READY)})
_RUN_FLAGS: Final = frozenset({int(Flag.NONE), int(Flag.KEY)})
_CONCLUDED: Final = frozenset({int(Kind.OFFSET), int(Kind.CLEAR)})


@final
class Replay:
    """One replay into one engine, which must be new."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._store = engine.store
        self._store.topics.keeps_all = True

    def play(self, payload: bytes) -> None:
        """Apply all records of one frame; `UnknownRecord` when it has something else."""
        at = 0
        end = len(payload)
        store, functions = self._store, apply.APPLY
        try:
            while at < end:
                kind = payload[at]
                if kind == _PUT:
                    at = _play_puts(store, payload, at)
                    continue
                if kind not in LAYOUTS:
                    raise UnknownRecord(at, f"its kind is {kind}")
                layout = LAYOUTS[kind]
                fields = layout.unpack_from(payload, at)[1:]
                behind: int = at + layout.size
                if kind in TAILED:
                    tail_at, behind = behind, behind + fields[-1]
                    functions[kind](store, *fields[:-1], payload[tail_at:behind])
                elif kind == _TURN:
                    self._turn(fields[0])
                else:
                    functions[kind](store, *fields)
                    if kind in _CONCLUDED:
                        self._conclude(kind)
                at = behind
        except struct.error:
            at = -1
        except (AssertionError, LookupError, TypeError, ValueError, Refusal) as error:
            # A TypeError where a job is not there: without assertions (`python -O`) it is None.
            raise UnknownRecord(at, f"it does not fit what came before ({error!r})") from error
        if at != end:
            raise UnknownRecord(end, "the last record is cut short")

    def _conclude(self, kind: int) -> None:
        """Do at once what goes on in slices when it is live."""
        if kind == Kind.OFFSET:
            self._turn(self._store.time_ms)
        else:
            while self._store.cleared.sweep(TASK_STEP_JOBS):
                pass

    def _turn(self, time_ms: PlayedMs) -> None:
        """Fire everything that was due by then."""
        self._store.time_ms = time_ms
        while advance(self.engine, time_ms):
            pass

    def finish(self, now_ms: PlayedMs) -> None:
        """Drop unused topics, count from zero, and continue at `now_ms`."""
        store = self._store
        store.topics.keeps_all = False
        for topic in list(store.topics.listing):
            store.drop_if_unwanted(topic)
        self.engine.log_space.jobs = len(store.jobs)
        store.time_ms = max(store.time_ms, now_ms)
        begin_figures(self.engine)


# --- Puts ----------------------------------------------------------------------------------------


def _play_puts(store: Store, payload: bytes, at: int) -> int:
    """Apply the PUT record at that place, or a run of them; return the place after it.

    Producers put many jobs at once, and with the same delay. Live those of one turn are one run,
    and so they are here: 1 µs a job instead of 3.
    """
    behind: int = at + _PUT_HEAD_BYTES + _PUT_HEAD.unpack_from(payload, at)[1]
    record = payload[at + _PUT_HEAD_BYTES : behind]
    alike = record[DUE_AT:HEADER_BYTES]
    if (
        len(record) >= HEADER_BYTES
        and payload[behind + _ALIKE_AT : behind + _ALIKE_END] == alike
        and record[STATE_AT] in _RUN_STATES
        and record[FLAGS_AT] in _RUN_FLAGS
    ):
        records, end = _alike(payload, at)
        if len(records) > 1:
            apply.put_run(store, U64.unpack_from(record)[0], records)
            return end
    apply.put(store, record)
    return behind


def _alike(payload: bytes, at: int) -> tuple[list[bytes], int]:
    """Return the jobs of a run of PUT records that begins there, and the place after it.

    They differ in ids, keys and bodies only, and have ids in sequence. The place is beyond the end
    if the last one is cut short.
    """
    records: list[bytes] = []
    unpack = _PUT_AND_ID.unpack_from
    last_start = len(payload) - _PUT_AND_ID.size
    _, _, next_id, alike = unpack(payload, at)
    has_keys = alike[FLAGS_AT - DUE_AT] != 0
    while at <= last_start:
        fields: tuple[int, int, int, bytes] = unpack(payload, at)
        kind, record_bytes, job_id, like = fields
        if like != alike or job_id != next_id or kind != _PUT or record_bytes < HEADER_BYTES:
            break
        behind = at + _PUT_HEAD_BYTES + record_bytes
        record = payload[at + _PUT_HEAD_BYTES : behind]
        if has_keys and head_bytes_of(record) > record_bytes:
            break
        records.append(record)
        at = behind
        next_id += 1
    return records, at
