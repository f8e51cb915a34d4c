"""What is written of the line is so of Debian's beanstalkd too: corpus.txt but for what it calls
ours, and the stories that have the option `beanstalkd`.
"""

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Final

import pytest

from tests import servers
from tests.compat.conftest import needs_beanstalkd
from tests.line.corpus import BODY_BYTES_MAX, EXCHANGES, Exchange, LinePlay
from tests.line.test_stories import STORIES
from tests.line_client import RECV_BYTES, LineClient
from tests.rigs.written import Fact
from tests.servers import Server

QUESTIONS: Final = 10
"""beanstalkd reads a command of each client in turn, and answers it in the next turn: when so many
of one client are answered, so are all that others sent before, and what follows from them."""


@pytest.fixture
def server() -> Iterator[Server]:
    needs_beanstalkd()
    with servers.beanstalkd("-z", str(BODY_BYTES_MAX)) as server:
        yield server


@pytest.mark.parametrize("exchange", EXCHANGES, ids=str)
def test_an_exchange_goes_as_written_but_for_ours(server: Server, exchange: Exchange) -> None:
    with LineClient(server.address) as client:
        client.send(exchange.request)
        with suppress(OSError):  # it has closed where it was told to quit
            client.half_close()
        assert (client.rest() != exchange.response) == exchange.is_ours


class Play(LinePlay[LineClient]):
    def __init__(self, server: Server) -> None:
        super().__init__(partial(LineClient, server.address))
        self._keeper = LineClient(server.address)

    def says(self, name: str, data: bytes) -> None:
        self.client(name).send(data)
        self.let_happen(data.count(b"\n"))

    def let_happen(self, more: int = 0) -> None:
        for _ in range(QUESTIONS + more):
            assert self._keeper.ask("list-tube-used") == "USING default"

    def heard(self, name: str) -> bytes:
        found = b""
        client = self.client(name)
        while client.something_came() and (data := client.socket.recv(RECV_BYTES)):
            found += data
        return found

    def arrange(self, word: str, *words: str) -> None:
        client = self.client(words[0])
        {"leaves": client.close, "ends": client.half_close}[word]()
        self.let_happen()

    def end(self) -> None:
        for client in (self._keeper, *self.clients.values()):
            client.close()


@pytest.mark.parametrize(
    "story", [story for story in STORIES if "beanstalkd" in story.options], ids=str
)
def test_a_story_goes_as_written(server: Server, story: Fact) -> None:
    play = Play(server)
    try:
        story.play(play.step)
    finally:
        play.end()
