"""Breaks the code in places drawn from a seed, and tells which of the breaks no test notices.

    make mutants                                # some of each room, seed 1
    make mutants ARGS='core journal --count 40 --seed 7'

A room is a folder of `delayd`. A place is a line of code in a function; of what can be broken there
one thing is: a comparison, an operator, a number, a branch, a statement, an `await`, a returned
value, a field, the order of two arguments. Each break is tried in a copy of the checkout: first on
the tests that have the module's name, then on the folder of its room, until one fails. What all of
them pass is printed as a diff. Look at each: tests of another folder may notice it, or it changes
nothing that anybody could see.
"""

import argparse
import ast
import difflib
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
ROOMS: Final = ("core", "journal", "line", "http", "push", "schedules", "client")
TEST_S_MAX: Final = 60
"""A broken loop may never end."""

Code = ast.stmt | ast.expr
INSTEAD: Final = dict(
    pair.split(" -> ")
    for pair in [
        "< -> <=",
        "<= -> <",
        "> -> >=",
        ">= -> >",
        "== -> !=",
        "!= -> ==",
        "in -> not in",
        "not in -> in",
        "is -> is not",
        "is not -> is",
        "+ -> -",
        "- -> +",
        "* -> +",
        "// -> *",
        "% -> //",
        "& -> |",
        "| -> &",
        "<< -> >>",
        ">> -> <<",
    ]
)
"""Comparisons and operators, and what is there instead."""


class Break(NamedTuple):
    """Bytes of a file, and what is there instead."""

    start: int
    end: int
    text: str


class Source:
    """A file, and what can be broken on each of its lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.content = (ROOT / path).read_bytes()
        self._starts = [0]
        for line in self.content.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self.lines: dict[int, list[Break]] = {}
        """Each line of code in a function; on some there is nothing to break."""
        for node in ast.walk(ast.parse(self.content)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._take(node)

    def _take(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        has_docstring = ast.get_docstring(function, clean=False) is not None
        nodes = [node for part in function.body[has_docstring:] for node in ast.walk(part)]
        fields = sorted({own_field(node) for node in nodes} - {""})
        for node in nodes:
            if isinstance(node, ast.stmt | ast.expr):
                self.lines.setdefault(node.lineno, []).extend(self._breaks(node, fields))

    def _breaks(self, node: Code, fields: list[str]) -> Iterator[Break]:
        if isinstance(node, ast.stmt):
            yield from self._broken_statement(node)
            return
        for text in self._broken_expression(node):
            yield self._at(node, text)
        if isinstance(node, ast.Call) and not node.keywords:
            match node.args:
                case [one, two] if not isinstance(one, ast.Starred | ast.GeneratorExp):
                    swapped = f"{self._text(two)}, {self._text(one)}"
                    yield Break(self._at(one, "").start, self._at(two, "").end, swapped)
        if (field := own_field(node)) and len(fields) > 1:
            another = fields[(fields.index(field) + 1) % len(fields)]
            yield self._at(node, f"self.{another}")

    def _broken_statement(self, node: ast.stmt) -> Iterator[Break]:
        match node:
            case ast.Expr(ast.Call() | ast.Await()) | ast.Raise() | ast.Delete():
                yield self._at(node, "pass")
            case ast.AugAssign() | ast.Assign([ast.Attribute() | ast.Subscript(), *_]):
                yield self._at(node, "pass")
            case ast.Return(ast.expr() as value):
                yield self._at(value, "None")
            case ast.Continue():
                yield self._at(node, "break")
            case ast.If() | ast.While():
                yield self._at(node.test, f"(not ({self._text(node.test)}))")

    def _broken_expression(self, node: ast.expr) -> Iterator[str]:
        match node:
            case ast.Compare(left, [operator], [right]):
                yield f"{self._text(left)} {INSTEAD[sign(operator)]} {self._text(right)}"
            case ast.BoolOp(operator, values):
                word = " or " if isinstance(operator, ast.And) else " and "
                yield word.join(f"({self._text(value)})" for value in values)
            case ast.UnaryOp(ast.Not(), operand):
                yield f"bool({self._text(operand)})"
            case ast.BinOp(left, operator, right) if sign(operator) in INSTEAD:
                yield f"{self._text(left)} {INSTEAD[sign(operator)]} {self._text(right)}"
            case ast.Constant(bool() as value):
                yield str(not value)
            case ast.Constant(int() as value):
                yield str(value + 1)
            case ast.Await(value):
                yield self._text(value)

    def _at(self, node: Code, text: str) -> Break:
        end_line, end_column = node.end_lineno, node.end_col_offset
        assert end_line is not None
        assert end_column is not None
        start = self._starts[node.lineno - 1] + node.col_offset
        return Break(start, self._starts[end_line - 1] + end_column, text)

    def _text(self, node: Code) -> str:
        at = self._at(node, "")
        return self.content[at.start : at.end].decode()

    def broken(self, how: Break) -> bytes:
        return self.content[: how.start] + how.text.encode() + self.content[how.end :]


def sign(operator: ast.cmpop | ast.operator) -> str:
    """How a comparison or an operator is written."""
    a = ast.Name("a")
    if isinstance(operator, ast.cmpop):
        return ast.unparse(ast.Compare(a, [operator], [a]))[2:-2]
    return ast.unparse(ast.BinOp(a, operator, a))[2:-2]


def own_field(node: ast.AST) -> str:
    """The name of a field of `self` that is read; nothing for anything else."""
    match node:
        case ast.Attribute(ast.Name("self"), str() as name, ast.Load()):
            return name
    return ""


def drawn(room: str, count: int, seed: int) -> Iterator[tuple[Source, bytes]]:
    """Yield so many files of the room, each broken in one place."""
    sources = [
        Source(path.relative_to(ROOT)) for path in sorted((ROOT / "delayd" / room).rglob("*.py"))
    ]
    places = [(source, line) for source in sources for line in sorted(source.lines)]
    rng = random.Random(f"{seed} {room}")
    rng.shuffle(places)
    for source, line in places:
        breaks = source.lines[line]
        content = source.broken(rng.choice(breaks)) if breaks else source.content
        if content == source.content or not is_valid(content):
            continue
        yield source, content
        count -= 1
        if not count:
            break


def is_valid(content: bytes) -> bool:
    try:
        compile(content, "", "exec")
    except SyntaxError:
        return False
    return True


def is_noticed(tree: Path, path: Path, room: str) -> bool:
    """Tell whether a test fails: one of the module, or any of its room."""
    named = sorted((tree / "tests" / room).rglob(f"test_{path.stem}*.py"))
    for tests in ([str(each) for each in named], [f"tests/{room}"]):
        words = ["-q", "-x", "-p", "no:cacheprovider", "--timeout", str(TEST_S_MAX), *tests]
        if (
            tests
            and subprocess.run(
                [sys.executable, "-m", "pytest", *words],
                cwd=tree,
                env={**os.environ, "PYTHONPATH": str(tree)},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
            ).returncode
        ):
            return True
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description="Break the code, and see what no test notices.")
    parser.add_argument("rooms", nargs="*", default=ROOMS, metavar="ROOM", help=", ".join(ROOMS))
    parser.add_argument("--count", type=int, default=10, help="breaks in each room (default: 10)")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    noticed: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "checkout"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".*", "__pycache__", "build"))
        for room in chosen.rooms:
            if is_noticed(tree, Path(room), room):
                sys.exit(f"the tests of {room} fail with nothing broken")
            for source, content in drawn(room, chosen.count, chosen.seed):
                (tree / source.path).write_bytes(content)
                found = is_noticed(tree, source.path, room)
                (tree / source.path).write_bytes(source.content)
                noticed[room] += found
                before, after = (text.decode().splitlines() for text in (source.content, content))
                path = str(source.path)
                diff = [*difflib.unified_diff(before, after, path, n=0, lineterm="")]
                print(
                    "noticed" if found else "NOT NOTICED", diff[0], *diff[2:], sep="\n", flush=True
                )
            print(f"{room}: {noticed[room]} of {chosen.count} noticed (seed {chosen.seed})")


if __name__ == "__main__":
    main()
