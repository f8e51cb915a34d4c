"""T-P7: every state in which a power cut may leave what a real daemon did to its directory.

    strace -xx ─► calls ─► the same verbs on a SimulatedDisk ─► a crash after each of them

So every state in which a power cut may leave the directory can be made and recovered from, those
too that a real file system hardly ever shows. A sync by the kernel covers what had been written
when it was asked for, and counts from the moment when the daemon saw its end.
"""

import copy
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from delayd.core.job_parts import body_of
from delayd.exits import Exit
from delayd.journal.journal import Journal
from tests.faults.conftest import Runs
from tests.faults.disk import some_survive
from tests.faults.real_daemon import Tracing, started, wait_for_tracer
from tests.faults.real_load import PatientClient
from tests.rigs.disk import SimulatedDisk
from tests.rigs.engine import played

CALLS: Final = (
    *("openat", "pwrite64", "fdatasync", "fsync", "rename", "unlink", "ftruncate", "fallocate"),
    *("mkdir", "close", "io_submit", "io_getevents", "accept4", "sendto"),
)
FLAGS: Final = ("-xx", "-s", "10000000")
DIRECTORY: Final = "data"

_WHOLE: Final = re.compile(r"^(\d+) +(\w+)\((.*)\) += (-?\d+)")
_BEGUN: Final = re.compile(r"^(\d+) +(\w+)\((.*) <unfinished \.\.\.>$")
_RESUMED: Final = re.compile(r"^(\d+) +<\.\.\. \w+ resumed>(.*)$")
_TEXT: Final = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_SYNC: Final = re.compile(r"IOCB_CMD_FDSYNC, aio_fildes=(\d+)")


class Done(NamedTuple):
    """A call that has returned, well."""

    name: str
    arguments: str
    texts: list[bytes]
    result: int

    @property
    def handle(self) -> int:
        """Its first argument, for the calls that take a descriptor."""
        return int(self.arguments.partition(",")[0].partition("<")[0])

    def number(self, index: int) -> int:
        """One of its arguments, counted from the end by negative indices."""
        return int(self.arguments.split(",")[index])


def done_in(said: str) -> Iterator[Done]:
    """Yield what a tracer saw, in the order in which the calls returned."""
    begun: dict[str, str] = {}
    for seen in said.splitlines():
        if match := _BEGUN.match(seen):
            begun[match[1]] = f"{match[1]} {match[2]}({match[3]}"
            continue
        match = _RESUMED.match(seen)
        line = begun.pop(match[1]) + match[2] if match else seen
        if (match := _WHOLE.match(line)) and int(match[4]) >= 0:
            texts = [bytes.fromhex(text.replace("\\x", "")) for text in _TEXT.findall(match[3])]
            yield Done(match[2], match[3], texts, int(match[4]))


class Mirror:
    """A simulated disk on which the same happens as in the daemon's directory."""

    def __init__(self, directory: str) -> None:
        self.disk = SimulatedDisk()
        self.disk.make_directory(DIRECTORY)
        self._real = directory.encode()
        self._handles: dict[int, int] = {}
        self._directories: set[int] = set()
        self._kernel: tuple[int, int] | None = None
        """The handle that is being synced, and how many of its changes that covers."""

    def take(self, done: Done) -> bool:
        """Do the same; tell whether it was anything."""
        if done.name == "openat":
            return self._open(done)
        if done.name in {"rename", "unlink"}:
            paths = [path for path in map(self._path, done.texts) if path is not None]
            if paths:
                getattr(self.disk, done.name)(*paths)
            return bool(paths)
        if done.name == "io_submit":
            match = _SYNC.search(done.arguments)
            assert match, done
            handle = self._handles[int(match[1])]
            self._kernel = (handle, len(self.disk._file(handle).unsynced))
            return False
        if done.name == "io_getevents":
            return bool(done.result) and self._kernel_has_synced()
        if done.name == "fsync" and done.handle in self._directories:
            self.disk.sync_directory(DIRECTORY)
            return True
        if done.name in {"mkdir", "accept4", "sendto"} or done.handle not in self._handles:
            if done.name == "close":
                self._directories.discard(done.handle)
            return False
        self._change(done, self._handles[done.handle])
        return True

    def _path(self, real: bytes) -> str | None:
        folder, _, name = real.rpartition(b"/")
        return f"{DIRECTORY}/{name.decode()}" if folder == self._real else None

    def _open(self, done: Done) -> bool:
        if done.texts[0] == self._real:
            self._directories.add(done.result)
        path = self._path(done.texts[0])
        if path is None:
            return False
        is_there = path.rpartition("/")[2] in self.disk.list_directory(DIRECTORY)
        is_new = "O_CREAT" in done.arguments and ("O_TRUNC" in done.arguments or not is_there)
        open_or_create = self.disk.create(path) if is_new else self.disk.open(path, write=True)
        self._handles[done.result] = open_or_create
        return is_new

    def _change(self, done: Done, handle: int) -> None:
        if done.name == "pwrite64":
            data = done.texts[0][: done.result]
            assert self.disk.pwrite(handle, data, done.number(-1)) == len(data)
        elif done.name in {"fdatasync", "fsync"}:
            self.disk.sync(handle)
        elif done.name == "ftruncate":
            self.disk.truncate(handle, done.number(1))
        elif done.name == "fallocate":
            self.disk.allocate(handle, done.number(2) + done.number(3))
        else:
            assert done.name == "close", done
            del self._handles[done.handle]
            self.disk.close(handle)

    def _kernel_has_synced(self) -> bool:
        assert self._kernel is not None
        handle, covered = self._kernel
        self._kernel = None
        self.disk.end_sync(self.disk._file(handle), covered)
        return True


class Answers:
    """How many answers a client was sent, as the daemon's sockets show it; each is a line."""

    def __init__(self) -> None:
        self.count = 0
        self._socket: int | None = None

    def take(self, done: Done) -> None:
        """Take what was sent to the client that was accepted last."""
        if done.name == "accept4":
            self._socket = done.result
        elif done.name == "sendto" and done.handle == self._socket:
            self.count += done.texts[0][: done.result].count(b"\n")


# --- The test -----------------------------------------------------------------------------------


SEGMENT_BYTES: Final = 16 << 10
PACKETS: Final = 200


def talk(client: PatientClient, rng: random.Random) -> list[dict[int, bytes]]:
    """Put and delete, some in one piece; the log goes through many files and some snapshots.

    Return the jobs that there are after so many commands.
    """
    states: list[dict[int, bytes]] = [{}]
    last_id = 0
    for _ in range(PACKETS):
        pieces = []
        for _ in range(rng.choice((1, 1, 2, 5))):
            jobs = dict(states[-1])
            if jobs and rng.random() < 0.55:
                job_id = rng.choice([*jobs])
                del jobs[job_id]
                pieces.append(b"delete %d\r\n" % job_id)
            else:
                last_id += 1
                body = b"%d %b" % (last_id, rng.randbytes(rng.choice((10, 900, 6_000))))
                jobs[last_id] = body
                pieces.append(b"put 0 3600 60 %d\r\n%b\r\n" % (len(body), body))
            states.append(jobs)
        client.send(b"".join(pieces))
        for _ in pieces:
            assert client.reply().startswith((b"INSERTED ", b"DELETED"))
    return states


def recovered(disk: SimulatedDisk) -> dict[int, bytes]:
    """Start on the disk, and return the bodies of the jobs by their ids."""
    journal = Journal.open(DIRECTORY, disk=disk, segment_bytes=SEGMENT_BYTES)
    try:
        replay = played(journal.replay())
    finally:
        journal.close()
    if replay is None:
        return {}
    return {job_id: body_of(record) for job_id, record in replay.engine.store.jobs}


def test_p7_every_state_that_a_power_cut_may_leave(quick_path: Path, runs: Runs) -> None:
    """T-P7: the calls of a real daemon are done again on a disk that forgets, up to each of them.

    Whatever survives of what was not synced: all that was answered is there, nothing of what came
    later than the rest, and a second recovery finds the same.
    """
    home, trace = quick_path / DIRECTORY, quick_path / "trace"
    tracing = Tracing(trace, ",".join(CALLS), flags=FLAGS)
    with started(home, segment_bytes=str(SEGMENT_BYTES), tracing=tracing) as daemon:
        with PatientClient(daemon.address) as client:
            states = talk(client, random.Random("what is said"))
        assert daemon.stop() == Exit.OK
        assert "a snapshot was taken" in daemon.log()
    mirror, answers = Mirror(str(home)), Answers()
    rng = random.Random("what survives")
    crashes = 0
    for done in done_in(wait_for_tracer(trace)):
        is_ours = mirror.take(done)
        if not is_ours:
            answers.take(done)
            continue
        if not runs.is_long and rng.random() > 0.15:
            continue
        choices = [None, lambda _piece: True, *(some_survive(rng) for _ in range(runs.times(1, 6)))]
        for choice in choices:
            disk = copy.deepcopy(mirror.disk)
            disk.crash(choice)
            found = recovered(disk)
            assert found in states[answers.count :], f"after {done.name}({done.arguments[:200]})"
            disk.crash()
            assert recovered(disk) == found
            crashes += 1
    assert mirror.disk.list_directory(DIRECTORY)
    assert answers.count == len(states) - 1
    runs.count("T-P7", crashes, "crash states")
