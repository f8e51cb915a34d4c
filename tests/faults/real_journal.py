"""A journal without a daemon, to be cut off a thousand times: one process, a child for each run.

    ► go 3 /disk/data 77          a child opens the journal, says what it found, and appends
    ◄ found 0/1 1/1 2/2           payloads by number and the run that wrote them
    ◄ acked 5                     so many payloads are durable, as `Journal.sync` says
    ► stop                        the child is killed
    ◄ stopped

It says what it was told by the journal and nothing else; whoever cuts the power compares. Snapshots
hold every payload there was, so that whatever is recovered is one list.
"""

import os
import random
import signal
import sys
from typing import Final

from delayd.journal.disk import RealDisk
from delayd.journal.errors import JournalError
from delayd.journal.journal import Journal

SEGMENT_BYTES: Final = 64 << 10
START_MS: Final = 1_700_000_000_000
SIZES: Final = (10, 100, 100, 1_000, 5_000)
PAYLOADS_MAX: Final = 10_000
"""Of one run, which is killed long before: unless a busy machine lets us run and not the killer."""


def payload_of(number: int, run: int) -> bytes:
    """What stands in the journal under this number, if that run wrote it."""
    rng = random.Random(f"{number}/{run}")
    return b"%d/%d " % (number, run) + rng.randbytes(rng.choice(SIZES))


def named(payload: bytes) -> str:
    """The name of a payload that is whole; a mark if it is not."""
    name = payload.partition(b" ")[0].decode(errors="replace")
    try:
        number, run = map(int, name.split("/"))
    except ValueError:
        return f"foreign:{payload[:20].hex()}"
    return name if payload == payload_of(number, run) else f"broken:{name}"


def say(*words: object) -> None:
    """In one piece, so that nothing is said by halves when the process dies."""
    os.write(1, " ".join(map(str, words)).encode() + b"\n")


def use(directory: str, run: int, seed: str) -> None:
    """Open, say what is there, append until the end comes."""
    rng = random.Random(seed)
    journal = Journal.open(directory, disk=RealDisk(), segment_bytes=SEGMENT_BYTES)
    payloads = [frame.payload for frame in journal.replay() if frame.payload]
    say("found", *map(named, payloads))
    enough = len(payloads) + PAYLOADS_MAX
    while True:
        if len(payloads) > enough:
            signal.pause()
        for _ in range(rng.choice((1, 1, 2, 6))):
            payloads.append(payload_of(len(payloads), run))
            journal.append(payloads[-1], START_MS, START_MS)
        if rng.random() < 0.9:
            journal.sync()
            say("acked", len(payloads))
        if rng.random() < 0.04:
            writer = journal.begin_snapshot(journal.appended_sequence, START_MS, START_MS)
            for payload in payloads:
                writer.write(payload)
            writer.finish(len(payloads))
            say("acked", len(payloads))


def child(directory: str, run: int, seed: str) -> int:
    """Be the one that is cut off; return an exit code."""
    try:
        use(directory, run, seed)
    except JournalError as error:
        say("failed", type(error).__name__, error)
    return 0


def main() -> None:
    pid = 0
    for line in sys.stdin:
        word, *rest = line.split()
        if word == "go":
            pid = os.fork()
            if pid == 0:
                os._exit(child(rest[1], int(rest[0]), rest[2]))
        else:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            say("stopped")


if __name__ == "__main__":
    main()
