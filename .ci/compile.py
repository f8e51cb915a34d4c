"""Compiles delayd's hot packages with mypyc, from the very source that also runs as it is.

Three ways lead here:

    DELAYD_COMPILED=1 pip install .      the build hook: the wheel gets extension modules
    python .ci/compile.py build/compiled  a copy of this checkout with extension modules beside the
                                          sources, which is what `make compiled` runs
    python .ci/compile.py --check         says whether a C compiler is here, and fails if not

The checkout itself never gets extension modules: Python prefers them to the sources beside them, so
that a change of a source would do nothing, without a word.
"""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

PACKAGES = ("core", "line", "journal")
OF_HTTP = (
    *("admission", "api", "bodies", "long_work", "responses"),
    *("handlers/job_responses", "handlers/leases", "handlers/puts", "handlers/reserve"),
)
MODULES = (
    *("clock.py", "commit.py", "durations.py", "json_text.py", "log.py", "moments.py", "turns.py"),
    *("net/deadlines.py", "net/poller.py"),
    *(f"http/{name}.py" for name in OF_HTTP),
)
GROUP = "delayd"
"""The modules share one library, `delayd__mypyc`, so that they call each other directly."""
NEEDED = ("mypy>=2.4,<2.5", "setuptools>=65")
SLICE_BYTES = "    Py_ssize_t slice_len = endn - startn;\n"
SLICE_BYTES_MENDED = "    Py_ssize_t slice_len = endn > startn ? endn - startn : 0;\n"
"""In mypyc's runtime: a slice of bytes that ends before it begins is empty, and no SystemError."""
OPTIMISATION = "1"
"""gcc's level. 3 takes twice as long and saves 0.3 % of the instructions of a put."""
OR_PURE = "or build without DELAYD_COMPILED=1: then delayd is pure Python"
MYPY_SETTINGS = """\
[mypy]
strict = true
follow_imports = silent
ignore_missing_imports = true
warn_unused_ignores = false
disable_error_code = no-any-return, no-untyped-call, misc
"""


class CannotCompileError(Exception):
    """Something that a compilation needs is missing."""


def check_compiler() -> None:
    """Raise `CannotCompileError` unless a C compiler and Python's header files are here."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(compiler) is None:
        raise CannotCompileError(
            f"a compiled delayd needs a C compiler, and there is no {compiler!r} on PATH; install "
            f"one (Debian: apt install gcc libc6-dev python3-dev), {OR_PURE}"
        )
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    if not header.exists():
        raise CannotCompileError(
            f"a compiled delayd needs Python's header files, and there is no {header}; install "
            f"them (Debian: apt install python3-dev), {OR_PURE}"
        )


def sources(root: Path) -> list[str]:
    """Return the paths of the modules that are compiled, relative to the checkout."""
    package = root / "delayd"
    paths = [path for name in PACKAGES for path in (package / name).rglob("*.py")]
    paths += [package / name for name in MODULES]
    return sorted(str(path.relative_to(root)) for path in paths if path.name != "__init__.py")


def compile_in(root: Path) -> list[Path]:
    """Put the extension modules beside the sources below `root`; return their relative paths."""
    check_compiler()
    settings = root / "mypy.ini"
    settings.write_text(MYPY_SETTINGS, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path[1:])}
    # A process of its own: mypyc reads and writes below the current directory.
    build = [sys.executable, str(Path(__file__).resolve()), "--build-in", str(root)]
    done = subprocess.run(build, cwd=root, env=environment, check=False, capture_output=True)  # noqa: S603
    settings.unlink()
    if done.returncode:
        sys.stderr.buffer.write(done.stdout + done.stderr)
        raise CannotCompileError(f"the compiler failed with {done.returncode}; its output is above")
    ending = sysconfig.get_config_var("EXT_SUFFIX")
    return sorted(path.relative_to(root) for path in root.rglob(f"*{ending}"))


def build_extensions(root: Path) -> None:
    """Run mypyc and the C compiler in the current directory, which is `root`."""
    from mypyc.build import mypycify  # noqa: PLC0415  # not there where nothing is compiled
    from setuptools import Distribution  # noqa: PLC0415
    from setuptools.command.build_ext import build_ext  # noqa: PLC0415

    extensions = mypycify(
        sources(root),
        opt_level=os.environ.get("DELAYD_COMPILED_OPTIMISATION", OPTIMISATION),
        debug_level="0",
        multi_file=True,
        group_name=GROUP,
        target_dir="build",
    )
    mend_slices(Path("build", "bytes_ops.c"))

    class SideBySide(build_ext):
        """Compiles as many files at once as there are processors: they are one library."""

        def build_extensions(self) -> None:
            compile_these = self.compiler.compile

            def compile_all(files: list[str], **how: Any) -> list[str]:  # noqa: ANN401
                with ThreadPoolExecutor(os.cpu_count()) as pool:
                    made = pool.map(lambda file: compile_these([file], **how), files)
                    return [name for names in made for name in names]

            self.compiler.compile = compile_all
            super().build_extensions()

    command = SideBySide(Distribution({"name": "delayd", "ext_modules": extensions}))
    command.inplace = True
    command.ensure_finalized()
    command.run()


def mend_slices(runtime: Path) -> None:
    """Have slices of bytes do in compiled code what they do elsewhere."""
    text = runtime.read_text(encoding="utf-8")
    if text.count(SLICE_BYTES) != 1:
        raise CannotCompileError(f"{runtime.name} of mypyc is not the one that is known; {OR_PURE}")
    runtime.write_text(text.replace(SLICE_BYTES, SLICE_BYTES_MENDED), encoding="utf-8")


def tracked(root: Path) -> list[str]:
    """Return the files of the checkout, without what git ignores."""
    listing = subprocess.run(  # noqa: S603
        ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],  # noqa: S607
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [name for name in listing.split("\0") if name and (root / name).is_file()]


def mirror(root: Path, copy: Path) -> None:
    """Make `copy` equal to the checkout; a file that has not changed keeps its time."""
    names = set(tracked(root))
    for path in [*copy.rglob("*.py"), *copy.rglob("*/*.so")]:
        source = path.with_name(path.name.partition(".")[0] + ".py").relative_to(copy)
        if source.parts[0] != "build" and source.as_posix() not in names:
            path.unlink()
    for name in sorted(names):
        source, target = root / name, copy / name
        if not target.exists() or source.read_bytes() != target.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def hook() -> Any:  # noqa: ANN401  # hatchling is not there when this file is run
    """Return the class of the build hook."""
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface  # noqa: PLC0415

    class CompiledBuildHook(BuildHookInterface):  # type: ignore[type-arg]
        """Adds the extension modules to a wheel when the environment has DELAYD_COMPILED=1."""

        def dependencies(self) -> list[str]:
            """Return what a compilation needs besides the build backend."""
            return list(NEEDED) if is_wanted() else []

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            """Compile a copy of the sources and add what came of it."""
            if version == "editable" or not is_wanted():
                return
            copy = self._copy = Path(tempfile.mkdtemp(prefix="delayd-compiled-"))
            shutil.copytree(Path(self.root, "delayd"), copy / "delayd")
            try:
                made = compile_in(copy)
            except CannotCompileError as error:
                shutil.rmtree(copy)
                sys.exit(f"delayd was not built: {error}")
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
            build_data["force_include"] |= {str(copy / path): str(path) for path in made}

        def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
            """Remove the copy."""
            del version, build_data, artifact_path
            shutil.rmtree(getattr(self, "_copy", ""), ignore_errors=True)

    return CompiledBuildHook


def is_wanted() -> bool:
    """Tell whether the environment asks for a compiled wheel; refuse any word but 0 and 1."""
    word = os.environ.get("DELAYD_COMPILED", "")
    if word not in {"", "0", "1"}:
        sys.exit(f"delayd was not built: DELAYD_COMPILED is {word!r}; it must be 1 or 0")
    return word == "1"


def get_build_hook() -> Any:  # noqa: ANN401
    """Return the hook to hatchling."""
    return hook()


def main(words: list[str]) -> int:
    """Compile a copy of this checkout in the directory that is named."""
    if words[:1] == ["--build-in"]:
        build_extensions(Path(words[1]))
        return 0
    root, copy = Path(__file__).resolve().parent.parent, Path(words[-1]).resolve()
    try:
        check_compiler()
        if words == ["--check"]:
            return 0
        Path(copy, ".compiled").unlink(missing_ok=True)
        mirror(root, copy)
        made = compile_in(copy)
    except CannotCompileError as error:
        print(f"delayd was not compiled: {error}", file=sys.stderr)
        return 1
    Path(copy, ".compiled").touch()
    print(f"compiled {len(made)} modules in {copy}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
