"""Which topics may use a secret or a sink.

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

from delayd.access.principal import TOPICS_SHOWN_MAX, matcher_of
from delayd.core.errors import NotForTopic
from delayd.text import some_of


@final
class TopicRule:
    """The topics whose names match one of some globs. It never changes."""

    def __init__(self, globs: tuple[str, ...] | None) -> None:
        """Take globs of names; None: it is for all topics."""
        self._globs = ("*",) if globs is None else globs
        self.is_given: Final = globs is not None
        self._fits = matcher_of(self._globs)

    def allows(self, topic: str) -> bool:
        """Tell whether the topic may use it."""
        return self._fits is None or self._fits.first(topic) >= 0

    def require(self, subject: str, topic: str, field: str) -> None:
        """Raise `NotForTopic` if the topic may not use it; `field` is where the target names it."""
        if not self.allows(topic):
            globs = some_of(self._globs, TOPICS_SHOWN_MAX)
            raise NotForTopic(subject, f"is for the topics {globs}, and not for {topic!r}", field)
