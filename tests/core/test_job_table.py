"""The job table: a dict of pages that behaves like one dict and gives its pages back."""

import random

import pytest

from delayd.core.job_table import PACKED_PAGES_LATER, JobTable, offsets_of, records_of


def test_it_is_a_dict(rng: random.Random) -> None:
    table = JobTable()
    model: dict[int, bytes] = {}
    for step in range(20_000):
        job_id = rng.choice((rng.randrange(300), rng.randrange(2**64)))
        if rng.random() < 0.5 and model:
            job_id = rng.choice([*model])
            assert table.pop(job_id) == model.pop(job_id)
        else:
            keep = table.replace if job_id in model else table.put
            keep(job_id, b"%d" % step)
            model[job_id] = b"%d" % step
        if step % 1000 == 0:
            assert dict(table) == model
            assert len(table) == len(model)
            assert table.put_bytes == sum(5 + len(record) for record in model.values())
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


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 200])
def test_a_run_is_kept_as_its_jobs_one_by_one_would_be(count: int) -> None:
    for first_id in (1, 60, 63, 64, 2**40 - 3):
        runs, singles = JobTable(), JobTable()
        records = [b"x" * number for number in range(count)]
        runs.put(first_id - 1, b"before")
        singles.put(first_id - 1, b"before")
        runs.put_run(first_id, records)
        for job_id, record in enumerate(records, first_id):
            singles.put(job_id, record)
        assert list(runs) == list(singles)
        assert runs.put_bytes == singles.put_bytes


def test_a_guarded_page_is_frozen_once_before_it_changes_whatever_changes_it() -> None:
    table = JobTable()
    table.put_run(0, [b"old"] * 256)
    frozen: list[tuple[int, list[bytes]]] = []
    numbers = table.guard(lambda number, page: frozen.append((number, records_of(page))))
    assert numbers == [0, 1, 2, 3]
    table.replace(0, b"new")
    table.pop(64)
    table.put(300, b"new page: nothing to keep")
    table.preserve(128)
    table.put_run(255 + 1, [b"beside"])
    for number in numbers:
        table.uncover(number)
    assert frozen == [(number, [b"old"] * 64) for number in (0, 1, 2, 3)]
    table.pop(1)
    table.unguard()
    assert len(frozen) == 4


LATER = PACKED_PAGES_LATER * 64
"""How many jobs after its first one a full page is packed."""


def test_full_pages_are_packed_some_pages_later_until_they_change() -> None:
    table = JobTable()
    table.put_run(0, [b"%d" % job_id for job_id in range(3 * 64)])
    for job_id in range(3 * 64, LATER + 3 * 64 + 1):
        table.put(job_id, b"%d" % job_id)
    kinds = [type(page) for page in table._pages.values()]
    assert kinds == [tuple] * 4 + [dict] * PACKED_PAGES_LATER
    before = dict(table)
    table.replace(70, b"changed")
    assert table.pop(130) == b"130"
    kinds = [type(page) for page in table._pages.values()]
    assert kinds[:4] == [tuple, dict, dict, tuple]
    del before[130]
    assert dict(table) == before | {70: b"changed"}
    assert table.ids_of_page(2) == [job_id for job_id in range(128, 192) if job_id != 130]
    assert [*offsets_of(table._pages[3])] == [*range(64)]
    table.put(130, b"again")
    table.check()


def test_a_page_with_a_gap_stays_loose() -> None:
    table = JobTable()
    table.put_run(0, [b""] * 128)
    table.pop(5)
    table.put_run(LATER, [b""] * 65)
    assert [type(page) for page in table._pages.values()] == [dict, tuple, dict, dict]


def test_a_page_that_is_packed_while_a_copy_is_made_is_frozen_as_it_was() -> None:
    table = JobTable()
    table.put_run(0, [b"old"] * 64)
    frozen: list[list[bytes]] = []
    table.guard(lambda _, page: frozen.append(records_of(page)))
    table.put(LATER, b"packs the first page")
    table.replace(3, b"new")
    assert frozen == [[b"old"] * 64]


def test_what_is_not_there_cannot_be_taken() -> None:
    table = JobTable()
    table.put(64, b"")
    for job_id in (0, 65, 128):
        assert table.get(job_id) is None
        with pytest.raises(KeyError):
            table.pop(job_id)
