"""A fact is run in a world, which its case names."""

from collections.abc import Iterator

import pytest

from tests.core.views import live_jobs
from tests.facts.worlds import WORLDS, Beyond, World, same, truth


@pytest.fixture
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A world, which shows all jobs and topics as they are when the fact is over."""
    made = WORLDS[request.param]()
    made.name, made.patch = request.param, monkeypatch
    try:
        yield made
        in_topics: dict[str, list[int]] = {}
        for job_id, _ in live_jobs(made.engine.store):
            expected = truth(made.engine, job_id, made.now_ms)
            same(made.look(job_id), expected)
            in_topics.setdefault(expected["topic"], []).append(job_id)
        topics = made.engine.store.topics.listing
        assert made.topics() == sorted(each.name for each in topics if not each.is_internal)
        for topic, job_ids in in_topics.items():
            assert sorted(made.jobs(topic)) == job_ids
    finally:
        made.close()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Iterator[None]:
    """Skip a fact in a world whose wire cannot say what it needs."""
    try:
        return (yield)
    except Beyond:
        pytest.skip("this wire cannot say it")
