import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from delayd.cli.put import BATCH_BYTES, BATCH_JOBS, Line, batches
from delayd.exits import Exit
from tests.cli.talking import Talk


def typed_in(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(data), isatty=lambda: False))


def bodies(talk: Talk, topic: str = "mail") -> list[str]:
    return [job["body"] for job in talk.objects("jobs", topic, "--bodies")]


def test_the_id_is_all_that_is_printed(talk: Talk) -> None:
    assert talk.run("put", "mail", "hello") == (Exit.OK, "1\n", "")
    assert talk.objects("put", "mail", "x", "--delay", "15s") == [
        {"id": 2, "outcome": "created", "due": "2023-11-14T22:13:35Z"}
    ]


def test_a_body_comes_from_the_argument_a_file_or_standard_input(
    talk: Talk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "body").write_bytes(b"of a file\n")
    talk.ok("put", "mail", "typed")
    talk.ok("put", "mail", "--file", str(tmp_path / "body"))
    typed_in(monkeypatch, b"piped")
    talk.ok("put", "mail")
    typed_in(monkeypatch, b"dash")
    talk.ok("put", "mail", "-")
    assert bodies(talk) == ["typed", "of a file\n", "piped", "dash"]


def test_every_option_reaches_the_job(talk: Talk) -> None:
    talk.ok(
        "put",
        "mail",
        "x",
        "--key",
        "k",
        "--priority",
        "7",
        "--ttr",
        "1m30s",
        "--at",
        "2030-01-01T09:00:00+01:00",
        "--group",
        "g",
    )
    (job,) = talk.objects("peek", "--topic", "mail", "--key", "k")
    assert (job["priority"], job["ttr"], job["due"]) == (7, 90.0, "2030-01-01T08:00:00.000Z")
    assert job["group"] == "g"
    talk.ok("change", "--topic", "mail", "--key", "k", "--group", "h")
    assert " group h " in " ".join(talk.ok("peek", "--topic", "mail", "--key", "k").split())
    talk.ok("change", "--topic", "mail", "--key", "k", "--group", "")
    assert "group" not in talk.objects("peek", "--topic", "mail", "--key", "k")[0]
    talk.ok("put", "mail", "x", "--retry", "15s 3m", "--max-attempts", "3", "--jitter-percent", "5")
    said = json.loads(talk.requests[-1].body)
    assert (said["retry"], said["max_attempts"], said["jitter_percent"]) == ("15s 3m", 3, 5)


def test_a_job_may_be_sent_somewhere_when_it_is_due(talk: Talk) -> None:
    where = ("--call", "https://example.com/due", "--method", "PUT")
    talk.run("put", "mail", "x", *where, "--header", "X-Shop: 7", "--header", "X:a:b")
    said = json.loads(talk.requests[-1].body)
    assert (said["url"], said["method"]) == ("https://example.com/due", "PUT")
    assert said["headers"] == {"X-Shop": "7", "X": "a:b"}
    talk.run("put", "mail", "x")
    assert not {"url", "method", "headers"} & json.loads(talk.requests[-1].body).keys()
    assert "NAME:VALUE" in talk.fails(Exit.USAGE, "put", "mail", "x", *where, "--header", "X")


def test_a_time_may_be_seconds_since_1970(talk: Talk) -> None:
    (job,) = talk.objects("put", "mail", "x", "--at", "1893456000")
    assert job["due"] == "2030-01-01T00:00:00Z"


def test_a_key_that_is_taken_is_refused_or_changed_as_was_said(talk: Talk) -> None:
    talk.ok("put", "mail", "x", "--key", "k", "--delay", "1m")
    said = talk.fails(Exit.REFUSED, "put", "mail", "y", "--key", "k")
    assert said == "delayd: job 1 has the key 'k' already\n"
    (job,) = talk.objects("put", "mail", "y", "--key", "k", "--on-conflict", "replace")
    assert (job["id"], job["outcome"]) == (1, "replaced")


def test_a_command_with_an_idempotency_key_can_be_repeated(talk: Talk) -> None:
    words = ("put", "mail", "x", "--idempotency-key", "4711")
    assert talk.ok(*words) == talk.ok(*words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--delay soon", "'soon' must be seconds, or a duration such as"),
        ("--at tomorrow", "'tomorrow' must be a moment such as"),
        ("--priority -1", "'-1' must be from 0 to"),
        ("--delay 1s --at 2030-01-01T00:00:00Z", "exclude each other"),
        ("--on-conflict ignore", "ignore"),
        ("--dely 1s", "Did you mean"),
    ],
)
def test_what_is_wrong_with_an_option_is_said_before_anything_is_sent(
    words: str, said: str, talk: Talk
) -> None:
    assert said in talk.fails(Exit.USAGE, "put", "mail", "x", *words.split())
    assert not talk.requests


def test_a_body_from_two_places_is_refused(talk: Talk, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("x")
    assert "exclude" in talk.fails(Exit.USAGE, "put", "mail", "x", "--file", str(path))
    words = ("put", "mail", "x", "--ndjson", str(path))
    assert "bodies are in its lines" in talk.fails(Exit.USAGE, *words)


def test_nobody_waits_for_a_body_that_is_to_be_typed(talk: Talk) -> None:
    talk.answers("")
    assert "there is no body" in talk.fails(Exit.USAGE, "put", "mail")


# --- NDJSON --------------------------------------------------------------------------------------


def ndjson(tmp_path: Path, *lines: str) -> str:
    path = tmp_path / "jobs.ndjson"
    path.write_text("\n".join(lines))
    return str(path)


def test_each_line_is_a_job_and_options_are_its_defaults(talk: Talk, tmp_path: Path) -> None:
    lines = ['{"body": {"to":  "ada"}}', "", '{"body_base64": "AP8=", "delay": "2h"}']
    code, out, err = talk.run("put", "mail", "--ndjson", ndjson(tmp_path, *lines), "--delay", "1h")
    assert (code, out, err) == (Exit.OK, "1\n2\n", "delayd: 2 put, 0 refused\n")
    first, second = talk.objects("jobs", "mail", "--bodies")
    assert (first["body"], first["due"]) == ('{"to":"ada"}', "2023-11-14T23:13:20.000Z")
    assert (second["body_base64"], second["due"]) == ("AP8=", "2023-11-15T00:13:20.000Z")


def test_a_line_with_a_time_does_not_take_the_delay_of_the_option(
    talk: Talk, tmp_path: Path
) -> None:
    path = ndjson(tmp_path, '{"body": 1, "at": "2030-01-01T09:00:00Z"}')
    talk.ok("put", "mail", "--ndjson", path, "--delay", "1h")
    assert talk.objects("jobs", "mail")[0]["due"] == "2030-01-01T09:00:00.000Z"


def test_what_is_refused_is_named_by_its_line_and_the_others_are_put(
    talk: Talk, tmp_path: Path
) -> None:
    path = ndjson(tmp_path, '{"body": 1, "key": "k"}', "", '{"body": 2, "key": "k"}', '{"body": 3}')
    code, out, err = talk.run("put", "mail", "--ndjson", path, "--json")
    assert code == Exit.REFUSED
    assert [json.loads(line).get("word") for line in out.splitlines()] == [
        *(None, "JOB_ALREADY_EXISTS", None)
    ]
    assert "delayd: line 3: job 1 has the key 'k' already\n" in err
    assert err.endswith("delayd: 2 put, 1 refused\n")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2: is not JSON"),
        ("[]", "line 2: must be an object"),
        ('{"body": 1, "dely": "1h"}', "line 2: there is no field 'dely'; did you mean delay?"),
        ("{}", "line 2: must have body or body_base64"),
        ('{"body_base64": "?"}', "line 2: body_base64 is not base64"),
        ('{"body": 1, "delay": "soon"}', "line 2: delay: must be seconds"),
    ],
)
def test_a_line_that_is_wrong_is_named_and_nothing_of_its_batch_is_put(
    line: str, said: str, talk: Talk, tmp_path: Path
) -> None:
    path = ndjson(tmp_path, '{"body": 1}', line)
    assert said in talk.fails(Exit.USAGE, "put", "mail", "--ndjson", path)
    assert not talk.rig.engine.store.jobs


def test_lines_are_counted_by_what_became_of_them(talk: Talk, tmp_path: Path) -> None:
    kept = '{"body": 3, "key": "k", "on_conflict": "keep"}'
    path = ndjson(tmp_path, '{"body": 1, "key": "k", "on_conflict": "keep"}', '{"body": 2}', kept)
    words = ("put", "mail", "--ndjson", path)
    assert talk.run(*words)[2] == "delayd: 2 put, 1 kept, 0 refused\n"
    assert talk.run(*words)[2] == "delayd: 1 put, 2 kept, 0 refused\n"


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


def test_whoever_looks_for_an_option_for_the_body_is_told_how_it_is_given(talk: Talk) -> None:
    for words in (("put", "mail", "--body", "x"), ("put", "mail", "--data=x")):
        assert "the body is an argument, --file FILE or standard input" in talk.fails(
            Exit.USAGE, *words
        )
    assert not talk.requests
    assert "--body" not in talk.ok("put", "--help")
