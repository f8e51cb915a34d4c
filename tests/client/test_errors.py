"""Every refusal of the daemon has a class here."""

import pytest

from delayd.client import Forbidden, Refused, errors
from delayd.client.errors import refused
from delayd.http.problems import title_of
from tests.http.rig import http_refusals

ELSEWHERE = frozenset(
    (
        *("METHOD_NOT_ALLOWED", "REQUEST_TIMEOUT", "URI_TOO_LONG", "UNSUPPORTED_MEDIA_TYPE"),
        *("EXPECTATION_FAILED", "HEADER_TOO_LONG", "NOT_IMPLEMENTED"),
        "HTTP_VERSION_NOT_SUPPORTED",
    )
)
"""Refusals of requests that this client does not send."""


def test_every_refusal_of_the_daemon_has_a_class() -> None:
    for kind in http_refusals():
        if kind.word not in ELSEWHERE:
            error = refused(kind.word, "", title_of(kind))
            assert type(error) is not Refused, kind


def test_refusals_of_one_word_are_told_apart_by_their_titles() -> None:
    titles = {title_of(kind) for kind in http_refusals()}
    assert set(errors._BY_TITLE) <= titles


def test_what_is_forbidden_names_the_scope() -> None:
    error = refused("FORBIDDEN", "the token lacks the scope put")
    assert isinstance(error, Forbidden)
    assert error.scope == "put"


def test_an_unknown_word_is_a_refusal_all_the_same() -> None:
    error = refused("TEAPOT", "short and stout")
    assert type(error) is Refused
    assert error.word == "TEAPOT"
    with pytest.raises(errors.DelaydError, match="stout"):
        raise error
