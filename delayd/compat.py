"""Which beanstalkd's answers clients get, where 1.12 and 1.13 differ.

1.13 puts the names and texts of the statistics into quotes, and takes nothing but a number for the
time of `reserve-with-timeout`. 1.12 is what Debian and Ubuntu ship, so clients may have been
written for its answers: `delayd-beanstalkd --compat 1.12` gives them.
"""

import enum


class Compat(enum.Enum):
    """A version of beanstalkd, as `stats` tells it."""

    V1_12 = "1.12"
    V1_13 = "1.13"

    def name_text(self, name: str) -> str:
        """Return a string of beanstalkd's statistics as this version writes it."""
        return name if self is Compat.V1_12 else f'"{name}"'
