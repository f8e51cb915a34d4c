"""A daemon and a client of it, as the contract needs them: the same names for every kind.

    with http_world(daemon) as world:
        world.client.put(world.topic, "hello", delay=60)
        world.advance(60)

`client` is a `Client`, or an object that calls an `AsyncClient` and waits for it, so that each
test of the contract is written once. Time is virtual and moves by `advance` alone.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final

from delayd.client import Client
from delayd.testing.daemon import Daemon

TOPICS: Final = itertools.count(1)
"""Tests share daemons, and each has a topic of its own."""


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


@contextlib.contextmanager
def http_world(daemon: Daemon) -> Iterator[World]:
    with Client(f"http://{daemon.http_listens_on}") as client:
        yield World("http", client, daemon.advance)


KINDS: Final = {"http": http_world}
