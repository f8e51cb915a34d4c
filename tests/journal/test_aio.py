"""The kernel's sync on a real file; what a disk would have to break for is answered by a double."""

import ctypes
import errno
import os
import select
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from delayd.journal import aio
from delayd.journal.aio import CALLS, FDSYNC, IO_EVENT, IOCB, Calls, KernelSync, open_kernel_sync

HANG_S_MAX: Final = 60.0


def opened_kernel() -> KernelSync:
    made = open_kernel_sync()
    if made is None:
        pytest.skip("this kernel, or the sandbox around us, does not sync asynchronously")
    return made


@pytest.fixture
def kernel() -> Iterator[KernelSync]:
    made = opened_kernel()
    yield made
    made.close()


@pytest.fixture
def handle(tmp_path: Path) -> Iterator[int]:
    opened = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield opened
    os.close(opened)


@pytest.fixture
def bell(kernel: KernelSync) -> Iterator[select.epoll]:
    """Watches as the daemon does: told once for each sync, nobody reads the descriptor."""
    with select.epoll() as epoll:
        epoll.register(kernel.fileno(), select.EPOLLIN | select.EPOLLET)
        yield epoll


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_layouts_and_calls_are_those_of_the_kernel() -> None:
    assert (IOCB.size, IO_EVENT.size) == (64, 32)
    assert {len(set(calls)) for calls in CALLS.values()} == {4}


def test_each_sync_of_several_rings_once_and_ends_well(
    kernel: KernelSync, bell: select.epoll, handle: int
) -> None:
    assert bell.poll(0) == []
    for number in range(20):
        os.pwrite(handle, b"x" * 100, number * 100)
        kernel.begin(handle)
        assert bell.poll(HANG_S_MAX) == [(kernel.fileno(), select.EPOLLIN)]
        assert kernel.finish()
        assert kernel.error is None
        assert bell.poll(0) == []


def test_a_sync_is_told_of_once_and_rings_also_when_it_was_waited_for(
    kernel: KernelSync, bell: select.epoll, handle: int
) -> None:
    assert not kernel.finish()
    kernel.begin(handle)
    assert kernel.finish(wait=True)
    assert bell.poll(HANG_S_MAX)
    assert not kernel.finish()
    kernel.begin(handle)
    assert bell.poll(HANG_S_MAX)
    assert kernel.finish()


def test_what_cannot_be_synced_is_told_at_its_beginning_or_end_with_the_kernels_reason(
    kernel: KernelSync,
) -> None:
    for end in os.pipe():
        error: OSError | None
        try:
            kernel.begin(end)
        except OSError as refused:
            error = refused
        else:
            assert kernel.finish(wait=True)
            error = kernel.error
        os.close(end)
        assert error is not None
        assert error.errno == errno.EINVAL


def test_a_descriptor_that_is_closed_is_refused_at_once_and_one_that_is_closed_later_synced(
    kernel: KernelSync, tmp_path: Path
) -> None:
    with (tmp_path / "short-lived").open("wb") as file:
        file.write(bytes(1 << 20))
        file.flush()
        closed = os.dup(file.fileno())
        os.close(closed)
        with pytest.raises(OSError, match="Bad file descriptor") as caught:
            kernel.begin(closed)
        assert caught.value.errno == errno.EBADF
        kernel.begin(file.fileno())
    assert kernel.finish(wait=True)
    assert kernel.error is None


def test_closing_waits_for_the_sync_going_on_leaks_no_descriptor_and_is_the_end(
    handle: int,
) -> None:
    before = descriptors()
    for _ in range(50):
        kernel = opened_kernel()
        os.pwrite(handle, bytes(4096), 0)
        kernel.begin(handle)
        kernel.close()
        with pytest.raises(OSError, match="Invalid argument"):
            kernel.begin(handle)
    assert descriptors() <= before, "others may have closed some"


# --- With answers that no healthy kernel gives ---------------------------------------------------


class ScriptedKernel:
    """Stands for `syscall`: answers `io_getevents` as it is told, all else with success."""

    def __init__(self, sync: KernelSync) -> None:
        self._sync = sync
        self.answers: list[Callable[[], int]] = []
        self.submitted: list[tuple[int, ...]] = []

    def __call__(self, number: ctypes.c_long, *_arguments: object) -> int:
        if number.value == self._sync._calls.submit:
            self.submitted.append(IOCB.unpack(self._sync._request))
            return 1
        return self.answers.pop(0)() if self.answers else 0

    def ends_with(self, result: int) -> Callable[[], int]:
        def answer() -> int:
            IO_EVENT.pack_into(self._sync._result, 0, 0, 0, result, 0)
            return 1

        return answer

    @staticmethod
    def interrupted() -> int:
        ctypes.set_errno(errno.EINTR)
        return -1


@pytest.fixture
def scripted(kernel: KernelSync, monkeypatch: pytest.MonkeyPatch) -> ScriptedKernel:
    made = ScriptedKernel(kernel)
    monkeypatch.setattr(kernel, "_syscall", made)
    return made


def test_a_request_names_the_operation_the_file_and_the_event(
    kernel: KernelSync, scripted: ScriptedKernel
) -> None:
    kernel.begin(77)
    data, key, rw_flags, operation, priority, file, *rest = scripted.submitted[0]
    assert (data, key, rw_flags, priority) == (0, 0, 0, 0)
    assert (operation, file) == (FDSYNC, 77)
    assert rest == [0, 0, 0, 0, aio.TELL_EVENTFD, kernel.fileno()]


@pytest.mark.parametrize("wait", [False, True])
def test_a_signal_is_no_answer_and_an_error_of_the_disk_is_forgotten_with_the_next_sync(
    kernel: KernelSync, scripted: ScriptedKernel, wait: bool
) -> None:
    scripted.answers = [scripted.interrupted] * 3
    scripted.answers += [scripted.ends_with(-errno.EIO), scripted.ends_with(0)]
    kernel.begin(77)
    assert kernel.finish(wait=wait)
    assert kernel.error is not None
    assert (kernel.error.errno, kernel.error.strerror) == (errno.EIO, os.strerror(errno.EIO))
    kernel.begin(77)
    assert kernel.finish(wait=wait)
    assert kernel.error is None


# --- Where there is none -------------------------------------------------------------------------


class Refusing:
    """A C library whose every system call is refused."""

    def __init__(self, *_names: object, **_how: object) -> None:
        pass

    def syscall(self, *_arguments: object) -> int:
        ctypes.set_errno(errno.ENOSYS)
        return -1


def test_where_there_is_no_kernel_sync_nothing_is_left_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none_left(*_arguments: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    unknown = Calls(setup=100_000, destroy=100_000, submit=100_000, getevents=100_000)
    machine = os.uname_result(("Unix", "host", "7", "1979", "pdp11"))
    before = descriptors()
    with pytest.raises(OSError, match=os.strerror(errno.ENOSYS)):
        KernelSync(unknown)
    lacking = ((os, "uname", lambda: machine), (os, "eventfd", none_left))
    for module, name, answer in (*lacking, (ctypes, "CDLL", Refusing)):
        with monkeypatch.context() as patched:
            patched.setattr(module, name, answer)
            assert open_kernel_sync() is None
    assert descriptors() <= before, "others may have closed some"
