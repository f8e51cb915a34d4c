"""What the threads or tasks of one worker do together, step by step."""

from typing import Any

from delayd.client.crew import Crew


class Bell:
    """An alarm that only remembers whether it was set."""

    def __init__(self) -> None:
        self.is_set = False

    def set(self) -> None:
        self.is_set = True

    def wait(self) -> "Bell":
        return self


class Asked:
    """A client whose requests are what the test answers."""

    def reserve_many(self, _topics: object, **_options: object) -> str:
        return "reserve"


def test_jobs_are_given_back_once_no_reserve_is_under_way_whoever_ends_before() -> None:
    crew = Crew(Asked(), "mail", 1.0, lambda _error, _job: None)
    taking = crew.taking(Bell)
    assert next(taking) == "reserve"
    closing = crew.closing(Bell)
    for _ in range(2):
        bell: Any = next(closing)
        crew.wake_all()  # a thread has ended; the one that reserves has not
        assert bell.is_set
    bell = next(closing)
    job: Any = object()
    assert [*_ended(taking, [job])] == [[]], "nobody begins what it brings"
    assert bell.is_set
    assert [*_ended(closing, None)] == [[job]]


def _ended(steps: Any, answer: object) -> Any:  # noqa: ANN401 - steps of whatever kind
    """Yield what the steps return, the answer given."""
    try:
        steps.send(answer)
    except StopIteration as end:
        yield end.value
