"""Workers of the project in celery_tasks.py, as processes, and what their tasks wrote."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from celery import Celery

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT: Final = Path(__file__).parents[2]
WITHIN_S: Final = 60.0


class Run(NamedTuple):
    """One line of a task."""

    what: Any
    pid: int
    at_s: float


class Project:
    """A directory with the results and runs of tasks, and the workers of one broker."""

    def __init__(self, directory: Path, broker_url: str, **settings: object) -> None:
        self.runs_path = directory / "runs"
        self.runs_path.touch()
        results = directory / "results"
        results.mkdir(exist_ok=True)
        settings = {"result_backend": results.as_uri(), **settings}
        self.environment: Mapping[str, str] = {
            **os.environ,
            "CELERY_BROKER_URL": broker_url,
            "PROJECT": json.dumps(settings),
            "RUNS": str(self.runs_path),
            "PYTHONPATH": str(ROOT),
        }
        self.broker_url, self.settings = broker_url, settings
        self.directory = directory
        self.workers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        for worker in self.workers:
            self.kill(worker)

    def app(self) -> Celery:
        """The app, in this process."""
        from tests.integration.celery_tasks import app

        app.conf.update(broker_url=self.broker_url, **self.settings)
        return app

    def worker(self, *flags: str) -> "subprocess.Popen[bytes]":
        """Start a worker, in a group of its own."""
        log = (self.directory / f"worker-{len(self.workers)}.log").open("wb")
        command = [sys.executable, "-m", "celery", "-A", "tests.integration.celery_tasks", "worker"]
        worker = subprocess.Popen(
            [*command, "--loglevel=INFO", f"--hostname=w{len(self.workers)}@test", *flags],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        log.close()
        self.workers.append(worker)
        return worker

    def log_of(self, worker: "subprocess.Popen[bytes]") -> str:
        """What a worker has said."""
        number = self.workers.index(worker)
        return (self.directory / f"worker-{number}.log").read_text(encoding="utf-8")

    def kill(self, worker: "subprocess.Popen[bytes]") -> None:
        """Kill a worker and its children, as a machine that goes."""
        if worker.poll() is None:
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait(WITHIN_S)

    def stop(self, worker: "subprocess.Popen[bytes]") -> int:
        """Have a worker end; return how it did."""
        worker.terminate()
        return worker.wait(WITHIN_S)

    def runs(self) -> list[Run]:
        """What tasks have written."""
        lines = self.runs_path.read_text(encoding="utf-8").splitlines()
        return [Run(*json.loads(line)) for line in lines]
