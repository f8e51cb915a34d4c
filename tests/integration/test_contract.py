"""The daemon keeps to its own OpenAPI document, whatever is asked of it, sense and nonsense.

schemathesis makes requests of the document: the boundaries of every field, and values that are
wrong in every way. Each answer must be one that the document has: status, media type,
headers, schema; what the document forbids must be refused. That what it allows is taken is not
checked: no schema can say that a token belongs to the job of the path, or that a date is after
1970. Nor are calls made that follow from each other, which
tests/http/test_openapi_answers.py does better.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from delayd.durations import parse_duration_ms
from delayd.exits import Exit
from delayd.http.routes import ROUTES
from delayd.limits import HTTP_WAIT_MS_MAX
from tests.rigs.process import daemon_of

if TYPE_CHECKING:
    from collections.abc import Mapping

PHASES: Final = ("coverage", "fuzzing")
EXAMPLES_MAX: Final = 6
CONFIG: Final[dict[str, Any]] = {
    "continue-on-failure": True,
    "request-timeout": 60.0,
    "checks": {
        "positive_data_acceptance": {"enabled": False},
        "ignored_auth": {"enabled": False},
    },
    "generation": {
        "max-examples": EXAMPLES_MAX,
        "no-shrink": True,
        "database": "none",
        "mode": "all",
    },
}


@contextlib.contextmanager
def no_waits() -> Iterator[None]:
    """Let no request wait for a job, which would be for ever here; a wait that is wrong stays."""
    import schemathesis

    @schemathesis.hook
    def before_call(_context: object, case: Any, _fields: object) -> None:  # noqa: ANN401
        body = case.body
        if isinstance(body, dict) and "wait" in body:
            with contextlib.suppress(ValueError):
                if parse_duration_ms(body["wait"]) <= HTTP_WAIT_MS_MAX:
                    body["wait"] = 0

    try:
        yield
    finally:
        schemathesis.hooks.unregister_all()


def played(address: str, phase: str, seed: int) -> "tuple[Counter[tuple[str, int]], list[str]]":
    """Ask everything; how often each call was answered what, and all that was wrong with that."""
    import schemathesis
    from schemathesis.config import SchemathesisConfig
    from schemathesis.engine import events, from_schema

    phases = {name: {"enabled": name == phase} for name in ("examples", "stateful", *PHASES)}
    config = SchemathesisConfig.from_dict({**CONFIG, "seed": seed, "phases": phases})
    answered: Counter[tuple[str, int]] = Counter()
    wrong = []
    schemathesis.serializer.alias("application/x-ndjson", "text/plain")
    schema = schemathesis.openapi.from_url(f"http://{address}/openapi.json", config=config)
    for event in from_schema(schema).execute():
        if isinstance(event, events.NonFatalError):
            wrong.append(f"{event.label}: {event.info.format()}")
        elif isinstance(event, events.FatalError):
            raise event.exception
        elif isinstance(event, events.ScenarioFinished):
            for case_id, interaction in event.recorder.interactions.items():
                if interaction.response is not None:
                    label = event.recorder.cases[case_id].value.operation.label
                    answered[label, interaction.response.status_code] += 1
            wrong += failures(event.recorder.checks)
    return answered, wrong


def failures(checks: "Mapping[str, Any]") -> Iterator[str]:
    for check in (check for found in checks.values() for check in found):
        if check.failure_info is not None:
            info = check.failure_info
            yield f"{check.name}: {info.failure.title}: {info.failure.message}\n{info.code_sample}"


@pytest.mark.parametrize("phase", PHASES)
def test_what_is_answered_is_what_the_document_says(phase: str, seed: int, tmp_path: Path) -> None:
    flags = ("--line", "off", "--http", "127.0.0.1:0", "--clock", "virtual")
    with no_waits(), daemon_of(tmp_path, *flags) as daemon:
        answered, wrong = played(daemon.http_listens_on, phase, seed)
        assert daemon.stop() == Exit.OK, daemon.log()
    assert not wrong, "\n\n".join(dict.fromkeys(wrong))
    assert not [status for _, status in answered if status >= 500 and status not in {503, 507}]
    asked = {label for label, _ in answered}
    described = {f"{route.method} {route.path}" for route in ROUTES}
    assert described - asked <= {"GET /openapi.json"}, "which is read anyway"
