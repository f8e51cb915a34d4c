"""Schedules over HTTP, as far as no line of `stories.txt` can tell it: what is long, and pages."""

import base64
import json

from delayd.limits import HTTP_PAGE_BYTES_MAX, SCHEDULE_NOTE_BYTES_MAX
from tests.rigs.http import Answer, HttpRig

PATH = "/v1/schedules/nightly"
HOURLY = {"topic": "mail", "every": "1h"}


def put(rig: HttpRig, said: dict[str, object], path: str = PATH) -> Answer:
    return rig.call("PUT", path, {**HOURLY, **said})


def test_only_the_body_of_a_schedule_may_be_long(rig: HttpRig) -> None:
    long = "x" * 60_000
    assert put(rig, {"body": long}).json["definition"]["body"] == long
    encoded = base64.b64encode(long.encode()).decode()
    answer = put(rig, {"body_base64": encoded})
    assert answer.json["definition"]["body_base64"] == encoded
    answer = put(rig, {"body": "x" * 70_000})
    assert (answer.status, answer.word) == (413, "JOB_TOO_BIG")
    for said in ({"group": long}, {"url": long}, {"colour": long}):
        assert put(rig, {"body": 1, **said}).status == 422
    data = json.dumps(HOURLY).replace("}", f', "body": {{"a": "{long}", "b": 1e999}}}}').encode()
    answer = rig.call("PUT", PATH, data=data)
    assert (answer.status, answer.word) == (400, "BAD_JSON")
    note = "é" * (SCHEDULE_NOTE_BYTES_MAX // 2)
    assert rig.ok("POST", f"{PATH}/pause", {"note": note})["note"] == note
    assert rig.call("POST", f"{PATH}/pause", {"note": f"{note}é"}).fields == ["note"]


def test_a_page_of_schedules_with_long_bodies_ends_sooner() -> None:
    with HttpRig(is_checked=False) as rig:
        names = [f"a{number:02}" for number in range(2 * HTTP_PAGE_BYTES_MAX // 60_000)]
        for name in names:
            assert put(rig, {"body": "x" * 60_000}, f"/v1/schedules/{name}").status == 201
        seen: list[str] = []
        after: str | None = ""
        while after is not None:
            page = rig.ok("GET", f"/v1/schedules{after and f'?after={after}'}")
            seen += [each["name"] for each in page["schedules"]]
            after = page["after"]
            assert len(page["schedules"]) <= 1 + HTTP_PAGE_BYTES_MAX // 60_000
        assert seen == names
