"""What the tests of workers by HTTP say again and again: put, wait, whose jobs, what is told."""

from typing import Any

import msgspec

from delayd.core.engine import Engine
from delayd.http.handlers.job_responses import whole_job
from tests.http.rig import Client, HttpRig

RESERVE = "/v1/topics/mail/reserve"


def put(rig: HttpRig, topic: str = "mail", **fields: object) -> int:
    told = rig.ok("POST", f"/v1/topics/{topic}/jobs", {"body": None, **fields})
    return int(told["id"])


def wait(rig: HttpRig, **fields: object) -> Client:
    return rig.send("POST", RESERVE, {"wait": "30s", **fields})


def ids(client: Client) -> list[int]:
    """The jobs that a client was handed; none if it was told that there are none."""
    answer = client.the_answer
    assert answer.status in {200, 204}, answer
    return [job["id"] for job in answer.json["jobs"]] if answer.status == 200 else []


def told(engine: Engine, job_id: int = 1) -> dict[str, Any]:
    record = engine.store.jobs.get(job_id)
    assert record is not None
    return dict(msgspec.to_builtins(whole_job(engine.store, job_id, record)))
