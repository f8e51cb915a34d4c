"""What was refused, counted by reasons: the words that go over a wire, and what has no word."""

from delayd.limits import REFUSAL_REASONS_MAX

OTHER_REASONS = "OTHER"


class Refusals:
    """One for the daemon; every front end notes what it refuses.

    >>> refusals = Refusals()
    >>> refusals.note("DRAINING", 100)
    >>> refusals.by_reason
    {'DRAINING': 100}
    """

    def __init__(self) -> None:
        self.by_reason: dict[str, int] = {}

    def note(self, reason: str, times: int = 1) -> None:
        """Count it. Reasons are words of our own, so they are few; a client cannot make more."""
        if reason not in self.by_reason and len(self.by_reason) >= REFUSAL_REASONS_MAX:
            reason = OTHER_REASONS
        self.by_reason[reason] = self.by_reason.get(reason, 0) + times
