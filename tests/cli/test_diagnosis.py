import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from delayd.cli import machine as machine_module
from delayd.cli.diagnosis import Finding, Severity, findings
from delayd.cli.machine import (
    ANOTHER,
    DELAYD,
    FREE,
    SILENT,
    DirectoryFacts,
    FileFacts,
    Machine,
    PortFacts,
)
from delayd.cli.main import invoke
from delayd.client.results import Health, TopicInfo
from delayd.config import Config, SyncPolicy
from delayd.core.policy import Patterns, Policy
from delayd.exits import Exit
from tests.cli.talking import Talk

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


def in_directory(**changes: Any) -> list[Finding]:  # noqa: ANN401 - fields
    return found(directory=DIRECTORY._replace(**changes))


def file(what: str, mode: int | None, *, is_readable: bool = True) -> dict[str, Any]:
    return {"files": (FileFacts(what, "/etc/f", mode, is_readable=is_readable),)}


def port(state: str) -> dict[str, Any]:
    return {"ports": (PortFacts("http.listen", "127.0.0.1:11301", state),)}


def test_a_healthy_machine_has_nothing_but_what_is_well() -> None:
    assert not found()
    assert len(findings(HEALTHY, CONFIG)) >= 8


@pytest.mark.parametrize(
    ("changes", "level", "said", "advice"),
    [
        ({"is_directory": False}, "wrong", "/data is not a directory", "choose another"),
        ({"is_writable": False}, "wrong", "user 1000 cannot write to /data", "chown"),
        ({"mode": 0o755}, "warning", "mode 0755", "chmod 0700 /data"),
        ({"file_system": ""}, "note", "not known", "df -T"),
        ({"file_system": "tmpfs"}, "wrong", "every job is lost", "on a disk"),
        ({"file_system": "nfs4"}, "warning", "nfs4: locks", "of this machine"),
        ({"free_bytes": 1 << 27}, "wrong", "128.0 MiB are free", "make space"),
        ({"free_bytes": 1 << 29}, "warning", "512.0 MiB are free", "twice the jobs"),
        ({"sync_us": (200_000,) * 3}, "warning", "200 ms in the median", "another disk"),
        ({"sync_us": (20_000,) * 3}, "note", "20 ms in the median", "a second"),
        ({"sync_us": (3, 3, 3)}, "note", "too fast for a disk", "power cut"),
        ({"sync_us": (), "sync_error": "No space"}, "note", "not measured: No space", ""),
    ],
)
def test_what_is_wrong_with_the_data_directory(
    changes: dict[str, Any], level: str, said: str, advice: str
) -> None:
    (finding,) = in_directory(**changes)
    assert finding.level == level
    assert said in finding.text
    assert advice in finding.advice


@pytest.mark.parametrize(
    ("changes", "level", "subject", "said"),
    [
        ({"files_max": 16}, "wrong", "open files", "16 at most"),
        ({"files_max": 1_024}, "note", "open files", "which come to 20064"),
        ({"file_bytes_max": 1 << 20}, "wrong", "file size limit", "1MiB, less than"),
        ({"core_bytes_max": -1}, "note", "core dumps", "the bodies of jobs"),
        ({"has_kernel_sync": False}, "note", "asynchronous sync", "a thread syncs"),
        ({"clock_source": "hpet"}, "warning", "clock source", "hpet"),
        ({"clock_source": ""}, "note", "clock source", "does not tell"),
        (port(ANOTHER), "wrong", "http.listen", "another program listens on 127.0.0.1:11301"),
        (port("Permission denied"), "wrong", "http.listen", "Permission denied"),
        (file("auth.tokens", None), "wrong", "auth.tokens", "/etc/f is not there"),
        (file("tls.key", 0o600, is_readable=False), "wrong", "tls.key", "1000 cannot read"),
        (file("tls.key", 0o644), "warning", "tls.key", "others may read /etc/f (mode 0644)"),
        (file("auth.tokens", 0o660), "warning", "auth.tokens", "others may read /etc/f"),
        (file("postgres.password_file", 0o644), "wrong", "postgres.password_file", "start refuses"),
        (file("postgres.password_file", 0o660), "wrong", "postgres.password_file", "(mode 0660)"),
        (file("the configuration", 0o666), "wrong", "the configuration", "every user may change"),
        (file("the configuration", 0o664), "warning", "the configuration", "others may change"),
        ({"has_systemd": False}, "note", "systemd", "nothing starts the daemon again"),
        ({"unit": ""}, "note", "systemd", "no unit delayd.service"),
        ({"unit_state": "failed"}, "wrong", "systemd", "has failed"),
        ({"unit_state": "inactive"}, "note", "systemd", "is inactive"),
    ],
)
def test_what_is_wrong_with_the_machine(
    changes: dict[str, Any], level: str, subject: str, said: str
) -> None:
    (finding,) = found(**changes)
    assert (finding.level, finding.subject) == (level, subject)
    assert said in finding.text


def test_weights_of_groups_that_take_no_turns_are_told() -> None:
    fair, unfair = (Policy(fair=fair, group_weights=((b"acme", 5),)) for fair in (True, None))
    (finding,) = found(CONFIG._replace(topics=Patterns({"mail": fair, "hooks.*": unfair})))
    assert (finding.level, finding.subject) == ("warning", "topics")
    assert "group_weights of 'hooks.*'" in finding.text


@pytest.mark.parametrize(
    "changes",
    [
        {"files_max": -1},
        {"file_bytes_max": 1 << 28},
        port(DELAYD),
        file("auth.tokens", 0o640),
        file("tls.key", 0o600),
        file("postgres.password_file", 0o640),
        {"directory": DIRECTORY._replace(path="/", mode=0o755)},
    ],
)
def test_what_is_no_fault(changes: dict[str, Any]) -> None:
    assert not found(**changes)


def test_a_port_that_the_running_daemon_may_have_taken_is_no_fault() -> None:
    (finding,) = found(**port(SILENT))
    assert finding.level is Severity.NOTE
    assert "127.0.0.1:11301 is taken, by a program that does not say what" in finding.text
    assert "a delayd that wants a certificate or is busy does so, too" in finding.advice


def test_slow_syncs_do_not_matter_where_no_answer_waits_for_them() -> None:
    slow = DIRECTORY._replace(sync_us=(500_000,) * 3)
    assert not found(CONFIG._replace(sync=SyncPolicy.INTERVAL), directory=slow)


# --- The command ----------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_module, "machine", lambda *_: HEALTHY)


def test_the_exit_code_tells_whether_anything_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["doctor"]) == Exit.OK
    assert "\x1b" not in capsys.readouterr().out
    monkeypatch.setattr(machine_module, "machine", lambda *_: HEALTHY._replace(files_max=16))
    assert invoke(["doctor", "--json"]) == Exit.BAD_CONFIGURATION
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["level"] for row in rows} == {"ok", "wrong"}


def test_the_daemon_of_a_url_is_asked_whether_it_takes_jobs(talk: Talk) -> None:
    def told() -> str:
        (row,) = [
            row
            for row in talk.objects("doctor", "--url", "http://127.0.0.1:11301")
            if row["subject"] == "the daemon"
        ]
        return f"{row['level']}: {row['said']}"

    assert told() == "ok: takes jobs at http://127.0.0.1:11301"
    talk.rig.engine.draining = True
    assert told().startswith("warning: takes no jobs at http://127.0.0.1:11301")
    assert "the daemon" not in talk.ok("doctor")


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
    def asked(*how: Any) -> Iterator[Any]:  # noqa: ANN401 - as `client` takes them
        assert "line.listen" in capsys.readouterr().out
        patience.extend(how[-2:])
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


def test_the_directory_of_make_run_is_named_where_another_was_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("DELAYD_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "lock").touch()
    invoke(["doctor"])
    assert "-> delayd doctor --data-dir data\n" in capsys.readouterr().out
    invoke(["doctor", "--data-dir", "data"])
    assert "-> delayd doctor" not in capsys.readouterr().out
