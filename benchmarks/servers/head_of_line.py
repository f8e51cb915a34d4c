"""A short delay behind long ones: what one queue of RabbitMQ with a ttl for each message does.

Only the head of such a queue dies, so a message waits for all before it:

    put 100 jobs, in 2 s      put one, in 0.1 s      it comes after 2 s: 1,900 ms late

With a queue for each delay, and in delayd, it comes in time. *Longest* is how late the job with the
short delay was.
"""

import functools
import socket
import time
from collections.abc import Iterator

from benchmarks.line import HOST, PATIENCE_S
from benchmarks.registry import Case, Durability, Values
from benchmarks.servers import delayd, rabbitmq
from benchmarks.servers.generator import RECEIVE_BYTES, Load
from benchmarks.servers.operations import Reading, measure
from benchmarks.servers.peer import Heard, Peer, case_of

LONG_MS, SHORT_MS = 2_000, 100
LONG_JOBS = 100
ONE = Load(connections=1, in_flight=1)


def short_behind_long(reading: Reading) -> Values:
    """Put jobs with a long delay and one with a short one; take them until there are no more."""
    _, running, load, bench, account = reading
    dialect = running.dialect(load.body_bytes)
    with socket.create_connection((HOST, running.port), timeout=PATIENCE_S) as sock:
        dialect.greet(sock)

        def hear() -> Heard:
            heard = dialect.hear(sock.recv(RECEIVE_BYTES))
            sock.sendall(heard.follow)
            return heard

        def put(count: int, delay_ms: int) -> tuple[int, float]:
            due_at = time.perf_counter() + delay_ms / 1_000
            first = account.put(count, due_at)
            sock.sendall(dialect.puts(first, count, delay_ms))
            while count > 0:
                count -= hear().put
            return first, due_at

        put(bench.entries(LONG_JOBS), LONG_MS)
        short, due_at = put(1, SHORT_MS)
        late_ms = 0.0
        sock.sendall(dialect.takes(account.jobs))
        while account.taken < account.jobs:
            heard = hear()
            now = time.perf_counter()
            account.take((number for number, _ in heard.taken), now)
            sock.sendall(dialect.acknowledgements([handle for _, handle in heard.taken]))
            if short in (number for number, _ in heard.taken):
                late_ms = (now - due_at) * 1_000
    return {"worst_ms": late_ms, **account.verdict(standing=0)}


def cases() -> Iterator[Case]:
    """Yield one round: delayd, RabbitMQ with a queue for each delay, and with one queue."""
    subjects: list[Peer] = [
        *(peer for peer in delayd.peers() if peer.policy is Durability.BEFORE_ANSWER),
        *rabbitmq.peers(),
        rabbitmq.PER_MESSAGE,
    ]
    for peer in subjects:
        taken = functools.partial(measure, peer, short_behind_long, ONE)
        operation = "a short delay behind long ones"
        yield case_of(peer, "servers", operation, {"jobs": LONG_JOBS}, taken, 1)
