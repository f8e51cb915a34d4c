"""The facts of scheduler.txt, and answers that come too late."""

from pathlib import Path
from typing import Final

import pytest

from tests.fact_rows import Fact, rows
from tests.facts.rows import run
from tests.push.bench import ENDS, PushBench

LATE: Final = {
    f"{end} when the {what}": Fact(
        f"sends mail a; put; take; go 20{then}", [(f"end 1 {end}", seen)]
    )
    for end in ENDS
    for what, then, seen in (
        ("lease is over", "", "1 delayed"),
        ("job is gone", "; cancel 1", "1 gone"),
    )
}
FACTS: Final = dict(rows(Path(__file__).parent / "scheduler.txt")) | LATE


@pytest.mark.parametrize("name", FACTS)
def test_fact(name: str) -> None:
    bench = PushBench()
    run(FACTS[name], bench)
    bench.close()
