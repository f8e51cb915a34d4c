"""The facts of facts.txt, on a simulated disk.

Steps stand between semicolons; `x*99` is 99 times x. `put` syncs after each payload, `fail sync 2`
has the second sync from now on fail, and `crash` forgets what was not synced. Files are 1, 2, ...
of the log, and `end`. Outcomes:

    JournalFailed EIO       the last step is refused with these words
    = 3                     it returns this
    durable 3               up to here all is durable; so `appended`, `fresh` starts, `files`, ...
    holds a b               a start finds these payloads; the journal is open then
"""

import errno
import re
import shlex
from pathlib import Path
from typing import Final

import pytest

from delayd.journal.errors import JournalCorrupt, JournalFailed, JournalFull
from delayd.journal.format import END_NAME
from delayd.journal.journal import Journal, Pending, SyncTicket
from tests.fact_rows import Fact, rows
from tests.journal.journals import (
    DIRECTORY,
    append_all,
    contents_of,
    opened,
    path_of,
    take_snapshot,
)  # fmt: skip
from tests.rigs.disk import SimulatedDisk

FACTS: Final = dict(rows(Path(__file__).parent / "facts.txt"))
REFUSALS: Final = {each.__name__: each for each in (JournalCorrupt, JournalFailed, JournalFull)} | {
    "OSError": OSError
}


def payload(text: str) -> bytes:
    letter, _, times = text.partition("*")
    return letter.encode() * int(times or 1)


def where(name: str) -> str:
    return f"{DIRECTORY}/{END_NAME}" if name == "end" else path_of(int(name))


class JournalBench:
    """A journal, its disk, and a kernel that carries out what a ticket asks for."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk()
        self.journal: Journal = opened(self.disk)[0]
        self.is_open = True
        self.found: list[bytes] = []
        self.troubles: list[str] = []
        self.journal.on_trouble = self.troubles.append
        self._ticket: SyncTicket | None = None
        self._error: OSError | None = None
        self._kept: dict[str, bytes] = {}

    # --- Acts ------------------------------------------------------------------------------------

    def append(self, *texts: str) -> int:
        append_all(self.journal, map(payload, texts))
        return self.journal.appended_sequence

    def put(self, *texts: str) -> None:
        append_all(self.journal, map(payload, texts), sync_each=True)

    def sync(self) -> int:
        return self.journal.sync()

    def at_once(self, *bytes_max: str) -> bool:
        return self.journal.sync_at_once(*map(int, bytes_max))

    def ticket(self) -> bool:
        ticket = self.journal.begin_sync()
        self._ticket = ticket or self._ticket
        return ticket is not None

    def carry_out(self) -> None:
        assert self._ticket is not None
        self._error = None
        try:
            self.disk.sync(self._ticket.segment.handle)
        except OSError as error:
            self._error = error

    def end_ticket(self, how: str = "") -> bool:
        assert self._ticket is not None
        error = OSError(errno.EIO, "EIO") if how == "EIO" else self._error
        return self.journal.end_sync(self._ticket, error, is_done=how != "undone")

    def look(self) -> None:
        self.journal.find_lost()

    def due(self, live_bytes: str) -> bool:
        return self.journal.snapshot_is_due(int(live_bytes))

    def snapshot(self, *texts: str) -> int:
        return take_snapshot(self.journal, [*map(payload, texts)]).sequence

    def pending_max(self, bytes_max: str) -> None:
        self.journal._pending = Pending(int(bytes_max))

    def pending(self) -> int:
        return self.journal._pending.frame_bytes

    # --- The disk and the process ----------------------------------------------------------------

    def fail(self, verb: str, count: str = "1") -> None:
        self.disk.fail(self.disk.verb_counts[verb] + int(count), OSError(errno.EIO, "EIO"), verb)

    def full(self) -> None:
        self.disk.capacity_bytes = sum(map(len, contents_of(self.disk).values()))

    def crash(self) -> None:
        self.disk.heal()
        self.disk.crash()
        self.is_open = False

    def kill(self) -> None:
        self.disk.kill()
        self.is_open = False

    def close(self) -> None:
        self.journal.close()
        self.is_open = False

    def reopen(self) -> int:
        self.journal, self.found = opened(self.disk)
        self.is_open = True
        return len(self.found)

    def keep(self, name: str) -> None:
        self._kept[name] = self.disk.file_bytes(where(name))

    def restore(self, name: str) -> None:
        self.disk.put_file(where(name), self._kept[name])

    def empty(self, name: str) -> None:
        self.disk.put_file(where(name), b"")

    def remove(self, name: str) -> None:
        self.disk.unlink(where(name))

    def cut(self, name: str) -> None:
        handle = self.disk.open(where(name), write=True)
        self.disk.truncate(handle, 100)
        self.disk.close(handle)

    # --- What is seen ----------------------------------------------------------------------------

    def see(self, what: str, words: list[str]) -> None:
        seen: dict[str, object] = {
            "durable": self.journal.synced_sequence,
            "appended": self.journal.appended_sequence,
            "fresh": self.journal.fresh_starts,
            "pending": self.pending(),
            "files": sum(name.startswith("segment") for name in contents_of(self.disk)),
            "snapshots": sum(name.startswith("snapshot") for name in contents_of(self.disk)),
        }
        if what == "holds":
            if not self.is_open:
                self.reopen()
            assert self.found == [*map(payload, words)]
        elif what == "same":
            assert self.disk.file_bytes(where(words[0])) == self._kept[words[0]]
        elif what == "trouble":
            assert words[0] in "".join(self.troubles)
        elif what == "lost":
            assert words[0] in self.journal.lost if words else not self.journal.lost
        else:
            assert str(seen[what]) == words[0], seen


@pytest.mark.parametrize("name", FACTS)
def test_fact(name: str) -> None:
    play(FACTS[name])


def play(fact: Fact) -> None:
    bench = JournalBench()

    def take(step: str) -> object:
        act, *words = shlex.split(step)
        returned: object = getattr(bench, act)(*words)
        return returned

    for step in filter(None, fact.given.split("; ")):
        take(step)
    for steps, outcomes in fact.then:
        *others, last = steps.split("; ")
        for step in others:
            take(step)
        refusal, _, said = outcomes.partition(" ")
        if refusal in REFUSALS:
            with pytest.raises(REFUSALS[refusal]) as refused:
                take(last)
            assert " ".join(shlex.split(said)) in str(refused.value)
            continue
        returned = take(last)
        for outcome in filter(None, re.split(r"; (?=[a-z=])", outcomes)):
            what, *words = shlex.split(outcome)
            if what == "=":
                assert str(returned) == words[0]
            else:
                bench.see(what, words)
