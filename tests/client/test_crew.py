"""What the threads or tasks of one worker do together, step by step."""

from typing import Any

import pytest

from delayd.client import Client, ConnectionLost, Draining, Job, NotReserved
from delayd.client.crew import Crew
from delayd.client.results import Reservation
from delayd.client.steps import Steps


class Alarm:
    def __init__(self) -> None:
        self.is_set = False

    def set(self) -> None:
        self.is_set = True

    def wait(self) -> "Alarm":
        return self


class Desk:
    """A client, which notes what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def reserve_many(self, _topics: object, *, limit: int, timeout: float) -> None:
        self.asked.append(("reserve", limit))

    def ack_many(self, jobs: list[Any]) -> None:
        self.asked.append(("ack", [job.id for job in jobs]))

    def keep(self, job: Any) -> None:  # noqa: ANN401 - a job
        self.asked.append(("keep", job.id))

    def keep_no_more(self, job: Any) -> None:  # noqa: ANN401 - a job
        self.asked.append(("keep no more", job.id))


def job_of(number: int, link: object = None) -> Job:
    return Job(Client(), Reservation(number, "mail", "", b"", link=link))


def ended(steps: Steps[Any], answer: object) -> Any:  # noqa: ANN401 - its result
    """Return the result of steps that end with this answer."""
    with pytest.raises(StopIteration) as done:
        steps.send(answer)
    return done.value.value


def test_one_of_a_crew_reserves_for_all_that_wait() -> None:
    desk = Desk()
    crew = Crew(desk, "mail", 1.0, lambda *_: None)
    first, second, third = (crew.taking(Alarm) for _ in range(3))
    next(first)
    alarms = next(second), next(third)
    jobs = [job_of(number) for number in range(4)]
    assert ended(first, jobs[:1]) == jobs[:1]
    assert [alarm.is_set for alarm in alarms] == [True, False]
    assert ended(second, None) is None  # it may reserve now
    fourth = crew.taking(Alarm)
    next(fourth)
    assert desk.asked == [("reserve", 1), ("reserve", 2)]
    fourth.send(jobs[1:3])
    assert desk.asked[-1] == ("keep", 2)
    assert ended(fourth, None) == [jobs[1]]
    assert alarms[1].is_set
    assert crew.has_jobs
    assert ended(third, None) == [jobs[2]]
    assert not crew.has_jobs


def test_those_of_a_crew_that_are_ready_run_before_one_reserves_or_acknowledges() -> None:
    desk = Desk()
    crew = Crew(desk, "mail", 1.0, lambda *_: None, lambda: "others first")
    first, second = crew.taking(Alarm), crew.taking(Alarm)
    assert next(first) == "others first"
    next(second)
    first.send(None)
    assert desk.asked == [("reserve", 2)]
    jobs = [job_of(number) for number in range(3)]
    acknowledging = crew.acknowledging(jobs[0])
    assert next(acknowledging) == "others first"
    for job in jobs[1:]:
        with pytest.raises(StopIteration):
            next(crew.acknowledging(job))
    acknowledging.send(None)
    assert desk.asked[1:] == [("ack", [0, 1, 2])]


def test_a_crew_reserves_again_after_one_that_failed() -> None:
    desk = Desk()
    crew = Crew(desk, "mail", 1.0, lambda *_: None)
    first, second = crew.taking(Alarm), crew.taking(Alarm)
    next(first)
    alarm = next(second)
    with pytest.raises(Draining):
        first.throw(Draining("", "DRAINING"))
    assert alarm.is_set
    assert ended(second, None) is None
    next(crew.taking(Alarm))
    assert desk.asked == [("reserve", 1)] * 2


def test_one_of_a_crew_acknowledges_what_its_connection_holds_and_waits_for_no_other() -> None:
    desk, reports = Desk(), []
    crew = Crew(desk, "mail", 1.0, lambda *report: reports.append(report))
    jobs = [*(job_of(number, "a") for number in range(3)), *(job_of(n, "b") for n in (3, 4))]
    first = crew.acknowledging(jobs[0])
    next(first)
    for job in jobs[1:3]:
        with pytest.raises(StopIteration):
            next(crew.acknowledging(job))
    second = crew.acknowledging(jobs[3])
    next(second)
    assert desk.asked == [("ack", [0]), ("ack", [3])]  # both are under way
    refusal, lost = NotReserved("", "NOT_RESERVED"), ConnectionLost("", "", may_have_happened=True)
    with pytest.raises(StopIteration):
        second.throw(lost)
    first.send([None])
    assert ended(first, [refusal, None]) is None
    third = crew.acknowledging(jobs[4])
    next(third)
    third.close()  # cancelled
    next(crew.acknowledging(jobs[4]))
    acks = [each for each in desk.asked if each[0] == "ack"]
    assert acks == [("ack", numbers) for numbers in ([0], [3], [1, 2], [4], [4])]
    kept_no_more = [each[1] for each in desk.asked if each[0] == "keep no more"]
    assert kept_no_more == [3, 0, 1, 2]
    assert reports == [(lost, jobs[3]), (refusal, jobs[1])]


def test_jobs_are_given_back_once_no_reserve_is_under_way_whoever_ends_before() -> None:
    desk = Desk()
    crew = Crew(desk, "mail", 1.0, lambda *_: None)
    taking = crew.taking(Alarm)
    next(taking)
    assert desk.asked == [("reserve", 1)]
    closing = crew.closing(Alarm)
    for _ in range(2):
        alarm = next(closing)
        crew.wake_all()  # a thread has ended; the one that reserves has not
        assert alarm.is_set
    alarm = next(closing)
    job = job_of(1)
    assert ended(taking, [job]) == [], "nobody begins what it brings"
    assert alarm.is_set
    assert ended(closing, None) == [job]
