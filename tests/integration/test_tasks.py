"""`delayd worker`: the first examples of docs/tasks.md, and how it starts again and ends."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from delayd.client import Client
from delayd.client.reloader import python_files
from delayd.exits import Exit
from delayd.testing.daemon import running_daemon
from tests.rigs.waiting import line_with

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")
TASKS: Final = re.findall(r"```python\n(# shop/tasks.py.*?)```", PAGE, re.DOTALL)[0]
PRODUCER: Final = re.findall(r"```python\n(from shop.tasks.*?)```", PAGE, re.DOTALL)[0]
SLOW: Final = """

@app.task("slow")
def slow() -> None:
    import time
    print("slow begins", flush=True)
    time.sleep(1)
    print("slow ends", flush=True)
"""


def test_a_worker_does_what_the_page_says_begins_anew_and_lets_what_runs_finish(
    tmp_path: Path,
) -> None:
    file = tmp_path / "shop" / "tasks.py"
    file.parent.mkdir()
    with running_daemon("--http", "127.0.0.1:0") as daemon:
        url = f"http://{daemon.http_listens_on}"
        text = TASKS.replace("http://127.0.0.1:11301", url)
        file.write_text(text, encoding="utf-8")
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "delayd", "worker", "shop.tasks:app", "--reload"]
        worker = subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
        )
        try:
            ran = subprocess.run(
                [sys.executable, "-c", PRODUCER],
                cwd=tmp_path,
                env=environment,
                check=True,
                text=True,
                stdout=subprocess.PIPE,
            )
            assert ran.stdout == "to ada with Hello\n"
            line_with("to ada with Hello", worker.stdout)
            file.write_text(text + SLOW, encoding="utf-8")
            with Client(url) as client:
                assert client.find("mail", "welcome-ada").state == "delayed"
                client.put("slow", {"task": "slow"})
                line_with("slow begins", worker.stdout)
                worker.send_signal(signal.SIGTERM)
                line_with("slow ends", worker.stdout)
                assert worker.wait(60) == Exit.OK
                assert not [each.name for each in client.topics() if each.name == "slow"]
        finally:
            worker.terminate()
            worker.communicate(timeout=60)


def test_a_second_ctrl_c_gives_the_jobs_back_and_no_attempt_is_counted(tmp_path: Path) -> None:
    with running_daemon("--http", "127.0.0.1:0") as daemon:
        url = f"http://{daemon.http_listens_on}"
        text = TASKS.replace("http://127.0.0.1:11301", url)
        text += SLOW.replace("sleep(1)", "sleep(600)")
        (tmp_path / "tasks.py").write_text(text, encoding="utf-8")
        command = [sys.executable, "-m", "delayd", "worker", "tasks:app", "--reload"]
        worker = subprocess.Popen(
            command, cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert worker.stdout is not None
        with Client(url) as client:
            put = client.put("slow", {"task": "slow"}, retry="2h")
            line_with("slow begins", worker.stdout)
            worker.send_signal(signal.SIGINT)
            assert "stopping when the jobs in hand are finished" in worker.stdout.readline()
            worker.send_signal(signal.SIGINT)
            told, _ = worker.communicate(timeout=60)
            assert worker.returncode == 130
            assert f"job {put.id} of topic 'slow' was given back" in told
            found = client.get(put.id)
            assert (found.state, found.attempts, found.history) == ("ready", 0, ())


def test_only_the_files_of_a_program_are_looked_at(tmp_path: Path) -> None:
    for name in ("a.py", "b/c.py", "b/d.txt", ".git/e.py", "env/pyvenv.cfg", "env/f.py", "g.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("", encoding="utf-8")
    before = python_files(str(tmp_path))
    assert {os.path.relpath(each, tmp_path) for each in before} == {"a.py", "b/c.py", "g.py"}
    os.utime(tmp_path / "b" / "c.py", ns=(0, time.time_ns() + 10**9))
    assert python_files(str(tmp_path)) != before
