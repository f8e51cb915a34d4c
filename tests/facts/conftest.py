"""Every fact is run over every world."""

from collections.abc import Iterator

import pytest

from tests.facts.worlds import WORLDS, Beyond, World


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    made = WORLDS[request.param]()
    made.name = request.param
    yield made
    if hasattr(made, "close"):
        made.close()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Iterator[None]:
    """Skip a fact in a world whose wire cannot say what it needs."""
    try:
        return (yield)
    except Beyond:
        pytest.skip("this wire cannot say it")
