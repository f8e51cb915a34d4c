"""Servers with jobs that stand there, which are put once for all cases with as many."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Generic, TypeVar

from benchmarks.servers.peer import Peer

Held = TypeVar("Held")


class Standing(Generic[Held]):
    """One for each subject, with so many jobs; those with another number are ended."""

    def __init__(self, make: Callable[[Peer, int], AbstractContextManager[Held]]) -> None:
        """Take what starts a server and puts the jobs."""
        self._make = make
        self._jobs = 0
        self._held: dict[str, tuple[Held, ExitStack]] = {}

    def at(self, subject: Peer, jobs: int) -> Held:
        """Return the subject's, which is made if it is not there."""
        if jobs != self._jobs:
            self.close()
            self._jobs = jobs
        name = f"{subject.subject}, {subject.policy}"
        if name not in self._held:
            stack = ExitStack()
            self._held[name] = stack.enter_context(self._make(subject, jobs)), stack
        return self._held[name][0]

    def close(self) -> None:
        """End all of them."""
        while self._held:
            self._held.popitem()[1][1].close()
