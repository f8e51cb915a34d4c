"""How often the fault tests run, from which seeds, and the table of what was run.

`make test` plays a short run of each test; `make test-faults` (pytest's `--long`) the long one, and
prints the table. `--fault-seed N` plays the one seed N wherever a test draws seeds; `--fault-scale`
multiplies how often.

The long form runs in several processes: the tests that measure time in one of them, one after the
other, so that they do not disturb each other. What each process has counted goes into one table.
"""

import gc
import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.faults.real_disk import loop_disk

COUNTS_KEY: Final = pytest.StashKey["Counter[tuple[str, str]]"]()
COUNTED: Final = "fault runs"
"""The name of what one of several processes has counted."""

MEASURING: Final = frozenset(
    f"test_real_{name}.py" for name in ("clock", "crowds", "slow", "snapshots", "stop")
)
"""Real processes that must do something in time, and tests that set the clock."""

LONG_S_MAX: Final = 7_200
"""How long a test may take in the long run."""

SEEDS_PER_BASE: Final = 1_000_000
SIMULATED: Final = pytest.mark.compiled_skip(
    "the simulation extends Journal and GroupCommit and lowers limits that are compiled in"
)
"""For tests that play the simulation."""


class Runs:
    """How often a test is to run; what it has run goes into the table."""

    def __init__(self, config: pytest.Config, base: int, test: str) -> None:
        self.is_long = bool(config.getoption("--long"))
        chosen = config.getoption("--fault-seed")
        self._chosen = None if chosen is None else int(chosen)
        self._scale = float(config.getoption("--fault-scale"))
        self._base = base
        self._test = test
        self._counts = config.stash[COUNTS_KEY]

    def times(self, short: int, long: int) -> int:
        """Return how often something random is to be done."""
        if self._chosen is not None:
            return 1
        return max(1, round((long if self.is_long else short) * self._scale))

    def seeds(
        self, test_id: str, short: int, long: int, part: int = 0, parts: int = 1
    ) -> Iterator[int]:
        """Yield the seeds to play, or one part of them, and count them."""
        first = self._base * SEEDS_PER_BASE
        for number in range(part, self.times(short, long), parts):
            yield first + number if self._chosen is None else self._chosen
            gc.unfreeze()  # the daemons of the run froze what they had loaded
            self.count(test_id)

    def rng(self, test_id: str, short: int, long: int) -> Iterator[random.Random]:
        """Yield a generator for each seed; the seed of the one that failed is in the message."""
        for seed in self.seeds(test_id, short, long):
            try:
                yield random.Random(seed)
            except BaseException as error:
                error.add_note(f"--fault-seed {seed}")
                raise

    def some(self, numbers: range, short: int) -> range:
        """Return all of them in the long run, so many spread over all in the short one."""
        if self.is_long:
            return numbers
        return numbers[:: max(1, len(numbers) // short) | 1]  # odd, for every bit of a byte

    def count(self, test_id: str, number: int = 1, what: str = "runs") -> None:
        """Put so many into the table."""
        self._counts[test_id, what] += number


@pytest.fixture
def runs(pytestconfig: pytest.Config, seed: int, request: pytest.FixtureRequest) -> Runs:
    return Runs(pytestconfig, seed, request.node.nodeid)


@pytest.fixture(scope="session")
def quick_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A real file system that never waits for a real disk; without root, what there is."""
    folder = tmp_path_factory.mktemp("quick")
    if os.geteuid() != 0:
        yield folder
    else:
        with loop_disk(folder) as disk:
            yield disk.mount_point


@pytest.fixture
def quick_path(quick_disk: Path) -> Iterator[Path]:
    """A directory of the test's own on it: machines that are busy stall their disks for seconds."""
    path = Path(tempfile.mkdtemp(dir=quick_disk))
    yield path
    shutil.rmtree(path, ignore_errors=True)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[COUNTS_KEY] = Counter()


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.config.getoption("--long"):
        item.add_marker(pytest.mark.timeout(LONG_S_MAX))
    if item.path.name in MEASURING:
        item.add_marker(pytest.mark.xdist_group("measuring"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--long"):
        left_out = [item for item in items if item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("long")]


def pytest_sessionfinish(session: pytest.Session) -> None:
    reported = getattr(session.config, "workeroutput", None)
    if reported is not None:
        counts = session.config.stash[COUNTS_KEY]
        reported[COUNTED] = [[*row, count] for row, count in counts.items()]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:  # noqa: ANN401  # xdist has no types
    for test, what, count in getattr(node, "workeroutput", {}).get(COUNTED, ()):
        node.config.stash[COUNTS_KEY][test, what] += count


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    counts = config.stash[COUNTS_KEY]
    path = config.getoption("--fault-report")
    if not counts or not (path or config.getoption("--long")):
        return
    lines = ["| test | what | how many |", "|---|---|---:|"]
    lines += [f"| {test} | {what} | {count:,} |" for (test, what), count in sorted(counts.items())]
    terminalreporter.section("fault tests")
    for line in lines:
        terminalreporter.write_line(line)
    if path:
        Path(path).write_text("\n".join(lines) + "\n")
