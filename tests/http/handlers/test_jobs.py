"""One job by its id or its key; tests/http/stories.txt tells of its changes."""

from typing import Any, cast
from urllib.parse import quote

import pytest

from delayd.access.principal import Principal
from delayd.access.scopes import Scope
from delayd.core.errors import JobNotFound
from delayd.core.operations.tick import reach
from delayd.core.times import PlayedMs
from delayd.http.api import Call
from tests.rigs.clock import FakeClock
from tests.rigs.http import HttpRig, put, reserved

CALLS = (
    ("GET", "", None),
    ("PATCH", "", {"priority": 1}),
    ("DELETE", "", None),
    ("POST", "/kick", None),
    ("POST", "/bury", None),
)


@pytest.mark.parametrize("key", ["order-17", "a/b", "größe", "100%", "%2F", "a?b#c&d", "..", "✓"])
def test_a_key_in_the_path_is_any_text_in_percent_encoding(rig: HttpRig, key: str) -> None:
    path = f"/v1/topics/mail/keys/{quote(key, safe='')}"
    rig.ok("PUT", path, {"body": 1, "delay": 5})
    assert rig.ok("GET", path)["key"] == key
    rig.ok("PATCH", path, {"body": 2})
    rig.ok("POST", f"{path}/kick")
    told = rig.ok("GET", path)
    assert (told["body"], told["state"]) == (2, "ready")
    rig.ok("DELETE", path)
    assert rig.call("GET", path).status == 404


@pytest.mark.parametrize(("method", "path", "given"), CALLS)
def test_what_is_no_id_and_no_key_is_refused(
    rig: HttpRig, method: str, path: str, given: object
) -> None:
    put(rig, key="a")
    for text in ("x", "-1", "1.0", "9" * 21, "%D9%A1", "1%20", "0x1"):
        answer = rig.call(method, f"/v1/jobs/{text}{path}", given)
        assert (answer.status, answer.word, answer.fields) == (422, "BAD_FORMAT", ["id"])
    keys = ("a%20b", "%00", "%7F", "x" * 201, "%C2%A0", "%FF", "%C3", "%ED%B3%BF")
    for where in ("-mail/keys/a", *(f"mail/keys/{key}" for key in keys)):
        answer = rig.call(method, f"/v1/topics/{where}{path}", given)
        assert (answer.status, answer.word) == (422, "BAD_FORMAT")


@pytest.mark.parametrize(("method", "path", "given"), CALLS[1:])
def test_a_job_whose_ttr_has_just_run_out_is_nobodys(
    rig: HttpRig, method: str, path: str, given: object
) -> None:
    put(rig, ttr=5, retry="1h")
    reserved(rig)
    store = rig.engine.store
    store.time_ms = PlayedMs(store.time_ms + 5_001)  # nobody has noticed yet
    assert rig.call(method, f"/v1/jobs/1{path}", given).status == 200


def test_a_job_that_its_ttr_has_moved_is_judged_by_where_it_is_before_its_slice_comes(
    rig: HttpRig,
) -> None:
    rig.ok("PUT", "/v1/topics/mail/policy", {"max_attempts": 1, "exhausted": "dead"})
    put(rig, ttr=1)
    reserved(rig)
    assert isinstance(rig.clock, FakeClock)
    rig.clock.advance(1_001)
    reach(rig.engine, rig.clock.now_ms())  # very many run out at once: it is not its turn
    theirs = Principal("theirs", "0a1b2c3d", frozenset(Scope), ("mail",))
    call = Call(rig.api, Scope.DELETE, cast("Any", None), {}, theirs, b"", None, None)
    with pytest.raises(JobNotFound):
        call.allow_job(1)
    assert rig.engine.store.topics.by_name["dead"].jobs == 1
