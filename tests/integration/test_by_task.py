"""docs/by-task.md is true: each row is carried out, and the rows of a task do the same.

The jobs on which the tasks act are those of `Place.prepare`; after each row all jobs are compared
with what the other rows of the task have made of them. A task of `SHOWS` changes nothing, and each
row shows the text that stands there.
"""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from delayd.cli.main import invoke
from delayd.client import Client, Worker
from delayd.exits import Exit
from delayd.testing.daemon import Daemon, running_daemon
from tests.http_client import HTTP, HttpClient
from tests.line_client import LineClient
from tests.pages import needs_curl, text_of

TASKS: Final[dict[str, dict[str, str]]] = {
    heading: dict(re.findall(r"^\| (\w+) \| (.*) \|$", text, re.MULTILINE))
    for heading, text in re.findall(
        r"^### ([^\n]+)\n(.*?)(?=^#|\Z)", text_of("by-task.md"), re.DOTALL | re.MULTILINE
    )
}
WAYS: Final = ("command", "HTTP", "line", "Python")
SHOWS: Final = {
    "A job by its number": "close",
    "A job by its name": "close",
    "A job by its name, whatever its topic": "orders",
    "The jobs of a topic, the next one first": "order-17",
    "How many come due when": "1",
    "The topics, and how many jobs each has": "orders",
    "Why a topic hands out nothing": "paus",
    "Which customers have most jobs waiting": "acme",
    "What has failed for good, and why": "no such number",
    "For which reasons, and how many for each": "no such number",
    "How it is": "buried",
    "Whether it accepts jobs now": "ready",
    "When it runs, and how the last run has ended": "hourly",
}
TOKEN: Final = "17-1a1ff7acb80-1"  # noqa: S105 - of a reservation
HELD_S: Final = 10
OVER_S: Final = 100
DAY_S: Final = 86_400


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with running_daemon(*HTTP, clock="virtual") as daemon:
        yield daemon


class Place:
    """The daemon, and somebody who acts on its jobs in one of the ways."""

    def __init__(self, daemon: Daemon, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.daemon = daemon
        self.capsys = capsys
        self.directory = directory
        self.client = Client(f"http://{daemon.http_listens_on}")
        self.line = LineClient(daemon.address)
        self.names: dict[str, Any] = {"client": self.client, "Worker": Worker}

    def prepare(self) -> None:
        """Have a delayed job under a key, a ready one, a dead letter; 17 is the topic's job."""
        self.client.put("orders", {"close": 17}, delay="30m", key="order-17", group="acme")
        self.client.put("mail", {"to": "ada"})
        self.client.put_schedule("hourly", "ticks", {}, every="1h")
        self.client.put("sms", {"to": "+49"}, group="acme")
        self.client.reserve("sms").bury(error="no such number")
        (self.directory / "jobs.ndjson").write_text('{"body": 1, "delay": "1h"}\n{"body": 2}\n')
        program = self.directory / "send"
        program.write_text("#!/bin/sh\nexec cat\n")
        program.chmod(0o755)
        self.names["send"] = lambda _job: self.names["worker"].stop()

    def hold(self, way: str) -> str:
        """Reserve the ready job; return its token, which is that of HTTP."""
        token = TOKEN
        if way == "line":
            self.line.ask("watch mail")
            assert self.line.ask("reserve-with-timeout 0").startswith("RESERVED")
        else:
            job = self.names["job"] = self.client.reserve("mail")
            token = job.token
        self.daemon.advance(HELD_S)
        return token

    def clear(self) -> None:
        """Leave nothing behind."""
        self.line.close()
        self.line = LineClient(self.daemon.address)
        self.daemon.advance(OVER_S)
        for schedule in self.client.schedules():
            self.client.remove_schedule(schedule.name)
        for topic in self.client.topics():
            if topic.paused_until:
                self.client.resume(topic.name)
            for group in self.client.groups(topic.name).groups:
                if group.paused_until:
                    self.client.resume_group(topic.name, group.name)
            self.client.clear(topic.name)
            self.client.clear_policy(topic.name)

    def close(self) -> None:
        self.clear()
        self.line.close()
        self.client.close()

    def state(self) -> list[object]:
        """All jobs, policies, pauses and schedules, but for the numbers of jobs."""
        now = self.client.advance_clock(0)

        def left(moment: Any) -> object:  # noqa: ANN401 - a time, or None
            seconds = (moment - now).total_seconds() if moment else 0
            return seconds if seconds < DAY_S else moment

        schedules = [
            (each.name, each.state, each.note, each.runs, each.definition, each.json())
            for each in self.client.schedules()
        ]
        return [schedules] + [
            (
                topic.name,
                left(topic.paused_until),
                policy,
                [
                    (group.name, left(group.paused_until))
                    for group in self.client.groups(topic.name).groups
                ],
                sorted(
                    (
                        *(
                            job.state,
                            job.key.partition("@")[0],
                            str(json.loads(job.body or b"0")),
                            job.priority,
                        ),
                        *(job.ttr, job.attempts, job.failure and (job.failure.reason)),
                        *(left(job.due) if job.state == "delayed" else 0, left(job.expires)),
                        job.details.get("url"),
                    )
                    for row in self.client.jobs(topic.name)
                    for job in [self.client.get(row.id)]
                ),
            )
            for topic in self.client.topics()
            if topic.name[0] != "$"
            for policy in [self.client.policy(topic.name).policy]
            if topic.jobs or topic.paused_until or policy
        ]

    # --- The four ways ---------------------------------------------------------------------------

    def carry_out(self, way: str, said: str) -> str:
        """Do what the row says; return what is answered."""
        parts = re.findall(r"`([^`]+)`", said)
        return {
            "command": self.command,
            "HTTP": self.http,
            "line": self.send,
            "Python": self.python,
        }[way](parts)

    def command(self, parts: list[str]) -> str:
        _delayd, *words = shlex.split(parts[0])
        if _delayd == "curl":
            return self.http([f"GET {words[0].removeprefix('localhost:11301')}"])
        if words[0] == "work":  # it has signals of its own, and would go on for ever
            command = (sys.executable, "-m", "delayd", "work", "--drain", *words[1:])
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout
        code = invoke(words)
        said = self.capsys.readouterr()
        assert code == Exit.OK, said.err
        return said.out

    def http(self, parts: list[str]) -> str:
        method, path = parts[0].split(" ", 1)
        given = json.loads(parts[1]) if parts[1:] and parts[1].startswith("{") else None
        with HttpClient(self.daemon.http_address) as client:
            answer = client.ask(method, path, given)
        assert answer.status < 300, answer
        return answer.body.decode()

    def send(self, parts: list[str]) -> str:
        self.line.send("\r\n".join((*parts, "list-tube-used", "")).encode())
        replies = []
        while not (reply := self.line.reply().decode()).startswith("USING"):
            replies.append(reply)
        assert not re.search("^(BAD_FORMAT|NOT_FOUND|UNKNOWN)", "\n".join(replies), re.MULTILINE)
        return "".join(replies)

    def python(self, parts: list[str]) -> str:
        *before, last = (part for part in parts if "(" in part)
        for part in before:
            exec(part, self.names)  # noqa: S102 - our page
        if "=" in last.split("(")[0]:
            exec(last, self.names)  # noqa: S102 - the same
            return ""
        return repr(eval(last, self.names))  # noqa: S307 - the same


@pytest.fixture
def place(
    daemon: Daemon,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Place]:
    monkeypatch.setenv("DELAYD_URL", f"http://{daemon.http_listens_on}")
    monkeypatch.chdir(tmp_path)
    place = Place(daemon, tmp_path, capsys)
    yield place
    place.close()


@needs_curl
def test_the_line_protocol_is_spoken_by_hand_as_the_page_says(place: Place) -> None:
    (command,) = re.findall(r"`(printf [^`]+)`", text_of("by-task.md"))
    here = command.replace("127.0.0.1:11300", place.daemon.listens_on)
    said = subprocess.run(["bash", "-c", here], capture_output=True, text=True, check=True).stdout
    assert re.fullmatch(r"INSERTED \d+\s*", said)
    (job,) = place.client.jobs("mail")
    assert (job.state, place.client.get(job.id).body) == ("delayed", b"hello")


@pytest.mark.parametrize("task", TASKS)
def test_all_ways_of_a_task_do_the_same(task: str, place: Place) -> None:
    rows = TASKS[task]
    assert tuple(rows) == WAYS
    became = []
    for way, said in rows.items():
        if "`" not in said or said.startswith("not there"):
            continue
        place.prepare()
        if task == "Go on":
            place.client.pause("mail", "1h")
        token = place.hold(way) if TOKEN in rows["command"] else TOKEN
        topic = "mail" if TOKEN in rows["command"] else "sms" if "sms" in said else "orders"
        (number,) = (job.id for job in place.client.jobs(topic))
        before = place.state()
        answered = place.carry_out(
            way, re.sub(r"(?<![-\w])17(?![\w}])", str(number), said.replace(TOKEN, token))
        )
        became.append(place.state())
        assert (became[-1] == before) == (task in SHOWS), f"{way}: {said}"
        assert SHOWS.get(task, "") in answered, f"{way}: {answered}"
        place.clear()
    assert became[1:] == became[:-1]
