import datetime as dt
import random
import re
from collections.abc import Iterator
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter  # type: ignore[import-untyped]
from cronsim import CronSim

from delayd.limits import EVERY_MS_MAX, EVERY_MS_MIN, WALL_MS_MAX
from delayd.moments import moment_text, parse_moment_ms
from delayd.schedules.recurrence import EVERY, Recurrence, jitter_ms
from tests.schedules.model import Expression, Looks, due, expression, looks, refusal_of

DAY_S = 86_400
LEAD_S = 8 * 3_600  # more than any clock has gone back: until then the model knows what was shown
YEAR_MS = 366 * DAY_S * 1_000
# Each kind of change that a clock has seen since 1970: the moment, in UTC.
CHANGES = {
    "an hour skipped": ("America/New_York", "2026-03-08T07:00:00Z"),
    "an hour twice": ("America/New_York", "2026-11-01T06:00:00Z"),
    "half an hour skipped": ("Australia/Lord_Howe", "2026-10-03T15:30:00Z"),
    "half an hour twice": ("Australia/Lord_Howe", "2026-04-04T15:00:00Z"),
    "winter time for Ramadan": ("Africa/Casablanca", "2024-03-10T02:00:00Z"),
    "summer time after Ramadan": ("Africa/Casablanca", "2024-04-14T02:00:00Z"),
    "midnight skipped": ("America/Sao_Paulo", "2018-11-04T03:00:00Z"),
    "the hour before midnight twice": ("America/Sao_Paulo", "2018-02-18T02:00:00Z"),
    "midnight twice": ("America/St_Johns", "2010-11-07T02:31:00Z"),
    "two hours skipped": ("Antarctica/Troll", "2024-03-31T01:00:00Z"),
    "seven hours twice": ("Antarctica/Vostok", "2023-12-17T19:00:00Z"),
    "a quarter of an hour skipped": ("Asia/Kathmandu", "1985-12-31T18:30:00Z"),
    "44 minutes and 30 seconds skipped": ("Africa/Monrovia", "1972-01-07T00:44:30Z"),
    "a day skipped": ("Pacific/Apia", "2011-12-30T10:00:00Z"),
}
TELLING = ("30 2 * * *", "*/15 * * * *", "15 0-3 * * *", "*/20 1,2 * * *", "0 * * * *", "5 1 * * 0")


def plain(text: str) -> Expression:
    """An expression of numbers, ranges, lists and steps, and what it means."""

    def meant(part: str, low: int, high: int) -> Iterator[int]:
        for item in part.split(","):
            numbers, _, step = item.partition("/")
            first, _, last = numbers.replace("*", f"{low}-{high}").partition("-")
            yield from range(int(first), int(last or first) + 1, int(step or 1))

    bounds = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))
    fields = (meant(part, *each) for part, each in zip(text.split(), bounds, strict=True))
    return Expression(text, *map(frozenset, fields))


def forward(recurrence: Recurrence, after_ms: int, until_ms: int) -> list[int]:
    """What `next_after` says, from one to the next."""
    found = []
    at_ms = recurrence.next_after(after_ms)
    while at_ms is not None and at_ms <= until_ms:
        assert at_ms > after_ms
        found.append(at_ms)
        after_ms, at_ms = at_ms, recurrence.next_after(at_ms)
    return found


def must_agree(meant: Expression, zone: str, seen: Looks, rng: random.Random) -> None:
    """Compare it with the model, in all that it says of this time but for `LEAD_S`."""
    begin_ms, end_ms = (seen[0][0] + LEAD_S) * 1_000, seen[-1][0] * 1_000
    start_ms, after_ms = (begin_ms - rng.randrange(120_000) for _ in range(2))
    until_ms = end_ms - rng.randrange(2) * rng.randrange(3_600_000)
    limit = rng.choice((0, 1, 7, 10_000))
    recurrence = Recurrence(cron=meant.text, timezone=zone, start_ms=start_ms, end_ms=end_ms)
    lowest_ms = max(after_ms + 1, start_ms)
    expected = [at_ms for at_ms in due(meant, seen) if lowest_ms <= at_ms <= until_ms]
    case = f"{meant.text} in {zone} from {moment_text(lowest_ms)} to {moment_text(until_ms)}"
    assert recurrence.first(after_ms, until_ms, 10_000) == expected, case
    assert recurrence.first(after_ms, until_ms, limit) == expected[:limit], case
    latest = expected[-limit:] if limit else []
    assert recurrence.latest(after_ms, until_ms, limit) == latest, case
    assert recurrence.count(after_ms, until_ms) == len(expected), case
    few = expected[:50]
    assert forward(recurrence, after_ms, few[-1] if few else after_ms) == few, case
    # Also within an hour that is shown twice.
    for at_ms in rng.sample(range(begin_ms, until_ms), 5):
        later = (each for each in expected if each > at_ms)
        found = recurrence.next_after(at_ms)
        assert next(later, None) == (found if found and found <= until_ms else None), case


@pytest.mark.parametrize(("zone", "moment"), CHANGES.values(), ids=CHANGES)
def test_runs_around_a_change_of_the_clock(zone: str, moment: str, rng: random.Random) -> None:
    change_s = parse_moment_ms(moment) // 1_000
    shown = [dt.datetime.fromtimestamp(change_s - back, ZoneInfo(zone)) for back in (1, 0)]
    assert shown[0].utcoffset() != shown[1].utcoffset()
    seen = looks(zone, change_s - LEAD_S - 4 * 3_600, change_s + 10 * 3_600)
    for text in TELLING:
        must_agree(plain(text), zone, seen, rng)


ZONES = (*dict(CHANGES.values()), "UTC", "Asia/Gaza", "Europe/Dublin", "Asia/Kolkata")


@pytest.mark.walk(1, 400)
def test_runs_of_random_expressions(number: int, rng: random.Random) -> None:
    """Of 250 in each walk of the long form, which makes 100,000; half of them near a change."""
    for _ in range(25 if number else 1):
        zone = rng.choice(ZONES)
        begin_s = rng.randrange(DAY_S, 4_000_000_000)
        if rng.randrange(2):
            zone, moment = rng.choice([*CHANGES.values()])
            begin_s = parse_moment_ms(moment) // 1_000 - rng.randrange(2 * DAY_S)
        seen = looks(zone, begin_s - LEAD_S, begin_s + DAY_S)
        for _ in range(10):
            star = rng.choice((0.5, 0.95))
            meant = expression(rng, star)
            if not refusal_of(meant.text):
                must_agree(meant, zone, seen, rng)


def test_counts_of_many_years_are_exact(rng: random.Random) -> None:
    for text in ("0 12 * * *", "30 2 * * SUN", "0 0 29 2 */7", "0 */12 L * *", "30 1 1 * *"):
        zone = rng.choice(ZONES)
        recurrence = Recurrence(cron=text, timezone=zone, start_ms=0)
        after_ms = rng.randrange(40 * YEAR_MS)
        until_ms = after_ms + rng.randrange(3 * YEAR_MS)
        one_by_one = forward(recurrence, after_ms, until_ms)
        assert recurrence.count(after_ms, until_ms) == len(one_by_one)
        assert recurrence.first(after_ms, until_ms, 100_000) == one_by_one
        assert recurrence.latest(after_ms, until_ms, 100_000) == one_by_one
    minutes = Recurrence(cron="* * * * *", timezone="America/New_York", start_ms=0)
    assert minutes.count(-1, WALL_MS_MAX // 100) == WALL_MS_MAX // 100 // 60_000 + 1


@pytest.mark.walk(1, 100)
def test_libraries_agree_where_no_clock_changes(number: int, rng: random.Random) -> None:
    """Without what they read otherwise: steps, L, W and 5#2 beside another day, and 5-5."""
    for _ in range(40):
        meant = expression(rng, 0.6)
        _, _, day, month, weekday = meant.text.split()
        if re.search(r"[/LW#]", day + weekday) or re.search(r"\b(\d+)-\1\b", meant.text):
            continue
        if "-" in month + weekday or refusal_of(meant.text):
            continue
        base = dt.datetime.fromtimestamp(rng.randrange(4_000_000_000), dt.UTC)
        ours_ms = Recurrence(cron=meant.text, start_ms=0).next_after(int(base.timestamp()) * 1_000)
        sim, iteration = CronSim(meant.text, base), croniter(meant.text, base)
        for theirs_s in (next(sim).timestamp(), iteration.get_next()):
            assert theirs_s * 1_000 == ours_ms, (meant.text, base)


def test_every_lists_and_counts_the_same(rng: random.Random) -> None:
    for _ in range(50):
        start_ms, every_ms = rng.randrange(1_000_000), rng.randrange(1_000, 100_000)
        end_ms = rng.choice((None, start_ms + rng.randrange(1_000_000), start_ms - 1))
        zone = rng.choice(ZONES)  # which makes no difference
        recurrence = Recurrence(every_ms=every_ms, timezone=zone, start_ms=start_ms, end_ms=end_ms)
        after_ms, until_ms = rng.randrange(-5, 2_000_000), rng.randrange(2_000_000)
        every = range(start_ms, min(until_ms, until_ms if end_ms is None else end_ms) + 1, every_ms)
        expected = [at_ms for at_ms in every if at_ms > after_ms]
        limit = rng.randrange(5)
        assert forward(recurrence, after_ms, until_ms) == expected
        assert recurrence.count(after_ms, until_ms) == len(expected)
        assert recurrence.first(after_ms, until_ms, limit) == expected[:limit]
        latest = expected[max(0, len(expected) - limit) :]
        assert recurrence.latest(after_ms, until_ms, limit) == latest


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Pacific/Kiritimati"])
def test_the_calendar_ends_with_the_year_9999(zone: str) -> None:
    for recurrence in (
        Recurrence(cron="0 12 * * *", timezone=zone, start_ms=0),
        Recurrence(every_ms=DAY_S * 1_000, start_ms=0),
    ):
        last_ms = recurrence.latest(0, WALL_MS_MAX * 2, 1)[0]
        assert WALL_MS_MAX - 2 * DAY_S * 1_000 < last_ms <= WALL_MS_MAX
        assert recurrence.next_after(last_ms) is None
        assert recurrence.next_after(last_ms - 1) == last_ms
        assert recurrence.count(last_ms, WALL_MS_MAX * 2) == 0
    leap = Recurrence(
        cron="0 0 29 2 *", timezone=zone, start_ms=parse_moment_ms("9997-01-01T00:00:00Z")
    )
    assert leap.next_after(0) is None
    assert leap.latest(0, WALL_MS_MAX, 5) == leap.first(0, WALL_MS_MAX, 5) == []


def test_start_and_end_are_included() -> None:
    noon_ms = parse_moment_ms("2026-11-27T12:00:00Z")
    ends = Recurrence(cron="0 12 * * *", start_ms=noon_ms, end_ms=noon_ms)
    assert ends.first(0, WALL_MS_MAX, 5) == [noon_ms]
    late = Recurrence(cron="0 12 * * *", start_ms=noon_ms + 1, end_ms=noon_ms + DAY_S * 1_000 - 1)
    assert late.next_after(0) is None
    assert (late.count(0, WALL_MS_MAX), late.latest(0, WALL_MS_MAX, 5)) == (0, [])


def test_a_wrong_recurrence_is_refused() -> None:
    for cron, every_ms, zone, rule in (
        (None, None, "UTC", "must have either cron or every"),
        ("* * * * *", 1_000, "UTC", "must have either cron or every"),
        (None, EVERY_MS_MIN - 1, "UTC", 'must be from "1s" to "52w2d"'),
        (None, EVERY_MS_MAX + 1, "UTC", 'must be from "1s" to "52w2d"'),
        ("* * * *", None, "UTC", "must be five fields"),
        ("* * * * *", None, "Europe/Belin", "there is no such time zone; did you mean Europe/Berl"),
        (None, 1_000, "Europe/Belin", "there is no such time zone; did you mean Europe/Berlin?"),
    ):
        with pytest.raises(ValueError, match=rule[:30].replace("*", ".")) as refusal:
            Recurrence(cron=cron, every_ms=every_ms, timezone=zone, start_ms=0)
        assert str(refusal.value).startswith(rule)
    for text in (0.5, "999ms", "52w2d1s"):
        with pytest.raises(ValueError, match='must be from "1s" to "52w2d"'):
            EVERY.read(text)
    with pytest.raises(ValueError, match=r'"30d" or "1w", from "1s" to "52w2d"'):
        EVERY.read("1y")
    assert [EVERY.read(text) for text in (1, "52w2d")] == [EVERY_MS_MIN, EVERY_MS_MAX]


def test_jitter_is_a_share_that_a_name_keeps() -> None:
    assert [jitter_ms("nightly", most) for most in (0, 1, 1_000, 60_000)] == [0, 0, 959, 57_594]
    shares = [jitter_ms(f"job-{number}", 100) for number in range(1_000)]
    assert {*shares} == {*range(100)}
    assert jitter_ms("\udcff", 1) == 0
