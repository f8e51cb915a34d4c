"""The transport of kombu, on a real daemon whose clock the test moves."""

import datetime as dt
import importlib
import json
import logging
import re
import select
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.exceptions import ChannelError, OperationalError

from delayd import kombu
from delayd.access.scopes import Scope
from delayd.client import (
    BodyTooBig,
    Client,
    Forbidden,
    JobInfo,
    KeyInvalid,
    TopicNameInvalid,
    Unauthorized,
    Unreachable,
)
from delayd.testing.daemon import Daemon, running_daemon
from tests.access.handshakes import Authority
from tests.access.samples import made
from tests.config_files import written
from tests.pages import text_of
from tests.rigs.process import token_flags

pytestmark = pytest.mark.process
TRANSPORT = "delayd.kombu:Transport"


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with running_daemon("--http", "127.0.0.1:0", clock="virtual") as found:
        yield found


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    with Client(f"beanstalk://127.0.0.1:{daemon.address[1]}") as found:
        yield found


def connected(daemon: Daemon, scheme: str = "delayd", **options: object) -> Connection:
    url = f"{scheme}://127.0.0.1:{daemon.address[1]}"
    return Connection(url, transport=TRANSPORT, transport_options=options)


@pytest.fixture
def connection(daemon: Daemon) -> Iterator[Connection]:
    with connected(daemon) as found:
        yield found


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)[5:60].replace("[", ".").replace("]", "")


class Worker:
    """Consumes a queue and keeps what it gets."""

    def __init__(self, connection: Connection, queue: Queue, prefetch: int = 0) -> None:
        self.connection = connection
        self.got: list[Any] = []
        self.channel = connection.channel()
        self.channel.basic_qos(0, prefetch, False)
        self.consumer = Consumer(self.channel, [queue], on_message=self.got.append)
        self.consumer.consume()

    def gets(self, count: int) -> list[str]:
        """Wait for so many, and see that no more come; return the bodies of all."""
        while len(self.got) < count:
            self.connection.drain_events(timeout=10)
        with pytest.raises(TimeoutError):
            self.connection.drain_events(timeout=0.02)
        assert len(self.got) == count
        return [str(message.payload) for message in self.got]


def publish(connection: Connection, queue: str, body: object, **how: object) -> None:
    Producer(connection).publish(body, routing_key=queue, **how)


def later(hours: int = 1) -> str:
    """The moment of an eta."""
    return (dt.datetime.now(dt.UTC) + dt.timedelta(hours=hours)).isoformat()


def task(task_id: str, **headers: object) -> dict[str, Any]:
    return {"headers": {"task": "t", "id": task_id, **headers}}


def only_job(client: Client, topic: str) -> JobInfo:
    (job,) = client.jobs(topic, bodies=True)
    return job


def test_a_message_with_an_eta_waits_in_the_daemon_and_can_be_cancelled_by_its_id(
    daemon: Daemon, client: Client, connection: Connection, queue: str
) -> None:
    eta = later(2)
    worker = Worker(connection, Queue(queue))
    publish(connection, queue, "later", **task("id-1", eta=eta))
    publish(connection, queue, "never", **task("id-2", eta=eta))
    publish(connection, queue, "now", **task("id-3"))
    assert worker.gets(1) == ["now"]
    worker.got[0].ack()
    assert client.find(queue, "id-1").state == "delayed"
    client.cancel(queue, "id-2")
    daemon.advance(7_200)
    assert worker.gets(2) == ["now", "later"]
    (message,) = worker.got[1:]
    assert message.headers["eta"] == eta
    assert not message.delivery_info["redelivered"]


def test_a_job_is_json_that_people_can_read(
    client: Client, connection: Connection, queue: str
) -> None:
    publish(connection, queue, [[1], {}, {}], **task("id", argsrepr="('größe',)"), priority=9)
    job = only_job(client, queue)
    seen = json.loads(job.text)
    assert (job.key, job.priority, job.ttr) == ("id", 65_536 - 9, 60)
    assert (seen["headers"]["task"], seen["body"]) == ("t", "[[1], {}, {}]")
    assert "größe" in job.text


def test_a_body_arrives_as_it_was(connection: Connection, queue: str) -> None:
    body = {"a": ["\x00", "ü"] * 20}
    got: list[object] = []
    how = {"accept": ["pickle"], "callbacks": [lambda text, _: got.append(text)]}
    with Consumer(connection.channel(), [Queue(queue)], **how):
        publish(connection, queue, body, serializer="pickle", compression="gzip")
        connection.drain_events(timeout=10)
    assert got == [body]


def test_the_most_urgent_priority_comes_first(connection: Connection, queue: str) -> None:
    for priority in (0, 5, 9, None):
        publish(connection, queue, priority, priority=priority)
    assert Worker(connection, Queue(queue)).gets(4) == ["9", "5", "0", "None"]


def test_no_more_is_handed_out_than_the_prefetch_count_has_room_for(
    client: Client, connection: Connection, queue: str
) -> None:
    for number in range(5):
        publish(connection, queue, number)
    worker = Worker(connection, Queue(queue), prefetch=2)
    assert worker.gets(2) == ["0", "1"]
    assert client.topic(queue).ready == 3
    worker.got[0].ack()
    assert worker.gets(3) == ["0", "1", "2"]
    worker.channel.basic_qos(0, 3, False)
    assert worker.gets(4) == ["0", "1", "2", "3"]


def test_what_becomes_of_a_message(client: Client, connection: Connection, queue: str) -> None:
    client.set_policy(queue, {"max_attempts": 3})
    publish(connection, queue, "x", **task("id"), priority=4)
    worker = Worker(connection, Queue(queue))
    worker.gets(1)
    worker.got[0].requeue()
    worker.gets(2)
    assert worker.got[1].delivery_info["redelivered"]
    worker.got[1].reject()
    with pytest.raises(TimeoutError):
        connection.drain_events(timeout=0.02)
    job = only_job(client, queue)
    assert (job.state, job.key, job.attempts, job.priority) == ("buried", "id", 2, 65_532)
    client.kick(job.id)
    worker.gets(3)
    worker.channel.close()
    job = only_job(client, queue)
    assert (job.state, job.attempts) == ("ready", 0)
    again = Worker(connection, Queue(queue))
    again.gets(1)
    again.got[0].ack()
    again.gets(1)
    assert list(client.jobs(queue)) == []


def test_a_retry_is_put_beside_the_task_that_is_in_hand_and_replaces_one_that_waits(
    client: Client, connection: Connection, queue: str
) -> None:
    worker = Worker(connection, Queue(queue))
    publish(connection, queue, "first", **task("id"))
    worker.gets(1)
    publish(connection, queue, "retry", **task("id", eta=later()))
    publish(connection, queue, "retry again", **task("id", eta=later()))
    worker.got[0].ack()
    worker.gets(1)
    job = only_job(client, queue)
    assert (job.state, job.key) == ("delayed", "id")
    assert json.loads(job.text)["body"] == "retry again"


def test_queues_are_bound_by_other_processes(daemon: Daemon, client: Client, queue: str) -> None:
    fanout = Exchange(f"{queue}-all", "fanout")
    topic = Exchange(f"{queue}-topic", "topic")
    with connected(daemon) as one, connected(daemon) as two, connected(daemon) as sender:
        temporary = Queue("a@b", fanout, auto_delete=True, durable=False)
        first, second = Worker(one, temporary), Worker(two, Queue(f"{queue}-2", fanout))
        third = Worker(two, Queue(f"{queue}-3", topic, routing_key="mail.*"))
        Producer(sender).publish("all", exchange=fanout, declare=[fanout])
        Producer(sender).publish("mail", exchange=topic, declare=[topic], routing_key="mail.in")
        assert first.gets(1) == second.gets(1) == ["all"]
        assert third.gets(1) == ["mail"]
        first.consumer.cancel()
        with pytest.raises(TimeoutError):
            one.drain_events(timeout=0)
        bound = [each.key.split(":")[0] for each in client.jobs("kombu.bindings")]
        assert bound.count(f"{queue}-all") == 1


def test_a_temporary_queue_that_nobody_reads_is_removed_after_a_while(
    daemon: Daemon, client: Client, queue: str
) -> None:
    fanout = Exchange(queue, "fanout")
    with connected(daemon) as one, connected(daemon) as sender:
        Queue(f"{queue}-q", fanout, auto_delete=True)(one.channel()).declare()
        one.collect()
        for text in ("first", "second"):
            Producer(sender).publish(text, exchange=fanout, declare=[fanout])
            assert (f"{queue}-q" in [each.name for each in client.topics()]) is (text == "first")
            daemon.advance(61)


def test_a_purge_takes_what_is_due_later_too_and_a_count_is_of_what_is_ready(
    connection: Connection, queue: str
) -> None:
    bound = Queue(queue)(connection.channel())
    with pytest.raises(ChannelError, match="no queue"):
        bound.queue_declare(passive=True)
    publish(connection, queue, "x", headers={"eta": later()})
    publish(connection, queue, "x")
    assert bound.queue_declare(passive=True).message_count == 1
    assert bound.get(no_ack=True).payload == "x"
    assert bound.get() is None
    assert bound.purge() == 1
    publish(connection, queue, "x")
    bound.delete(if_empty=True)
    message = bound.get()
    assert message is not None
    message.ack()
    publish(connection, queue, "x")
    bound.delete()
    assert bound.get() is None


def test_what_is_no_message_is_buried_and_the_next_is_delivered(
    client: Client, connection: Connection, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = ["[]", "[" * 60_000, '{"body": {"__type__": "uuid", "__value__": 5}}']
    client.put_many(queue, [{"body": body} for body in wrong])
    client.put(queue, '{"body": [[1], {}, {}], "properties": {"priority": 1e999}}')
    worker = Worker(connection, Queue(queue))
    with caplog.at_level(logging.ERROR):
        assert worker.gets(1) == ["[[1], {}, {}]"]
    assert "is buried, since its body is no message of Celery: an object" in caplog.text
    assert [job.text for job in client.dead_letters(queue)] == wrong


def test_a_queue_whose_name_no_topic_can_have_is_refused_before_it_is_bound(
    client: Client, connection: Connection, queue: str
) -> None:
    exchange = Exchange(queue, "fanout")
    for name in ("q" * 201, "é" * 70):
        with pytest.raises(TopicNameInvalid):
            Queue(name, exchange)(connection.channel()).declare()
        binding = kombu.Binding(queue, "", name, is_temporary=False)
        client.put(kombu.BINDINGS, binding._asdict(), key=kombu._binding_key(binding), delay=60)
    Queue(queue, exchange)(connection.channel()).declare()
    Producer(connection).publish("x", exchange=exchange)
    assert client.topic(queue).ready == 1


def test_a_message_that_the_consumer_cannot_read_is_buried_and_ends_no_worker(
    client: Client, connection: Connection, queue: str
) -> None:
    for name in ("wrong", "right"):
        publish(connection, queue, name)
    got = []

    def read(message: Any) -> None:  # noqa: ANN401 - one of kombu
        got.append(message.payload)
        if len(got) == 1:
            None.tzinfo  # type: ignore[attr-defined]  # noqa: B018 - as Celery, of `expires` that is an object
        message.ack()

    with connection.Consumer(Queue(queue), on_message=read):
        while len(got) < 2:
            connection.drain_events(timeout=5)
    assert len([*client.dead_letters(queue)]) == 1
    assert got == ["wrong", "right"]


def test_a_lost_connection_is_told_and_a_new_one_gets_the_messages(
    daemon: Daemon, client: Client, queue: str
) -> None:
    with connected(daemon) as one, connected(daemon) as two:
        worker = Worker(one, Queue(queue))
        publish(two, queue, "x")
        worker.gets(1)
        one.transport.stream.forget()
        with pytest.raises(one.connection_errors):
            worker.got[0].ack()
        with pytest.raises(one.connection_errors):
            one.drain_events(timeout=1)
        one.collect()
        assert Worker(one, Queue(queue)).gets(1) == ["x"]


WRONG_URLS = [
    ("http://127.0.0.1:11301", "is that of HTTP: Celery speaks the line protocol, so name delayd"),
    ("delayd://:secret@127.0.0.1:x", r"'delayd://:\*\*@127.0.0.1:x'.* must be delayd://HOST:PORT"),
    ("delayd://127.0.0.1/1", "must be delayd://HOST:PORT"),
    ("delayd://127.0.0.1?ttr=5", "without options"),
]


@pytest.mark.parametrize(("url", "words"), WRONG_URLS)
def test_a_wrong_url_is_refused_with_the_rule(url: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Connection(url, transport=TRANSPORT).connect()


def test_wrong_options_and_places_are_refused_at_the_start(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    for ttr in (1, "60", True):
        with pytest.raises(ValueError, match=r"ttr = .* must be a number of seconds from 3"):
            connected(daemon, ttr=ttr).connect()
    wrong_port = daemon.http_address[1]
    with pytest.raises(ValueError, match=rf"{wrong_port}.*is HTTP: .* whose port is 11300"):
        Connection(f"delayd://127.0.0.1:{wrong_port}", transport=TRANSPORT).connect()
    with pytest.raises(Exception, match="the daemon has no tokens, so none can be given"):
        Connection(f"delayd://:t@127.0.0.1:{daemon.address[1]}", transport=TRANSPORT).connect()
    with pytest.raises(OperationalError, match="no delayd answers at beanstalk"):
        Connection("delayd://127.0.0.1:1", transport=TRANSPORT).ensure_connection(
            max_retries=1, interval_start=0.01
        )
    monkeypatch.delattr(select, "poll")
    with pytest.raises(ValueError, match="use `--pool gevent`"):
        connected(daemon).connect()


def test_what_the_daemon_cannot_take_is_refused_at_the_publish(
    connection: Connection, queue: str
) -> None:
    with pytest.raises(KeyInvalid, match="the key 'a b'"):
        publish(connection, queue, "x", **task("a b"))
    with pytest.raises(TopicNameInvalid, match="must be 1 to 200"):
        publish(connection, "q" * 201, "x")
    with pytest.raises(BodyTooBig, match=r"a message of 70,\d+ bytes is longer than"):
        publish(connection, queue, "x" * 70_000)


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("delayd://", ("beanstalk://localhost", "", False)),
        ("delayd://:t%40k@host", ("beanstalk://host", "t@k", False)),
        ("delayds://u:tok@host:1//", ("beanstalks://host:1", "tok", True)),
        ("delayd://tok@host", ("beanstalk://host", "tok", False)),
        ("beanstalk://[::1]:7", ("beanstalk://[::1]:7", "", False)),
        ("unix:///run/line.sock", ("unix:///run/line.sock", "", False)),
    ],
)
def test_a_url_names_the_daemon_its_token_and_tls(url: str, found: tuple[str, str, bool]) -> None:
    connection = Connection(url, transport=TRANSPORT)
    place, token, tls = kombu.place_of(connection)
    assert (place, token, tls is not None) == found
    assert "tok" not in connection.as_uri()
    if found[1]:
        assert found[1] not in connection.as_uri()


def test_after_a_failover_the_other_url_is_used(daemon: Daemon) -> None:
    port = daemon.address[1]
    urls = f"delayd://127.0.0.1:1;delayd://127.0.0.1:{port}"
    with Connection(urls, transport=TRANSPORT) as connection:
        connection.connect()
        assert kombu.place_of(connection)[0] == f"beanstalk://127.0.0.1:{port}"


def test_a_producer_needs_the_scope_put_and_a_worker_those_of_the_page(tmp_path: Path) -> None:
    (line,) = re.findall("^.*Producers need the scope.*$", text_of("celery.md"), re.MULTILINE)
    first, *others = (Scope(word) for word in re.findall("`([a-z]+)`", line.split("scope ")[1])[:7])
    topics = ("celery", "kombu.bindings", "*.pidbox", "celeryev*")
    producing, one = made(1, (first,), topics)
    working, two = made(2, (first, *others), topics)
    with running_daemon(*token_flags(tmp_path, one, two)) as daemon:
        worker = connected(daemon, token=working)
        queue, all_of = Queue("celery"), Exchange("celery.pidbox", "fanout", durable=False)
        with connected(daemon, token=producing) as producer, worker:
            Queue("celery", Exchange("celery"), "celery")(producer.channel()).declare()
            publish(producer, "celery", "x", **task("id"))
            own = Worker(worker, queue)
            assert own.gets(1) == ["x"]
            own.got[0].requeue()
            own.gets(2)
            own.got[1].reject()
            pidbox = Worker(worker, Queue("w@h.celery.pidbox", all_of, auto_delete=True))
            Producer(worker).publish("all", exchange=all_of, declare=[all_of])
            assert pidbox.gets(1) == ["all"]
            pidbox.got[0].ack()
            with pytest.raises(Forbidden, match="lacks the scope reserve"):
                Worker(producer, queue).gets(1)
        with pytest.raises(Unauthorized):
            connected(daemon, token="wrong").connect()  # noqa: S106 - it is wrong


def test_messages_go_over_tls_and_an_unknown_authority_is_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.files("127.0.0.1")
    config = written(
        tmp_path,
        f'line.tls = true\ntls.certificate = "{files.certificate}"\ntls.key = "{files.key}"\n',
    )
    with running_daemon("--config", config) as daemon:
        url = f"delayds://127.0.0.1:{daemon.address[1]}"
        trusted = {"ca_certs": authority.path}
        with Connection(url, transport=TRANSPORT, ssl=trusted) as connection:
            worker = Worker(connection, Queue("q"))
            for number in range(3):
                publish(connection, "q", "x" * 30_000 + str(number))
            assert [body[-1] for body in worker.gets(3)] == ["0", "1", "2"]
            worker.got[0].ack()
            worker.got[1].requeue()
            worker.gets(4)
        with pytest.raises(Unreachable, match="certificate"):
            Connection(url, transport=TRANSPORT).connect()


def test_that_there_is_no_kombu_is_told_at_the_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kombu.exceptions", None)
    monkeypatch.delitem(sys.modules, "delayd.kombu")
    words = re.escape("there is no kombu here: pip install 'delayd[celery]'")
    with pytest.raises(ImportError, match=words):
        importlib.import_module("delayd.kombu")
