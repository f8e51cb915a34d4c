import json

import pytest

from delayd.cli.main import invoke
from delayd.exits import Exit
from tests.cli.talking import Talk


def test_the_body_is_the_output_and_the_token_is_told_beside_it(talk: Talk) -> None:
    talk.ok("put", "mail", "hello")
    code, out, err = talk.run("reserve", "mail")
    assert (code, out) == (Exit.OK, "hello")
    assert err.startswith(
        "delayd: job 1 of mail, attempt 1 until 2023-11-14T22:14:20Z: delayd ack "
    )
    talk.ok("ack", err.split()[-1])
    assert not talk.rig.engine.store.jobs


def test_a_job_for_programs_has_all_that_is_known_of_the_reservation(talk: Talk) -> None:
    talk.ok("put", "mail", "x", "--key", "k", "--group", "g")
    (job,) = talk.objects("reserve", "mail")
    assert job["token"].startswith("1-")
    assert (job["key"], job["attempt"], job["expires"]) == ("k", 1, "2023-11-14T22:14:20Z")
    assert job["group"] == "g"
    talk.ok("put", "mail", "x")
    assert talk.objects("reserve", "mail")[0]["group"] is None


def test_several_topics_and_several_jobs(talk: Talk) -> None:
    talk.ok("put", "mail", "1")
    talk.ok("put", "sms", "2", "--priority", "0")
    jobs = talk.objects("reserve", "mail", "sms", "--count", "5")
    assert [job["body"] for job in jobs] == ["2", "1"]


def test_a_wait_ends_with_its_own_exit_code(talk: Talk) -> None:
    start_ms = talk.rig.clock.now_ms()
    said = talk.fails(Exit.NOTHING_THERE, "reserve", "mail", "--wait", "30s")
    assert said == "delayd: no job of mail was ready in time\n"
    assert talk.rig.clock.now_ms() >= start_ms + 30_000
    talk.fails(Exit.NOTHING_THERE, "reserve", "mail")


def test_a_body_goes_into_a_pipe_byte_for_byte_and_of_several_each_ends_a_line(talk: Talk) -> None:
    for body in ("one", "two\n", "three", ""):
        talk.ok("put", "mail", body)
    assert talk.ok("peek", "2", "--body") == "two\n"
    assert talk.ok("peek", "1", "2", "3", "--body") == "one\ntwo\nthree\n"
    assert talk.ok("reserve", "mail") == "one"
    assert talk.ok("reserve", "mail") == "two\n"
    assert talk.ok("reserve", "mail", "--count", "3") == "three\n\n"


def test_on_a_terminal_a_body_ends_its_line(
    talk: Talk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    talk.ok("put", "mail", "one")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    capsys.readouterr()
    invoke(["peek", "1", "--body"])
    assert capsys.readouterr().out == "one\n"


def test_with_ack_nothing_is_left_to_do(talk: Talk) -> None:
    talk.ok("put", "mail", "x")
    assert talk.run("reserve", "mail", "--ack") == (Exit.OK, "x", "")
    assert not talk.rig.engine.store.jobs


def test_nack_says_what_becomes_of_the_job_and_keeps_the_reason(talk: Talk) -> None:
    talk.ok("put", "mail", "x")
    token = talk.reserved("mail")
    said = talk.ok("nack", token, "--delay", "5m", "--error", "no route", "--priority", "3")
    assert said == "1 delayed until 2023-11-14T22:18:20Z in mail\n"
    (job,) = talk.objects("peek", "1")
    assert (job["priority"], job["failure"]["error"]) == (3, "no route")
    talk.rig.pass_ms(300_000)
    (became,) = talk.objects("nack", talk.reserved("mail"))
    assert became["state"] == "ready"


def test_touch_prints_when_the_reservation_ends(talk: Talk) -> None:
    talk.ok("put", "mail", "x")
    token = talk.reserved("mail")
    talk.rig.pass_ms(30_000)
    assert talk.ok("touch", token) == "2023-11-14T22:14:50Z\n"


def test_jobs_that_wait_are_buried_by_number_and_by_key(talk: Talk) -> None:
    for key in ("a", "b", "c"):
        talk.ok("put", "mail", "x", "--key", key, "--delay", "1h")
    assert talk.ok("bury", "1", "2", "--dry-run") == "would be buried: 2 jobs\n"
    assert talk.ok("bury", "1", "2", "--error", "wrong amount") == "buried: 2 jobs\n"
    assert talk.ok("bury", "--topic", "mail", "--key", "c") == "buried: 1 job\n"
    jobs = [talk.objects("peek", number)[0] for number in ("1", "2", "3")]
    assert [job["state"] for job in jobs] == ["buried"] * 3
    errors = [job["failure"]["error"] for job in jobs]
    assert errors == ["wrong amount", "wrong amount", "by hand"]
    assert "which does not allow to bury it" in talk.fails(Exit.REFUSED, "bury", "1")


def test_a_dry_run_of_bury_leaves_a_job_in_hand(talk: Talk) -> None:
    talk.ok("put", "mail", "x")
    token = talk.reserved("mail")
    assert talk.ok("bury", token, "--dry-run") == "would be buried: 1 job\n"
    assert talk.objects("peek", "1")[0]["state"] == "reserved"


@pytest.mark.parametrize("said", [(), ("1", "--topic", "mail"), ("--topic", "mail")])
def test_bury_must_be_told_which_jobs(said: tuple[str, ...], talk: Talk) -> None:
    talk.fails(Exit.USAGE, "bury", *said)


@pytest.mark.parametrize("command", ["ack", "nack", "touch", "bury"])
def test_one_reservation_that_has_ended_does_not_keep_the_others(command: str, talk: Talk) -> None:
    talk.ok("put", "mail", "x")
    token = talk.reserved("mail")
    said = talk.fails(Exit.NOTHING_THERE, command, "7-1a1ff7acb80-1", token)
    assert "there is no job 7" in said
    verbs = [request.target.rpartition("/")[2] for request in talk.requests[-2:]]
    assert verbs == [command, command]
    if command == "ack":
        assert not talk.rig.engine.store.jobs


def test_json_of_a_body_that_is_no_text_is_base64(talk: Talk) -> None:
    talk.rig.ok("POST", "/v1/topics/mail/jobs", {"body_base64": "AP8="})
    (job,) = talk.objects("reserve", "mail")
    assert job["body_base64"] == "AP8="
    assert "body" not in job
    assert json.dumps(job)
