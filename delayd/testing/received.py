"""A call as its receiver sees it."""

import json
from typing import Any, NamedTuple


class ReceivedCall(NamedTuple):
    """A call that the daemon has made for a due job with a url.

    >>> ReceivedCall("POST", "https://example.com/due", {"Delayd-Attempt": "2"}, b"[1]").json()
    [1]
    """

    method: str
    url: str
    headers: dict[str, str]
    """Those of docs/push.md, and those of the job."""
    body: bytes

    def json(self) -> Any:  # noqa: ANN401 - any JSON
        """Return the body, read as JSON."""
        return json.loads(self.body)
