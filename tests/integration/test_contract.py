"""The daemon keeps to its own OpenAPI document, whatever is asked of it, sense and nonsense.

schemathesis makes requests of the document: the boundaries of every field, and values that are
wrong in every way, with all its checks. Each answer must be one that the document has: status,
media type, headers, schema; what the document forbids must be refused, and what it allows must be
taken, but for the rules that no schema can say (`BEYOND`).
"""

import contextlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from delayd.durations import parse_duration_ms
from delayd.exits import Exit
from delayd.fields import MORE_THAN_0
from delayd.http.routes import ROUTES
from delayd.limits import HTTP_WAIT_MS_MAX, QUANTITY_CHARACTERS_MAX
from tests.rigs.process import daemon_of

PHASES: Final = ("examples", "coverage", "fuzzing", "stateful")
OF_ALL_CALLS: Final = ("coverage", "fuzzing")
DEAR: Final = frozenset(
    (
        *("PUT /v1/topics/{topic}/policy", "POST /v1/topics/{topic}/jobs"),
        "POST /v1/schedules/preview",
    )
)
"""What has so many fields that to make every value of them takes a minute: the long run has them.
That their schemas and readers agree is shown in http/test_openapi.py too."""
FEW, MANY = 3, 6
"""Requests that are drawn for each operation, in the everyday run and in the long one."""
BEYOND: Final = (
    # What one part of a request says of another one.
    "^request_invalid (to: must be later than from|horizon: must be at least a millisecond)",
    "^request_invalid after: cannot (come beside|be given with) topic",
    "^request_invalid all: (cannot be given with a filter|must be true)",
    "^request_invalid Idempotency-Key: is for a single job without a key",
    "^request_invalid token: belongs to another job",
    # schemathesis takes the quotes away that the document asks for.
    "^request_invalid If-Match: ",
    # What depends on the configuration, on the policy of a topic, and on what was sent before.
    "^(target_refused|not_for_topic|push_off|delay_too_long) ",
    "^(idempotency_key_reused|policy_changed) ",
    # What a cron expression means: values within their fields, ranges upwards, days that months
    # have; which time zones there are, and whether a schedule has a run left.
    r"^schedule_invalid cron: (\".*\": )?(the|it|has|never) ",
    r"^schedule_invalid timezone: (\".*\": )?there is no such time zone",
    r"^schedule_invalid (end|limit): (.*: )?(leaves no run|must not be before)",
    r"^schedule_invalid window: (.*: )?must be at most 1m with missed = none",
    # Sums and lengths: of the parts of a duration, of the bytes of a text, of all headers.
    r"^\w+ [\w.\[\]]+: (.*[:,] )?must be from (0 to 4294967295 s|\"\d\w+\" to \"\d+\w+\")",
    "^(key_invalid |request_invalid key: )the key .* must be 1 to 200 bytes",
    "^request_invalid group: must be 1 to 200 bytes",
    "^(request|path)_too_long ",
    # The days of a month, and the hour that an offset takes from the first and the last one.
    "^request_invalid (at|from|to): must be (a moment such as|from 1970 to the year 9999)",
)
"""Rules that no schema can say, as an answer tells them."""
OF_TWO_PATHS: Final = "/v1/schedules/preview"
"""Also a schedule of that name: it supports the methods of both."""
CONFIG: Final[dict[str, Any]] = {"continue-on-failure": True, "request-timeout": 60.0}
GENERATION: Final = {"no-shrink": True, "database": "none", "mode": "all"}


@contextlib.contextmanager
def hooks(*, has_all: bool) -> Iterator[None]:
    """Let no request wait for a job, which would be for ever here; a wait that is wrong stays.

    Unless all values are to be made, no duration is made as long or as short as its text may be: to
    find six takes longer than all other requests of the phase. The bounds are shown in
    http/test_openapi.py.
    """
    import schemathesis

    @schemathesis.hook
    def before_load_schema(_context: object, raw_schema: dict[str, Any]) -> None:
        if not has_all:
            leave_lengths_open(raw_schema)

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


def leave_lengths_open(schema: object) -> None:
    """Take the greatest length out of the schemas of durations, which are found by its value.

    And the least one where the pattern asks for a digit.
    """
    if isinstance(schema, list):
        for part in schema:
            leave_lengths_open(part)
    elif isinstance(schema, dict):
        if "pattern" in schema and schema.get("maxLength") == QUANTITY_CHARACTERS_MAX:
            del schema["maxLength"]
            if MORE_THAN_0 in schema["pattern"]:
                del schema["minLength"]
        for part in schema.values():
            leave_lengths_open(part)


def played(
    address: str, phase: str, seed: int, draws: int, left_out: frozenset[str]
) -> "tuple[Counter[tuple[str, int]], list[str]]":
    """Ask everything; how often each call was answered what, and all that was wrong with that."""
    import schemathesis
    from schemathesis.config import SchemathesisConfig
    from schemathesis.engine import events, from_schema

    phases = {name: {"enabled": name == phase} for name in PHASES}
    url = f"http://{address}"
    config = SchemathesisConfig.from_dict(
        {
            **CONFIG,
            "base-url": url,
            "seed": seed,
            "phases": phases,
            "generation": {**GENERATION, "max-examples": draws},
        }
    )
    answered: Counter[tuple[str, int]] = Counter()
    wrong = []
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json", config=config)
    chosen = schema.exclude(name=sorted(left_out)) if left_out else schema
    for event in from_schema(chosen).execute():
        if isinstance(event, events.NonFatalError):
            wrong.append(f"{event.label}: {event.info.format()}")
        elif isinstance(event, events.FatalError):
            raise event.exception
        elif isinstance(event, events.ScenarioFinished):
            for case_id, interaction in event.recorder.interactions.items():
                if interaction.response is not None:
                    label = event.recorder.cases[case_id].value.operation.label
                    answered[label, interaction.response.status_code] += 1
            wrong += failures(event.recorder)
    return answered, wrong


def failures(recorder: Any) -> Iterator[str]:  # noqa: ANN401
    for case_id, checks in recorder.checks.items():
        for check in checks:
            info = check.failure_info
            if info is None:
                continue
            response = recorder.interactions[case_id].response
            answer = None if response is None else response.content
            if "data" in check.name and (is_empty_taken(recorder, case_id) or not broken(answer)):
                continue
            if check.name == "allow_header_conformance" and OF_TWO_PATHS in info.code_sample:
                continue
            title = f"{check.name}: {info.failure.title}: {info.failure.message}"
            yield f"{title}\n{info.code_sample}\n{answer!r}"


def is_empty_taken(recorder: Any, case_id: str) -> bool:  # noqa: ANN401
    """An empty body is taken as `{}`, though the document asks for one."""
    case = recorder.cases[case_id].value
    row = next(row for row in ROUTES if (row.method, row.path) == (case.method, case.path))
    return row.may_be_empty and not recorder.interactions[case_id].request.body


def broken(answer: bytes | None) -> list[str]:
    """What is said against a request, but for what the document cannot say."""
    problem = json.loads(answer or b"{}")
    errors = problem.get("errors") or [{"field": "", "detail": problem.get("detail")}]
    rules = [f"{problem.get('kind')} {each['field']}: {each['detail']}" for each in errors]
    return [rule for rule in rules if not any(re.search(other, rule) for other in BEYOND)]


@pytest.mark.parametrize("phase", PHASES)
def test_what_is_answered_is_what_the_document_says(
    phase: str, seed: int, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    flags = ("--line", "off", "--http", "127.0.0.1:0", "--clock", "virtual")
    is_long = bool(pytestconfig.getoption("--long"))
    has_all = phase != "coverage" or is_long
    left_out = frozenset[str]() if has_all else DEAR
    with hooks(has_all=has_all), daemon_of(tmp_path, *flags) as daemon:
        draws = MANY if is_long else FEW
        answered, wrong = played(daemon.http_listens_on, phase, seed, draws, left_out)
        assert daemon.stop() == Exit.OK, daemon.log()
    assert not wrong, "\n\n".join(dict.fromkeys(wrong))
    assert not [status for _, status in answered if status >= 500 and status not in {503, 507}]
    asked = {label for label, _ in answered}
    described = {f"{route.method} {route.path}" for route in ROUTES}
    if phase in OF_ALL_CALLS:
        assert described - asked <= {"GET /openapi.json", *left_out}, "the first is read anyway"
