"""Where the answers of 1.12 and 1.13 differ: Debian's beanstalkd and `--compat 1.12` say one thing,
delayd by itself the other.
"""

from collections.abc import Iterator
from typing import Final

import pytest

from tests.compat.conftest import AS_1_12, AS_1_13, start, wait_until_alone
from tests.compat.test_facts_time import send_and_wait
from tests.line_client import Address, LineClient

WAITS: Final = "..."
"""It waits for a job."""

ANSWERS: Final = {
    # What is sent: the answer, or the line of it, of 1.12 and of 1.13.
    "reserve-with-timeout ": ("TIMED_OUT", "BAD_FORMAT"),
    "reserve-with-timeout x": ("TIMED_OUT", "BAD_FORMAT"),
    "reserve-with-timeout 0x": ("TIMED_OUT", "BAD_FORMAT"),
    "reserve-with-timeout +0": ("TIMED_OUT", "BAD_FORMAT"),
    "reserve-with-timeout 4294967296": ("TIMED_OUT", "BAD_FORMAT"),
    "reserve-with-timeout -1": (WAITS, "BAD_FORMAT"),
    "reserve-with-timeout  77x": (WAITS, "BAD_FORMAT"),
    "reserve-with-timeout \t100": (WAITS, "BAD_FORMAT"),
    "reserve-with-timeout 2147483648": (WAITS, "BAD_FORMAT"),
    "reserve-with-timeout 4294967295": (WAITS, "BAD_FORMAT"),
    "stats-tube default": ("name: default", 'name: "default"'),
    "stats-job 1": ("tube: kept", 'tube: "kept"'),
}
TEXTS: Final = ("hostname", "os", "platform")


@pytest.fixture(scope="module", params=("beanstalkd", AS_1_12, *AS_1_13))
def answering(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Address, int]]:
    """The address of each server, which has job 1, and the column of its answers."""
    with start(request.param, tmp_path_factory.mktemp("server")) as server:
        with LineClient(server.address) as client:
            client.ask("use kept")
            assert client.put() == 1
        yield server.address, int(request.param in AS_1_13)


@pytest.mark.parametrize("command", ANSWERS)
def test_each_version_has_its_answer(answering: tuple[Address, int], command: str) -> None:
    address, column = answering
    wanted = ANSWERS[command][column]
    with LineClient(address) as client, LineClient(address) as keeper:
        wait_until_alone(keeper, clients=2)
        if wanted is WAITS:
            send_and_wait(client, command, keeper)
        else:
            assert wanted in client.ask(command).split("\n")


def test_each_version_writes_the_texts_of_its_statistics(
    answering: tuple[Address, int],
) -> None:
    address, column = answering
    with LineClient(address) as client:
        lines = client.ask("stats").split("\n")
    told = dict(line.split(": ", 1) for line in lines if ": " in line)
    assert told["version"] == ('"1.12"', '"1.13"')[column]
    for name in TEXTS:
        assert told[name].startswith('"') == bool(column), name
    assert list(told)[:51][-1] == "platform"
