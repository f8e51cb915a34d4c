"""The daemon in memory and the daemon do the same, step by step, whatever is asked of them."""

import random
from collections.abc import Callable
from typing import Any, Final

import pytest

from delayd.client import Client, JobInfo, Refused
from delayd.testing.daemon import Daemon
from delayd.testing.fake import FakeDelayd

STEPS: Final = 120
KEYS: Final = ("a", "b", "c")
POLICIES: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"retry": "5s 20s"},
    {"max_attempts": 2},
    {"retry": "5s 5s 5s", "max_attempts": 2, "exhausted": "{}-dead"},
    {"jobs_max": 3, "ttr": "20s"},
    {"reserved_max": 1, "delay": "3s", "delay_max": "30s"},
)


class Pair:
    """The same said to both; what they answer must be the same, but for numbers of jobs."""

    def __init__(self, real: Client, fake: Client, prefix: str) -> None:
        self.sides = (real, fake)
        self.topics = (f"{prefix}-1", f"{prefix}-2", f"{prefix}-1-dead")
        self.prefix = prefix
        self.ids: list[tuple[int, int]] = []
        self.held: list[tuple[Any, Any]] = []

    def ask(self, what: Callable[[Client, int], Any]) -> tuple[Any, Any]:
        answers = tuple(self._answer(what, side) for side in (0, 1))
        assert self._plain(answers[0], 0) == self._plain(answers[1], 1)
        return answers[0], answers[1]

    def _answer(self, what: Callable[[Client, int], Any], side: int) -> Any:  # noqa: ANN401 - any
        try:
            return what(self.sides[side], side)
        except Refused as refusal:
            return refusal

    def _plain(self, answer: Any, side: int) -> Any:  # noqa: ANN401 - the same
        if isinstance(answer, Refused):
            return type(answer)
        if isinstance(answer, JobInfo):
            failure = answer.failure and (answer.failure.reason, answer.failure.error)
            return (
                *(self.number(answer.id, side), answer.topic, answer.state, answer.priority),
                *(answer.key, answer.body, answer.ttr, answer.attempts, failure),
            )
        if isinstance(answer, list):
            return [self._plain(each, side) for each in answer]
        if hasattr(answer, "reservation"):
            return self.number(answer.id, side), answer.attempt, answer.body
        if isinstance(answer, str):
            return answer
        return getattr(answer, "outcome", None) or getattr(answer, "state", None)

    def number(self, job_id: int, side: int) -> int:
        """The number of a job among those of the walk; new ones are noted by `put`."""
        numbers = [ids[side] for ids in self.ids]
        return numbers.index(job_id) if job_id in numbers else -1


def step(pair: Pair, seeded: random.Random, advance: Callable[[float], None]) -> None:
    topic = seeded.choice(pair.topics)
    kind = seeded.randrange(12)
    if kind < 3:
        options: dict[str, Any] = {"body": str(seeded.randrange(100))}
        if seeded.random() < 0.6:
            options["delay"] = seeded.choice((0, 2, 10, 40))
        if seeded.random() < 0.5:
            options["key"] = seeded.choice(KEYS)
            options["on_conflict"] = seeded.choice(
                ("reject", "keep", "replace", "preserve", "extend")
            )
        if seeded.random() < 0.3:
            options["retry"] = "4s"
        if seeded.random() < 0.3:
            options["priority"] = seeded.randrange(5)
        body = options.pop("body")
        real, fake = pair.ask(lambda client, _side: client.put(topic, body, **options))
        if not isinstance(real, Refused) and (real.id, fake.id) not in pair.ids:
            pair.ids.append((real.id, fake.id))
    elif kind < 5:
        real, fake = pair.ask(lambda client, _side: client.reserve_many(topic, limit=2, timeout=0))
        pair.held += zip(real, fake, strict=True)
    elif kind < 8 and pair.held:
        jobs = pair.held.pop(seeded.randrange(len(pair.held)))
        verb = seeded.choice(("ack", "nack", "nack", "bury", "touch"))
        said: dict[str, Any] = {}
        if verb in {"nack", "bury"} and seeded.random() < 0.5:
            said["error"] = "wrong"
        if verb == "nack" and seeded.random() < 0.3:
            said["delay"] = 7
        if verb == "touch":
            pair.held.append(jobs)
        pair.ask(lambda client, side: getattr(client, verb)(jobs[side], **said) and None)
    elif kind == 8 and pair.ids:
        ids = seeded.choice(pair.ids)
        verb = seeded.choice(("kick", "cancel", "reschedule", "bury"))
        timing = {"delay": seeded.choice((0, 5))} if verb == "reschedule" else {}
        pair.ask(lambda client, side: getattr(client, verb)(ids[side], **timing) and None)
    elif kind == 9:
        policy = {
            name: value.format(pair.topics[0]) if name == "exhausted" else value
            for name, value in seeded.choice(POLICIES).items()
        }
        pair.ask(lambda client, _side: client.set_policy(topic, policy).source)
    else:
        advance(seeded.choice((0.5, 3, 8, 61)))
    for ids in pair.ids:
        pair.ask(lambda client, side, ids=ids: client.get(ids[side]))  # type: ignore[misc]


@pytest.mark.process
@pytest.mark.parametrize("seed", range(3))
def test_a_random_walk_ends_the_same(daemon: Daemon, seed: int) -> None:
    fake = FakeDelayd()
    with Client(f"http://{daemon.http_listens_on}") as client:
        pair = Pair(client, fake.client(), f"walk-{seed}")
        seeded = random.Random(seed)

        def advance(by_s: float) -> None:
            daemon.advance(by_s)
            fake.advance(by_s)

        for number in range(STEPS):
            try:
                step(pair, seeded, advance)
            except AssertionError as error:
                error.add_note(f"seed {seed}, step {number}")
                raise
        assert len(pair.ids) > 10
