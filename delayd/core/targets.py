r"""Targets: where due jobs are delivered.

A target is a url that is called, another topic of this daemon, or a sink that the configuration
names; exactly one of these. A topic has one by its policy (`push`), an object of JSON or TOML. A
job may have a url of its own, which its record has as the head of a request, in text:

>>> own = pack_own("POST", "https://example.com/a?b", (("X-Team", "mail"),))
>>> own
b'POST https://example.com/a?b\nX-Team: mail'
>>> own_target(own) == Target(url="https://example.com/a?b", headers=(("X-Team", "mail"),))
True
>>> origin_of(own)
b'https://example.com'
>>> target = read_target({"topic": "mail.out", "concurrency": 2})
>>> target.topic, target_fields(target)
('mail.out', {'concurrency': 2, 'topic': 'mail.out'})
>>> read_target({"sink": "a b"})
Traceback (most recent call last):
delayd.fields.Invalid: sink = "a b": must be 1 to 64 of A-Z a-z 0-9 . _ -

This is about the form only. Whether a url may be called, and whether a secret or a sink exists, is
checked by `Engine.vet_target`.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from delayd.core.names import TOPIC
from delayd.durations import any_case
from delayd.fields import (
    UNSEEN,
    Field,
    Invalid,
    Schema,
    ValueKind,
    Wrong,
    duration,
    list_of,
    matching,
    number,
    one_of,
    read_all,
    shown,
    text_schema,
    whole,
    written,
)
from delayd.limits import (
    PUSH_TIMEOUT_MS_MAX,
    PUSH_TIMEOUT_MS_MIN,
    RATE_PER_S_MAX,
    RATE_PER_S_MIN,
    TARGET_CONCURRENCY_MAX,
    TARGET_HEADER_NAME_BYTES_MAX,
    TARGET_HEADERS_BYTES_MAX,
    TARGET_HEADERS_MAX,
    TARGET_NAME_BYTES_MAX,
    TARGET_SECRETS_MAX,
    TARGET_TOPICS_MAX,
    TARGET_URL_BYTES_MAX,
)
from delayd.text import MASK, shown_url

METHODS: Final = ("POST", "PUT", "PATCH", "GET", "DELETE")
"""HEAD is none: the answer of a job's call is kept, and a HEAD has none."""
NAME_RULE: Final = f"must be 1 to {TARGET_NAME_BYTES_MAX} of A-Z a-z 0-9 . _ -"
KINDS: Final = ("url", "topic", "sink")

SENT_BY_DELAYD: Final = frozenset(
    (
        *("webhook-id", "webhook-timestamp", "webhook-signature", "idempotency-key"),
        *("user-agent", "traceparent", "tracestate"),
    )
)
"""Headers of a call that say what delayd knows; so do all whose names begin with `delayd-`."""
_DELAYD: Final = "delayd-"
_OF_THE_CONNECTION: Final = frozenset(
    (
        *("host", "content-length", "transfer-encoding", "connection", "keep-alive", "te"),
        *("trailer", "upgrade", "expect", "proxy-connection", "proxy-authorization"),
        *("http2-settings", "accept-encoding"),
    )
)

# `re` compiles these at their first use, and keeps them.
_SCHEME: Final = f"{any_case('http')}[sS]?://"
_URL: Final = rf"{_SCHEME}[^{UNSEEN}/?#\\@]+(?:[/?][^{UNSEEN}#\\]*)?"
_HEADER_NAME: Final = rf"[!#$%&'*+.^_`|~0-9A-Za-z-]{{1,{TARGET_HEADER_NAME_BYTES_MAX}}}"
_NOT_PRINTABLE: Final = "must be printable, without spaces"
_HEADER_VALUE: Final = r"(?:[!-~](?:[ !-~]*[!-~])?)?"


def _folded_pattern(name: str) -> str:
    """Return the pattern of names that `folded` makes this one."""
    return "[^a-zA-Z0-9]".join(map(any_case, name.split("-")))


_TAKEN_NAMES: Final = sorted((*_OF_THE_CONNECTION, *SENT_BY_DELAYD, "proxy"))
_TAKEN: Final = "|".join(
    (
        *map(_folded_pattern, _TAKEN_NAMES),
        f"{_folded_pattern(_DELAYD)}.*",
        f"(?!{any_case('content')}-){_folded_pattern('content-type')}",
    )
)


class Target(NamedTuple):
    """Where jobs go: exactly one of `url`, `topic` and `sink` is not empty."""

    url: str = ""
    topic: str = ""
    sink: str = ""
    method: str = "POST"
    headers: tuple[tuple[str, str], ...] = ()
    timeout_ms: int = 0
    """How long an attempt may take; 0: as the daemon is configured."""
    secrets: tuple[str, ...] = ()
    """Names of the secrets to sign with; none: as the daemon is configured."""
    concurrency: int = 0
    """How many attempts may be under way at once; 0: as the daemon is configured."""
    rate_per_s: int | float = 0
    """How many attempts may begin in a second; 0: as many as the topic hands out."""


# --- A policy's target ---------------------------------------------------------------------------


def _read_url(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a text")  # noqa: TRY004 - as for all that is wrong
    try:
        is_long = len(value.encode()) > TARGET_URL_BYTES_MAX
    except UnicodeEncodeError:  # half of a surrogate pair
        raise ValueError(_NOT_PRINTABLE) from None
    if is_long:
        raise ValueError(f"must have at most {TARGET_URL_BYTES_MAX} bytes")
    if re.fullmatch(_URL, value) is None:
        raise ValueError(_rule_of_url(value))
    return value


def _rule_of_url(value: str) -> str:
    """Return the rule that a url breaks."""
    if re.search(f"[{UNSEEN}]", value):
        return _NOT_PRINTABLE
    if "#" in value or "\\" in value:
        return "must have neither # nor \\"
    if re.match(f"{_SCHEME}[^/?]", value):
        return "must not name a user or a password: use headers"
    return "must begin with https:// or http:// and name a host"


def _read_headers(value: object) -> tuple[tuple[str, str], ...]:
    """Read an object of names and values; all that is wrong is named."""
    if not isinstance(value, Mapping) or len(value) > TARGET_HEADERS_MAX:
        raise ValueError(f"must be an object of at most {TARGET_HEADERS_MAX} names and values")
    headers: list[tuple[str, str]] = []
    errors = []
    names: set[str] = set()
    for name, text in value.items():
        rule = _broken_by(name, text, names)
        if rule:
            errors.append(f"{shown(name)} {rule}")
        else:
            headers.append((str(name), str(text)))
            names.add(str(name).lower())
    if errors:
        raise ValueError("; ".join(errors))
    if sum(len(name) + len(text) for name, text in headers) > TARGET_HEADERS_BYTES_MAX:
        raise ValueError(f"must have at most {TARGET_HEADERS_BYTES_MAX} bytes together")
    return tuple(sorted(headers))  # the order says nothing, and has one spelling


def _broken_by(name: object, text: object, names: set[str]) -> str:
    """Return the rule that a header breaks beside others of these names; empty: none."""
    if not isinstance(name, str) or re.fullmatch(_HEADER_NAME, name) is None:
        return f"is no name of a header, of at most {TARGET_HEADER_NAME_BYTES_MAX} bytes"
    lower = name.lower()
    if lower in _OF_THE_CONNECTION:
        return "belongs to the connection"
    if lower in SENT_BY_DELAYD or lower.startswith(_DELAYD):
        return "is sent by delayd itself"
    if lower in names:
        return "is given twice"
    if not isinstance(text, str) or re.fullmatch(_HEADER_VALUE, text) is None:
        return "must be printable ASCII, without spaces at its ends"
    return ""


def folded(name: str) -> str:
    """Return what a receiver may take the name of a header for.

    By CGI and WSGI a header is a variable: all but letters and digits may become `_` there, so
    that two names become one.

    >>> folded("Delayd_Topic"), folded("Content.Length")
    ('delayd-topic', 'content-length')
    """
    return re.sub("[^a-z0-9]", "-", name.lower())


def is_taken(name: str) -> bool:
    """Tell whether a receiver may take the header for one that only delayd sends.

    Content-Type may be given, in this spelling only. Of `Proxy` CGI makes the variable HTTP_PROXY,
    by which the receiver's own calls would go.
    """
    return re.fullmatch(_TAKEN, name) is not None


def ambiguous_headers(headers: Iterable[tuple[str, str]]) -> str:
    """Return the rule that headers break which some receivers take for others; empty: none.

    Checked when a target is set, and not when one is read: the log may have one that was set
    before this rule, and what is sent leaves these out (`push.webhook`).

    >>> ambiguous_headers([("X-Team", "a"), ("X-Mail", "a"), ("X_Team", "a")])
    '"X_Team" is "X-Team" to some receivers, which is given too'
    """
    by_folded: dict[str, str] = {}
    for name, _ in headers:
        meant = folded(name)
        if is_taken(name):
            return f"{shown(name)} is {shown(meant)} to some receivers, which no job may set"
        if meant in by_folded:
            first = shown(by_folded[meant])
            return f"{shown(name)} is {first} to some receivers, which is given too"
        by_folded[meant] = name
    return ""


def _read_secrets(value: object) -> tuple[str, ...]:
    names: tuple[str, ...] = _SECRETS.read(value)
    if len(set(names)) < len(names):
        raise ValueError("must not name a secret twice")
    return names


METHOD: Final = one_of({method: method for method in METHODS}).described(
    "Of the request to the url; POST by default."
)
URL: Final = ValueKind(
    _read_url,
    schema=text_schema(_URL, 1, TARGET_URL_BYTES_MAX),
).described(
    "The job is sent there when it is due: see docs/push.md. Needs the scope webhook.",
    "https://example.com/jobs",
)
HEADERS: Final = ValueKind(
    _read_headers,
    dict,
    {
        "type": "object",
        "propertyNames": text_schema(f"(?!(?:{_TAKEN})$){_HEADER_NAME}"),
        "additionalProperties": text_schema(_HEADER_VALUE),
        "maxProperties": TARGET_HEADERS_MAX,
    },
).described(
    "Of the request to the url, besides those that delayd sends itself.", {"X-Team": "mail"}
)
NAME: Final = matching(f"[A-Za-z0-9._-]{{1,{TARGET_NAME_BYTES_MAX}}}", NAME_RULE)
"""The name of a secret or of a sink."""
RATE: Final = number(RATE_PER_S_MIN, RATE_PER_S_MAX)
_SECRETS: Final = list_of(
    NAME, f"must be 1 to {TARGET_SECRETS_MAX} names of secrets", 1, TARGET_SECRETS_MAX
)
_SECRETS_ONCE: Final = ValueKind(
    _read_secrets, _SECRETS.show, {**_SECRETS.schema, "uniqueItems": True}
)
_TIMEOUT: Final = duration(PUSH_TIMEOUT_MS_MIN, PUSH_TIMEOUT_MS_MAX)

TARGET_FIELDS: Final = (
    Field("concurrency", "concurrency", whole(1, TARGET_CONCURRENCY_MAX)),
    Field(
        "headers", "headers", HEADERS, is_secret=True
    ),  # errors have its names, and not its values
    Field("method", "method", METHOD),
    Field("rate_per_s", "rate_per_s", RATE),
    Field("secrets", "secrets", _SECRETS_ONCE),
    Field("sink", "sink", NAME),
    Field("timeout", "timeout_ms", _TIMEOUT),
    Field("topic", "topic", TOPIC),
    Field("url", "url", URL),
)
_OF_CALLS: Final = ("headers", "method", "secrets")
"""Fields that say something of a url only."""
_NOTHING: Final = Target()


def read_target(value: object) -> Target:
    """Read a target as a policy has it.

    Raises `Invalid` with all fields that are wrong, and else `ValueError` with the rule.
    """
    if not isinstance(value, Mapping):
        raise ValueError('must be an object such as {"url": "https://example.com/jobs"}')  # noqa: TRY004 - as for all that is wrong
    errors: list[Wrong] = []
    target = _NOTHING
    try:
        target = Target(**read_all(value, TARGET_FIELDS, takes_null=True))
    except Invalid as wrong:
        errors += wrong.errors
    kinds = [name for name in KINDS if value.get(name) is not None]
    if len(kinds) != 1:
        errors.append(Wrong("", "must have exactly one of url, topic and sink"))
    elif kinds != ["url"]:
        errors += [
            Wrong(name, "is for a url only") for name in _OF_CALLS if value.get(name) is not None
        ]
    if errors:
        raise Invalid(errors)
    return target


def target_fields(target: Target) -> dict[str, object]:
    """Write a target as `read_target` reads it, in one spelling; defaults are left out."""
    return written(TARGET_FIELDS, target, _NOTHING)


def _only_schema(kind: str) -> Schema:
    """Return the schema of targets of this kind, which have nothing that is for another one."""
    others = [name for name in KINDS if name != kind] + ([] if kind == "url" else [*_OF_CALLS])
    absent = {name: {"type": "null"} for name in others}
    return {"required": [kind], "properties": {kind: {"type": "string"}, **absent}}


TARGET: Final = ValueKind(
    read_target,
    target_fields,
    {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            field.name: {"anyOf": [field.kind.schema, {"type": "null"}]} for field in TARGET_FIELDS
        },
        "allOf": [{"anyOf": [*map(_only_schema, KINDS)]}],
    },
)


def masked(target: Target) -> Target:
    """Return the target as it is shown to clients that may not see its secrets.

    >>> masked(Target(url="https://example.com/jobs?key=s3", headers=(("X-Api-Key", "s3"),)))
    ... # doctest: +ELLIPSIS
    Target(url='https://example.com/jobs?***', ..., headers=(('X-Api-Key', '***'),), ...)
    """
    return target._replace(
        url=shown_url(target.url) if target.url else "",
        headers=tuple((name, MASK) for name, _ in target.headers),
    )


# --- Topics that push to topics -----------------------------------------------------------------


def way_back(topic: str, target: str, target_of: Callable[[str], Target | None]) -> str:
    """Return the way on which jobs pushed from one topic to another would go round; empty: none.

    `target_of` is asked for the target of each topic that follows. A way that is longer than a few
    topics counts as one that does not end.

    >>> targets = {"a": Target(topic="b"), "b": Target(topic="c"), "c": Target(url="https://x")}
    >>> way_back("a", "b", targets.get), way_back("c", "a", targets.get)
    ('', 'c, a, b, c')
    """
    way = [topic]
    following = target
    while following:
        is_seen = following in way
        way.append(following)
        if is_seen or len(way) > TARGET_TOPICS_MAX:
            return ", ".join(way)
        next_target = target_of(following)
        following = "" if next_target is None else next_target.topic
    return ""


# --- A job's own target --------------------------------------------------------------------------


def pack_own(method: str, url: str, headers: tuple[tuple[str, str], ...]) -> bytes:
    """Return a job's own target as its record has it; all is as `read_target` returns it."""
    return "\n".join((f"{method} {url}", *(f"{name}: {text}" for name, text in headers))).encode()


def own_target(data: bytes) -> Target:
    """Return the target that a record has."""
    request, *lines = data.decode("utf-8", "replace").split("\n")
    method, _, url = request.partition(" ")
    pairs = (line.partition(": ") for line in lines)
    return Target(url=url, method=method, headers=tuple((name, text) for name, _, text in pairs))


def origin_of(data: bytes) -> bytes:
    """Return scheme, host and port of the target that a record has; empty if it is none."""
    start = data.find(b" ") + 1
    host_at = data.find(b"//", start) + 2
    if host_at < 2:
        return b""
    ends = (data.find(mark, host_at) for mark in (b"/", b"?", b"\n"))
    return data[start : min((end for end in ends if end >= 0), default=len(data))]
