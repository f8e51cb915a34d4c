"""docs/moving.md is true: what it tells to type moves jobs from the real servers."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import redis

from delayd.client import Client
from delayd.testing.daemon import Daemon, running_daemon
from tests import servers
from tests.brokers import need, rabbitmq, redis_server
from tests.line_client import LineClient
from tests.pages import DOCS, Reader, text_of

PAGE: Final = "moving.md"
BEANSTALKD: Final = "From beanstalkd"
REDIS: Final = "From Redis: a sorted set, or Redisson"
RABBITMQ: Final = "From RabbitMQ's plugin for delayed messages"
CELERY: Final = "From Celery's countdown and eta"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory with the scripts."""
    directory = tmp_path / "home"
    shutil.copytree(DOCS / "moving", directory)
    return directory


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with running_daemon("--http", "127.0.0.1:0") as running:
        yield running


@pytest.mark.skipif(servers.BEANSTALKD is None, reason=servers.NO_BEANSTALKD)
def test_jobs_of_beanstalkd_come_over_with_their_due_times(home: Path, daemon: Daemon) -> None:
    binlog, data = home / "binlog", home / "data"
    binlog.mkdir()
    with servers.beanstalkd("-b", str(binlog)) as old, LineClient(old.address) as client:
        client.put(b"now")
        client.put(b"later", delay=3_600)
    stop, move, start = text_of(PAGE, BEANSTALKD).split("```sh\n")[1].split("\n```")[0].split("\n")
    assert stop == "systemctl stop beanstalkd"
    reader = Reader(
        home, daemon, {"/var/lib/beanstalkd": str(binlog), "/var/lib/delayd": str(data)}
    )
    assert "2 jobs in 1 topic: 1 ready, 1 delayed" in reader.said("bash", "-c", reader.here(move))
    name, *flags = reader.here(start).split()
    assert (name, flags[2:]) == ("delayd-beanstalkd", ["-l", "127.0.0.1", "-p", "11300"])
    with servers.delayd_beanstalkd(*flags[:2]) as new, LineClient(new.address) as client:
        assert client.ask("reserve") == "RESERVED 1 3\r\nnow"
        assert 3_500 < int(client.stats("stats-job 2")["time-left"]) <= 3_600
        reader.elsewhere["127.0.0.1:11300"] = f"127.0.0.1:{new.address[1]}"
        reader.follow(PAGE, BEANSTALKD)
    with (
        running_daemon("--http", "127.0.0.1:0", data_dir=data) as later,
        Client(f"http://{later.http_listens_on}") as http,
    ):
        assert http.find("orders", "order-17").state == "delayed"
        assert http.policy("orders").policy == {"retry": ["15s", "3m", "10m"]}


def test_a_sorted_set_of_redis_is_copied_once(home: Path, daemon: Daemon, tmp_path: Path) -> None:
    need("redis")
    with redis_server(tmp_path) as broker:
        with redis.Redis(port=broker.port) as client:
            dues = {"order-17": 1_893_488_400, "order-18": 1_893_492_000, "mail-1": 4_000_000_000}
            client.zadd("delayed", dues)
        Reader(home, daemon, {"127.0.0.1:6379": f"127.0.0.1:{broker.port}"}).follow(PAGE, REDIS)


def test_consumers_of_rabbitmq_get_what_is_due(home: Path, tmp_path: Path) -> None:
    need("amqp")
    configuration = home / "delayd.toml"
    toml = text_of(PAGE, RABBITMQ).split("```toml\n")[1].split("```")[0]
    with rabbitmq(tmp_path) as broker:
        there = {"127.0.0.1:5672": f"127.0.0.1:{broker.port}"}
        configuration.write_text(toml.replace(*next(iter(there.items()))))
        with running_daemon("--http", "127.0.0.1:0", "--config", str(configuration)) as daemon:
            Reader(home, daemon, there).follow(PAGE, RABBITMQ)


def test_a_task_with_a_countdown_is_tried_again(home: Path, daemon: Daemon) -> None:
    Reader(home, daemon).follow(PAGE, CELERY)
