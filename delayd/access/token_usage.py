"""On which day each token was last used, so that unused ones can be found.

Kept by the day, in UTC: enough to see that a token is forgotten, and written at most once a day for
each. The daemon keeps it in memory and writes it into `<tokens file>.used` beside the tokens, which
it must be allowed to; where it is not, the days are not kept and the tokens work all the same. The
file is a convenience: it is not synced, and one that cannot be read is begun again.
"""

import contextlib
import os
from collections.abc import Collection, Mapping
from typing import Final

from delayd.bounded_files import read_file
from delayd.limits import TOKENS_FILE_BYTES_MAX

SUFFIX: Final = ".used"
DAY_MS: Final = 86_400_000


def days_of(tokens_path: str) -> dict[str, str]:
    """Read the days by the tokens' ids; nothing where there is no such file."""
    import json  # noqa: PLC0415 - only where there are tokens, as the others here

    try:
        days = json.loads(read_file(tokens_path + SUFFIX, TOKENS_FILE_BYTES_MAX))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(days, dict):
        return {}
    return {str(name): day for name, day in days.items() if _is_day(day)}


def _is_day(value: object) -> bool:
    if not isinstance(value, str):
        return False
    import datetime as dt  # noqa: PLC0415

    try:
        return dt.date.fromisoformat(value).isoformat() == value
    except ValueError:
        return False


def day_of(wall_ms: int) -> str:
    """Return the day of a time, in UTC.

    >>> day_of(86_400_000 - 1), day_of(86_400_000)
    ('1970-01-01', '1970-01-02')
    """
    import datetime as dt  # noqa: PLC0415

    return (dt.date(1970, 1, 1) + dt.timedelta(days=wall_ms // DAY_MS)).isoformat()


class TokenUsage:
    """The days in memory."""

    def __init__(self, days: Mapping[str, str] | None = None) -> None:
        self.days = dict(days or {})
        self._day_number = -1
        self._day = ""
        self._is_new = False

    def note(self, token_id: str, wall_ms: int) -> None:
        """Remember that the token was used."""
        number = wall_ms // DAY_MS
        if number != self._day_number:
            self._day_number, self._day = number, day_of(wall_ms)
        if self.days.get(token_id, "") < self._day:
            self.days[token_id] = self._day
            self._is_new = True

    def write(self, tokens_path: str, known: Collection[str]) -> None:
        """Write what is new, for the tokens that are known. Raises `OSError`.

        Days that another daemon has written for the same tokens stay, if they are later.
        """
        if not self._is_new:
            return
        import json  # noqa: PLC0415

        self._is_new = False
        for token_id, day in days_of(tokens_path).items():
            self.days[token_id] = max(day, self.days.get(token_id, ""))
        self.days = {token_id: day for token_id, day in self.days.items() if token_id in known}
        path = tokens_path + SUFFIX
        draft = f"{path}.{os.getpid()}"
        try:
            handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with open(handle, "w", encoding="ascii") as file:
                json.dump(self.days, file, indent=0, sort_keys=True)
            os.replace(draft, path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(draft)
            raise
