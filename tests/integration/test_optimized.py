"""Without assertions and docstrings (`python -OO`) delayd does and says the same."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from delayd.testing.daemon import Daemon

ROOT: Final = Path(__file__).parents[2]

CLIENT: Final = """
import json, sys
from delayd.client import Client, DelaydError

url, line = sys.argv[1:]
said = []

def note(call, *args, **named):
    try:
        found = call(*args, **named)
    except DelaydError as error:
        said.append([type(error).__name__, error.kind, error.word, str(error)])
    else:
        said.append(type(found).__name__)
        return found

for client in (Client(url), Client(line)):
    put = note(client.put, "mail", "a", key="k")
    note(client.put, "mail", "a", key="k")
    note(client.put, "mail", "a", delay="soon")
    note(client.find, "mail", "other")
    note(client.topic, "nobody")
    note(client.get, 4711)
    note(client.set_policy, "mail", {"retry": "never"})
    note(client.ack, note(client.reserve, "mail", timeout=0))
    note(client.get, put.id)

print(json.dumps(said))
"""


def ran(flag: str, *words: str) -> str:
    """What Python with this flag prints."""
    command = [sys.executable, flag, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def told(flag: str, data_dir: Path) -> list[Any]:
    """What clients of a daemon are told, both with this flag; the second life has what is left."""
    where = ["--line", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data-dir", str(data_dir)]
    command = [sys.executable, flag, "-m", "delayd", "serve", *where]
    with Daemon(command) as daemon:
        urls = [f"http://{daemon.http_listens_on}", f"beanstalk://{daemon.listens_on}"]
        said: list[Any] = json.loads(ran(flag, "-c", CLIENT, *urls))
        assert daemon.stop() == 0, daemon.log()
    with Daemon(command) as daemon:
        url = f"http://{daemon.http_listens_on}"
        topics = ran(flag, "-m", "delayd", "topics", "--json", "--url", url)
    # For how long rates were counted, which is longer where the machine is busy.
    return [*said, re.sub(r'"window": [0-9.]+', "", topics)]


# `-B`: changes nothing here, and no bytecode is left behind.
@pytest.fixture(scope="module")
def as_ever(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return told("-B", tmp_path_factory.mktemp("ever"))


def test_the_main_paths_are_the_same(as_ever: list[Any], tmp_path: Path) -> None:
    assert told("-OO", tmp_path) == as_ever


def test_the_main_paths_are_those_meant(as_ever: list[Any]) -> None:
    errors = [each[0] for each in as_ever if isinstance(each, list)]
    of_a_client = ["JobAlreadyExists", "Invalid", "JobNotFound", "TopicNotFound"]
    assert errors == [*of_a_client, "JobNotFound", "PolicyInvalid", "JobNotFound"] * 2


def test_people_read_the_same_and_a_replay_refuses_the_same() -> None:
    as_ever, optimized = (
        json.loads(ran(each, "-m", "tests.integration.optimized")) for each in ("-B", "-OO")
    )
    assert {*as_ever["misfits"].values()} == {"refused"}
    assert all(as_ever["helps"].values())
    assert optimized == as_ever
