"""The pictures of docs/dashboard.md: each view, light and dark, of a daemon with sample jobs.

Run `make screenshots`.
"""

import tempfile
from pathlib import Path
from typing import Final

from tests.browser.browser import Browser
from tests.browser.dashboards import dashboard, put_samples, url_of

FOLDER: Final = Path(__file__).parents[2] / "docs" / "dashboard"
VIEWS: Final = {
    "overview": ("", "1 to 5 of 5 topics"),
    "calendar": ("calendar?topic=orders&span=7200", "jobs come due"),
    "jobs": ("jobs?topic=orders&state=delayed", "Next page"),
    "job": ("job/17", "Last failure"),
    "dead-letters": ("dead", "550 no such mailbox"),
    "topic": ("topics/orders", "from 0 to 100"),
}


def main() -> None:
    """Take them all."""
    FOLDER.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        dashboard(Path(folder)) as daemon,
        Browser() as browser,
    ):
        put_samples(daemon)
        for theme in ("light", "dark"):
            browser.look(dark=theme == "dark")
            for name, (view, shown) in VIEWS.items():
                browser.open(url_of(daemon, view))
                browser.shows(shown)
                browser.evaluate("new Promise((seen) => setTimeout(seen, 500))")
                browser.take_picture(FOLDER / f"{name}-{theme}.png")


if __name__ == "__main__":
    main()
