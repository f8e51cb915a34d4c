import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from delayd.cli.main import INTERRUPTED
from delayd.cli.ndjson import BATCH_BYTES, BATCH_JOBS, JobLine, Pipe, batches, put_batch
from delayd.client import Client
from delayd.client.errors import ConnectionLost, Refused
from delayd.client.results import PutResult
from delayd.exits import Exit
from tests.cli.talking import Talk


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


@pytest.mark.thorough
@pytest.mark.parametrize("may_have_happened", [False, True])
def test_it_is_said_where_to_go_on(
    talk: Talk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, may_have_happened: bool
) -> None:
    def lost(*arguments: object) -> object:
        (*_, batch) = arguments
        if batch[0].number > 1:  # type: ignore[index]
            raise ConnectionLost("http://h", "reset", may_have_happened=may_have_happened)
        return put_batch(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("delayd.cli.ndjson.put_batch", lost)
    path = ndjson(tmp_path, *['{"body": 1}'] * BATCH_JOBS, "", '{"body": 2}', '{"body": 3}')
    told = talk.fails(Exit.UNREACHABLE, "put", "mail", "--ndjson", path)
    where = "to go on: --from-line 1001"
    if may_have_happened:
        where = (
            "lines 1002 to 1003 may have been put:"
            " go on with --from-line 1004 if they were, else --from-line 1001"
        )
    assert told.startswith(f"delayd: 1000 put, 0 refused; {where}\n")


@pytest.mark.timeout(20)  # instead of waiting for a pipe that stays open
def test_lines_are_put_while_the_pipe_is_open_and_has_no_more(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    then: list[Callable[[], object]] = [
        lambda: os.write(writer, b'3}\n{"body": 4}'),
        lambda: os.close(writer),
        lambda: None,
    ]
    numbers = []

    def put(client: Client, batch: Sequence[JobLine]) -> list[PutResult | Refused]:
        numbers.append([line.number for line in batch])
        then.pop(0)()
        return put_batch(client, batch)

    monkeypatch.setattr("delayd.cli.ndjson.put_batch", put)
    os.write(writer, b'{"body": 1}\n{"body": 2}\n\n{"body": ')
    out = talk.ok("put", "mail", "--ndjson", f"/dev/fd/{reader}", "--keep-going")
    assert (out, numbers) == ("1\n2\n3\n4\n", [[1, 2], [4], [5]])


def test_sigterm_ends_it_as_ctrl_c_does_and_it_says_how_far_it_got(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    os.write(writer, b'{"body": 1}\n{"body": 2}\n')
    read, reads = Pipe._read, [False, True]

    def terminated(made: Pipe) -> None:
        if reads.pop(0):  # waiting for the third line
            os.kill(os.getpid(), signal.SIGTERM)
        read(made)

    monkeypatch.setattr(Pipe, "_read", terminated)
    before = signal.signal(signal.SIGTERM, lambda *_: os.close(writer))
    try:
        code, out, err = talk.run("put", "mail", "--ndjson", f"/dev/fd/{reader}", "--keep-going")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (code, out) == (INTERRUPTED, "1\n2\n")
    assert "delayd: 2 put, 0 refused; to go on: --from-line 3\n" in err
    os.close(writer)


@pytest.mark.timeout(20)
def test_a_pipe_gives_the_same_lines_however_it_is_cut() -> None:
    text = b"ab\n\nlonger than eight\nc"
    for step in range(1, len(text) + 1):
        reader, writer = os.pipe()
        with os.fdopen(reader, "rb") as file:
            lines = Pipe(file)
            assert lines.is_silent(8)
            for start in range(0, len(text), step):
                os.write(writer, text[start : start + step])
                lines._read()
            assert not lines.is_silent(8)
            os.close(writer)
            found = list(iter(lambda: lines.readline(8), b""))  # noqa: B023 - used at once
        assert found == [b"ab\n", b"\n", b"longer t", b"han eigh", b"t\n", b"c"]


@pytest.mark.thorough
def test_what_is_wrong_at_the_end_of_a_pipe_is_found_before_the_first_put(talk: Talk) -> None:
    lines = ['{"body": 1}'] * BATCH_JOBS
    told = talk.fails(Exit.USAGE, "put", "mail", "--ndjson", pipe(*lines, "{"))
    assert "line 1001: is not JSON" in told
    assert not talk.requests
    assert talk.ok("put", "mail", "--ndjson", pipe(*lines)).count("\n") == BATCH_JOBS


def test_a_pipe_is_kept_up_to_a_bound_and_put_as_it_comes_with_keep_going(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delayd.cli.ndjson.NDJSON_PIPE_BYTES_MAX", 23)
    lines = ['{"body": 1}', '{"body": 2}', ""]
    told = talk.fails(Exit.USAGE, "put", "mail", "--ndjson", pipe(*lines))
    assert "too much to look at before the first put: nothing was put" in told
    assert talk.ok("put", "mail", "--ndjson", pipe(*lines), "--keep-going") == "1\n2\n"
    assert talk.ok("put", "mail", "--ndjson", pipe(*lines[:2])) == "3\n4\n"


@pytest.mark.parametrize("more", [(), ("--keep-going",)])
def test_a_line_is_read_up_to_a_bound(
    talk: Talk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    monkeypatch.setattr("delayd.cli.ndjson.NDJSON_LINE_BYTES_MAX", 12)
    path = ndjson(tmp_path, '{"body": 1}', '{"body": 12}')
    assert talk.ok("put", "mail", "--ndjson", path, *more) == "1\n2\n"
    path = ndjson(tmp_path, '{"body": 1}', '{"body": 12} ')
    told = talk.fails(Exit.USAGE, "put", "mail", "--ndjson", path, *more)
    assert "line 2 is longer than 12B: put its body by itself, with --file" in told


def test_of_many_wrong_lines_the_first_are_shown(
    talk: Talk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delayd.cli.ndjson.NDJSON_WRONG_SHOWN_MAX", 2)
    told = talk.fails(Exit.USAGE, "put", "mail", "--ndjson", ndjson(tmp_path, *["{"] * 5))
    assert [line.partition(":")[2][:7] for line in told.splitlines()] == [
        *(" line 1", " line 2", " nothin"),
    ]
    assert "because 5 lines are wrong" in told


def test_a_request_is_bounded_in_jobs_and_in_bytes() -> None:
    sizes = [10] * (BATCH_JOBS + 1) + [BATCH_BYTES, 5]
    cut = [
        (len(batch), sum(line.size for line in batch))
        for batch in batches(JobLine(1, "mail", {"body": b""}, size) for size in sizes)
    ]
    assert cut == [(BATCH_JOBS, 10 * BATCH_JOBS), (1, 10), (1, BATCH_BYTES), (1, 5)]
