"""Every example of docs/client.md and docs/tasks.md does what it says."""

import contextlib
import inspect
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from delayd import client
from delayd.client import DelaydError, Refused, errors
from delayd.testing.daemon import Daemon, running_daemon

ROOT: Final = Path(__file__).parents[2]
TEXT: Final = (ROOT / "docs" / "client.md").read_text(encoding="utf-8")
TESTING: Final = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
TASKS: Final = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")
PROGRAMS: Final = [
    *re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL),
    *re.findall(r"```python\n(from delayd.testing import FakeDelayd.*?)```", TESTING, re.DOTALL),
    *re.findall(r"```python\n((?:import|from delayd).*?)```", TASKS, re.DOTALL),
]
PRINTED: Final = re.compile(r"^ *print\(.*\)  # (.*)$", re.MULTILINE)


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    with running_daemon("--http", "127.0.0.1:0") as daemon:
        yield daemon


@pytest.fixture
def emptied(shared: Daemon) -> Daemon:
    """The daemon of all programs, without what the one before has left."""
    with client.Client(f"http://{shared.http_listens_on}") as here:
        for topic in here.topics():
            here.clear(topic.name)
            here.clear_policy(topic.name)
        assert not any(topic.jobs for topic in here.topics())
    return shared


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_an_example_prints_what_its_comments_say(
    program: str, emptied: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)
    for written, meant in (
        ("http://127.0.0.1:11301", f"http://{emptied.http_listens_on}"),
        ("beanstalk://127.0.0.1:11300", f"beanstalk://{emptied.listens_on}"),
        ('delay="5s"', 'delay="50ms"'),
    ):
        program = program.replace(written, meant)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(program, "docs/client.md", "exec"), {"__name__": "page"})  # noqa: S102 - our page
    assert PRINTED.findall(program)
    assert printed.getvalue().splitlines() == PRINTED.findall(program)


def test_every_method_of_the_client_is_named() -> None:
    from delayd.client import Client

    inside = {"close", "keep", "keep_no_more", "over"}
    for name in vars(Client):
        if not name.startswith("_") and name not in inside:
            assert re.search(rf"`{name}\b|\.{name}\(", TEXT), name


def test_with_asyncio_every_method_has_the_same_name_and_arguments() -> None:
    from delayd.client import AsyncClient, AsyncJob, Client, Job

    def methods(kind: type) -> dict[str, list[tuple[str, object, object]]]:
        return {
            name: [(each.name, each.kind, each.default) for each in parameters.values()]
            for name, method in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_")
            for parameters in [inspect.signature(method).parameters]
        }

    own = methods(Client)
    del own["stream"]  # what asyncio does by itself
    assert methods(AsyncClient) == own
    assert methods(AsyncJob) == methods(Job)
    assert inspect.iscoroutinefunction(AsyncClient.put)
    assert inspect.iscoroutinefunction(AsyncJob.ack)


def test_the_way_of_one_call_is_as_long_as_is_said() -> None:
    said = str(client.__doc__)
    over_http = re.findall(r"^    (\w+) {2,}", said, re.MULTILINE)
    other = {"http_calls": "line_calls", "http1": "beanstalk"}
    for names in (over_http, [other.get(name, name) for name in over_http]):
        sources = [ROOT / "delayd" / "client" / f"{name}.py" for name in names]
        lines = sum(source.read_text(encoding="utf-8").count("\n") for source in sources)
        assert f"{round(lines, -2):,}" in said, lines


@pytest.mark.thorough
def test_every_error_is_named() -> None:
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, DelaydError) and kind is not DelaydError:
            families = {Refused, errors.ServerFault, errors.NotUnderstood}
            assert kind in families or f"`{name}" in TEXT, name
