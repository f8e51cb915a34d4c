"""What holds for the jobs of a topic: defaults, the retry ladder and its end, caps and limits.

A policy is set for a topic at run time or by a pattern in the configuration, and never changes: to
alter one is to make another. All its fields are optional. A topic without a policy behaves exactly
as beanstalkd's does.

>>> policy = Policy.from_json('{"retry": "15s 3m", "jobs_max": 1000, "exhausted": "bury"}')
>>> policy.rule.steps_ms, policy.to_json()
((15000, 180000), '{"jobs_max": 1000, "retry": ["15s", "3m"]}')

What becomes of a failed attempt under its rule is in `core.retry`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from delayd.core.errors import PolicyInvalid
from delayd.core.job_parts import Retry
from delayd.core.name_patterns import Matcher
from delayd.core.names import GROUP, INTERNAL_TOPICS, TOPIC
from delayd.core.targets import RATE, TARGET, Target, way_back
from delayd.durations import duration_pattern, duration_text, parse_duration_ms
from delayd.fields import (
    DURATION,
    FLAG,
    TTR,
    Field,
    Invalid,
    ValueKind,
    Wrong,
    as_it_is,
    list_of,
    matching,
    one_of,
    read_all,
    read_json,
    shown,
    size,
    text_schema,
    whole,
    written,
)
from delayd.limits import (
    ATTEMPTS_MAX,
    BODY_BYTES_CEILING,
    CAP_MAX,
    DURATION_MS_MAX,
    GROUP_WEIGHT_MAX,
    GROUP_WEIGHTS_MAX,
    HISTORY_MAX,
    JITTER_PERCENT_MAX,
    POLICY_JSON_BYTES_MAX,
    POLICY_TAG_CHARACTERS,
    QUANTITY_CHARACTERS_MAX,
    RETRY_STEPS_MAX,
    RETRY_STEPS_NAMED_MAX,
    TOKEN_GLOBS_MAX,
    TOPICS_MATCHED_MAX,
)

BURY: Final = "bury"
_TOO_LONG: Final = Wrong("", f"it is longer than {POLICY_JSON_BYTES_MAX} bytes")

_SEPARATORS: Final = r"[\s,]+"
_STEP: Final = "(?=[^ ,]*[1-9])" + duration_pattern(DURATION_MS_MAX, gap="")
_LADDER_PATTERN: Final = f"[ ,]*{_STEP}(?:[ ,]+{_STEP}){{0,{RETRY_STEPS_MAX - 1}}}[ ,]*"
_LADDER_CHARACTERS_MAX: Final = RETRY_STEPS_MAX * (QUANTITY_CHARACTERS_MAX + 1)
"""Every step as long as a quantity may be, with separators: longer than any real ladder."""


# --- Reading and writing -------------------------------------------------------------------------


def parse_ladder(value: object) -> tuple[int, ...]:
    """Turn `"15s 3m 10m"`, `"15s,3m,10m"` or a list of durations into milliseconds.

    Raises `ValueError`, whose message names the first steps that are wrong and the rule. A step of
    0 is refused: whatever made the attempt fail would make the next one fail too, at once.

    >>> parse_ladder("15s 3m"), parse_ladder([0.05, "1h"])
    ((15000, 180000), (50, 3600000))
    """
    steps: list[object] = []
    if isinstance(value, str) and len(value) <= _LADDER_CHARACTERS_MAX:
        steps += (step for step in re.split(_SEPARATORS, value.strip()) if step)
    elif isinstance(value, list | tuple):
        steps += value
    if not 0 < len(steps) <= RETRY_STEPS_MAX:
        rule = f'must be 1 to {RETRY_STEPS_MAX} durations, such as "15s 3m 10m" or ["15s", "3m"]'
        raise ValueError(rule)
    steps_ms, errors = [], []
    for number, step in enumerate(steps, 1):
        try:
            steps_ms.append(_step(step))
        except ValueError as error:
            errors.append(f"step {number}, {shown(step)}, {error}")
            if len(errors) == RETRY_STEPS_NAMED_MAX:
                break
    if errors:
        raise ValueError("; ".join(errors))
    return tuple(steps_ms)


def _step(value: object) -> int:
    duration_ms = parse_duration_ms(value)
    if not duration_ms:
        raise ValueError("must be more than 0: what failed would fail again at once")
    return duration_ms


def _read_exhausted(value: object) -> str | None:
    if value == BURY:
        return None
    try:
        return str(TOPIC.read(value))
    except ValueError:
        raise ValueError('must be "bury" or the name of a topic') from None


def _read_weights(value: object) -> tuple[tuple[bytes, int], ...]:
    """Turn a table of groups and weights into pairs, sorted; they are compared and hashed."""
    if not isinstance(value, dict) or not 0 < len(value) <= GROUP_WEIGHTS_MAX:
        rule = f"must be a table of 1 to {GROUP_WEIGHTS_MAX} groups and their weights"
        raise ValueError(f'{rule}, such as {{"acme": 3}}')
    weights = []
    for name, weight in value.items():
        try:
            weights.append((GROUP.read(name), WEIGHT.read(weight)))
        except ValueError as error:
            raise ValueError(f"{shown(name)}: {shown(weight)} {error}") from None
    return tuple(sorted(weights))


def _read_group_from(value: object) -> str:
    if isinstance(value, str) and re.fullmatch(_GROUP_FROM_PATTERN, value):
        return value
    raise ValueError(
        'must be "key", "key:" and the characters that end a group in the key, or "body:" and the'
        " name of a field of a JSON body"
    )


LADDER: Final = ValueKind(
    parse_ladder,
    lambda steps_ms: [*map(duration_text, steps_ms)],
    {
        "anyOf": [
            text_schema(_LADDER_PATTERN, 1, _LADDER_CHARACTERS_MAX),
            {"type": "array", "items": TTR.schema, "minItems": 1, "maxItems": RETRY_STEPS_MAX},
        ]
    },
).described(
    "The delays after the first failed attempt, the second, and so on: a text such as 15s 3m 10m,"
    " or a list of durations.",
    "15s 3m 10m",
)
ATTEMPTS: Final = whole(1, ATTEMPTS_MAX)
JITTER_PERCENT: Final = whole(0, JITTER_PERCENT_MAX)
_CAP: Final = whole(1, CAP_MAX)
WEIGHT: Final = whole(1, GROUP_WEIGHT_MAX)
WEIGHTS: Final = ValueKind(
    _read_weights,
    lambda weights: {name.decode(): weight for name, weight in weights},
    {
        "type": "object",
        "propertyNames": GROUP.schema,
        "additionalProperties": WEIGHT.schema,
        "minProperties": 1,
        "maxProperties": GROUP_WEIGHTS_MAX,
    },
)
_GROUP_FROM_PATTERN: Final = r"key(:[!-~]{1,8})?|body:[!-~]{1,100}"
GROUP_FROM: Final = ValueKind(_read_group_from, schema=text_schema(_GROUP_FROM_PATTERN, 3, 105))
_ON_CLOSE: Final = one_of({"failure": None, "return": True})
_ATTEMPTS: Final = Field("max_attempts", "attempts_max", ATTEMPTS)
_SET: Final = FLAG._replace(read=lambda value: FLAG.read(value) or None)
"""False says nothing."""
_FORMER_ATTEMPTS: Final = Field("attempts_max", "attempts_max", ATTEMPTS)
"""What older journals say, and is still understood wherever a policy is read."""

FIELDS: Final = (
    Field("ttr", "ttr_ms", TTR),
    Field("delay", "delay_ms", DURATION),
    Field("retry", "retry_ms", LADDER),
    Field("jitter_percent", "jitter_percent", JITTER_PERCENT),
    _ATTEMPTS,
    Field("exhausted", "exhausted", ValueKind(_read_exhausted, schema=TOPIC.schema)),
    Field("on_close", "returns_on_close", _ON_CLOSE),
    Field("history", "history", whole(0, HISTORY_MAX)),
    Field("jobs_max", "jobs_max", _CAP),
    Field("bytes_max", "bytes_max", size(1, CAP_MAX)._replace(show=as_it_is)),
    Field("body_bytes_max", "body_bytes_max", size(1, BODY_BYTES_CEILING)._replace(show=as_it_is)),
    Field("delay_max", "delay_ms_max", DURATION),
    Field("reserved_max", "reserved_max", _CAP),
    Field("rate_per_s", "rate_per_s", RATE),
    Field("push", "push", TARGET),
    Field("group_reserved_max", "group_reserved_max", _CAP),
    Field("group_rate_per_s", "group_rate_per_s", RATE),
    Field("group_jobs_max", "group_jobs_max", _CAP),
    Field("group_order", "is_group_by_put", one_of({"priority": None, "put": True})),
    Field("group_on_retry", "group_waits", one_of({"pass": None, "wait": True})),
    Field("fair", "fair", _SET),
    Field("group_weights", "group_weights", WEIGHTS),
    Field("group_from", "group_from", GROUP_FROM),
    Field("group_required", "is_group_required", _SET),
)


class GroupRule(NamedTuple):
    """What holds for each group of a topic; by default there is no limit, and priorities decide."""

    reserved_max: int | None = None
    rate_per_s: int | float | None = None
    by_put: bool = False
    waits: bool = False
    fair: bool = False
    weights: tuple[tuple[bytes, int], ...] = ()
    """Of groups that do not have 1."""


class Policy(NamedTuple):
    """What holds for the jobs of a topic; None: as if there were no policy."""

    ttr_ms: int | None = None
    """What a put gets that asks for a ttr of 0."""
    delay_ms: int | None = None
    """What a put gets that asks for no delay."""

    retry_ms: tuple[int, ...] | None = None
    """The ladder: how long a job waits after its first failed attempt, its second, ..."""
    jitter_percent: int | None = None
    """By how much a step may be lengthened, so that what failed together comes back apart."""
    attempts_max: int | None = None
    """How often a job is handed out at most before it is exhausted."""
    exhausted: str | None = None
    """The topic that exhausted jobs are moved to; None: they are buried."""
    returns_on_close: bool | None = None
    """A connection that closes is no failed attempt: its jobs are ready again at once."""
    history: int | None = None
    """How many of its last attempts a job keeps; None: `HISTORY_DEFAULT`."""

    jobs_max: int | None = None
    """How many jobs the topic may hold; a put above it is refused, as with the other caps."""
    bytes_max: int | None = None
    """How long their records may be, together."""
    body_bytes_max: int | None = None
    delay_ms_max: int | None = None

    reserved_max: int | None = None
    """How many jobs may be reserved at once; the others stay ready."""
    rate_per_s: int | float | None = None
    """How many are handed out in a second at most."""

    push: Target | None = None
    """Where due jobs go, unless a consumer waits for them."""

    group_reserved_max: int | None = None
    """How many jobs of one group may be reserved at once."""
    group_rate_per_s: int | float | None = None
    """How many jobs of one group are handed out in a second at most."""
    group_jobs_max: int | None = None
    """How many jobs one group may have; a put above it is refused."""
    is_group_by_put: bool | None = None
    """The jobs of a group go in the order of puts, and not by priority."""
    group_waits: bool | None = None
    """A job that is to be tried again holds back its group."""
    fair: bool | None = None
    """Groups take turns."""
    group_weights: tuple[tuple[bytes, int], ...] | None = None
    """How often the turn of a group comes, where that of others comes once."""
    group_from: str | None = None
    """Where the group of a job is read whose put says none."""
    is_group_required: bool | None = None
    """A put without a group is refused."""

    @property
    def rule(self) -> Retry | None:
        """The retry rule for jobs that bring none; None when failed attempts are not judged."""
        if not self.retry_ms and not self.attempts_max:
            return None
        return Retry(self.retry_ms or (), self.attempts_max or 0, self.jitter_percent or 0)

    @property
    def group_rule(self) -> "GroupRule":
        """What holds for groups that hand out jobs."""
        return GroupRule(
            self.group_reserved_max,
            self.group_rate_per_s,
            bool(self.is_group_by_put),
            bool(self.group_waits),
            bool(self.fair),
            self.group_weights or (),
        )

    @staticmethod
    def from_json(text: str | bytes) -> "Policy":
        """Read a policy; `PolicyInvalid` names everything that is wrong with it."""
        if len(text) > POLICY_JSON_BYTES_MAX:
            raise PolicyInvalid([_TOO_LONG])
        try:
            fields, twice = read_json(text)
        except ValueError as error:
            raise PolicyInvalid([Wrong("", f"it is not JSON: {error}")]) from None
        if not isinstance(fields, dict):
            raise PolicyInvalid([Wrong("", "it is not a JSON object")])
        return Policy.from_fields(fields, twice)

    @staticmethod
    def from_fields(fields: Mapping[str, object], errors: Sequence[Wrong] = ()) -> "Policy":
        """Make a policy of fields by their outside names; null says nothing. `PolicyInvalid`.

        `errors` are known already.
        """
        name, former = _ATTEMPTS.name, _FORMER_ATTEMPTS.name
        if name in fields and former in fields:
            raise PolicyInvalid([Wrong(former, f"means {name}, which is given too")])
        try:
            policy = Policy(**read_all(fields, (*FIELDS, _FORMER_ATTEMPTS), takes_null=True))
        except Invalid as wrong:
            raise PolicyInvalid([*errors, *wrong.errors]) from None
        if errors:
            raise PolicyInvalid(errors)
        # Nothing else can be so long, and what cannot be read again would end the next start.
        if policy.push is not None and len(policy.to_json()) > POLICY_JSON_BYTES_MAX:
            raise PolicyInvalid([_TOO_LONG])
        return policy

    def to_json(self) -> str:
        """Write it as `from_json` reads it, in one spelling; what says nothing is left out."""
        import json  # noqa: PLC0415 - takes 1 ms, and few topics have a policy

        return json.dumps(written(FIELDS, self), sort_keys=True, ensure_ascii=True)

    @property
    def tag(self) -> str:
        """A digest of what it says, to tell whether it has changed.

        >>> Policy().tag, Policy(jobs_max=5).tag
        ('44136fa355b3678a', '536a641d83c29df1')
        """
        import hashlib  # noqa: PLC0415 - the same

        return hashlib.sha256(self.to_json().encode()).hexdigest()[:POLICY_TAG_CHARACTERS]


NO_POLICY: Final = Policy()
"""Says nothing."""


# --- Patterns ------------------------------------------------------------------------------------

_PATTERN: Final = r"[-A-Za-z0-9+/;.$_()*?]{1,200}"
PATTERN_RULE: Final = "must be 1 to 200 of A-Z a-z 0-9 - + / ; . $ _ ( ) and the wildcards * and ?"
GLOBS_RULE: Final = f"must be a list of 1 to {TOKEN_GLOBS_MAX} patterns of topics"


class Patterns:
    """The policies of a configuration, each for the topics whose names its pattern fits.

    `*` stands for any characters, also none, `?` for one. Of the patterns that fit a name one
    counts, whole: a name without wildcards before all others, then the one with the most characters
    that are not wildcards, of equals the one with the fewest `*`, and then the one given first. No
    wildcard fits a topic of the daemon's own, only its name.

    >>> mail, urgent = Policy(jobs_max=9), Policy(jobs_max=7)
    >>> patterns = Patterns({"mail.*": mail, "mail.urgent.*": urgent})
    >>> patterns.of("mail.urgent.de") is urgent, patterns.of("mail.x") is mail, patterns.of("sms")
    (True, True, None)
    """

    def __init__(self, by_pattern: Mapping[str, Policy] | None = None) -> None:
        """Take valid patterns (`PATTERN_RULE`), in the order in which they were given."""
        self.by_pattern = dict(by_pattern or {})
        wild = [pattern for pattern in self.by_pattern if is_wild(pattern)]
        wild.sort(key=_generality)  # stable: equals stay as they were given
        self._wild = Matcher(wild, known_max=TOPICS_MATCHED_MAX)
        self._of_wild = [self.by_pattern[pattern] for pattern in wild]

    def of(self, name: str) -> Policy | None:
        """Return the policy for a topic of that name; O(patterns · length of the name).

        None when no pattern fits, or the one that does says nothing.
        """
        policy = self.by_pattern.get(name)
        if policy is None and name not in INTERNAL_TOPICS:
            number = self._wild.first(name)
            policy = None if number < 0 else self._of_wild[number]
        return None if policy == NO_POLICY else policy

    def circles(self) -> Iterator[tuple[str, str]]:
        """Yield the patterns whose jobs would be pushed round in a circle, with the rule."""
        for pattern, policy in self.by_pattern.items():
            if policy.push is not None and policy.push.topic:
                way = way_back(pattern, policy.push.topic, self._target_of)
                if way:
                    yield pattern, f"must not push round in a circle: {way}"

    def _target_of(self, name: str) -> Target | None:
        policy = self.of(name)
        return None if policy is None else policy.push

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Patterns):
            return NotImplemented
        return [*self.by_pattern.items()] == [*other.by_pattern.items()]

    def __hash__(self) -> int:
        return hash(tuple(self.by_pattern.items()))

    def __len__(self) -> int:
        return len(self.by_pattern)


PATTERN: Final = matching(_PATTERN, PATTERN_RULE)
PATTERNS: Final = list_of(PATTERN, GLOBS_RULE, 1, TOKEN_GLOBS_MAX)


def is_wild(pattern: str) -> bool:
    """Tell whether the pattern fits more than one name."""
    return "*" in pattern or "?" in pattern


def _generality(pattern: str) -> tuple[int, int]:
    """Return what is the lower the more specific the pattern."""
    stars = pattern.count("*")
    return stars + pattern.count("?") - len(pattern), stars
