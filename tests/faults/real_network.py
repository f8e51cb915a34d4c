"""Links between daemons and a database, which delay, swallow and cut what goes over them.

    with network() as net:
        link = net.link(5432)          # connect to link.port: it leads to port 5432
        link.delay_s = 0.3             # each piece waits so long, in both directions
        link.block(DOWN)               # nothing comes back any more, and nobody is told
        link.heal()                    # what was held up goes on; `drop=True`: it is cut instead
        link.cut_in_answer()           # a part of the next answer, and then the end

They are played by asyncio in a thread of its own. The module knows no protocol.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Final

from tests.servers import HOST, free_port

UP: Final = "up"
"""From the daemon to the database."""

DOWN: Final = "down"
READ_BYTES: Final = 1 << 16
BACK_LATER_S: Final = 0.01


class Link:
    """A port that leads to another one."""

    def __init__(self, net: "Network", port: int, to_port: int) -> None:
        self.port = port
        self.delay_s = 0.0
        self._net = net
        self.to_port = to_port
        self._server: object = None
        self._blocked: set[str] = set()
        self._must_cut = False
        self._watches: list[tuple[str, Callable[[], object]]] = []
        self._open: set[asyncio.StreamWriter] = set()

    def block(self, *directions: str) -> None:
        """Hold up what goes in these directions, from now on."""
        self._blocked.update(directions)

    def cut_in_answer(self) -> None:
        """Let half of the next piece from the database through, and close the connection."""
        self._must_cut = True

    def watch(self, direction: str, call: Callable[[], object]) -> None:
        """Call this once, before the next piece in this direction is passed on."""
        self._watches.append((direction, call))

    def heal(self, *, drop: bool = False) -> None:
        """Let everything go on; with `drop` the connections that there are end instead."""
        if drop:
            self.drop()
        self.delay_s, self._must_cut = 0.0, False
        self._blocked.clear()

    def listen(self) -> None:
        """Take connections, as it does in the beginning."""

        async def listen() -> asyncio.Server:
            return await asyncio.start_server(self.accept, HOST, self.port)

        self._server = self._net.call(listen())

    def refuse(self) -> None:
        """Refuse connections, as a machine without a server does."""
        self._net.loop.call_soon_threadsafe(self.close)
        self.drop()

    def close(self) -> None:
        """Take no connections any more; called in the loop."""
        assert isinstance(self._server, asyncio.Server)
        self._server.close()

    def drop(self) -> None:
        """Close all connections, with whatever is under way."""
        self._net.call(self._drop())

    async def _drop(self) -> None:
        for writer in self._open:
            writer.transport.abort()
        self._open.clear()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry what comes over one connection, until either end closes it."""
        with contextlib.suppress(OSError):
            far_reader, far_writer = await asyncio.open_connection(HOST, self.to_port)
            self._open |= {writer, far_writer}
            pumps = (self._pump(reader, far_writer, UP), self._pump(far_reader, writer, DOWN))
            await asyncio.wait(
                [asyncio.ensure_future(pump) for pump in pumps],
                return_when=asyncio.FIRST_COMPLETED,
            )
            far_writer.close()
            self._open.discard(far_writer)
        writer.close()
        self._open.discard(writer)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: str
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(READ_BYTES):
                for watch in [each for each in self._watches if each[0] == direction]:
                    self._watches.remove(watch)
                    watch[1]()
                await asyncio.sleep(self.delay_s)
                await self._passable(direction)
                if self._must_cut and direction == DOWN:
                    self._must_cut = False
                    writer.write(data[: len(data) // 2])
                    await writer.drain()
                    return
                writer.write(data)
                await writer.drain()

    async def _passable(self, direction: str) -> None:
        """Wait until things go this way; any thread may say so, and needs no event for that."""
        while direction in self._blocked:  # noqa: ASYNC110
            await asyncio.sleep(BACK_LATER_S)


class Network:
    """The loop that carries all links."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._ports = contextlib.ExitStack()
        self._links: list[Link] = []
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[None, None, object]) -> object:
        """Have this done in the loop, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def link(self, to_port: int) -> Link:
        """Return a new link to this port."""
        link = Link(self, self._ports.enter_context(free_port()), to_port)
        link.listen()
        self._links.append(link)
        return link

    def close(self) -> None:
        self.call(self._end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
        self._ports.close()

    async def _end(self) -> None:
        for link in self._links:
            link.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.contextmanager
def network() -> Iterator[Network]:
    """Run the loop while the block runs."""
    net = Network()
    try:
        yield net
    finally:
        net.close()
