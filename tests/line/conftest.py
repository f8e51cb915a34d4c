import types

import pytest


@pytest.fixture(autouse=True)
def _the_same_process_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `stats` says of the process is the same in each run, so that replies can be compared."""
    usage = types.SimpleNamespace(ru_utime=1.5, ru_stime=0.25)
    monkeypatch.setattr("delayd.line.stats.resource.getrusage", lambda who: usage)
    monkeypatch.setattr("delayd.line.stats.instance_id", lambda: "d0d")
