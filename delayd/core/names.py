"""Names of topics: which are allowed, and which have a meaning."""

import re
from typing import Final

from delayd.core.errors import TopicNameInvalid
from delayd.limits import TOPIC_NAME_BYTES_MAX

DEFAULT_TOPIC: Final = "default"
INTERNAL_TOPIC: Final = "$idempotency"
"""Where the daemon keeps jobs of its own; see `core.operations.checks`."""

_NAME: Final = re.compile(
    rf"[A-Za-z0-9+/;.$_()][-A-Za-z0-9+/;.$_()]{{0,{TOPIC_NAME_BYTES_MAX - 1}}}",
)


def checked_name(name: str) -> str:
    """Return the name, or raise `TopicNameInvalid`."""
    if _NAME.fullmatch(name) is None:
        raise TopicNameInvalid(name)
    return name
