"""Programs that make clients of OpenAPI documents make good ones of delayd's, without a flag.

Each makes its client and says nothing against the document. The type checker of the language, set
to strict, finds nothing in it, nor in a short program beside it (`programs/`), which then puts,
reserves, acknowledges, cancels and lists jobs of a daemon, and reads problems.

`make test-clients` installs them, as `requirements/clients.txt` and `package-lock.json` say.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import orjson
import pytest

from delayd.http.openapi import document
from delayd.http.routes import ROUTES
from tests.rigs.process import daemon_of

ROOT: Final = Path(__file__).parents[2]
TOOLS: Final = ROOT / "build" / "clients" / "node_modules"
PROGRAMS: Final = Path(__file__).parent / "programs"
RUN_S_MAX: Final = 300.0
needs_node: Final = pytest.mark.skipif(
    not TOOLS.is_dir(), reason="needs the programs that `make test-clients` installs with npm"
)
needs_python_client: Final = pytest.mark.skipif(
    importlib.util.find_spec("openapi_python_client") is None,
    reason="needs openapi-python-client, which `make test-clients` installs",
)
STRICT: Final = {
    "strict": True,
    "noImplicitReturns": True,
    "noUncheckedIndexedAccess": True,
    "skipLibCheck": False,
    "target": "ES2022",
    "lib": ["ES2022", "DOM", "DOM.Iterable"],
    "types": [],
    "outDir": "out",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project with the document, and with the programs."""
    (tmp_path / "openapi.json").write_bytes(orjson.dumps(document(ROUTES)))
    (tmp_path / "node_modules").symlink_to(TOOLS)
    shutil.copytree(PROGRAMS, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """The url of a daemon."""
    with daemon_of(tmp_path / "jobs", "--line", "off", "--http", "127.0.0.1:0") as daemon:
        yield f"http://{daemon.http_listens_on}"


def run(folder: Path, *command: str) -> str:
    """Run a program in the folder, and return what it said; it must succeed."""
    quiet = {"REDOCLY_TELEMETRY": "off", "REDOCLY_SUPPRESS_UPDATE_NOTICE": "true", "NO_COLOR": "1"}
    path = os.pathsep.join((os.path.dirname(sys.executable), os.environ["PATH"]))
    # The clients of others read authorities even where they speak no TLS; see `tests/conftest.py`.
    kept = {name: value for name, value in os.environ.items() if name != "SSL_CERT_FILE"}
    done = subprocess.run(
        command,
        cwd=folder,
        env={**kept, **quiet, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def tool(name: str) -> str:
    """Return the path of a program of an npm package."""
    return str(TOOLS / ".bin" / name)


def check_and_run(folder: Path, program: str, address: str, module: str, found_by: str) -> None:
    """Compile a program with its client, which TypeScript checks strictly, and run it."""
    options = {**STRICT, "module": module, "moduleResolution": found_by}
    project = {"compilerOptions": options, "files": [program]}
    (folder / "tsconfig.json").write_text(json.dumps(project))
    kind = "commonjs" if module == "CommonJS" else "module"
    (folder / "package.json").write_text(json.dumps({"type": kind}))
    run(folder, tool("tsc"), "--project", ".")
    run(folder, "node", f"out/{program.removesuffix('ts')}js", address)


@needs_node
def test_redocly_lint_finds_nothing(folder: Path) -> None:
    found = run(folder, tool("redocly"), "lint", "openapi.json", "--format", "json")
    totals = dict(re.findall(r'"(errors|warnings)": ([0-9]+)', found))
    assert totals == {"errors": "0", "warnings": "0"}, found


@needs_node
def test_a_client_made_by_openapi_typescript_works(folder: Path, address: str) -> None:
    run(folder, tool("openapi-typescript"), "openapi.json", "-o", "api.d.ts")
    check_and_run(folder, "openapi_fetch.ts", address, "NodeNext", "NodeNext")


@needs_node
def test_a_client_made_by_hey_api_works(folder: Path, address: str) -> None:
    run(folder, tool("openapi-ts"), "--input", "openapi.json", "--output", "hey")
    # Its imports have no file extensions, which Node takes in CommonJS only.
    check_and_run(folder, "hey_api.ts", address, "CommonJS", "Node10")


@needs_python_client
def test_a_client_made_by_openapi_python_client_works(folder: Path, address: str) -> None:
    said = run(folder, "openapi-python-client", "generate", "--path", "openapi.json")
    assert "warning" not in said.lower(), said
    client = folder / "delayd-client"
    shutil.copy(PROGRAMS / "python_client.txt", client / "work.py")
    run(client, sys.executable, "-m", "mypy", "--strict", "delayd_client", "work.py")
    run(client, sys.executable, "work.py", address)
