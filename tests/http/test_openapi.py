"""The OpenAPI document is valid, whole, and says of bodies what the daemon does with them."""

import json
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, Final, get_args, get_type_hints

import msgspec
import pytest

from delayd.client import results, values
from delayd.config import Config
from delayd.core.errors import PolicyInvalid
from delayd.core.policy import Policy
from delayd.http import answer_forms, request_forms
from delayd.http.form_reader import Reader
from delayd.http.openapi import refusals_of
from delayd.http.problems import RequestInvalid
from delayd.http.routes import ROUTES
from delayd.http.values import Answer
from delayd.limits import QUANTITY_CHARACTERS_MAX
from tests.rigs.http import HttpRig, http_refusals
from tests.rigs.openapi import validator, whole_document


def operation(name: str) -> dict[str, Any]:
    (found,) = (
        operation
        for methods in whole_document()["paths"].values()
        for operation in methods.values()
        if operation["operationId"] == name
    )
    return dict(found)


def resolved(response: dict[str, str]) -> dict[str, Any]:
    name = response["$ref"].removeprefix("#/components/responses/")
    return dict(whole_document()["components"]["responses"][name])


@pytest.mark.thorough
def test_the_document_is_valid() -> None:
    from openapi_spec_validator import OpenAPIV31SpecValidator

    assert [*OpenAPIV31SpecValidator(whole_document()).iter_errors()] == []


def test_it_is_served_without_a_token_and_read_by_anybody() -> None:
    with HttpRig(needs_token=True) as rig:
        answer = rig.call("GET", "/openapi.json")
        assert answer.status == 200
        assert answer.json == whole_document()
        assert rig.call("HEAD", "/openapi.json").status == 200
        assert rig.call("GET", "/v1/topics").status == 401


def test_every_call_is_described_under_a_name_of_its_own() -> None:
    names = {route.name for route in ROUTES}
    assert len(names) == len(ROUTES)
    described = {
        (method.upper(), path)
        for path, methods in whole_document()["paths"].items()
        for method in methods
    }
    assert described == {(route.method, route.path) for route in ROUTES}


def test_every_answer_of_the_module_is_in_the_document() -> None:
    kinds = {
        name.removesuffix("Answer")
        for name, kind in vars(answer_forms).items()
        if isinstance(kind, type) and issubclass(kind, Answer)
    }
    assert kinds - {""} <= whole_document()["components"]["schemas"].keys()


def test_every_refusal_of_a_call_is_under_its_status_with_its_word() -> None:
    for route in ROUTES:
        responses = whole_document()["paths"][route.path][route.method.lower()]["responses"]
        for refusal in refusals_of(route):
            response = resolved(responses[str(refusal.status)])
            content = response["content"]["application/problem+json"]
            assert content["schema"] == {"$ref": "#/components/schemas/Problem"}
            assert content["examples"][refusal.kind] == {
                "$ref": f"#/components/examples/{refusal.kind}"
            }
            assert f"`{refusal.word}`" in response["description"]
            assert not refusal.retry_after_s or "Retry-After" in response["headers"]


def test_a_problem_of_each_kind_is_an_example_as_it_is_answered() -> None:
    kinds = {refusal.kind: refusal for route in ROUTES for refusal in refusals_of(route)}
    examples = whole_document()["components"]["examples"]
    assert examples.keys() == kinds.keys()
    for kind, example in examples.items():
        problem = example["value"]
        assert judge_of("Problem").is_valid(problem)
        assert problem["type"] == f"urn:delayd:{kinds[kind].word}"
        assert (problem["kind"], problem["status"]) == (kind, kinds[kind].status)


def test_a_call_names_its_scope_and_a_token_may_be_sent_with_all_but_is_asked_for_by_none() -> None:
    """openapi-python-client takes any word of it beside a call for a token that must be there."""
    assert whole_document()["security"] == [{"token": []}, {}]
    for route in ROUTES:
        told = operation(route.name)
        assert told.get("security") == (None if route.is_guarded else [])
        if route.scope is not None:
            assert f"Scope: `{route.scope.value}`." in told["description"]
            assert "WWW-Authenticate" in resolved(told["responses"]["401"])["headers"]


def test_the_server_is_where_a_daemon_listens_by_default() -> None:
    (server,) = whole_document()["servers"]
    assert server["url"] == f"http://{Config().http_listen}"


def test_a_body_is_always_asked_for_and_no_member_of_it_has_a_default() -> None:
    """openapi-typescript takes a member that has one for a member that must be there."""
    for route in ROUTES:
        if route.form is None:
            assert "requestBody" not in operation(route.name)
            continue
        body = operation(route.name)["requestBody"]
        assert body["required"] is True
        assert ("`{}`" in body["description"]) == route.may_be_empty
        for kind in (route.form, route.batch):
            if kind is not None:
                name = kind.__name__.removesuffix("Form")
                members = whole_document()["components"]["schemas"][name]["properties"].values()
                assert not [member for member in members if "default" in member]
    reserve = whole_document()["components"]["schemas"]["Reserve"]["properties"]
    assert reserve["max"]["description"] == "How many jobs at most. 1 by default."
    assert reserve["wait"]["description"] == "How long to wait for a job. 0 by default."


def test_only_the_put_of_one_job_has_an_idempotency_key() -> None:
    having = [
        operation["operationId"]
        for methods in whole_document()["paths"].values()
        for operation in methods.values()
        if any(parameter["name"] == "Idempotency-Key" for parameter in operation["parameters"])
    ]
    assert having == ["put_job"]


def test_members_may_be_added_to_answers_and_not_to_requests() -> None:
    schemas = whole_document()["components"]["schemas"]
    assert schemas["PutJob"]["additionalProperties"] is False
    assert "additionalProperties" not in schemas["ReservedJob"]
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"id": 1, "colour": "red"}', type=answer_forms.NamedAnswer)


ROW: Final = re.compile(
    r"(?P<name>\w+)(?P<with> \{.*?\})?(?P<fields> [\w,]+)?: ?(?P<valid>.*?)(not (?P<wrong>.*))?"
)
NEEDED: Final[dict[str, dict[str, object]]] = {
    "PutJob": {"body": 1},
    "PutKeyed": {"body": 1},
    "ScheduleBody": {"topic": "mail", "cron": "@daily", "body": 1},
}


def written() -> Iterator[tuple[str, object, bool]]:
    """Bodies of bodies.txt, and whether they are valid."""
    lines = re.sub(r"(?m)^#.*\n", "", (Path(__file__).parent / "bodies.txt").read_text())
    for line in filter(None, lines.replace("\n    ", " ").split("\n")):
        row = ROW.fullmatch(line)
        assert row is not None, line
        fields = (row["fields"] or "").strip().split(",")
        beside = json.loads(row["with"]) if row["with"] else NEEDED.get(row["name"], {})
        for listed, is_valid in ((row["valid"], True), (row["wrong"], False)):
            for text, field in product(listed.split(" | ") if listed else (), fields):
                said = json.loads(text)
                yield row["name"], {**beside, field: said} if field else said, is_valid


SAMPLES: Final = [
    *written(),
    ("PutJob", {"body": 1, "key": "k" * 201}, False),
    ("PutJob", {"body": 1, "delay": "1s".ljust(QUANTITY_CHARACTERS_MAX)}, True),
    ("PutJob", {"body": 1, "delay": "1s".ljust(QUANTITY_CHARACTERS_MAX + 1)}, False),
    ("PutJob", {"body": 1, "delay": ""}, False),
    ("Pause", {"duration": ""}, False),
    ("Pause", {"duration": "1s".ljust(QUANTITY_CHARACTERS_MAX)}, True),
    ("Pause", {"duration": "1s".ljust(QUANTITY_CHARACTERS_MAX + 1)}, False),
    ("PutJob", {"body": 1, "retry": " ".join(["1s"] * 255)}, True),
    ("PutJob", {"body": 1, "retry": " ".join(["1s"] * 256)}, False),
    ("PutJob", {"body": 1, "retry": ["1s"] * 256}, False),
    ("PutJob", {"body": 1, "url": "https://a.example/" + "a" * 2_048}, False),
    (
        "PutJob",
        {"body": 1, "url": "http://localhost", "headers": {f"X-{n}": "a" for n in range(33)}},
        False,
    ),
    ("PolicyBody", {"push": {"sink": "a" * 65}}, False),
]


def is_read(name: str, body: Any) -> bool:  # noqa: ANN401 - as it is sent
    """Whether the daemon takes such a body."""
    if name == "ScheduleBody":
        with HttpRig() as rig:
            rig.engine.vet_target = lambda target: target
            status = rig.call("PUT", "/v1/schedules/a", body).status
        assert status in {201, 422}
        return status == 201
    forms = (form for row in ROUTES for form in (row.form, row.batch) if form)
    by_name = {form.__name__.removesuffix("Form"): form for form in forms}
    try:
        if name == "PolicyBody":
            Policy.from_fields(body)
        else:
            Reader(by_name[name]).read(json.dumps(body).encode())
    except (RequestInvalid, PolicyInvalid):
        return False
    return True


def judge_of(name: str) -> Any:  # noqa: ANN401 - a validator
    reference = f"#/components/schemas/{name}"
    return validator({"$ref": reference, "components": whole_document()["components"]})


@pytest.mark.parametrize(("name", "body", "is_valid"), SAMPLES)
def test_the_schemas_of_bodies_and_their_readers_agree(
    name: str, body: object, is_valid: bool
) -> None:
    assert judge_of(name).is_valid(body) is is_read(name, body) is is_valid


@pytest.mark.parametrize("name", request_forms.PolicyBodyForm.__struct_fields__)
def test_null_says_nothing_in_a_policy_and_the_document_allows_it(rig: HttpRig, name: str) -> None:
    assert judge_of("PolicyBody").is_valid({name: None})
    assert not judge_of("PolicyBody").is_valid({name: []})
    answer = rig.ok("PUT", "/v1/topics/mail/policy", {name: None})
    assert answer["policy"] == {}


def test_the_kinds_of_the_document_are_those_of_the_refusals() -> None:
    said: set[str] = set()
    for response in whole_document()["components"]["responses"].values():
        (media,) = response["content"].values()
        said |= media["examples"].keys()
    of_calls = {kind.kind for route in ROUTES for kind in refusals_of(route)}
    assert said == of_calls
    assert {kind.kind for kind in http_refusals()} - said == {"no_such_call", "method_not_allowed"}


# --- The client, a program of its own -------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "name", "of_one"),
    [
        (values.PutOptions, "PutJob", {"body", "body_base64", "idempotency_key"}),
        (values.Changes, "ChangeJob", {"body_base64"}),
        (results.PutResult, "Put", set()),
        (results.JobInfo, "Job", {"details", "body_base64"}),
        (results.Reservation, "ReservedJob", {"link", "body_base64"}),
        (results.Failure, "Failure", set()),
        (results.TopicInfo, "TopicCounts", {"details", "jobs", "rates", "late"}),
        (results.Became, "Became", {"id"}),
    ],
)
def test_the_client_has_the_fields_of_the_document(kind: type, name: str, of_one: set[str]) -> None:
    """`of_one`: fields that only one of the two has, or that the client has in another form."""
    said = (
        set(get_type_hints(kind))
        ^ whole_document()["components"]["schemas"][name]["properties"].keys()
    )
    # Of its own job the client shows what it asked for only in `details`.
    told = {"url", "method", "headers", "retry", "max_attempts", "jitter_percent"}
    counted = {"reserves", "timeouts", "releases", "buries", "kicks"}
    more = told | counted if kind in {results.JobInfo, results.Reservation} else set()
    assert said - more == of_one


def test_the_client_has_the_words_of_the_document() -> None:
    schemas = whole_document()["components"]["schemas"]
    states = schemas["Job"]["properties"]["state"]["enum"]
    for words, enum in (
        (values.State, states),
        (values.OnConflict, schemas["Conflict"]["enum"]),
        (values.Outcome, schemas["Outcome"]["enum"]),
    ):
        assert {*get_args(words)} == {*enum}
