"""docs/runbook.md is true: each situation is made, and each command prints what the page says.

What needs a process, a port or files is in `tests/integration/test_runbook.py`.
"""

import re
import shlex
import subprocess
from collections.abc import Callable
from typing import Final

import pytest

from delayd.access.scopes import Scope
from delayd.core.throttle import PushBlock
from delayd.exits import Exit
from tests.cli.talking import Talk
from tests.integration.test_runbook import OF_PROCESSES
from tests.pages import is_as_told, text_of

PAGE: Final = "runbook.md"


def nobody_works(talk: Talk) -> None:
    for number in range(3):
        talk.ok("put", "mail", str(number))


def is_paused(talk: Talk) -> None:
    nobody_works(talk)
    talk.ok("pause", "mail", "1h")


def is_limited(talk: Talk) -> None:
    nobody_works(talk)
    talk.ok("policy", "set", "mail", "reserved_max=2")
    talk.ok("reserve", "mail", "--count", "2")


def holds_back_its_groups(talk: Talk) -> None:
    talk.ok("policy", "set", "mail", "group_reserved_max=1")
    for group in ("order-7", "order-7", "order-8"):
        talk.ok("put", "mail", "x", "--group", group)
    talk.ok("reserve", "mail")
    talk.ok("group", "pause", "mail", "order-8", "1h")


def waits_for_its_time(talk: Talk) -> None:
    talk.ok("put", "orders", "close", "--delay", "30m", "--key", "order-17")


def misses_runs(talk: Talk) -> None:
    zone = ("--cron", "30 2 * * *", "--tz", "America/New_York")
    talk.ok("schedule", "put", "nightly", "x", "--topic", "reports", *zone)
    talk.ok("policy", "set", "reports", "jobs_max=1")
    talk.rig.pass_ms(2 * 86_400_000)  # in one step, as after a stop
    talk.rig.pass_ms(86_400_000)


def outlives_its_ttr(talk: Talk) -> None:
    talk.ok("put", "mail", "x", "--ttr", "5s")
    for _ in range(3):
        talk.ok("reserve", "mail")
        talk.rig.pass_ms(5_001)


def comes_late(talk: Talk) -> None:
    talk.ok("put", "mail", "x", "--delay", "1s")
    talk.rig.pass_ms(10_000)  # in one step, as after a suspension


def has_failed(talk: Talk) -> None:
    for _ in range(2):
        talk.ok("put", "mail", "x")
        talk.ok("bury", talk.reserved("mail"), "--error", "no such mailbox")


def receiver_is_down(talk: Talk) -> None:
    talk.rig.engine.vet_target = lambda target: target
    for _ in range(3):
        talk.ok("put", "hooks", "x", "--call", "https://shop.example/due")
    talk.rig.push_blocks["hooks"] = [PushBlock.OPEN]


def has_a_cap(talk: Talk) -> None:
    nobody_works(talk)
    talk.ok("policy", "set", "mail", "jobs_max=3")


def disk_is_full(talk: Talk) -> None:
    talk.rig.engine.log_space.limit(0, lambda *_: -1)


def drains(talk: Talk) -> None:
    talk.rig.engine.draining = True


def may_not(talk: Talk) -> None:
    talk.has_token(Scope.RESERVE)


def grows(talk: Talk) -> None:
    nobody_works(talk)
    bodies = [{"body": "x" * 50, "delay": "1d"}] * 900
    talk.rig.call("POST", "/v1/topics/reports/jobs", {"jobs": bodies})


SITUATIONS: Final[dict[str, Callable[[Talk], None]]] = {
    "Jobs are ready and nobody takes them": nobody_works,
    "Workers wait and the topic is paused": is_paused,
    "Workers wait and a limit is reached": is_limited,
    "Workers wait and all groups are held back": holds_back_its_groups,
    "One job has not come": waits_for_its_time,
    "A schedule did not run": misses_runs,
    "A job comes again and again": outlives_its_ttr,
    "Jobs come late": comes_late,
    "There are dead letters": has_failed,
    "A url is not called": receiver_is_down,
    "Puts are refused: a cap is reached": has_a_cap,
    "Puts are refused: the disk is full": disk_is_full,
    "Puts are refused: the daemon drains": drains,
    "A client is refused": may_not,
    "Memory or disk grows": grows,
}


def typed(talk: Talk, command: str) -> str:
    """What a command of delayd prints, perhaps through a filter or with its exit code, or curl."""
    command, echoes, _ = command.partition("; echo $?")
    ours, _, filters = command.partition(" | ")
    program, *words = shlex.split(ours)
    if program == "curl":
        return talk.rig.call("GET", words[-1].removeprefix("localhost:11301")).body.decode()
    code, out, err = talk.run(*words)
    assert (code == Exit.OK) == (not echoes), err
    if filters:
        shell = ("sh", "-c", filters)
        out = subprocess.run(shell, input=out, stdout=subprocess.PIPE, text=True, check=True).stdout
    return f"{out}{err}{int(code) if echoes else ''}"


@pytest.mark.parametrize("symptom", SITUATIONS)
def test_who_sees_this_is_told_what_the_page_says(symptom: str, talk: Talk) -> None:
    SITUATIONS[symptom](talk)
    text = text_of(PAGE, symptom)
    assert "**It means:**" in text
    assert "**Do:**" in text
    for block in re.findall("```console\n(.*?)```", text, re.DOTALL):
        for part in block.removeprefix("$ ").split("\n$ "):
            command, _, told = part.partition("\n")
            said = typed(talk, command)
            assert is_as_told(told.rstrip(), said.rstrip()), f"$ {command}\n{said}"


def test_every_symptom_is_played_and_listed() -> None:
    text = text_of(PAGE)
    headings = re.findall("^## (.*)$", text, re.MULTILINE)
    assert headings == [*SITUATIONS, *OF_PROCESSES]
    for heading in headings:
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        assert f"](#{anchor})" in text.partition("\n## ")[0], heading
