"""How sinks are found: by entry points, only when the configuration names one."""

import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from delayd.config import Config, ConfigErrors, SinkSection
from delayd.push.sinks import DELIVERED, AttemptEnd, DueJob, open_sinks

ROOT: Final = Path(__file__).parent.parent.parent
JOB: Final = DueJob(7, "0a_7", "mail", b"order-17", b"hi", "text/plain", 1, 1_000, 3, 0)


class Keeper:
    """A sink that keeps what it is given."""

    def __init__(self, name: str, options: Mapping[str, object]) -> None:
        if "worse" in options:
            raise ValueError("must not be worse\nnor worst")
        self.name = name
        self.options = options

    async def deliver(self, job: DueJob) -> AttemptEnd:
        return DELIVERED

    async def close(self) -> None:
        pass


def install(
    directory: Path, patch: pytest.MonkeyPatch, package: str, kinds: Mapping[str, str]
) -> None:
    """Put a package with these kinds of sinks where Python finds it."""
    folder = directory / f"{package}-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    rows = "".join(f"{kind} = {value}\n" for kind, value in kinds.items())
    (folder / "entry_points.txt").write_text(f"[delayd.sinks]\n{rows}")
    patch.syspath_prepend(directory)


def built_in() -> dict[str, str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    kinds: dict[str, str] = project["entry-points"]["delayd.sinks"]
    assert kinds.keys() <= project["optional-dependencies"].keys(), "each installs its packages"
    return kinds


@pytest.fixture(autouse=True)
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "delayd", built_in())
    keeper = "tests.push.test_sinks:Keeper"
    kinds = {"keeper": keeper, "gone": "no_such_module:Sink", "typo": f"{keeper}s"}
    install(tmp_path, monkeypatch, "acme", kinds)


def errors_of(**sections: SinkSection) -> list[str]:
    with pytest.raises(ConfigErrors) as caught:
        open_sinks(Config(sinks=sections))
    return [str(error) for error in caught.value.errors]


def test_a_sink_is_made_by_what_its_kind_names_with_its_name_and_options() -> None:
    section = SinkSection("keeper", {"where": "here"})
    sinks = open_sinks(Config(sinks={"orders": section, "mail": section}))
    assert list(sinks) == ["orders", "mail"]
    sink = sinks["orders"]
    assert type(sink).__name__ == "Keeper"
    assert vars(sink) == {"name": "orders", "options": {"where": "here"}}


def test_every_kind_of_delayd_itself_can_be_made() -> None:
    urls = {"redis": "redis://127.0.0.1", "amqp": "amqp://127.0.0.1"}
    options = {kind: {"url": url} for kind, url in urls.items()}
    options["redis"]["list"] = "due"
    sections = {kind: SinkSection(kind, options[kind]) for kind in built_in()}
    assert set(open_sinks(Config(sinks=sections))) == {"redis", "amqp"}


def test_a_kind_that_does_not_exist_is_refused_with_those_that_do() -> None:
    assert errors_of(a=SinkSection("rediss", {}), b=SinkSection("kafka", {})) == [
        'sinks.a.kind = "rediss": there is no such kind; did you mean redis?',
        'sinks.b.kind = "kafka": there is no such kind; there are amqp, gone, keeper, redis, typo',
    ]


@pytest.mark.parametrize(("kind", "library"), [("redis", "redis"), ("amqp", "aio_pika")])
def test_a_kind_without_its_packages_is_refused_with_how_to_install_them(
    monkeypatch: pytest.MonkeyPatch, kind: str, library: str
) -> None:
    for name in list(sys.modules):
        if name.partition(".")[0] == library:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, f"delayd.push.{kind}_sink", raising=False)
    monkeypatch.setitem(sys.modules, library, None)
    (error,) = errors_of(orders=SinkSection(kind, {}))
    needs = f'needs more packages: pip install "delayd[{kind}]"'
    assert error.startswith(f'sinks.orders.kind = "{kind}": {needs} (')
    assert library in error


def test_a_kind_of_another_package_that_cannot_be_loaded_is_refused_with_the_reason() -> None:
    gone, typo = errors_of(a=SinkSection("gone", {}), b=SinkSection("typo", {}))
    assert gone.startswith('sinks.a.kind = "gone": no_such_module:Sink cannot be loaded: ModuleNot')
    assert typo.startswith('sinks.b.kind = "typo": tests.push.test_sinks:Keepers cannot be loaded')


def test_what_a_kind_says_of_its_options_is_told_with_the_name_of_the_sink() -> None:
    url_rule = "must be redis://[USER@]HOST[:PORT][/DATABASE], rediss:// for TLS, or unix:///PATH"
    assert errors_of(
        a=SinkSection("keeper", {"worse": 1}),
        b=SinkSection("redis", {"url": "redis://:s3cret@x?y", "list": 5, "maxlen": 0, "lists": 1}),
    ) == [
        "sinks.a: must not be worse nor worst",
        f"sinks.b.url: {url_rule}",
        "sinks.b.list = 5: must be a key of Redis; {topic} in it is the job's topic",
        f"sinks.b.maxlen = 0: must be a whole number from 1 to {2**62}",
        "sinks.b.lists: there is no such option; did you mean list?",
    ]


def test_nothing_is_looked_for_or_imported_without_a_sink() -> None:
    code = (
        "import sys; from delayd.config import Config; from delayd.push.sinks import open_sinks;"
        "assert open_sinks(Config()) == {};"
        "print(sorted({'importlib.metadata', 'redis', 'aio_pika', 'asyncio'} & {*sys.modules}))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT
    )
    assert ran.stdout == "[]\n"


def test_a_job_has_fields_for_receivers_beside_its_body() -> None:
    assert JOB.fields() == {
        "id": 7,
        "message_id": "0a_7",
        "topic": "mail",
        "key": "order-17",
        "content_type": "text/plain",
        "attempt": 1,
        "due": "1970-01-01T00:00:01.000Z",
        "lateness_ms": 3,
    }
