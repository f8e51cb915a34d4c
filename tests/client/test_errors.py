"""Every refusal of the daemon has a class here."""

import pytest

from delayd.client import Forbidden, NotFound, Refused, TopicNotFound, errors
from delayd.client.errors import refused
from delayd.line.grammar import BadFormat
from tests.rigs.http import http_refusals

ELSEWHERE = frozenset(
    (
        *("METHOD_NOT_ALLOWED", "REQUEST_TIMEOUT", "URI_TOO_LONG", "UNSUPPORTED_MEDIA_TYPE"),
        *("EXPECTATION_FAILED", "HEADER_TOO_LONG", "NOT_IMPLEMENTED"),
        "HTTP_VERSION_NOT_SUPPORTED",
    )
)
"""Refusals of requests that this client does not send."""


def test_every_refusal_of_the_daemon_has_a_class_and_where_there_is_one_that_of_its_name() -> None:
    of_its_name = 0
    for kind in http_refusals():
        error = refused(kind.word, "", kind=kind.kind)
        assert (type(error) is Refused) == (kind.word in ELSEWHERE), kind
        assert error.kind == kind.kind
        named = getattr(errors, kind.kind.title().replace("_", ""), None)
        assert named in {None, type(error)}
        of_its_name += named is not None
    assert of_its_name > 20


def test_the_class_is_the_same_for_a_daemon_that_knows_no_kinds() -> None:
    for kind in http_refusals():
        by_kind, by_title = (
            type(refused(kind.word, "", title=title, kind=name))
            for title, name in (("", kind.kind), (kind.title, ""))
        )
        assert by_kind is by_title, kind


def test_the_kinds_and_titles_that_the_client_knows_are_those_of_the_daemon() -> None:
    kinds = {kind.kind for kind in http_refusals()}
    assert set(errors._BY_KIND) - {BadFormat.kind} <= kinds
    assert set(errors._BY_TITLE) <= {kind.title for kind in http_refusals()}


def test_what_another_version_answers_is_of_the_class_of_its_kind_or_else_of_its_word() -> None:
    assert type(refused("NOT_FOUND", "gone", "Is gone.", kind="shelf_not_found")) is NotFound
    for title in ("", "The key is invalid.", "There is nothing."):
        assert type(refused("NOT_FOUND", "gone", title, kind="topic_not_found")) is TopicNotFound
    forbidden = refused("FORBIDDEN", "the token lacks the scope put")
    assert isinstance(forbidden, Forbidden)
    assert forbidden.scope == "put"
    with pytest.raises(Refused, match="stout") as unknown:
        raise refused("TEAPOT", "short and stout")
    assert (type(unknown.value), unknown.value.word) == (Refused, "TEAPOT")
