"""The facts of facts.txt, on a simulated disk.

Steps stand between semicolons; `x*99` is 99 times x, `_*99` so many zeros, `?99` so much noise, and
`4:900` four payloads of 900 bytes that differ, `4:900:5` those after them. `put` syncs after each
payload, `fail sync 2` has the second sync from now on fail, `fail pread 1 99` the next 99, and
`fail create EROFS` with another error than EIO; `beside append a` appends during the next sync;
`crash` forgets what was not synced. Files are 1, 2, ... of the log, `end`, and any name. Outcomes:

    JournalFailed EIO       the last step is refused with these words
    = 3                     it returns this
    durable 3               up to here all is durable; so `appended`, `fresh` starts, `files`, ...
    holds a b               a start finds these payloads; the journal is open then
    same                    all files are as they were when `keep` was said, and so is the space
"""

import errno
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final

import pytest

from delayd.journal import errors
from delayd.journal.directory import holder
from delayd.journal.format import END_NAME
from delayd.journal.journal import Journal, Pending, SyncTicket
from delayd.journal.repair import prepared
from tests.fact_rows import Fact, rows
from tests.journal.journals import (
    CONFIGURED_BYTES,
    DIRECTORY,
    START_MS,
    BesideDisk,
    append_all,
    contents_of,
    numbered,
    opened,
    path_of,
    take_snapshot,
)

FACTS: Final = dict(rows(Path(__file__).parent / "facts.txt"))
REFUSALS: Final[dict[str, type[Exception]]] = {
    name: each
    for name, each in vars(errors).items()
    if isinstance(each, type) and issubclass(each, Exception)
} | {each.__name__: each for each in (OSError, AssertionError)}


def payloads(words: tuple[str, ...]) -> list[bytes]:
    found: list[bytes] = []
    for word in words:
        letter, _, times = word.partition("*")
        if re.fullmatch(r"\d+(:\d+)+", word):
            found += numbered(*map(int, word.split(":")))
        elif word.startswith("?"):
            found.append(Random(1).randbytes(int(word[1:])))
        else:
            found.append((letter.encode() if letter != "_" else b"\0") * int(times or 1))
    return found


def where(name: str) -> str:
    if name.isdigit():
        return path_of(int(name))
    return f"{DIRECTORY}/{END_NAME if name == 'end' else name}"


class JournalBench:
    """A journal, its disk, and a kernel that carries out what a ticket asks for."""

    def __init__(self) -> None:
        self.begin_anew()
        self._acts: dict[str, Callable[..., object]] = {
            "put": lambda *words: append_all(self.journal, payloads(words), sync_each=True),
            "at_once": lambda *most: self.journal.sync_at_once(*map(int, most)),
            "pending": lambda: self.journal._pending.frame_bytes,
            "pending_max": lambda most: setattr(self.journal, "_pending", Pending(int(most))),
            "due": lambda live: self.journal.snapshot_is_due(int(live)),
            "snapshot": lambda *words: take_snapshot(self.journal, payloads(words)).sequence,
            "write": lambda *words: [*map(self._writer.write, payloads(words))],
            "finish": lambda jobs: self._writer.finish(int(jobs)),
            "shrink": lambda space_bytes: self.journal.shrink_space(int(space_bytes)),
            # The disk, the process, and others
            "roomy": lambda: setattr(self.disk, "capacity_bytes", None),
            "crash": lambda: self.gone(self.disk.heal, self.disk.crash),
            "kill": lambda: self.gone(self.disk.kill),
            "close": lambda: self.gone(self.journal.close),
            "unread": lambda: self.start().close(),
            "clock": lambda kind: setattr(self, "_is_virtual", kind == "virtual"),
            "second": lambda: opened(self.disk),
            "unlock": lambda: self.disk.close(self._lock),
            "holder": lambda: holder(self.disk, DIRECTORY),
            "remove": lambda name: self.disk.unlink(where(name)),
            "place": lambda name, *words: self.disk.put_file(
                where(name), b"".join(payloads(words))
            ),
        }

    def begin_anew(self, segment_bytes: str = str(CONFIGURED_BYTES), capacity: str = "") -> None:
        """Have a journal with such segments on another disk, which is empty."""
        self.empty_disk(capacity)
        self._segment_bytes = int(segment_bytes)
        self._is_virtual = False
        self.troubles: list[str] = []
        self.unproved: list[str] = []
        self.beside_said: object = None
        self._ticket: SyncTicket | None = None
        self._error: OSError | None = None
        self._kept: dict[str, object] = {}
        self.reopen()

    def take(self, step: str) -> object:
        if not step:
            return None
        act, *words = shlex.split(step)
        taken: Callable[..., object] = self._acts.get(act) or getattr(self, act)
        return taken(*words)

    # --- Acts ------------------------------------------------------------------------------------

    def append(self, *words: str) -> int:
        append_all(self.journal, payloads(words))
        return self.journal.appended_sequence

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

    def begin(self, *sequence: str) -> None:
        """Begin a snapshot, of the last frame if no other is said."""
        last = int(sequence[0]) if sequence else self.journal.appended_sequence
        self._writer = self.journal.begin_snapshot(last, START_MS, START_MS)

    def space(self, *numbers: str) -> bool:
        """Ask for so many bytes, or for these and so long a payload, or for several of them."""
        is_there = self.journal.make_space(*map(int, numbers))
        assert not is_there or self.journal.space_bytes >= int(numbers[0])
        return is_there

    # --- The disk and the process ----------------------------------------------------------------

    def fail(self, verb: str, *which: str) -> None:
        numbers = [int(word) for word in which if word.isdigit()] or [1]
        name = which[-1] if which and not which[-1].isdigit() else "EIO"
        error = OSError(getattr(errno, name), name)
        for number in range(numbers[0], numbers[-1] + 1):
            self.disk.fail(self.disk.verb_counts[verb] + number, error, verb)

    def empty_disk(self, capacity: str = "") -> None:
        self.disk = BesideDisk(int(capacity) if capacity else None)

    def beside(self, *words: str) -> None:
        def act() -> None:
            self.beside_said = self.take(shlex.join(words))

        self.disk.beside.append(act)

    def full(self, room: str = "0") -> None:
        """Have no space on the disk from now on, or so much."""
        used = sum(map(len, contents_of(self.disk).values()))
        self.disk.capacity_bytes = used + int(room)

    def sync(self) -> int:
        return self.journal.sync()

    def look(self) -> None:
        self.journal.find_lost()

    def abandon(self) -> None:
        self._writer.abandon()

    def lock(self) -> None:
        """Do as a daemon of an earlier version."""
        self._lock = self.disk.lock(where("lock"))

    def gone(self, *acts: Callable[[], object]) -> None:
        """End the process in this way."""
        for act in acts:
            act()
        self.is_open = False

    def start(self) -> Journal:
        """Start without a look at the log."""
        return Journal.open(DIRECTORY, disk=self.disk, segment_bytes=self._segment_bytes)

    def reopen(self) -> int:
        self.journal, self.found = opened(
            self.disk, self._segment_bytes, is_virtual=self._is_virtual
        )
        self.journal.on_trouble = self.troubles.append
        self.journal.on_unproved = self.unproved.append
        self.is_open = True
        return len(self.found)

    def keep(self, *name: str) -> None:
        self._kept["".join(name)] = self._state(*name)

    def _state(self, *name: str) -> object:
        if name:
            return self.disk.file_bytes(where(*name))
        journal = self.journal
        return contents_of(self.disk), journal.space_bytes, journal.retention.disk_bytes

    def restore(self, name: str) -> None:
        content = self._kept[name]
        assert isinstance(content, bytes)
        self.disk.put_file(where(name), content)

    def accept(self, name: str, offset: str) -> None:
        """Have a command end the log there."""
        with prepared(self.disk, DIRECTORY, int(name), int(offset)) as operation:
            operation.cut()

    def cut(self, name: str) -> None:
        handle = self.disk.open(where(name), write=True)
        self.disk.truncate(handle, 100)
        self.disk.close(handle)

    # --- What is seen ----------------------------------------------------------------------------

    def see(self, what: str, words: list[str]) -> None:
        names = self.disk.list_directory(DIRECTORY)
        seen: dict[str, object] = {
            "durable": self.journal.synced_sequence,
            "appended": self.journal.appended_sequence,
            "fresh": self.journal.fresh_starts,
            "pending": self.journal._pending.frame_bytes,
            "files": sum(name.startswith("segment") for name in names),
            "snapshots": sum(name.startswith("snapshot") for name in names),
            "spares": sum(name.startswith("spare") for name in names),
            "free": self.disk.free_bytes(DIRECTORY),
            "space_trouble": self.journal.space_trouble,
            "unproved": ", ".join(self.unproved),
            "beside": self.beside_said,
        }
        if what == "holds":
            if not self.is_open:
                self.reopen()
            assert self.found == payloads((*words,))
        elif what in {"same", "changed"}:
            assert (self._state(*words) == self._kept["".join(words)]) is (what == "same")
        elif what in {"there", "gone"}:
            assert (words[0] in names) is (what == "there"), names
        elif what == "bytes":
            assert len(self.disk.file_bytes(where(words[0]))) == int(words[1])
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
    for step in filter(None, fact.given.split("; ")):
        bench.take(step)
    for steps, outcomes in fact.then:
        *others, last = steps.split("; ")
        for step in others:
            bench.take(step)
        refusal, _, said = outcomes.partition(" ")
        if refusal in REFUSALS:
            with pytest.raises(REFUSALS[refusal]) as refused:
                bench.take(last)
            assert " ".join(shlex.split(said)) in str(refused.value)
            continue
        returned = bench.take(last)
        for outcome in filter(None, re.split(r"; (?=[a-z=])", outcomes)):
            what, *words = shlex.split(outcome)
            if what == "=":
                assert str(returned) == words[0]
            else:
                bench.see(what, words)
