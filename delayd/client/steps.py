"""Logic that is the same with and without asyncio, as generators that yield results of calls.

With threads the result is an answer, which the generator gets back at once. With asyncio it is
awaited first. So decisions are written once, and waiting is in the modules of each.

>>> def twice(call):
...     return (yield call()) + (yield call())
>>> carried_out(twice(lambda: 1))
2
>>> async def answer():
...     return 2
>>> import asyncio; asyncio.run(awaited(twice(answer)))
4
"""

from collections.abc import Callable, Generator
from typing import Any, TypeVar

T = TypeVar("T")
Steps = Generator[Any, Any, T]
PageAfter = Callable[[str | None, int | None], Steps[tuple[list[T], str | None]]]
"""Fetches the page after a mark, of so many at most; answers the mark for the next one, or None."""


def _sent(steps: Steps[Any], _ask: object, answer: object) -> Any:  # noqa: ANN401 - the next request
    return steps.send(answer)


def answered_by(
    steps: Steps[T],
    exchange: Callable[[Any], Any],
    resumed: Callable[[Steps[T], Any, Any], Any] = _sent,
) -> Steps[T]:
    """Exchange each request of an operation; the steps are the results of `exchange`.

    An exchange that fails raises its error in the operation. `resumed` sends it an answer, and
    returns its next request.
    """
    try:
        ask = next(steps)
        while True:
            try:
                answer = yield exchange(ask)
            except BaseException as error:  # noqa: BLE001 - the steps handle it
                ask = steps.throw(error)
            else:
                ask = resumed(steps, ask, answer)
    except StopIteration as done:
        result: T = done.value
        return result


def carried_out(steps: Steps[T]) -> T:
    """Carry out steps that are answers of calls."""
    try:
        step = next(steps)
        while True:
            step = steps.send(step)
    except StopIteration as done:
        result: T = done.value
        return result


async def awaited(steps: Steps[T]) -> T:
    """Carry out steps that are awaitable."""
    try:
        step = next(steps)
        while True:
            try:
                answer = await step
            except BaseException as error:  # noqa: BLE001 - the steps handle it
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as done:
        result: T = done.value
        return result
