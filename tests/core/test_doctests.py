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
    "delayd.access.entries",
    "delayd.access.errors",
    "delayd.access.failures",
    "delayd.access.peers",
    "delayd.access.principal",
    "delayd.access.tokens",
    "delayd.access.usage",
    "delayd.core.ages",
    "delayd.core.census",
    "delayd.core.copying",
    "delayd.core.durations",
    "delayd.core.engine",
    "delayd.core.errors",
    "delayd.core.histogram",
    "delayd.core.job",
    "delayd.core.lateness",
    "delayd.core.rates",
    "delayd.core.records",
    "delayd.core.table",
    "delayd.core.topic",
    "delayd.core.wheel",
    "delayd.http.answers",
    "delayd.http.dispatch",
    "delayd.http.openapi",
    "delayd.http.problems",
    "delayd.http.reading",
    "delayd.http.telling",
    "delayd.http.values",
    "delayd.journal.format",
    "delayd.line.grammar",
    "delayd.line.words",
    "delayd.peers",
    "delayd.readers",
    "delayd.sockets",
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
