"""Jobs in hand, without asyncio; `aio_jobs` has the same with it.

    with client.reserve("mail") as job:
        send(job.json())

While the block runs, its reservation is extended. At its end the job is acknowledged; if it raises,
the attempt is reported as failed, with the exception as the reason, and the exception goes on.
Within the block `job.bury()`, `job.nack(delay="5m")` or `job.ack()` decide otherwise.
"""

import contextlib
import os
import threading
import time
from typing import Final, Protocol, Self

from delayd.client.errors import DelaydError, NotFound, NotReserved
from delayd.client.reserved import Reserved
from delayd.client.results import Became, Reservation, Time
from delayd.client.touches import Touches
from delayd.client.values import Duration

HERE: Final = os.path.dirname(__file__)
WORDS_BYTES_MAX: Final = 700
"""So many bytes of an exception's words; the daemon keeps 1,024 in all, and the place too."""


class Holder(Protocol):
    """What a job needs of its client."""

    def ack(self, job: "Job") -> None:
        """Acknowledge it."""

    def nack(
        self, job: "Job", *, delay: Duration | None, error: str, priority: int | None
    ) -> Became:
        """Report that the attempt failed."""

    def release(self, job: "Job", *, delay: Duration | None, priority: int | None) -> Became:
        """Give it back."""

    def bury(self, job: "Job", *, error: str, priority: int | None) -> None:
        """Bury it."""

    def touch(self, job: "Job") -> Time | None:
        """Extend its reservation."""

    def keep(self, job: "Job") -> None:
        """Extend its reservation again and again."""

    def keep_no_more(self, job: "Job") -> None:
        """Stop that."""


class Job(Reserved):
    """A job in hand; a context manager, as above."""

    def __init__(self, client: Holder, reservation: Reservation) -> None:
        self.reservation = reservation
        self.is_finished = False
        self.is_lost = False
        self.became: Became | None = None
        self._client = client

    def __enter__(self) -> Self:
        self._client.keep(self)
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        self._client.keep_no_more(self)
        if self.is_finished:
            return
        if error is None:
            self.ack()
            return
        with contextlib.suppress(DelaydError):  # the first exception is what went wrong
            self.nack(error=described(error))

    def ack(self) -> None:
        """Acknowledge it: it is done and deleted.

        Raises NotReserved or NotFound if its ttr has run out: somebody else may be working on it.
        """
        self._client.ack(self)

    def nack(
        self, *, delay: Duration | None = None, error: str = "", priority: int | None = None
    ) -> Became:
        """Report that the attempt failed; return what becomes of the job."""
        self.became = self._client.nack(self, delay=delay, error=error, priority=priority)
        return self.became

    def release(self, *, delay: Duration | None = None, priority: int | None = None) -> Became:
        """Give it back; under a retry rule this is a failed attempt too."""
        return self._client.release(self, delay=delay, priority=priority)

    def bury(self, *, error: str = "", priority: int | None = None) -> None:
        """Set it aside until it is kicked."""
        self._client.bury(self, error=error, priority=priority)

    def touch(self) -> Time | None:
        """Extend the reservation by a full ttr from now; return when it ends, over HTTP."""
        return self._client.touch(self)


def described(error: BaseException) -> str:
    """Return what is kept of an exception: its class, its words, and where it was raised.

    >>> described(ValueError("no such user"))
    'ValueError: no such user'
    """
    place = place_of(error)
    words = str(error).encode(errors="replace")[:WORDS_BYTES_MAX].decode(errors="ignore")
    return f"{type(error).__name__}: {words}".removesuffix(": ") + place


def place_of(error: BaseException) -> str:
    """Return the last line of the handler's own file that was under way: ` (mail.py:17)`."""
    places = []
    traceback = error.__traceback__
    while traceback is not None:
        path = traceback.tb_frame.f_code.co_filename
        if os.path.dirname(path) != HERE:
            places.append((path, traceback.tb_lineno))
        traceback = traceback.tb_next
    lines = [line for path, line in places if path == places[0][0]]
    return f" ({os.path.basename(places[0][0])}:{lines[-1]})" if lines else ""


class Toucher:
    """A thread that touches the jobs in hand; it runs while there are any."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._jobs: Touches[Job] = Touches()
        self._is_running = False

    def add(self, job: Job, ttr_s: float) -> None:
        """Touch the job from now on."""
        with self._changed:
            self._jobs.add(job, ttr_s, time.monotonic())
            if not self._is_running:
                self._is_running = True
                threading.Thread(target=self._run, name="delayd-touch", daemon=True).start()
            self._changed.notify()

    def discard(self, job: Job) -> None:
        """Touch it no more."""
        with self._changed:
            self._jobs.discard(job)
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                next_s = self._jobs.next_s()
                if next_s is None:
                    self._is_running = False
                    return
                self._changed.wait(max(0.0, next_s - time.monotonic()))
                due = self._jobs.take_due(time.monotonic())
            for job in due:
                if not touched(job):
                    self.discard(job)


def touched(job: Job) -> bool:
    """Touch a job; tell whether to go on. A daemon that is away may be back the next time."""
    try:
        job.touch()
    except (NotReserved, NotFound):
        job.is_lost = not job.is_finished
        return False
    except DelaydError:
        pass
    return True
