import os
import subprocess
import sys
import types
from collections.abc import Iterator

import pytest

import delayd
from delayd.clock import Clock, SystemClock
from delayd.compat import Compat
from delayd.config import Config
from delayd.net.addresses import Listeners
from delayd.systemd import Notifier
from tests.cli.talking import Talk

EXIT_OF_THE_SERVICE = 42


class Service:
    """Stands for `delayd.service`: remembers what it was started with."""

    def __init__(self) -> None:
        self.configs: list[Config] = []
        self.listeners = Listeners()
        self.is_interrupted = False
        self.compat = Compat.V1_13
        self.prints = True

    def run(
        self,
        config: Config,
        listeners: Listeners,
        clock: Clock,
        notifier: Notifier,
        *,
        compat: Compat = Compat.V1_13,
        prints: bool = True,
        listen: object = None,
    ) -> int:
        assert listen is None, "a directory has its lock: its sockets are open at once"
        assert isinstance(clock, SystemClock)
        self.configs.append(config)
        self.listeners = listeners
        self.compat, self.prints = compat, prints
        if self.is_interrupted:
            raise KeyboardInterrupt
        return EXIT_OF_THE_SERVICE

    @property
    def config(self) -> Config:
        (config,) = self.configs
        return config

    def addresses(self) -> list[str]:
        return [str(listener.address) for listener in self.listeners.line]


def imported_by(*modules: str) -> set[str]:
    """All that a new process has imported once it has imported these."""
    script = f"import sys; sys.path = {sys.path}; import {', '.join(modules)}; print(*sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script], check=True, capture_output=True, text=True
    )
    return set(ran.stdout.split())


@pytest.fixture(autouse=True)
def _environment_of_a_newcomer(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in tuple(os.environ):
        if name.startswith(("DELAYD_", "LISTEN_")):
            monkeypatch.delenv(name)


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    double = Service()
    module = types.ModuleType("delayd.service")
    monkeypatch.setattr(module, "run", double.run, raising=False)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(delayd, "service", module, raising=False)
    yield double
    double.listeners.close()


@pytest.fixture
def talk(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Talk]:
    with Talk(monkeypatch, capsys) as found:
        yield found
