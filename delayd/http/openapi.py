"""The API as an OpenAPI 3.1 document, made of the tables and structs that the daemon uses.

    routes      the calls: summary, contents, answers, and the scope that each needs
    request_forms, answer_forms, values     the schemas
    problems    the refusals of a call: status, word, headers

Nothing is written twice: a mistake here is one of the daemon too. Making the document takes 20 ms.

>>> from delayd.http.routes import ROUTES
>>> put = document(ROUTES)["paths"]["/v1/topics/{topic}/jobs"]["post"]
>>> put["operationId"], sorted(put["responses"])[:4]
('put_job', ['200', '201', '207', '400'])

Clients are made of it by programs that each know a part of OpenAPI (`tests/clients`). So every
refusal is the one schema `Problem`, and its words and kinds are examples; what a token may be for
is said in texts, and beside no call that one is needed; and no member of a request has a `default`,
which is for some what an answer always has.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import msgspec
import orjson

from delayd import __version__
from delayd.access.scopes import Scope
from delayd.build_kind import LACKS_DOCSTRINGS, docstrings_of
from delayd.core.errors import KeyInvalid, PolicyChanged, Refusal, TopicIsInternal, TopicNameInvalid
from delayd.core.operations.put import Outcome
from delayd.fields import text_schema
from delayd.http import problems
from delayd.http.answer_forms import PolicyOfTopicAnswer, PutAnswer, ReservedAnswer
from delayd.http.form_reader import Form, form_in, rules_of
from delayd.http.idempotency import HEADER as IDEMPOTENCY_KEY
from delayd.http.routing import Response, Route, Section
from delayd.http.values import ANY_TAG, KINDS, ONE_TAG, Duration
from delayd.limits import HTTP_BODY_BYTES_DEFAULT, IDEMPOTENCY_KEY_BYTES_MAX, JOB_ID_MAX
from delayd.net.addresses import HTTP_LISTEN_DEFAULT
from delayd.schedules.definition import Overlap
from delayd.schedules.progress import ScheduleState

Schema = dict[str, Any]
Refusals = tuple[type[Refusal], ...]
"""All refusals of one status."""

_REF: Final = "#/components/schemas/{name}"
_FORMER_NAMES: Final[Mapping[type[Refusal], str]] = {TopicIsInternal: "TopicIsOwn"}
"""Former names of refusals, since the name of a response never changes."""
_SUFFIX: Final = re.compile(rb'"(#/components/schemas/)?(\w+?)(?:Answer|Form)"')
"""The ending of a struct's name that its schema does not have."""
_OF_ALL: Final = (
    *(problems.BadRequest, problems.Forbidden, problems.SourceRefused),
    *(problems.TooSlow, problems.PathTooLong, problems.ExpectationWrong),
    *(problems.TooMany, problems.HeaderTooLong, problems.OurFault, problems.CodingUnknown),
    *(problems.Stopping, problems.StandingBy, problems.Busy, problems.VersionWrong),
)
"""Refusals of any request; a request of a web page is forbidden."""
_LOOKING: Final = frozenset({None, Scope.PEEK, Scope.STATS})
"""The scopes of calls that change nothing."""
_OF_BODIES: Final = (
    *(problems.NotJson, problems.RequestInvalid),
    *(problems.MediaTypeWrong, problems.BodyTooLong),
)
_ABOUT: Final = """\
delayd keeps jobs safe until their time and then hands them to workers.

Lengths of time are seconds, or texts such as `15s` and `1h30m`; moments are RFC 3339 or seconds \
since 1970. What is answered is on disk. A refusal is a problem (RFC 9457) that names everything \
that is wrong, and has changed nothing. Members may be added to answers in later versions: ignore \
those that you do not know.

With tokens configured a call needs one that has its scope, for its topic.\
"""


def document(routes: Sequence[Route]) -> Schema:
    """Return the document for these calls."""
    paths: dict[str, Schema] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    whole = {
        "openapi": "3.1.0",
        "info": {
            "title": "delayd",
            "version": __version__,
            "description": _ABOUT,
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [
            {
                "url": f"http://{HTTP_LISTEN_DEFAULT}",
                "description": "Where a daemon listens, unless its `http.listen` says otherwise.",
            }
        ],
        "security": [{"token": []}, {}],
        "tags": [{"name": section.heading, "description": section.about} for section in Section],
        "paths": paths,
        "components": {
            "schemas": _schemas(routes),
            "responses": _problems(routes),
            "examples": _examples(routes),
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "What `delayd token create` printed: `Authorization: Bearer "
                    "dlyd_...`. The description of each call names the scope that its token needs. "
                    "Without `auth.tokens` in the configuration no call needs one.",
                }
            },
        },
    }
    renamed: Schema = orjson.loads(_SUFFIX.sub(rb'"\1\2"', orjson.dumps(whole)))
    return renamed


# --- Schemas -------------------------------------------------------------------------------------


def _ref(kind: type) -> Schema:
    return {"$ref": _REF.format(name=kind.__name__)}


def _value_ref(kind: type) -> Schema:
    assert kind in KINDS, f"{kind} is in no table of values"
    return _ref(kind)


def _schemas(routes: Sequence[Route]) -> Schema:
    """Return the schemas of all bodies, by name."""
    forms = {kind for route in routes for kind in (route.form, route.batch) if kind is not None}
    responses = chain.from_iterable(route.responses.values() for route in routes)
    replies: set[type] = {
        problems.ProblemAnswer,
        *chain.from_iterable(one.structs for one in responses),
    }
    of_forms = _components(forms)
    for kind in _all_forms(forms):
        schema = of_forms[kind.__name__]
        schema["additionalProperties"] = False
        for member in schema["properties"].values():
            _describe_default(member)
        rules = [rule.schema for rule in rules_of(kind)]
        if rules:
            schema["allOf"] = rules
    of_answers = _components(replies)
    for schema in of_answers.values():
        schema.pop("additionalProperties", None)  # there may be more in later versions
    values = {kind.__name__: value.schema for kind, value in KINDS.items()}
    return dict(sorted({**values, **of_forms, **of_answers}.items()))


def _describe_default(member: Schema) -> None:
    """Say in words what a member is by default."""
    default, about = member.pop("default", ""), member.get("description", "")
    if default != "" and "by default" not in about:
        member["description"] = f"{about} {default} by default.".strip()


def _components(kinds: Iterable[type]) -> dict[str, Schema]:
    by_name = sorted(kinds, key=lambda kind: kind.__name__)
    found = msgspec.json.schema_components(by_name, schema_hook=_value_ref, ref_template=_REF)[1]
    if LACKS_DOCSTRINGS:
        for module in {kind.__module__ for kind in (*by_name, Outcome, Overlap, ScheduleState)}:
            for name, docstring in docstrings_of(module).items():
                if name in found:
                    found[name].setdefault("description", docstring)
    return found


def _all_forms(forms: Iterable[type[Form]]) -> set[type[Form]]:
    """Return these forms and those that are in lists of theirs."""
    found = set(forms)
    for form in forms:
        found |= {inner for field in msgspec.structs.fields(form) if (inner := form_in(field.type))}
    return found


# --- Calls ---------------------------------------------------------------------------------------


def _operation(route: Route) -> Schema:
    about = route.about
    if route.scope is not None:
        about += f"\n\nScope: `{route.scope.value}`."
    operation: Schema = {
        "operationId": route.name,
        "tags": [route.section.heading],
        "summary": route.summary,
        "description": about.strip(),
        "parameters": [*_parameters(route)],
    }
    if not route.is_guarded:
        operation["security"] = []
    if route.form is not None:
        operation["requestBody"] = _request_body(route)
    operation["responses"] = {
        str(status): response for status, response in sorted(_responses(route).items())
    }
    return operation


def _request_body(route: Route) -> Schema:
    kinds = [kind for kind in (route.form, route.batch) if kind is not None]
    about = f"{HTTP_BODY_BYTES_DEFAULT:,} bytes at most, or `http.body_bytes_max`."
    if route.may_be_empty:
        about += " An empty one is taken as `{}`."
    if route.form is not None and route.batch is not None:
        each = route.form.__name__.removesuffix("Form")
        about += f" A batch may also be one {each} in JSON on each line, as `{problems.LINES}`."
    return {
        "description": about,
        "required": True,
        "content": {problems.JSON: {"schema": _one_of(kinds)}},
    }


def _one_of(kinds: Sequence[type]) -> Schema:
    refs = [_ref(kind) for kind in kinds]
    return refs[0] if len(refs) == 1 else {"anyOf": refs}


_IN_PATHS: Final[Mapping[str, Schema]] = {
    "topic": {"$ref": _REF.format(name="TopicName")},
    "key": {"$ref": _REF.format(name="Key")},
    "group": {"$ref": _REF.format(name="GroupName")},
    "name": {"$ref": _REF.format(name="ScheduleName")},
    "id": {"type": "integer", "minimum": 1, "maximum": JOB_ID_MAX, "examples": [17]},
}


def _parameters(route: Route) -> Iterable[Schema]:
    """Yield the parameters in path, query and header."""
    for name in re.findall(r"{(\w+)}", route.path):
        yield {"name": name, "in": "path", "required": True, "schema": _IN_PATHS[name]}
    if route.query is not None:
        yield from map(_query_parameter, msgspec.structs.fields(route.query))
    if problems.KeyReused in route.refusals:
        yield {
            "name": IDEMPOTENCY_KEY,
            "in": "header",
            "required": False,
            "description": "The same request with the same text, sent again within a day, makes no "
            "second job. For one job without a key; not for a batch.",
            "schema": {"type": "string", "minLength": 1, "maxLength": IDEMPOTENCY_KEY_BYTES_MAX},
        }
    if PolicyChanged in route.refusals:
        yield {
            "name": "If-Match",
            "in": "header",
            "required": False,
            "description": "The `ETag` of the policy as it was read: if it has changed since,"
            " nothing is set.",
            "schema": text_schema(f"{ONE_TAG}|{re.escape(ANY_TAG)}"),
        }


def _query_parameter(field: msgspec.structs.FieldInfo) -> Schema:
    ((schema,), _) = msgspec.json.schema_components(
        [field.type], schema_hook=_value_ref, ref_template=_REF
    )
    about = schema.pop("description", "")
    if isinstance(field.default, str | int | float) and field.default not in {"", 0}:
        schema["default"] = (
            field.default / 1_000 if isinstance(field.default, Duration) else field.default
        )
    return {
        "name": field.encode_name,
        "in": "query",
        "required": field.required,
        "description": about,
        "schema": schema,
    }


# --- Answers -------------------------------------------------------------------------------------


def _responses(route: Route) -> dict[int, Schema]:
    found = {status: _response(response) for status, response in route.responses.items()}
    for status, refusals in _refusals_by_status(route).items():
        assert status not in found, route.path
        found[status] = {"$ref": f"#/components/responses/{_name_of(refusals)}"}
    return found


def _refusals_by_status(route: Route) -> dict[int, Refusals]:
    by_status: dict[int, Refusals] = {}
    for refusal in dict.fromkeys(refusals_of(route)):
        by_status[refusal.status] = (*by_status.get(refusal.status, ()), refusal)
    return by_status


def _name_of(refusals: Refusals) -> str:
    """Return the name of the response for these; many calls share it."""
    return ".".join(_FORMER_NAMES.get(refusal, refusal.__name__) for refusal in refusals)


def _problems(routes: Iterable[Route]) -> Schema:
    """Return the responses for refusals, by name."""
    kinds = {kinds for route in routes for kinds in _refusals_by_status(route).values()}
    return {_name_of(refusals): _problem(refusals) for refusals in sorted(kinds, key=_name_of)}


def _examples(routes: Iterable[Route]) -> Schema:
    """Return a problem of each kind, by the kind."""
    kinds = {refusal for route in routes for refusal in refusals_of(route)}
    return {
        refusal.kind: {
            "summary": refusal.title,
            "value": {
                "type": f"urn:delayd:{refusal.word}",
                "title": refusal.title,
                "status": refusal.status,
                "detail": refusal.title,
                "word": refusal.word,
                "kind": refusal.kind,
            },
        }
        for refusal in sorted(kinds, key=lambda refusal: refusal.kind)
    }


def refusals_of(route: Route) -> Iterable[type[Refusal]]:
    """Yield the refusals of a call; some twice."""
    yield from _OF_ALL
    if route.is_guarded:
        yield problems.Unauthorized
    if route.form is not None:
        yield from _OF_BODIES
    if route.query is not None or "{id}" in route.path or "{group}" in route.path:
        yield problems.RequestInvalid
    if "{topic}" in route.path:
        yield TopicNameInvalid
    if "{key}" in route.path:
        yield KeyInvalid
    if route.scope not in _LOOKING and ("{topic}" in route.path or "{id}" in route.path):
        yield TopicIsInternal
    yield from route.refusals


def _links(kind: type) -> Schema:
    """Return the links from such an answer to other calls, by name."""
    links: Schema = {}
    if kind is PutAnswer:
        for name in ("get_job", "change_job", "cancel_job"):
            links[name] = {"operationId": name, "parameters": {"id": "$response.body#/id"}}
    if kind is ReservedAnswer:
        for name in ("ack", "nack", "touch", "bury"):
            links[name] = {
                "operationId": name,
                "parameters": {"id": "$response.body#/jobs/0/id"},
                "requestBody": {"token": "$response.body#/jobs/0/token"},
            }
    return links


def _response(response: Response) -> Schema:
    schema: Schema = {"description": response.when}
    links = {name: link for kind in response.structs for name, link in _links(kind).items()}
    if links:
        schema["links"] = links
    if PutAnswer in response.structs:
        location = _header("Leads to the job.", {"type": "string"})
        location["required"] = len(response.structs) == 1  # a batch has none
        schema["headers"] = {"Location": location}
    if PolicyOfTopicAnswer in response.structs:
        etag = _header("The `policy_tag`, in quotes.", {"type": "string"})
        schema["headers"] = {"ETag": etag}
    if response.structs:
        schema["content"] = {problems.JSON: {"schema": _one_of(response.structs)}}
    elif response.media:
        kind = "object" if response.media == problems.JSON else "string"
        schema["content"] = {response.media: {"schema": {"type": kind}}}
    return schema


def _problem(refusals: Refusals) -> Schema:
    """Return the response for refusals of one status."""
    by_word: dict[str, list[str]] = {}
    for refusal in refusals:
        by_word.setdefault(refusal.word, []).append(refusal.title)
    lines = [f"`{word}`: {' '.join(dict.fromkeys(titles))}" for word, titles in by_word.items()]
    examples = {
        refusal.kind: {"$ref": f"#/components/examples/{refusal.kind}"} for refusal in refusals
    }
    response: Schema = {
        "description": "\n\n".join(lines),
        "content": {
            problems.CONTENT_TYPE: {"schema": _ref(problems.ProblemAnswer), "examples": examples}
        },
    }
    headers = {}
    if any(refusal.retry_after_s is not None for refusal in refusals):
        about = "After so many seconds it may go better."
        headers["Retry-After"] = _header(about, {"type": "integer", "minimum": 1})
    if problems.Unauthorized in refusals:
        headers["WWW-Authenticate"] = _header("Bearer, of this realm.", {"type": "string"})
    if headers:
        response["headers"] = headers
    return response


def _header(about: str, schema: Schema) -> Schema:
    return {"description": about, "required": True, "schema": schema}
