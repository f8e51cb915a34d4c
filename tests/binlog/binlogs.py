"""What the tests of the import share: files of a binlog, written record by record."""

import struct
from typing import Any, Final

from delayd.binlog.files import BinlogJob, BinlogState

NS: Final = 1_000_000_000
CREATED_NS: Final = 1_700_000_000 * NS
READY, BURIED, DELAYED = BinlogState.READY, BinlogState.BURIED, BinlogState.DELAYED
DELETED = BinlogState.DELETED


JOB: Final = BinlogJob(
    *(1, "mail", 0, 0, 60 * NS, CREATED_NS, 0),  # id, tube, priority, delay, ttr, times
    *(0, 0, 0, 0, 0),  # reserves, timeouts, releases, buries, kicks
    *(BinlogState.READY, b"body"),
)


def short(job_id: int, body: bytes, *, version: int = 7, tube: str = "", **says: Any) -> bytes:  # noqa: ANN401
    """A record of a job as it is put; `says`: what is otherwise, as in a `BinlogJob`."""
    job = JOB._replace(id=job_id, body=body, **says)
    unit_ns = {5: 1_000, 7: 1}[version]
    return (
        struct.pack("<Q" if version == 5 else "<i", len(tube))
        + tube.encode("latin-1")
        + struct.pack(
            "<QI4xqq", job.id, job.priority, job.delay_ns // unit_ns, job.ttr_ns // unit_ns
        )
        + struct.pack("<i4x", len(body) + 2)
        + struct.pack("<qq", job.created_ns // unit_ns, job.deadline_ns // unit_ns)
        + struct.pack("<IIIIIB", *job[7:12], job.state)
        + (bytes(3) if version == 7 else b"")
    )


def full(job_id: int, body: bytes, tube: str = "default", **says: Any) -> bytes:  # noqa: ANN401
    return short(job_id, body, tube=tube, **says) + body + b"\r\n"


def file_of(*records: bytes, version: int = 7, zeros: int = 0) -> bytes:
    return struct.pack("<i", version) + b"".join(records) + bytes(zeros)
