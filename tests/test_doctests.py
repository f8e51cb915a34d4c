"""The examples in docstrings are true.

Read from the sources, because a compiled module has no docstrings.
"""

import ast
import doctest
import importlib
from pathlib import Path

import pytest

import delayd

ROOT = Path(delayd.__file__).parent
HERE = Path(__file__).parent
BENCHMARKS = HERE.parent / "benchmarks"
RIGS = (HERE / "rigs" / "clock.py", HERE / "rigs" / "disk.py")
SOURCES = (*ROOT.rglob("*.py"), *BENCHMARKS.rglob("*.py"), *RIGS)
PATHS = [path for path in sorted(SOURCES) if ">>> " in path.read_text(encoding="utf-8")]
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: "/".join(path.parts[-2:]))
def test_the_examples_of_a_module_are_true(path: Path) -> None:
    above = ROOT.parent if path.is_relative_to(ROOT) else HERE.parent
    name = ".".join(path.relative_to(above).with_suffix("").parts)
    module = importlib.import_module(name)
    runner = doctest.DocTestRunner()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, DOCUMENTED) and ">>> " in (text := ast.get_docstring(node) or ""):
            line = node.body[0].lineno - 1
            runner.run(
                doctest.DocTestParser().get_doctest(text, vars(module), name, str(path), line)
            )
    assert runner.tries
    assert not runner.failures
