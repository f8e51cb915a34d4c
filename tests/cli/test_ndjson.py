import json
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from delayd.cli.main import INTERRUPTED
from delayd.cli.ndjson import (
    BATCH_BYTES,
    BATCH_JOBS,
    PATIENCE_S,
    JobLine,
    Pipe,
    batches,
    put_batch,
)
from delayd.client import Client
from delayd.client.errors import Refused
from delayd.client.results import PutResult
from delayd.exits import Exit
from tests.cli.talking import Talk


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


def test_what_is_refused_for_the_moment_is_tried_again_as_long_as_the_patience_lasts(
    talk: Talk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            talk.ok("clear", "mail", "--yes")
        elif len(pauses) == 20:
            raise KeyboardInterrupt

    monkeypatch.setattr("delayd.cli.ndjson.pause", pause)
    monkeypatch.setattr("delayd.cli.ndjson.drawn", lambda: 1.0)
    talk.ok("policy", "set", "mail", "jobs_max=2")
    path = tmp_path / "jobs"
    path.write_text("".join(f'{{"body": {n}}}\n' for n in range(1, 6)))
    told = talk.fails(Exit.NOT_NOW, "put", "mail", "--ndjson", str(path))
    assert told.startswith("delayd: 4 put, 0 refused; to go on: --from-line 5\n")
    assert pauses[:3] == [0.05, 0.1, 0.05]  # anew, after some were put
    assert sum(pauses[2:]) == pytest.approx(PATIENCE_S)
    listed = talk.ok("jobs", "mail", "--bodies", "--json").splitlines()
    assert [json.loads(line)["body"] for line in listed] == ["3", "4"]
    pauses[:] = [0.0] * 19
    code, _out, err = talk.run("put", "mail", "--ndjson", str(path), "--from-line", "5")
    assert code == INTERRUPTED
    assert err.startswith("delayd: 0 put, 0 refused; to go on: --from-line 5\n")


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


def test_a_request_is_bounded_in_jobs_and_in_bytes() -> None:
    sizes = [10] * (BATCH_JOBS + 1) + [BATCH_BYTES, 5]
    cut = [
        (len(batch), sum(line.size for line in batch))
        for batch in batches(JobLine(1, "mail", {"body": b""}, size) for size in sizes)
    ]
    assert cut == [(BATCH_JOBS, 10 * BATCH_JOBS), (1, 10), (1, BATCH_BYTES), (1, 5)]
