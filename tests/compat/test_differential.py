"""delayd and Debian's beanstalkd are given the same random commands and must answer alike.

That the comparison holds still where nothing differs, and that it notices what does, is tested on
beanstalkd against itself: as it is, and with replies that were tampered with.
"""

import random
import re
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Final

import pytest

from tests import servers
from tests.compat import timed
from tests.compat.conftest import needs_beanstalkd
from tests.compat.lockstep import Difference, Distortion
from tests.compat.walks import Pair, Starter, check, pour_noise, walk

BLOCKS: Final = (3, 30)
"""Blocks of walks in the everyday run, and in the long one."""
WALKS_PER_BLOCK: Final = 16
SMALL_BODY_BYTES_MAX: Final = 100
TIMED_WALKS: Final = 6
TIMED_TRIES: Final = 5
TIMED_PROOFS: Final = 3
WALKS_BEFORE_A_LIE_IS_NOTICED: Final = 30

small_bodies = partial(walk, body_bytes_max=SMALL_BODY_BYTES_MAX)


candidate = partial(servers.delayd_beanstalkd, "--compat", "1.12")
"""delayd as the beanstalkd of Debian, with which every reply is compared."""


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
def test_random_commands_get_the_same_replies(pair: Pair, seed: int, number: int) -> None:
    for each in range(WALKS_PER_BLOCK):
        check(pair, f"{seed} walk {number}.{each}", walk)


@pytest.mark.walk(*BLOCKS)
def test_random_bytes_get_the_same_replies(pair: Pair, seed: int, number: int) -> None:
    for each in range(WALKS_PER_BLOCK):
        check(pair, f"{seed} noise {number}.{each}", pour_noise)


def test_random_commands_get_the_same_replies_with_small_bodies_only(seed: int) -> None:
    flags = ("-z", str(SMALL_BODY_BYTES_MAX))
    starters = (partial(servers.beanstalkd, *flags), partial(candidate, *flags))
    with Pair(*starters).running() as pair:
        for number in range(WALKS_PER_BLOCK):
            check(pair, f"{seed} small {number}", small_bodies)


def test_random_commands_get_the_same_replies_although_every_change_is_synced(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def serve() -> servers.Server:
        return candidate("-b", str(tmp_path_factory.mktemp("data")), "-f", "0")

    with Pair(servers.beanstalkd, serve).running() as pair:
        for number in range(WALKS_PER_BLOCK):
            check(pair, f"{seed} synced {number}", walk)


def test_random_commands_get_the_same_replies_while_draining(seed: int) -> None:
    with Pair(servers.beanstalkd, candidate).running() as pair:
        # Some jobs first, so that there is something to drain.
        check(pair, f"{seed} before draining", walk)
        for server in pair.servers:
            server.signal(signal.SIGUSR1)
        for side in (pair.lockstep.reference, pair.lockstep.candidate):
            while b"\ndraining: true\n" not in side.stats():
                pass
        pair.lockstep.settle()
        check(pair, f"{seed} draining", walk)


@pytest.mark.timeout(600)
def test_waits_and_ends_of_time_come_alike(seed: int) -> None:
    """Walks that agree are done, however late they were: a busy machine makes none agree.

    It may keep a few from agreeing, if they are late whenever they differ.
    """
    names = [f"{seed} timed {number}" for number in range(TIMED_WALKS)]
    seen: Counter[tuple[str, str]] = Counter()
    seen_in_time: Counter[tuple[str, str]] = Counter()
    for _ in range(TIMED_TRIES):
        differences, late = timed_walks(candidate, names)
        for name, difference in differences.items():
            what = name, difference.shown
            seen[what] += 1
            seen_in_time[what] += name not in late
            # What the machine does to a server that nobody has made wait comes elsewhere each time.
            if seen_in_time[what] == TIMED_PROOFS or seen[what] == TIMED_TRIES:
                difference.add_note(
                    f"This walk again: seed {name!r}. It differed {seen[what]} times."
                )
                raise difference
        names = sorted(differences)
        if not names:
            return
    differed = {name for (name, _), times in seen_in_time.items() if times}
    if len(names) > TIMED_WALKS // 2 or differed.intersection(names):
        pytest.skip(f"this machine is too busy to tell for {len(names)} walks")


def timed_walks(
    candidate: Starter, names: list[str], distortion: Distortion | None = None
) -> tuple[dict[str, Difference], list[str]]:
    """Take timed walks side by side: those that differ, and those that the machine made late."""
    with ExitStack() as stack:
        walks = []
        for name in names:
            pair = Pair(servers.beanstalkd, candidate, distortion, timed.PATIENCE_S)
            walks.append(timed.TimedWalk(name, stack.enter_context(pair.running())))
        differences = timed.run(walks)
    return differences, [each.name for each in walks if each.late_s > timed.LATE_S_MAX]


def test_beanstalkd_agrees_with_itself(twins: Pair, seed: int) -> None:
    for number in range(WALKS_PER_BLOCK):
        check(twins, f"{seed} self {number}", walk)
        check(twins, f"{seed} self noise {number}", pour_noise)


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


@pytest.mark.timeout(600)
def test_a_lie_about_the_end_of_time_is_noticed(seed: int) -> None:
    names = [f"{seed} timed {number}" for number in range(TIMED_WALKS)]
    lie = reworded(rb"^(timeouts|job-timeouts): [1-9].*", rb"\1: 0")
    for _ in range(TIMED_TRIES):
        differences, _late = timed_walks(servers.beanstalkd, names, lie)
        if any("timeouts: 0" in str(difference) for difference in differences.values()):
            return
    pytest.fail("nobody has noticed")


def check_walks(pair: Pair, seed: str) -> None:
    for number in range(WALKS_PER_BLOCK):
        check(pair, f"{seed} {number}", walk)


def test_a_server_that_behaves_differently_is_noticed_and_described_briefly(seed: int) -> None:
    other = partial(servers.beanstalkd, "-z", str(SMALL_BODY_BYTES_MAX))
    hush = reworded(rb"^max-job-size: \d+", rb"max-job-size: 65535")
    pair = Pair(servers.beanstalkd, other, hush)
    with pair.running(), pytest.raises(Difference) as noticed:
        check_walks(pair, f"{seed} other")
    transcript = str(noticed.value).partition("transcript")[2]
    assert len(transcript.splitlines()) <= 4
    assert "This walk again" in "".join(noticed.value.__notes__)
