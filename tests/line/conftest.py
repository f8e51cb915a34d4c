import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rigs.line_sockets import ServerRig


@pytest.fixture(autouse=True)
def _the_same_process_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `stats` says of the process is the same in each run, so that replies can be compared."""
    usage = resource.struct_rusage((1.5, 0.25, *[0] * 14))
    monkeypatch.setattr("delayd.line.stats.resource.getrusage", lambda who: usage)
    urandom = os.urandom
    # The 7 bytes of `instance_id`; certificates need true ones.
    monkeypatch.setattr(os, "urandom", lambda size: bytes(7) if size == 7 else urandom(size))


@pytest.fixture
def rig() -> Iterator[ServerRig]:
    with ServerRig() as rig:
        yield rig


@pytest.fixture
def unix_rig(tmp_path: Path) -> Iterator[ServerRig]:
    with ServerRig(path=tmp_path / "line.sock") as rig:
        yield rig
