"""Holds the tree to the house rules, and the rules to a table of planted offences."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests import house_rules
from tests.house_rules import RULES, Module

ROOT: Final = Path(__file__).parent.parent
FOLDERS: Final = ("delayd", "tests", "benchmarks")
PATHS: Final = tuple(
    path.relative_to(ROOT).as_posix()
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*.py"))
)

LONG_FUNCTION: Final = "def long() -> None:\n" + "    pass\n" * 60

# rule, path of the offender, its source, a word of the advice
OFFENCES: Final = (
    ("imports_go_downwards", "delayd/core/job.py", "import delayd.journal.format", "downwards"),
    ("imports_go_downwards", "delayd/core/job.py", "from delayd import clock", "downwards"),
    ("imports_go_downwards", "delayd/line/server.py", "from delayd.http import app", "downwards"),
    ("imports_go_downwards", "delayd/http/server.py", "from delayd.push import sinks", "downwards"),
    ("imports_go_downwards", "delayd/push/web.py", "import delayd.line.reply", "downwards"),
    ("imports_go_downwards", "delayd/line/x.py", "from delayd.service import run", "downwards"),
    ("imports_go_downwards", "delayd/line/x.py", "from delayd.journal import disk", "downwards"),
    ("imports_go_downwards", "delayd/journal/x.py", "from delayd.core import wheel", "Pass"),
    ("imports_go_downwards", "delayd/journal/x.py", "import delayd.core.jobs", "Pass"),
    ("imports_go_downwards", "delayd/service.py", "def f():\n import delayd.cli.main", "downwards"),
    ("imports_go_downwards", "delayd/service.py", "import delayd.testing", "downwards"),
    ("imports_go_downwards", "delayd/attic/x.py", "", "MAY_IMPORT"),
    ("core_is_pure", "delayd/core/wheel/wheel.py", "import time", "now_ms"),
    ("core_is_pure", "delayd/core/wheel/wheel.py", "from time import monotonic", "now_ms"),
    ("core_is_pure", "delayd/core/wheel/wheel.py", "import os.path", "return"),
    ("core_is_pure", "delayd/core/wheel/wheel.py", "import asyncio", "service"),
    ("core_is_pure", "delayd/core/wheel/wheel.py", "def f():\n import random", "argument"),
    ("core_is_pure", "delayd/core/wheel/wheel.py", "import logging", "edges"),
    ("modules_stay_at_home", "delayd/service.py", "import time", "clock.py"),
    ("modules_stay_at_home", "delayd/service.py", "from aiohttp import web", "delayd/http"),
    ("modules_stay_at_home", "delayd/line/connection.py", "import asyncio", "return"),
    ("modules_stay_at_home", "delayd/journal/segment.py", "import fcntl", "Disk"),
    ("files_are_touched_by_the_disk", "delayd/journal/segment.py", "import os\nos.stat(a)", "Disk"),
    ("files_are_touched_by_the_disk", "delayd/service.py", "import os as o\no.fsync(3)", "Disk"),
    ("files_are_touched_by_the_disk", "delayd/service.py", "from os import rename", "Disk"),
    ("files_are_touched_by_the_disk", "delayd/line/server.py", "open('x')", "Disk"),
    ("files_are_touched_by_the_disk", "delayd/cli/main.py", "Path('x').read_bytes()", "Disk"),
    ("module_state_is_constant", "delayd/service.py", "SEEN = {1: 2}", "MappingProxyType"),
    ("module_state_is_constant", "delayd/service.py", "SEEN: list[int] = [1]", "tuple"),
    ("module_state_is_constant", "delayd/service.py", "X = [n for n in y]", "tuple"),
    ("module_state_is_constant", "delayd/service.py", "X = array.array('Q', y)", "tuple"),
    ("module_state_is_constant", "delayd/service.py", "SEEN: Final = {}", "constructs"),
    ("module_state_is_constant", "delayd/service.py", "SEEN: Final = set()", "constructs"),
    ("module_state_is_constant", "delayd/service.py", "X: Final = defaultdict(int)", "constructs"),
    ("module_state_is_constant", "delayd/service.py", "def f():\n global x\n x = 1", "constructs"),
    ("functions_fit_a_screen", "benchmarks/line.py", LONG_FUNCTION, "helpers"),
    ("functions_fit_a_screen", "delayd/service.py", f"async {LONG_FUNCTION}", "helpers"),
    ("modules_say_what_they_are_for", "delayd/service.py", "x = 1", "refuses to know"),
)

# path, source: what looks like an offence and is none
LEGAL: Final = (
    ("delayd/cli/main.py", "from delayd import __version__, service"),
    ("delayd/journal/journal.py", "from delayd.core import job\nfrom delayd.core.job import Job"),
    ("delayd/core/engine.py", "from delayd.core.wheel.wheel import TimingWheel\nimport struct"),
    ("delayd/clock.py", "import time"),
    ("delayd/http/server.py", "from aiohttp import web\nimport asyncio"),
    ("delayd/line/server.py", "import asyncio, os\nos.unlink(name)\nos.close(3)\nos.read(3, 8)"),
    ("delayd/journal/disk.py", "import os, fcntl\nos.fsync(3)\nopen('x')"),
    ("delayd/journal/segment.py", "import os.path\nos.path.join(a, b)\ndisk.open(name)"),
    ("delayd/config.py", "open('delayd.toml', 'rb')"),
    ("delayd/core/job.py", "__all__ = ['Job']\nNAMES = ('a',)\nTABLE: Final = {'a': 1}\nX = f()"),
    (
        "delayd/core/job.py",
        "def f():\n    seen = []\nclass C:\n    def __init__(self): self.x = {}",
    ),
    ("tests/conftest.py", "import time\nopen('x')\nSEEN = []"),
    ("delayd/service.py", LONG_FUNCTION.removesuffix("    pass\n")),
)


@pytest.mark.parametrize("path", PATHS)
def test_the_module_keeps_the_house_rules(path: str) -> None:
    module = Module.parse(path, (ROOT / path).read_text(encoding="utf-8"))
    complaints = [f"{path}, {words}" for rule in RULES for words in rule(module)]
    assert not complaints, "\n" + "\n".join(complaints)


@pytest.mark.parametrize(("rule", "path", "source", "advice"), OFFENCES)
def test_a_planted_offence_is_caught(rule: str, path: str, source: str, advice: str) -> None:
    (complaint,) = complaints_of(rule, path, source)
    assert complaint.startswith("line ")
    assert advice in complaint


@pytest.mark.parametrize(("path", "source"), LEGAL)
def test_what_only_looks_like_an_offence_passes(path: str, source: str) -> None:
    module = Module.parse(path, f'"""What it is for."""\n{source}')
    assert [words for rule in RULES for words in rule(module)] == []


def test_every_rule_has_a_planted_offence() -> None:
    assert {rule.__name__ for rule in RULES} == {rule for rule, *_ in OFFENCES}


def test_nothing_that_may_be_imported_imports_back() -> None:
    def below(part: str) -> Iterator[str]:
        for name in house_rules.MAY_IMPORT[part]:
            lower = name.split(".")[0]
            yield lower
            yield from below(lower)

    for part in house_rules.MAY_IMPORT:
        assert part not in set(below(part))


def complaints_of(rule: str, path: str, source: str) -> list[str]:
    function: Callable[[Module], Iterator[str]] = getattr(house_rules, rule)
    return list(function(Module.parse(path, source)))
