"""An authenticated client, and what it may do.

A principal has scopes, each for the topics whose names match one of its globs (`*` is any text,
`?` any character). A call that concerns no single topic concerns them all, so it needs the glob
`*`. Everything that is not allowed is refused.

>>> worker = Principal("worker", "0a1b2c3d", frozenset({Scope.RESERVE, Scope.STATS}), ("mail.*",))
>>> worker.may(Scope.RESERVE, "mail.out"), worker.may(Scope.RESERVE, "sms")
(True, False)
>>> worker.may(Scope.PUT, "mail.out"), worker.may(Scope.STATS, None)
(False, False)
>>> EVERYBODY.may(Scope.ADMIN, None)
True
"""

import enum
import fnmatch
import re
from dataclasses import dataclass, field
from typing import Final

from delayd.access.scopes import Scope

ALL_SCOPES: Final = frozenset(Scope)
ALL_TOPICS: Final = ("*",)


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a client is, by a name for logs, and what it may do."""

    name: str
    token_id: str = ""
    """The id of the token that was shown; empty for clients without a token."""
    scopes: frozenset[Scope] = ALL_SCOPES
    topics: tuple[str, ...] = ALL_TOPICS
    """Globs of topic names; each is valid (`core.policy.PATTERN_RULE`)."""
    digest: bytes = field(default=b"", repr=False)
    """Hash of the token's secret: an id with a new secret is another principal."""
    _fits: re.Pattern[str] | None = field(init=False, repr=False, compare=False)
    """Matches the names of its topics; None: all."""

    def __post_init__(self) -> None:
        """Compile the globs: atomic groups keep matching linear however many `*` they have."""
        fits = None
        if "*" not in self.topics:
            fits = re.compile("|".join(fnmatch.translate(glob) for glob in self.topics) or r"(?!)")
        object.__setattr__(self, "_fits", fits)

    def may(self, scope: Scope, topic: str | None) -> bool:
        """Tell whether it may do this to the topic; None is a call that concerns no single one.

        O(globs · length of the name), O(1) for a principal with every topic.
        """
        if scope not in self.scopes:
            return False
        if self._fits is None:
            return True
        return topic is not None and self._fits.match(topic) is not None


EVERYBODY: Final = Principal("everybody")
"""Any client where none has to authenticate: may do everything."""


class Authorization(enum.Enum):
    """What a principal may do: the answer to one call."""

    ALLOWED = enum.auto()
    FORBIDDEN = enum.auto()
    HIDDEN = enum.auto()
    """It is answered as if the job did not exist."""


def authorize(
    principal: Principal,
    scope: Scope,
    topic: str | None,
    *,
    or_scopes: tuple[Scope, ...] = (),
    hides: bool = False,
) -> Authorization:
    """Judge a call about this topic that takes the scope, or one of the others.

    `hides`: it is about a job, and a principal that may not look at it must not learn of it.

    >>> worker = Principal("worker", "0a1b2c3d", frozenset({Scope.RESERVE}), ("mail",))
    >>> authorize(worker, Scope.DELETE, "mail").name
    'FORBIDDEN'
    >>> authorize(worker, Scope.DELETE, "mail", hides=True).name
    'HIDDEN'
    """
    if principal.may(scope, topic) or any(principal.may(each, topic) for each in or_scopes):
        return Authorization.ALLOWED
    if hides and not principal.may(Scope.PEEK, topic):
        return Authorization.HIDDEN
    return Authorization.FORBIDDEN
