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

from typing import Final, final

from delayd.access.scopes import Scope
from delayd.core.name_patterns import Matcher
from delayd.core.names import SCHEDULES_TOPIC
from delayd.limits import TOKEN_TOPICS_MATCHED_MAX
from delayd.text import some_of

ALL_SCOPES: Final = frozenset(Scope)
ALL_TOPICS: Final = ("*",)
TOPICS_SHOWN_MAX: Final = 3


def matcher_of(globs: tuple[str, ...]) -> Matcher | None:
    """Return what matches the names of topics with these globs; None: all of them match."""
    return None if "*" in globs else Matcher(globs, known_max=TOKEN_TOPICS_MATCHED_MAX)


@final
class Principal:
    """Who a client is, by a name for logs, and what it may do. It never changes."""

    __slots__ = ("_fits", "digest", "name", "scopes", "token_id", "topics")

    def __init__(
        self,
        name: str,
        token_id: str = "",
        scopes: frozenset[Scope] = ALL_SCOPES,
        topics: tuple[str, ...] = ALL_TOPICS,
        digest: bytes = b"",
    ) -> None:
        """Take globs of topic names, each of them valid (`core.policy.PATTERN_RULE`)."""
        self.name: Final = name
        self.token_id: Final = token_id
        """The id of the token that was shown; empty for clients without a token."""
        self.scopes: Final = scopes
        self.topics: Final = topics
        self.digest: Final = digest
        """Hash of the token's secret: an id with a new secret is another principal."""
        self._fits: Final = matcher_of(topics)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Principal) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def __repr__(self) -> str:
        scopes = "|".join(sorted(self.scopes))
        return f"Principal({self.name!r}, {self.token_id!r}, {scopes}, {self.topics})"

    def _identity(self) -> tuple[object, ...]:
        return self.name, self.token_id, self.scopes, self.topics, self.digest

    @property
    def cost_us(self) -> int:
        """About how long it takes to tell whether a topic is one of its own."""
        return 0 if self._fits is None else self._fits.cost_us

    def may(self, scope: Scope, topic: str | None) -> bool:
        """Tell whether it may do this to the topic; None is a call that concerns no single one.

        O(globs · length of the name), O(1) for a principal with every topic and for the topics
        that it was asked about last.
        """
        if scope not in self.scopes or self._has_secrets(scope, topic):
            return False
        if self._fits is None:
            return True
        return topic is not None and self._fits.first(topic) >= 0

    def _has_secrets(self, scope: Scope, topic: str | None) -> bool:
        """Tell whether to look there is to see urls and headers that are shown to admins alone."""
        return scope is Scope.PEEK and topic == SCHEDULES_TOPIC and Scope.ADMIN not in self.scopes

    def lack(self, scope: Scope, topic: str | None) -> str:
        """Say, to its owner, why it may not do this.

        >>> worker = Principal("worker", "0a1b2c3d", frozenset({Scope.PUT}), ("mail.*",))
        >>> worker.lack(Scope.KICK, "mail.out")
        'the token lacks the scope kick'
        >>> worker.lack(Scope.PUT, "sms")
        "the token allows put for the topics mail.*, and not for 'sms'"
        """
        if scope not in self.scopes:
            return f"the token lacks the scope {scope.value}"
        if self._has_secrets(scope, topic):
            return f"the token lacks the scope admin, to look at jobs of {topic!r}"
        topics = some_of(self.topics, TOPICS_SHOWN_MAX)
        where = "for all" if topic is None else f"for {topic!r}"
        return f"the token allows {scope.value} for the topics {topics}, and not {where}"


EVERYBODY: Final = Principal("everybody")
"""Any client where none has to authenticate: may do everything."""
