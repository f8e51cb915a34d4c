from pathlib import Path

from delayd.cli.put import BATCH_BYTES, BATCH_JOBS, Line, batches
from delayd.exits import Exit
from tests.cli.talking import Talk

# --- NDJSON --------------------------------------------------------------------------------------


def ndjson(tmp_path: Path, *lines: str) -> str:
    path = tmp_path / "jobs.ndjson"
    path.write_text("\n".join(lines))
    return str(path)


def test_it_is_said_before_which_line_it_ended(talk: Talk, tmp_path: Path) -> None:
    lines = ['{"body": 1}'] * BATCH_JOBS
    path = ndjson(tmp_path, *lines, "", '{"body": 2, "delay": "soon"}')
    told = talk.fails(Exit.USAGE, "put", "mail", "--ndjson", path)
    assert told.startswith("delayd: 1000 put, 0 refused; it ended before line 1001\n")
    assert "line 1002: delay: must be seconds" in told


def test_a_request_is_bounded_in_jobs_and_in_bytes() -> None:
    job: Line = (1, {"body": b""})
    sizes = [10] * (BATCH_JOBS + 1) + [BATCH_BYTES, 5]
    cut = [(len(batch), size) for batch, size in batches((job, size) for size in sizes)]
    assert cut == [(BATCH_JOBS, 10 * BATCH_JOBS), (1, 10), (1, BATCH_BYTES), (1, 5)]
