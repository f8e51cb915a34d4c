"""A daemon and a client of it, as the contract needs them: the same names for every kind.

    with world_of("http", daemon) as world:
        world.client.put(world.topic, "hello", delay=60)
        world.advance(60)

`client` is a `Client`, or an object that calls an `AsyncClient` and waits for it, so that each
test of the contract is written once. Time is virtual and moves by `advance` alone.
"""

import asyncio
import contextlib
import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final, Self

from delayd.client import AsyncClient, AsyncJob, Client
from delayd.client.batches import AsyncBatch
from delayd.testing.daemon import Daemon
from delayd.testing.fake import FakeDelayd

TOPICS: Final = itertools.count(1)
"""Tests share daemons, and each has a topic of its own."""


WRAPPED: Final = (AsyncJob, AsyncBatch)


class World:
    """One client, and the clock of its daemon."""

    def __init__(
        self,
        kind: str,
        client: Any,  # noqa: ANN401 - either kind of client
        advance: Callable[[float], object],
    ) -> None:
        self.kind = kind
        self.client = client
        self.advance = advance
        self.topic = f"topic-{next(TOPICS)}"

    @property
    def is_http(self) -> bool:
        return not self.kind.startswith("line")


class Waiting:
    """An `AsyncClient` or one of its jobs whose methods are called without asyncio."""

    def __init__(self, loop: asyncio.AbstractEventLoop, inner: Any) -> None:  # noqa: ANN401 - either
        self._loop = loop
        self._inner = inner

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever it is
        found = getattr(self._inner, name)
        if not inspect.ismethod(found):
            return found

        def call(*args: object, **options: object) -> Any:  # noqa: ANN401 - the same
            return self._waited_for(
                found(*[getattr(each, "_inner", each) for each in map(_plain, args)], **options)
            )

        return call

    def __enter__(self) -> Self:
        self._loop.run_until_complete(self._inner.__aenter__())
        return self

    def __exit__(self, *exception: object) -> None:
        self._loop.run_until_complete(self._inner.__aexit__(*exception))

    def _waited_for(self, value: Any) -> Any:  # noqa: ANN401 - the same
        if inspect.isawaitable(value):
            value = self._loop.run_until_complete(_whole(value))
        if hasattr(value, "__aiter__"):
            value = self._loop.run_until_complete(_listed(value))
        if isinstance(value, list):
            return [self._wrapped(each) for each in value]
        return self._wrapped(value)

    def _wrapped(self, value: Any) -> Any:  # noqa: ANN401 - the same
        return Waiting(self._loop, value) if isinstance(value, WRAPPED) else value


def _plain(value: Any) -> Any:  # noqa: ANN401 - the same
    return [each._inner for each in value] if _is_waiting(value) else value


def _is_waiting(value: object) -> bool:
    return isinstance(value, list) and any(isinstance(each, Waiting) for each in value)


async def _whole(value: Any) -> Any:  # noqa: ANN401 - the same
    return await value


async def _listed(value: Any) -> list[Any]:  # noqa: ANN401 - the same
    return [each async for each in value]


@contextlib.contextmanager
def waiting(make: Callable[[], AsyncClient]) -> Iterator[Any]:
    """An `AsyncClient` that is called without asyncio."""
    loop = asyncio.new_event_loop()

    async def made() -> AsyncClient:
        return make()

    client = loop.run_until_complete(made())
    try:
        yield Waiting(loop, client)
    finally:
        loop.run_until_complete(client.close())
        loop.close()


def client_of(
    kind: str,
    url: str,
    **how: Any,  # noqa: ANN401 - options of either
) -> contextlib.AbstractContextManager[Any]:
    if kind.endswith("asyncio"):
        return waiting(lambda: AsyncClient(url, **how))
    return Client(url, **how)


@contextlib.contextmanager
def world_of(kind: str, daemon: Daemon) -> Iterator[World]:
    """A client of this kind, of the daemon or of one in memory."""
    if kind.startswith("fake"):
        with FakeDelayd() as fake:
            made = waiting(fake.async_client) if kind.endswith("asyncio") else fake.client()
            with made as client:
                yield World(kind, client, fake.advance)
        return
    with client_of(kind, (line_url if kind.startswith("line") else http_url)(daemon)) as client:
        yield World(kind, client, daemon.advance)


def http_url(daemon: Daemon) -> str:
    return f"http://{daemon.http_listens_on}"


def line_url(daemon: Daemon) -> str:
    return f"beanstalk://{daemon.listens_on}"


KINDS: Final = ("fake", "fake-asyncio", "http", "http-asyncio", "line", "line-asyncio")
