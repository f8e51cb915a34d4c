"""Bodies and what is wrong with them: all of it at once, and never for long."""

import msgspec
import pytest

from delayd.http.parsing import Form, Reader
from delayd.http.problems import FieldError, RequestInvalid
from delayd.http.request_forms import (
    HeldForm,
    HeldManyForm,
    PutJobForm,
    PutJobsForm,
    ReserveAnyForm,
)
from delayd.limits import HTTP_BATCH_MAX, HTTP_CONTAINERS_MAX, HTTP_TOPICS_MAX


def refusal_of(kind: type[Form], body: bytes) -> RequestInvalid:
    with pytest.raises(RequestInvalid) as caught:
        Reader(kind).read(body)
    return caught.value


def errors_of(kind: type[Form], body: bytes) -> list[tuple[str, str]]:
    return [(error.field, error.detail) for error in refusal_of(kind, body).errors]


@pytest.mark.parametrize(
    ("kind", "field", "item", "items_max"),
    [
        (PutJobsForm, "jobs", "1", HTTP_BATCH_MAX),
        (HeldManyForm, "tokens", '"nonsense"', HTTP_BATCH_MAX),
        (ReserveAnyForm, "topics", '"a"', HTTP_TOPICS_MAX),
    ],
)
def test_of_a_list_that_is_too_long_no_item_is_looked_at(
    kind: type[Form], field: str, item: str, items_max: int
) -> None:
    body = f'{{"{field}": [{", ".join([item] * (items_max + 1))}]}}'.encode()
    (error,) = refusal_of(kind, body).errors
    assert error == FieldError(field, f"has more than {items_max} items")


@pytest.mark.parametrize("token", ["", "foo", "x" * 61, "1-x-1", "dlyd_0a1b2c3d_secret"])
def test_what_is_no_token_of_a_reservation_is_told_what_one_looks_like(token: str) -> None:
    rule = 'must be what the reserve gave with the job, such as "17-19e0a2b3c4d-1"'
    body = msgspec.json.encode({"token": token})
    assert errors_of(HeldForm, body) == [("token", rule)]
    body = msgspec.json.encode({"tokens": ["17-19e0a2b3c4d-1", token]})
    assert errors_of(HeldManyForm, body) == [("tokens[1]", rule)]


def test_a_token_of_another_kind_and_no_tokens_at_all_are_told_as_such() -> None:
    assert errors_of(HeldForm, b'{"token": 7}') == [("token", "must be a text, not a whole number")]
    assert errors_of(HeldManyForm, b'{"tokens": []}') == [("tokens", "must be at least 1 long")]
    Reader(HeldForm).read(b'{"token": "17-19e0a2b3c4d-1"}')


@pytest.mark.parametrize("inner", [b"[]", b"{}"])
def test_a_body_of_very_many_arrays_or_objects_is_not_read(inner: bytes) -> None:
    body = b"[%b]" % b",".join([inner] * (HTTP_CONTAINERS_MAX - 1))
    Reader(PutJobForm).read(b'{"body":%b}' % body)
    body = b"[%b,%b" % (inner, body[1:])
    assert errors_of(PutJobForm, b'{"body":%b}' % body) == [
        ("body", "has more than 250000 arrays and objects: send it in base64")
    ]
