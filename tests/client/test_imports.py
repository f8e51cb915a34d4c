"""Importing the client costs nothing, and brings nothing of the daemon."""

import ast
import subprocess
import sys
from pathlib import Path

import delayd.client
import delayd.testing
from delayd.client import errors


def modules_after(statement: str) -> set[str]:
    program = f"{statement}\nimport sys; print('\\n'.join(sys.modules))"
    ran = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    return set(ran.stdout.split())


def test_importing_the_package_loads_fewer_modules_than_socket() -> None:
    assert len(modules_after("import delayd.client")) < len(modules_after("import socket"))


def test_a_client_needs_nothing_of_the_daemon_and_no_other_package() -> None:
    loaded = modules_after("from delayd.client import Client\nClient('http://127.0.0.1:1')")
    ours = {name for name in loaded if name.startswith("delayd")}
    assert all(name == "delayd" or name.startswith("delayd.client") for name in ours)
    assert not loaded & {"aiohttp", "click", "msgspec", "orjson", "sortedcontainers", "asyncio"}
    assert not loaded & {"ssl", "random", "urllib.parse", "base64", "dataclasses"}
    assert not loaded & {"delayd.client.line_calls", "delayd.client.batches"}


def test_every_name_that_types_promise_is_there() -> None:
    path = Path(str(delayd.client.__file__))
    tree = ast.parse(path.read_text(encoding="utf-8"))
    promised = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("delayd.client")
        for alias in node.names
    }
    assert promised == set(delayd.client.__all__)
    for name in promised:
        assert getattr(delayd.client, name).__name__ == name
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.DelaydError):
            assert getattr(delayd.client, name) is kind


def test_dir_and_a_star_bring_what_can_be_imported_loaded_or_not() -> None:
    assert dir(delayd.client) == sorted(delayd.client.__all__)
    assert dir(delayd.testing) == sorted(delayd.testing.__all__)
    names: dict[str, object] = {}
    exec("from delayd.client import *", names)  # noqa: S102 - what is tested
    assert set(delayd.client.__all__) <= set(names)
