"""For which topics something may be used that is not theirs alone: a secret, a sink.

>>> rule = TopicRule(("orders", "mail.*"))
>>> rule.allows("mail.out"), rule.allows("sms")
(True, False)
>>> rule.require("secret 'crm'", "sms", "secrets")
Traceback (most recent call last):
delayd.core.errors.NotForTopic: secret 'crm' is for the topics orders, mail.*, and not for 'sms'
>>> TopicRule(None).allows("sms"), TopicRule(None).is_given, TopicRule(("*",)).is_given
(True, False, True)
"""

from typing import Final, final

from delayd.access.principal import TOPICS_SHOWN_MAX
from delayd.core.errors import NotForTopic
from delayd.core.matcher import Matcher
from delayd.limits import TOKEN_TOPICS_MATCHED_MAX


@final
class TopicRule:
    """The topics whose names match one of some globs. It never changes."""

    __slots__ = ("_fits", "_globs", "is_given")

    def __init__(self, globs: tuple[str, ...] | None) -> None:
        """None: nobody has said for which topics, so it is for all."""
        self._globs = ("*",) if globs is None else globs
        self.is_given: Final = globs is not None
        self._fits = (
            None if "*" in self._globs else Matcher(self._globs, known_max=TOKEN_TOPICS_MATCHED_MAX)
        )

    def allows(self, topic: str) -> bool:
        """Tell whether the topic may use it."""
        return self._fits is None or self._fits.first(topic) >= 0

    def require(self, what: str, topic: str, field: str) -> None:
        """Raise `NotForTopic` if the topic may not use it; `field` is where the target names it."""
        if not self.allows(topic):
            shown = ", ".join(self._globs[:TOPICS_SHOWN_MAX])
            more = ", ..." if len(self._globs) > TOPICS_SHOWN_MAX else ""
            raise NotForTopic(
                what, f"is for the topics {shown}{more}, and not for {topic!r}", field
            )
