"""Playing records back into an engine that has just started.

Each record is unpacked by the table (`core.records`) and executed by the function of its kind
(`core.apply`), as it was live. What time did in between follows from the TURN records: the engine
is advanced to each of their times. Connections are gone after a restart, so reserved jobs belong
to the orphan session until their ttr runs out. Nothing here writes to the log.
"""

import struct
from typing import Final

from delayd.core import apply
from delayd.core.engine import Engine
from delayd.core.errors import Refusal
from delayd.core.operations.clock import advance
from delayd.core.records import LAYOUTS, TAILED, Kind, UnknownRecord
from delayd.core.times import PlayedMs
from delayd.limits import TASK_STEP_JOBS

# Tested for every job; an enum member's arithmetic costs 40 ns more than an int's.
_PUT: Final = int(Kind.PUT)
_TURN: Final = int(Kind.TURN)
_CONCLUDED: Final = frozenset({int(Kind.OFFSET), int(Kind.CLEAR)})


class Replay:
    """One replay into one engine."""

    def __init__(self, engine: Engine) -> None:
        """Play into this engine, which must be new."""
        self.engine = engine
        self._store = engine.store
        self._store.topics.keeps_all = True

    def play(self, payload: bytes) -> None:
        """Apply all records of one frame; `UnknownRecord` when it has something else."""
        at = 0
        end = len(payload)
        store, functions = self._store, apply.APPLY
        put_head = LAYOUTS[Kind.PUT]
        try:
            while at < end:
                kind = payload[at]
                if kind == _PUT:
                    length: int = put_head.unpack_from(payload, at)[1]
                    at += put_head.size
                    apply.put(store, payload[at : at + length])
                    at += length
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
        except (AssertionError, LookupError, ValueError, Refusal) as error:
            raise UnknownRecord(at, f"it does not fit what came before ({error!r})") from error
        if at != end:
            raise UnknownRecord(end, "the last record is cut short")

    def _conclude(self, kind: int) -> None:
        """Do at once what goes on in slices when it is live."""
        if kind == Kind.OFFSET:
            self._turn(self._store.time_ms)
        else:
            while self._store.sweep(TASK_STEP_JOBS):
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
        store.begin_figures()
        self.engine.log_space.jobs = len(store.jobs)
        store.time_ms = max(store.time_ms, now_ms)
