"""The job table: a dict of pages that behaves like one dict and gives its pages back."""

import random

import pytest

from delayd.core.table import JobTable


def test_it_is_a_dict(rng: random.Random) -> None:
    table = JobTable()
    model: dict[int, bytes] = {}
    for step in range(20_000):
        job_id = rng.choice((rng.randrange(300), rng.randrange(2**64)))
        if rng.random() < 0.5 and model:
            job_id = rng.choice([*model])
            assert table.pop(job_id) == model.pop(job_id)
        else:
            table.put(job_id, b"%d" % step)
            model[job_id] = b"%d" % step
        if step % 1000 == 0:
            assert dict(table) == model
            assert len(table) == len(model)
        assert table.get(job_id) == model.get(job_id)


def test_pages_go_away_with_their_last_job() -> None:
    table = JobTable()
    for job_id in range(10_000):
        table.put(job_id, b"")
    assert len(table._pages) == 10_000 // 64 + 1
    for job_id in range(10_000):
        table.pop(job_id)
    assert not table._pages
    assert len(table) == 0


def test_what_is_not_there_cannot_be_taken() -> None:
    table = JobTable()
    table.put(64, b"")
    for job_id in (0, 65, 128):
        assert table.get(job_id) is None
        with pytest.raises(KeyError):
            table.pop(job_id)
