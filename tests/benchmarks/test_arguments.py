import importlib
import sys

import pytest


@pytest.mark.parametrize(
    "command", ["instructions --rows nonsense", "receivers nonsense", "soak --hostile nonsense"]
)
def test_a_wrong_argument_of_a_benchmark_is_named_in_one_sentence(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *words = command.split()
    benchmark = importlib.import_module(f"benchmarks.{name}")
    monkeypatch.setattr(sys, "argv", [name, *words])
    with pytest.raises(SystemExit):
        benchmark.main()
    said = capsys.readouterr().err.splitlines()
    assert ": error: " in said[-1]
    assert "'nonsense'" in said[-1]
