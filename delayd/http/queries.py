"""What requests say behind the `?`, and the body of a policy.

As in `schemas`: one `Form` for each kind, of which the OpenAPI document is made too. The values of
a query are texts, read as JSON's would be.
"""

from typing import Annotated, Any, ClassVar, Final

import msgspec

from delayd.core.job import State
from delayd.core.scans.scan import NEVER_DUE_MS, Wanted
from delayd.http.problems import FieldError
from delayd.http.reading import Form, Rules
from delayd.http.schemas import UNSET, Meta, Unset
from delayd.http.values import (
    Duration,
    Ladder,
    PageMark,
    States,
    TimeBound,
    TopicName,
    schema_of_value,
)
from delayd.limits import (
    ATTEMPTS_MAX,
    CALENDAR_BINS_MAX,
    CAP_MAX,
    HTTP_CALENDAR_TOPICS_MAX,
    HTTP_PAGE_DEFAULT,
    HTTP_TOPICS_PAGE_MAX,
    JITTER_PERCENT_MAX,
    KEY_BYTES_MAX,
    RATE_PER_S_MAX,
    RATE_PER_S_MIN,
    SEARCH_JOBS_MAX,
)

DAY_MS: Final = 86_400_000


class Which(Form, kw_only=True):
    """Which jobs of a topic are meant; all of them where nothing is said."""

    state: Annotated[
        States | Unset, Meta(description="In which states; in any of them by default.")
    ] = UNSET
    from_: Annotated[
        TimeBound | Unset, Meta(description="Due at this time or later; a delay counts from now.")
    ] = msgspec.field(default=UNSET, name="from")
    to: Annotated[TimeBound | Unset, Meta(description="Due before this time.")] = UNSET
    prefix: Annotated[
        str, Meta(max_length=KEY_BYTES_MAX, description="How the job's key begins.")
    ] = ""

    def wanted(self, now_ms: int, offset_ms: int) -> Wanted:
        """Return the same in delayd time, which the wall clock is ahead of by `offset_ms`."""

        def place(bound: TimeBound | Unset, otherwise_ms: int) -> int:
            if not isinstance(bound, TimeBound):
                return otherwise_ms
            return max(0, bound.ms + (-offset_ms if bound.is_moment else now_ms))

        states = self.state if isinstance(self.state, frozenset) else frozenset(State)
        return Wanted(states, place(self.from_, 0), place(self.to, NEVER_DUE_MS), self.prefix)

    @property
    def names_moment(self) -> bool:
        """Whether the wall clock matters."""
        return any(
            isinstance(bound, TimeBound) and bound.is_moment for bound in (self.from_, self.to)
        )

    def broken_rules(self) -> list[FieldError]:
        """An end that is behind its beginning is a mistake; keys are UTF-8."""
        errors = []
        if _is_backwards(self.from_, self.to):
            errors.append(FieldError("to", "must be later than from"))
        try:
            self.prefix.encode()
        except UnicodeEncodeError:
            errors.append(FieldError("prefix", "must be UTF-8, as keys are"))
        return errors


def _is_backwards(first: TimeBound | Unset, last: TimeBound | Unset) -> bool:
    """Tell whether nothing can lie between them, as far as that is known without a clock."""
    return (
        isinstance(first, TimeBound)
        and isinstance(last, TimeBound)
        and first.is_moment == last.is_moment
        and last.ms <= first.ms
    )


class ListJobs(Which, kw_only=True):
    """Which page of which jobs."""

    limit: Annotated[int, Meta(ge=1, le=SEARCH_JOBS_MAX, description="Jobs of the page.")] = (
        HTTP_PAGE_DEFAULT
    )
    after: Annotated[
        PageMark | Unset, Meta(description="The page behind this one: `after` of that answer.")
    ] = UNSET
    bodies: Annotated[
        bool, Meta(description="Tell their bodies too; a page with long ones ends sooner.")
    ] = False


class ManyJobs(Which, kw_only=True):
    """To which jobs something is done."""

    dry_run: Annotated[bool, Meta(description="Do nothing, and tell how many they are.")] = False


class ListTopics(Form, kw_only=True):
    """Which page of the topics."""

    after: Annotated[
        TopicName | Unset, Meta(description="Names behind this one: `after` of that answer.")
    ] = UNSET
    limit: Annotated[
        int, Meta(ge=1, le=HTTP_TOPICS_PAGE_MAX, description="Topics of the page.")
    ] = HTTP_PAGE_DEFAULT


class Horizon(Form, kw_only=True):
    """Of which topics, how far ahead and how finely."""

    topic: Annotated[
        list[TopicName],
        Meta(
            max_length=HTTP_CALENDAR_TOPICS_MAX,
            description="These topics; may be given several times. All that have delayed jobs, a"
            " page at a time, if it is not.",
        ),
    ] = msgspec.field(default_factory=list)
    horizon: Annotated[
        Duration | Unset, Meta(description="How far ahead, from now; a day by default.")
    ] = UNSET
    bins: Annotated[
        int, Meta(ge=1, le=CALENDAR_BINS_MAX, description="Into how many spans it is divided.")
    ] = 24
    after: Annotated[
        TopicName | Unset, Meta(description="Topics behind this one: `after` of that answer.")
    ] = UNSET

    @property
    def horizon_ms(self) -> int:
        """How far ahead."""
        return self.horizon if isinstance(self.horizon, int) else DAY_MS

    def broken_rules(self) -> list[FieldError]:
        """There is a time to divide, and pages are of all topics."""
        errors = []
        if self.horizon_ms < self.bins:
            errors.append(FieldError("horizon", "must be at least a millisecond for each bin"))
        if self.topic and self.after is not UNSET:
            errors.append(FieldError("after", "cannot come beside topic: all of them are told"))
        return errors


_Setting = Annotated[Any, Meta(description="See docs/policies.md.")]


_SIZE: Final = {"type": ["integer", "string"], "minimum": 1, "minLength": 1}
_CAP: Final = {"type": "integer", "minimum": 1, "maximum": CAP_MAX}


class PolicyBody(Form, kw_only=True, forbid_unknown_fields=False):
    """A policy; what is wrong with it says `core.policy`, which reads it again, all at once."""

    told_rules: ClassVar[Rules] = (
        {
            "additionalProperties": False,
            "properties": {
                "ttr": schema_of_value(Duration),
                "delay": schema_of_value(Duration),
                "retry": schema_of_value(Ladder),
                "jitter_percent": {"type": "integer", "minimum": 0, "maximum": JITTER_PERCENT_MAX},
                "max_attempts": {"type": "integer", "minimum": 1, "maximum": ATTEMPTS_MAX},
                "exhausted": schema_of_value(TopicName),
                "on_close": {"enum": ["failure", "return"]},
                "jobs_max": _CAP,
                "bytes_max": _SIZE,
                "body_bytes_max": _SIZE,
                "delay_max": schema_of_value(Duration),
                "reserved_max": _CAP,
                "rate_per_s": {
                    "type": "number",
                    "minimum": RATE_PER_S_MIN,
                    "maximum": RATE_PER_S_MAX,
                },
            },
        },
    )

    ttr: _Setting = UNSET
    delay: _Setting = UNSET
    retry: _Setting = UNSET
    jitter_percent: _Setting = UNSET
    max_attempts: _Setting = UNSET
    exhausted: _Setting = UNSET
    on_close: _Setting = UNSET
    jobs_max: _Setting = UNSET
    bytes_max: _Setting = UNSET
    body_bytes_max: _Setting = UNSET
    delay_max: _Setting = UNSET
    reserved_max: _Setting = UNSET
    rate_per_s: _Setting = UNSET
