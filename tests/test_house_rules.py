"""Holds the tree to the house rules, and the rules to a table of planted offences."""

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests import house_rules
from tests.house_rules import RULES, TREE_RULES, Module, Tree

ROOT: Final = Path(__file__).parent.parent
FOLDERS: Final = ("delayd", "tests", "benchmarks")
PATHS: Final = tuple(
    path.relative_to(ROOT).as_posix()
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*.py"))
)

DOCUMENTS: Final = ("README.md", "CHANGELOG.md", "docs/**/*.md", "tests/*.md", "benchmarks/*.md")
TWO_CAUGHT: Final = (
    "def f():\n try: g()\n except KeyError as error: pass\n except OSError as error: pass"
)
LONG_FUNCTION: Final = "def long() -> None:\n" + "    pass\n" * 60

# rule, path of the offender, its source, a word of the advice
OFFENCES: Final = (
    ("imports_go_downwards", "delayd/core/job.py", "import delayd.journal.format", "downwards"),
    ("imports_go_downwards", "delayd/journal/x.py", "from delayd.core import wheel", "Pass"),
    ("imports_go_downwards", "delayd/service.py", "def f():\n import delayd.cli.main", "downwards"),
    ("imports_go_downwards", "delayd/attic/x.py", "", "MAY_IMPORT"),
    ("core_is_pure", "delayd/core/wheel/wheel.py", "import os.path", "return"),
    ("core_is_pure", "delayd/core/wheel/wheel.py", "def f():\n import uuid", "drawn"),
    ("modules_stay_at_home", "delayd/service.py", "import time", "clock.py"),
    ("modules_stay_at_home", "delayd/service.py", "from aiohttp import web", "delayd/http"),
    ("files_are_touched_by_the_disk", "delayd/journal/segment.py", "import os\nos.stat(a)", "Disk"),
    ("files_are_touched_by_the_disk", "delayd/service.py", "import os as o\no.fsync(3)", "Disk"),
    ("files_are_touched_by_the_disk", "delayd/service.py", "from os import rename", "Disk"),
    ("files_are_touched_by_the_disk", "delayd/line/server.py", "open('x')", "Disk"),
    ("files_are_touched_by_the_disk", "delayd/cli/main.py", "Path('x').read_bytes()", "Disk"),
    ("module_state_is_constant", "delayd/service.py", "SEEN = {1: 2}", "MappingProxyType"),
    ("module_state_is_constant", "delayd/service.py", "SEEN: list[int] = [1]", "tuple"),
    ("module_state_is_constant", "delayd/service.py", "X = array.array('Q', y)", "tuple"),
    ("module_state_is_constant", "delayd/service.py", "SEEN: Final = {}", "constructs"),
    ("module_state_is_constant", "delayd/service.py", "SEEN: Final = set()", "constructs"),
    ("module_state_is_constant", "delayd/service.py", "X: Final = defaultdict(int)", "constructs"),
    ("functions_fit_a_screen", "benchmarks/push.py", LONG_FUNCTION, "helpers"),
    ("functions_fit_a_screen", "delayd/service.py", f"async {LONG_FUNCTION}", "helpers"),
    ("caught_names_have_one_class", "delayd/commit.py", TWO_CAUGHT, "two names"),
    ("no_pattern_is_possessive", "delayd/text.py", "import re\nre.compile(rb'[a]*+')", "unroll"),
    ("no_pattern_is_possessive", "delayd/text.py", "import re\nre.match('(?>a|b)', c)", "unroll"),
    ("assertions_can_be_left_out", "delayd/http/x.py", "assert all(delete(a, b))", "before"),
    ("assertions_can_be_left_out", "delayd/text.py", "assert (n := m)", "before"),
    ("assertions_can_be_left_out", "delayd/core/apply.py", "assert a == b", "raise"),
)

# rule, modules (path, source), what offends
TREE_OFFENCES: Final = (
    (
        "no_circle_of_imports",
        {
            "delayd/core/a.py": "from delayd.core import b",
            "delayd/core/b.py": "if TYPE_CHECKING:\n from delayd.core.c import C",
            "delayd/core/c.py": "def f():\n import delayd.core.a",
        },
        ["delayd.core.a", "delayd.core.b", "delayd.core.c"],
    ),
    (
        "no_class_inherits_from_ours",
        {
            "delayd/core/a.py": "class A: pass",
            "delayd/core/b.py": "from delayd.core import a\nclass B(a.A): pass\nclass C(B): pass",
        },
        ["B(A)", "C(B)"],
    ),
    (
        "one_class_name_once",
        {
            "delayd/core/a.py": "class A: pass\nclass B: pass",
            "delayd/line/b.py": "def f():\n    class A: pass",
        },
        ["A"],
    ),
    (
        "private_names_stay_in_their_module",
        {"delayd/core/a.py": "class A:\n def f(self, b):\n  return b._c + self._d"},
        ["delayd/core/a.py _c", "delayd/core/a.py _d"],
    ),
    (
        "private_names_stay_in_their_module",
        {"delayd/core/a.py": "def f(b):\n return getattr(b, '_e', 0)"},
        ["delayd/core/a.py _e"],
    ),
    (
        "private_names_stay_in_their_module",
        {"delayd/core/a.py": "from aiohttp import _a\nfrom aiohttp._b import c"},
        ["delayd/core/a.py _a", "delayd/core/a.py _b"],
    ),
)

# modules that look like offenders of the tree's rules
LEGAL_TREES: Final = (
    {
        "delayd/core/errors.py": "class R(Exception): pass\nclass S(R): pass\nclass T(S): pass",
        "delayd/http/f.py": "class F(msgspec.Struct): pass\nclass G(F, kw_only=True): pass",
        "delayd/net/x.py": "class P(Protocol): pass\nclass Q(P): pass\nclass E(enum.Enum): pass",
    },
    {
        "delayd/core/a.py": "from delayd.core import b, c",
        "delayd/core/b.py": "from delayd.core.c import C\nimport delayd",
        "delayd/core/c.py": "import struct",
        "delayd/__init__.py": "",
    },
    {
        "delayd/core/a.py": "class A:\n __slots__ = ('_x',)\n"
        "def f(a, n):\n    a._x = n\n    return n._replace(b=1), a.__class__, os._exit"
    },
)

# path, source: what looks like an offence and is none
LEGAL: Final = (
    ("delayd/cli/main.py", "from delayd import __version__, service"),
    ("delayd/access/x.py", "from delayd.net import peers\nfrom delayd.net.peers import Peer"),
    ("delayd/core/engine.py", "from delayd.core.wheel.wheel import TimingWheel\nimport struct"),
    ("delayd/clock.py", "import time"),
    ("delayd/http/server.py", "from aiohttp import web\nimport asyncio"),
    ("delayd/line/server.py", "import asyncio, os\nos.unlink(name)\nos.close(3)\nos.read(3, 8)"),
    ("delayd/journal/disk.py", "import os, fcntl\nos.fsync(3)\nopen('x')"),
    ("delayd/journal/segment.py", "import os.path\nos.path.join(a, b)\ndisk.open(name)"),
    ("delayd/bounded_files.py", "open('delayd.toml', 'rb')"),
    ("delayd/core/job.py", "__all__ = ['Job']\nNAMES = ('a',)\nTABLE: Final = {'a': 1}\nX = f()"),
    (
        "delayd/core/job.py",
        "def f():\n    seen = []\nclass C:\n    def __init__(self): self.x = {}",
    ),
    ("tests/conftest.py", "import time\nopen('x')\nSEEN = []"),
    ("delayd/http/x.py", "done = delete(a, b)\nassert all(done) and len(a.items()) == 1"),
    ("delayd/service.py", LONG_FUNCTION.removesuffix("    pass\n")),
    ("delayd/text.py", "import re\nX = re.compile(r'[]*+]+ \\++ [^*+]*')"),
)


@pytest.fixture(autouse=True, scope="module")
def _no_collections() -> Iterator[None]:
    """A tree has no cycles, and a collection of garbage would go through all of it."""
    gc.disable()
    yield
    gc.enable()


def broken(module: Module) -> list[str]:
    return [f"{module.path}, {words}" for rule in RULES for words in rule(module)]


def read(path: str) -> Module:
    return Module(path, (ROOT / path).read_text(encoding="utf-8"))


@pytest.mark.parametrize("folder", ["tests/", "benchmarks/"])
def test_the_modules_keep_the_house_rules(folder: str) -> None:
    assert not [words for path in PATHS if path.startswith(folder) for words in broken(read(path))]


def test_the_tree_keeps_the_house_rules() -> None:
    tree = Tree(read(path) for path in PATHS if path.startswith("delayd/"))
    assert not [words for module in tree.modules.values() for words in broken(module)]
    assert not [words for rule in TREE_RULES for words in rule(tree)]


def test_the_documents_keep_to_their_columns() -> None:
    for path in (path for pattern in DOCUMENTS for path in ROOT.glob(pattern)):
        assert not [*house_rules.documents_keep_to_their_columns(path.read_text("utf-8"))], path


@pytest.mark.parametrize(("rule", "path", "source", "advice"), OFFENCES)
def test_a_planted_offence_is_caught(rule: str, path: str, source: str, advice: str) -> None:
    function: Callable[[Module], Iterator[str]] = getattr(house_rules, rule)
    (complaint,) = function(Module(path, source))
    assert complaint.startswith("line ")
    assert advice in complaint


@pytest.mark.parametrize(("path", "source"), LEGAL)
def test_what_only_looks_like_an_offence_passes(path: str, source: str) -> None:
    assert broken(Module(path, source)) == []


@pytest.mark.parametrize(("rule", "sources", "what"), TREE_OFFENCES)
def test_a_planted_offence_of_the_tree_is_caught(
    rule: str, sources: dict[str, str], what: list[str]
) -> None:
    function: house_rules.TreeRule = getattr(house_rules, rule)
    assert sorted(found.split(": ")[0] for found in function(tree_of(sources))) == what


@pytest.mark.parametrize("sources", LEGAL_TREES)
def test_a_tree_that_only_looks_like_an_offender_passes(sources: dict[str, str]) -> None:
    assert [found for rule in TREE_RULES for found in rule(tree_of(sources))] == []


def test_a_long_line_of_a_document_is_caught() -> None:
    long = "word " * 30
    free = f"| {long} |\n```\n{long}\n```\n[{long}](x.md)\nhttps://{long}\n"
    (complaint,) = house_rules.documents_keep_to_their_columns(f"{free}{long}\n")
    assert complaint.startswith("line 7:")


def test_every_rule_has_a_planted_offence() -> None:
    assert {rule.__name__ for rule in RULES} == {rule for rule, *_ in OFFENCES}
    assert {rule.__name__ for rule in TREE_RULES} == {rule for rule, *_ in TREE_OFFENCES}


def test_nothing_that_may_be_imported_imports_back() -> None:
    def below(part: str) -> Iterator[str]:
        for name in house_rules.MAY_IMPORT[part].split():
            lower = name.split(".")[0]
            yield lower
            yield from below(lower)

    for part in house_rules.MAY_IMPORT:
        assert part not in set(below(part))


def tree_of(sources: dict[str, str]) -> Tree:
    return Tree(Module(path, source) for path, source in sources.items())
