"""What people want a delay queue for, in days of virtual time, each with a crash in the middle.

Each story is played in memory and again with the real process.
"""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.line_client import LineClient
from tests.pages import is_as_told
from tests.rigs.story import LADDER_S, MemoryDaemon, ProcessDaemon, Story
from tests.rigs.written import Fact, facts_of

DAY_S: Final = 24 * 3_600
POLICY: Final = '[topics."mail.*"]\nretry = "15s 3m 10m 30m 30m 1h 2h 6h 15h"\n'
CONFIGURATIONS: Final = {
    "plain": "",
    "capped": '[topics."mail.*"]\nreserved_max = 1\n[jobs]\njobs_max = 3\n',
    "once": '[topics."mail.*"]\nmax_attempts = 1\n',
}


@pytest.fixture(
    params=[
        pytest.param(MemoryDaemon, id="memory"),
        pytest.param(ProcessDaemon, id="process", marks=pytest.mark.process),
    ]
)
def story(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Story]:
    with Story(tmp_path, POLICY, request.param) as story:
        yield story


def play(story: Story, fact: Fact) -> None:
    worker = story.client

    def take(step: str) -> None:
        nonlocal worker
        said, _, expected = step.partition(" = ")
        act, *words = said.split()
        returned: object = None
        match act:
            case "put":
                body, delay, tube, *more = words
                more = [f" {word}" for word in more]
                returned = story.put(body, float(delay), tube=tube, words="".join(more))
            case "say":
                returned = story.ask(" ".join(words))
            case "pass":
                story.passes(float(words[0]))
            case "crash":
                story.crashes(CONFIGURATIONS[words[0]] if words else None)
            case "comes":
                returned = story.comes(*words)
            case "comes_after":
                returned = story.comes_after(float(words[0]), *words[1:])
            case "state" | "delay":
                returned = story.job(int(words[0]))[act]
            case "take":
                worker = taken(story)
            case "worker":
                returned = worker.ask(" ".join(words))
            case "leave":
                worker.close()
            case _:
                (way,) = (each for each in WAYS if each.__name__ == act)
                way(story)
        told = expected.replace("\\r\\n", "\r\n")
        assert not told or is_as_told(told, str(returned)), returned

    fact.play(take)


@pytest.mark.parametrize(
    "fact", facts_of(Path(__file__).parent / "stories.txt", separator=" ; "), ids=str
)
def test_every_story_goes_as_written(story: Story, fact: Fact) -> None:
    play(story, fact)


def test_offers_of_5_1_and_3_seconds_come_out_as_1_3_5(story: Story) -> None:
    for delay_s in (5, 1, 3):
        story.put(str(delay_s), delay_s)
    story.crashes()
    with story.connect() as worker:
        worker.send(b"reserve\r\n" * 3)
        story.passes(5)
        came = [worker.reply().split(b"\r\n")[1] for _ in range(3)]
    assert came == [b"1", b"3", b"5"]


def hangs(story: Story) -> None:
    """A worker keeps the job beyond its ttr."""
    with taken(story) as worker:
        story.passes(60)
        assert worker.ask("touch 1") == "NOT_FOUND"


def drops(story: Story) -> None:
    """A worker's connection closes."""
    taken(story).close()
    while story.state() == "reserved":  # until the daemon has seen it
        pass


def nacks(story: Story) -> None:
    """A worker says that it failed."""
    with taken(story) as worker:
        assert worker.ask("nack 1 no route to host") == "NACKED"


def releases(story: Story) -> None:
    """What stock beanstalk clients know."""
    with taken(story) as worker:
        assert worker.ask("release 1 0 0") == "RELEASED"


def taken(story: Story) -> LineClient:
    """A worker that has the job."""
    worker = story.connect()
    assert worker.ask("watch mail.a") == "WATCHING 2"
    assert worker.ask("reserve-with-timeout 0").startswith("RESERVED 1 ")
    return worker


WAYS: Final[dict[Callable[[Story], None], str]] = {
    nacks: "nacked",
    hangs: "ttr-ran-out",
    drops: "holder-left",
    releases: "released",
}


def test_a_notification_climbs_the_ladder_and_is_a_dead_letter_then(story: Story) -> None:
    story.put("call back", tube="mail.a")
    for attempt, (step_s, way) in enumerate(zip(LADDER_S, itertools.cycle(WAYS), strict=False)):
        way(story)
        if attempt == 4:
            story.crashes()
        job = story.job()
        assert (job["state"], job["delay"]) == ("delayed", str(step_s))
        assert job["attempts"] == str(attempt + 1)
        assert job["failure"] == WAYS[way]
        story.passes(step_s - 0.001)
        assert story.state() == "delayed"
        story.passes(0.001)
        assert story.state() == "ready", "it fires at its moment, counted from the failure"
    nacks(story)
    story.crashes()
    job = story.job()
    assert (job["state"], job["attempts"]) == ("buried", "10")
    assert (job["failure"], job["error"]) == ("nacked", '"no route to host"')
    story.passes(30 * DAY_S)
    assert story.state() == "buried", "it is kept for a person to look at"
    assert story.ask("peek 1").startswith("FOUND 1 ")
    assert story.ask("redrive mail.a 10") == "REDRIVEN 1"
    assert story.comes("mail.a") == "call back"


def test_a_worker_that_hangs_gives_the_job_to_the_next_one_within_one_advance(story: Story) -> None:
    """The first one's ttr ends after 60 s, the first step after 75: all in one go."""
    story.put("call back", tube="mail.a")
    with story.connect() as first, story.connect() as second:
        for worker in (first, second):
            worker.ask("watch mail.a")
            worker.send(b"reserve\r\n")
        assert first.reply() == b"RESERVED 1 9\r\ncall back\r\n"
        story.passes(60 + LADDER_S[0] + 30)
        assert second.reply() == b"RESERVED 1 9\r\ncall back\r\n"
        job = story.job()
        assert (job["state"], job["time-left"]) == ("reserved", "29")


# --- Limits and other configurations -------------------------------------------------------------
