"""The OpenAPI document is valid, whole, and says of bodies what the daemon does with them."""

import json
from typing import Any, Final, get_args, get_type_hints

import msgspec
import pytest
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from delayd.client import results, values
from delayd.http import answer_forms, request_forms
from delayd.http.form_reader import Reader
from delayd.http.openapi import document, refusals_of
from delayd.http.problems import MethodNotAllowed, NoSuchCall, RequestInvalid
from delayd.http.routes import ROUTES
from delayd.http.values import Answer
from tests.rigs.http import HttpRig, http_refusals

DOCUMENT: Final[dict[str, Any]] = document(ROUTES)


def operation(name: str) -> dict[str, Any]:
    (found,) = (
        operation
        for methods in DOCUMENT["paths"].values()
        for operation in methods.values()
        if operation["operationId"] == name
    )
    return dict(found)


def resolved(response: dict[str, str]) -> dict[str, Any]:
    name = response["$ref"].removeprefix("#/components/responses/")
    return dict(DOCUMENT["components"]["responses"][name])


def test_the_document_is_valid() -> None:
    assert [*OpenAPIV31SpecValidator(DOCUMENT).iter_errors()] == []


def test_it_is_served_without_a_token_and_read_by_anybody() -> None:
    with HttpRig(needs_token=True) as rig:
        answer = rig.call("GET", "/openapi.json")
        assert answer.status == 200
        assert answer.json == DOCUMENT
        assert rig.call("HEAD", "/openapi.json").status == 200
        assert rig.call("GET", "/v1/topics").status == 401


def test_every_call_is_described_under_a_name_of_its_own() -> None:
    names = {route.name for route in ROUTES}
    assert len(names) == len(ROUTES)
    described = {
        (method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods
    }
    assert described == {(route.method, route.path) for route in ROUTES}


def test_every_answer_of_the_module_is_in_the_document() -> None:
    kinds = {
        name.removesuffix("Answer")
        for name, kind in vars(answer_forms).items()
        if isinstance(kind, type) and issubclass(kind, Answer)
    }
    assert kinds - {""} <= DOCUMENT["components"]["schemas"].keys()


def test_every_refusal_of_a_call_is_under_its_status_with_its_word() -> None:
    for route in ROUTES:
        responses = DOCUMENT["paths"][route.path][route.method.lower()]["responses"]
        for refusal in refusals_of(route):
            response = resolved(responses[str(refusal.status)])
            content = response["content"]["application/problem+json"]["schema"]["allOf"][1]
            assert refusal.word in content["properties"]["word"]["enum"]
            assert not refusal.retry_after_s or "Retry-After" in response["headers"]


@pytest.mark.parametrize(
    "name", ["put_job", "reserve", "ack", "get_job", "set_policy", "get_topic"]
)
def test_a_call_names_its_scope_and_what_is_answered_without_it(name: str) -> None:
    (scopes, nothing) = operation(name)["security"]
    assert nothing == {}
    (scope,) = scopes["token"]
    assert f"`{scope}`" in operation(name)["description"]
    assert "WWW-Authenticate" in resolved(operation(name)["responses"]["401"])["headers"]


def test_only_the_put_of_one_job_has_an_idempotency_key() -> None:
    having = [
        operation["operationId"]
        for methods in DOCUMENT["paths"].values()
        for operation in methods.values()
        if any(parameter["name"] == "Idempotency-Key" for parameter in operation["parameters"])
    ]
    assert having == ["put_job"]


def test_members_may_be_added_to_answers_and_not_to_requests() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    assert schemas["PutJob"]["additionalProperties"] is False
    assert "additionalProperties" not in schemas["ReservedJob"]
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"id": 1, "colour": "red"}', type=answer_forms.NamedAnswer)


SAMPLES: Final = [
    ("PutJob", {"body": None}, True),
    ("PutJob", {"body": {"a": [1]}, "delay": "1h 30m", "priority": 0, "ttr": 0.5}, True),
    ("PutJob", {"body_base64": "aGVsbG8=", "at": 1_795_287_600}, True),
    (
        "PutJob",
        {"body": 1, "at": "2030-01-01T09:00:00Z", "key": "käse", "on_conflict": "keep"},
        True,
    ),
    ("PutJob", {"body": 1, "retry": ["15s", 180], "jitter_percent": 10, "max_attempts": 5}, True),
    ("PutJob", {"body": 1, "retry": "15s, 3m"}, True),
    ("PutJob", {"body": 1, "delay": "10", "ttr": "0.25"}, True),
    ("PutJob", {"body": 1, "delay": 0, "ttr": "0h0.5ms"}, True),
    ("PutJob", {"body": 1, "ttr": 5e-324}, True),
    ("PutJob", {"body": 1, "ttr": 0}, False),
    ("PutJob", {"body": 1, "ttr": "0"}, False),
    ("PutJob", {"body": 1, "ttr": "0h 0.0s"}, False),
    ("PutKeyed", {"body": 1, "ttr": 0}, False),
    ("ChangeJob", {"ttr": "0s"}, False),
    ("PutJob", {}, False),
    ("PutJob", {"body": 1, "body_base64": "aA=="}, False),
    ("PutJob", {"body_base64": "ä"}, False),
    ("PutJob", {"body": 1, "delay": 1, "at": 1}, False),
    ("PutJob", {"body": 1, "delay": "soon"}, False),
    ("PutJob", {"body": 1, "delay": "3s1m"}, False),
    ("PutJob", {"body": 1, "delay": ""}, False),
    ("PutJob", {"body": 1, "delay": -1}, False),
    ("PutJob", {"body": 1, "delay": 4_294_967_296}, False),
    ("PutJob", {"body": 1, "at": -1}, False),
    ("PutJob", {"body": 1, "key": ""}, False),
    ("PutJob", {"body": 1, "key": "a b"}, False),
    ("PutJob", {"body": 1, "key": "k" * 201}, False),
    ("PutJob", {"body": 1, "on_conflict": "keep"}, False),
    ("PutJob", {"body": 1, "key": "k", "on_conflict": "ask"}, False),
    ("PutJob", {"body": 1, "jitter_percent": 10}, False),
    ("PutJob", {"body": 1, "retry": []}, False),
    ("PutJob", {"body": 1, "retry": ["1s"] * 256}, False),
    ("PutJob", {"body": 1, "max_attempts": 0}, False),
    ("PutJob", {"body": 1, "priority": 4_294_967_296}, False),
    ("PutJob", {"body": 1, "url": "http://localhost", "method": "PUT"}, True),
    ("PutJob", {"body": 1, "url": "http://localhost", "headers": {"X": "1"}}, True),
    ("PutJob", {"body": 1, "url": "http://localhost", "headers": {"X": 1}}, False),
    ("PutJob", {"body": 1, "url": "localhost"}, False),
    ("PutJob", {"body": 1, "method": "PUT"}, False),
    ("PutJob", {"body": 1, "colour": "red"}, False),
    ("PutJobs", {"jobs": [{"body": 1}]}, True),
    ("PutJobs", {"jobs": []}, False),
    ("PutJobs", {"jobs": [{}]}, False),
    ("PutKeyed", {"body": 1, "on_conflict": "extend"}, True),
    ("PutKeyed", {"body": 1, "key": "k"}, False),
    ("ChangeJob", {"priority": 1}, True),
    ("ChangeJob", {}, False),
    ("ChangeJob", {"delay": 1, "at": 1}, False),
    ("Reserve", {}, True),
    ("Reserve", {"max": 1000, "wait": 60, "bodies": "base64"}, True),
    ("Reserve", {"max": 0}, False),
    ("Reserve", {"max": 1001}, False),
    ("Reserve", {"wait": 61}, False),
    ("Reserve", {"bodies": "plain"}, False),
    ("ReserveAny", {"topics": ["a", "b.c"]}, True),
    ("ReserveAny", {"topics": ["-a"]}, False),
    ("ReserveAny", {"topics": []}, False),
    ("ReserveAny", {}, False),
    ("Held", {"token": "17-19e0a2b3c4d-1"}, True),
    ("Held", {"token": "0-19e0a2b3c4d-1"}, False),
    ("Held", {"token": "99999999999999999999-0-1"}, False),
    ("Held", {"token": 17}, False),
    ("Nack", {"token": "17-19e0a2b3c4d-1", "delay": "5s", "error": "why", "priority": 1}, True),
    ("Nack", {"token": "17-19e0a2b3c4d-1", "error": None}, False),
    ("Kick", {"max": 1, "per_second": 0.5}, True),
    ("Kick", {"per_second": -1}, False),
    ("Kick", {"per_second": 0}, False),
    ("Kick", {"per_second": 5e-324}, False),
    ("Pause", {"duration": "1m"}, True),
    ("Pause", {}, False),
]


@pytest.mark.parametrize(("name", "body", "is_valid"), SAMPLES)
def test_the_schemas_of_bodies_and_their_readers_agree(
    name: str, body: object, is_valid: bool
) -> None:
    forms_by_name = {
        kind.__name__.removesuffix("Form"): kind
        for row in ROUTES
        for kind in (row.form, row.batch)
        if kind
    }
    schema = {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    validator = OAS31Validator(schema)
    assert validator.is_valid(body) is is_valid
    try:
        Reader(forms_by_name[name]).read(json.dumps(body).encode())
    except RequestInvalid:
        assert not is_valid
    else:
        assert is_valid


@pytest.mark.parametrize("name", request_forms.PolicyBodyForm.__struct_fields__)
def test_null_says_nothing_in_a_policy_and_the_document_allows_it(name: str) -> None:
    schema = {"$ref": "#/components/schemas/PolicyBody", "components": DOCUMENT["components"]}
    assert OAS31Validator(schema).is_valid({name: None})
    assert not OAS31Validator(schema).is_valid({name: []})
    with HttpRig() as rig:
        answer = rig.ok("PUT", "/v1/topics/mail/policy", {name: None})
        assert answer["policy"] == {}


def test_a_token_of_a_job_number_beyond_all_numbers_is_refused() -> None:
    """schemathesis ended the daemon with it: orjson writes no number of more than 64 bits."""
    with HttpRig() as rig:
        for token in ("99999999999999999999-0-1", "18446744073709551616-0-1", "0-0-1"):
            answer = rig.call("POST", "/v1/ack", {"tokens": [token]})
            assert (answer.status, answer.fields) == (422, ["tokens[0]"])
            answer = rig.call("POST", "/v1/nack", {"nacks": [{"token": token}]})
            assert (answer.status, answer.fields) == (422, ["nacks[0].token"])
        answer = rig.call("POST", "/v1/ack", {"tokens": ["9999999999999999999-0-1"]})
        assert answer.status == 207
        assert answer.json["results"][0]["status"] == 404


def test_every_refusal_is_one_of_some_call() -> None:
    of_calls = {refusal for route in ROUTES for refusal in refusals_of(route)}
    assert {*http_refusals()} - of_calls == {NoSuchCall, MethodNotAllowed}, "of no call at all"


def test_a_refusal_that_two_calls_share_has_one_class() -> None:
    kinds = {refusal for route in ROUTES for refusal in refusals_of(route)}
    by_status_and_title = {(kind.status, kind.word, kind.title) for kind in kinds}
    assert len(by_status_and_title) == len(kinds)


def test_the_kinds_of_the_document_are_those_of_the_refusals() -> None:
    said: set[str] = set()
    for response in DOCUMENT["components"]["responses"].values():
        (media,) = response["content"].values()
        said |= {*media["schema"]["allOf"][1]["properties"]["kind"]["enum"]}
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
    said = set(get_type_hints(kind)) ^ DOCUMENT["components"]["schemas"][name]["properties"].keys()
    # Of its own job the client shows what it asked for only in `details`.
    told = {"url", "method", "headers", "retry", "max_attempts", "jitter_percent"}
    counted = {"reserves", "timeouts", "releases", "buries", "kicks"}
    more = told | counted if kind in {results.JobInfo, results.Reservation} else set()
    assert said - more == of_one


def test_the_client_has_the_words_of_the_document() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    states = schemas["Job"]["properties"]["state"]["enum"]
    for words, enum in (
        (values.State, states),
        (values.OnConflict, schemas["Conflict"]["enum"]),
        (values.Outcome, schemas["Outcome"]["enum"]),
    ):
        assert {*get_args(words)} == {*enum}
