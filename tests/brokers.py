"""Debian's Redis and RabbitMQ, each on loopback and a free port, over a directory of its own.

    with free_port() as port:
        with redis_server(port, tmp_path) as server:
            server.kill()            # kill -9: what it acknowledged is in its directory
        with redis_server(port, tmp_path) as server:
            ...

Both write what they acknowledge to disk first. RabbitMQ needs a daemon that tells Erlang nodes each
other's ports (epmd): each test that starts it starts one of its own, on loopback and another port.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.servers import HOST, Server, free_port, launch

RABBITMQ: Final = "/usr/lib/rabbitmq/bin/rabbitmq-server"
"""What Debian's own rabbitmq-server calls as another user, with fixed directories."""
NEEDED: Final = {
    "redis": ("redis-server",),
    "amqp": (RABBITMQ, "epmd"),
}


def need(kind: str) -> None:
    """Skip the test where the server is not installed."""
    for program in NEEDED[kind]:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed: `make test` installs it where it can")


def redis_server(port: int, directory: Path, *arguments: str) -> Server:
    """Start Redis, which answers when what it was told is on disk."""
    fixed = ("--bind", HOST, "--dir", str(directory), "--save", "")
    kept = ("--appendonly", "yes", "--appendfsync", "always")
    argv = ("redis-server", "--port", str(port), *fixed, *kept, *arguments)
    server = launch("redis-server", argv)
    server.address = (HOST, port)
    server.wait_until(ready=None)
    return server


@contextmanager
def erlang_ports() -> Iterator[int]:
    """An epmd on loopback; its port."""
    with free_port() as port:
        argv = ("epmd", "-port", str(port), "-address", HOST)
        with launch("epmd", argv) as epmd:
            epmd.address = (HOST, port)
            epmd.wait_until(ready=None)
            yield port


def rabbitmq(port: int, epmd_port: int, directory: Path, settings: str = "") -> Server:
    """Start RabbitMQ; `settings` are lines of its configuration."""
    config = directory / "rabbitmq.conf"
    config.write_text(f"listeners.tcp.default = {HOST}:{port}\n{settings}")
    (directory / "enabled_plugins").write_text("[].\n")
    with free_port() as node_port:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "ERL_EPMD_PORT": str(epmd_port),
            "ERL_EPMD_ADDRESS": HOST,
            "RABBITMQ_ALLOW_INPUT": "1",  # the script becomes the server: one process, one pid
            "RABBITMQ_NODENAME": f"test{port}@localhost",
            "RABBITMQ_DIST_PORT": str(node_port),
            "RABBITMQ_CONFIG_FILE": str(config),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(directory / "log"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }
        server = launch("rabbitmq", (RABBITMQ, "-noinput"), environment=environment)
        server.address = (HOST, port)
        server.wait_until(ready=None)
    return server
