"""What the tests of puts by HTTP say again and again: put, and what a worker gets."""

from typing import Any

from tests.http.scene import Scene

JOBS = "/v1/topics/mail/jobs"
RESERVE = "/v1/topics/mail/reserve"


def put(scene: Scene, **fields: object) -> dict[str, Any]:
    return dict(scene.ok("POST", JOBS, {"body": 1, **fields}))


def reserved(scene: Scene) -> dict[str, Any]:
    (job,) = scene.ok("POST", RESERVE)["jobs"]
    return dict(job)
