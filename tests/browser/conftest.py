"""One browser for all tests: it takes seconds of a processor to start."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from delayd.testing.daemon import Daemon
from tests.browser.browser import Browser
from tests.browser.dashboards import dashboard


@pytest.fixture(scope="session")
def one_browser() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


@pytest.fixture
def browser(one_browser: Browser) -> Iterator[Browser]:
    """A browser that must have nothing to complain about, but that a daemon is gone or stops."""
    one_browser.forget()
    one_browser.forgive("net::ERR_", "status of 503")
    one_browser.look()
    yield one_browser
    one_browser.leave()
    assert one_browser.unforgiven() == []


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with dashboard(tmp_path) as daemon:
        yield daemon
