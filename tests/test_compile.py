"""The build of the compiled delayd: what it compiles, and what it says when it cannot."""

import importlib.util
import sysconfig
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import delayd

ROOT = Path(delayd.__file__).parent.parent
PATH = ROOT / ".ci" / "compile.py"
pytestmark = pytest.mark.skipif(not PATH.exists(), reason="only in a checkout")


@pytest.fixture
def build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compile_delayd", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_hot_packages_are_compiled_and_nothing_of_the_other_ones(build: ModuleType) -> None:
    sources = build.sources(ROOT)
    assert {"delayd/core/store.py", "delayd/journal/journal.py", "delayd/turns.py"} <= {*sources}
    assert {Path(name).parts[1] for name in sources} == {
        *("core", "http", "line", "journal", "net", "clock.py", "commit.py", "durations.py"),
        *("json_text.py", "log.py", "moments.py", "turns.py"),
    }
    of_net = [f"delayd/net/{name}.py" for name in ("deadlines", "poller")]
    assert [name for name in sources if "/net/" in name] == of_net
    of_http = [f"delayd/http/{name}.py" for name in build.OF_HTTP]
    assert [name for name in sources if "/http/" in name] == sorted(of_http)
    assert all((ROOT / name).exists() for name in of_http)
    assert not [name for name in sources if name.endswith("__init__.py")]


def test_a_missing_compiler_is_named(build: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/nowhere/cc -pipe")
    with pytest.raises(build.CannotCompileError, match=r"no '/nowhere/cc' on PATH; install one"):
        build.check_compiler()


def test_missing_header_files_are_named(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CC", "sh")
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    with pytest.raises(build.CannotCompileError, match=r"Python\.h; install them"):
        build.check_compiler()


def test_slices_of_bytes_are_mended_in_the_runtime(build: ModuleType, tmp_path: Path) -> None:
    runtime = tmp_path / "bytes_ops.c"
    runtime.write_text(f"first\n{build.SLICE_BYTES}last\n")
    build.mend_slices(runtime)
    assert runtime.read_text() == f"first\n{build.SLICE_BYTES_MENDED}last\n"
    with pytest.raises(build.CannotCompileError, match=r"bytes_ops\.c of mypyc is not the one"):
        build.mend_slices(runtime)


def test_a_variable_asks_for_a_compiled_wheel(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    for word in ("", "0", "1"):
        monkeypatch.setenv("DELAYD_COMPILED", word)
        assert build.is_wanted() is (word == "1")
    monkeypatch.setenv("DELAYD_COMPILED", "yes")
    with pytest.raises(SystemExit, match="DELAYD_COMPILED is 'yes'; it must be 1 or 0"):
        build.is_wanted()


def test_the_hook_and_make_need_the_same_packages(build: ModuleType) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["dependency-groups"]["compiled"] == list(build.NEEDED)


def test_a_file_that_is_gone_is_gone_from_the_copy(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root, copy = tmp_path / "root", tmp_path / "copy"
    (root / "delayd").mkdir(parents=True)
    for name in ("a.py", "b.py"):
        (root / "delayd" / name).write_text(name)
    monkeypatch.setattr(
        build, "tracked", lambda _: [f"delayd/{path.name}" for path in (root / "delayd").iterdir()]
    )
    build.mirror(root, copy)
    for name in ("a", "b"):
        (copy / "delayd" / f"{name}.cpython-311-x86_64-linux-gnu.so").touch()
    (root / "delayd" / "b.py").unlink()
    build.mirror(root, copy)
    left = sorted(path.name.partition("-")[0] for path in (copy / "delayd").iterdir())
    assert left == ["a.cpython", "a.py"]
