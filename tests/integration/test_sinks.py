"""Sinks against Debian's Redis and RabbitMQ: examples of the page, refusals, kill -9 under load.

What is proven of a kill: every job whose delivery was acknowledged is at the other end, counted
there. The servers answer when what they answer is on disk.
"""

import asyncio
import signal
import tomllib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import aio_pika
import pytest
import redis as redis_client
import trustme
from aio_pika.abc import AbstractChannel, DeliveryMode
from redis.asyncio import Redis

from delayd.config import Config, SinkSection, read_sinks
from delayd.push.sinks import DELIVERED, AttemptEnd, Result, Sink, open_sinks
from delayd.testing.daemon import Daemon
from tests.brokers import Broker, need, rabbitmq, redis_server
from tests.line_client import LineClient
from tests.push.test_sinks import JOB
from tests.push.test_sinks_page import examples
from tests.rigs.process import daemon_of
from tests.rigs.waiting import until
from tests.servers import HOST, free_port

LOAD: Final = 200
AT_ONCE: Final = 32
RETRY_S: Final = 0.05
WAIT_S_MAX: Final = 60
PATIENT: Final = {"connect_timeout": "1m"}
"""Options of a sink whose server is as slow as this machine may be."""
PASSWORD: Final = "s3cret"  # noqa: S105 - of servers that run for seconds


class Tls(NamedTuple):
    """Files of an authority, and of a server at 127.0.0.1 that it knows."""

    ca: Path
    certificate: Path
    key: Path


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    directory = tmp_path_factory.mktemp("tls")
    files = Tls(directory / "ca.pem", directory / "server.pem", directory / "key.pem")
    ca = trustme.CA()
    issued = ca.issue_cert(HOST)
    ca.cert_pem.write_to_path(files.ca)
    files.certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(files.key)
    return files


@pytest.fixture(scope="module")
def tls_port() -> Iterator[int]:
    with free_port() as port:
        yield port


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Broker]:
    need("redis")
    with redis_server(tmp_path, "--unixsocket", str(tmp_path / "redis.sock")) as broker:
        yield broker


@pytest.fixture(scope="module")
def amqp(tmp_path_factory: pytest.TempPathFactory, tls: Tls, tls_port: int) -> Iterator[Broker]:
    """One for all tests, which are beside each other: each worker takes seconds to start it."""
    need("amqp")
    settings = f"""
listeners.ssl.default = {HOST}:{tls_port}
ssl_options.cacertfile = {tls.ca}
ssl_options.certfile = {tls.certificate}
ssl_options.keyfile = {tls.key}
"""
    with rabbitmq(tmp_path_factory.mktemp("rabbitmq"), settings) as broker:
        yield broker


def sink_of(kind: str, **options: object) -> Sink:
    options = {**PATIENT, **options}
    return open_sinks(Config(sinks={"orders": SinkSection(kind, options)}))["orders"]


async def one(kind: str, **options: object) -> AttemptEnd:
    """One attempt by a sink of its own."""
    sink = sink_of(kind, **options)
    try:
        return await sink.deliver(JOB)
    finally:
        await sink.close()


def of_the_page(port: int, section: str = "") -> Sink:
    """Make the sink of a section's first example, at another port."""
    ((name, given),) = read_sinks(tomllib.loads(examples("toml", section)[0])["sinks"]).items()
    url = str(given.options["url"])
    for usual in (":6379", ":5672"):
        url = url.replace(usual, f":{port}")
    here = given._replace(options={**PATIENT, **given.options, "url": url})
    return open_sinks(Config(sinks={name: here}))[name]


async def deliver_all(sink: Sink, broker: Broker) -> None:
    """Deliver the load, each job until it is; kill the broker in the middle and start it again."""
    waiting = [JOB._replace(id=number, message_id=f"m{number}") for number in range(LOAD)]
    failed: list[AttemptEnd] = []
    delivered = 0
    noticed = asyncio.Event()

    async def work() -> None:
        nonlocal delivered
        while waiting:
            job = waiting.pop()
            while (end := await sink.deliver(job)) != DELIVERED:
                failed.append(end)
                noticed.set()  # it starts again once an attempt has met its absence
                await asyncio.sleep(RETRY_S)
            delivered += 1
            if delivered == LOAD // 4:
                broker.kill()  # here, so that what is left cannot have been delivered before

    async def restart() -> None:
        await noticed.wait()
        await asyncio.to_thread(broker.start)

    await asyncio.gather(restart(), *(work() for _ in range(AT_ONCE)))
    assert failed
    assert all(end.result is Result.FAILED and end.is_outage for end in failed), failed


# --- By a daemon ---------------------------------------------------------------------------------


def configured(directory: Path, *sections: str, port: int = 0) -> tuple[Path, str, str]:
    """The arguments of a daemon with this configuration, whose servers are at another port."""
    file = directory / "delayd.toml"
    text = "\n".join(sections)
    for usual in (":6379", ":5672"):
        text = text.replace(usual, f":{port}")
    file.write_text(text)
    return directory / "data", "--config", str(file)


def put_load(daemon: Daemon, topic: str) -> None:
    with LineClient(daemon.address) as client:
        client.ask(f"use {topic}")
        for number in range(LOAD):
            client.put(b"%d" % number)


def jobs_of(daemon: Daemon) -> int:
    with LineClient(daemon.address) as client:
        stats = client.stats()
    states = ("ready", "reserved", "delayed", "buried")
    return sum(int(stats[f"current-jobs-{state}"]) for state in states)


def test_no_job_is_lost_when_redis_and_then_the_daemon_are_killed_under_load(
    redis: Broker, tmp_path: Path
) -> None:
    sink = f'[sinks.s]\nkind = "redis"\nurl = "redis://{HOST}:{redis.port}"\nstream = "due"'
    topic = f'[topics.orders]\npush = {{ sink = "s" }}\nretry = "{" 200ms" * 50}"'
    command = configured(tmp_path, sink, topic)
    with daemon_of(*command) as daemon, ask_now(redis) as ask:
        put_load(daemon, "orders")
        until(lambda: ask.xlen("due") > LOAD // 8)
        redis.kill()
        redis.start()
        until(lambda: ask.xlen("due") > LOAD // 2)
        daemon.kill()
    with daemon_of(*command) as daemon, ask_now(redis) as ask:
        until(lambda: jobs_of(daemon) == 0)
        arrived = [(fields[b"id"], fields[b"message_id"]) for _, fields in ask.xrange("due")]
        assert {int(job_id) for job_id, _ in arrived} == set(range(1, LOAD + 1))
        assert len(set(arrived)) == LOAD  # what came twice came with the same message_id


# --- Redis ---------------------------------------------------------------------------------------


@contextmanager
def ask_now(broker: Broker) -> Iterator[Any]:
    """Ask Redis without a loop."""
    client = redis_client.Redis(host=HOST, port=broker.port)
    try:
        yield client
    finally:
        client.close()


def ask_redis(broker: Broker, database: int = 0) -> Any:  # noqa: ANN401 - its answers have no types
    return Redis(host=HOST, port=broker.port, db=database)


async def test_the_examples_of_the_page_append_to_a_list_and_to_a_stream(redis: Broker) -> None:
    for section in ("", "A Redis list or stream"):
        sink = of_the_page(redis.port, section)
        assert await sink.deliver(JOB) == DELIVERED
        await sink.close()
    async with ask_redis(redis) as ask:
        assert await ask.lrange("orders:due", 0, -1) == [b"hi"]
        ((_, fields),) = await ask.xrange("due:mail")
    seen = {name.decode(): value.decode() for name, value in fields.items()}
    assert seen == {"body": "hi", **{name: str(said) for name, said in JOB.fields().items()}}


async def test_redis_is_reached_by_a_unix_socket_and_in_another_database(
    redis: Broker, tmp_path: Path
) -> None:
    url = f"unix://{tmp_path}/redis.sock"
    assert await one("redis", url=url, database=3, list="a") == DELIVERED
    assert await one("redis", url=f"redis://{HOST}:{redis.port}/3", list="a") == DELIVERED
    async with ask_redis(redis, 3) as ask:
        assert await ask.llen("a") == 2


async def test_redis_is_reached_over_tls_if_an_authority_vouches_for_it(
    tmp_path: Path, tls: Tls
) -> None:
    need("redis")
    files = ("--tls-cert-file", str(tls.certificate), "--tls-key-file", str(tls.key))
    others = ("--tls-ca-cert-file", str(tls.ca), "--tls-auth-clients", "no")
    with free_port() as port, redis_server(tmp_path, "--tls-port", str(port), *files, *others):
        how = {"url": f"rediss://{HOST}:{port}", "list": "a"}
        assert await one("redis", ca=str(tls.ca), **how) == DELIVERED
        end = await one("redis", **how)
        assert end.is_outage
        assert "certificate verify failed" in end.error


async def test_redis_says_what_is_wrong_and_the_sink_what_to_do(
    redis: Broker, tmp_path: Path
) -> None:
    url = f"redis://{HOST}:{redis.port}"

    async def refused(code: str, **options: object) -> None:
        end = await one("redis", **{"url": url, "list": "a", **options})
        assert end.result is Result.FAILED
        assert end.is_outage
        assert end.error.startswith(f"Redis at {HOST}:{redis.port} answered {code}: ")
        assert PASSWORD not in end.error

    async with ask_redis(redis) as ask:
        await ask.set("a", "text")
        await refused("WRONGTYPE")
        await ask.delete("a")
        await ask.config_set("maxmemory", 1)
        await refused("OOM")
        await ask.config_set("maxmemory", 0)
        await ask.replicaof(HOST, 1)
        await refused("READONLY")
        await ask.replicaof("NO", "ONE")
        await ask.execute_command("ACL", "SETUSER", "ada", "on", f">{PASSWORD}", "+ping")
        await refused("NOPERM", url=f"redis://ada@{HOST}:{redis.port}", password=PASSWORD)
        await ask.execute_command("ACL", "SETUSER", "ada", "+rpush", "~a")
        file = tmp_path / "password"
        file.write_text("wr0ng")
        user = {"url": f"redis://ada@{HOST}:{redis.port}", "list": "a"}
        sink = sink_of("redis", password_file=str(file), **user)
        assert (await sink.deliver(JOB)).error.partition(": ")[0].endswith("WRONGPASS")
        file.write_text(PASSWORD)
        assert await sink.deliver(JOB) == DELIVERED
        await sink.close()
        await ask.config_set("requirepass", PASSWORD)
        await refused("NOAUTH")


async def test_an_attempt_that_is_cancelled_leaves_no_answer_to_the_next(redis: Broker) -> None:
    url = f"redis://{HOST}:{redis.port}"
    sink = sink_of("redis", url=url, list="due", connections_max=1)
    assert await sink.deliver(JOB) == DELIVERED
    redis.server.signal(signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(sink.deliver(JOB), 0.2)
    redis.server.signal(signal.SIGCONT)
    async with ask_redis(redis) as ask:
        await ask.delete("due")
        await ask.set("due", "text")
        assert "WRONGTYPE" in (await sink.deliver(JOB)).error  # and not the answer from before
    await sink.close()


# --- AMQP ----------------------------------------------------------------------------------------


@asynccontextmanager
async def amqp_channel(broker: Broker) -> AsyncIterator[AbstractChannel]:
    async with (
        await aio_pika.connect(f"amqp://guest:guest@{HOST}:{broker.port}/") as connection,
        connection.channel() as channel,
    ):
        yield channel


def test_a_daemon_publishes_due_jobs_to_an_exchange(amqp: Broker, tmp_path: Path) -> None:
    topic = '[topics.orders]\npush = { sink = "broker" }'
    sections = (examples("toml", "An AMQP exchange")[0], topic)

    async def counted(*, bind: bool) -> int:
        async with amqp_channel(amqp) as channel:
            queue = await channel.declare_queue("by-daemon", durable=True)
            if bind:
                await queue.bind("amq.topic", "due.orders")
            return queue.declaration_result.message_count or 0

    asyncio.run(counted(bind=True))
    with daemon_of(*configured(tmp_path, *sections, port=amqp.port)) as daemon:
        put_load(daemon, "orders")
        until(lambda: jobs_of(daemon) == 0)
    assert asyncio.run(counted(bind=False)) == LOAD


async def test_the_example_of_the_page_publishes_to_an_exchange(amqp: Broker) -> None:
    async with amqp_channel(amqp) as channel:
        sink = of_the_page(amqp.port, "An AMQP exchange")
        end = await sink.deliver(JOB)
        assert end.error == (
            f"AMQP at {HOST}:{amqp.port}: no queue is bound to exchange 'amq.topic' for 'due.mail'"
        )
        queue = await channel.declare_queue("example", durable=True)
        await queue.bind("amq.topic", "due.*")
        assert await sink.deliver(JOB) == DELIVERED
        await sink.close()
        message = await queue.get(no_ack=True)
        assert (message.body, message.message_id, message.content_type) == (
            *(b"hi", "0a_7", "text/plain"),
        )
        assert message.delivery_mode is DeliveryMode.PERSISTENT
        assert message.headers["delayd-key"] == "order-17"


async def test_amqp_is_reached_over_tls_if_an_authority_vouches_for_it(
    amqp: Broker, tls: Tls, tls_port: int
) -> None:
    how = {"url": f"amqps://{HOST}:{tls_port}", "mandatory": False}
    assert await one("amqp", ca=str(tls.ca), **how) == DELIVERED
    end = await one("amqp", **how)
    assert end.is_outage
    assert "certificate verify failed" in end.error


async def test_what_the_broker_refuses_is_a_failed_attempt_with_the_reason(amqp: Broker) -> None:
    place = f"{HOST}:{amqp.port}"

    async def refused(said: str, **options: object) -> None:
        end = await one("amqp", **{"url": f"amqp://{place}", **options})
        assert (end.result, end.is_outage) == (Result.FAILED, True)
        assert end.error.startswith(f"AMQP at {place}: {said}")
        assert PASSWORD not in end.error

    await refused("ACCESS_REFUSED", url=f"amqp://ada@{place}", password=PASSWORD)
    await refused("it has no virtual host 'nowhere'", url=f"amqp://{place}/nowhere")
    await refused("NOT_FOUND - no exchange 'nothing'", exchange="nothing")
    await refused("no queue is bound to exchange '' for 'none'", routing_key="none")
    async with amqp_channel(amqp) as channel:
        full: dict[str, Any] = {"x-max-length": 1, "x-overflow": "reject-publish"}
        await channel.declare_queue("full", durable=True, arguments=full)
        assert await one("amqp", url=f"amqp://{place}", routing_key="full") == DELIVERED
        await refused("it did not store the message", routing_key="full")


async def test_a_broker_that_is_frozen_keeps_no_sink_from_closing(amqp: Broker) -> None:
    sink = sink_of("amqp", url=f"amqp://{HOST}:{amqp.port}", mandatory=False)
    assert await sink.deliver(JOB) == DELIVERED
    amqp.server.signal(signal.SIGSTOP)
    attempt = asyncio.create_task(sink.deliver(JOB))
    await asyncio.sleep(0.1)
    attempt.cancel()
    await asyncio.wait_for(sink.close(), WAIT_S_MAX)
    amqp.server.signal(signal.SIGCONT)


async def test_nothing_that_the_broker_confirmed_is_lost_when_it_is_killed_under_load(
    amqp: Broker,
) -> None:
    async with amqp_channel(amqp) as channel:
        await channel.declare_queue("load", durable=True)
    sink = sink_of("amqp", url=f"amqp://{HOST}:{amqp.port}", routing_key="load")
    await deliver_all(sink, amqp)
    await sink.close()
    arrived = set()
    async with amqp_channel(amqp) as channel:
        queue = await channel.declare_queue("load", durable=True)
        while (message := await queue.get(no_ack=True, fail=False)) is not None:
            arrived.add(message.message_id)
    assert arrived == {f"m{number}" for number in range(LOAD)}
