"""One browser for all tests: it takes seconds of a processor to start."""

from collections.abc import Iterator

import pytest

from tests.browser.browser import Browser


@pytest.fixture(scope="session")
def one_browser() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


@pytest.fixture
def browser(one_browser: Browser) -> Iterator[Browser]:
    """A browser that must have nothing to complain about, but that a daemon is gone or stops."""
    one_browser.complaints.clear()
    one_browser.look()
    yield one_browser
    one_browser.evaluate("sessionStorage.clear()")
    one_browser.open("about:blank")
    of_an_end = ("net::ERR_", "status of 503")
    others = [each for each in one_browser.complaints if not any(map(each.__contains__, of_an_end))]
    assert others == []
