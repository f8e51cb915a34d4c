"""One server for each module of tests."""

from collections.abc import Iterator

import pytest

from tests.postgres_server import PostgresServer, postgres_server


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as running:
        yield running
