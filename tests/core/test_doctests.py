"""The examples in docstrings are tests, in every module that has some."""

import doctest
import importlib
import pkgutil
from typing import Final

import pytest

import delayd

MODULES: Final = sorted(
    module.name
    for module in pkgutil.walk_packages(delayd.__path__, "delayd.")
    if not module.name.endswith("__main__")
)
TEACHING: Final = (
    "delayd.access.token_entries",
    "delayd.access.errors",
    "delayd.access.failures",
    "delayd.net.identity",
    "delayd.access.principal",
    "delayd.access.tokens",
    "delayd.access.usage",
    "delayd.core.stats.ready_ages",
    "delayd.core.stats.totals",
    "delayd.core.snapshot_copy",
    "delayd.text",
    "delayd.core.engine",
    "delayd.core.errors",
    "delayd.core.stats.histogram",
    "delayd.core.job",
    "delayd.core.stats.latency",
    "delayd.core.stats.rates",
    "delayd.core.records",
    "delayd.core.job_table",
    "delayd.core.topic",
    "delayd.core.wheel.wheel",
    "delayd.http.answers",
    "delayd.http.dispatch",
    "delayd.http.openapi",
    "delayd.http.problems",
    "delayd.http.reading",
    "delayd.http.handlers.job_responses",
    "delayd.http.values",
    "delayd.journal.format",
    "delayd.line.grammar",
    "delayd.line.options",
    "delayd.net.peers",
    "delayd.readers",
    "delayd.net.addresses",
    "delayd.testing.disk",
)
"""These have examples, so that a runner that finds none is noticed."""


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_are_true(name: str) -> None:
    results = doctest.testmod(importlib.import_module(name))
    assert results.failed == 0
    assert results.attempted > 0 or name not in TEACHING


def test_the_modules_that_teach_are_all_there() -> None:
    assert set(TEACHING) <= set(MODULES)
