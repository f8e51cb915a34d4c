"""Debian's Redis and RabbitMQ, each on loopback and a free port, over a directory of its own.

    with redis_server(tmp_path) as broker:
        broker.kill()                # kill -9: what it acknowledged is in its directory
        broker.start()               # on the same port, over the same directory

Both write what they acknowledge to disk first. RabbitMQ needs a daemon that tells Erlang nodes each
other's ports (epmd): each test that starts it starts one of its own, on loopback and another port.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.servers import HOST, Server, free_port, launch

RABBITMQ: Final = "/usr/lib/rabbitmq/bin/rabbitmq-server"
"""What Debian's own rabbitmq-server calls as another user, with fixed directories."""
NEEDED: Final = {"redis": ("redis-server",), "amqp": (RABBITMQ, "epmd")}


def need(kind: str) -> None:
    """Skip the test where the server is not installed."""
    for program in NEEDED[kind]:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed: `make test` installs it where it can")


ONE_SCHEDULER: Final = "+S 1:1 +sbwt none"
"""One scheduler that does not spin: a node starts with a fifth less of the processor."""


class Broker:
    """A server that can be started again: `server` is the one that runs now."""

    def __init__(self, port: int, launch_it: Callable[[], Server]) -> None:
        self.port = port
        self.beside: tuple[int, ...] = ()
        """Processes that it needs and that are not its children."""
        self._launch = launch_it
        self.start()

    def start(self) -> None:
        self.server = self._launch()
        self.server.address = (HOST, self.port)
        self.server.wait_until(ready=None)

    def kill(self) -> None:
        self.server.kill()
        self.server.stop()  # closes what it printed to


@contextmanager
def running(port: int, launch_it: Callable[[], Server]) -> Iterator[Broker]:
    broker = Broker(port, launch_it)
    try:
        yield broker
    finally:
        broker.server.stop()


@contextmanager
def redis_server(directory: Path, *arguments: str) -> Iterator[Broker]:
    """Run Redis, which answers when what it was told is on disk."""
    with free_port() as port:
        fixed = ("--port", str(port), "--bind", HOST, "--dir", str(directory), "--save", "")
        kept = ("--appendonly", "yes", "--appendfsync", "always")
        argv = ("redis-server", *fixed, *kept, *arguments)
        with running(port, lambda: launch("redis-server", argv)) as broker:
            yield broker


@contextmanager
def rabbitmq(
    directory: Path, settings: str = "", *, erlang: str = ONE_SCHEDULER
) -> Iterator[Broker]:
    """Run RabbitMQ; `settings` are lines of its configuration, `erlang` flags of its runtime."""
    with free_port() as port, free_port() as node_port, erlang_ports() as epmd:
        config, plugins = directory / "rabbitmq.conf", directory / "enabled_plugins"
        config.write_text(f"listeners.tcp.default = {HOST}:{port}\n{settings}")
        plugins.write_text("[].\n")
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "ERL_EPMD_PORT": str(epmd.address[1]),
            "ERL_EPMD_ADDRESS": HOST,
            "RABBITMQ_ALLOW_INPUT": "1",  # the script becomes the server: one process, one pid
            "RABBITMQ_NODENAME": f"test{port}@localhost",
            "RABBITMQ_DIST_PORT": str(node_port),
            "RABBITMQ_CONFIG_FILE": str(config),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
            "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(directory / "log"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                f"-kernel inet_dist_use_interface {{127,0,0,1}} {erlang}"
            ),
        }
        argv = (RABBITMQ, "-noinput")
        with running(port, lambda: launch("rabbitmq", argv, environment=environment)) as broker:
            broker.beside = (epmd.process.pid,)
            yield broker


@contextmanager
def erlang_ports() -> Iterator[Server]:
    """An epmd on loopback."""
    with (
        free_port() as port,
        launch("epmd", ("epmd", "-port", str(port), "-address", HOST)) as epmd,
    ):
        epmd.address = (HOST, port)
        epmd.wait_until(ready=None)
        yield epmd
