"""Where the records of all live jobs are kept: a table from job id to record, in pages.

Ids are handed out in sequence, so sixty-four neighbours share a page. It begins *loose*: a small
dict whose keys are `id & 63`, small numbers, of which Python keeps one object each. Against one
flat dict of a million jobs that saves about 37 bytes a job (no int object for each key) and, which
matters more, growing never rehashes the whole table: a flat dict stops the world for tens of
milliseconds when it passes 1.4 million entries. It costs 30 ns more a look-up. A page that becomes
empty is removed.

A page that is full when the 64th after it begins is *packed* into a tuple, which takes 9 bytes a
job where the dict takes 36. Most jobs of a large table wait, and nothing changes their page; those
that are soon gone leave gaps before it is packed. The first change makes it loose again: 4 µs, once
for all of its jobs. A list would not need that, but the garbage collector would visit every record
in it; it gives up tuples and dicts of bytes.

>>> table = JobTable()
>>> table.put(70, b"record")
>>> table.get(70), table.get(71)
(b'record', None)
>>> table.pop(70), len(table._pages)
(b'record', 0)
>>> table.put_run(0, [b"a"] * (64 * 64 + 1))
4097
>>> type(table._pages[0]).__name__, type(table._pages[1]).__name__
('tuple', 'dict')
>>> table.replace(5, b"b"), type(table._pages[0]).__name__
(0, 'dict')
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias

from delayd.core.log_records import LAYOUTS, Kind

PAGE_BITS: Final = 6
PAGE_MASK: Final = (1 << PAGE_BITS) - 1
_PAGE_JOBS: Final = 1 << PAGE_BITS
PACKED_PAGES_LATER: Final = 64
_HEAD_BYTES: Final = LAYOUTS[Kind.PUT].size

LoosePage: TypeAlias = dict[int, bytes]
"""The records of up to 64 jobs, by the low bits of their ids."""

Page: TypeAlias = LoosePage | tuple[bytes, ...]
"""A loose one, or a packed one: the records of 64 jobs in the order of their ids."""


def offsets_of(page: Page) -> Iterable[int]:
    """Return the low bits of the ids of a page's jobs, in the order of `records_of`."""
    return range(len(page)) if isinstance(page, tuple) else page


def records_of(page: Page) -> list[bytes]:
    """Return the records of a page's jobs."""
    return list(page if isinstance(page, tuple) else page.values())


class JobTable:
    """Records by job id; every operation is O(1)."""

    __slots__ = ("_freeze", "_pages", "guarded", "put_bytes")

    def __init__(self) -> None:
        self._pages: dict[int, Page] = {}
        self.put_bytes = 0
        """How long the PUT records of all jobs would be, together."""
        self.guarded: dict[int, Page] = {}
        """Pages that must be frozen before they change; empty when no copy is being made."""
        self._freeze: Callable[[int, Page], None] | None = None

    def get(self, job_id: int) -> bytes | None:
        """Return the record, or None when no such job lives."""
        page = self._pages.get(job_id >> PAGE_BITS)
        if page is None:
            return None
        if isinstance(page, tuple):
            return page[job_id & PAGE_MASK]
        return page.get(job_id & PAGE_MASK)

    def put(self, job_id: int, record: bytes) -> None:
        """Keep the record of a new job."""
        if self.guarded:
            self.preserve(job_id)
        page = self._pages.get(job_id >> PAGE_BITS)
        if not isinstance(page, dict):
            assert page is None, "a packed page has no room"
            page = self._begin_page(job_id >> PAGE_BITS)
        page[job_id & PAGE_MASK] = record
        self.put_bytes += _HEAD_BYTES + len(record)

    def put_run(self, first_id: int, records: list[bytes]) -> int:
        """Keep the records of new jobs with ids in sequence; return how long they are, together.

        A third of the cost of `put` each.
        """
        count = len(records)
        if count == 1:
            self.put(first_id, records[0])
            return len(records[0])
        done = 0
        while done < count:
            job_id = first_id + done
            if self.guarded:
                self.preserve(job_id)
            page = self._pages.get(job_id >> PAGE_BITS)
            if not isinstance(page, dict):
                assert page is None, "a packed page has no room"
                page = self._begin_page(job_id >> PAGE_BITS)
            offset = job_id & PAGE_MASK
            here = records[done : done + _PAGE_JOBS - offset]
            page.update(zip(range(offset, _PAGE_JOBS), here, strict=False))
            done += len(here)
        record_bytes = sum(map(len, records))
        self.put_bytes += _HEAD_BYTES * count + record_bytes
        return record_bytes

    def replace(self, job_id: int, record: bytes) -> int:
        """Keep the record in place of the one that the job had; return how much longer it is."""
        if self.guarded:
            self.preserve(job_id)
        page = self._pages[job_id >> PAGE_BITS]
        if isinstance(page, tuple):
            page = self._loosen(job_id >> PAGE_BITS, page)
        longer_bytes = len(record) - len(page[job_id & PAGE_MASK])
        self.put_bytes += longer_bytes
        page[job_id & PAGE_MASK] = record
        return longer_bytes

    def pop(self, job_id: int) -> bytes:
        """Forget the job and return its record; KeyError when there is none."""
        if self.guarded:
            self.preserve(job_id)
        page = self._pages[job_id >> PAGE_BITS]
        if isinstance(page, tuple):
            page = self._loosen(job_id >> PAGE_BITS, page)
        record = page.pop(job_id & PAGE_MASK)
        if not page:
            del self._pages[job_id >> PAGE_BITS]
        self.put_bytes -= _HEAD_BYTES + len(record)
        return record

    def _begin_page(self, number: int) -> LoosePage:
        """Begin a page, and pack the one so many pages before it if it is full."""
        before = self._pages.get(number - PACKED_PAGES_LATER)
        if isinstance(before, dict) and len(before) == _PAGE_JOBS:
            packed = tuple(map(before.__getitem__, range(_PAGE_JOBS)))
            self._pages[number - PACKED_PAGES_LATER] = packed
        begun: LoosePage = {}
        self._pages[number] = begun
        return begun

    def _loosen(self, number: int, packed: tuple[bytes, ...]) -> LoosePage:
        """Make a packed page loose, because it is about to change."""
        page = self._pages[number] = dict(enumerate(packed))
        return page

    def page_numbers(self) -> list[int]:
        """Return the numbers of the pages there are; O(jobs / 64), 0.2 ms for a million."""
        return list(self._pages)

    def ids_of_page(self, number: int) -> list[int]:
        """Return the ids in that page, none if it has gone."""
        base = number << PAGE_BITS
        return [base | offset for offset in offsets_of(self._pages.get(number, ()))]

    # --- While a copy is made --------------------------------------------------------------------

    def guard(self, freeze: Callable[[int, Page], None]) -> list[int]:
        """Have each page there is now frozen before it changes; return the pages' numbers.

        `freeze(number, page)` is called once for each, by `uncover` or by what changes it first.
        """
        assert self._freeze is None, "one copy at a time"
        self._freeze = freeze
        # A dict is copied in half the time that a set of its keys takes: 1 ms for 5 million jobs.
        self.guarded = self._pages.copy()
        return list(self._pages)

    def uncover(self, number: int) -> None:
        """Freeze the page now, unless that has happened; from now on it may change freely."""
        page = self.guarded.pop(number, None)
        if page is not None:
            assert self._freeze is not None
            self._freeze(number, page)

    def preserve(self, job_id: int) -> None:
        """Freeze the page of a job that is about to change."""
        self.uncover(job_id >> PAGE_BITS)

    def unguard(self) -> None:
        """Let all pages change freely."""
        self.guarded = {}
        self._freeze = None

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """Yield (id, record) page by page; the table must not change meanwhile."""
        for number, page in self._pages.items():
            base = number << PAGE_BITS
            for offset, record in zip(offsets_of(page), records_of(page), strict=True):
                yield base | offset, record

    def __len__(self) -> int:
        """Count the jobs; O(pages)."""
        return sum(map(len, self._pages.values()))

    def check(self) -> None:
        """Assert that no page is empty and the bytes are those counted. O(jobs)."""
        assert all(self._pages.values())
        assert self.put_bytes == sum(_HEAD_BYTES + len(record) for _, record in self)
