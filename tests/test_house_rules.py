"""Holds the tree to the house rules, and the rules to the planted offences of house_rules.txt."""

import gc
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

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
LONGEST: Final = "def long() -> None:\n" + "    pass\n" * 59
TABLE: Final = (Path(__file__).parent / "house_rules.txt").read_text(encoding="utf-8")
ROWS: Final = [
    line.split(" | ")
    for line in re.sub(r"\n +", " ", TABLE).splitlines()
    if line and not line.startswith("#")
]
LEGAL: Final = [modules for rule, *modules in ROWS if rule == "legal"]
OFFENCES: Final = [row for row in ROWS if row[0] != "legal"]


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


def written(modules: list[str]) -> list[Module]:
    """The modules of a row."""
    found = []
    for module in modules:
        path, _, source = module.partition(": ")
        source = source.replace("\\n", "\n").replace("\\\\", "\\")
        source = source.replace("LONGEST", LONGEST).replace("LONG", f"{LONGEST}    pass\n")
        found.append(Module(path, source))
    return found


@pytest.mark.parametrize("row", OFFENCES, ids=" | ".join)
def test_a_planted_offence_is_caught(row: list[str]) -> None:
    name, *modules, told = row
    rule: Any = getattr(house_rules, name)
    if rule in TREE_RULES:
        found = rule(Tree(written(modules)))
        assert sorted(complaint.split(": ")[0] for complaint in found) == told.split(", ")
        return
    (module,) = written(modules)
    (complaint,) = rule(module)
    assert complaint.startswith("line ")
    assert told in complaint


@pytest.mark.parametrize("modules", LEGAL, ids=" | ".join)
def test_what_only_looks_like_an_offence_passes(modules: list[str]) -> None:
    assert not [words for module in written(modules) for words in broken(module)]
    assert not [words for rule in TREE_RULES for words in rule(Tree(written(modules)))]


def test_a_long_line_of_a_document_is_caught() -> None:
    long = "word " * 30
    free = f"| {long} |\n```\n{long}\n```\n[{long}](x.md)\nhttps://{long}\n"
    (complaint,) = house_rules.documents_keep_to_their_columns(f"{free}{long}\n")
    assert complaint.startswith("line 7:")


def test_every_rule_has_a_planted_offence() -> None:
    assert {rule.__name__ for rule in (*RULES, *TREE_RULES)} == {name for name, *_ in OFFENCES}


def test_nothing_that_may_be_imported_imports_back() -> None:
    def below(part: str) -> Iterator[str]:
        for name in house_rules.MAY_IMPORT[part].split():
            lower = name.split(".")[0]
            yield lower
            yield from below(lower)

    for part in house_rules.MAY_IMPORT:
        assert part not in set(below(part))
