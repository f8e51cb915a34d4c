"""What the tests of puts by HTTP say again and again: put, and what a worker gets."""

from typing import Any

from tests.http.rig import HttpRig

JOBS = "/v1/topics/mail/jobs"
RESERVE = "/v1/topics/mail/reserve"


def put(rig: HttpRig, **fields: object) -> dict[str, Any]:
    return dict(rig.ok("POST", JOBS, {"body": 1, **fields}))


def reserved(rig: HttpRig) -> dict[str, Any]:
    (job,) = rig.ok("POST", RESERVE)["jobs"]
    return dict(job)
