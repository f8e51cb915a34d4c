"""The interface of a sink, to which due jobs are delivered; and how sinks are found.

A sink gets one due job at a time, as many at once as its target allows, and returns the outcome. It
has no access to the daemon's state, and the sender none to the sink's server:

    DELIVERED    the receiver has it for good: the job is removed
    FAILED       try again, by the job's retry ladder or in `retry_after_ms` at the earliest
    EXHAUSTED    it will never be accepted: the job is a dead letter at once

An exception of `deliver` is a failed attempt too, with the exception as its error. A cancellation
(the daemon stops, or the time for the attempt is over) must leave no state that a second attempt
cannot handle. Delivery is at least once: after a crash a delivered job may come again, with the
same `message_id`.

A kind of sink is an entry point of the group `delayd.sinks`, of any package. The configuration
gives the sink a name and names its kind; `open_sinks` loads these kinds, and without any it reads
no package.

>>> AttemptEnd(Result.FAILED, "503 Service Unavailable", retry_after_ms=30_000).result.name
'FAILED'
>>> from delayd.config import Config
>>> open_sinks(Config())
{}
"""

import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from delayd.config import Config, ConfigErrors, SinkSection
from delayd.core.targets import Target
from delayd.fields import Invalid, Wrong, invalid, shown, unknown
from delayd.limits import PUSH_LOOK_BYTES_MAX
from delayd.moments import moment_text
from delayd.text import hide_in_urls

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP: Final = "delayd.sinks"
JSON: Final = "application/json"
BYTES: Final = "application/octet-stream"
_BRACKETS: Final = (b"{}", b"[]")


class DueJob(NamedTuple):
    """One attempt to deliver a job."""

    id: int
    message_id: str
    """The same for every attempt of this job, and for no other job of any daemon."""
    topic: str
    key: bytes
    body: bytes
    content_type: str
    attempt: int
    """1 upwards."""
    due_ms: int
    """When it was due, in milliseconds of Unix time."""
    lateness_ms: int
    """How long after its due time this attempt begins."""
    timeout_ms: int
    """How long this attempt may take; then it is cancelled and has failed."""
    target: Target = Target()
    """The target as it was set: the job's own or its topic's."""

    def fields(self) -> dict[str, str | int]:
        """Return the job's details without its body, for a receiver."""
        return {
            "id": self.id,
            "message_id": self.message_id,
            "topic": self.topic,
            "key": self.key.decode(),
            "content_type": self.content_type,
            "attempt": self.attempt,
            "due": moment_text(self.due_ms),
            "lateness_ms": self.lateness_ms,
        }


def content_type_of(body: bytes, headers: tuple[tuple[str, str], ...] = ()) -> str:
    r"""Return the type that a body is sent as: that of the target's headers, or a guess.

    Of a long body only the first and the last byte are checked.

    >>> content_type_of(b'{"a": 1}'), content_type_of(b"hello")
    ('application/json', 'application/octet-stream')
    >>> [content_type_of(body) == JSON for body in (b"17", b'""', b"", b'"\xff"', b"{} x")]
    [True, True, False, False, False]
    """
    for name, text in headers:
        if name.lower() == "content-type":
            return text
    if len(body) > PUSH_LOOK_BYTES_MAX:
        return JSON if body[:1] + body[-1:] in _BRACKETS else BYTES
    import msgspec  # noqa: PLC0415 - takes 20 ms, which the start of a daemon need not wait for

    try:
        body.decode()
        msgspec.json.decode(body, type=msgspec.Raw)
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
        return BYTES
    return JSON


class Result(enum.Enum):
    """The outcome of an attempt."""

    DELIVERED = "delivered"
    FAILED = "failed"
    EXHAUSTED = "exhausted"


class AttemptEnd(NamedTuple):
    """The end of an attempt."""

    result: Result
    error: str = ""
    """Why it failed, in one line, such as the status of the answer."""
    answer: bytes = b""
    """The beginning of the answer's body, to find the reason."""
    retry_after_ms: int = 0
    """The least time until the next attempt; 0: as the ladder says."""
    is_outage: bool = False
    """It is the place's fault, not this job's: other jobs would fail now too."""
    is_ours: bool = False
    """The place was not called, so the outcome tells nothing about it."""


DELIVERED = AttemptEnd(Result.DELIVERED)


class Sink(Protocol):
    """A kind of target of due jobs."""

    async def deliver(self, job: DueJob) -> AttemptEnd:
        """Deliver one job; several may be under way at once."""

    async def close(self) -> None:
        """Close connections; no job is delivered any more."""


class SinkFactory(Protocol):
    """The function of an entry point of the group `delayd.sinks`: makes a sink of its options."""

    def __call__(self, name: str, options: Mapping[str, object]) -> Sink:
        """Make the sink that the configuration calls `name`; connect at the first job, not here.

        Raises `ValueError` whose message names each wrong option and its rule.
        """


# --- How sinks are found -------------------------------------------------------------------------


def open_sinks(config: Config) -> dict[str, Sink]:
    """Make the sinks of the configuration. Raises `ConfigErrors` with all mistakes."""
    if not config.sinks:
        return {}
    from importlib.metadata import entry_points  # noqa: PLC0415 - takes 20 ms

    kinds = {entry.name: entry for entry in entry_points(group=GROUP)}
    sinks: dict[str, Sink] = {}
    errors: list[Wrong] = []
    for name, section in config.sinks.items():
        try:
            sinks[name] = _factory(section, kinds)(name, section.options)
        except Invalid as wrong:
            errors += [each.below(f"sinks.{name}") for each in wrong.errors]
        except ValueError as error:
            rule = hide_in_urls(" ".join(str(error).split()))
            errors.append(Wrong(f"sinks.{name}", rule))
    if errors:
        raise ConfigErrors(errors)
    return sinks


def _factory(section: SinkSection, kinds: Mapping[str, "EntryPoint"]) -> SinkFactory:
    """Load the factory of this kind of sinks. Raises `Invalid`."""
    entry = kinds.get(section.kind)
    if entry is None:
        rule = unknown(section.kind, sorted(kinds), "kind")
        if kinds and rule.endswith("kind"):
            rule += f"; there are {', '.join(sorted(kinds))}"
        raise invalid("kind", rule, shown(section.kind))
    try:
        factory: SinkFactory = entry.load()
    except Exception as error:
        rule = f"{entry.value} cannot be loaded: {type(error).__name__}: {error}"
        if (
            isinstance(error, ImportError)
            and entry.dist is not None
            and entry.dist.name == "delayd"
        ):
            rule = f'needs more packages: pip install "delayd[{section.kind}]" ({error})'
        raise invalid("kind", rule, shown(section.kind)) from error
    return factory
