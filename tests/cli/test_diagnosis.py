import contextlib
from ast import literal_eval
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from delayd.cli import machine as machine_module
from delayd.cli.diagnosis import Finding, Severity, findings
from delayd.cli.machine import FREE, DirectoryFacts, FileFacts, Machine, PortFacts
from delayd.cli.main import invoke
from delayd.client.results import Health, TopicInfo
from delayd.config import Config, SyncPolicy
from delayd.core.policy import Patterns, Policy
from delayd.exits import Exit

CONFIG: Final = Config(data_dir="/data", segment_bytes=1 << 28)
DIRECTORY: Final = DirectoryFacts(
    "/data", "/data", file_system="ext4", free_bytes=1 << 40, sync_us=(900, 1_000, 1_100)
)
HEALTHY: Final = Machine(
    python="3.11.9",
    uid=1000,
    files_max=65_536,
    file_bytes_max=-1,
    core_bytes_max=0,
    clock_source="tsc",
    has_kernel_sync=True,
    directory=DIRECTORY,
    files=(FileFacts("the configuration", "/etc/delayd.toml", 0o644),),
    ports=(PortFacts("line.listen", "127.0.0.1:11300", FREE),),
    has_systemd=True,
    unit="/etc/systemd/system/delayd.service",
    unit_state="active",
)


def found(config: Config = CONFIG, **changes: Any) -> list[Finding]:  # noqa: ANN401 - fields
    """Everything but what is well; whatever is wrong or a warning comes with advice."""
    all_found = findings(HEALTHY._replace(**changes), config)
    for finding in all_found:
        assert finding.advice or finding.level not in {Severity.WRONG, Severity.WARNING}
    return [finding for finding in all_found if finding.level is not Severity.OK]


def otherwise(text: str) -> dict[str, Any]:
    """The fields of a machine that a row of doctor.txt tells of."""
    what, _, fields = text.partition(" ")
    given = literal_eval(fields)
    match what:
        case "directory":
            return {"directory": DIRECTORY._replace(**given)}
        case "file":
            return {"files": (FileFacts(path="/etc/f", **given),)}
        case "port":
            return {"ports": (PortFacts("http.listen", "127.0.0.1:11301", **given),)}
        case _:
            assert what == "machine"
            return dict(given)


ROWS: Final = (Path(__file__).parent / "doctor.txt").read_text().splitlines()


def test_a_healthy_machine_has_nothing_but_what_is_well() -> None:
    assert not found()
    assert len(findings(HEALTHY, CONFIG)) >= 8


@pytest.mark.parametrize("row", [row for row in ROWS if row and not row.startswith("#")])
def test_what_is_wrong_with_a_machine_is_found_with_what_to_do_and_what_is_no_fault_is_not(
    row: str,
) -> None:
    changes, _, told = row.partition(" ->")
    findings = found(**otherwise(changes))
    assert len(findings) == bool(told)
    for level, subject, text, advice in findings:
        beginning, _, words = told.partition(" ~ ")
        said, _, to_do = words.partition(" ; ")
        assert beginning == f" {level} {subject}"
        assert said in text
        assert to_do in advice


def test_weights_of_groups_that_take_no_turns_are_told() -> None:
    fair, unfair = (Policy(fair=fair, group_weights=((b"acme", 5),)) for fair in (True, None))
    (finding,) = found(CONFIG._replace(topics=Patterns({"mail": fair, "hooks.*": unfair})))
    assert (finding.level, finding.subject) == ("warning", "topics")
    assert "group_weights of 'hooks.*'" in finding.text


def test_slow_syncs_do_not_matter_where_no_answer_waits_for_them() -> None:
    slow = DIRECTORY._replace(sync_us=(500_000,) * 3)
    assert not found(CONFIG._replace(sync=SyncPolicy.INTERVAL), directory=slow)


# --- The command ----------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_module, "machine", lambda *_: HEALTHY)


@pytest.mark.thorough
def test_the_daemon_is_asked_last_and_not_for_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    patience: list[float] = []

    held = TopicInfo(
        "hooks", 0, 0, 0, 0, 0, 0, details={"blocks": ["held"]}, oldest_ready_age=590.0
    )
    paused = held._replace(details={"blocks": ["paused"]}, oldest_ready_age=9_000.0)
    topics = [held, paused]

    @contextlib.contextmanager
    def asked(**how: Any) -> Iterator[Any]:  # noqa: ANN401 - as `client` takes them
        assert "line.listen" in capsys.readouterr().out
        patience.extend((how["patience_s"], how["answer_s"]))
        yield SimpleNamespace(health=lambda: Health(is_ready=True), topics=lambda: topics)

    monkeypatch.setattr("delayd.cli.doctor.client", asked)
    assert invoke(["doctor", "--url", "http://127.0.0.1:1"]) == Exit.OK
    assert patience == [3.0, 5.0]
    said = capsys.readouterr().out
    assert "takes jobs at" in said
    assert "groups" not in said, "not for long, or not by its groups"
    topics += [held._replace(oldest_ready_age=3_700.0), held._replace(oldest_ready_age=700.0)]
    assert invoke(["doctor", "--url", "http://127.0.0.1:1"]) == Exit.OK
    last = capsys.readouterr().out.splitlines()[-2:]
    assert "all groups of hooks are held back, and a job has been ready for 1h 1m" in last[0]
    assert "delayd group list hooks" in last[1]
    topics.clear()
    monkeypatch.setenv("DELAYD_POSTGRES_URL", "postgresql://ada@127.0.0.1:1/jobs")
    assert invoke(["doctor", "--url", "http://127.0.0.1:1"]) == Exit.BAD_CONFIGURATION
    last = capsys.readouterr().out.splitlines()[-2:]
    assert last[0].startswith("warning  the daemon ")
    assert "but the database cannot be used from here" in last[0]


def test_a_daemon_that_is_asked_and_not_there_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DELAYD_URL", "http://127.0.0.1:1")
    assert invoke(["doctor"]) == Exit.BAD_CONFIGURATION
    assert "no delayd answers at http://127.0.0.1:1" in capsys.readouterr().out
