"""How long clients may take over what they have begun to say, and who is answered late.

Somebody who sends a byte every ten seconds keeps a connection, and whatever it has sent so far, for
as long as he likes. So a line that was begun has ten seconds to end, a handshake too, and a body
must keep a pace. Who says nothing at all may stay: beanstalkd's clients wait for hours.

Seconds are counted, not measured: once a second, and only while somebody is in the middle of
something, the server looks who still is. A second in which it did not listen (the disk was slow,
or a turn took long) is nobody's fault and does not count, and who was not read from because he
takes no replies begins anew.

>>> patience = ReadTimeouts(lambda: 0)
>>> patience.alarm_ms is None
True
"""

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from delayd.limits import (
    LINE_BODY_BYTES_PER_S_IN_ALL,
    LINE_BODY_BYTES_PER_S_MIN,
    LINE_BODY_IN_ALL_S,
    LINE_HALF_SAID_S_MAX,
)

_SECOND_MS: Final = 1_000


class Speaker(Protocol):
    """Somebody who may be in the middle of something."""

    @property
    def incomplete_bytes(self) -> int | None:
        """How many bytes of a body are missing, 0 if it is a line; None: in the middle of none."""
        ...

    @property
    def is_heard(self) -> bool:
        """Whether what it says is read."""
        ...


class Begun(NamedTuple):
    """What somebody has begun to say, and in which second."""

    second: int
    missing_bytes: int

    def is_over(self, second: int, missing_bytes: int) -> bool:
        """Tell whether it has taken too long, by this second and with so much still missing.

        >>> Begun(second=0, missing_bytes=0).is_over(11, 0)
        True
        >>> body = Begun(second=0, missing_bytes=40_960)      # 40 seconds at 1 KiB/s
        >>> body.is_over(21, 20_480), body.is_over(21, 20_481)
        (False, True)
        """
        whole_s = second - self.second - 1  # the first was not a whole one
        if not self.missing_bytes:
            return whole_s >= LINE_HALF_SAID_S_MAX
        in_all_s = max(LINE_BODY_IN_ALL_S, self.missing_bytes // LINE_BODY_BYTES_PER_S_IN_ALL)
        if whole_s >= in_all_s:
            return True
        come_bytes = self.missing_bytes - missing_bytes
        return whole_s >= LINE_HALF_SAID_S_MAX and come_bytes < whole_s * LINE_BODY_BYTES_PER_S_MIN


class ReadTimeouts:
    """Who is in the middle of something, and what is to be answered later."""

    __slots__ = ("_begun", "_elapsed_ms", "_late", "_second", "_tick_ms", "alarm_ms")

    def __init__(self, elapsed_ms: Callable[[], int]) -> None:
        """Wait for nobody yet; `elapsed_ms` never goes back, nor stands still for tests of jobs."""
        self._elapsed_ms = elapsed_ms
        self._begun: dict[Speaker, Begun] = {}
        self._second = 0
        self._tick_ms = 0
        self._late: deque[tuple[int, Callable[[], object]]] = deque()
        self.alarm_ms: int | None = None
        """When `is_due` at the earliest; None: nobody waits, and nothing needs to be looked at."""

    def note(self, speaker: Speaker, *, has_moved: bool = False) -> bool:
        """Look whether the speaker is in the middle of something now; tell whether.

        `has_moved`: whatever it was before has ended since.
        """
        missing_bytes = speaker.incomplete_bytes
        if missing_bytes is None:
            self.forget(speaker)
            return False
        begun = self._begun.get(speaker)
        is_same = (
            begun is not None
            and not has_moved
            and (missing_bytes > 0) == (begun.missing_bytes > 0)
            and missing_bytes <= begun.missing_bytes
        )
        if not is_same:
            if not self._begun:
                self._tick_ms = self._elapsed_ms() + _SECOND_MS
            self._begun[speaker] = Begun(self._second, missing_bytes)
            self._set_alarm()
        return True

    def forget(self, speaker: Speaker) -> None:
        """Wait no longer for this one."""
        if self._begun.pop(speaker, None) is not None and not self._begun:
            self._set_alarm()

    def postpone(self, by_ms: int, answer: Callable[[], object]) -> None:
        """Have this called so much later. Whoever asks always asks for as much."""
        self._late.append((self._elapsed_ms() + by_ms, answer))
        self._set_alarm()

    def wait_s(self, wait_s: float | None) -> float:
        """Return how long a wait may last that would have lasted so long, if `alarm_ms` is set."""
        assert self.alarm_ms is not None
        alarm_s = max(0, self.alarm_ms - self._elapsed_ms()) / 1_000
        return alarm_s if wait_s is None else min(wait_s, alarm_s)

    @property
    def is_due(self) -> bool:
        """Tell whether there are answers to give, or a second is over."""
        return self.alarm_ms is not None and self.alarm_ms <= self._elapsed_ms()

    def answers(self) -> list[Callable[[], object]]:
        """Return the answers whose time has come."""
        now_ms = self._elapsed_ms()
        due = []
        while self._late and self._late[0][0] <= now_ms:
            due.append(self._late.popleft()[1])
        self._set_alarm()
        return due

    def too_slow(self, *, counts: bool = True) -> list[Speaker]:
        """Return who has taken too long, if a second is over; it does not count unless `counts`."""
        now_ms = self._elapsed_ms()
        if not self._begun or now_ms < self._tick_ms:
            return []
        self._tick_ms = now_ms + _SECOND_MS
        self._set_alarm()
        if not counts:
            return []
        self._second += 1
        slow = []
        for speaker, begun in self._begun.items():
            missing_bytes = speaker.incomplete_bytes
            if not speaker.is_heard:
                self._begun[speaker] = begun._replace(second=self._second)
            elif missing_bytes is not None and begun.is_over(self._second, missing_bytes):
                slow.append(speaker)
        return slow

    def is_too_slow(self, speaker: Speaker) -> bool:
        """Tell whether the speaker, who was, still is: for a last look at what has arrived."""
        begun, missing_bytes = self._begun.get(speaker), speaker.incomplete_bytes
        return (
            begun is not None
            and missing_bytes is not None
            and begun.is_over(self._second, missing_bytes)
        )

    def _set_alarm(self) -> None:
        alarms = [self._late[0][0]] if self._late else []
        if self._begun:
            alarms.append(self._tick_ms)
        self.alarm_ms = min(alarms, default=None)
