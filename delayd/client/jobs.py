"""Jobs in hand, with asyncio or without: their fields, how they end, when they are touched.

>>> touches = Touches()
>>> touches.add("a", ttr_s=60.0, now_s=100.0)
120.0
>>> touches.take_due(119.0), touches.take_due(120.0), touches.next_s()
([], ['a'], inf)
>>> touches.was_touched("a", 121.0)
>>> touches.next_s()
141.0
"""

import contextlib
import json
import os
import threading
import time
from collections.abc import Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from delayd.client.errors import ClientClosed, DelaydError, NotFound, NotReserved, Refused
from delayd.client.limits import TOUCH_S_MAX, TOUCH_S_MIN
from delayd.client.results import Became, Failure, Reservation, Time
from delayd.client.steps import Steps, carried_out

C = TypeVar("C")
J = TypeVar("J")
T = TypeVar("T")

HERE: Final = os.path.dirname(__file__)
WORDS_BYTES_MAX: Final = 700
"""So many bytes of an exception's words; the daemon keeps 1,024 in all, and the place too."""
NEVER_S: Final = float("inf")
LINGER_S: Final = 10.0
"""How long the thread that touches stays without a job."""


class Reserved(Protocol[C]):
    """A job in hand: its reservation, and how it ended."""

    client: C
    """The client that reserved it."""
    reservation: Reservation
    is_finished: bool
    """Whether it was acknowledged, nacked, buried or released."""
    is_lost: bool
    """Whether a touch found that the reservation had ended."""
    became: Became | None
    """The outcome of a nack."""

    def __init__(self, client: C, reservation: Reservation) -> None:
        self.client = client
        self.reservation = reservation
        self.is_finished = self.is_lost = False
        self.became = None

    def __repr__(self) -> str:
        return f"<job {self.id} of {self.topic!r}>"

    @property
    def id(self) -> int:
        """Its number."""
        return self.reservation.id

    @property
    def topic(self) -> str:
        """Its topic."""
        return self.reservation.topic

    @property
    def key(self) -> str:
        """Its key; empty if it has none."""
        return self.reservation.key

    @property
    def group(self) -> str | None:
        """Its group; None: it has none. On the line always None: use `client.get`."""
        return self.reservation.group or None

    @property
    def body(self) -> bytes:
        """The body, byte for byte."""
        return self.reservation.body

    @property
    def text(self) -> str:
        """The body, as UTF-8."""
        return self.body.decode()

    def json(self) -> Any:  # noqa: ANN401 - any JSON
        """Return the body, read as JSON."""
        return json.loads(self.body)

    @property
    def token(self) -> str:
        """Names this one reservation, over HTTP: another process may acknowledge with it."""
        return self.reservation.token

    @property
    def attempt(self) -> int | None:
        """Attempt number, starting at 1."""
        return self.reservation.attempt

    @property
    def due(self) -> Time | None:
        """When it was due."""
        return self.reservation.due

    @property
    def expires(self) -> Time | None:
        """When the reservation ends, as it was when the job was handed out; `touch` extends it."""
        return self.reservation.expires

    @property
    def failure(self) -> Failure | None:
        """Why the last attempt failed."""
        return self.reservation.failure


def leaving(job: Reserved[Any], error: BaseException | None) -> Steps[None]:
    """End the block of a job: acknowledge it, or report the error of a failed attempt."""
    job.client.keep_no_more(job)
    if job.is_finished:
        return
    if error is None:
        yield job.client.ack(job)
        return
    with contextlib.suppress(DelaydError):  # the first exception is raised
        yield job.client.nack(job, error=described(error))


Held = Reserved[Any] | str
"""A job in hand, or over HTTP the token of its reservation."""


def held(job: Held) -> Reservation | str:
    """Return the reservation of the job, or its token."""
    return job if isinstance(job, str) else job.reservation


def finishing(job: Held | int, steps: Steps[T]) -> Steps[T]:
    """Finish a job, and note it."""
    outcome = yield from steps
    if not isinstance(job, int | str):
        job.is_finished = True
    return outcome


def nacking(job: Held, steps: Steps[Became]) -> Steps[Became]:
    """Report a failed attempt, and note the outcome."""
    became = yield from finishing(job, steps)
    if not isinstance(job, str):
        job.became = became
    return became


def finishing_many(
    jobs: Sequence[Held], steps: Steps[list[Refused | None]]
) -> Steps[list[Refused | None]]:
    """Acknowledge jobs, and note which were acknowledged."""
    outcomes = yield from steps
    for job, refusal in zip(jobs, outcomes, strict=True):
        if refusal is None and not isinstance(job, str):
            job.is_finished = True
    return outcomes


def described(error: BaseException) -> str:
    """Return the text of an exception that is kept: class, message, and place.

    >>> described(ValueError("no such user"))
    'ValueError: no such user'
    """
    place = place_of(error)
    try:
        words = str(error)
    except Exception:  # noqa: BLE001 - it is told without its message
        words = ""
    words = words.encode(errors="replace")[:WORDS_BYTES_MAX].decode(errors="ignore")
    return f"{type(error).__name__}: {words}".removesuffix(": ") + place


def place_of(error: BaseException) -> str:
    """Return the last line of the handler's own file in the traceback: ` (mail.py:17)`."""
    places = []
    traceback = error.__traceback__
    while traceback is not None:
        path = traceback.tb_frame.f_code.co_filename
        if os.path.dirname(path) != HERE:
            places.append((path, traceback.tb_lineno))
        traceback = traceback.tb_next
    lines = [line for path, line in places if path == places[0][0]]
    return f" ({os.path.basename(places[0][0])}:{lines[-1]})" if lines else ""


# --- Touching ------------------------------------------------------------------------------------


def touch_every_s(ttr_s: float) -> float:
    """Return how often a job with this ttr is touched."""
    return min(max(ttr_s / 3, TOUCH_S_MIN), TOUCH_S_MAX)


class Touches(Generic[J]):
    """The jobs in hand, and when each is touched next. O(jobs) for each question."""

    def __init__(self) -> None:
        self._jobs: dict[int, tuple[J, float, float]] = {}

    def add(self, job: J, ttr_s: float, now_s: float) -> float:
        """Begin to touch a job; return when it is touched first."""
        every_s = touch_every_s(ttr_s)
        at_s = now_s + every_s
        self._jobs[id(job)] = (job, every_s, at_s)
        return at_s

    def discard(self, job: J) -> None:
        """Touch it no more."""
        self._jobs.pop(id(job), None)

    def next_s(self) -> float:
        """Return when the next one is to be touched; infinity: none is, as things are."""
        return min((at_s for _job, _every_s, at_s in self._jobs.values()), default=NEVER_S)

    def take_due(self, now_s: float) -> list[J]:
        """Return the jobs to be touched now; each waits for `was_touched` then."""
        due = [entry for entry in self._jobs.values() if entry[2] <= now_s]
        for job, every_s, _at_s in due:
            self._jobs[id(job)] = (job, every_s, NEVER_S)
        return [job for job, _every_s, _at_s in due]

    def was_touched(self, job: J, now_s: float) -> None:
        """Touch it again a third of its ttr from now, if it is still in hand."""
        if (entry := self._jobs.get(id(job))) is not None:
            self._jobs[id(job)] = (job, entry[1], now_s + entry[1])


class Toucher:
    """A thread that touches the jobs in hand.

    It begins with the first job, and ends when there was none for LINGER_S: a worker that takes one
    job after the other neither starts a thread for each, nor wakes it.
    """

    def __init__(self, linger_s: float = LINGER_S) -> None:
        self._linger_s = linger_s
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._jobs: Touches[Reserved[Any]] = Touches()
        self._wakes_s: float | None = None
        """When the thread wakes by itself; None: there is no thread."""
        self._pid = os.getpid()

    def add(self, job: Reserved[Any], ttr_s: float) -> None:
        """Touch the job from now on."""
        if self._pid != os.getpid():  # forked: the thread and its jobs stayed with the parent
            self._begin()
        now_s = time.monotonic()
        with self._lock:
            at_s = self._jobs.add(job, ttr_s, now_s)
            if self._wakes_s is None:
                self._wakes_s = at_s
                threading.Thread(target=self._run, name="delayd-touch", daemon=True).start()
            elif at_s < self._wakes_s:
                self._changed.notify()

    def discard(self, job: Reserved[Any]) -> None:
        """Touch it no more."""
        with self._lock:
            self._jobs.discard(job)

    def close(self) -> None:
        """End the thread once no job is in hand, without lingering."""
        with self._lock:
            self._linger_s = 0.0
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._lock:
                next_s, now_s = self._jobs.next_s(), time.monotonic()
                is_idle = next_s == NEVER_S
                if is_idle and not self._linger_s:
                    self._wakes_s = None
                    return
                self._wakes_s = now_s + self._linger_s if is_idle else next_s
                was_notified = self._changed.wait(max(0.0, self._wakes_s - now_s))
                due = self._jobs.take_due(time.monotonic())
                if is_idle and not was_notified and self._jobs.next_s() == NEVER_S:
                    self._wakes_s = None
                    return
            for job in due:
                goes_on = carried_out(touched(job))
                with self._lock:
                    if goes_on:
                        self._jobs.was_touched(job, time.monotonic())
                    else:
                        self._jobs.discard(job)


def touched(job: Reserved[Any]) -> Steps[bool]:
    """Touch a job; tell whether to go on. A daemon that is away may come back."""
    try:
        yield job.client.touch(job)
    except ClientClosed:
        return False
    except (NotReserved, NotFound):
        job.is_lost = not job.is_finished
        return False
    except DelaydError:
        return True
    return True
