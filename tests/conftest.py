"""What every test can rely on: one seed, printed, from which everything random here follows.

`make test` always runs with the same seed, so a failure is there again on the next run. Another
seed is chosen with `make test ARGS='--seed 7'`, a fresh one with `--seed random`. A test that needs
chance takes the `rng` fixture; hypothesis follows the same seed.
"""

import asyncio
import gc
import inspect
import os
import random
from collections.abc import Callable, Coroutine
from typing import Any, Final

import hypothesis
import pytest
from _pytest.runner import runtestprotocol

import delayd.core.engine
from delayd.testing.daemon import Daemon
from tests.rigs import fork_server

DEFAULT_SEED: Final = 1
SCENE_S_MAX: Final = 60
YOUNG_OBJECTS: Final = 20_000
"""So many are made between two collections of garbage."""
SEED_KEY: Final = pytest.StashKey[int]()
WALKING: Final = frozenset(("examples", "often", "share"))
"""The fixtures of tests that do something again and again."""
IS_COMPILED: Final = not str(delayd.core.engine.__file__).endswith(".py")

Daemon.start_process = staticmethod(fork_server.start)

# What compares for tests of several folders: a failed assertion shows both sides.
pytest.register_assert_rewrite("tests.facts.rows", "tests.facts.worlds", "tests.rigs.engine")

# Profiles differ only in where the random choices come from: derandomized ones are a function of
# the test alone, the others of --seed. No example database: a run depends on nothing but the code
# and the seed. No deadline, and no complaint that drawing is slow: a busy machine is not a failure.
COMMON: Final = hypothesis.settings(
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile("delayd", COMMON, derandomize=True)
hypothesis.settings.register_profile("delayd-seeded", COMMON, derandomize=False)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seed",
        default=str(DEFAULT_SEED),
        metavar="N",
        help=f"seed of everything random in the tests, or 'random' (default: {DEFAULT_SEED})",
    )
    parser.addoption("--long", action="store_true", help="walk many seeds; the long fault suite")
    # Used in tests/faults only; but that folder's conftest.py is read too late to add options.
    faults = parser.getgroup("faults")
    faults.addoption(
        "--fault-seed", type=int, metavar="N", help="play this one seed in the fault tests"
    )
    faults.addoption(
        "--fault-scale", type=float, default=1.0, metavar="X", help="run them X times as often"
    )
    faults.addoption("--fault-report", metavar="FILE", help="write the table of fault runs there")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    chosen = config.getoption("--seed")
    try:
        number = random.SystemRandom().randrange(2**32) if chosen == "random" else int(chosen)
    except ValueError:
        message = f"--seed takes a whole number or 'random', not {chosen!r}"
        raise pytest.UsageError(message) from None
    config.stash[SEED_KEY] = number
    # No test trusts the system's authorities. To read them takes each daemon that is started, and
    # each context of TLS, a tenth of a second of a processor: aiohttp does so when it is imported.
    os.environ["SSL_CERT_FILE"] = os.devnull
    if number == DEFAULT_SEED:
        hypothesis.settings.load_profile("delayd")
    else:
        hypothesis.settings.load_profile("delayd-seeded")
        config.option.hypothesis_seed = str(number)
    # Who asks for these wants to know of each set-up too.
    wants_all = config.option.durations or config.option.xmlpath or config.option.verbose > 0
    if hasattr(config, "workerinput") and not wants_all:
        config.pluginmanager.register(Outcomes())


def pytest_unconfigure() -> None:
    fork_server.stop()


def pytest_report_header(config: pytest.Config) -> list[str]:
    number = config.stash[SEED_KEY]
    return [
        f"seed: {number} (this run again: --seed {number})",
        f"delayd: {'compiled' if IS_COMPILED else 'pure Python'}",
    ]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Repeat a walk for each of its seeds, few of them in the everyday run."""
    marker = metafunc.definition.get_closest_marker("walk")
    if marker is not None:
        few, many = marker.args
        metafunc.parametrize("number", range(many if metafunc.config.getoption("--long") else few))


def pytest_itemcollected(item: pytest.Item) -> None:
    """Leave out of `make check` what plays long histories, as what says so by itself."""
    fixtures = WALKING.intersection(getattr(item, "fixturenames", ()))
    is_drawn = hypothesis.is_hypothesis_test(getattr(item, "obj", None))
    if fixtures or is_drawn or item.get_closest_marker("walk") is not None:
        item.add_marker("thorough")


def pytest_collection_finish() -> None:
    """Leave the tests themselves to no collection of garbage: that is a sixth of a run."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 20)


class Outcomes:
    """What a worker of pytest-xdist tells of a test: its outcome, and what went wrong.

    That a set-up and a tear-down passed says nothing, and cost a run of all tests ten seconds.
    """

    @pytest.hookimpl
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        for report in runtestprotocol(item, log=False, nextitem=nextitem):
            if report.when == "call" or not report.passed or report.sections:
                item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Play a test that is a coroutine in a loop of its own, which has nothing to complain of."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    play(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


def play(scene: Coroutine[Any, Any, None]) -> None:
    """Play it in a loop of its own."""
    reports: list[dict[str, Any]] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, report: reports.append(report))
        await asyncio.wait_for(scene, SCENE_S_MAX)

    asyncio.run(watched())
    assert not reports


def pytest_runtest_setup(item: pytest.Item) -> None:
    marker = item.get_closest_marker("compiled_skip")
    if marker is not None and IS_COMPILED:
        pytest.skip(f"delayd is compiled: {marker.args[0]}")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
        terminalreporter.write_line(f"The seed was {config.stash[SEED_KEY]}.")


@pytest.fixture(scope="session")
def seed(pytestconfig: pytest.Config) -> int:
    return pytestconfig.stash[SEED_KEY]


@pytest.fixture(scope="session")
def examples(pytestconfig: pytest.Config) -> Callable[[int], hypothesis.settings]:
    """Settings for a model: `few` histories in the everyday run, 25 times as many in the long."""
    factor = 25 if pytestconfig.getoption("--long") else 1

    def settings(few: int) -> hypothesis.settings:
        return hypothesis.settings(max_examples=few * factor, stateful_step_count=50)

    return settings


@pytest.fixture(scope="session")
def often(pytestconfig: pytest.Config) -> Callable[[int, int], range]:
    """Returns a range of `few` numbers in the everyday run, of `many` in the long one."""
    is_long = pytestconfig.getoption("--long")
    return lambda few, many: range(many if is_long else few)


@pytest.fixture
def share(request: pytest.FixtureRequest) -> Callable[[range], range]:
    """Returns every seventh of the numbers, not the same ones in each test; in the long run all."""
    step = 1 if request.config.getoption("--long") else 7  # of the bits of a byte each
    first = sum(request.node.name.encode()) % step
    return lambda numbers: numbers[first::step]


@pytest.fixture
def rng(seed: int, request: pytest.FixtureRequest) -> random.Random:
    # The test's name goes in, so that running one test alone draws what it drew among the others.
    return random.Random(f"{seed} {request.node.nodeid}")
