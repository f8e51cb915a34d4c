"""What a standby answers: its health, and for all the rest where the owner is."""

import pytest

from delayd.access.scopes import Scope
from tests.rigs.http import HttpRig

OWNER = "line a:11300, http a:11301"


def test_a_standby_lives_and_is_not_ready() -> None:
    with HttpRig(standing_by=lambda: (OWNER, "")) as rig:
        assert rig.ok("GET", "/healthz") == {"status": "ok"}
        answer = rig.call("GET", "/readyz")
        assert (answer.status, answer.word, answer.json["owner"]) == (503, "NOT_READY", OWNER)
        assert answer.json["detail"] == f"another daemon owns the log: {OWNER}"
        assert answer.headers["retry-after"] == "1"
        assert rig.call("GET", "/readyz?puts=false").json["owner"] == OWNER
        assert rig.call("GET", "/metrics").body == b"its lag"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/topics/mail/jobs"),
        ("GET", "/v1/stats"),
        ("GET", "/ui/"),
        ("GET", "/openapi.json"),
        ("DELETE", "/healthz"),
        ("GET", "/nowhere"),
    ],
)
def test_all_the_rest_is_answered_with_the_owner(method: str, path: str) -> None:
    with HttpRig(standing_by=lambda: (OWNER, ""), serves_ui=True) as rig:
        answer = rig.call(method, path, json={} if method == "POST" else None)
        assert (answer.status, answer.json["kind"]) == (503, "standing_by")
        assert answer.json["owner"] == OWNER


def test_a_start_that_knows_no_owner_yet_says_how_far_it_is() -> None:
    with HttpRig(standing_by=lambda: ("", "recovering: about 40 %")) as rig:
        for path in ("/readyz", "/v1/stats"):
            answer = rig.call("GET", path)
            assert (answer.status, answer.json["kind"]) == (503, "not_ready")
            assert answer.json["detail"] == "recovering: about 40 %"


def test_the_metrics_of_a_standby_need_the_token_that_those_of_an_owner_need() -> None:
    with HttpRig(standing_by=lambda: (OWNER, ""), needs_token=True) as rig:
        assert rig.call("GET", "/metrics").status == 401
        assert rig.call("GET", "/metrics", token=rig.token(Scope.STATS)).body == b"its lag"
        assert rig.call("GET", "/metrics", token=rig.token(Scope.PUT)).status == 403
        assert rig.call("GET", "/readyz").status == 503
