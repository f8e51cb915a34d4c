"""What the tests of the import share: files of a binlog, written record by record."""

import struct
from typing import Final

NS: Final = 1_000_000_000
CREATED_NS: Final = 1_700_000_000 * NS
READY, RESERVED, BURIED, DELAYED, DELETED = 1, 2, 3, 4, 0


def packed_job(
    job_id: int,
    body: bytes,
    *,
    version: int = 7,
    state: int = READY,
    priority: int = 0,
    delay_s: int = 0,
    ttr_s: int = 60,
    created_ns: int = CREATED_NS,
    deadline_ns: int = 0,
    counts: tuple[int, int, int, int, int] = (0, 0, 0, 0, 0),
) -> bytes:
    unit_ns = {5: 1_000, 7: 1}[version]
    second = NS // unit_ns
    head = struct.pack("<QI4xqq", job_id, priority, delay_s * second, ttr_s * second)
    middle = struct.pack("<i4xqq", len(body) + 2, created_ns // unit_ns, deadline_ns // unit_ns)
    tail = struct.pack("<IIIIIB", *counts, state)
    return head + middle + tail + (bytes(3) if version == 7 else b"")


def full(
    job_id: int, body: bytes, tube: str = "default", *, version: int = 7, **says: object
) -> bytes:
    length = struct.pack("<Q" if version == 5 else "<i", len(tube))
    job = packed_job(job_id, body, version=version, **says)  # type: ignore[arg-type]
    return length + tube.encode("latin-1") + job + body + b"\r\n"


def short(job_id: int, body: bytes, *, version: int = 7, **says: object) -> bytes:
    length = struct.pack("<Q" if version == 5 else "<i", 0)
    return length + packed_job(job_id, body, version=version, **says)  # type: ignore[arg-type]


def file_of(*records: bytes, version: int = 7, zeros: int = 0) -> bytes:
    return struct.pack("<i", version) + b"".join(records) + bytes(zeros)
