"""Processes on virtual time, of which one acts at a time.

    stage = Stage()
    process = stage.process("a")
    stage.spawn(process, target)        # a thread of it, which may wait
    stage.at(5_000, call, process)      # a callback
    stage.run(until_ns=60_000)

Whatever waits (for an answer, an event, a moment) gives the stage to what comes next in time. So
nothing here depends on which thread is faster, an hour takes no time, and a process may be paused
at each of its waits and between two of its callbacks, or killed there. Its clocks go on meanwhile.
"""

import heapq
import random
import threading
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Final

Call = Callable[[], object]
START_NS: Final = 1_000_000_000_000


class Killed(BaseException):
    """The process is gone."""


class Process:
    """A process, as far as time goes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_alive = True
        self.paused_until_ns = 0
        self.fibers: list[Fiber] = []
        self.on_ready: Call | None = None
        """Called when something that it watches is readable."""


class Fiber:
    """A thread that acts only when the stage says so."""

    def __init__(self, stage: "Stage", process: Process, target: Call) -> None:
        self.process = process
        self.turns = 0  # how often it has acted: a wake-up is for one of them
        self.is_over = False
        self._stage = stage
        self._target = target
        self._error: BaseException | None = None
        self._go, self._back = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._back.acquire()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._go.acquire()
        try:
            if self.process.is_alive:
                self._target()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - it is raised where the stage is run
            self._error = error
        self.is_over = True
        self._back.release()

    def act(self) -> None:
        """Let it, which is not over, go on until it waits again, or is over."""
        self.turns += 1
        before, self._stage.fiber = self._stage.fiber, self
        self._go.release()
        self._back.acquire()
        self._stage.fiber = before
        if self.is_over:
            self.process.fibers.remove(self)
            self._thread.join()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def wait(self) -> None:
        """Give the stage back, in the thread itself. Raises Killed."""
        self._back.release()
        self._go.acquire()
        if not self.process.is_alive:
            raise Killed


class Bell:
    """Something that threads wait for."""

    def __init__(self, stage: "Stage") -> None:
        self._stage = stage
        self._waiting: list[tuple[Fiber, int]] = []

    def ring(self) -> None:
        """Wake those that wait."""
        waiting, self._waiting = self._waiting, []
        for fiber, turn in waiting:
            self._stage.wake(fiber, turn, self._stage.now_ns)

    def wait(self, timeout_ns: int) -> None:
        """Wait for it, and not longer than that."""
        fiber = self._stage.fiber
        assert fiber is not None, "only what has a thread of its own may wait"
        self._waiting.append((fiber, fiber.turns))
        self._stage.sleep(timeout_ns)


class Stage:
    """The time, and what comes next."""

    def __init__(self) -> None:
        self.now_ns = START_NS
        self.process: Process | None = None
        """Whose callback, or thread, acts now."""
        self.fiber: Fiber | None = None
        self.after_each: Call | None = None
        """Called after everything that happens."""
        self.numbers = count(1)
        """Of descriptors, among others."""
        self.watchers: dict[int, Call] = {}
        """What is called when a descriptor is readable."""
        self._heap: list[tuple[int, int, Process | None, Call]] = []

    def boot_ns(self) -> int:
        """Read the clock that cannot be set, which is the same for all."""
        return self.now_ns

    def ready(self, descriptor: int, process: Process | None) -> None:
        """Wake the process if it watches this descriptor."""
        if descriptor in self.watchers:
            self.after(0, partial(self._call_watcher, descriptor), process)

    def _call_watcher(self, descriptor: int) -> None:
        if descriptor in self.watchers:
            self.watchers[descriptor]()

    # --- What comes ------------------------------------------------------------------------------

    def at(self, at_ns: int, call: Call, process: Process | None = None) -> None:
        """Call at that time; later if the process is paused, and not at all if it is gone."""
        heapq.heappush(self._heap, (at_ns, next(self.numbers), process, call))

    def after(self, delay_ns: int, call: Call, process: Process | None = None) -> None:
        """Call so much later."""
        self.at(self.now_ns + delay_ns, call, process)

    def spawn(self, process: Process, target: Call) -> None:
        """Have a thread of the process begin."""
        fiber = Fiber(self, process, target)
        process.fibers.append(fiber)
        self.wake(fiber, 0, self.now_ns)

    def wake(self, fiber: Fiber, turn: int, at_ns: int) -> None:
        """Let the thread go on at that time, if it still waits as it did in that turn."""
        self.at(at_ns, partial(self._go_on, fiber, turn), fiber.process)

    def _go_on(self, fiber: Fiber, turn: int) -> None:
        if fiber.turns == turn and not fiber.is_over:
            fiber.act()

    def sleep(self, timeout_ns: int) -> None:
        """Wait, in a thread of a process."""
        fiber = self.fiber
        assert fiber is not None, "only what has a thread of its own may wait"
        self.wake(fiber, fiber.turns, self.now_ns + timeout_ns)
        fiber.wait()

    def kill(self, process: Process) -> None:
        """End the process where it is."""
        process.is_alive = False
        for fiber in list(process.fibers):
            if fiber is not self.fiber:
                fiber.act()

    def run(self, until_ns: int, is_over: Callable[[], bool] = bool) -> None:
        """Let everything happen up to that time, or until it is over."""
        heap = self._heap
        while heap and heap[0][0] <= until_ns and not is_over():
            at_ns, number, process, call = heapq.heappop(heap)
            if process is not None:
                if not process.is_alive:
                    continue
                if process.paused_until_ns > at_ns:
                    heapq.heappush(heap, (process.paused_until_ns, number, process, call))
                    continue
            self.now_ns = max(self.now_ns, at_ns)
            self.process = process
            call()
            if self.after_each is not None:
                self.after_each()
        if not is_over():
            self.now_ns = max(self.now_ns, until_ns)


# --- In place of modules of the standard library -------------------------------------------------


class Event:
    """A `threading.Event` on the stage."""

    def __init__(self, stage: Stage) -> None:
        self._bell = Bell(stage)
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._bell.ring()

    def wait(self, timeout_s: float) -> bool:
        if not self._is_set:
            self._bell.wait(round(timeout_s * 1e9))
        return self._is_set


class Threading:
    """Stands for `threading`."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.Event = partial(Event, stage)

    def Thread(self, *, target: Call, **_how: object) -> "Threading":  # noqa: N802 - as there
        process = self._stage.process
        assert process is not None
        begun = Threading(self._stage)
        begun.start = partial(self._stage.spawn, process, target)  # type: ignore[method-assign]
        return begun

    def start(self) -> None:
        """Begin."""


class Epoll:
    """A `select.epoll` on the stage; its process is called too, in place of its poller."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._bell = Bell(stage)
        self._process = stage.process

    def register(self, descriptor: int, _events: int) -> None:
        self._stage.watchers[descriptor] = self._ready

    def modify(self, descriptor: int, events: int) -> None:
        pass

    def _ready(self) -> None:
        self._bell.ring()
        if self._process is not None and self._process.on_ready is not None:
            self._process.on_ready()

    def poll(self, timeout_s: float) -> None:
        self._bell.wait(round(timeout_s * 1e9))

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        pass


class System:
    """Stands for `select` and `os`, as far as a log needs them."""

    EPOLLIN, EPOLLOUT = 1, 4
    EFD_NONBLOCK = EFD_CLOEXEC = 0

    def __init__(self, stage: Stage, rng: random.Random) -> None:
        self._stage = stage
        self.urandom = rng.randbytes
        self.epoll = partial(Epoll, stage)

    def eventfd(self, _initial: int, _flags: int) -> int:
        return next(self._stage.numbers)

    def eventfd_read(self, descriptor: int) -> None:
        pass

    def eventfd_write(self, descriptor: int, _value: int) -> None:
        self._stage.ready(descriptor, self._stage.process)

    def close(self, descriptor: int) -> None:
        self._stage.watchers.pop(descriptor, None)
