"""Clients of either kind for a scripted peer: their pauses take no time and are noted."""

import contextlib
from typing import Any, Self

from delayd.client import AsyncClient, Client
from delayd.client.aio_connection import AsyncConnections
from delayd.client.connection import Connections
from delayd.client.limits import ANSWER_BYTES_MAX
from delayd.client.protocols import way_to
from tests.client.worlds import waiting


class Made:
    """Clients of either kind, and how long they paused."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.pauses: list[float] = []
        self.connections: list[Connections | AsyncConnections] = []
        """Those of each client."""
        self._stack = contextlib.ExitStack()

    def client(
        self,
        url: str,
        *,
        token: str = "",
        timeout_s: float = 60,
        patience_s: float = 1,
        answer_bytes_max: int = ANSWER_BYTES_MAX,
    ) -> Any:  # noqa: ANN401
        calls, way = way_to(url, token, None, timeout_s, patience_s, answer_bytes_max)
        way.chance = lambda: 1.0
        if self._kind == "plain":
            plain = Connections(way, sleep=self.pauses.append)
            self.connections.append(plain)
            return self._stack.enter_context(Client.over(plain, calls))

        async def sleep(pause_s: float) -> None:
            self.pauses.append(pause_s)

        connections = AsyncConnections(way, sleep=sleep)
        self.connections.append(connections)
        return self._stack.enter_context(waiting(lambda: AsyncClient.over(connections, calls)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        self._stack.close()
