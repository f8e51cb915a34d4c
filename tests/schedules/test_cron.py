import datetime as dt
import random
import re

import pytest

from delayd.fields import Field, Invalid
from delayd.limits import CRON_CHARACTERS_MAX, CRONS_KEPT_MAX
from delayd.schedules.cron import (
    BLANKS,
    CRON,
    CRON_RULE,
    LONG,
    NAMED,
    NEVER,
    NO_MARK,
    NOT_CRON,
    REBOOT,
    SIX_FIELDS,
    cron_times,
)
from tests.schedules.model import expression, refusal_of

DAY_S = 86_400
EPOCH = dt.date(1970, 1, 1).toordinal()


@pytest.mark.walk(1, 100)
def test_an_expression_names_the_days_that_it_means(number: int, rng: random.Random) -> None:
    """Of three years, in both directions, and counted."""
    for _ in range(10):
        meant = expression(rng)
        text = " ".join(("5/30 7", *meant.text.split()[2:]))
        first = dt.date(rng.randrange(1971, 9990), rng.randrange(1, 13), 1).toordinal()
        days = range(first, first + 3 * 366)
        named = [day for day in days if meant.names_day(dt.date.fromordinal(day))]
        refusal = refusal_of(text)
        if refusal:
            assert (refusal, named) == (NEVER, [])
            continue
        times = cron_times(text)
        low_s, end_s = ((day - EPOCH) * DAY_S for day in (days[0], days[-1] + 1))
        found = [*times.clock_times(low_s, end_s)]
        assert [*dict.fromkeys(at_s // DAY_S + EPOCH for at_s in found)] == named, meant.text
        assert [*times.clock_times(low_s, end_s, is_back=True)] == found[::-1]
        assert times.count(low_s, end_s) == len(found)
        for day in rng.sample(days, 5):
            after = [each for each in named if each >= day]
            if after:
                assert times.day_from(day - EPOCH) == after[0] - EPOCH
            before = [each for each in named if each <= day]
            last = before[-1] - EPOCH if before else None
            assert times.day_until(day - EPOCH, days[0] - EPOCH) == last


def test_names_stand_for_expressions() -> None:
    for name, text in NAMED.items():
        assert CRON.read(name) == name
        times, same = cron_times(name), cron_times(text)
        found = [*times.clock_times(0, 800 * DAY_S)]
        assert found
        assert found == [*same.clock_times(0, 800 * DAY_S)]
        assert times.is_fixed is (name != "@hourly")


def steps_of(values: int) -> str:
    return f'must have a step of at most {values}: a longer interval is given as "every"'


NUMBERS = "also as 1,2 or 1-5 or */2"
REFUSED = {
    "": CRON_RULE,
    "* * * *": CRON_RULE,
    "* * * * * * *": CRON_RULE,
    "* * * * *\n": BLANKS,
    "*\u00a0* * * *": BLANKS,
    "0 0 ? * *": f'the day of month "?" must be * or 1 to 31, L or LW, {NUMBERS}; {NO_MARK}',
    "+3 3 * * *": f'the minute "+3" must be * or 0 to 59, {NUMBERS}',
    "* \u00b2 * * *": f'the hour "\\u00b2" must be * or 0 to 23, {NUMBERS}',
    "@daly": f"{CRON_RULE}; did you mean @daily?",
    "@reboot": REBOOT,
    "@every 5m": NOT_CRON,
    "0 * * * * *": SIX_FIELDS,
    "60 * * * *": f'the minute "60" must be * or 0 to 59, {NUMBERS}',
    "*/0 * * * *": f'the minute "*/0" must be * or 0 to 59, {NUMBERS}',
    "1-2-3 * * * *": f'the minute "1-2-3" must be * or 0 to 59, {NUMBERS}',
    "* 24 * * *": f'the hour "24" must be * or 0 to 23, {NUMBERS}',
    "* 17-9 * * *": f'the hour "17-9" must be * or 0 to 23, {NUMBERS}',
    "* * 0 * *": f'the day of month "0" must be * or 1 to 31, L or LW, {NUMBERS}',
    "* * 15W * *": f'the day of month "15W" must be * or 1 to 31, L or LW, {NUMBERS}',
    "* * * JANUARY *": f'the month "JANUARY" must be * or 1 to 12 or JAN to DEC, {NUMBERS}',
    "* * * * 8": f'the day of week "8" must be * or 0 to 7 or SUN to SAT, 5L or 5#2, {NUMBERS}',
    "* * * * 5#6": f'the day of week "5#6" must be * or 0 to 7 or SUN to SAT, 5L or 5#2, {NUMBERS}',
    "*/61 * * * *": f'the minute "*/61" {steps_of(60)}',
    "0-59/99 * * * *": f'the minute "0-59/99" {steps_of(60)}',
    "0 5,*/25 * * *": f'the hour "5,*/25" {steps_of(24)}',
    "0 0 */32 * *": f'the day of month "*/32" {steps_of(31)}',
    "0 0 1 */13 *": f'the month "*/13" {steps_of(12)}',
    "0 0 * * */8": f'the day of week "*/8" {steps_of(7)}',
    "0 0 30 2 *": NEVER,
    "0 0 31 2,4,6,9,11 *": NEVER,
    "*," * 127 + "* * * * *": LONG,
}


@pytest.mark.parametrize(("text", "rule"), REFUSED.items())
def test_a_wrong_expression_is_refused_with_the_rule(text: str, rule: str) -> None:
    with pytest.raises(Invalid) as refusal:
        Field("cron", "cron", CRON).read(text)
    assert refusal.value.errors[0].rule == rule
    assert refusal.value.errors[0].place == "cron"


@pytest.mark.parametrize("value", [None, 5, True, ["* * * * *"]])
def test_what_is_no_text_is_no_expression(value: object) -> None:
    with pytest.raises(ValueError, match="must be five fields"):
        CRON.read(value)


TAKEN = (
    *("  5\t4  * * *  ", "0 0 29 2 *", "0 0 29 2 */7", "0 0 31 2 MON", "0 0 * 2 MON#5"),
    *("*/60 9-17/20 */31 */12 */7", "0 0 LW * *", "0 0 * * 5L", "0 0 * * sun-tue", "0 0 * * 7"),
    *("007 * * * *", "5/15 */3 1,15 jan-mar,12 1-5/2", f"{'*/1,' * 61}*/1 * * * *"),
)


@pytest.mark.parametrize("text", TAKEN)
def test_an_expression_is_kept_as_it_was_written(text: str) -> None:
    assert CRON.read(text) == text == CRON.show(text)
    assert len(text) <= CRON_CHARACTERS_MAX


def test_the_schema_takes_what_is_read_and_refuses_what_has_not_the_form() -> None:
    form = re.compile(CRON.schema["pattern"])
    for text in (*TAKEN, *NAMED):
        assert form.search(text)
    for text, rule in REFUSED.items():
        has_form = bool(form.search(text)) and len(text) <= CRON.schema["maxLength"]
        is_strange = re.search(r"[^ \t0-9A-Za-z*/,#-]", text)
        assert has_form is (rule == NEVER or (rule.startswith("the ") and not is_strange))


def test_any_text_is_read_or_refused(rng: random.Random) -> None:
    for _ in range(500):
        parts = ("".join(rng.choices("*/-,#L0159WMON@ ", k=rng.randrange(1, 9))) for _ in range(5))
        text = " ".join(parts)
        assert refusal_of(text) or cron_times(text).day_from(0) is not None


def test_what_is_remembered_of_expressions_has_a_bound() -> None:
    for number in range(CRONS_KEPT_MAX + 10):
        cron_times(f"{number % 60} {number // 60} * * *")
    assert cron_times.cache_info().currsize == CRONS_KEPT_MAX
