import os
from pathlib import Path

import pytest

from delayd.cli.put import BATCH_BYTES, BATCH_JOBS, JobLine, batches, put_batch
from delayd.client.errors import ConnectionLost
from delayd.exits import Exit
from tests.cli.talking import Talk

# --- NDJSON --------------------------------------------------------------------------------------


def ndjson(tmp_path: Path, *lines: str) -> str:
    path = tmp_path / "jobs.ndjson"
    path.write_text("\n".join(lines))
    return str(path)


def pipe(*lines: str) -> str:
    """The path of a pipe that holds these lines."""
    reader, writer = os.pipe()
    os.write(writer, "\n".join(lines).encode())
    os.close(writer)
    return f"/dev/fd/{reader}"


@pytest.mark.parametrize("may_have_happened", [False, True])
def test_it_is_said_where_to_go_on(
    talk: Talk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, may_have_happened: bool
) -> None:
    def lost(*arguments: object) -> object:
        (*_, batch) = arguments
        if batch[0].number > 1:  # type: ignore[index]
            raise ConnectionLost("http://h", "reset", may_have_happened=may_have_happened)
        return put_batch(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("delayd.cli.put.put_batch", lost)
    path = ndjson(tmp_path, *['{"body": 1}'] * BATCH_JOBS, "", '{"body": 2}', '{"body": 3}')
    told = talk.fails(Exit.UNREACHABLE, "put", "mail", "--ndjson", path)
    where = "to go on: --from-line 1001"
    if may_have_happened:
        where = (
            "lines 1002 to 1003 may have been put:"
            " go on with --from-line 1004 if they were, else --from-line 1001"
        )
    assert told.startswith(f"delayd: 1000 put, 0 refused; {where}\n")


def test_what_is_wrong_at_the_end_of_a_pipe_is_found_before_the_first_put(talk: Talk) -> None:
    lines = ['{"body": 1}'] * BATCH_JOBS
    told = talk.fails(Exit.USAGE, "put", "mail", "--ndjson", pipe(*lines, "{"))
    assert "line 1001: is not JSON" in told
    assert not talk.requests
    assert talk.ok("put", "mail", "--ndjson", pipe(*lines)).count("\n") == BATCH_JOBS


def test_a_pipe_is_kept_up_to_a_bound_and_put_as_it_comes_with_keep_going(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delayd.cli.put.NDJSON_PIPE_BYTES_MAX", 23)
    lines = ['{"body": 1}', '{"body": 2}', ""]
    told = talk.fails(Exit.USAGE, "put", "mail", "--ndjson", pipe(*lines))
    assert "too much to look at before the first put: nothing was put" in told
    assert talk.ok("put", "mail", "--ndjson", pipe(*lines), "--keep-going") == "1\n2\n"
    assert talk.ok("put", "mail", "--ndjson", pipe(*lines[:2])) == "3\n4\n"


@pytest.mark.parametrize("more", [(), ("--keep-going",)])
def test_a_line_is_read_up_to_a_bound(
    talk: Talk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    monkeypatch.setattr("delayd.cli.put.NDJSON_LINE_BYTES_MAX", 12)
    path = ndjson(tmp_path, '{"body": 1}', '{"body": 12}')
    assert talk.ok("put", "mail", "--ndjson", path, *more) == "1\n2\n"
    path = ndjson(tmp_path, '{"body": 1}', '{"body": 12} ')
    told = talk.fails(Exit.USAGE, "put", "mail", "--ndjson", path, *more)
    assert "line 2 is longer than 12B: put its body by itself, with --file" in told


def test_of_many_wrong_lines_the_first_are_shown(
    talk: Talk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delayd.cli.put.NDJSON_WRONG_SHOWN_MAX", 2)
    told = talk.fails(Exit.USAGE, "put", "mail", "--ndjson", ndjson(tmp_path, *["{"] * 5))
    assert [line.partition(":")[2][:7] for line in told.splitlines()] == [
        *(" line 1", " line 2", " nothin"),
    ]
    assert "because 5 lines are wrong" in told


def test_a_request_is_bounded_in_jobs_and_in_bytes() -> None:
    sizes = [10] * (BATCH_JOBS + 1) + [BATCH_BYTES, 5]
    cut = [
        (len(batch), sum(line.size for line in batch))
        for batch in batches(JobLine(1, {"body": b""}, size) for size in sizes)
    ]
    assert cut == [(BATCH_JOBS, 10 * BATCH_JOBS), (1, 10), (1, BATCH_BYTES), (1, 5)]
