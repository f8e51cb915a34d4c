"""Commands that talk to a daemon, and the daemon in memory that they talk to.

    with Talk(monkeypatch, capsys) as talk:
        assert talk.ok("put", "mail", "hello", "--delay", "15s") == "1\\n"
        talk.rig.pass_ms(15_000)
        assert talk.ok("reserve", "mail") == "hello"
        talk.fails(Exit.NOTHING_THERE, "reserve", "mail")      what it said on standard error

Only the socket is missing: what the client asks goes to the API of `tests.rigs.http` as it is.
"""

import json
import os
import sys
from typing import Any, Self

import pytest

from delayd.access.scopes import Scope
from delayd.cli.main import invoke
from delayd.client.connection import Connections
from delayd.client.connection_pool import Link
from delayd.client.http1 import Request, Response
from delayd.exits import Exit
from tests.rigs.http import HttpRig


class Terminal:
    """Answers the questions of a command, as a person at the terminal would."""

    def __init__(self, answer: str) -> None:
        self._answer = answer

    def isatty(self) -> bool:
        return True

    def readline(self, _size: int = -1) -> str:
        return f"{self._answer}\n"


class Nowhere(Link):
    """The connection of an answer that came without one; it is used once."""

    descriptor = -1
    is_usable = False

    def close(self) -> None:
        self.is_closed = True


class Talk:
    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        *,
        needs_token: bool = False,
    ) -> None:
        self.rig = HttpRig(is_virtual=True, needs_token=needs_token)
        self.requests: list[Request] = []
        self._patch = monkeypatch
        self._capsys = capsys
        # `self` of the function is the connections of the client that the command has made.
        monkeypatch.setattr(
            Connections,
            "exchange",
            lambda made, ask: (
                Nowhere(made.way),
                self._exchange(made.way.place.wire.encode(ask), ask),
            ),
        )

        monkeypatch.setattr(
            "delayd.cli.ndjson.pause", lambda seconds: self.rig.pass_ms(round(seconds * 1_000))
        )

    def __enter__(self) -> Self:
        self.rig.__enter__()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.rig.__exit__(None)

    def _exchange(self, data: bytes, ask: Request) -> Response:
        self.requests.append(ask)
        client = self.rig.connect()
        client.say(ask.method, data)
        self.rig.settle()
        if client.answer is None:
            self.rig.pass_ms(round(ask.wait_s * 1_000) + 1)
        answer = client.the_answer
        return Response(answer.status, dict(answer.headers), answer.body)

    def has_token(self, *scopes: Scope, topics: tuple[str, ...] = ("*",)) -> None:
        """Have a token with these scopes from now on."""
        self._patch.setenv("DELAYD_TOKEN", self.rig.token(*scopes, topics=topics))

    def answers(self, answer: str) -> None:
        """Be at a terminal from now on, and answer each question so."""
        self._patch.setattr("sys.stdin", Terminal(answer))

    def is_wide(self, columns: int) -> None:
        """Print on a terminal of so many columns from now on."""
        self._patch.setattr(sys.stdout, "isatty", lambda: True)
        self._patch.setattr(sys.stdout, "fileno", lambda: 1)
        self._patch.setattr("os.get_terminal_size", lambda _fd: os.terminal_size((columns, 24)))

    def run(self, *words: str) -> tuple[int, str, str]:
        """Type it; exit code, standard output, standard error."""
        self._capsys.readouterr()
        code = invoke(words)
        said = self._capsys.readouterr()
        return code, said.out, said.err

    def ok(self, *words: str) -> str:
        """Type what succeeds; what it printed."""
        code, out, err = self.run(*words)
        assert code == Exit.OK, err
        return out

    def fails(self, code: Exit, *words: str) -> str:
        """Type what fails; what it said."""
        found, _out, err = self.run(*words)
        assert found == code, err
        return err

    def objects(self, *words: str) -> list[Any]:
        """The JSON that a command prints."""
        return [json.loads(line) for line in self.ok(*words, "--json").splitlines()]

    def reserved(self, topic: str) -> str:
        """Reserve a job; the token of the reservation."""
        (job,) = self.objects("reserve", topic)
        token: str = job["token"]
        return token
