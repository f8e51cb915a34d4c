"""The house rules as functions: a module's path and its syntax tree in, complaints out.

The rules are those of docs/internals/architecture.md: what imports what, who reads clocks and
touches files, how long a function may get, where state lives. A complaint says what to do instead,
so that someone new learns the rule from the test that fails. `test_house_rules.py` applies them to
the tree, and to planted offences, one at least for each rule.

Example: `import os` in `delayd/core/wheel/wheel.py` on line 3 yields "line 3: core is pure and
never imports os: return what is to be done; the shells do it".

The rules do not know types and values: what ruff or mypy can check is left to them.
"""

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from types import MappingProxyType
from typing import Final, TypeVar

FUNCTION_LINES_MAX: Final = 60
DOCUMENT_COLUMNS_MAX: Final = 120

GROUND: Final = "limits durations moments text fields json_text"
# Small modules that every shell may lean on.
TOOLS: Final = f"{GROUND} build_kind clock compat exits bounded_files log_lines systemd"
FRONT_END: Final = f"{TOOLS} access core net schedules"
# For each part of delayd, the parts below it that it may import, from the ground upwards. A name
# with a dot allows that module alone. Parts may always import themselves, and `delayd` for its
# version.
MAY_IMPORT: Final[MappingProxyType[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(("__init__", "limits", "build_kind", "client", "ui"), ""),
        **dict.fromkeys(("durations", "text", "json_text"), "limits"),
        "moments": "limits durations",
        "fields": "limits durations moments text",
        "clock": f"{GROUND} core.times",
        **dict.fromkeys(("compat", "exits", "bounded_files", "log_lines", "systemd"), GROUND),
        "core": GROUND,
        "log": f"{GROUND} exits",
        "log_copy": f"{TOOLS} core journal.snapshot log",
        "journal": f"{TOOLS} log",
        "postgres": f"{TOOLS} journal.format journal.snapshot log",
        "net": f"{GROUND} clock bounded_files log_lines",
        "access": f"{TOOLS} config core.errors core.name_patterns core.names core.policy"
        " core.targets net",
        "config": f"{TOOLS} core net schedules.definition",
        **dict.fromkeys(("line", "http"), FRONT_END),
        "push": f"{FRONT_END} config",
        "schedules": f"{GROUND} bounded_files core",
        "metrics": f"{TOOLS} core log",
        "commit": f"{TOOLS} config core.stats log",
        "snapshots": f"{TOOLS} core log",
        "recover": f"{TOOLS} config core journal log postgres",
        "standby": f"{FRONT_END} config http log metrics notices recover",
        "turns": f"{TOOLS} commit core line log net.poller",
        "loop": f"{GROUND} clock",
        "notices": f"{FRONT_END} log",
        "figures": f"{FRONT_END} commit http line log metrics push turns",
        "service": f"{FRONT_END} commit config figures http line log loop notices push recover"
        " snapshots standby turns",
        # Bridges: the client, for a framework.
        **dict.fromkeys(("dramatiq", "kombu", "outbox"), "client"),
        "django": "client outbox",
        "testing": f"{FRONT_END} client config http line.stats metrics push",
        "binlog": f"{GROUND} core journal",
        "cli": f"{FRONT_END} binlog client config journal log log_copy http.form_reader"
        " http.problems http.request_forms outbox postgres push recover service testing",
        "__main__": "cli",
    }
)

# What would make the core depend on more than its arguments, beside `HOMES`; by what to do instead.
IMPURE: Final = MappingProxyType(
    {
        "take `now_ms` as an argument": "datetime",
        "take the drawn value as an argument": "secrets uuid",
        "return what is to be done; the shells do it": "io os pathlib socket subprocess",
        "return `next_deadline()`": "select selectors",
        "offer a method; the service calls it": "signal",
        "stay on one thread": "concurrent multiprocessing threading",
        "return a value or raise; the edges log": "logging",
    }
)

# Modules of the standard library and of others that have a home, and only one.
HOMES: Final = MappingProxyType(
    {
        "time": (
            "delayd/clock.py delayd/client/ delayd/dramatiq.py delayd/kombu.py delayd/outbox/",
            "take `now_ms` as an argument, or a Clock in a shell",
        ),
        "aiohttp": ("delayd/http/ delayd/push/", "put HTTP into delayd/http or delayd/push"),
        "asyncio": (
            (
                "delayd/service.py delayd/standby.py delayd/line/server.py delayd/http/"
                " delayd/push/ delayd/client/ delayd/testing/"
            ),
            "return what should happen, and let the service or a server wait for it",
        ),
        **dict.fromkeys(
            ("fcntl", "mmap", "shutil", "tempfile"),
            (
                "delayd/journal/disk.py delayd/testing/ delayd/cli/machine.py",
                "use a Disk of journal/disk.py",
            ),
        ),
    }
)

DISK: Final = "delayd/journal/disk.py"
KERNEL_SYNC: Final = "delayd/journal/aio.py"
# Calls that read, write or move file contents. Not among them: what the shells need for sockets,
# pipes and processes (os.close, os.read, os.write, os.unlink and os.chmod of a socket's name, ...).
FILE_CALLS: Final = frozenset(
    "os." + name
    for name in (
        *("open", "fdopen", "fsync", "fdatasync", "sync", "truncate", "ftruncate", "lseek"),
        *("pread", "preadv", "pwrite", "pwritev", "readv", "writev", "sendfile", "copy_file_range"),
        *("posix_fallocate", "posix_fadvise", "rename", "renames", "replace", "link", "symlink"),
        *("mkdir", "makedirs", "rmdir", "removedirs", "listdir", "scandir", "walk", "fwalk"),
    )
) | {"io.open"}
PATH_METHODS: Final = frozenset(("read_bytes", "read_text", "write_bytes", "write_text"))
# Who else may touch files, and why.
FILE_READERS: Final = MappingProxyType(
    {
        "delayd/access/": "reads tokens, writes the days of their use",
        "delayd/net/tls.py": "tells which file of a certificate cannot be read",
        "delayd/bounded_files.py": "reads files that a path names, for those above it",
        "delayd/clock.py": "reads how long its thread waited for a processor",
        "delayd/loop.py": "tells the kernel to end its waits on time",
        "delayd/http/ui_files.py": "reads the files of the dashboard, once",
        "delayd/metrics.py": "reads what the kernel counts of this process",
        "delayd/cli/work.py": "has a body in memory that its command reads as a file",
        "delayd/cli/machine.py": "reads what the kernel says of the machine, and times its disk",
        "delayd/cli/terminal.py": "opens the file that swallows everything",
        "delayd/client/reloader.py": "looks when the files of a program were changed",
        "delayd/testing/": "makes and clears the directories of daemons under test",
    }
)

# What mypyc compiles.
COMPILED: Final = (
    *("delayd/core/", "delayd/line/", "delayd/journal/"),
    *("delayd/clock.py", "delayd/commit.py", "delayd/log.py", "delayd/turns.py"),
    "delayd/net/poller.py",
)

REPLAYED: Final = ("delayd/core/apply.py",)
"""What tells a record that does not fit: a replay relies on it, whatever Python leaves out."""
ONLY_LOOK: Final = frozenset(
    (
        *("all", "any", "bool", "isinstance", "len", "map", "max", "min", "set", "sorted", "sum"),
        *("Counter", "get", "items", "keys", "values"),
        *("can_begin", "find", "leases_are_caught_up", "may_begin"),
    )
)
"""What an assertion may call: it changes nothing."""

MUTABLE_DISPLAYS: Final = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
MUTABLE_CALLS: Final = frozenset(
    (
        *("list", "dict", "set", "bytearray", "array", "deque", "defaultdict", "Counter"),
        *("OrderedDict", "SortedDict", "SortedList", "SortedSet", "count"),
    )
)


Node = TypeVar("Node", bound=ast.AST)
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Module:
    """A source file; `path` is relative to the root of the project, with slashes."""

    def __init__(self, path: str, source: str) -> None:
        self.path = path
        self.source = source
        self.tree = ast.parse(source)
        self.in_delayd = path.startswith("delayd/")

    @property
    def part(self) -> str:
        """The part of delayd that the module belongs to: a package or a top-level module."""
        return self.path.split("/")[1].removesuffix(".py")

    @cached_property
    def _by_class(self) -> dict[type, list[ast.AST]]:
        found: dict[type, list[ast.AST]] = {}
        ahead: list[ast.AST] = [self.tree]
        for node in ahead:
            found.setdefault(node.__class__, []).append(node)
            for value in node.__dict__.values():
                if isinstance(value, ast.AST):
                    ahead.append(value)
                elif isinstance(value, list):
                    ahead += [each for each in value if isinstance(each, ast.AST)]
        return found

    def every(self, kind: type[Node]) -> "list[Node]":
        """All nodes of a class, which nearly every rule asks for."""
        return self._by_class.get(kind, [])  # type: ignore[return-value]

    @property
    def functions(self) -> list[Function]:
        return [*self.every(ast.FunctionDef), *self.every(ast.AsyncFunctionDef)]


def is_at(path: str, homes: Iterable[str]) -> bool:
    """Whether the path is one of the files, or below one of the folders (which end in a slash)."""
    return any(path == home or (home.endswith("/") and path.startswith(home)) for home in homes)


def imports(module: Module) -> Iterator[tuple[int, str]]:
    """Every imported name with its line: `from a.b import c` is a.b.c; also inside functions."""
    for node in module.every(ast.Import):
        for alias in node.names:
            yield node.lineno, alias.name
    for source in module.every(ast.ImportFrom):
        for alias in source.names:
            yield source.lineno, f"{source.module or ''}.{alias.name}"


def uses(module: Module) -> Iterator[tuple[int, str]]:
    """Every attribute used of an imported module, whatever its local name, and every import."""
    local_names = {
        alias.asname or alias.name: alias.name
        for node in module.every(ast.Import)
        for alias in node.names
    }
    yield from imports(module)
    for node in module.every(ast.Attribute):
        if isinstance(node.value, ast.Name):
            yield node.lineno, f"{local_names.get(node.value.id, '?')}.{node.attr}"


def imports_go_downwards(module: Module) -> Iterator[str]:
    if not module.in_delayd:
        return
    if module.part not in MAY_IMPORT:
        yield (
            f"line 1: `{module.part}` is a new part of delayd: say in MAY_IMPORT (tests/house_rules"
            ".py) what it may import, and in docs/internals/architecture.md what it is for"
        )
        return
    allowed = MAY_IMPORT[module.part].split()
    for line, name in imports(module):
        package, _, target = name.partition(".")
        part = target.split(".")[0]
        if package != "delayd" or part in {"", "__version__", module.part}:
            continue
        if not any(f"{target}.".startswith(f"{below}.") for below in allowed):
            yield (
                f"line {line}: {module.part} may not import delayd.{target}: imports go downwards. "
                f"Below {module.part}: {', '.join(allowed) or 'nothing'}. Pass the object in, or "
                "move what both need further down"
            )


def core_is_pure(module: Module) -> Iterator[str]:
    if not module.path.startswith("delayd/core/"):
        return
    for line, name in imports(module):
        root = name.split(".")[0]
        for instead, impure in IMPURE.items():
            if root in impure.split():
                yield f"line {line}: core is pure and never imports {root}: {instead}"


def modules_stay_at_home(module: Module) -> Iterator[str]:
    if not module.in_delayd:
        return
    for line, name in imports(module):
        root = name.split(".")[0]
        homes, instead = HOMES.get(root, ("delayd/", ""))
        if not is_at(module.path, homes.split()):
            yield f"line {line}: {root} is imported only by {homes}: {instead}"


def files_are_touched_by_the_disk(module: Module) -> Iterator[str]:
    if (
        not module.in_delayd
        or module.path in {DISK, KERNEL_SYNC}
        or is_at(module.path, FILE_READERS)
    ):
        return
    instead = f"only {DISK} touches files: take a Disk, so that tests can make it fail"
    for line, name in uses(module):
        inside_journal = module.path.startswith("delayd/journal/") and name.startswith("os.")
        if name in FILE_CALLS or (inside_journal and not name.startswith("os.path")):
            yield f"line {line}: {name}: {instead}"
    for node in module.every(ast.Call):
        match node.func:
            case ast.Name(id="open"):
                yield f"line {node.lineno}: open(): {instead}"
            case ast.Attribute(attr=method) if method in PATH_METHODS:
                yield f"line {node.lineno}: .{method}(): {instead}"


def module_state_is_constant(module: Module) -> Iterator[str]:
    if not module.in_delayd:
        return
    for statement in module.tree.body:
        if isinstance(statement, ast.Assign):
            targets, is_final = statement.targets, False
        elif isinstance(statement, ast.AnnAssign):
            targets, is_final = [statement.target], "Final" in ast.unparse(statement.annotation)
        else:
            continue
        names = ", ".join(ast.unparse(target) for target in targets)
        if names == "__all__" or not is_mutable(statement.value):
            continue
        if is_empty(statement.value):
            yield (
                f"line {statement.lineno}: {names} starts empty, so somebody fills it: let an "
                "object hold it that someone constructs"
            )
        elif not is_final:
            yield (
                f"line {statement.lineno}: {names} is mutable module state: make it a tuple, a "
                "frozenset or a MappingProxyType, or annotate it `Final` if nobody changes it"
            )


def called_name(value: ast.expr | None) -> str:
    """The last word of what a call calls: `Counter` for `collections.Counter(...)`; else empty."""
    return ast.unparse(value.func).rsplit(".", 1)[-1] if isinstance(value, ast.Call) else ""


def is_mutable(value: ast.expr | None) -> bool:
    return isinstance(value, MUTABLE_DISPLAYS) or called_name(value) in MUTABLE_CALLS


def is_empty(value: ast.expr | None) -> bool:
    match value:
        case ast.List(elts=[]) | ast.Dict(keys=[]) | ast.Call(args=[], keywords=[]):
            return True
        case ast.Call():
            return called_name(value) in {"defaultdict", "count"}
    return False


def assertions_can_be_left_out(module: Module) -> Iterator[str]:
    """`python -O` does; then what an assertion did is not done."""
    if not module.in_delayd:
        return
    for node in module.every(ast.Assert):
        if is_at(module.path, REPLAYED):
            yield f"line {node.lineno}: a replay relies on this check: raise AssertionError"
        for part in ast.walk(node.test):
            if isinstance(part, ast.NamedExpr | ast.Await | ast.Yield):
                does = ast.unparse(part)
            elif isinstance(part, ast.Call) and called_name(part) not in ONLY_LOOK:
                does = f"{called_name(part)}()"
            else:
                continue
            yield (
                f"line {node.lineno}: python -O leaves out {does}: call it before the assertion, "
                "or add it to ONLY_LOOK (tests/house_rules.py) if it changes nothing"
            )


def functions_fit_a_screen(module: Module) -> Iterator[str]:
    for node in module.functions:
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if lines > FUNCTION_LINES_MAX:
            yield (
                f"line {node.lineno}: {node.name} has {lines} lines, more than "
                f"{FUNCTION_LINES_MAX}: keep the branches here, move loops and arithmetic "
                "into helpers"
            )


# Public in spite of their underscore: the methods of named tuples, and what Python itself offers,
# the second row to those who write event loops.
PUBLIC_ANYWAY: Final = frozenset(
    (
        *("_replace", "_asdict", "_fields", "_make", "_field_defaults", "_exit", "_getframe"),
        *("_get_running_loop", "_set_running_loop", "_enter_task", "_leave_task"),
    )
)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and name.strip("_") != ""


def private_uses(module: Module) -> Iterator[str]:
    """Every private name that is used of anything; of `self` too, which may have inherited it."""
    names = [node.attr for node in module.every(ast.Attribute)]
    for node in module.every(ast.ImportFrom):
        names += [*(node.module or "").split("."), *(alias.name for alias in node.names)]
    for call in module.every(ast.Call):
        match call:
            case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value=str(name)), *_]):
                names.append(name)
    return filter(is_private, names)


def defined_names(module: Module) -> Iterator[str]:
    """Every name that the module gives to something: at its top, in a class, to `self`."""
    yield from (node.name for node in module.functions)
    yield from (node.name for node in module.every(ast.ClassDef))
    yield from (node.id for node in module.every(ast.Name) if isinstance(node.ctx, ast.Store))
    for node in module.every(ast.Attribute):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                yield name
    for assigned in module.every(ast.Assign):
        match assigned:
            case ast.Assign(targets=[ast.Name(id="__slots__")], value=slots):
                yield from (
                    str(each.value) for each in ast.walk(slots) if isinstance(each, ast.Constant)
                )


def caught_names_have_one_class(module: Module) -> Iterator[str]:
    """A compiled variable takes the class of its first handler only."""
    if not is_at(module.path, COMPILED):
        return
    for function in module.functions:
        classes: dict[str, str] = {}
        for node in ast.walk(function):
            if not isinstance(node, ast.ExceptHandler) or not node.name or not node.type:
                continue
            caught = ast.unparse(node.type)
            first = classes.setdefault(node.name, caught)
            if first != caught:
                yield (
                    f"line {node.lineno}: {node.name} is {first} and {caught} in one function: "
                    "use two names, since a compiled variable has one class"
                )


_CHARACTER_SET: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_POSSESSIVE: Final = re.compile(r"[*+?}]\+|\(\?>")


def no_pattern_is_possessive(module: Module) -> Iterator[str]:
    """Debian 12 has Python 3.11.2, and before 3.11.5 possessive repeats match wrongly."""
    calls = module.every(ast.Call) if "re." in module.source else []
    for node in calls:
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="re"))):
                parts = ast.walk(node)
            case _:
                continue
        for part in parts:
            text = part.value if isinstance(part, ast.Constant) else None
            if isinstance(text, bytes):
                text = text.decode("latin-1")
            if isinstance(text, str) and _POSSESSIVE.search(_CHARACTER_SET.sub("c", text)):
                yield (
                    f"line {node.lineno}: {text!r} is possessive: unroll the repeat, since Python "
                    "before 3.11.5 matches it wrongly"
                )


RULES: Final[tuple[Callable[[Module], Iterator[str]], ...]] = (
    imports_go_downwards,
    core_is_pure,
    modules_stay_at_home,
    files_are_touched_by_the_disk,
    module_state_is_constant,
    functions_fit_a_screen,
    caught_names_have_one_class,
    no_pattern_is_possessive,
    assertions_can_be_left_out,
)

# --- What concerns the whole tree ----------------------------------------------------------------


class Tree:
    """All modules of delayd, by dotted name: `delayd.core.store`; a package has its own name."""

    def __init__(self, modules: Iterable[Module]) -> None:
        self.modules = {
            module.path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): module
            for module in modules
            if module.in_delayd
        }

    def imported_modules(self, name: str) -> set[str]:
        """The modules of delayd that a module imports, also for types alone and in functions."""
        found = set()
        for _line, target in imports(self.modules[name]):
            words = target.split(".")
            while words and ".".join(words) not in self.modules:
                words.pop()
            found.add(".".join(words))
        return found - {"", name}

    def classes(self) -> Iterator[tuple[str, ast.ClassDef]]:
        """Every class with its module's name; those within classes and functions as well."""
        for name, module in self.modules.items():
            for node in module.every(ast.ClassDef):
                yield name, node


# A rule of the tree yields "what offends: advice".
TreeRule = Callable[[Tree], Iterator[str]]


def no_circle_of_imports(tree: Tree) -> Iterator[str]:
    below = {name: tree.imported_modules(name) for name in tree.modules}
    for name, imported in below.items():
        if back := sorted(other for other in imported if name in reached(below, other)):
            yield (
                f"{name}: is in a circle of imports with {', '.join(back)}, types included: take a "
                "function or return a value, or move what both need further down"
            )


def reached(below: dict[str, set[str]], name: str) -> set[str]:
    """All that a module imports, and what that imports, and so on."""
    seen = {name}
    ahead = [name]
    while ahead:
        for found in below[ahead.pop()] - seen:
            seen.add(found)
            ahead.append(found)
    return seen


# What a class of delayd may inherit from another one of delayd: families of errors, forms of HTTP,
# protocols. The last base of the family, outside delayd, tells which it is.
OF_LIBRARIES: Final = frozenset({"click.Group"})
"""Bases that are no classes of delayd, though one has that name."""
FAMILIES: Final = ("Exception", "Error", "Struct", "Protocol", "TypedDict")


def no_class_inherits_from_ours(tree: Tree) -> Iterator[str]:
    ours = {node.name: node for _name, node in tree.classes()}

    def family(node: ast.ClassDef) -> str:
        for base in bases(node):
            if base in ours:
                return family(ours[base])
            if base.endswith(FAMILIES):
                return base
        return ""

    for _name, node in tree.classes():
        if OF_LIBRARIES & {*map(ast.unparse, node.bases)}:
            continue
        for base in bases(node):
            if base in ours and base != node.name and not family(node):
                yield (
                    f"{node.name}({base}): inherits from a class of delayd: hold one instead, or "
                    "make the operation a function over the state"
                )


def bases(node: ast.ClassDef) -> list[str]:
    """The last words of what a class inherits from: `Struct` for `msgspec.Struct`."""
    return [ast.unparse(base).split("[")[0].rsplit(".", 1)[-1] for base in node.bases]


def one_class_name_once(tree: Tree) -> Iterator[str]:
    """Once in the daemon, and once in the client, whose errors are named as the daemon's are."""
    places: dict[tuple[bool, str], list[str]] = {}
    for name, node in tree.classes():
        is_client = name.startswith("delayd.client.")
        places.setdefault((is_client, node.name), []).append(name)
    for (_is_client, word), names in places.items():
        if len(names) > 1:
            yield f"{word}: is a class in {', '.join(names)}: call all but one of them otherwise"


def private_names_stay_in_their_module(tree: Tree) -> Iterator[str]:
    for module in tree.modules.values():
        used = set(private_uses(module))
        for name in sorted(used - set(defined_names(module)) - PUBLIC_ANYWAY):
            yield (
                f"{module.path} {name}: is private to another module: use what that module offers, "
                "give the name a public one, or bring the two modules together"
            )


TREE_RULES: Final[tuple[TreeRule, ...]] = (
    no_circle_of_imports,
    no_class_inherits_from_ours,
    one_class_name_once,
    private_names_stay_in_their_module,
)

# --- Documents -----------------------------------------------------------------------------------


def documents_keep_to_their_columns(text: str) -> Iterator[str]:
    """Complain of lines that are too long; tables, code and links may be."""
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith(("```", "~~~")):
            is_code = not is_code
        is_free = is_code or line.lstrip().startswith("|") or "](" in line or "://" in line
        if len(line) > DOCUMENT_COLUMNS_MAX and not is_free:
            yield f"line {number}: {len(line)} columns, more than {DOCUMENT_COLUMNS_MAX}: wrap it"
