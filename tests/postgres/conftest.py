"""One server for each module of tests."""

from collections.abc import Iterator

import pytest

from tests.postgres_server import PostgresServer, postgres_server


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.process)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as running:
        yield running
