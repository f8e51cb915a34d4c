"""The completion scripts in the shells that they are for: sourced, and asked as by a Tab."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ASKED = {
    # Each prints one candidate a line.
    "bash": """
        source script
        COMP_WORDS=({words}) COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
        _delayd_completion delayd
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """,
    # What a Tab would call is there in an interactive shell only: these print instead.
    "zsh": """
        compdef() {{ registered=$1 }}
        compadd() {{ local name=${{@[-1]}}; print -rl -- "${{(@P)name}}" }}
        _describe() {{ local name=$3; print -rl -- "${{(@P)name%%:*}}" }}
        source ./script
        words=({words}) CURRENT=${{#words}}
        $registered
    """,
    "fish": """
        source script
        complete --do-complete '{words}' | string split --fields 1 \\t
    """,
}


COMPLETED = {"delayd config ch": ["check"], "delayd put --on": ["--on-conflict"]}


@pytest.mark.thorough
@pytest.mark.parametrize("shell", ASKED)
def test_the_shell_loads_the_script_and_completes_a_command(shell: str, tmp_path: Path) -> None:
    if (program := shutil.which(shell)) is None:
        pytest.skip(f"{shell} is not installed")
    delayd = tmp_path / "delayd"
    delayd.write_text(f'#!/bin/sh\nexec {sys.executable} -m delayd "$@"\n')
    delayd.chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "HOME": str(tmp_path),
    }
    script = subprocess.run(
        [delayd, "completion", shell], env=environment, check=True, capture_output=True
    )
    (tmp_path / "script").write_bytes(script.stdout)
    for words, completed in COMPLETED.items():
        ran = subprocess.run(
            [program, "-c", ASKED[shell].format(words=words)],
            cwd=tmp_path,
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        )
        assert (ran.stdout.split(), ran.stderr) == (completed, "")
