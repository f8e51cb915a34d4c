"""The pictures of docs/dashboard.md: each view, light and dark, of a daemon with sample jobs.

Run `make screenshots`.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from delayd.testing.daemon import Daemon
from tests.browser.browser import Browser
from tests.browser.dashboards import ask, dashboard, let_live, put_samples, put_schedules, url_of

FOLDER: Final = Path(__file__).parents[2] / "docs" / "dashboard"
VIEWS: Final = {
    "overview": ("", "1 to 6 of 6 topics"),
    "calendar": ("calendar?topic=orders&span=7200", "jobs come due"),
    "jobs": ("jobs?topic=orders&state=delayed", "Next page"),
    "job": ("key/mail/mail-16", "Last failure"),
    "dead-letters": ("dead", "550 no such mailbox"),
    "topic": ("topics/orders", "from 0 to 100"),
}
VIEWS_OF_SCHEDULES: Final = {
    "schedules": ("schedules", "1 to 6 of 6 schedules"),
    "schedule": ("schedules/nightly-report", "The next runs"),
}


def main() -> None:
    """Take them all."""
    FOLDER.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        dashboard(Path(folder), "--clock", "virtual") as daemon,
        Browser() as browser,
    ):
        let_live(daemon, range(58))
        put_samples(daemon)
        let_live(daemon, range(58, 60))
        # What the page calls "ago" counts from the browser's clock, which is not the daemon's.
        now = ask(daemon, "GET", "/v1/stats/history")["now"]
        source = f"Date.now = () => Date.parse({now!r})"
        browser.send("Page.addScriptToEvaluateOnNewDocument", source=source)
        take(browser, daemon, VIEWS)
        put_schedules(daemon)
        ask(daemon, "POST", "/v1/clock/advance", {"by": "27h"})
        take(browser, daemon, VIEWS_OF_SCHEDULES)


def take(browser: Browser, daemon: Daemon, views: Mapping[str, tuple[str, str]]) -> None:
    """Take these views, each when it shows that text."""
    for theme in ("light", "dark"):
        browser.look(dark=theme == "dark")
        for name, (view, shown) in views.items():
            browser.open(url_of(daemon, view), shown)
            browser.evaluate("new Promise((seen) => setTimeout(seen, 500))")
            browser.take_picture(FOLDER / f"{name}-{theme}.png")


if __name__ == "__main__":
    main()
