"""Refusals: each has a word, a status and a title, the same on both wires.

`HttpRig` sees that whatever is refused is told so.
"""

import importlib
import pkgutil
import re
from collections.abc import Iterator
from typing import Final

import msgspec
import pytest

import delayd.core
import delayd.http
import delayd.line
from delayd.core import errors
from delayd.core.errors import Refusal
from delayd.fields import Wrong
from delayd.http import problems
from delayd.http.problems import (
    FIELDS,
    FieldError,
    HttpRefusal,
    ProblemAnswer,
    headers_of,
    problem_of,
)
from delayd.http.request_forms import AdvanceForm, HorizonForm, KickForm, PauseForm, PutJobForm
from delayd.http.responses import refused
from delayd.limits import HTTP_ERRORS_MAX
from delayd.line import grammar, replies
from tests.pages import text_of

EXAMPLES: Final = (
    errors.JobNotFound(7),
    errors.KeyNotFound("mail", b"a"),
    errors.KeyInvalid(b"\xff \n"),
    errors.JobAlreadyExists(7, b"gr\xc3\xb6"),
    errors.TopicNotFound("mail"),
    errors.TopicNameInvalid("\udcff"),
    errors.TopicIsInternal("$idempotency"),
    errors.ValueOutOfRange("delay in ms", -1, 0, 9),
    errors.DelayTooLong(2_000, 1_000, "mail", is_moment=False),
    errors.BodyTooBig(10, 9),
    errors.LastWatched("mail"),
    errors.TooManyWatched("mail"),
    errors.Draining(),
    errors.PolicyInvalid([Wrong("ttr", "must be a duration", '"x"'), Wrong("", "it is none")]),
    errors.PolicyChanged("mail", "44136fa355b3678a", "536a641d83c29df1"),
    errors.PoliciesFull("mail"),
    errors.TargetRefused("url 'https://10.0.0.1/'", "must have a public address"),
    errors.NotForTopic("sink 'crm'", "is for the topics b*, and not for 'a'", "sink"),
    errors.PushIsOff(),
    errors.CapReached("jobs_max", 9, 9, "mail"),
    errors.GroupFull("mail", b"acme", 9, 9),
    errors.GroupMissing("mail", "key:/"),
    errors.GroupsFull("mail"),
    errors.OutOfSpace(),
    errors.ScheduleNotFound("nightly"),
    errors.ScheduleInvalid([Wrong("every", 'must be from "1s" to "366d"', '"1ms"')]),
    errors.ScheduleOver("nightly"),
    errors.ScheduleConfigured("nightly"),
    errors.SchedulesFull("nightly", 9),
    grammar.BadFormat(b"put\xff"),
    problems.NotJson("it ends too soon"),
    problems.BadRequest("no"),
    problems.RequestInvalid([FieldError("delay", "is missing"), FieldError("", "is none")]),
    problems.Unauthorized(),
    problems.Forbidden("no"),
    problems.SourceRefused("no"),
    problems.NoSuchCall("/x"),
    problems.MethodNotAllowed("PUT", ("GET", "HEAD")),
    problems.TooSlow("no"),
    problems.JobReserved(7),
    problems.ReservationLost(7),
    problems.WrongState(7, "ready", "kicked"),
    problems.KeyReused(),
    problems.IdempotencyKeysFull(3),
    problems.BodyTooLong(9),
    problems.MediaTypeWrong("no"),
    problems.TooMany("no"),
    problems.Busy("no"),
    problems.Stopping(),
    problems.NotReady("no"),
    problems.StandingBy("line a:11300"),
    problems.NoStandby("no other daemon follows the log"),
    problems.ExpectationWrong("\udcff"),
    problems.VersionWrong(),
    problems.CodingUnknown(),
    problems.NoClock(),
    problems.PathTooLong("no"),
    problems.HeaderTooLong("no"),
    problems.OurFault("no"),
)
"""One of each."""

ROW: Final = re.compile(r"^\| (\d{3}) \| `(\w+)` \| `(\w+)` \| (.*?) \|", re.MULTILINE)
KNOWN: Final = {
    kind: (word, int(status), title)
    for status, word, kind, title in ROW.findall(text_of("http.md"))
} | {
    "last_watched": ("NOT_IGNORED", 409, "A consumer must watch at least one topic."),
    "line_malformed": ("BAD_FORMAT", 400, "The line is not a well-formed command."),
    "too_many_watched": ("OUT_OF_MEMORY", 409, "A consumer may watch so many topics at most."),
}
"""What the page promises, and what the line alone answers. Clients rely on these: they are added
to, and never changed."""

each = pytest.mark.parametrize("refusal", EXAMPLES, ids=lambda refusal: type(refusal).__name__)


def every(kind: type[Refusal]) -> Iterator[type[Refusal]]:
    """Every class below this one."""
    for below in kind.__subclasses__():
        yield below
        yield from every(below)


# --- The classes ---------------------------------------------------------------------------------


def test_every_refusal_there_is_has_its_word_and_an_example() -> None:
    for package in (delayd.core, delayd.line, delayd.http):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    ours = {kind for kind in every(Refusal) if kind.__module__.startswith("delayd.")}
    ours.discard(HttpRefusal)
    assert ours == {type(refusal) for refusal in EXAMPLES}
    assert {kind.kind: (kind.word, kind.status, kind.title) for kind in ours} == KNOWN
    assert len(ours) == len(KNOWN), "two classes have one kind"


@each
def test_a_problem_says_what_the_class_and_the_case_are(refusal: Refusal) -> None:
    """And when to come again, where nothing is wrong with the request.

    Kind and title are not inherited, nor made of a docstring or of the name of the class.
    """
    kind = type(refusal)
    assert {"kind", "title"} <= vars(kind).keys()
    assert re.fullmatch("[a-z]+(_[a-z]+)*", refusal.kind)
    answer = refused(refusal)
    assert answer.status == kind.status
    problem = msgspec.json.decode(answer.body, type=ProblemAnswer)
    assert problem.type == f"urn:delayd:{kind.word}"
    assert re.fullmatch("[A-Z_]+", problem.word)
    said = (problem.word, problem.status, problem.title)
    assert said == (kind.word, kind.status, kind.title) == KNOWN[problem.kind]
    assert re.fullmatch(r"[A-Z][^.]*(\. [A-Z][^.]*)?\.", problem.title), "a sentence"
    assert problem.detail == str(refusal)
    assert problem.detail
    assert answer.media_type == "application/problem+json"
    headers, comes_again = headers_of(refusal), refusal.status in {429, 503, 507}
    assert (refusal.retry_after_s is not None) == comes_again
    assert headers.get("Retry-After", "").isdigit() == comes_again
    assert ("WWW-Authenticate" in headers) == (refusal.status == 401)
    assert ("Allow" in headers) == (refusal.status == 405)
    line = replies.refused(refusal)
    assert line.endswith(b"\r\n")
    assert line.split()[0].decode() == (refusal.line_word or problem.word)


def test_only_what_clients_of_beanstalkd_meet_unawares_has_another_word_on_the_line() -> None:
    """`FORBIDDEN` is for who has shown a token; for all others there is nothing to change."""
    others = {type(refusal): refusal.line_word for refusal in EXAMPLES if refusal.line_word}
    assert others == {errors.TopicIsInternal: errors.TopicNotFound.word}


@pytest.mark.compiled_skip("compiled classes do not tell the names of their arguments")
def test_the_job_that_is_in_the_way_is_named() -> None:
    named = {type(refusal) for refusal in EXAMPLES if problem_of(refusal).job_id}
    assert named == {kind for kind in map(type, EXAMPLES) if _is_about_job(kind)} - {
        errors.JobNotFound
    }


def _is_about_job(kind: type[Refusal]) -> bool:
    if issubclass(kind, problems.HttpRefusal):
        return kind.sentence.startswith("job {}")
    return "__init__" in vars(kind) and "job_id" in kind.__init__.__code__.co_varnames


def test_fields_are_named_as_the_request_has_them() -> None:
    for core, field in (
        ("delay in ms", "delay"),
        ("moment in ms", "at"),
        ("ttr in ms", "ttr"),
        ("pause in ms", "duration"),
        ("time in ms", "by"),
        ("jobs a second", "per_second"),
        ("span in ms", "horizon"),
        ("retry steps", "retry"),
        ("retry step in ms", "retry"),
        ("attempts", "max_attempts"),
        ("jitter in percent", "jitter_percent"),
        ("priority", "priority"),
    ):
        (error,) = problems.errors_of(errors.ValueOutOfRange(core, 9, 0, 1))
        assert error.field == field
    forms = (PutJobForm, PauseForm, AdvanceForm, KickForm, HorizonForm)
    assert {*FIELDS.values()} <= {name for form in forms for name in form.__struct_fields__}
    for is_moment, field in ((False, "delay"), (True, "at")):
        refusal = errors.DelayTooLong(2_000, 1_000, "mail", is_moment=is_moment)
        assert [error.field for error in problems.errors_of(refusal)] == [field]
    wrong = [Wrong("ttr", "is none", '"x"'), Wrong("a b", "is none"), Wrong("", "it is none")]
    assert problems.errors_of(errors.PolicyInvalid(wrong)) == [
        FieldError("ttr", '"x": is none'),
        FieldError("a b", "is none"),
        FieldError("", "it is none"),
    ]


def test_of_many_mistakes_the_sentence_names_three_and_the_list_so_many() -> None:
    refusal = problems.RequestInvalid([FieldError(f"f{n}", "is wrong") for n in range(1_000)])
    assert str(refusal) == "f0: is wrong; f1: is wrong; f2: is wrong ..."
    assert len(refusal.errors) == HTTP_ERRORS_MAX
    assert msgspec.json.encode(problem_of(refusal))
