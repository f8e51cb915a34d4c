"""delayd and Debian's beanstalkd are given the same random commands and must answer alike.

That the comparison holds still where nothing differs, and that it notices what does, is tested on
beanstalkd against itself: as it is, and with replies that were tampered with.
"""

import random
import re
import signal
from collections.abc import Iterator
from functools import partial
from typing import Final

import pytest

from tests import servers
from tests.compat.conftest import needs_beanstalkd
from tests.compat.lockstep import Difference, Distortion
from tests.compat.walks import Pair, Scan, check, pour_noise, walk

BLOCKS: Final = (3, 30)
"""Blocks of walks in the everyday run, and in the long one."""
WALKS_PER_BLOCK: Final = 16
SMALL_BODY_BYTES_MAX: Final = 100
WALKS_BEFORE_A_LIE_IS_NOTICED: Final = 30

candidate = partial(servers.delayd_beanstalkd, "--compat", "1.12")
"""delayd as the beanstalkd of Debian, with which every reply is compared."""


def check_walks(pair: Pair, seed: str, scan: Scan = walk) -> None:
    for number in range(WALKS_PER_BLOCK):
        check(pair, f"{seed} {number}", scan)


@pytest.fixture(autouse=True)
def _beanstalkd() -> None:
    needs_beanstalkd()


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with Pair(servers.beanstalkd, candidate).running() as pair:
        yield pair


@pytest.fixture(scope="module")
def twins() -> Iterator[Pair]:
    with Pair(servers.beanstalkd, servers.beanstalkd).running() as pair:
        yield pair


@pytest.mark.walk(*BLOCKS)
@pytest.mark.parametrize("scan", [walk, pour_noise])
def test_random_commands_and_bytes_get_the_same_replies(
    pair: Pair, seed: int, number: int, scan: Scan
) -> None:
    check_walks(pair, f"{seed} {scan.__name__} {number}", scan)


def test_random_commands_get_the_same_replies_with_small_bodies_and_a_synced_log(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    small = ("-z", str(SMALL_BODY_BYTES_MAX))

    def synced() -> servers.Server:
        return candidate(*small, "-b", str(tmp_path_factory.mktemp("data")), "-f", "0")

    with Pair(partial(servers.beanstalkd, *small), synced).running() as pair:
        check_walks(pair, f"{seed} small", partial(walk, body_bytes_max=SMALL_BODY_BYTES_MAX))


def test_random_commands_get_the_same_replies_while_draining(seed: int) -> None:
    with Pair(servers.beanstalkd, candidate).running() as pair:
        check(pair, f"{seed} before draining", walk)  # so that there is something to drain
        for server in pair.servers:
            server.signal(signal.SIGUSR1)
        for side in (pair.lockstep.reference, pair.lockstep.candidate):
            while b"\ndraining: true\n" not in side.stats():
                pass
        pair.lockstep.settle()
        check(pair, f"{seed} draining", walk)


# --- That the comparison notices ---


def test_beanstalkd_agrees_with_itself(twins: Pair, seed: int) -> None:
    for scan in (walk, pour_noise):
        check_walks(twins, f"{seed} self {scan.__name__}", scan)


def reworded(old: bytes, new: bytes) -> Distortion:
    return lambda reply: re.sub(old, new, reply, flags=re.MULTILINE)


def reversed_names(reply: bytes) -> bytes:
    if not reply.startswith(b"OK\r\n---\n- "):
        return reply
    names = reply.removeprefix(b"OK\r\n---\n").removesuffix(b"\r\n").splitlines(keepends=True)
    return b"OK\r\n---\n" + b"".join(sorted(names)) + b"\r\n"


MUTANTS: Final = {
    "a body loses a byte": reworded(rb"^(RESERVED \d+ [1-9]\d*\r\n)(?s:.)", rb"\1"),
    "a job of the wrong number is found": reworded(rb"^FOUND (\d+)", rb"FOUND 1\1"),
    "kick says one too few": reworded(rb"^KICKED 2\r", rb"KICKED 1\r"),
    "a wrong refusal": reworded(rb"^EXPECTED_CRLF", rb"BAD_FORMAT"),
    "a typo is forgiven": reworded(rb"^UNKNOWN_COMMAND", rb"BAD_FORMAT"),
    "a release that did not happen": reworded(rb"^RELEASED", rb"NOT_FOUND"),
    "a wait that ends too soon": reworded(rb"^DEADLINE_SOON", rb"TIMED_OUT"),
    "the last tube can be ignored": reworded(rb"^NOT_IGNORED", rb"WATCHING 0"),
    "buries are not counted": reworded(rb"^buries: \d+", rb"buries: 0"),
    "urgent jobs are all jobs": reworded(
        rb"^current-jobs-urgent: [^0].*", rb"current-jobs-urgent: 9"
    ),
    "a counter counts refusals": reworded(rb"^cmd-touch: [2-9]", rb"cmd-touch: 1"),
    "priority is forgotten": reworded(rb"^pri: 1023", rb"pri: 0"),
    "quotes that 1.12 does not write": reworded(rb"^tube: (.*)", rb'tube: "\1"'),
    "time left where none runs": reworded(rb"^time-left: 0", rb"time-left: 1"),
    "a tube outlives its use": reworded(rb"^current-tubes: [3-9]", rb"current-tubes: 2"),
    "tubes in the order of the alphabet": reversed_names,
    "no empty line behind the list": reworded(rb"\n\r\n\Z", rb"\r\n"),
}


@pytest.mark.parametrize("lie", MUTANTS)
def test_a_lie_is_noticed(lie: str, seed: int) -> None:
    pair = Pair(servers.beanstalkd, servers.beanstalkd, MUTANTS[lie])
    with pair.running(), pytest.raises(Difference):
        take_walks(pair, f"{seed} lie")


def take_walks(pair: Pair, seed: str) -> None:
    for number in range(WALKS_BEFORE_A_LIE_IS_NOTICED):
        walk(pair.lockstep, random.Random(f"{seed} {number}"))
