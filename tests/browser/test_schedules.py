"""The pages of schedules as their reader meets them, in Chromium."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from delayd.access.scopes import Scope
from delayd.testing.daemon import Daemon
from tests.access.samples import made
from tests.browser.browser import NEEDS_CHROMIUM, Browser
from tests.browser.dashboards import ask, bury, dashboard, log_in, put_schedules, url_of
from tests.rigs.process import token_flags

pytestmark = NEEDS_CHROMIUM


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon whose time the test lets pass."""
    with dashboard(tmp_path, "--clock", "virtual") as daemon:
        yield daemon


NAMES: Final = (
    "[...document.querySelectorAll('[aria-label=Schedules] tbody th a')]"
    ".map((each) => each.innerText).join(' ')"
)
DUE: Final = (
    "[...document.querySelectorAll('[aria-label=Schedules] td.when')]"
    ".map((each) => each.innerText.split('\\n')[0])"
)
PROMISED: Final = (
    "[...document.querySelectorAll('form [aria-label=\"The next runs\"] tbody th')]"
    ".map((each) => each.innerText)"
)
MARKS: Final = "[...document.querySelectorAll('.mark')].map((each) => each.innerText || '1').join()"

COUNTS_ARE_APART: Final = """
(() => {
    const line = document.querySelector(".line").getBoundingClientRect();
    const counts = [...document.querySelectorAll(".mark b")].map((b) => b.getBoundingClientRect());
    const starts = [...counts.slice(1).map(({ left }) => left), line.right];
    const isApart = counts.every(({ right }, at) => right < starts[at]);
    return counts.length > 5 && isApart && line.left <= counts[0].left;
})()
"""
TROUBLE: Final = """
import(
    performance.getEntriesByType("resource").find(({ name }) => /schedule[.]/.test(name)).name
).then(({ troubleOf }) => [86399, 86400].map((ago) => troubleOf(
    { last: { outcome: "done" }, last_missed: "2026-11-22T07:30:00Z", state: "active" },
    Date.parse("2026-11-22T07:30:00Z") + ago * 1000,
)))
"""


def test_schedules_with_trouble_come_first_and_then_what_runs_next(
    browser: Browser, daemon: Daemon
) -> None:
    browser.forgive("status of 404")
    browser.open(url_of(daemon, "schedules"), "There are no schedules.")
    put_schedules(daemon)
    ask(daemon, "POST", "/v1/clock/advance", {"by": "3h"})
    bury(daemon, "chores", "no space left")
    browser.open(url_of(daemon, "schedules"), "1 to 6 of 6 schedules")
    order = str(browser.evaluate(NAMES)).split()
    assert order[:3] == ["stock", "clean-up", "newsletter"]
    others = browser.evaluate(DUE)[3:]
    assert (len(others), sorted(others)) == (3, others)
    row = "document.querySelector('[aria-label=Schedules] tbody tr:nth-child(%d)').innerText"
    assert "refused" in browser.evaluate(row % 1)
    assert "no letters in the holidays" in browser.evaluate(row % 3)
    nightly = str(browser.evaluate(row % (order.index("nightly-report") + 1)))
    assert "30 2 * * *, every day at 02:30, America/New_York" in nightly
    assert " GMT-0" in nightly, "by its own clock too"
    browser.enter("[name=topic]", "invoices")
    browser.evaluate("document.activeElement.dispatchEvent(new Event('change'))")
    browser.wait_for(f"{NAMES} === 'invoices'")
    assert browser.evaluate("document.activeElement.name") == "topic"
    assert browser.evaluate("location.hash") == "#/schedules?topic=invoices"
    browser.open(url_of(daemon, "schedules?prefix=ni&topic=reports"))
    browser.wait_for(f"{NAMES} === 'nightly-report'")
    browser.open(url_of(daemon, "topics/invoices"), "There is no such topic now", "the next run ")
    browser.click("dd a", "1")
    browser.wait_for(f"{NAMES} === 'invoices'")


def test_runs_are_marks_on_a_line_and_several_at_once_are_one_with_a_count(
    browser: Browser, daemon: Daemon
) -> None:
    for name, every in (("a", "5h"), ("b", "5h"), ("c", "10h")):
        definition = {"topic": "t", "every": every, "body": 1}
        ask(daemon, "PUT", f"/v1/schedules/{name}", definition)
    browser.open(url_of(daemon, "schedules"), "10 runs within 24 hours")
    assert browser.evaluate(TROUBLE) == ["missed", ""], "for a day"
    assert browser.evaluate(MARKS) == "2,3,2,3"
    titles = "document.querySelectorAll('.mark')[1].title.split('\\n')"
    assert [each.split()[1] for each in browser.evaluate(titles)] == ["a", "b", "c"]
    browser.click("summary", "As a table")
    rows = "[...document.querySelectorAll('[aria-label=\"What runs next\"] tbody tr')]"
    assert browser.evaluate(f"{rows}[1].innerText").split("\t")[-2:] == ["3", "a, b, c"]
    browser.click("button", "7 days", then="82 runs within 7 days")
    ask(daemon, "PUT", "/v1/schedules/often", {"topic": "t", "cron": "* * * * *", "body": 1})
    browser.open(url_of(daemon, "schedules"), "of often only the next 100 are shown")
    browser.wait_for(COUNTS_ARE_APART)
    once = {"topic": "t", "every": "1h", "start": "2099-01-01T00:00:00Z", "limit": 1, "body": 1}
    ask(daemon, "PUT", "/v1/schedules/once", once)
    browser.open(url_of(daemon, "schedules?prefix=once"), "at most 1 run")
    assert "at most 1 runs" not in browser.text()


def test_a_schedule_is_previewed_before_it_is_saved_and_mistakes_are_at_their_fields(
    browser: Browser, daemon: Daemon
) -> None:
    browser.forgive("status of 404", "status of 422")
    browser.open(url_of(daemon, "new-schedule?topic=reports"))
    for field, text in (
        *(("name", "nightly"), ("cron", "30 2 31 2 *"), ("timezone", "America/NewYork")),
        *(("limit", "many"), ("body", '{"n": 12345678901234567890, "m": 1.0}'), ("retry", "1m 5m")),
    ):
        browser.enter(f"#schedule-{field}", text)
    browser.click("button", "Show its runs", then="never fires: no month has such a day")
    browser.shows("did you mean America/New_York?")
    invalid = "[...document.querySelectorAll('[aria-invalid]')].map((each) => each.name).join()"
    assert browser.evaluate(invalid) == "cron,timezone,limit"
    assert browser.evaluate("document.activeElement.name") == "cron"
    assert "Save" not in browser.text()
    browser.enter("#schedule-cron", "30 4 * * *")
    browser.enter("#schedule-timezone", "America/New_York")
    browser.enter("#schedule-limit", "30")
    browser.enter("#schedule-body", "{")
    browser.click("button", "Show its runs", then="it is no JSON")
    browser.enter("#schedule-body", '{"n": 12345678901234567890, "m": 1.0}')
    browser.click("button", "Show its runs", then="Its first runs would be")
    assert browser.text().count(" 04:30 GMT-0") == 10
    assert ask(daemon, "GET", "/v1/schedules")["schedules"] == [], "shown, and not made"
    browser.enter("#schedule-cron", "45 4 * * *")
    assert "Save" not in browser.text(), "what would be saved is what was shown"
    browser.click("button", "Show its runs")
    browser.click("button", "Save", then="Schedule nightly")
    browser.shows('"n": 12345678901234567890,')
    browser.shows('"m": 1.0')
    assert ask(daemon, "GET", "/v1/schedules/nightly")["definition"] == {
        "topic": "reports",
        "cron": "45 4 * * *",
        "timezone": "America/New_York",
        "limit": 30,
        "retry": ["1m", "5m"],
        "body": {"n": 12345678901234567890, "m": 1.0},
    }
    browser.open(url_of(daemon, "new-schedule?topic=mail"))
    browser.enter("#schedule-name", "nightly")
    browser.click("button", "Show its runs", then="there is a schedule of this name")


def test_a_change_keeps_what_is_not_in_the_form_and_says_what_somebody_else_has_changed(
    browser: Browser, daemon: Daemon
) -> None:
    path = "/v1/schedules/hourly"
    definition = {"topic": "t", "every": "1h", "body_base64": "/wA="}
    ask(daemon, "PUT", path, definition)
    ask(daemon, "POST", "/v1/clock/advance", {"by": "150m"})
    browser.open(url_of(daemon, "schedules/hourly"))
    browser.click("summary", "Change")
    ask(daemon, "PUT", path, {**definition, "overlap": "skip"})
    browser.enter("#schedule-every", "2h")
    browser.enter("#schedule-limit", "5")
    browser.click("button", "Show its runs", then="Its next runs would be")
    promised = browser.evaluate(PROMISED)
    browser.click("button", "Save")
    browser.shows("Changed by somebody else since this page read it: overlap is skip now.")
    browser.click("button", "Save", then="hourly is saved")
    told = ask(daemon, "GET", path)
    assert told["definition"] == {**definition, "every": "2h", "limit": 5}
    runs = ask(daemon, "GET", f"{path}/preview")["runs"]
    assert promised == [run.replace(".000Z", "Z") for run in runs]
    assert (len(runs), told["runs"]) == (3, 2), "by what it was before, too"
    assert told["changed"] is not None


def test_a_schedule_is_paused_run_backfilled_and_removed(browser: Browser, daemon: Daemon) -> None:
    path = "/v1/schedules/hourly"
    ask(daemon, "PUT", path, {"topic": "t", "cron": "0 * * * *", "body": 1})
    browser.open(url_of(daemon, "schedules/hourly"))
    browser.click("button", "Pause …")
    browser.enter("#note", "the warehouse moves")
    browser.click("dialog[open] button.primary", then="paused: the warehouse moves")
    browser.shows("None while it is paused.")
    browser.click("button", "Resume")
    browser.wait_for("!document.body.innerText.includes('the warehouse moves')")
    browser.click("button", "Run now", then="was put")
    browser.click("dd a[href*=job]", then="hourly@")
    browser.open(url_of(daemon, "schedules/hourly"))
    browser.click("button", "Backfill …")
    browser.enter("#from", "2026-01-01T00:00:00Z")
    browser.enter("#until", "2026-01-01T05:00:00Z")
    browser.click("dialog[open] button.primary", then="6 jobs were put, 0 were there")
    browser.click("button", "Remove …", then="The jobs of its runs stay.")
    browser.click("dialog[open] button", "Leave it")
    assert ask(daemon, "GET", path)["state"] == "active"
    browser.click("button", "Remove …")
    browser.click("dialog[open] button.danger", then="There are no schedules.")
    assert ask(daemon, "GET", "/v1/topics/t")["ready"] == 7


def come_back(browser: Browser, daemon: Daemon, view: str, token: str) -> None:
    """Open a view with another token."""
    browser.open(url_of(daemon, view))
    browser.wait_for("document.querySelector('main h1')")
    browser.evaluate("sessionStorage.clear()")
    browser.open(url_of(daemon, view))
    log_in(browser, token)


def test_a_token_is_offered_what_it_may_do_and_nobody_to_change_the_configuration(
    browser: Browser, tmp_path: Path
) -> None:
    everything, entry = made(1)
    looking, second = made(2, (Scope.PEEK,), topics=("mail*",))
    putting, third = made(3, (Scope.PEEK, Scope.PUT, Scope.WEBHOOK))
    daily = '[schedules.{}]\ntopic = "{}"\ncron = "@daily"\nbody = 1\n'
    configured = daily.format("news", "mail") + daily.format("report", "reports")
    flags = token_flags(tmp_path, entry, second, third, more=configured)
    hook = {"topic": "mail", "every": "1h", "body": 1, "url": "https://example.com/?key=s3cret"}
    browser.forgive("status of 401", "status of 404")
    with dashboard(tmp_path, *flags) as daemon:
        come_back(browser, daemon, "schedules", everything)
        browser.shows("New schedule")
        ask(daemon, "PUT", "/v1/schedules/hook", hook, token=everything)
        browser.shows("of the configuration")
        browser.open(url_of(daemon, "schedules/news"), "The configuration has set this schedule")
        assert not {"Remove …", "Show its runs"} & {*browser.text().split("\n")}
        browser.click("button", "Pause …")
        browser.click("dialog[open] button.primary", then="None while it is paused.")
        come_back(browser, daemon, "schedules", looking)
        browser.wait_for(f"{NAMES} === 'news hook'")
        assert "New schedule" not in browser.text()
        browser.open(url_of(daemon, "new-schedule"), "so it makes no schedules")
        browser.open(url_of(daemon, "schedules/news"), "This token may only look at the schedule.")
        assert "Pause …" not in browser.text()
        browser.open(url_of(daemon, "schedules/report"), "There is no such schedule")
        come_back(browser, daemon, "schedules/hook", putting)
        browser.shows("to change this schedule it needs the scope admin")
        browser.shows("Run now")
        assert "s3cret" not in browser.text(), "so it would be lost by a change"
